//! One connection through a shaped link: two directions, two threads each.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use lodestore_client::Address;
use lodestore_graph::lock::IgnorePoison;

use super::link::Link;

/// Bytes that travel together: little enough for a rate to be smooth, enough for few wake-ups.
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks of one direction of one connection that wait for their turn at most; the sender waits
/// then.
const WAITING_CHUNKS: usize = 64;
/// Chunks on their way at most, for links of a large delay.
const MAX_CHUNKS: usize = 2048;

/// A stream of either kind.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Bytes, and when they arrive.
type Chunk = (Instant, Vec<u8>);

impl Stream {
    pub(super) fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => TcpStream::connect(address).and_then(Self::of_tcp),
            Address::Host { name, port } => {
                TcpStream::connect((&**name, *port)).and_then(Self::of_tcp)
            }
            Address::Unix(path) => UnixStream::connect(path).map(Self::Unix),
        }
    }

    /// Takes a TCP stream. Small chunks leave immediately: their delay is the link's, not the
    /// system's.
    pub(super) fn of_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
        }
    }

    /// Fails only for a stream that is closed already.
    pub(super) fn close(&self, how: Shutdown) {
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        };
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Moves bytes from `from` to `to` over `link`, in threads of their own, until either ends.
pub(super) fn relay(from: Stream, to: Stream, link: &Arc<Mutex<Link>>) -> io::Result<()> {
    let travelling_bytes = link.lock().ignore_poison().travelling_bytes();
    let n_chunks = WAITING_CHUNKS + (travelling_bytes / CHUNK_BYTES as f64) as usize;
    let (sender, receiver) = sync_channel(n_chunks.min(MAX_CHUNKS));
    let link = Arc::clone(link);
    let named = |name: &str| thread::Builder::new().name(name.to_owned());
    named("shape-in").spawn(move || receive(from, &link, &sender))?;
    named("shape-out").spawn(move || deliver(to, &receiver))?;
    Ok(())
}

fn receive(mut from: Stream, link: &Mutex<Link>, sender: &SyncSender<Chunk>) {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let n_bytes = match from.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // An error ends a connection as its end does.
            Ok(0) | Err(_) => break,
            Ok(n_bytes) => n_bytes,
        };
        let arrival = {
            let mut link = link.lock().ignore_poison();
            link.send(Instant::now(), n_bytes)
        };
        if sender.send((arrival, buffer[..n_bytes].to_vec())).is_err() {
            break;
        }
    }
    from.close(Shutdown::Read);
}

fn deliver(mut to: Stream, chunks: &Receiver<Chunk>) {
    // Sleeps end within a microsecond or so instead of 50; where that is refused, delays are
    // longer.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    for (arrival, bytes) in chunks {
        thread::sleep(arrival.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            to.close(Shutdown::Both);
            return;
        }
    }
    to.close(Shutdown::Write);
}
