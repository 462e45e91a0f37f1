//! Volatile tensors: rows in memory alone, each with a stamp, which their owners publish and others
//! pull.

mod embedded;

use std::ops::Range;
use std::time::Duration;

pub use lodestore_cache::volatile::{NO_STAMP, STAMP_MAX, Stamp};
use lodestore_graph::NodeId;
use lodestore_store::tensor::TensorSpecError;

use crate::error::ClientError;
use crate::source::TensorInfo;

pub use embedded::EmbeddedVolatile;

/// A place that has volatile tensors: servers, or the memory of this process.
///
/// Rows are published under claims. A claim is of whole ranges of ids, and one publisher has it at
/// a time. A row that is pulled is whole, of its range's present claim, and never older than was
/// asked.
pub trait VolatileSource: Send + Sync {
    /// Returns what is known of a volatile tensor; fails for a name that is not declared.
    fn volatile(&self, name: &str) -> Result<VolatileInfo, ClientError>;

    /// Declares a volatile tensor over all nodes. Does nothing if the same tensor exists.
    ///
    /// Fails where one of this name has other rows, or the memory does not suffice.
    fn declare(&self, info: &VolatileInfo) -> Result<(), ClientError>;

    /// Writes row `ids[i]` to bytes `i * row_bytes..(i + 1) * row_bytes` of `out` if it has the
    /// wanted stamp or a later one. Writes zeros if it has not by the time for which rows are
    /// awaited.
    ///
    /// Ids come in any order and may repeat. On an error the content of `out` is unspecified.
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

/// Claims of rows, and the right to publish them. Its claims end with it, or with the connections
/// that it has; the rows stay until the next claim.
pub trait VolatilePublisher: Send {
    /// Claims the rows of `ids`, whole ranges of the tensor, and forgets them. Returns their
    /// number.
    ///
    /// Fails where another publisher has one of them, and for ids that are not whole ranges. Claims
    /// that servers other than the failed one have granted stay claimed.
    fn claim(&mut self, tensor: &str, ids: &[Range<u32>]) -> Result<u64, ClientError>;

    /// Publishes rows: row `i` of `rows` is that of `ids[i]`. The later copy of a repeated row
    /// stays. When it returns every pull sees them.
    ///
    /// Fails for rows that are not claimed, or are there with a later stamp. After an error some of
    /// the rows may have been published.
    fn publish(
        &mut self,
        tensor: &str,
        ids: &[NodeId],
        rows: &[u8],
        stamp: Stamp,
    ) -> Result<(), ClientError>;
}

/// A volatile tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolatileInfo {
    /// Name and shape.
    pub tensor: TensorInfo,
    /// Rows that are claimed together, counted from the start of each partition; 0 for all of one.
    pub range_rows: u32,
}

/// Which rows will do, and how long others are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampWanted {
    /// The lowest stamp that will do.
    pub min_stamp: Stamp,
    /// How long rows that do not have it are waited for. Shortened where it is longer than the
    /// deadline of a pull, less the time for an answer.
    pub wait: Duration,
}

/// The rows that a pull has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolatilePulled {
    /// For each id the stamp of its row, or [`NO_STAMP`] for one that is lacking.
    pub stamps: Vec<Stamp>,
}

impl VolatileInfo {
    /// Checks that there can be such a tensor.
    pub(crate) fn check(&self) -> Result<(), ClientError> {
        let bad = |error: TensorSpecError| ClientError::BadVolatile { reason: error.to_string() };
        self.tensor.check().map_err(bad)
    }
}

impl StampWanted {
    /// Returns the rows with this stamp or a later one, as they are now.
    #[must_use]
    pub fn now(min_stamp: Stamp) -> Self {
        Self { min_stamp, wait: Duration::ZERO }
    }

    /// Returns the same, waited for as long as the pull's deadline allows.
    #[must_use]
    pub fn awaited(min_stamp: Stamp) -> Self {
        Self { min_stamp, wait: Duration::MAX }
    }
}

impl VolatilePulled {
    /// Returns the positions of rows that lack the stamp, ascending.
    #[must_use]
    pub fn lacking(&self) -> Vec<u32> {
        // Positions of a buffer in memory, of which there are fewer than 2^32.
        let all = (0..).zip(&self.stamps);
        all.filter(|(_, stamp)| **stamp == NO_STAMP).map(|(at, _)| at).collect()
    }

    /// Returns whether every row has the stamp.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.stamps.iter().all(|&stamp| stamp != NO_STAMP)
    }

    /// Returns the oldest stamp of the rows that were found.
    #[must_use]
    pub fn oldest(&self) -> Option<Stamp> {
        self.stamps.iter().copied().filter(|&stamp| stamp != NO_STAMP).min()
    }
}

#[cfg(test)]
mod tests;
