//! Rows for a client of the same machine, in memory that both processes map. The client requests
//! the memory once on a Unix socket. Only the server writes to it, and it is freed with the
//! connection.
//!
//! The memory is a ring of slots of one chunk each. Chunk `i` of a reply uses slot `i` modulo the
//! number of slots. If a later chunk of the same reply needs the slot, the client acknowledges the
//! chunk after it has copied the rows. All slots are free when a pull begins. A client that sends
//! another request before it has copied the last reply corrupts only its own rows.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use futures_lite::AsyncReadExt;
use glommio::sync::StaticPermit;
use lodestore_schema::limits::{CHUNK_BYTES, PREFIX_BYTES, SHARED_CHUNK_BYTES_MIN};
use lodestore_schema::{FailureCode, Prefix, Reply, RequestBody, Versions};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::{Connection, ConnectionError, RequestError, bad_request};
use crate::deadline::io_timeout;
use crate::error::failure;
use crate::limits::{CHUNK_ROWS_MAX, SHARED_SLOTS};
use crate::shard::Shard;
use crate::shared_memory::Region;

/// Bytes of the shared memory of one connection.
pub(crate) const REGION_BYTES: usize = SHARED_SLOTS * CHUNK_BYTES;

/// Shared memory of one connection.
pub(super) struct Shared {
    region: Region,
    /// Chunks that the client has not acknowledged; a lease counts as one.
    pub(super) n_untaken: usize,
    /// Tensors whose tiers the client maps.
    pub(super) leased: Vec<u16>,
    _room: StaticPermit,
}

/// Returns the rows of a chunk: as many as fit into its bytes. Short rows are limited to what is
/// gathered between two polls of the executor.
pub(super) fn chunk_rows(row_bytes: usize) -> usize {
    (CHUNK_BYTES / row_bytes).clamp(1, CHUNK_ROWS_MAX)
}

/// Slots of the chunks of one reply in the ring.
#[derive(Clone, Copy)]
pub(super) struct Ring {
    /// First row that uses the ring.
    first: usize,
    pub(super) n_rows: usize,
    pub(super) chunk_rows: usize,
    pub(super) row_bytes: usize,
}

impl Ring {
    /// Returns the ring of the rows `first..n_rows`.
    pub(super) fn new(first: usize, n_rows: usize, row_bytes: usize) -> Self {
        Self { first, n_rows, chunk_rows: chunk_rows(row_bytes), row_bytes }
    }

    /// Returns whether chunks fit into a slot and are long enough for shared memory. A chunk of a
    /// single long row does not fit. If one chunk qualifies, all do except perhaps the last.
    fn fits(self) -> bool {
        (SHARED_CHUNK_BYTES_MIN..=CHUNK_BYTES).contains(&(self.chunk_rows * self.row_bytes))
    }

    /// Returns the bytes of the ring for the chunk that begins with this row; `None` for a chunk
    /// that is too short.
    fn place(self, first_row: usize) -> Option<Range<usize>> {
        let n_bytes = (self.n_rows - first_row).min(self.chunk_rows) * self.row_bytes;
        let start = (first_row - self.first) / self.chunk_rows % SHARED_SLOTS * CHUNK_BYTES;
        (n_bytes >= SHARED_CHUNK_BYTES_MIN).then_some(start..start + n_bytes)
    }

    /// Returns whether a later chunk reuses the slot of the chunk that begins with this row.
    fn comes_again(self, first_row: usize) -> bool {
        first_row + SHARED_SLOTS * self.chunk_rows < self.n_rows
    }

    /// Returns whether an earlier chunk used the slot of the chunk that begins with this row.
    fn had_another(self, first_row: usize) -> bool {
        first_row - self.first >= SHARED_SLOTS * self.chunk_rows
    }
}

impl Connection {
    /// Handles a request for shared memory.
    pub(super) fn share(&mut self, shard: &Shard) -> Result<(), RequestError> {
        let refuse = |code, message: &str| Err(failure(code, message).into());
        if !self.is_local {
            return refuse(FailureCode::Invalid, "memory is shared over Unix sockets only");
        }
        if self.shared.is_some() {
            return refuse(FailureCode::Invalid, "this connection has shared memory already");
        }
        let Some(room) = shard.take_shared_room(REGION_BYTES) else {
            let message = "no shared memory is left; rows are sent over the socket instead";
            return refuse(FailureCode::Overloaded, message);
        };
        let (region, descriptor) = Region::new(REGION_BYTES).map_err(|error| {
            failure(FailureCode::Overloaded, format!("cannot share memory: {error}"))
        })?;
        let reply = Reply::Shared { n_bytes: REGION_BYTES as u32, n_tensors: shard.n_tensors() };
        self.send_memory(&reply, descriptor.as_fd())?;
        self.shared = Some(Shared { region, n_untaken: 0, leased: Vec::new(), _room: room });
        Ok(())
    }

    /// Sends a reply with a file descriptor of memory.
    pub(super) fn send_memory(
        &mut self,
        reply: &Reply,
        descriptor: BorrowedFd<'_>,
    ) -> Result<(), RequestError> {
        self.head.clear();
        reply.append_to(0, &mut self.head);
        match send_with(&self.socket, &self.head, descriptor) {
            Ok(n_bytes) if n_bytes == self.head.len() => Ok(()),
            // Half of a frame was sent, and cannot be completed.
            Ok(_) => Err(io::Error::from(io::ErrorKind::WriteZero).into()),
            Err(rustix::io::Errno::AGAIN) => {
                let message = "the socket is full; read earlier replies first";
                Err(failure(FailureCode::Overloaded, message).into())
            }
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// Handles an acknowledgement that no reply waits for: of leased rows, of chunks of a failed
    /// reply, or an unsolicited one.
    pub(super) fn taken(&mut self) -> Result<(), ConnectionError> {
        let Some(shared) = self.shared.as_mut().filter(|shared| shared.n_untaken > 0) else {
            return Err(bad_request("no acknowledgement of shared memory is expected"));
        };
        shared.n_untaken -= 1;
        if shared.n_untaken == 0 {
            self.lease = None;
        }
        Ok(())
    }

    /// Returns whether a reply may use shared memory: the connection has some, the client has
    /// acknowledged all chunks, and the chunks fit.
    pub(super) fn shares(&self, ring: Ring) -> bool {
        ring.fits() && self.shared.as_ref().is_some_and(|shared| shared.n_untaken == 0)
    }

    /// Waits until the slot of the chunk that begins with this row is free. Returns `false` at a
    /// stop, when the client can no longer acknowledge.
    pub(super) async fn free_place(
        &mut self,
        shard: &Shard,
        ring: Ring,
        first_row: usize,
    ) -> Result<bool, ConnectionError> {
        if !ring.had_another(first_row) {
            return Ok(true);
        }
        let (start, mut prefix) = (Instant::now(), [0; PREFIX_BYTES]);
        match io_timeout(self.pace.allowance(), self.stream.read_exact(&mut prefix)).await {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return if shard.is_ending() { Ok(false) } else { Err(ConnectionError::Left) };
            }
            Err(error) => return Err(error.into()),
        }
        let prefix = Prefix::of_request(prefix)?;
        let is_taken = self.read_head(prefix).await?.body == RequestBody::Taken;
        let shared = self.shared.as_mut().filter(|_| is_taken && prefix.body_bytes == 0);
        let Some(shared) = shared.filter(|shared| shared.n_untaken > 0) else {
            return Err(bad_request("expected an acknowledgement, found another request"));
        };
        shared.n_untaken -= 1;
        self.pace.taken(ring.chunk_rows * ring.row_bytes, start.elapsed());
        Ok(true)
    }

    /// Returns the slot for the chunk that begins with this row, if it uses one.
    pub(super) fn place(&mut self, ring: Ring, first_row: usize) -> Option<&mut [u8]> {
        let place = ring.place(first_row)?;
        Some(&mut self.shared.as_mut()?.region.bytes_mut()[place])
    }

    /// Announces a chunk in shared memory to the client.
    pub(super) async fn write_shared(
        &mut self,
        ring: Ring,
        first_row: u32,
        n_rows: u32,
        versions: Versions,
    ) -> Result<(), ConnectionError> {
        let at = first_row as usize;
        let (awaited, offset) = (ring.comes_again(at), ring.place(at).map_or(0, |p| p.start));
        if let Some(shared) = self.shared.as_mut().filter(|_| awaited) {
            shared.n_untaken += 1;
        }
        let offset = offset as u32;
        self.reply(&Reply::SharedRows { first_row, n_rows, offset, awaited, versions }).await
    }
}

/// Sends bytes, with a descriptor attached to the first one, without blocking.
fn send_with(socket: &OwnedFd, bytes: &[u8], with: BorrowedFd<'_>) -> rustix::io::Result<usize> {
    let descriptors = [with];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Chunks that were not acknowledged are never overwritten.
        #[test]
        fn a_slot_is_reused_only_after_its_chunk_is_acknowledged(
            first in 0usize..20_000,
            n_rows in 1usize..20_000,
            row_bytes in prop_oneof![1usize..200, 1usize..=CHUNK_BYTES + 100],
        ) {
            let chunk_rows = chunk_rows(row_bytes);
            let n_rows = first + n_rows;
            let ring = Ring::new(first, n_rows, row_bytes);
            prop_assert_eq!(ring.fits(), (4..=CHUNK_BYTES).contains(&row_bytes));
            if !ring.fits() {
                return Ok(());
            }
            let mut awaited = std::collections::VecDeque::new();
            let mut standing = [None; SHARED_SLOTS];
            for first_row in (first..n_rows).step_by(chunk_rows) {
                if ring.had_another(first_row) {
                    // The client acknowledges the oldest awaited chunk.
                    let taken: usize = awaited.pop_front().expect("an acknowledgement was awaited");
                    standing[taken] = None;
                }
                let Some(place) = ring.place(first_row) else {
                    prop_assert!((n_rows - first_row) * row_bytes < SHARED_CHUNK_BYTES_MIN);
                    continue;
                };
                prop_assert!(place.end <= REGION_BYTES);
                let slot = place.start / CHUNK_BYTES;
                prop_assert!((place.end - 1) / CHUNK_BYTES == slot);
                prop_assert_eq!(standing[slot], None);
                standing[slot] = Some(first_row);
                if ring.comes_again(first_row) {
                    awaited.push_back(slot);
                }
            }
            prop_assert!(awaited.is_empty(), "no acknowledgement is awaited at the end");
        }
    }
}
