//! Connected sockets, with or without TLS, that wait until a deadline or not at all.

use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use lodestore_graph::fork::Generation;
use lodestore_schema::pem;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, Shutdown,
    SocketAddrUnix, SocketFlags, SocketType, recvmsg, send, shutdown,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use crate::address::Address;
use crate::error::ClientError;
use crate::security::Security;

/// Time limit of a connection attempt, so that another host can be tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A connected socket of either kind. Every wait of a read or a write ends at its deadline: a peer
/// that sends a byte now and then does not extend it.
pub(crate) struct Socket {
    /// A TCP or Unix socket in non-blocking mode.
    fd: OwnedFd,
    /// Deadline of waits; `None` to wait for nothing.
    deadline: Option<Instant>,
    /// Whether reads wait until the deadline.
    reads_wait: bool,
    /// The process that opened the connection.
    process: Generation,
}

/// Byte stream of a connection: TCP or Unix, with or without TLS.
pub(crate) enum Stream {
    Plain(Socket),
    Tls(Box<StreamOwned<ClientConnection, Socket>>),
}

impl Stream {
    /// Connects until `reach_by`, and does the TLS handshake if `security` asks for TLS.
    ///
    /// # Errors
    /// `Connect` if no server is reached; another error if one is.
    pub(crate) fn connect(
        address: &Address,
        security: &Security,
        reach_by: Instant,
        deadline: Instant,
    ) -> Result<Self, ClientError> {
        let by = deadline.min(Instant::now() + CONNECT_TIMEOUT);
        let reach_by = reach_by.min(by);
        let fd = match address {
            Address::Tcp(at) => connect_tcp(&[*at], reach_by),
            Address::Host { name, port } => {
                resolve(name, *port, reach_by).and_then(|found| connect_tcp(&found, reach_by))
            }
            Address::Unix(path) => connect_unix(path),
        };
        let fd = fd.map_err(|source| ClientError::Connect { address: address.clone(), source })?;
        // A peer that has accepted the connection has until `deadline`, for TLS as for the hello.
        let socket = Socket::new(fd, deadline);
        let Some((tls, name)) = security.tls.as_ref().zip(server_name(address)) else {
            return Ok(Self::Plain(socket));
        };
        let no_tls = |reason: String| ClientError::Handshake { address: address.clone(), reason };
        let connection = ClientConnection::new(tls.config(), name);
        let connection = connection.map_err(|error| no_tls(error.to_string()))?;
        let mut stream = StreamOwned::new(connection, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).map_err(|error| match error.kind() {
                io::ErrorKind::InvalidData => no_tls(plainly(&error.to_string())),
                io::ErrorKind::TimedOut => ClientError::Deadline { address: address.clone() },
                _ => ClientError::Unavailable { address: address.clone(), source: error },
            })?;
        }
        Ok(Self::Tls(Box::new(stream)))
    }

    /// Sets the deadline of writes, and of reads if `reads_wait`.
    pub(crate) fn set_deadline(&mut self, deadline: Instant, reads_wait: bool) {
        let socket = self.socket_mut();
        (socket.deadline, socket.reads_wait) = (Some(deadline), reads_wait);
    }

    /// Makes reads and writes return at once from now on.
    pub(crate) fn never_wait(&mut self) {
        self.socket_mut().deadline = None;
    }

    /// Returns whether written bytes have not been sent yet.
    #[cfg(feature = "load")]
    pub(crate) fn has_unsent(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.conn.wants_write(),
        }
    }

    /// Returns whether received bytes may be buffered that polling the socket does not show.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Like [`Read::read`]; from a Unix socket also returns a descriptor that arrived with the
    /// bytes.
    pub(crate) fn read_with_descriptor(
        &mut self,
        buffer: &mut [u8],
    ) -> io::Result<(usize, Option<OwnedFd>)> {
        let Self::Plain(socket) = self else {
            return Ok((self.read(buffer)?, None));
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(buffer)];
        let n_bytes = socket.read_by(|fd| {
            Ok(recvmsg(fd, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes)
        })?;
        let descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        Ok((n_bytes, descriptors.last()))
    }

    /// Returns whether this process opened the connection, rather than its parent.
    pub(crate) fn is_own(&self) -> bool {
        self.socket().process.is_current()
    }

    fn socket(&self) -> &Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &stream.sock,
        }
    }

    fn socket_mut(&mut self) -> &mut Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &mut stream.sock,
        }
    }
}

/// Returns a reason in words for which rustls has only a name.
pub(crate) fn plainly(reason: &str) -> String {
    if reason.contains("CaUsedAsEndEntity") {
        let words = "the server presents the certificate of an authority as its own; sign one for \
                     the server with it (docs/operations.md, Secure)";
        return words.to_owned();
    }
    if reason.contains("CertificateRequired") {
        let words = "the server requires a certificate of its clients; give one that is signed by \
                     the server's authority for clients, and its key";
        return words.to_owned();
    }
    pem::certificate_fault(reason)
}

/// Returns the name that a server's certificate must have; none over a Unix socket.
fn server_name(address: &Address) -> Option<ServerName<'static>> {
    match address {
        Address::Tcp(at) => Some(at.ip().into()),
        Address::Host { name, .. } => ServerName::try_from(name.to_string()).ok(),
        Address::Unix(_) => None,
    }
}

/// Resolves a name through the system, which may take any time. A separate thread does that, and is
/// left behind at the deadline.
fn resolve(name: &Arc<str>, port: u16, by: Instant) -> io::Result<Vec<SocketAddr>> {
    let (sender, found) = mpsc::channel();
    let name = Arc::clone(name);
    std::thread::Builder::new().name("lode-resolve".into()).spawn(move || {
        let found = (&*name, port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        // The receiver may be gone: the result is unused.
        let _ = sender.send(found);
    })?;
    let left = by.saturating_duration_since(Instant::now());
    found.recv_timeout(left).map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Connects to the first of several addresses that accepts.
fn connect_tcp(addresses: &[SocketAddr], by: Instant) -> io::Result<OwnedFd> {
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
    stream.set_nonblocking(true)?;
    Ok(stream.into())
}

/// Connects without waiting: a server whose queue is full counts as absent.
fn connect_unix(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) => Ok(socket),
        Err(Errno::ACCESS) => Err(not_allowed(path)),
        Err(error) => Err(error.into()),
    }
}

/// Returns the reason why this user may not open a socket, as far as it is visible.
fn not_allowed(path: &Path) -> io::Error {
    let Ok(socket) = std::fs::metadata(path) else { return Errno::ACCESS.into() };
    let (mode, owner) = (socket.mode() & 0o777, socket.uid());
    let reason = format!(
        "not allowed: the socket has mode {mode:o} and is of user {owner}; connect as that user, or give \
         the socket mode 660 at the server and join its group"
    );
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

impl Socket {
    fn new(fd: OwnedFd, deadline: Instant) -> Self {
        Self { fd, deadline: Some(deadline), reads_wait: true, process: Generation::now() }
    }

    /// Tries until bytes arrive, or until the deadline.
    fn read_by<T>(&self, read: impl FnMut(&OwnedFd) -> io::Result<T>) -> io::Result<T> {
        let deadline = self.deadline.filter(|_| self.reads_wait);
        self.waiting(PollFlags::IN, deadline, read)
    }

    fn waiting<T>(
        &self,
        until: PollFlags,
        deadline: Option<Instant>,
        mut exchange: impl FnMut(&OwnedFd) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match (exchange(&self.fd), deadline) {
                (Err(error), Some(deadline)) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(until, deadline)?;
                }
                (done, _) => return done,
            }
        }
    }

    fn wait(&self, until: PollFlags, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match poll(&mut [PollFd::new(&self.fd, until)], Some(&timespec(left))) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_by(|fd| Ok(rustix::io::read(fd, &mut *buffer)?))
    }
}

impl Drop for Socket {
    /// Shuts the connection down: closing alone does not if a forked child has the descriptor too.
    /// For the same reason a child shuts nothing down.
    fn drop(&mut self) {
        if self.process.is_current() {
            // The connection may be closed already.
            let _ = shutdown(&self.fd, Shutdown::Both);
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL;
        self.waiting(PollFlags::OUT, self.deadline, |fd| Ok(send(fd, bytes, flags)?))
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
    /// Writes bytes. Under TLS some of them may stay buffered, see [`Self::flush`].
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => match stream.write(bytes) {
                // The TLS buffer is full.
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
    /// Sends the close notification of TLS if that needs no wait. A forked child does not: the
    /// stream belongs to its parent.
    fn drop(&mut self) {
        if !self.is_own() {
            return;
        }
        let Self::Tls(stream) = self else { return };
        stream.sock.deadline = None;
        stream.conn.send_close_notify();
        // A peer that does not receive it sees the end of the stream.
        let _ = stream.conn.write_tls(&mut stream.sock);
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

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
        let deadline = start + Duration::from_millis(300);
        ours.set_nonblocking(true).unwrap();
        let mut socket = Socket::new(ours.into(), deadline);
        let error = socket.read_exact(&mut [0; 1000]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let took = start.elapsed();
        assert!((295..1300).contains(&took.as_millis()), "{took:?}");
    }

    #[test]
    fn a_server_with_the_certificate_of_an_authority_is_reported_in_words() {
        let error = rustls::Error::InvalidCertificate(rustls::CertificateError::Other(
            rustls::OtherError(Arc::new(rustls::Error::General("CaUsedAsEndEntity".to_owned()))),
        ));
        assert!(plainly(&error.to_string()).contains("certificate of an authority"), "{error}");
        assert_eq!(plainly("expired"), "expired");
        let wants = plainly("received fatal alert: CertificateRequired");
        assert!(wants.contains("requires a certificate of its clients"), "{wants}");
        assert!(plainly("UnsupportedCertVersion").contains("X.509 version 1"));
    }

    #[test]
    fn a_name_without_an_address_is_reported_and_a_full_queue_is_not_waited_for() {
        let by = Instant::now() + Duration::from_secs(10);
        assert!(connect_tcp(&[], by).is_err());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("full.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let mut waiting = Vec::new();
        let refused = loop {
            match connect_unix(&path) {
                Ok(fd) => waiting.push(fd),
                Err(error) => break error,
            }
            assert!(waiting.len() < 10_000, "its queue has an end");
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    }
}
