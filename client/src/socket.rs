//! Connected sockets that never wait past a deadline, in the clear or under TLS.

use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType, recvmsg,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use crate::{Address, ClientError, Security};

/// A host that does not answer is given up after this time, so that another can be tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How old the kernel's own limit of a wait may be: as much later than the deadline it may end.
const ARMED_MAX: Duration = Duration::from_millis(5);

/// A connected socket of either kind. Unless it is told not to wait at all, every read and write
/// ends by its deadline: whoever sends a byte now and then cannot stretch it.
pub(crate) struct Socket {
    kind: Kind,
    deadline: Option<Instant>,
    /// When, and for which deadline, the kernel was told how long to wait.
    armed: Option<(Instant, Instant)>,
}

enum Kind {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What a connection reads from and writes to.
pub(crate) enum Stream {
    Plain(Socket),
    Tls(Box<StreamOwned<ClientConnection, Socket>>),
}

impl Stream {
    /// Connects, and agrees on keys where `security` asks for that.
    pub(crate) fn connect(
        address: &Address,
        security: &Security,
        deadline: Instant,
    ) -> Result<Self, ClientError> {
        let failed = |source| ClientError::Connect { address: address.clone(), source };
        let by = deadline.min(Instant::now() + CONNECT_TIMEOUT);
        let kind = match address {
            Address::Tcp(at) => Kind::tcp(&[*at], by),
            Address::Host { name, port } => {
                resolve(name, *port, by).and_then(|found| Kind::tcp(&found, by))
            }
            Address::Unix(path) => Kind::unix(path),
        };
        let kind = kind.map_err(failed)?;
        let socket = Socket { kind, deadline: Some(by), armed: None };
        let Some((tls, name)) = security.tls.as_ref().zip(server_name(address)) else {
            return Ok(Self::Plain(socket));
        };
        let no_tls = |reason: String| ClientError::Handshake { address: address.clone(), reason };
        let connection = ClientConnection::new(Arc::clone(tls), name);
        let connection = connection.map_err(|error| no_tls(error.to_string()))?;
        let mut stream = StreamOwned::new(connection, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).map_err(|error| match error.kind() {
                io::ErrorKind::InvalidData => no_tls(error.to_string()),
                io::ErrorKind::WouldBlock => failed(io::ErrorKind::TimedOut.into()),
                _ => failed(error),
            })?;
        }
        Ok(Self::Tls(Box::new(stream)))
    }

    /// Until when reads and writes may wait from now on.
    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        self.socket_mut().deadline = Some(deadline);
    }

    /// Reads and writes do not wait from now on.
    pub(crate) fn set_nonblocking(&mut self) -> io::Result<()> {
        let socket = self.socket_mut();
        socket.deadline = None;
        socket.kind.set_nonblocking(true)
    }

    /// Whether bytes that were written have not left yet.
    pub(crate) fn has_unsent(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.conn.wants_write(),
        }
    }

    /// Whether bytes may have come that the socket does not tell of any more.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Reads as [`Read::read`] does, from a Unix socket with a descriptor that came with the bytes.
    pub(crate) fn read_with_descriptor(
        &mut self,
        buffer: &mut [u8],
    ) -> io::Result<(usize, Option<OwnedFd>)> {
        let Self::Plain(Socket { kind: Kind::Unix(_), .. }) = self else {
            return Ok((self.read(buffer)?, None));
        };
        self.socket_mut().arm()?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(buffer)];
        let n_bytes =
            recvmsg(self.as_fd(), &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
        let descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        Ok((n_bytes, descriptors.last()))
    }

    fn socket_mut(&mut self) -> &mut Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &mut stream.sock,
        }
    }
}

/// What a server's certificate must be for; none over a Unix socket.
fn server_name(address: &Address) -> Option<ServerName<'static>> {
    match address {
        Address::Tcp(at) => Some(at.ip().into()),
        Address::Host { name, .. } => ServerName::try_from(name.to_string()).ok(),
        Address::Unix(_) => None,
    }
}

/// Asks the system for the addresses of a name, which may take as long as it likes: on a thread of
/// its own, that is left behind.
fn resolve(name: &Arc<str>, port: u16, by: Instant) -> io::Result<Vec<SocketAddr>> {
    let (sender, found) = mpsc::channel();
    let name = Arc::clone(name);
    std::thread::Builder::new().name("lode-resolve".into()).spawn(move || {
        let found = (&*name, port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        // Nobody waits any more: nobody wants to know.
        let _ = sender.send(found);
    })?;
    let left = by.saturating_duration_since(Instant::now());
    found.recv_timeout(left).map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

impl Kind {
    /// The first of several addresses that takes the connection.
    fn tcp(addresses: &[SocketAddr], by: Instant) -> io::Result<Self> {
        let mut result = Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
        for (address, n_left) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
            let left = by.saturating_duration_since(Instant::now()) / n_left;
            result = TcpStream::connect_timeout(address, left.max(Duration::from_millis(1)));
            if result.is_ok() {
                break;
            }
        }
        let stream = result?;
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    /// Without waiting: a server whose queue is full is as good as one that is not there.
    fn unix(path: &Path) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(Self::Unix(stream))
    }

    fn set_nonblocking(&self, is_so: bool) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(is_so),
            Self::Unix(stream) => stream.set_nonblocking(is_so),
        }
    }

    fn set_timeouts(&self, left: Duration) -> io::Result<()> {
        let left = Some(left);
        match self {
            Self::Tcp(s) => s.set_read_timeout(left).and_then(|()| s.set_write_timeout(left)),
            Self::Unix(s) => s.set_read_timeout(left).and_then(|()| s.set_write_timeout(left)),
        }
    }
}

impl Socket {
    /// Tells the kernel how long the next wait may take, unless it has just been told.
    fn arm(&mut self) -> io::Result<()> {
        let Some(deadline) = self.deadline else { return Ok(()) };
        let now = Instant::now();
        let is_fresh = |(at, until)| until == deadline && now.duration_since(at) < ARMED_MAX;
        let left = deadline.saturating_duration_since(now);
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if !self.armed.is_some_and(is_fresh) {
            self.kind.set_timeouts(left.max(Duration::from_millis(1)))?;
            self.armed = Some((now, deadline));
        }
        Ok(())
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.arm()?;
        match &mut self.kind {
            Kind::Tcp(stream) => stream.read(buffer),
            Kind::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.arm()?;
        match &mut self.kind {
            Kind::Tcp(stream) => stream.write(bytes),
            Kind::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    /// Under TLS some of the bytes may wait to be sent, see [`Self::flush`].
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => match stream.write(bytes) {
                // Its buffer is full.
                Ok(0) if !bytes.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
                written => written,
            },
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

impl Drop for Stream {
    /// Under TLS says farewell, as far as that goes without waiting.
    fn drop(&mut self) {
        let Self::Tls(stream) = self else { return };
        stream.sock.deadline = None;
        if stream.sock.kind.set_nonblocking(true).is_ok() {
            stream.conn.send_close_notify();
            // Whoever does not hear it sees the end.
            let _ = stream.conn.write_tls(&mut stream.sock);
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let socket = match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &stream.sock,
        };
        match &socket.kind {
            Kind::Tcp(stream) => stream.as_fd(),
            Kind::Unix(stream) => stream.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_trickle_do_not_stretch_a_deadline() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        std::thread::spawn(move || {
            while theirs.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let start = Instant::now();
        let deadline = Some(start + Duration::from_millis(300));
        let mut socket = Socket { kind: Kind::Unix(ours), deadline, armed: None };
        let error = socket.read_exact(&mut [0; 1000]).unwrap_err();
        let is_late = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        assert!(is_late, "{error}");
        let took = start.elapsed();
        assert!((295..1300).contains(&took.as_millis()), "{took:?}");
    }

    #[test]
    fn a_name_without_an_address_is_told_and_a_full_queue_is_not_waited_for() {
        let by = Instant::now() + Duration::from_secs(10);
        assert!(Kind::tcp(&[], by).is_err());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("full.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let mut waiting = Vec::new();
        let refused = loop {
            match Kind::unix(&path) {
                Ok(kind) => waiting.push(kind),
                Err(error) => break error,
            }
            assert!(waiting.len() < 10_000, "its queue has an end");
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    }
}
