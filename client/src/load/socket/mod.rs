//! One connection of a load, with several requests in flight.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use lodestore_graph::NodeId;
use lodestore_schema::limits::{LENT_FOR, PREFIX_BYTES};
use lodestore_schema::{Failure, Reply, Request, RequestBody};

use super::tally::LoadError;
use crate::connection::{Connection, Nonblocking, age};
use crate::error::ClientError;
use crate::read_buffer::Head;
use crate::shared_memory::SharedMemory;

/// Most reads of one connection before the thread serves the others.
const READS_MAX: usize = 8;
/// Time after the deadline of a request in which its reply may still arrive.
const GRACE: Duration = Duration::from_secs(1);

/// A connection after its handshake.
pub(super) struct LoadSocket {
    link: Nonblocking,
    /// Buffer that rows from shared memory are copied to.
    taken: Vec<u8>,
    /// Whether the chunk being received lists slots of lent rows.
    is_lent: bool,
    /// Whether a chunk of the current reply was lent; the end of the reply is then acknowledged.
    was_lent: bool,
    /// Frames to send; the first `n_sent` bytes are sent.
    outbox: Vec<u8>,
    n_sent: usize,
    /// Requests whose reply is incomplete, in the order sent, which is the order of replies.
    asked: VecDeque<Ask>,
    /// Bytes left of the chunk being received.
    body_left: usize,
    /// Bytes that the read buffer must hold before parsing can continue.
    needed: usize,
}

/// One request: the rows of an operation that one shard owns.
pub(super) struct Ask {
    /// Slot of the operation.
    pub(super) slot: usize,
    pub(super) n_rows: usize,
    n_come: usize,
    /// The ids if rows are compared; else empty.
    ids: Vec<NodeId>,
    sent: Instant,
    expires: Instant,
}

/// Compares received rows: their ids, and the rows, concatenated.
pub(super) type Check<'a> = dyn FnMut(&[NodeId], &[u8]) + 'a;

impl LoadSocket {
    /// Connects with `open`. If `shares` names a tensor, asks the server to share memory for its
    /// rows; then only one request may be in flight.
    pub(super) fn connect(
        open: impl Fn() -> Result<Connection, ClientError>,
        shares: Option<u16>,
        deadline: Instant,
    ) -> Result<Self, ClientError> {
        let mut connection = open()?;
        if shares.is_some() && connection.share(shares, deadline)?.is_some() {
            connection = open()?;
        }
        Ok(Self {
            link: connection.into_nonblocking(shares.unwrap_or_default()),
            taken: Vec::new(),
            is_lent: false,
            was_lent: false,
            outbox: Vec::new(),
            n_sent: 0,
            asked: VecDeque::new(),
            body_left: 0,
            needed: PREFIX_BYTES,
        })
    }

    /// Queues a request of slot `slot`; [`Self::flush`] sends it.
    pub(super) fn ask(&mut self, slot: usize, request: &Request, ids: &[NodeId], compare: bool) {
        let request = Request { sent: age(self.link.opened), ..request.clone() };
        request.append_to(size_of_val(ids), &mut self.outbox);
        self.outbox.extend_from_slice(bytemuck::cast_slice(ids));
        let sent = Instant::now();
        let expires = sent + request.deadline.unwrap_or_default() + GRACE;
        let (n_rows, n_come) = (ids.len(), 0);
        let ids = if compare { ids.to_vec() } else { Vec::new() };
        self.asked.push_back(Ask { slot, n_rows, n_come, ids, sent, expires });
    }

    /// Sends as many bytes as the socket takes.
    pub(super) fn flush(&mut self) -> Result<(), LoadError> {
        while self.n_sent < self.outbox.len() {
            match self.link.stream.write(&self.outbox[self.n_sent..]) {
                Ok(0) => return Err(LoadError::Broken),
                Ok(n) => self.n_sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(LoadError::Broken),
            }
        }
        self.outbox.clear();
        self.n_sent = 0;
        match self.link.stream.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(LoadError::Broken),
            _ => Ok(()),
        }
    }

    /// Returns whether there are bytes left to send.
    pub(super) fn has_unsent(&self) -> bool {
        self.n_sent < self.outbox.len() || self.link.stream.has_unsent()
    }

    /// Returns whether a reply is overdue.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.asked.front().is_some_and(|ask| ask.expires < now)
    }

    /// Closes the connection and returns the requests without a complete reply.
    pub(super) fn unanswered(self) -> impl Iterator<Item = Ask> {
        self.asked.into_iter()
    }

    /// Receives bytes, and compares rows if their ids were kept. Appends the slot and outcome of
    /// each completed request to `ended`.
    pub(super) fn receive(
        &mut self,
        row_bytes: usize,
        check: &mut Check<'_>,
        ended: &mut Vec<(usize, Result<(), Failure>)>,
    ) -> Result<(), LoadError> {
        // Bytes that arrived with the handshake, such as a refusal.
        if self.link.read_buffer.len() > 0 {
            self.use_up(row_bytes, check, ended)?;
        }
        // epoll does not report bytes that TLS has decrypted and still buffers.
        let n_reads_max = if self.link.stream.is_tls() { usize::MAX } else { READS_MAX };
        for _ in 0..n_reads_max {
            let Nonblocking { stream, read_buffer, .. } = &mut self.link;
            match read_buffer.read_more(|buffer| stream.read(buffer), self.needed) {
                Ok(0) => return Err(LoadError::Broken),
                Ok(_) => self.use_up(row_bytes, check, ended)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(LoadError::Broken),
            }
        }
        Ok(())
    }

    /// Parses the heads and rows that have arrived.
    fn use_up(
        &mut self,
        row_bytes: usize,
        check: &mut Check<'_>,
        ended: &mut Vec<(usize, Result<(), Failure>)>,
    ) -> Result<(), LoadError> {
        loop {
            if self.is_lent {
                if self.link.read_buffer.len() < self.body_left {
                    self.needed = self.body_left;
                    return Ok(());
                }
                self.take_lent(row_bytes, check)?;
                self.end_whole(ended);
                continue;
            }
            if self.body_left > 0 {
                if !self.use_rows(row_bytes, check) {
                    return Ok(());
                }
                if self.body_left == 0 {
                    self.end_whole(ended);
                }
                continue;
            }
            match self.link.read_buffer.head().map_err(|_| LoadError::Wire)? {
                Head::Needs(n_bytes) => {
                    self.needed = n_bytes;
                    return Ok(());
                }
                Head::Whole(Reply::Rows { first_row, n_rows, .. }, body_bytes) => {
                    let expected = self.chunk_bytes(first_row, n_rows, row_bytes)?;
                    if body_bytes != expected {
                        return Err(LoadError::Wire);
                    }
                    self.body_left = body_bytes;
                }
                Head::Whole(Reply::SharedRows { first_row, n_rows, offset, awaited, .. }, 0) => {
                    let n_bytes = self.chunk_bytes(first_row, n_rows, row_bytes)?;
                    self.take_shared(offset as usize, n_bytes, n_rows as usize, check)?;
                    if awaited {
                        Request::new(RequestBody::Taken).append_to(0, &mut self.outbox);
                    }
                    self.end_whole(ended);
                }
                Head::Whole(Reply::LentRows { first_row, n_rows, .. }, body_bytes) => {
                    let expected = self.chunk_bytes(first_row, n_rows, size_of::<u32>())?;
                    if body_bytes != expected {
                        return Err(LoadError::Wire);
                    }
                    (self.body_left, self.is_lent, self.was_lent) = (body_bytes, true, true);
                }
                Head::Whole(Reply::Failure(failure), 0) => {
                    self.was_lent = false;
                    let ask = self.asked.pop_front().ok_or(LoadError::Wire)?;
                    ended.push((ask.slot, Err(failure)));
                }
                Head::Whole(..) => return Err(LoadError::Wire),
            }
        }
    }

    /// Completes the first request if all of its rows have arrived.
    fn end_whole(&mut self, ended: &mut Vec<(usize, Result<(), Failure>)>) {
        if self.asked.front().is_some_and(|ask| ask.n_come == ask.n_rows) {
            ended.extend(self.asked.pop_front().map(|ask| (ask.slot, Ok(()))));
            if std::mem::take(&mut self.was_lent) {
                Request::new(RequestBody::Taken).append_to(0, &mut self.outbox);
            }
        }
    }

    /// Returns the size of a chunk of rows; the chunk must continue the reply to the first request.
    fn chunk_bytes(
        &self,
        first_row: u32,
        n_rows: u32,
        row_bytes: usize,
    ) -> Result<usize, LoadError> {
        let ask = self.asked.front().ok_or(LoadError::Wire)?;
        let (first_row, n_rows) = (first_row as usize, n_rows as usize);
        let fits = first_row == ask.n_come && (1..=ask.n_rows - ask.n_come).contains(&n_rows);
        n_rows.checked_mul(row_bytes).filter(|_| fits).ok_or(LoadError::Wire)
    }

    /// Consumes the whole rows of the chunk that have arrived; returns `false` if there is none.
    fn use_rows(&mut self, row_bytes: usize, check: &mut Check<'_>) -> bool {
        let Some(ask) = self.asked.front_mut() else { return false };
        let n_rows = self.body_left.min(self.link.read_buffer.len()) / row_bytes;
        if n_rows == 0 {
            self.needed = row_bytes;
            return false;
        }
        let rows = self.link.read_buffer.take(n_rows * row_bytes);
        if !ask.ids.is_empty() {
            check(&ask.ids[ask.n_come..ask.n_come + n_rows], rows);
        }
        ask.n_come += n_rows;
        self.body_left -= n_rows * row_bytes;
        true
    }
}

impl AsFd for LoadSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.stream.as_fd()
    }
}

/// Returns the processor time used by this thread.
pub(super) fn thread_cpu() -> io::Result<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let ns = text.split_whitespace().next().and_then(|ns| ns.parse().ok());
    ns.map(Duration::from_nanos).ok_or_else(|| ErrorKind::InvalidData.into())
}

impl LoadSocket {
    /// Copies a chunk from shared memory, like a trainer.
    fn take_shared(
        &mut self,
        offset: usize,
        n_bytes: usize,
        n_rows: usize,
        check: &mut Check<'_>,
    ) -> Result<(), LoadError> {
        let is_within = |memory: &&SharedMemory| {
            memory.len().checked_sub(offset).is_some_and(|left| n_bytes <= left)
        };
        let memory = self.link.shared.as_ref().filter(is_within).ok_or(LoadError::Wire)?;
        self.taken.resize(n_bytes, 0);
        memory.copy_to(offset, &mut self.taken);
        self.has_taken(n_rows, check)
    }

    /// Copies lent rows from the server's tier, like a trainer. The slots of the chunk have
    /// arrived.
    fn take_lent(&mut self, row_bytes: usize, check: &mut Check<'_>) -> Result<(), LoadError> {
        let slots = self.link.read_buffer.take(self.body_left).as_chunks().0;
        let n_rows = slots.len();
        self.taken.resize(n_rows * row_bytes, 0);
        let tier = self.link.tier.as_ref().ok_or(LoadError::Wire)?;
        let gathered = tier.gather(slots, row_bytes, 0..n_rows, &mut self.taken);
        gathered.map_err(|_| LoadError::Wire)?;
        if self.asked.front().is_some_and(|ask| ask.sent.elapsed() > LENT_FOR) {
            return Err(LoadError::Broken);
        }
        (self.body_left, self.is_lent) = (0, false);
        self.has_taken(n_rows, check)
    }

    /// Accounts for the next rows of the first request, which are in `taken`.
    fn has_taken(&mut self, n_rows: usize, check: &mut Check<'_>) -> Result<(), LoadError> {
        let ask = self.asked.front_mut().ok_or(LoadError::Wire)?;
        if !ask.ids.is_empty() {
            check(&ask.ids[ask.n_come..ask.n_come + n_rows], &self.taken);
        }
        ask.n_come += n_rows;
        Ok(())
    }
}
