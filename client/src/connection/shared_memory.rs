//! Memory of a server on this machine: requesting it, and copying rows from it.

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

/// The kind of a server's memory that this process could not map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapFailure {
    /// Memory to which the server copies rows.
    Ring,
    /// Memory in which the server keeps rows.
    Tier,
}

impl Connection {
    /// Requests two kinds of memory from a server over a Unix socket, once each: memory to which
    /// the server copies rows, and memory in which it keeps the rows of the tensor `lent`. A server
    /// without memory to share continues to send rows. Returns `Some` if the server shares memory
    /// that this process cannot map: then this connection cannot be used for pulls. No request may
    /// be in flight.
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
            // Sent with the hello: the server is overloaded.
            self.receive(deadline)?;
            return Err(self.malformed("a reply without a request"));
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
            _ => Err(self.malformed("a reply of the wrong type")),
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
            _ => return Err(self.malformed("a reply of the wrong type")),
        };
        self.tiers.push((tensor, memory));
        Ok(true)
    }

    /// Maps memory that a server has sent; logs the reason of a failure.
    fn mapped(
        &self,
        descriptor: Option<OwnedFd>,
        map: impl FnOnce(OwnedFd) -> io::Result<SharedMemory>,
    ) -> Option<SharedMemory> {
        // This process may have no room for a descriptor.
        let none = || io::Error::other("no descriptor; this process may have too many open files");
        let address = &self.address;
        let mapped = descriptor.ok_or_else(none).and_then(map);
        mapped
            .inspect_err(|error| {
                warn!(%address, %error, "cannot map shared memory, receiving rows another way");
            })
            .ok()
    }

    /// Requests memory; returns the reply, and the descriptor that arrived with it.
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
                Head::Whole(..) => return Err(self.malformed("a reply with a body")),
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

    /// Copies rows from shared memory to their positions, which ascend. Acknowledges them if
    /// `awaited`.
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
            let message =
                format!("{n_bytes} bytes from {offset} on in shared memory of {len} bytes");
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

    /// Copies lent rows to their positions. Their slots are buffered.
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
            _ => Err("the server has not shared their memory".to_owned()),
        };
        gathered.map_err(|why| self.malformed(format!("lent rows of tensor {tensor}: {why}")))?;
        // A process that was stopped meanwhile may have copied rows that replaced the lent ones.
        if asked.elapsed() > LENT_FOR {
            let message = format!(
                "lent rows were copied {:.1} s after the request; the server may replace them \
                 after {} s",
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
            // A stopping server reads no more, but still sends the remaining rows.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written.map_err(|error| self.io(error)),
        }
    }
}
