//! Sources of rows.

pub mod device;
pub(crate) mod embedded;
pub mod memory;
pub mod tiered;

use std::ops::AddAssign;
use std::time::{Duration, Instant};

use lodestore_graph::{NodeId, PartitionBook};
/// Purpose of a pull: RapidGNN's SyncPull or VectorPull. Servers have a queue for each.
pub use lodestore_schema::request::PullKind;
/// A version as peers and sources name it: its number, and a tag of its commit.
pub use lodestore_schema::versions::VersionTag;
/// Name and shape of a tensor.
pub use lodestore_store::TensorSpec as TensorInfo;
use serde::{Deserialize, Serialize};

use crate::buffer::scatter;
use crate::error::ClientError;

/// A source of the rows of a graph: servers, the embedded store, or memory.
///
/// One call moves a whole batch; implementations route it over partitions and servers.
pub trait RowSource: Send + Sync {
    /// Returns the partition book of the graph.
    fn book(&self) -> &PartitionBook;

    /// Returns the name and shape of a tensor; fails for an unknown name.
    fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError>;

    /// Writes row `ids[i]` to bytes `i * row_bytes..(i + 1) * row_bytes` of `out`.
    ///
    /// Ids may be in any order, may repeat, and may be none. `out` must have exactly
    /// `ids.len() * row_bytes` bytes; after an error its content is unspecified.
    fn pull(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
    ) -> Result<PullStats, ClientError> {
        self.pull_overlapped(tensor, ids, out, kind, &mut || ())
    }

    /// Like [`RowSource::pull`], as part of a call that started at `begun`: a source with a
    /// deadline counts it from then.
    fn pull_since(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
        begun: Instant,
    ) -> Result<PullStats, ClientError> {
        let _ = begun;
        self.pull(tensor, ids, out, kind)
    }

    /// Like [`RowSource::pull`], but runs `work` once while rows are in transit, if any are: after
    /// the requests are sent, before the replies are received. A source with its rows in this
    /// process need not run it. `work` must not use this source, which may hold a lock that `work`
    /// would wait for.
    fn pull_overlapped(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
        work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError>;

    /// Returns whether rows are in memory here, so that a few small pulls cost no more than a large
    /// one.
    fn is_in_memory(&self, _tensor: &str) -> Result<bool, ClientError> {
        Ok(false)
    }

    /// Returns whether [`RowSource::pull_at`] puts all rows of `tensor` in place under one plan,
    /// and needs no memory for them besides the output.
    fn places_rows(&self, _tensor: &str) -> bool {
        false
    }

    /// Returns the memory of the rows that one worker's buffer keeps, in bytes; `None` without a
    /// buffer.
    fn buffer_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the version of all rows if the source is pinned, as files, servers or memory may be.
    /// Rows that are kept over a commit are of this version.
    fn pinned_version(&self) -> Option<VersionTag> {
        None
    }

    /// Writes row `ids[i]` to row `at[i]` of `out`, and leaves its other rows as they are.
    ///
    /// Rows are pulled in pieces that stay in a core's cache until they are in place. A source that
    /// can put rows in place itself does so.
    ///
    /// # Panics
    ///
    /// Unless there is a position for each id, and a row of `out` for each position.
    fn pull_at(
        &self,
        tensor: &str,
        ids: &[NodeId],
        at: &[u32],
        out: &mut [u8],
        kind: PullKind,
    ) -> Result<PullStats, ClientError> {
        assert_eq!(ids.len(), at.len(), "a position for each id");
        let (row_bytes, mut stats) = (self.tensor(tensor)?.row_bytes(), PullStats::default());
        if row_bytes == 0 || ids.is_empty() {
            return Ok(stats);
        }
        let n_piece = (PIECE_BYTES / row_bytes).max(1);
        let mut piece = vec![0; n_piece.min(ids.len()) * row_bytes];
        for (ids, at) in ids.chunks(n_piece).zip(at.chunks(n_piece)) {
            let rows = &mut piece[..ids.len() * row_bytes];
            stats += self.pull(tensor, ids, rows, kind)?;
            scatter(rows, row_bytes, at, out);
        }
        Ok(stats)
    }
}

/// Bytes of rows that are put in place together.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// Counters of pulls, and of the tiers before a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PullStats {
    /// Rows pulled. A source with a tier has the others already.
    pub rows: u64,
    /// Bytes of these rows as they were transferred.
    pub bytes: u64,
    /// Requests sent, one per server asked.
    pub requests: u64,
    /// Hedges: second servers that were asked because the first was slow.
    pub hedges: u64,
    /// Versions of these rows, if their source reports them.
    pub versions: VersionSpan,
    /// Part of `rows` that was pulled beyond the requested rows.
    pub ahead_rows: u64,
    /// Rows found in tiers.
    pub found: TierRows,
    /// Time in which tiers looked up rows and copied those that they had.
    pub lookup: Duration,
    /// Time in which tiers put pulled rows in place, and kept some.
    pub copy: Duration,
}

/// The lowest and the highest version of some rows; 0 if unknown.
///
/// Rows of one partition that one call pulls have one version. Rows of different partitions may
/// have different versions, unless the source is pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VersionSpan {
    /// The lowest.
    pub lowest: u32,
    /// The highest.
    pub highest: u32,
}

impl VersionSpan {
    /// Returns the span of rows of one version.
    #[must_use]
    pub fn of(version: u32) -> Self {
        Self { lowest: version, highest: version }
    }
}

impl AddAssign for VersionSpan {
    fn add_assign(&mut self, more: Self) {
        if self.highest == 0 {
            *self = more;
        } else if more.highest != 0 {
            self.lowest = self.lowest.min(more.lowest);
            self.highest = self.highest.max(more.highest);
        }
    }
}

/// Rows that were not pulled, by the tier that had them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierRows {
    /// The tier of a worker's device.
    pub device: u64,
    /// The host tier, which workers share.
    pub host: u64,
    /// MassiveGNN's buffer.
    pub buffer: u64,
    /// An earlier batch of those that are loaded together.
    pub together: u64,
}

impl TierRows {
    /// Returns the rows of all tiers.
    #[must_use]
    pub fn all(self) -> u64 {
        self.device + self.host + self.buffer + self.together
    }

    /// Removes and returns `n` rows, or as many as there are.
    pub(crate) fn take(&mut self, mut n: u64) -> Self {
        let mut some = |of: &mut u64| {
            let taken = n.min(*of);
            (*of, n) = (*of - taken, n - taken);
            taken
        };
        let (device, host) = (some(&mut self.device), some(&mut self.host));
        Self { device, host, buffer: some(&mut self.buffer), together: some(&mut self.together) }
    }
}

impl AddAssign for TierRows {
    fn add_assign(&mut self, more: Self) {
        self.device += more.device;
        self.host += more.host;
        self.buffer += more.buffer;
        self.together += more.together;
    }
}

impl AddAssign for PullStats {
    fn add_assign(&mut self, more: Self) {
        self.rows += more.rows;
        self.bytes += more.bytes;
        self.requests += more.requests;
        self.hedges += more.hedges;
        self.versions += more.versions;
        self.ahead_rows += more.ahead_rows;
        self.found += more.found;
        self.lookup += more.lookup;
        self.copy += more.copy;
    }
}
