//! The metrics port: one thread that answers HTTP requests about this server, and never a shard.
//!
//! One request to a connection, GET or HEAD, without a body. Everything is bounded: connections,
//! bytes of a request, time for it and for its answer. A connection too many ends the one that is
//! open longest, so that peers that dawdle cannot keep others out.

mod answer;
mod exchange;
mod request;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lodestore_schema::Tokens;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tracing::warn;

use crate::auth::AuthHandle;
use crate::error::ServerError;
use crate::limits::HTTP_CONNECTIONS_MAX;
use crate::log_limit::LogLimiter;
use crate::metrics::Observed;
use exchange::Exchange;

/// Pause after an accept or a poll that failed for want of descriptors or memory.
const BACKOFF: Duration = Duration::from_millis(50);

/// Handle to the thread; it ends when this is dropped.
pub(crate) struct HttpServer {
    address: SocketAddr,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Listens, and answers from what `observed` knows.
    ///
    /// On an address that is not loopback, figures are only for clients with the token of `auth`,
    /// if it has one. Health checks are for all. `hosts` are the accepted host names, see
    /// [`request::Request::parse`].
    pub(crate) fn start(
        address: SocketAddr,
        auth: Arc<AuthHandle>,
        hosts: Vec<String>,
        observed: Arc<Observed>,
    ) -> Result<Self, ServerError> {
        let error = |source| ServerError::Listen { address: address.to_string(), source };
        let listener = TcpListener::bind(address).map_err(error)?;
        listener.set_nonblocking(true).map_err(error)?;
        let address = listener.local_addr().map_err(error)?;
        let auth = Some(auth).filter(|_| !address.ip().is_loopback());
        let rules = AccessRules { auth, hosts };
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| ServerError::Thread(e.into()))?;
        let stop = Arc::new(stop);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("lode-http".into())
            .spawn(move || run(&listener, &rules, &observed, &stopped))
            .map_err(ServerError::Thread)?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// Returns the address as bound.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).is_err() || thread.join().is_err() {
            warn!("the thread of the metrics port did not end well");
        }
    }
}

/// Clients that the port answers.
struct AccessRules {
    /// Token that is required for figures; none on loopback.
    auth: Option<Arc<AuthHandle>>,
    /// Names that resolve to this machine everywhere.
    hosts: Vec<String>,
}

impl AccessRules {
    /// Returns the tokens that requests for figures must show.
    fn tokens(&self) -> Option<Tokens> {
        self.auth.as_ref()?.policy().token
    }
}

fn run(listener: &TcpListener, rules: &AccessRules, observed: &Observed, stop: &OwnedFd) {
    // The one that is open longest first.
    let mut open: Vec<Exchange> = Vec::new();
    let log_limit = LogLimiter::default();
    loop {
        let ready = match wait(listener, stop, &open) {
            Ok(ready) => ready,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => {
                if let Some(untold) = log_limit.allow(Instant::now()) {
                    warn!(%error, untold, "poll failed on the metrics port");
                }
                std::thread::sleep(BACKOFF);
                if rustix::io::read(stop, &mut [0; 8]).is_ok() {
                    return;
                }
                let now = Instant::now();
                open.retain(|exchange| exchange.is_in_time(now));
                continue;
            }
        };
        if ready[0] {
            return;
        }
        let now = Instant::now();
        let mut flags = ready[2..].iter();
        open.retain_mut(|exchange| {
            let is_ready = flags.next().is_some_and(|ready| *ready);
            exchange.is_in_time(now) && (!is_ready || exchange.go_on(rules, observed))
        });
        if ready[1] {
            accept(listener, &mut open, &log_limit);
        }
    }
}

/// Returns whether there is something to do for: the stop, the listener, and each connection.
fn wait(
    listener: &TcpListener,
    stop: &OwnedFd,
    open: &[Exchange],
) -> Result<Vec<bool>, rustix::io::Errno> {
    let mut fds = vec![PollFd::new(stop, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
    fds.extend(open.iter().map(|exchange| PollFd::new(exchange, exchange.awaits())));
    let until = open.iter().map(Exchange::deadline).min();
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let left = left.map(|left| Timespec {
        tv_sec: left.as_secs().cast_signed(),
        tv_nsec: left.subsec_nanos().into(),
    });
    poll(&mut fds, left.as_ref())?;
    Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect())
}

fn accept(listener: &TcpListener, open: &mut Vec<Exchange>, log_limit: &LogLimiter) {
    match listener.accept().and_then(|(stream, _)| Exchange::new(stream)) {
        Ok(exchange) => {
            if open.len() >= HTTP_CONNECTIONS_MAX {
                open.remove(0);
            }
            open.push(exchange);
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        Err(error) => {
            if let Some(untold) = log_limit.allow(Instant::now()) {
                warn!(%error, untold, "accept failed on the metrics port");
            }
            std::thread::sleep(BACKOFF);
        }
    }
}
