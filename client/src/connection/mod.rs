//! A blocking connection to one shard.

mod rows;
mod shared_memory;

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use lodestore_graph::NodeId;
use lodestore_schema::hello::{Agreement, hello, plain_hello};
use lodestore_schema::limits::HELLO_BYTES;
use lodestore_schema::{Failure, Reply, Request, RequestBody, WireError, WireVersions};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::address::Address;
use crate::error::ClientError;
use crate::read_buffer::{Head, ReadBuffer};
use crate::security::Security;
use crate::shared_memory::SharedMemory;
use crate::socket::{Stream, plainly, timespec};

pub(crate) use rows::{Place, Progress};
pub(crate) use shared_memory::MapFailure;

/// First byte of the reply of a TLS server to an unencrypted hello: an alert.
const TLS_ALERT: u8 = 0x15;

/// Parts of a connection that another thread drives without blocking.
#[cfg(feature = "load")]
pub(crate) struct Nonblocking {
    pub(crate) stream: Stream,
    /// Received bytes.
    pub(crate) read_buffer: ReadBuffer,
    /// When the connection was opened.
    pub(crate) opened: Instant,
    /// Memory to which the server copies rows.
    pub(crate) shared: Option<SharedMemory>,
    /// Memory in which the server keeps the rows of a tensor.
    pub(crate) tier: Option<SharedMemory>,
}

/// A connection past its hello, with the received bytes that were not used yet.
pub(crate) struct Connection {
    address: Address,
    stream: Stream,
    /// Wire version that both ends agreed on.
    version: u16,
    opened: Instant,
    read_buffer: ReadBuffer,
    /// Memory to which a server on this machine copies rows.
    shared: Option<SharedMemory>,
    /// Number of tensors whose memory may be requested.
    n_lendable: u16,
    /// Tensors whose memory was requested, with the memory if the server lends it.
    tiers: Vec<(u16, Option<SharedMemory>)>,
    /// The tensor of the last pull.
    pulled_tensor: u16,
    /// When the last pull was sent.
    pulled_at: Instant,
    /// Whether memory for copied rows was requested.
    has_asked: bool,
    /// Whether the server has replied to a request.
    has_answered: bool,
    /// Why the server shares no memory; also the error to report if it closes the connection next.
    declined: Option<Failure>,
    /// Request under construction.
    frame: Vec<u8>,
}

impl Connection {
    /// Connects, agrees on a wire version, and sends the token if there is one.
    pub(crate) fn open(
        address: &Address,
        security: &Security,
        deadline: Instant,
    ) -> Result<Self, ClientError> {
        Self::open_by(address, security, deadline, deadline)
    }

    /// Like [`Self::open`], but the address must be reached by `reach_by`.
    ///
    /// A server without version ranges closes the connection after the first hello. A second
    /// connection then sends the hello of its version.
    pub(crate) fn open_by(
        address: &Address,
        security: &Security,
        reach_by: Instant,
        deadline: Instant,
    ) -> Result<Self, ClientError> {
        let mut connection = Self::greet(address, security, reach_by, deadline, &hello())?;
        let theirs = connection.hello()?;
        let agreed = WireVersions::SPOKEN.check_answer(&theirs);
        connection.version = match agreed.map_err(|source| connection.wire(source))? {
            Agreement::Version(version) => version,
            Agreement::Plain(version) => {
                // The address was reached: the remaining time is for this connection.
                let hello = plain_hello(version);
                connection = Self::greet(address, security, deadline, deadline, &hello)?;
                let theirs = connection.hello()?;
                let agreed = WireVersions::SPOKEN.check_plain_answer(version, &theirs);
                agreed.map_err(|source| connection.wire(source))?
            }
        };
        // Not earlier: a peer that speaks another protocol gets no token.
        if let Some(token) = security.token
            && !matches!(connection.address, Address::Unix(_))
        {
            let mut frame = Vec::new();
            Request::new(RequestBody::Authenticate { token }).append_to(0, &mut frame);
            connection.write(&frame)?;
        }
        Ok(connection)
    }

    /// Connects, and sends a hello.
    fn greet(
        address: &Address,
        security: &Security,
        reach_by: Instant,
        deadline: Instant,
        hello: &[u8; HELLO_BYTES],
    ) -> Result<Self, ClientError> {
        time_left(address, deadline)?;
        let stream = Stream::connect(address, security, reach_by, deadline)?;
        let opened = Instant::now();
        let mut connection = Self {
            address: address.clone(),
            stream,
            version: 0,
            opened,
            read_buffer: ReadBuffer::new(),
            shared: None,
            n_lendable: 0,
            tiers: Vec::new(),
            pulled_tensor: 0,
            pulled_at: opened,
            has_asked: false,
            has_answered: false,
            declined: None,
            frame: Vec::new(),
        };
        connection.stream.set_deadline(deadline, true);
        connection.write(hello)?;
        Ok(connection)
    }

    /// Receives the server's hello.
    fn hello(&mut self) -> Result<[u8; HELLO_BYTES], ClientError> {
        if let Err(error) = self.need(HELLO_BYTES) {
            let is_alert = !self.stream.is_tls()
                && self.read_buffer.len() > 0
                && self.read_buffer.take(1)[0] == TLS_ALERT;
            let reason =
                "the server speaks TLS and this client does not; give the authority of its \
                          certificate"
                    .to_owned();
            let address = self.address.clone();
            return Err(if is_alert { ClientError::Handshake { address, reason } } else { error });
        }
        let mut theirs = [0; HELLO_BYTES];
        theirs.copy_from_slice(self.read_buffer.take(HELLO_BYTES));
        Ok(theirs)
    }

    /// Returns the wire version that both ends agreed on.
    pub(crate) fn version(&self) -> u16 {
        self.version
    }

    /// Sends a request with `ids` as its body.
    pub(crate) fn send(
        &mut self,
        request: &Request,
        ids: &[NodeId],
        deadline: Instant,
    ) -> Result<(), ClientError> {
        if let RequestBody::Pull { tensor, .. } = request.body {
            (self.pulled_tensor, self.pulled_at) = (tensor, Instant::now());
        }
        let body: &[u8] = bytemuck::cast_slice(ids);
        self.send_frame(request, body.len(), |frame| frame.extend_from_slice(body), deadline)
    }

    /// Sends a request with a body of `body_bytes` bytes, which `body` appends.
    fn send_frame(
        &mut self,
        request: &Request,
        body_bytes: usize,
        body: impl FnOnce(&mut Vec<u8>),
        deadline: Instant,
    ) -> Result<(), ClientError> {
        self.limit(deadline)?;
        request.body.check_version(self.version).map_err(|source| self.wire(source))?;
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        frame.reserve(body_bytes);
        let request = Request { sent: self.age(), ..request.clone() };
        request.for_version(self.version).append_to(body_bytes, &mut frame);
        body(&mut frame);
        let sent = self.write(&frame);
        self.frame = frame;
        sent.map_err(|error| self.refusal().unwrap_or(error))
    }

    /// Returns the failure that the server sent before it closed the connection. No request may be
    /// in flight.
    fn refusal(&mut self) -> Option<ClientError> {
        let refused = self.refused();
        if refused.is_some() {
            return refused;
        }
        self.stream.never_wait();
        // Any other error is known to the caller.
        let _ = self.read_buffer.read_more(|buffer| self.stream.read(buffer), 0);
        match self.read_buffer.head() {
            Ok(Head::Whole(Reply::Failure(failure), 0)) => {
                Some(ClientError::Refused { address: self.address.clone(), failure })
            }
            _ => None,
        }
    }

    /// Returns the refusal to share memory that the server sent before it closed the connection.
    fn refused(&mut self) -> Option<ClientError> {
        let address = self.address.clone();
        self.declined.take().map(|failure| ClientError::Refused { address, failure })
    }

    /// Returns whether the connection is open and no unrequested bytes have arrived.
    pub(crate) fn is_quiet(&self) -> bool {
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
        self.read_buffer.len() == 0
            && poll(&mut fds, Some(&timespec(Duration::ZERO))).is_ok_and(|n_ready| n_ready == 0)
    }

    /// Sends a request with the remaining time, and receives its reply, which has no rows.
    pub(crate) fn ask(
        &mut self,
        request: Request,
        ids: &[NodeId],
        deadline: Instant,
    ) -> Result<Reply, ClientError> {
        let left = Some(time_left(&self.address, deadline)?);
        self.send(&Request { deadline: left, ..request }, ids, deadline)?;
        self.receive(deadline)
    }

    /// Receives a reply without rows; a failure is an error.
    pub(crate) fn receive(&mut self, deadline: Instant) -> Result<Reply, ClientError> {
        self.limit(deadline)?;
        let (reply, body_bytes) = self.head()?;
        if body_bytes > 0 {
            return Err(
                self.malformed(format!("{body_bytes} bytes of rows that were not requested"))
            );
        }
        Ok(reply)
    }

    /// Receives a reply and appends its body to `out`.
    pub(crate) fn receive_piece(
        &mut self,
        out: &mut Vec<u8>,
        deadline: Instant,
    ) -> Result<Reply, ClientError> {
        self.limit(deadline)?;
        let (reply, body_bytes) = self.head()?;
        let start = out.len();
        out.resize(start + body_bytes, 0);
        self.fill(&mut out[start..])?;
        Ok(reply)
    }

    /// Fills `out` from the buffer, then directly from the socket.
    fn fill(&mut self, out: &mut [u8]) -> Result<(), ClientError> {
        let n_buffered = out.len().min(self.read_buffer.len());
        let (head, rest) = out.split_at_mut(n_buffered);
        head.copy_from_slice(self.read_buffer.take(n_buffered));
        if rest.is_empty() {
            return Ok(());
        }
        self.stream.read_exact(rest).map_err(|error| self.io(error))
    }

    /// Returns the head of the next reply, and the length of its body.
    fn head(&mut self) -> Result<(Reply, usize), ClientError> {
        loop {
            match self.read_buffer.head().map_err(|source| self.wire(source))? {
                Head::Whole(Reply::Failure(failure), _) => {
                    return Err(ClientError::Refused { address: self.address.clone(), failure });
                }
                Head::Whole(reply, body_bytes) => {
                    self.has_answered = true;
                    return Ok((reply, body_bytes));
                }
                Head::Needs(n_bytes) => self.need(n_bytes)?,
            }
        }
    }

    /// Reads until at least `n_bytes` are buffered, along with all others that have arrived.
    fn need(&mut self, n_bytes: usize) -> Result<(), ClientError> {
        while self.read_buffer.len() < n_bytes {
            let read = self.read_buffer.read_more(|buffer| self.stream.read(buffer), n_bytes);
            self.has_read(read)?;
        }
        Ok(())
    }

    /// Checks the result of a read. The caller repeats an interrupted one.
    fn has_read(&mut self, read: io::Result<usize>) -> Result<(), ClientError> {
        match read {
            Ok(0) => {
                let error = self.io(io::ErrorKind::UnexpectedEof.into());
                Err(self.refused().unwrap_or(error))
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(self.io(error)),
        }
    }

    /// Returns the parts of the connection, with the memory of `tensor` if it was requested. No
    /// request may be in flight.
    #[cfg(feature = "load")]
    pub(crate) fn into_nonblocking(mut self, tensor: u16) -> Nonblocking {
        self.stream.never_wait();
        let Self { stream, read_buffer, opened, shared, tiers, .. } = self;
        let tier = tiers.into_iter().find(|&(of, _)| of == tensor).and_then(|(_, memory)| memory);
        Nonblocking { stream, read_buffer, opened, shared, tier }
    }

    /// Returns the age of the connection. It is never zero, which would mean unknown.
    fn age(&self) -> Duration {
        age(self.opened)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        let written = self.stream.write_all(bytes).and_then(|()| self.stream.flush());
        written.map_err(|error| self.io(error))
    }

    /// Fails in a forked child: the connection belongs to its parent.
    fn check_process(&self) -> Result<(), ClientError> {
        if self.stream.is_own() { Ok(()) } else { Err(ClientError::Forked { what: "connection" }) }
    }

    /// Sets the deadline of every wait on the socket.
    fn limit(&mut self, deadline: Instant) -> Result<(), ClientError> {
        self.check_process()?;
        time_left(&self.address, deadline)?;
        self.stream.set_deadline(deadline, true);
        Ok(())
    }

    fn io(&self, source: io::Error) -> ClientError {
        let address = self.address.clone();
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ClientError::Deadline { address }
            }
            // Only TLS rejects bytes at this level: with an alert, for example for a certificate.
            io::ErrorKind::InvalidData => {
                ClientError::Handshake { address, reason: plainly(&source.to_string()) }
            }
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset if !self.has_answered => {
                let reason =
                    format!("the server closed a new connection ({source}) and may be full");
                ClientError::Unavailable { address, source: io::Error::new(source.kind(), reason) }
            }
            _ => ClientError::Unavailable { address, source },
        }
    }

    fn wire(&self, source: WireError) -> ClientError {
        ClientError::Wire { address: self.address.clone(), source }
    }

    fn malformed(&self, reason: impl Into<String>) -> ClientError {
        self.wire(WireError::Malformed { message: "reply", reason: reason.into() })
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Waits until bytes arrive on one of these connections, or until `until`. Returns for each
/// connection whether bytes have arrived. `are_here` names those with bytes that polling does not
/// show.
pub(crate) fn wait_for_any<'a>(
    connections: impl Iterator<Item = &'a Connection>,
    mut are_here: Vec<bool>,
    until: Instant,
) -> Result<Vec<bool>, ClientError> {
    let left = match are_here.contains(&true) {
        true => Duration::ZERO,
        false => until.saturating_duration_since(Instant::now()),
    };
    let mut fds: Vec<PollFd<'_>> =
        connections.map(|connection| PollFd::new(connection, PollFlags::IN)).collect();
    match poll(&mut fds, Some(&timespec(left))) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(ClientError::Poll { source: error.into() }),
    }
    for (is_here, fd) in are_here.iter_mut().zip(&fds) {
        *is_here |= !fd.revents().is_empty();
    }
    Ok(are_here)
}

/// Returns the time until `deadline`, at least a millisecond; fails after the deadline.
pub(crate) fn time_left(address: &Address, deadline: Instant) -> Result<Duration, ClientError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ClientError::Deadline { address: address.clone() });
    }
    Ok(left.max(Duration::from_millis(1)))
}

/// Returns the age of a connection, which requests have as their send time.
pub(crate) fn age(opened: Instant) -> Duration {
    opened.elapsed().max(Duration::from_micros(1))
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener};

    use super::*;

    #[test]
    fn a_request_that_the_version_lacks_is_refused_before_it_is_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&WireVersions::SPOKEN.answer(&hello()).0.unwrap()).unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let mut connection = Connection::open(&address, &Security::default(), deadline).unwrap();
        connection.version = 2;
        let error = connection.send(&Request::new(RequestBody::Stat), &[], deadline).unwrap_err();
        let ClientError::Wire { source: WireError::Lacks { request, known, agreed }, .. } = error
        else {
            panic!("{error}")
        };
        assert_eq!((request, known.oldest, agreed), ("stat", 3, 2));
        drop(connection);
        assert_eq!(server.join().unwrap(), hello(), "nothing but the hello");
    }

    #[test]
    fn a_server_that_closes_a_new_connection_may_be_full() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        for says_hello in [false, true] {
            let closes = std::thread::spawn({
                let listener = listener.try_clone().unwrap();
                move || {
                    let (mut stream, _) = listener.accept().unwrap();
                    let answer = WireVersions::SPOKEN.answer(&hello()).0.unwrap();
                    let hello = if says_hello { &answer[..] } else { &[] };
                    stream.write_all(hello).unwrap();
                    stream.shutdown(Shutdown::Write).unwrap();
                    // Reads all that the client sends, so that the connection is not reset.
                    let _ = stream.read_to_end(&mut Vec::new());
                }
            });
            let asked = Connection::open(&address, &Security::default(), deadline).and_then(
                |mut connection| {
                    connection.send(&Request::new(RequestBody::Stat), &[], deadline)?;
                    connection.receive(deadline)
                },
            );
            let told = asked.unwrap_err().to_string();
            assert!(told.contains("may be full"), "{told}");
            closes.join().unwrap();
        }
    }
}
