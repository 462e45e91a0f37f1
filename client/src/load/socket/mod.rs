//! One connection of a load: requests go out and answers come in without waiting for each other.

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

/// Reads of one connection before the others get their turn.
const READS_MAX: usize = 8;
/// How much longer than the deadline of a request its answer may take to come.
const GRACE: Duration = Duration::from_secs(1);

/// A connection past its hello.
pub(super) struct LoadSocket {
    link: Nonblocking,
    /// Where rows in the server's memory are taken to.
    taken: Vec<u8>,
    /// Whether the slots of a chunk that is lent come, and whether one of the answer was.
    is_lent: bool,
    was_lent: bool,
    /// Frames to send; those bytes below `n_sent` are gone.
    outbox: Vec<u8>,
    n_sent: usize,
    /// Requests that are not answered in full, in the order sent, which is that of answers.
    asked: VecDeque<Ask>,
    /// Bytes of the chunk that is coming.
    body_left: usize,
    /// Bytes that must have come before anything can be done.
    needed: usize,
}

/// One request: the rows of one operation that one shard owns.
pub(super) struct Ask {
    /// State of the operation.
    pub(super) slot: usize,
    pub(super) n_rows: usize,
    n_come: usize,
    /// The ids, where rows are compared; else none.
    ids: Vec<NodeId>,
    sent: Instant,
    expires: Instant,
}

/// How rows are compared with what they must be: ids, and their rows one after the other.
pub(super) type Check<'a> = dyn FnMut(&[NodeId], &[u8]) + 'a;

impl LoadSocket {
    /// Connects by `open`, and has the server share memory for rows of the tensor that `shares`
    /// names, if any. Then one request may be in flight.
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

    /// Queues a request of operation `slot`; [`Self::flush`] sends it.
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

    /// Sends as much as the socket takes.
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

    /// Returns whether the socket has yet to take bytes.
    pub(super) fn has_unsent(&self) -> bool {
        self.n_sent < self.outbox.len() || self.link.stream.has_unsent()
    }

    /// Returns whether an answer is overdue.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.asked.front().is_some_and(|ask| ask.expires < now)
    }

    /// Returns the requests without an answer; the connection is given up.
    pub(super) fn unanswered(self) -> impl Iterator<Item = Ask> {
        self.asked.into_iter()
    }

    /// Takes arrived bytes, and checks rows whose ids were kept; passes each request that is
    /// answered in full to `ended`, with its outcome.
    pub(super) fn receive(
        &mut self,
        row_bytes: usize,
        check: &mut Check<'_>,
        ended: &mut Vec<(usize, Result<(), Failure>)>,
    ) -> Result<(), LoadError> {
        // What came with the hello, such as a refusal.
        if self.link.read_buffer.len() > 0 {
            self.use_up(row_bytes, check, ended)?;
        }
        // Polling the socket does not show bytes that TLS has decrypted and not handed out.
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

    /// Goes through heads and rows as far as they have come.
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

    /// Ends the first request if all of its rows have come.
    fn end_whole(&mut self, ended: &mut Vec<(usize, Result<(), Failure>)>) {
        if self.asked.front().is_some_and(|ask| ask.n_come == ask.n_rows) {
            ended.extend(self.asked.pop_front().map(|ask| (ask.slot, Ok(()))));
            if std::mem::take(&mut self.was_lent) {
                Request::new(RequestBody::Taken).append_to(0, &mut self.outbox);
            }
        }
    }

    /// Returns the bytes of a chunk of rows, which must be the next of the first request.
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

    /// Uses rows of the chunk that is coming; `false` when more must come first.
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

/// Returns the processor time that this thread has taken.
pub(super) fn thread_cpu() -> io::Result<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let ns = text.split_whitespace().next().and_then(|ns| ns.parse().ok());
    ns.map(Duration::from_nanos).ok_or_else(|| ErrorKind::InvalidData.into())
}

impl LoadSocket {
    /// Copies a chunk out of the shared memory, as a trainer would.
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

    /// Copies rows from where the server keeps them, as a trainer would; their slots have come.
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

    /// Takes the next rows of the first request, which are in `taken`.
    fn has_taken(&mut self, n_rows: usize, check: &mut Check<'_>) -> Result<(), LoadError> {
        let ask = self.asked.front_mut().ok_or(LoadError::Wire)?;
        if !ask.ids.is_empty() {
            check(&ask.ids[ask.n_come..ask.n_come + n_rows], &self.taken);
        }
        ask.n_come += n_rows;
        Ok(())
    }
}
