//! A socket to another rank, and the messages in flight on it.

use std::{
    cell::Cell,
    io::{self, ErrorKind, IoSlice, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
};

use crate::error::CollectiveError;
use crate::header::{FAULT, HEADER_BYTES, WAITING, decode_header, encode_header};
use crate::limits::check_length;
use crate::tag::Tag;

/// A non-blocking socket.
#[derive(Debug)]
pub(super) struct Link {
    socket: UnixStream,
    /// Rank in the last sent notice.
    noticed: Cell<Option<u32>>,
}

/// A message to be sent.
pub(super) struct Outbound<'a> {
    pub(super) rank: u32,
    pub(super) link: &'a Link,
    header: [u8; HEADER_BYTES],
    bytes: &'a [u8],
    n_sent: usize,
    /// Whether the other end is closed.
    pub(super) is_broken: bool,
}

/// A message to be received.
pub(super) struct Inbound<'a> {
    pub(super) rank: u32,
    pub(super) link: &'a Link,
    tag: Tag,
    header: [u8; HEADER_BYTES],
    n_header: usize,
    bytes: &'a mut Vec<u8>,
    pub(super) is_done: bool,
    /// Rank that delays the message: the sender, or the rank that the sender's last notice names.
    pub(super) suspect: u32,
}

impl Link {
    pub(super) fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket, noticed: Cell::new(None) })
    }

    /// Sends a notice that this rank waits for `suspect`, unless the last notice named it. No
    /// message may be in flight. Sends nothing if the socket is full.
    pub(super) fn notify(&self, suspect: u32) {
        if self.noticed.get() == Some(suspect) {
            return;
        }
        // A header with a rank instead of a length. The kernel accepts all of its bytes or none.
        if (&self.socket).write(&encode_header(WAITING, u64::from(suspect))).is_ok() {
            self.noticed.set(Some(suspect));
        }
    }

    /// Sends a notice that this rank, `rank`, waits no longer, if it sent one that it waits.
    pub(super) fn retract(&self, rank: u32) {
        if self.noticed.get().is_some() {
            self.notify(rank);
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<'a> Outbound<'a> {
    pub(super) fn new(rank: u32, link: &'a Link, tag: u32, bytes: &'a [u8]) -> Self {
        let header = encode_header(tag, bytes.len() as u64);
        Self { rank, link, header, bytes, n_sent: 0, is_broken: false }
    }

    /// Sends as much as the socket accepts. Returns whether it made progress.
    pub(super) fn advance(&mut self) -> bool {
        if self.is_done() || self.is_broken {
            return false;
        }
        let header = self.header.get(self.n_sent..).unwrap_or_default();
        let bytes = &self.bytes[self.n_sent.saturating_sub(HEADER_BYTES)..];
        let parts = [IoSlice::new(header), IoSlice::new(bytes)];
        match (&self.link.socket).write_vectored(&parts) {
            Ok(n) => {
                self.n_sent += n;
                n > 0
            }
            Err(error) => {
                // Counts as progress, so the caller reads once more what the other end sent before.
                self.is_broken = !is_temporary(&error);
                self.is_broken
            }
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.n_sent == HEADER_BYTES + self.bytes.len()
    }

    /// Returns the fault that the other end sent before it closed, else that it is gone.
    pub(super) fn last_fault(&self) -> CollectiveError {
        let mut bytes = Vec::new();
        let mut last = Inbound::new(self.rank, self.link, Tag::barrier(), &mut bytes);
        let fault = loop {
            match last.advance() {
                Ok(true) => {}
                Ok(false) => break None,
                Err(error) => break error.to_fault().map(CollectiveError::from_fault),
            }
        };
        fault.unwrap_or(CollectiveError::Gone { rank: self.rank })
    }
}

impl<'a> Inbound<'a> {
    pub(super) fn new(rank: u32, link: &'a Link, tag: Tag, bytes: &'a mut Vec<u8>) -> Self {
        bytes.clear();
        let header = [0; HEADER_BYTES];
        Self { rank, link, tag, header, n_header: 0, bytes, is_done: false, suspect: rank }
    }

    /// Receives the bytes that have arrived; returns whether there were any. Memory grows with the
    /// received bytes, not by the length in the header.
    pub(super) fn advance(&mut self) -> Result<bool, CollectiveError> {
        if self.is_done {
            return Ok(false);
        }
        let mut socket = &self.link.socket;
        if self.n_header < HEADER_BYTES {
            match socket.read(&mut self.header[self.n_header..]) {
                Ok(0) => return Err(CollectiveError::Gone { rank: self.rank }),
                Ok(n) => self.n_header += n,
                Err(error) => return self.unless_temporary(&error),
            }
            if self.n_header < HEADER_BYTES {
                return Ok(true);
            }
            match decode_header(self.header) {
                (FAULT, _) => {}
                (WAITING, suspect) => {
                    self.suspect = suspect as u32;
                    self.n_header = 0;
                    return Ok(true);
                }
                (tag, _) => self.tag.expect(self.rank, tag)?,
            }
            check_length(self.rank, decode_header(self.header).1)?;
        }
        let (_, n_bytes) = decode_header(self.header);
        let before = self.bytes.len();
        let read = socket.take(n_bytes - before as u64).read_to_end(self.bytes);
        let n_new = self.bytes.len() - before;
        let is_whole = self.bytes.len() as u64 == n_bytes;
        match read {
            _ if is_whole => self.finish().map(|()| true),
            Ok(_) => Err(CollectiveError::Gone { rank: self.rank }),
            Err(_) if n_new > 0 => Ok(true),
            Err(error) => self.unless_temporary(&error),
        }
    }

    fn finish(&mut self) -> Result<(), CollectiveError> {
        self.is_done = true;
        if decode_header(self.header).0 != FAULT {
            return Ok(());
        }
        let gone = CollectiveError::Gone { rank: self.rank };
        Err(self.bytes.first_chunk().copied().map_or(gone, CollectiveError::from_fault))
    }

    fn unless_temporary(&self, error: &io::Error) -> Result<bool, CollectiveError> {
        if is_temporary(error) { Ok(false) } else { Err(CollectiveError::Gone { rank: self.rank }) }
    }
}

/// Returns whether a retry can succeed.
fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
