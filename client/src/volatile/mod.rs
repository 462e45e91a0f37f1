//! Volatile tensors: rows that exist only in memory, each with a stamp. Owners publish them, others
//! pull them.

mod embedded;

use std::ops::Range;
use std::time::Duration;

pub use lodestore_cache::volatile::{NO_STAMP, STAMP_MAX, Stamp};
use lodestore_graph::NodeId;
use lodestore_store::tensor::TensorSpecError;

use crate::error::ClientError;
use crate::source::TensorInfo;

pub use embedded::EmbeddedVolatile;

/// A source of volatile tensors: servers, or the memory of this process.
///
/// Rows are published under claims. A claim covers whole ranges of ids, and each range has at most
/// one publisher. A pulled row is never torn, always belongs to the current claim of its range, and
/// has at least the requested stamp.
pub trait VolatileSource: Send + Sync {
    /// Returns the description of a volatile tensor; fails for a name that is not declared.
    fn volatile(&self, name: &str) -> Result<VolatileInfo, ClientError>;

    /// Declares a volatile tensor over all nodes. Does nothing if an identical one exists.
    ///
    /// Fails if a tensor of this name has another shape, or if the memory does not suffice.
    fn declare(&self, info: &VolatileInfo) -> Result<(), ClientError>;

    /// Writes row `ids[i]` to bytes `i * row_bytes..(i + 1) * row_bytes` of `out` if its stamp is
    /// at least the requested one. Writes zeros for a row that does not reach this stamp within the
    /// waiting time.
    ///
    /// Ids may be in any order and may repeat. After an error the content of `out` is unspecified.
    fn pull_volatile(
        &self,
        tensor: &str,
        ids: &[NodeId],
        wanted: StampWanted,
        out: &mut [u8],
    ) -> Result<VolatilePulled, ClientError>;

    /// Returns a publisher without claims.
    fn publisher(&self) -> Box<dyn VolatilePublisher + '_>;
}

/// Claims rows and publishes them. Dropping the publisher releases its claims, and a failed
/// connection ends the claims made over it; published rows stay until the next claim of their
/// range.
pub trait VolatilePublisher: Send {
    /// Claims the rows of `ids`, which must be whole ranges of the tensor, and clears them. Returns
    /// the number of rows.
    ///
    /// Fails if another publisher holds one of the ranges, or if `ids` are not whole ranges. After
    /// a failure at one server, the claims that other servers granted stay valid.
    fn claim(&mut self, tensor: &str, ids: &[Range<u32>]) -> Result<u64, ClientError>;

    /// Publishes rows: row `i` of `rows` is the row of `ids[i]`. The last copy of a repeated row
    /// wins. Every pull that starts after the return sees the rows.
    ///
    /// Fails if a row is not claimed, or has a later stamp already. After an error some of the rows
    /// may have been published.
    fn publish(
        &mut self,
        tensor: &str,
        ids: &[NodeId],
        rows: &[u8],
        stamp: Stamp,
    ) -> Result<(), ClientError>;
}

/// The description of a volatile tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolatileInfo {
    /// Name and shape.
    pub tensor: TensorInfo,
    /// Rows of a claimable range, counted from the start of each partition; 0 for whole partitions.
    pub range_rows: u32,
}

/// The stamp that a pull requires, and the time it waits for rows without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampWanted {
    /// The lowest acceptable stamp.
    pub min_stamp: Stamp,
    /// Longest wait for rows that have not reached `min_stamp`. Servers wait less if this exceeds
    /// the deadline of the pull less the time for a reply.
    pub wait: Duration,
}

/// The result of a pull.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolatilePulled {
    /// The stamp of each row, or [`NO_STAMP`] for a missing row.
    pub stamps: Vec<Stamp>,
}

impl VolatileInfo {
    /// Checks the name and shape of the tensor.
    pub(crate) fn check(&self) -> Result<(), ClientError> {
        let bad = |error: TensorSpecError| ClientError::BadVolatile { reason: error.to_string() };
        self.tensor.check().map_err(bad)
    }
}

impl StampWanted {
    /// Requires `min_stamp` without waiting.
    #[must_use]
    pub fn now(min_stamp: Stamp) -> Self {
        Self { min_stamp, wait: Duration::ZERO }
    }

    /// Requires `min_stamp`, and waits as long as the deadline of the pull allows.
    #[must_use]
    pub fn awaited(min_stamp: Stamp) -> Self {
        Self { min_stamp, wait: Duration::MAX }
    }
}

impl VolatilePulled {
    /// Returns the positions of missing rows, ascending.
    #[must_use]
    pub fn lacking(&self) -> Vec<u32> {
        // Positions in a buffer in memory, of which there are fewer than 2^32.
        let all = (0..).zip(&self.stamps);
        all.filter(|(_, stamp)| **stamp == NO_STAMP).map(|(at, _)| at).collect()
    }

    /// Returns whether no row is missing.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.stamps.iter().all(|&stamp| stamp != NO_STAMP)
    }

    /// Returns the oldest stamp of the rows found.
    #[must_use]
    pub fn oldest(&self) -> Option<Stamp> {
        self.stamps.iter().copied().filter(|&stamp| stamp != NO_STAMP).min()
    }
}

#[cfg(test)]
mod tests;
