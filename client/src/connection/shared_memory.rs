//! Memory of a server of this machine: how it is asked for, and how rows are taken from it.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::time::Instant;

use lodestore_schema::limits::LENT_FOR;
use lodestore_schema::{Reply, Request, RequestBody};
use tracing::warn;

use super::Connection;
use super::rows::neighbours;
use crate::address::Address;
use crate::error::ClientError;
use crate::read_buffer::Head;
use crate::shared_memory::SharedMemory;

/// Memory of a server that this process could not map, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapFailure {
    /// Where it puts rows.
    Ring,
    /// Where it keeps them.
    Tier,
}

impl Connection {
    /// Asks a server over a Unix socket, once each, for two kinds of memory. The first is for
    /// taking rows, the second is where it keeps the rows of the tensor `lent`. A server without
    /// any to share continues to send rows. Returns `Some` when it shares memory that cannot be
    /// mapped here: then this connection cannot be used for pulls. No request may be in flight.
    pub(crate) fn share(
        &mut self,
        lent: Option<u16>,
        deadline: Instant,
    ) -> Result<Option<MapFailure>, ClientError> {
        if !matches!(self.address, Address::Unix(_)) {
            return Ok(None);
        }
        if !self.has_asked && !self.ask_ring(deadline)? {
            return Ok(Some(MapFailure::Ring));
        }
        match lent.filter(|tensor| self.n_lendable > *tensor) {
            Some(tensor) if !self.ask_tier(tensor, deadline)? => Ok(Some(MapFailure::Tier)),
            _ => Ok(None),
        }
    }

    fn ask_ring(&mut self, deadline: Instant) -> Result<bool, ClientError> {
        self.has_asked = true;
        if self.read_buffer.len() > 0 {
            // Said with the hello: it has no room for this connection.
            self.receive(deadline)?;
            return Err(self.malformed("an answer without a request"));
        }
        match self.ask_memory(RequestBody::Share, deadline)? {
            (Reply::Shared { n_bytes, n_tensors }, descriptor) => {
                self.n_lendable = n_tensors;
                let map = |found| SharedMemory::of(found, n_bytes as usize);
                self.shared = self.mapped(descriptor, map);
                Ok(self.shared.is_some())
            }
            (Reply::Failure(failure), _) => {
                self.declined = Some(failure);
                Ok(true)
            }
            _ => Err(self.malformed("an answer of another kind")),
        }
    }

    fn ask_tier(&mut self, tensor: u16, deadline: Instant) -> Result<bool, ClientError> {
        if self.tiers.iter().any(|(asked, _)| *asked == tensor) {
            return Ok(true);
        }
        let memory = match self.ask_memory(RequestBody::Lend { tensor }, deadline)? {
            (Reply::Lent { n_bytes: 0, .. } | Reply::Failure(_), _) => None,
            (Reply::Lent { n_bytes, offset }, descriptor) => {
                let map = |found| SharedMemory::of_tier(found, offset, n_bytes);
                let memory = self.mapped(descriptor, map);
                if memory.is_none() {
                    return Ok(false);
                }
                memory
            }
            _ => return Err(self.malformed("an answer of another kind")),
        };
        self.tiers.push((tensor, memory));
        Ok(true)
    }

    /// Maps the memory that a server has sent; reports the reason where it fails.
    fn mapped(
        &self,
        descriptor: Option<OwnedFd>,
        map: impl FnOnce(OwnedFd) -> io::Result<SharedMemory>,
    ) -> Option<SharedMemory> {
        // Without one this process has no room for a descriptor.
        let none = || io::Error::other("no descriptor came: this process has too many open?");
        let address = &self.address;
        let mapped = descriptor.ok_or_else(none).and_then(map);
        mapped
            .inspect_err(|error| {
                warn!(%address, %error, "its memory cannot be mapped: rows come another way");
            })
            .ok()
    }

    /// Asks for memory, and returns the answer with the descriptor that came beside it.
    fn ask_memory(
        &mut self,
        body: RequestBody,
        deadline: Instant,
    ) -> Result<(Reply, Option<OwnedFd>), ClientError> {
        self.send(&Request::new(body), &[], deadline)?;
        let mut descriptor = None;
        loop {
            match self.read_buffer.head().map_err(|source| self.wire(source))? {
                Head::Whole(reply, 0) => return Ok((reply, descriptor)),
                Head::Whole(..) => return Err(self.malformed("an answer with a body")),
                Head::Needs(n_bytes) => {
                    let read = self.read_buffer.read_more(
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
        offset: usize,
        awaited: bool,
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
        let (tensor, asked) = (self.pulled_tensor, self.pulled_at);
        let slots = self.read_buffer.take(size_of_val(positions)).as_chunks().0;
        let tier = self.tiers.iter().find(|(of, _)| *of == tensor);
        let at = positions.iter().map(|&position| position as usize);
        let gathered = match tier {
            Some((_, Some(tier))) => {
                tier.gather(slots, row_bytes, at, out).map_err(|bad| bad.to_string())
            }
            _ => Err("which did not say where it keeps them".to_owned()),
        };
        gathered.map_err(|why| self.malformed(format!("rows of tensor {tensor} lent, {why}")))?;
        // Who was stopped in the middle may have copied what had come in their place.
        if asked.elapsed() > LENT_FOR {
            let message = format!(
                "rows were copied {:.1} s after they were asked for, and {} s later they may be others",
                asked.elapsed().as_secs_f64(),
                LENT_FOR.as_secs()
            );
            return Err(self.io(io::Error::new(io::ErrorKind::ConnectionAborted, message)));
        }
        Ok(())
    }

    /// Acknowledges rows to the server, which may then overwrite them.
    pub(super) fn say_taken(&mut self) -> Result<(), ClientError> {
        self.frame.clear();
        Request::new(RequestBody::Taken).append_to(0, &mut self.frame);
        match self.stream.write_all(&self.frame) {
            // A server that stops does not listen any more, and sends what is left all the same.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written.map_err(|error| self.io(error)),
        }
    }
}
