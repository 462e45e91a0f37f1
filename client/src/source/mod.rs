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

    /// Like [`RowSource::pull`], if the rows are in this process's memory, so that several small
    /// pulls cost no more than a large one. Otherwise pulls nothing and returns `false`.
    fn pull_in_memory(
        &self,
        _tensor: &str,
        _ids: &[NodeId],
        _out: &mut [u8],
    ) -> Result<bool, ClientError> {
        Ok(false)
    }

    /// Returns the version of all rows if the source is pinned, as files, servers or memory may be.
    /// Rows that are kept over a commit are of this version.
    fn pinned_version(&self) -> Option<VersionTag> {
        None
    }

    /// Like [`RowSource::pull_overlapped`], but writes row `ids[i]` to row `at[i]` of `out`, and
    /// leaves its other rows as they are. Positions ascend, each once.
    ///
    /// A source that can put rows in place itself does so. Otherwise all rows are pulled into memory
    /// of their own first; the time to put them in place counts as [`PullStats::copy`].
    ///
    /// # Panics
    ///
    /// Unless there is a position for each id, positions ascend, and `out` has a row for each.
    fn pull_at(
        &self,
        tensor: &str,
        ids: &[NodeId],
        at: &[u32],
        out: &mut [u8],
        kind: PullKind,
        work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        pull_and_scatter(self, tensor, ids, at, out, kind, work)
    }
}

/// Checks what [`RowSource::pull_at`] requires of positions in an output of `n_bytes`.
///
/// # Panics
///
/// Unless there is a position for each id, positions ascend, and the output has a row for each.
pub(crate) fn check_positions(ids: &[NodeId], at: &[u32], n_bytes: usize, row_bytes: usize) {
    assert_eq!(ids.len(), at.len(), "a position for each id");
    assert!(at.is_sorted_by(|one, next| one < next), "positions ascend");
    if let (Some(&last), Some(n_rows)) = (at.last(), n_bytes.checked_div(row_bytes)) {
        assert!((last as usize) < n_rows, "a row of the output for each position");
    }
}

/// Pulls rows into memory of their own, and copies them to their positions.
pub(crate) fn pull_and_scatter(
    source: &(impl RowSource + ?Sized),
    tensor: &str,
    ids: &[NodeId],
    at: &[u32],
    out: &mut [u8],
    kind: PullKind,
    work: &mut dyn FnMut(),
) -> Result<PullStats, ClientError> {
    let row_bytes = source.tensor(tensor)?.row_bytes();
    check_positions(ids, at, out.len(), row_bytes);
    if row_bytes == 0 || ids.is_empty() {
        return Ok(PullStats::default());
    }
    let mut rows = vec![0; ids.len() * row_bytes];
    let mut pulled = source.pull_overlapped(tensor, ids, &mut rows, kind, work)?;
    let start = Instant::now();
    scatter(&rows, row_bytes, at, out);
    pulled.copy += start.elapsed();
    Ok(pulled)
}

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
