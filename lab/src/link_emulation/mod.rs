//! Links that behave like networks: a relay in user space between client and server, for machines
//! whose kernel cannot shape its loopback.
//!
//! A server and all of its connections share one link with a rate and a delay in each direction, as
//! machines share their network card. Each chunk costs a wake-up and two more copies, which the
//! processors pay.

mod link;
mod ranks;
mod relay;
pub(crate) mod throttle;

use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, io};

use anyhow::{Context, Result, bail};
use lodestore_client::{Address, Client, ClientConfig, Security};
use lodestore_graph::lock::IgnorePoison;

pub(crate) use link::{LinkSpec, parse_delay, parse_rate};
pub(crate) use ranks::ShapedRank;

use link::Link;
use relay::{Stream, relay};

/// Address of a shaped server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Front {
    /// At another address of this machine, on the server's own ports: clients learn from a server
    /// which port each shard has.
    Ip(IpAddr),
    /// At another path; the sockets of shards stand beside it.
    Path(PathBuf),
}

/// A server behind a link. Once this is dropped nothing new is accepted; what was continues until
/// its ends close.
pub(crate) struct ShapedServer {
    address: Address,
    links: Arc<Links>,
    sockets: Vec<FrontSocket>,
}

/// Socket before one of the server's.
struct FrontSocket {
    at: Address,
    accepting: Option<JoinHandle<()>>,
}

/// The two directions of a link.
struct Links {
    closed: AtomicBool,
    to_server: Arc<Mutex<Link>>,
    to_client: Arc<Mutex<Link>>,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl ShapedServer {
    /// Asks the server at `address` where it listens, and is before each of its sockets.
    pub(crate) fn start(
        address: &str,
        security: Security,
        front: &Front,
        spec: LinkSpec,
    ) -> Result<Self> {
        let server: Address = address.parse()?;
        let config = ClientConfig { security, ..ClientConfig::default() };
        let sockets = Client::connect(&[address], config)?.endpoints();
        let link = || Arc::new(Mutex::new(Link::new(spec)));
        let closed = AtomicBool::new(false);
        let links = Arc::new(Links { closed, to_server: link(), to_client: link() });
        let mut shaped = Self { address: server.clone(), links, sockets: Vec::new() };
        for endpoint in sockets {
            let Some(at) = facing(&server, &endpoint, front) else {
                bail!("{server} cannot be had at {front}: {}", Front::EXPECTED);
            };
            let listener = Listener::bind(&at).with_context(|| format!("cannot listen on {at}"))?;
            if endpoint == server {
                shaped.address = at.clone();
            }
            let links = Arc::clone(&shaped.links);
            let thread = thread::Builder::new().name("shape-accept".to_owned());
            let accepting = thread.spawn(move || accept(&listener, &endpoint, &links));
            let accepting = Some(accepting.context("cannot start a thread")?);
            shaped.sockets.push(FrontSocket { at, accepting });
        }
        Ok(shaped)
    }

    /// Returns the address that clients connect to.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the bytes so far, to the server and to its clients.
    pub(crate) fn n_bytes(&self) -> [u64; 2] {
        [&self.links.to_server, &self.links.to_client].map(|link| lock(link).n_bytes())
    }
}

impl Drop for ShapedServer {
    fn drop(&mut self) {
        self.links.closed.store(true, Ordering::Relaxed);
        for endpoint in &mut self.sockets {
            // Wakes the thread, which then finds the flag; one that cannot be woken is left behind.
            if Stream::connect(&endpoint.at).is_ok() {
                let _ = endpoint.accepting.take().map(JoinHandle::join);
            }
            if let Address::Unix(path) = &endpoint.at {
                // One that is gone already is what is wanted.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

impl Front {
    const EXPECTED: &str = "a TCP server is put before another address of this machine, such as \
                            127.0.0.2, one on a Unix socket before another, such as \
                            unix:/tmp/far.sock";
}

impl FromStr for Front {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            Some(path) => Ok(Self::Path(path.into())),
            None => text.parse().map(Self::Ip).map_err(|_| Self::EXPECTED.to_owned()),
        }
    }
}

impl fmt::Display for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Path(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Listener {
    fn bind(at: &Address) -> io::Result<Self> {
        match at {
            Address::Tcp(address) => TcpListener::bind(address).map(Self::Tcp),
            Address::Host { name, port } => TcpListener::bind((&**name, *port)).map(Self::Tcp),
            Address::Unix(path) => UnixListener::bind(path).map(Self::Unix),
        }
    }

    fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => Stream::of_tcp(listener.accept()?.0),
            Self::Unix(listener) => Ok(Stream::Unix(listener.accept()?.0)),
        }
    }
}

/// Returns where `endpoint`, a socket of `server`, is to be found behind the link.
fn facing(server: &Address, endpoint: &Address, front: &Front) -> Option<Address> {
    match (server, endpoint, front) {
        (Address::Tcp(_), Address::Tcp(endpoint), Front::Ip(ip)) => {
            Some(Address::Tcp(SocketAddr::new(*ip, endpoint.port())))
        }
        (Address::Host { .. }, Address::Host { port, .. }, Front::Ip(ip)) => {
            Some(Address::Tcp(SocketAddr::new(*ip, *port)))
        }
        (Address::Unix(server), Address::Unix(endpoint), Front::Path(path)) => {
            let rest = endpoint.to_str()?.strip_prefix(server.to_str()?)?;
            Some(Address::Unix(format!("{}{rest}", path.to_str()?).into()))
        }
        _ => None,
    }
}

fn accept(listener: &Listener, endpoint: &Address, links: &Links) {
    loop {
        let client = listener.accept();
        if links.closed.load(Ordering::Relaxed) {
            return;
        }
        let passed = client.and_then(|client| {
            let server = Stream::connect(endpoint)?;
            let passed = pass(&client, &server, links);
            if passed.is_err() {
                // One direction may be there already; no thread must wait for the other.
                client.close(Shutdown::Both);
                server.close(Shutdown::Both);
            }
            passed
        });
        if let Err(error) = passed {
            tracing::warn!("a connection to {endpoint} was not passed on: {error}");
            // Too few descriptors, or a server that is gone: the next one may fare better.
            thread::sleep(Duration::from_millis(10));
        }
    }
}

fn pass(client: &Stream, server: &Stream, links: &Links) -> io::Result<()> {
    relay(client.try_clone()?, server.try_clone()?, &links.to_server)?;
    relay(server.try_clone()?, client.try_clone()?, &links.to_client)
}

/// Locks the figures of a link, which a panic leaves as they were.
fn lock(link: &Mutex<Link>) -> MutexGuard<'_, Link> {
    link.lock().ignore_poison()
}
