//! A proxy between clients and one server, at another address of this machine. Bytes pass as they
//! are, until the link is set to be slow, to stall, or to break in the middle of a message.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// Bytes that pass together.
const PIECE_BYTES: usize = 16 << 10;
/// Interval at which a stalled link is checked.
const LOOK: Duration = Duration::from_millis(5);

/// One server's relay: a front socket before each of its sockets, all on one link.
pub(crate) struct Relay {
    ip: Ipv4Addr,
    link: Arc<Link>,
    doors: Vec<Door>,
}

struct Door {
    at: SocketAddr,
    is_closed: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Link(Mutex<State>);

#[derive(Default)]
struct State {
    still_until: Option<Instant>,
    /// Until when, and how many bytes pass in a second on each connection and way.
    slow_until: Option<(Instant, u32)>,
    /// Whether it has delayed anything since it was last set to.
    has_held: bool,
    /// After this many bytes every connection is cut.
    cut_after: Option<usize>,
    pairs: Vec<Arc<Pair>>,
}

/// A connection of a client and the one that continues to the server.
struct Pair {
    client: TcpStream,
    server: TcpStream,
    is_over: AtomicBool,
}

/// Fate of a piece.
enum Fate {
    Passes,
    /// This many bytes of it pass, and then nothing ever.
    CutAfter(usize),
    Lost,
}

impl Relay {
    pub(crate) fn new(ip: Ipv4Addr) -> Self {
        Self { ip, link: Arc::default(), doors: Vec::new() }
    }

    /// Proxies these ports of a server on 127.0.0.1, and no others.
    pub(crate) fn face(&mut self, ports: &[u16]) {
        self.doors.retain(|door| ports.contains(&door.at.port()));
        for &port in ports {
            if self.doors.iter().all(|door| door.at.port() != port) {
                self.doors.push(Door::open((self.ip, port).into(), Arc::clone(&self.link)));
            }
        }
    }

    /// Returns whether anything was held up in that time; returns as soon as it is.
    pub(crate) fn stand_still(&self, how_long: Duration) -> bool {
        let mut link = self.link.0.lock().unwrap();
        (link.still_until, link.has_held) = (Some(Instant::now() + how_long), false);
        drop(link);
        self.has_come(how_long, |link| link.has_held)
    }

    /// Returns whether anything was slowed down in that time; returns as soon as it is.
    pub(crate) fn be_slow(&self, how_long: Duration, bytes_per_second: u32) -> bool {
        let mut link = self.link.0.lock().unwrap();
        link.slow_until = Some((Instant::now() + how_long, bytes_per_second));
        link.has_held = false;
        drop(link);
        self.has_come(how_long, |link| link.has_held)
    }

    /// Cuts all connections once this many bytes have passed; returns whether that came within a
    /// while.
    pub(crate) fn cut_after(&self, n_bytes: u32, at_most: Duration) -> bool {
        self.link.0.lock().unwrap().cut_after = Some(n_bytes as usize);
        let has_cut = self.has_come(at_most, |link| link.cut_after.is_none());
        if !has_cut {
            self.link.cut();
        }
        has_cut
    }

    /// Waits for something.
    fn has_come(&self, at_most: Duration, has_it: impl Fn(&State) -> bool) -> bool {
        let end = Instant::now() + at_most;
        while !has_it(&self.link.0.lock().unwrap()) {
            if Instant::now() > end {
                return false;
            }
            sleep(LOOK);
        }
        true
    }

    /// Restores the link to its first state.
    pub(crate) fn mend(&self) {
        let mut link = self.link.0.lock().unwrap();
        (link.still_until, link.slow_until, link.cut_after) = (None, None, None);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.link.cut();
    }
}

impl Door {
    fn open(at: SocketAddr, link: Arc<Link>) -> Self {
        let listener = TcpListener::bind(at).unwrap_or_else(|error| panic!("{at}: {error}"));
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = Arc::clone(&is_closed);
        let accepting = spawn(move || {
            for client in listener.incoming() {
                if closed.load(Ordering::Relaxed) {
                    return;
                }
                let server = TcpStream::connect((Ipv4Addr::LOCALHOST, at.port()));
                // A server that is down: the client's connection ends as it began.
                let (Ok(client), Ok(server)) = (client, server) else { continue };
                // A client that has left already.
                let _ = link.take(client, server);
            }
        });
        Self { at, is_closed, accepting: Some(accepting) }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Relaxed);
        // Wakes the thread, which then sees that.
        let _ = TcpStream::connect(self.at);
        let _ = self.accepting.take().map(JoinHandle::join);
    }
}

impl Link {
    fn take(self: &Arc<Self>, client: TcpStream, server: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let pair = Arc::new(Pair { client, server, is_over: AtomicBool::new(false) });
        let mut state = self.0.lock().unwrap();
        state.pairs.retain(|pair| !pair.is_over.load(Ordering::Relaxed));
        state.pairs.push(Arc::clone(&pair));
        for to_server in [true, false] {
            let (link, pair) = (Arc::clone(self), Arc::clone(&pair));
            spawn(move || {
                let ends = [&pair.client, &pair.server];
                let [from, to] = if to_server { ends } else { [ends[1], ends[0]] };
                // An error is an end as any other.
                let _ = link.relay(&pair, from, to);
                pair.close();
            });
        }
        Ok(())
    }

    /// Runs until either end closes, or the link is cut.
    fn relay(&self, pair: &Pair, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let n_bytes = from.read(&mut piece)?;
            if n_bytes == 0 {
                return Ok(());
            }
            match self.fate(pair, n_bytes) {
                Fate::Passes => to.write_all(&piece[..n_bytes])?,
                Fate::CutAfter(n_bytes) => {
                    to.write_all(&piece[..n_bytes])?;
                    self.cut();
                }
                Fate::Lost => return Ok(()),
            }
        }
    }

    /// Waits for as long as the link holds a piece up.
    fn fate(&self, pair: &Pair, n_bytes: usize) -> Fate {
        loop {
            let mut state = self.0.lock().unwrap();
            if pair.is_over.load(Ordering::Relaxed) {
                return Fate::Lost;
            }
            if state.still_until.is_some_and(|until| Instant::now() < until) {
                state.has_held = true;
                drop(state);
                sleep(LOOK);
                continue;
            }
            if let Some(left) = &mut state.cut_after {
                if *left < n_bytes {
                    return Fate::CutAfter(*left);
                }
                *left -= n_bytes;
            }
            let slow = state.slow_until.filter(|(until, _)| Instant::now() < *until);
            state.has_held |= slow.is_some();
            drop(state);
            if let Some((_, bytes_per_second)) = slow {
                sleep(Duration::from_secs_f64(n_bytes as f64 / f64::from(bytes_per_second)));
            }
            return Fate::Passes;
        }
    }

    fn cut(&self) {
        let mut state = self.0.lock().unwrap();
        state.cut_after = None;
        state.pairs.drain(..).for_each(|pair| pair.close());
    }
}

impl Pair {
    fn close(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Closed already, by its other end.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}
