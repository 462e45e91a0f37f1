//! MassiveGNN's buffer before a source: rows that the buffer wants are pulled with the misses of a
//! batch.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use lodestore_cache::Tier;
use lodestore_cache::directory::TierStats;
use lodestore_cache::slots::NO_SLOT;
use lodestore_graph::fork::PerProcess;
use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::{NodeId, PartitionBook};

use crate::buffer::scatter;
use crate::error::ClientError;
use crate::source::{PullKind, PullStats, RowSource, TensorInfo, TierRows, VersionTag};

/// Bytes of rows that are pulled together to fill the buffer.
const FILL_BYTES: usize = 8 << 20;

/// A source whose rows of one tensor pass through one worker's buffer. The policy of the buffer
/// decides which rows it wants (MassiveGNN, Algorithms 1 and 2). The buffer is filled before the
/// first batch. Rows that a round of eviction wants in place of its victims are pulled together
/// with the misses of the next batch.
///
/// The buffer serves a row as it was when it was pulled. Pin `inner`, or call
/// [`HaloBuffer::forget`] on the changed rows after each commit. One pull runs at a time; others
/// wait for it. In a forked child, which has no buffer, pulls fail with [`ClientError::Forked`].
pub struct HaloBuffer {
    inner: Arc<dyn RowSource>,
    tensor: TensorInfo,
    state: PerProcess<Mutex<State>>,
    n_bytes: AtomicU64,
}

struct State {
    tier: Tier,
    misses: Vec<u32>,
    wanted: Vec<u32>,
    /// [`lodestore_cache::Directory::wanted_revision`] of `wanted`.
    wanted_revision: Option<u64>,
    /// Ids that a batch misses, sorted, to search them for wanted ids.
    missing: Vec<u32>,
    /// The rows to pull: misses, then wanted rows.
    ids: Vec<u32>,
    rows: Vec<u8>,
    positions: Vec<u32>,
}

impl HaloBuffer {
    /// Puts `tier` before the rows of `tensor` from `inner`, filled with the rows that its policy
    /// wants; returns the stats of that pull. Other tensors bypass it.
    ///
    /// Fails if there is no such tensor, the tier is for rows of another length, or the pull fails.
    pub fn new(
        inner: Arc<dyn RowSource>,
        tensor: &str,
        tier: Tier,
    ) -> Result<(Self, PullStats), ClientError> {
        let tensor = inner.tensor(tensor)?;
        ClientError::check_tier(&tensor.name, tensor.row_bytes(), tier.row_bytes())?;
        let mut state = State {
            tier,
            misses: Vec::new(),
            wanted: Vec::new(),
            wanted_revision: None,
            missing: Vec::new(),
            ids: Vec::new(),
            rows: Vec::new(),
            positions: Vec::new(),
        };
        let pulled = state.fill(&*inner, &tensor)?;
        let n_bytes = AtomicU64::new(state.bytes());
        let state = PerProcess::with(Mutex::new(state));
        Ok((Self { inner, tensor, state, n_bytes }, pulled))
    }

    /// Removes changed rows from the buffer: later pulls request them again. Waits for the pull in
    /// flight.
    pub fn forget(&self, ids: &[NodeId]) {
        if let Ok(mut state) = self.lock() {
            state.tier.remove(bytemuck::cast_slice(ids));
        }
    }

    /// Returns the memory of the buffer after the last pull, in bytes: slots, scores, and reused
    /// memory for pulled rows. Does not block.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.n_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of rows that fit.
    #[must_use]
    pub fn n_slots(&self) -> u32 {
        self.lock().map_or(0, |state| state.tier.n_slots())
    }

    /// Returns the counters of the buffer, in rows.
    #[must_use]
    pub fn stats(&self) -> TierStats {
        self.lock().map_or_else(|_| TierStats::default(), |state| state.tier.stats())
    }

    /// Locks the buffer, also after a panic of another thread. The panic leaves a tier with worse
    /// decisions and no wrong row: a slot is found only if its row is in it.
    fn lock(&self) -> Result<MutexGuard<'_, State>, ClientError> {
        let state = self.state.get().ok_or(ClientError::Forked { what: "buffer" })?;
        Ok(state.lock().ignore_poison())
    }
}

impl State {
    fn bytes(&self) -> u64 {
        let Self { tier, misses, wanted, missing, ids, rows, positions, .. } = self;
        let lists = [misses, wanted, missing, ids, positions];
        let words: usize = lists.iter().map(|list| list.capacity()).sum();
        (tier.bytes() + words * size_of::<u32>() + rows.capacity()) as u64
    }

    /// Pulls the rows that the policy wants at first.
    fn fill(
        &mut self,
        inner: &dyn RowSource,
        tensor: &TensorInfo,
    ) -> Result<PullStats, ClientError> {
        let mut pulled = PullStats::default();
        let mut wanted = std::mem::take(&mut self.wanted);
        self.tier.directory().wanted(&mut wanted);
        for ids in wanted.chunks((FILL_BYTES / tensor.row_bytes()).max(1)) {
            self.ids.clear();
            self.ids.extend_from_slice(ids);
            pulled += self.pull(inner, tensor, PullKind::Vector, &mut || ())?;
            self.admit();
        }
        self.wanted = wanted;
        pulled.ahead_rows = pulled.rows;
        Ok(pulled)
    }

    /// Plans the pull of a batch: its misses, then other wanted rows. Returns the number of misses.
    fn plan(&mut self, ids: &[u32]) -> usize {
        self.ids.clear();
        self.ids.extend(self.misses.iter().map(|&position| ids[position as usize]));
        let n_missing = self.ids.len();
        let revision = Some(self.tier.directory().wanted_revision());
        if self.wanted_revision == revision {
            let directory = self.tier.directory();
            self.wanted.retain(|&id| directory.slot_of(id) == NO_SLOT);
        } else {
            self.tier.directory().wanted(&mut self.wanted);
            self.wanted_revision = revision;
        }
        if !self.wanted.is_empty() {
            self.missing.clear();
            self.missing.extend_from_slice(&self.ids);
            self.missing.sort_unstable();
            let is_new = |id: &&u32| self.missing.binary_search(id).is_err();
            self.ids.extend(self.wanted.iter().filter(is_new));
        }
        n_missing
    }

    fn pull(
        &mut self,
        inner: &dyn RowSource,
        tensor: &TensorInfo,
        kind: PullKind,
        work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        self.rows.resize(self.ids.len() * tensor.row_bytes(), 0);
        let ids = bytemuck::cast_slice(&self.ids);
        inner.pull_overlapped(&tensor.name, ids, &mut self.rows, kind, work)
    }

    /// Offers all pulled rows to the tier.
    fn admit(&mut self) {
        self.positions.clear();
        self.positions.extend(0..self.ids.len() as u32);
        self.tier.admit(&self.ids, &self.rows, &self.positions);
    }
}

impl RowSource for HaloBuffer {
    fn book(&self) -> &PartitionBook {
        self.inner.book()
    }

    fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError> {
        self.inner.tensor(name)
    }

    fn pinned_version(&self) -> Option<VersionTag> {
        self.inner.pinned_version()
    }

    /// Pulls like any source. The stats count the rows that the buffer lacked or wanted.
    fn pull_overlapped(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
        work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        if tensor != self.tensor.name {
            return self.inner.pull_overlapped(tensor, ids, out, kind, work);
        }
        let row_bytes = self.tensor.row_bytes();
        ClientError::check_buffer(tensor, ids.len(), row_bytes, out.len())?;
        let mut state = self.lock()?;
        let (state, ids) = (&mut *state, bytemuck::cast_slice(ids));
        let start = Instant::now();
        state.tier.lookup(ids, out, &mut state.misses);
        let n_missing = state.plan(ids);
        let found = TierRows { buffer: (ids.len() - n_missing) as u64, ..TierRows::default() };
        let stats = PullStats { found, lookup: start.elapsed(), ..PullStats::default() };
        if state.ids.is_empty() {
            return Ok(stats);
        }
        let mut pulled = state.pull(&*self.inner, &self.tensor, kind, work)?;
        pulled.ahead_rows = pulled.rows.saturating_sub(n_missing as u64);
        pulled += stats;
        let start = Instant::now();
        scatter(&state.rows[..n_missing * row_bytes], row_bytes, &state.misses, out);
        state.admit();
        self.n_bytes.store(state.bytes(), Ordering::Relaxed);
        pulled.copy += start.elapsed();
        Ok(pulled)
    }
}

#[cfg(test)]
mod tests;
