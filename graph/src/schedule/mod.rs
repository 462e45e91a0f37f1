//! Schedules: all mini-batches of a run, sampled ahead of time (RapidGNN, sections 3 and 4.1–4.3)
//! and streamed to and from one file.
//!
//! | section | content |
//! |---|---|
//! | header | 4 KiB: which graph, which run (`header.rs`) |
//! | blocks | one per batch, by epoch, worker, batch: frame of 24 bytes, zstd (`block.rs`) |
//! | index | u32 × workers: batches per epoch; then u64 × batches: where each block starts |
//! | footer | 80 bytes: totals, digest of the content, checksums (`footer.rs`) |
//!
//! All numbers are little-endian. Every checksum starts from that of the header, so that a piece
//! of another schedule does not pass. The header says all that the batches depend on but the list
//! of training roots; the digest covers their effect.
//!
//! Whether a node is local to a worker is not stored: ids tell it, by the partition book. Nor is
//! when a node is needed next: `next_use.rs` works it out beside the file.

mod block;
mod error;
mod footer;
mod frequency;
mod header;
mod next_use;
mod partial;
mod read;
mod write;

use serde::Serialize;

use crate::book::PartitionBook;
use crate::sampler::{Deal, Fanout, RootPlan};

pub use error::{BlockFault, ScheduleError};
pub use frequency::{AccessCounts, AccessStats};
pub use next_use::{NEVER, NextUses};
pub use read::{Schedule, is_schedule_of};
pub use write::{Estimate, ScheduleInput, ScheduleSummary, estimate_bytes, write_schedule};

/// Parameters of a run's batches, beside the topology and the training roots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ScheduleSpec {
    /// Identity of the graph.
    pub graph_uuid: [u8; 16],
    /// Root seed of the run.
    pub seed: u64,
    /// One fan-out per hop, from the roots outwards; at most [`ScheduleSpec::MAX_HOPS`].
    pub fanouts: Vec<Fanout>,
    /// Roots per batch; the last batch of a worker and epoch may have fewer.
    pub batch_size: usize,
    /// Number of epochs.
    pub epochs: u32,
    /// Number of workers; partition p is local to worker p mod workers.
    pub workers: u32,
    /// Which worker has which root.
    pub deal: Deal,
}

impl ScheduleSpec {
    /// Most hops that a file can name.
    pub const MAX_HOPS: usize = 64;
    /// Most workers: as many as there can be partitions.
    pub const MAX_WORKERS: u32 = u16::MAX as u32;

    /// Returns how the training nodes become batches.
    #[must_use]
    pub fn roots<'a>(&self, book: &'a PartitionBook) -> RootPlan<'a> {
        let Self { seed, deal, workers, batch_size, .. } = *self;
        RootPlan { seed, deal, workers, batch_size, book }
    }

    /// Returns the most roots of a worker's batch.
    fn max_roots(&self) -> u64 {
        let batch_size = self.batch_size as u64;
        match self.deal {
            Deal::Owned | Deal::Turns => batch_size,
            // One worker may own all of a global batch.
            Deal::Home => batch_size.saturating_mul(self.workers.into()),
        }
    }

    /// Checks that every number is in its range.
    pub fn check(&self) -> Result<(), ScheduleError> {
        let in_range = |name, found: u64, most: u64| {
            let good = (1..=most).contains(&found);
            if good { Ok(()) } else { Err(ScheduleError::Spec { name, most, found }) }
        };
        in_range("hops", self.fanouts.len() as u64, Self::MAX_HOPS as u64)?;
        in_range("batch size", self.batch_size as u64, u32::MAX.into())?;
        in_range("epochs", self.epochs.into(), u32::MAX.into())?;
        in_range("workers", self.workers.into(), Self::MAX_WORKERS.into())
    }
}

#[cfg(test)]
mod tests;
