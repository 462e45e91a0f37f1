//! Rows kept by what is known of the future: Belady's MIN over the batches of a schedule.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use lodestore_cache::{NEVER, PolicySpec, Tier};
use lodestore_graph::NodeId;
use lodestore_graph::fork::PerProcess;

use crate::{BatchLoader, ClientError, LoadStats, PullKind, PullStats, RowBuffer};

/// Bytes of rows that filling the tier pulls at once at most.
const FILL_BYTES: usize = 64 << 20;

/// One worker's tier under `oracle`, which keeps the rows that are needed soonest. It is filled by
/// what batches miss, and before them with the rows of soonest use, if it is told of them
/// ([`PlannedTier::filled`]).
///
/// The policy decides batch by batch, and two threads may prepare batches at a time: each batch takes
/// its turn, in the order of training.
///
/// Memory: `n_slots` rows, and the policy's lists. Not for a forked child, whose turn never comes:
/// [`ClientError::Forked`].
pub struct PlannedTier {
    state: PerProcess<Mutex<State>>,
    turned: Condvar,
    held_bytes: AtomicU64,
    /// Look-ups of the tier before that of the first batch.
    n_fills: u32,
}

struct State {
    tier: Tier,
    /// The batch whose turn it is.
    next: u32,
    /// The first batch that gave up its turn: none after it will come.
    given_up: Option<u32>,
}

/// The right of one batch to use a [`PlannedTier`], once. Given up unused it ends the run: the batches
/// after it fail instead of waiting for ever.
pub struct Turn {
    tier: Arc<PlannedTier>,
    index: u32,
    /// For each node of the batch, the later batch that needs it next.
    pub(crate) next_uses: Vec<u32>,
    is_used: bool,
}

impl PlannedTier {
    /// A tier of at most `n_slots` rows for the batches `batches`, of nodes below `n_nodes`.
    ///
    /// Fails when the memory cannot be had.
    pub fn new(
        n_slots: usize,
        row_bytes: usize,
        n_nodes: u32,
        batches: &Range<u32>,
    ) -> Result<Self, ClientError> {
        Self::with_fills(n_slots, row_bytes, n_nodes, batches, 0)
    }

    /// The same with rows in it before the first batch, by VectorPulls of at most `most_rows` each, for
    /// which there is memory meanwhile: of `soonest`, which names each node once, in order of the
    /// batches that use it first, and these as in [`Turn::announce`]. Gives what the pulls took.
    ///
    /// The rows moved in all are not more for that: none of them gives way before it is used, since
    /// whatever is missed before then would have been named before it.
    pub fn filled(
        (n_slots, most_rows): (usize, usize),
        loader: &BatchLoader,
        n_nodes: u32,
        batches: &Range<u32>,
        soonest: &[(NodeId, u32)],
    ) -> Result<(Self, LoadStats), ClientError> {
        let row_bytes = loader.row_bytes();
        let most_rows = most_rows.min(FILL_BYTES / row_bytes.max(1)).max(1);
        let soonest = &soonest[..soonest.len().min(n_slots)];
        let n_fills = u32::try_from(soonest.len().div_ceil(most_rows)).unwrap_or(u32::MAX);
        let planned = Self::with_fills(n_slots, row_bytes, n_nodes, batches, n_fills)?;
        let mut state = planned.lock()?;
        let (tier, mut rows, mut misses) = (&mut state.tier, RowBuffer::default(), Vec::new());
        let mut pulled = PullStats::default();
        for soonest in soonest.chunks(most_rows) {
            let ids: Vec<NodeId> = soonest.iter().map(|(id, _)| *id).collect();
            let uses: Vec<u32> = soonest.iter().map(|(_, next)| next + n_fills).collect();
            rows.resize(ids.len() * row_bytes);
            let kind = PullKind::Vector;
            pulled += loader.remote().pull(loader.tensor(), &ids, rows.bytes_mut(), kind)?;
            let ids = bytemuck::cast_slice(&ids);
            tier.announce(&uses);
            tier.lookup(ids, rows.bytes_mut(), &mut misses);
            tier.admit(ids, rows.bytes(), &misses);
        }
        planned.held_bytes.store((tier.n_resident() * row_bytes) as u64, Ordering::Relaxed);
        drop(state);
        Ok((planned, LoadStats::from_pull(pulled)))
    }

    fn with_fills(
        n_slots: usize,
        row_bytes: usize,
        n_nodes: u32,
        batches: &Range<u32>,
        n_fills: u32,
    ) -> Result<Self, ClientError> {
        let n_slots = u32::try_from(n_slots).unwrap_or(u32::MAX).min(n_nodes);
        let n_batches = batches.end.saturating_sub(batches.start).saturating_add(n_fills);
        let tier = Tier::of_slots(n_slots, row_bytes, n_nodes, &PolicySpec::Oracle { n_batches })?;
        let state = State { tier, next: batches.start, given_up: None };
        let (state, held_bytes) = (PerProcess::with(Mutex::new(state)), AtomicU64::new(0));
        Ok(Self { state, turned: Condvar::new(), held_bytes, n_fills })
    }

    /// The turn of batch `index`; [`Turn::announce`] it before the batch is loaded.
    #[must_use]
    pub fn turn(self: &Arc<Self>, index: u32) -> Turn {
        Turn { tier: Arc::clone(self), index, next_uses: Vec::new(), is_used: false }
    }

    /// Most bytes of rows that were in it after a batch.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// A panic of another thread leaves a turn that was not used, which ends the run.
    fn lock(&self) -> Result<MutexGuard<'_, State>, ClientError> {
        let state = self.state.get().ok_or(ClientError::Forked { what: "planned tier" })?;
        Ok(state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Turn {
    /// Says for each node of the batch which later batch needs it next: numbers from that of the
    /// tier's first batch on, 0 for it.
    pub fn announce(&mut self, mut next_uses: Vec<u32>) {
        for next in next_uses.iter_mut().filter(|next| **next != NEVER) {
            *next += self.tier.n_fills;
        }
        self.next_uses = next_uses;
    }

    /// Waits for the batches before this one, and uses the tier.
    pub(crate) fn take<T>(
        &mut self,
        use_tier: impl FnOnce(&mut Tier, &[u32]) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let tier = Arc::clone(&self.tier);
        let mut state = tier.lock()?;
        while state.next != self.index {
            if self.is_used || state.next > self.index {
                return Err(ClientError::Abandoned { batch: self.index });
            }
            if state.given_up.is_some_and(|first| first < self.index) {
                return Err(ClientError::Abandoned { batch: self.index });
            }
            state = tier.turned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let used = use_tier(&mut state.tier, &self.next_uses);
        let held = state.tier.n_resident() * state.tier.row_bytes();
        tier.held_bytes.fetch_max(held as u64, Ordering::Relaxed);
        if used.is_ok() {
            state.next += 1;
            self.is_used = true;
        }
        drop(state);
        tier.turned.notify_all();
        used
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // A child gives up nothing: the turn is its parent's.
        if !self.is_used
            && let Ok(mut state) = self.tier.lock()
        {
            let first = state.given_up.map_or(self.index, |first| first.min(self.index));
            state.given_up = Some(first);
            drop(state);
            self.tier.turned.notify_all();
        }
    }
}

#[cfg(test)]
mod tests;
