//! Loading the rows of batches: local rows are gathered, hot rows are copied, all others are pulled
//! once.

mod split;

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use lodestore_graph::{NodeId, PartId};
use rayon::prelude::*;

use crate::buffer::RowBuffer;
use crate::buffer::spread;
use crate::error::ClientError;
use crate::load_stats::LoadStats;
use crate::source::{PullKind, PullStats, RowSource, TierRows};
use split::{Counts, Split};

/// One worker's access to the rows of one tensor.
///
/// Each thread has its own clone, because a loader reuses its lists from batch to batch.
#[derive(Clone)]
pub struct BatchLoader {
    local: Arc<dyn RowSource>,
    remote: Arc<dyn RowSource>,
    tensor: String,
    row_bytes: usize,
    owned: Vec<Range<u32>>,
    split: Split,
    /// Kind of the pulls of remote rows.
    kind: PullKind,
}

/// Most bytes of own rows that are gathered while others are in transit: about a millisecond's. No
/// reply is read meanwhile. The latency of a reply that may have waited longer is unknown, so
/// hedging and the choice of replicas would learn nothing.
const MEANWHILE_BYTES: usize = 1 << 20;

/// One batch's access to remote rows that are kept near the trainer.
///
/// A loader calls `look_up` once, then `move_rows` once, or `give_up` after an error.
pub trait Residency: Send {
    /// Looks up the remote nodes of the batch; `at[i]` is the position of `ids[i]` in the batch.
    /// Returns a slot for each id: [`NO_SLOT`](lodestore_cache::slots::NO_SLOT) if its row must be
    /// pulled.
    fn look_up(&mut self, ids: &[NodeId], at: &[u32]) -> Result<&[u32], ClientError>;

    /// Copies the rows that were found to `out`, and may keep pulled ones. Row `at[i]` of `out` is
    /// that of the `i`th remote node. Pulls rows that were found but are missing with `pull`, and
    /// returns the stats of that.
    fn move_rows(
        &mut self,
        at: &[u32],
        out: &mut [u8],
        pull: &mut PullAt<'_>,
    ) -> Result<PullStats, ClientError>;

    /// Returns whether it keeps rows that this batch pulls. If so, batches that are loaded together
    /// pull their own misses each, and wait for each other in their order.
    fn keeps_pulled_rows(&self) -> bool;

    /// Ends the access of a failed batch.
    fn give_up(&mut self) {}
}

/// Pulls rows of remote nodes to the given rows of the output.
pub type PullAt<'a> =
    dyn FnMut(&[NodeId], &[u32], &mut [u8]) -> Result<PullStats, ClientError> + 'a;

/// The remote rows of a batch that are kept; `None` if none are.
pub type RowResidency = Option<Box<dyn Residency>>;

impl BatchLoader {
    /// Returns a loader of `tensor` for a worker that owns the partitions `owned`: their rows are
    /// read from `local`, all others from `remote`.
    pub fn new(
        local: Arc<dyn RowSource>,
        remote: Arc<dyn RowSource>,
        tensor: &str,
        owned: &[PartId],
    ) -> Result<Self, ClientError> {
        let row_bytes = local.tensor(tensor)?.row_bytes();
        let remote_bytes = remote.tensor(tensor)?.row_bytes();
        if row_bytes != remote_bytes {
            let tensor = tensor.to_owned();
            return Err(ClientError::SourcesDiffer {
                tensor,
                local: row_bytes,
                remote: remote_bytes,
            });
        }
        let owned = owned.iter().map(|&part| local.book().range(part)).collect();
        let (tensor, split) = (tensor.to_owned(), Split::default());
        Ok(Self { local, remote, tensor, row_bytes, owned, split, kind: PullKind::Sync })
    }

    /// Returns the bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Returns whether another worker owns `node`.
    #[must_use]
    pub fn is_remote(&self, node: NodeId) -> bool {
        !self.owned.iter().any(|range| range.contains(&node.0))
    }

    /// Sets the kind of later pulls of remote rows: bulk for batches that no trainer waits for yet.
    pub(crate) fn set_kind(&mut self, kind: PullKind) {
        self.kind = kind;
    }

    /// Writes the rows of `nodes`, in order, to `out` of exactly `nodes.len() * row_bytes` bytes.
    ///
    /// Remote rows are pulled by one SyncPull.
    pub fn load(&mut self, nodes: &[NodeId], out: &mut [u8]) -> Result<LoadStats, ClientError> {
        let stats = self.load_together(&mut [(nodes, None)], out)?;
        Ok(stats[0])
    }

    /// Applies `form` to the rows of `nodes`, to `n_rows` consecutive ones at a time; returns the
    /// results. The last piece may have fewer rows.
    ///
    /// Pieces are formed concurrently, each while its rows are in a core's cache, so that the batch
    /// as a whole is never written. Returns `None` unless all rows are the worker's own and in
    /// memory.
    pub fn load_in_pieces<P: Send>(
        &self,
        nodes: &[NodeId],
        n_rows: usize,
        form: impl Fn(&[u8]) -> P + Sync,
    ) -> Result<Option<(Vec<P>, LoadStats)>, ClientError> {
        let start = Instant::now();
        // A pull of no rows asks whether the source has its rows in memory.
        let is_in_memory = self.local.pull_in_memory(&self.tensor, &[], &mut [])?;
        if !is_in_memory || nodes.iter().any(|&node| self.is_remote(node)) {
            return Ok(None);
        }
        let piece = |rows: &mut RowBuffer, nodes: &[NodeId]| {
            rows.resize(nodes.len() * self.row_bytes);
            let is_here = self.local.pull_in_memory(&self.tensor, nodes, rows.bytes_mut())?;
            Ok::<_, ClientError>(is_here.then(|| form(rows.bytes())))
        };
        let pieces = nodes.par_chunks(n_rows.max(1)).map_init(RowBuffer::default, piece);
        let Some(pieces) = pieces.collect::<Result<Option<Vec<P>>, _>>()? else {
            return Ok(None);
        };
        let seconds = start.elapsed().as_secs_f64();
        let local_rows = nodes.len() as u64;
        let stats =
            LoadStats { local_rows, seconds, read_seconds: seconds, ..LoadStats::default() };
        Ok(Some((pieces, stats)))
    }

    /// Writes the rows of batches, one batch after the other, to `out` of exactly their bytes.
    ///
    /// A row that several batches need is read once. Local rows are read under one plan, and remote
    /// rows that no hot set has are pulled by one SyncPull (RapidGNN 4.7). A tier that follows the
    /// schedule decides batch by batch. Its misses are pulled by one SyncPull too, each as often as
    /// batches miss it. While rows are in transit, the worker's own rows that have a place already
    /// are read under another plan: t_sampling + max(t_RPC, t_copy), MassiveGNN's Eq. 2.
    ///
    /// Residencies must be passed in the order of their turns, each once; after an error all of
    /// them are given up. Returns stats for each batch. A row that an earlier batch pulls counts as
    /// found. Requests count for the first batch, and time is shared in equal parts.
    pub fn load_together(
        &mut self,
        batches: &mut [(&[NodeId], RowResidency)],
        out: &mut [u8],
    ) -> Result<Vec<LoadStats>, ClientError> {
        let loaded = self.load_all(batches, out);
        if loaded.is_err() {
            for kept in batches.iter_mut().filter_map(|(_, kept)| kept.as_mut()) {
                kept.give_up();
            }
        }
        loaded
    }

    fn load_all(
        &mut self,
        batches: &mut [(&[NodeId], RowResidency)],
        out: &mut [u8],
    ) -> Result<Vec<LoadStats>, ClientError> {
        let start = Instant::now();
        let n_rows = batches.iter().map(|(nodes, _)| nodes.len()).sum();
        ClientError::check_buffer(&self.tensor, n_rows, self.row_bytes, out.len())?;
        if u32::try_from(n_rows).is_err() {
            return Err(ClientError::TooManyRows { n_rows });
        }
        let mut took = LoadTimings::default();
        let (counts, remote_at) = self.split_up(batches, &mut took)?;
        let (mut stats, n_placed) = self.load_missing(&counts, &mut took, out)?;
        let Split { local, local_at, .. } = &self.split;
        let (local, local_at) = (&local[n_placed..], &local_at[n_placed..]);
        let reading = Instant::now();
        self.local.pull_at(&self.tensor, local, local_at, out, PullKind::Sync, &mut || ())?;
        took.read += reading.elapsed();
        for (((_, kept), at), stats) in batches.iter_mut().zip(&remote_at).zip(&mut stats) {
            if let Some(kept) = kept {
                self.move_kept(&mut **kept, at, stats, &mut took, out)?;
            }
        }
        took.share(start.elapsed(), &mut stats);
        Ok(stats)
    }

    /// Returns the source of rows that other workers own.
    pub(crate) fn remote(&self) -> &dyn RowSource {
        &*self.remote
    }

    pub(crate) fn tensor(&self) -> &str {
        &self.tensor
    }

    /// Splits the rows of batches by their source; looks up kept rows batch by batch. Returns the
    /// counts, and the positions of the remote rows of each batch with kept rows.
    fn split_up(
        &mut self,
        batches: &mut [(&[NodeId], RowResidency)],
        took: &mut LoadTimings,
    ) -> Result<(Vec<Counts>, Vec<Vec<u32>>), ClientError> {
        let start = Instant::now();
        self.split.clear();
        let (mut counts, mut remote_at) = (Vec::with_capacity(batches.len()), Vec::new());
        let mut first = 0;
        for (nodes, kept) in &mut *batches {
            let mut of_batch = self.split.add(nodes, first, &self.owned);
            remote_at.push(match kept {
                Some(kept) => self.split.look_up(&mut of_batch, first, &mut **kept)?,
                None => Vec::new(),
            });
            counts.push(of_batch);
            first += nodes.len() as u32;
        }
        let keeps = |(_, kept): &(_, RowResidency)| {
            kept.as_ref().is_some_and(|kept| kept.keeps_pulled_rows())
        };
        if batches.len() > 1 && !batches.iter().any(keeps) {
            self.split.find_repeats(&mut counts);
        }
        took.lookup += start.elapsed();
        Ok((counts, remote_at))
    }

    /// Moves the rows of a batch between `out` and its residency.
    fn move_kept(
        &self,
        kept: &mut dyn Residency,
        at: &[u32],
        stats: &mut LoadStats,
        took: &mut LoadTimings,
        out: &mut [u8],
    ) -> Result<(), ClientError> {
        let start = Instant::now();
        let mut pull = |ids: &[NodeId], at: &[u32], out: &mut [u8]| {
            self.remote.pull_at(&self.tensor, ids, at, out, self.kind, &mut || ())
        };
        let lost = kept.move_rows(at, out, &mut pull)?;
        if kept.keeps_pulled_rows() {
            // Waiting for earlier batches is waiting for their pulls.
            took.pull += start.elapsed();
        }
        stats.hit_rows -= lost.rows.min(stats.hit_rows);
        *stats += LoadStats::from_pull(lost);
        Ok(())
    }

    /// Pulls the rows that no hot set or tier has. This is done before anything else is written to
    /// `out`, of which the pull may overwrite every row. Also returns the number of own rows in
    /// place.
    fn load_missing(
        &self,
        counts: &[Counts],
        took: &mut LoadTimings,
        out: &mut [u8],
    ) -> Result<(Vec<LoadStats>, usize), ClientError> {
        let (pulled, n_placed) = self.pull_missing(took, out)?;
        for &(from, to) in &self.split.repeats {
            let [from, to] = [from, to].map(|row| row as usize * self.row_bytes);
            out.copy_within(from..from + self.row_bytes, to);
        }
        Ok((count(counts, pulled), n_placed))
    }

    /// Pulls the missing rows into the last rows of `out`, and spreads them from there, so that a
    /// batch needs no second copy. Meanwhile gathers own rows whose place is before these. Returns
    /// the stats of the pull, and the number of own rows in place.
    fn pull_missing(
        &self,
        took: &mut LoadTimings,
        out: &mut [u8],
    ) -> Result<(PullStats, usize), ClientError> {
        let Split { missing, missing_at, local, local_at, .. } = &self.split;
        if missing.is_empty() {
            return Ok((PullStats::default(), 0));
        }
        let (start, kind) = (Instant::now(), self.kind);
        let (before, landing) = out.split_at_mut(out.len() - missing.len() * self.row_bytes);
        let n_before = before.len().checked_div(self.row_bytes).unwrap_or(0);
        let n_placed = local_at.partition_point(|&at| (at as usize) < n_before);
        let n_placed = n_placed.min(MEANWHILE_BYTES / self.row_bytes.max(1));
        let (local, local_at) = (&local[..n_placed], &local_at[..n_placed]);
        let (mut gathered, mut read) = (None, Duration::ZERO);
        let mut gather = || {
            if gathered.is_none() {
                let start = Instant::now();
                let (tensor, rest) = (&self.tensor, &mut || ());
                gathered = Some(self.local.pull_at(tensor, local, local_at, before, kind, rest));
                read = start.elapsed();
            }
        };
        let pulled =
            self.remote.pull_overlapped(&self.tensor, missing, landing, kind, &mut gather)?;
        took.count(start.elapsed().saturating_sub(read), pulled);
        took.read += read;
        let n_placed = if gathered.transpose()?.is_some() { n_placed } else { 0 };
        spread(out, self.row_bytes, missing_at);
        Ok((pulled, n_placed))
    }
}

/// Times of a load, apart from copying rows, which is the rest.
#[derive(Clone, Copy, Default)]
struct LoadTimings {
    lookup: Duration,
    pull: Duration,
    read: Duration,
}

impl LoadTimings {
    /// Counts a pull, in which the source may have looked up rows and copied some.
    fn count(&mut self, pull: Duration, pulled: PullStats) {
        self.lookup += pulled.lookup;
        self.pull += pull.saturating_sub(pulled.lookup + pulled.copy);
    }

    /// Shares the whole time among batches.
    fn share(self, all: Duration, stats: &mut [LoadStats]) {
        let n = stats.len() as f64;
        for of in stats {
            of.seconds = all.as_secs_f64() / n;
            of.lookup_seconds = self.lookup.as_secs_f64() / n;
            of.pull_seconds = self.pull.as_secs_f64() / n;
            of.read_seconds = self.read.as_secs_f64() / n;
            let rest = all.saturating_sub(self.lookup + self.pull + self.read);
            of.copy_seconds = rest.as_secs_f64() / n;
        }
    }
}

/// Shares the pulled rows among batches: a row counts for the first batch that needs it. A source
/// with a tier pulls only rows that the tier lacks, and does not report their batch: they count for
/// the first batches.
fn count(counts: &[Counts], pulled: PullStats) -> Vec<LoadStats> {
    let (mut left, mut found) = (pulled.rows - pulled.ahead_rows, pulled.found);
    let row_bytes = pulled.bytes.checked_div(pulled.rows).unwrap_or(0);
    let mut stats: Vec<LoadStats> = Vec::with_capacity(counts.len());
    for of in counts {
        let asked = (of.missing - of.repeats) as u64;
        let travelled = left.min(asked);
        left -= travelled;
        let found = TierRows { together: of.repeats as u64, ..found.take(asked - travelled) };
        stats.push(LoadStats {
            local_rows: of.local as u64,
            hit_rows: (of.hot + of.missing) as u64 - travelled,
            remote_rows: travelled,
            remote_bytes: travelled * row_bytes,
            found,
            ..LoadStats::default()
        });
    }
    if let Some(first) = stats.first_mut() {
        let (rows, bytes) = (pulled.ahead_rows + left, (pulled.ahead_rows + left) * row_bytes);
        first.remote_rows += rows;
        first.remote_bytes += bytes;
        first.pulls = pulled.requests;
        first.ahead_rows = pulled.ahead_rows;
    }
    stats
}

impl std::fmt::Debug for BatchLoader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchLoader")
            .field("tensor", &self.tensor)
            .field("row_bytes", &self.row_bytes)
            .field("owned", &self.owned)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
