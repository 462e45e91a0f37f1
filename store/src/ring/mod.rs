//! Reads in flight: memory, reads and the queues that carry them, without knowing rows or plans.
//!
//! A [`Read`] owns the memory that it fills. It moves into a [`ReadQueue`] when it is pushed and
//! comes back, with its result, when it is finished. So no code can see memory that the kernel
//! still writes, whatever the order of errors, returns and panics.
//!
//! Invariant: memory of a read that the kernel may still write is neither reused nor freed.

mod buffers;
mod file;
mod pool;
mod read;
mod uring;
mod workers;

pub(crate) use buffers::{Arena, Region};
pub(crate) use file::ReadFile;
pub(crate) use pool::{lend_arena, lend_ring};
pub(crate) use read::{Read, ReadFault, Step};
pub(crate) use uring::ReadRing;
pub(crate) use workers::{InlineQueue, WorkerQueue};

use std::io;

use rustix::io::Errno;

/// Most reads in flight of one queue: enough for the IOPS of an NVMe disk, whose requests take
/// about 0.1 ms.
pub(crate) const DEPTH: usize = 128;

/// Memory of a queue's reads. It holds enough large reads for the bandwidth of a disk of high
/// latency, while rows are copied out of those that have come. With reads of 1 MiB that take 16 ms
/// each, 16 in flight transfer 1 GB/s and 64 four times that.
pub(crate) const ARENA_BYTES: usize = 64 << 20;

/// Most queues with that much memory in a process at a time: together they keep any disk busy.
pub(crate) const MAX_LARGE_ARENAS: usize = 4;

/// Memory of a queue's reads beyond those.
pub(crate) const MIDDLE_ARENA_BYTES: usize = 16 << 20;

/// Memory of a queue's reads where the kernel will not register that much.
///
/// Two threads can register theirs within the 8 MiB of locked memory that systems allow by default,
/// which leaves some for the rings themselves. Later threads read into memory that is not
/// registered.
pub(crate) const SMALL_ARENA_BYTES: usize = 15 << 18;

/// Most bytes of one read. Longer regions are filled by several, one after the other. Single reads
/// beyond this gain nothing on NVMe and have hung direct reads on some kernels.
pub(crate) const MAX_READ_BYTES: usize = 1 << 20;

/// Result of a finished read: bytes, or the system's refusal.
pub(crate) type Outcome = Result<usize, Errno>;

/// A way to have several reads of one file in flight.
pub(crate) trait ReadQueue {
    /// Returns the memory that reads of this queue fill.
    fn arena(&mut self) -> &mut Arena;

    /// Returns the number of reads that may be in flight.
    fn depth(&self) -> usize;

    /// Returns the number of reads that were pushed and have not come back.
    fn in_flight(&self) -> usize;

    /// Takes a read; the caller keeps below [`ReadQueue::depth`].
    fn push(&mut self, read: Read);

    /// Hands pushed reads to the system, and waits until `want` of those in flight are finished.
    ///
    /// May return earlier, never later. An error means that the queue is beyond use.
    fn submit(&mut self, want: usize) -> io::Result<()>;

    /// Returns a finished read and its outcome.
    fn pop(&mut self) -> Option<(Read, Outcome)>;

    /// Waits for all reads in flight and frees their memory, with any outcome.
    fn drain(&mut self) -> io::Result<()> {
        while self.in_flight() > 0 {
            self.submit(1)?;
            while let Some((read, _)) = self.pop() {
                self.arena().give_back(read.into_region());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
