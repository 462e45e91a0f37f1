//! Memory of a server of this machine: how it is asked for, and how rows are taken from it.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::time::Instant;

use lodestore_schema::limits::LENT_FOR;
use lodestore_schema::{Reply, Request, RequestBody};

use super::Connection;
use super::rows::neighbours;
use crate::inbox::Head;
use crate::map::SharedMemory;
use crate::{Address, ClientError};

/// Most tensors of which the memory is asked for.
const LENT_TENSORS_MAX: u16 = 16;

impl Connection {
    /// Asks a server over a Unix socket, once, for memory to take rows from; one that has none to
    /// share goes on to send them. `false` when it shares memory that cannot be mapped here: then
    /// this connection cannot be used for pulls. Nothing may be in flight.
    pub(crate) fn share(&mut self, deadline: Instant) -> Result<bool, ClientError> {
        if self.has_asked || !matches!(self.address, Address::Unix(_)) {
            return Ok(true);
        }
        self.has_asked = true;
        if self.inbox.len() > 0 {
            // Said with the hello: it has no room for this connection.
            self.receive(deadline)?;
            return Err(self.malformed("an answer that nobody asked for"));
        }
        let (n_bytes, n_tensors, descriptor) = match self
            .ask_memory(RequestBody::Share, deadline)?
        {
            (Reply::Shared { n_bytes, n_tensors }, found) => (n_bytes as usize, n_tensors, found),
            (Reply::Failure(failure), _) => {
                self.declined = Some(failure);
                return Ok(true);
            }
            _ => return Err(self.malformed("an answer of another kind")),
        };
        // Without one this process has no room for a descriptor.
        self.shared = descriptor.and_then(|found| SharedMemory::of(found, n_bytes).ok());
        if self.shared.is_none() {
            return Ok(false);
        }
        for tensor in 0..n_tensors.min(LENT_TENSORS_MAX) {
            match self.ask_memory(RequestBody::Lend { tensor }, deadline)? {
                (Reply::Lent { n_bytes: 0, .. } | Reply::Failure(_), _) => {}
                (Reply::Lent { n_bytes, offset }, descriptor) => {
                    let of_tier = |found| SharedMemory::of_tier(found, offset, n_bytes);
                    let memory = descriptor.map(of_tier);
                    let Some(Ok(memory)) = memory else { return Ok(false) };
                    self.tiers.push((tensor, memory));
                }
                _ => return Err(self.malformed("an answer of another kind")),
            }
        }
        Ok(true)
    }

    /// Asks for memory, and gives the answer with the descriptor that came beside it.
    fn ask_memory(
        &mut self,
        body: RequestBody,
        deadline: Instant,
    ) -> Result<(Reply, Option<OwnedFd>), ClientError> {
        self.send(&Request::new(body), &[], deadline)?;
        let mut descriptor = None;
        loop {
            match self.inbox.head().map_err(|source| self.wire(source))? {
                Head::Whole(reply, 0) => return Ok((reply, descriptor)),
                Head::Whole(..) => return Err(self.malformed("an answer with a body")),
                Head::Needs(n_bytes) => {
                    let read = self.inbox.read_more(
                        |buffer| {
                            let (n_bytes, found) = self.stream.read_with_descriptor(buffer)?;
                            descriptor = found.or(descriptor.take());
                            Ok(n_bytes)
                        },
                        n_bytes,
                    );
                    self.has_read(read)?;
                }
            }
        }
    }

    /// Copies rows from the server's memory to their positions, which ascend, and says so where
    /// that is awaited.
    pub(super) fn take_shared(
        &mut self,
        (offset, awaited): (usize, bool),
        positions: &[u32],
        row_bytes: usize,
        out: &mut [u8],
    ) -> Result<(), ClientError> {
        let n_bytes = positions.len() * row_bytes;
        let len = self.shared.as_ref().map_or(0, SharedMemory::len);
        let memory = self.shared.as_ref().filter(|_| offset <= len && n_bytes <= len - offset);
        let Some(memory) = memory else {
            let message = format!("{n_bytes} bytes from {offset} on in shared memory of {len}");
            return Err(self.malformed(message));
        };
        if let Some(range) = neighbours(positions, row_bytes) {
            memory.copy_to(offset, &mut out[range]);
        } else {
            for (&position, i) in positions.iter().zip(0..) {
                let row = &mut out[position as usize * row_bytes..][..row_bytes];
                memory.copy_to(offset + i * row_bytes, row);
            }
        }
        if awaited { self.say_taken() } else { Ok(()) }
    }

    /// Copies rows to their positions from where the server keeps them; their slots have come.
    pub(super) fn take_lent(
        &mut self,
        positions: &[u32],
        row_bytes: usize,
        out: &mut [u8],
    ) -> Result<(), ClientError> {
        let n_bytes = size_of_val(positions);
        self.slots.clear();
        self.slots
            .extend(self.inbox.take(n_bytes).as_chunks().0.iter().copied().map(u32::from_le_bytes));
        let tier = self.tiers.iter().find(|(tensor, _)| *tensor == self.pulled.0);
        let at = positions.iter().map(|&position| position as usize);
        let is_there = tier.is_some_and(|(_, tier)| tier.gather(&self.slots, row_bytes, at, out));
        if is_there {
            return Ok(());
        }
        Err(self.malformed(format!("{} rows in slots that were not lent", positions.len())))
    }

    /// All rows of an answer with some that were lent have been copied.
    pub(super) fn end_loan(&mut self) -> Result<(), ClientError> {
        // Who was stopped in the middle may have copied what had come in their place.
        if self.pulled.1.elapsed() > LENT_FOR {
            return Err(self.io(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "rows were lent for too short a time",
            )));
        }
        self.say_taken()
    }

    /// Tells the server that it may write again where rows were.
    fn say_taken(&mut self) -> Result<(), ClientError> {
        self.frame.clear();
        Request::new(RequestBody::Taken).append_to(0, &mut self.frame);
        match self.stream.write_all(&self.frame) {
            // A server that stops does not listen any more, and sends what is left all the same.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written.map_err(|error| self.io(error)),
        }
    }
}
