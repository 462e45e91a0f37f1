//! A tier that knows the future: Belady's MIN over the batches of a schedule.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use lodestore_cache::policy::NEVER;
use lodestore_cache::tier::Decision;
use lodestore_cache::{PolicySpec, Tier};
use lodestore_graph::NodeId;
use lodestore_graph::fork::PerProcess;
use lodestore_graph::lock::IgnorePoison;

use crate::buffer::RowBuffer;
use crate::error::ClientError;
use crate::load_stats::LoadStats;
use crate::loader::{BatchLoader, PullAt, Residency};
use crate::source::{PullKind, PullStats};

/// Most bytes of rows that are to be kept and that one pull has.
pub(crate) const FILL_BYTES: usize = 64 << 20;

/// One worker's tier under `oracle`, which keeps the rows that are needed soonest. It is filled by
/// the misses of batches, and before the first batch with the rows of soonest use, if they are
/// passed ([`OracleTier::filled`]).
///
/// The policy decides batch by batch, while several threads prepare batches. Each batch has its
/// turn, in the order of training, once to look up and once to move rows. It holds neither turn
/// while it pulls. So pulls overlap, and the hits of a batch follow from the schedule alone.
///
/// Memory: `n_slots` rows, and the lists of the policy. In a forked child, whose turn never comes,
/// calls fail with [`ClientError::Forked`].
pub struct OracleTier {
    state: PerProcess<Mutex<State>>,
    advanced: Condvar,
    held_bytes: AtomicU64,
    /// Look-ups of the tier before that of the first batch.
    n_fills: u32,
}

struct State {
    tier: Tier,
    /// The batch whose turn it is to look up.
    next_lookup: u32,
    /// The batch whose turn it is to move rows. It has looked up, or will.
    next_move: u32,
    /// The first batch that gave up its turn to look up; no later batch will look up.
    given_up: Option<u32>,
    /// Batches that failed before their turn to move rows, with the slots that they were to fill.
    failed: BTreeMap<u32, Vec<u32>>,
    /// Slots without their row, because its batch failed.
    holes: BTreeSet<u32>,
}

/// The right of one batch to use an [`OracleTier`] once: first to look up its rows, then to move
/// them.
///
/// A ticket that is dropped before the look-up ends the run: later batches fail instead of waiting
/// for ever. A ticket that is dropped before its rows have moved removes from the tier the rows
/// that it was to bring.
pub struct BatchTicket {
    tier: Arc<OracleTier>,
    index: u32,
    /// For each node of the batch, the later batch that needs it next.
    pub(crate) next_uses: Vec<u32>,
    stage: Stage,
    /// The remote nodes of the batch.
    ids: Vec<NodeId>,
    /// The slots that these nodes have or get.
    decision: Decision,
}

/// How far a batch has used its ticket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It has not looked up.
    Waits,
    /// It has looked up, and has moved no row.
    Decided,
    /// It has moved its rows, or failed.
    Ended,
}

/// Rows with which a tier is filled before the first batch.
#[derive(Clone, Copy, Debug)]
pub struct TierFill<'a> {
    /// Each node once, in the order of the batches that use it first, with the number of that batch
    /// as in [`BatchTicket::announce`].
    pub soonest: &'a [(NodeId, u32)],
    /// Most rows of one pull, which needs memory for them.
    pub most_rows: usize,
}

impl OracleTier {
    /// Returns a tier of at most `n_slots` rows for the batches `batches`, with nodes below
    /// `n_nodes`.
    ///
    /// Fails if the memory cannot be allocated.
    pub fn new(
        n_slots: usize,
        row_bytes: usize,
        n_nodes: u32,
        batches: &Range<u32>,
    ) -> Result<Self, ClientError> {
        Self::with_fills(n_slots, row_bytes, n_nodes, batches, 0)
    }

    /// Like [`OracleTier::new`], but filled with rows before the first batch. Also returns the
    /// stats of their pulls, which are VectorPulls.
    ///
    /// Fails with [`ClientError::Unpinned`] if the loader's remote source is not pinned.
    ///
    /// This does not increase the number of rows moved. No such row is evicted before it is used,
    /// since a row that is missed before then would precede it in [`TierFill::soonest`].
    pub fn filled(
        n_slots: usize,
        loader: &BatchLoader,
        n_nodes: u32,
        batches: &Range<u32>,
        fill: TierFill<'_>,
    ) -> Result<(Self, LoadStats), ClientError> {
        ClientError::check_pinned(loader.remote(), "a planned tier")?;
        let TierFill { soonest, most_rows } = fill;
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
        let state = State {
            tier,
            next_lookup: batches.start,
            next_move: batches.start,
            given_up: None,
            failed: BTreeMap::new(),
            holes: BTreeSet::new(),
        };
        let (state, held_bytes) = (PerProcess::with(Mutex::new(state)), AtomicU64::new(0));
        Ok(Self { state, advanced: Condvar::new(), held_bytes, n_fills })
    }

    /// Returns the ticket of batch `index`; [`BatchTicket::announce`] its uses before the batch is
    /// loaded.
    #[must_use]
    pub fn turn(self: &Arc<Self>, index: u32) -> BatchTicket {
        let (tier, next_uses, stage) = (Arc::clone(self), Vec::new(), Stage::Waits);
        BatchTicket {
            tier,
            index,
            next_uses,
            stage,
            ids: Vec::new(),
            decision: Decision::default(),
        }
    }

    /// Returns the most bytes of rows in the tier after a batch, including those in transit.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Locks the state. A poisoned lock is harmless: the ticket of a thread that panicked is
    /// dropped.
    fn lock(&self) -> Result<MutexGuard<'_, State>, ClientError> {
        let state = self.state.get().ok_or(ClientError::Forked { what: "planned tier" })?;
        Ok(state.lock().ignore_poison())
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.advanced.wait(state).ignore_poison()
    }
}

impl State {
    /// Skips batches that have failed before their turn to move rows.
    fn pass_failed(&mut self) {
        while let Some(slots) = self.failed.remove(&self.next_move) {
            self.holes.extend(slots);
            self.next_move += 1;
        }
    }
}

impl BatchTicket {
    /// Sets for each node of the batch the later batch that needs it next. Batches are numbered
    /// from the first of the tier, which is 0.
    pub fn announce(&mut self, mut next_uses: Vec<u32>) {
        for next in next_uses.iter_mut().filter(|next| **next != NEVER) {
            *next += self.tier.n_fills;
        }
        self.next_uses = next_uses;
    }

    /// Returns the remote nodes that were found in slots without their row.
    fn lost(&self, holes: &BTreeSet<u32>) -> Vec<usize> {
        if holes.is_empty() {
            return Vec::new();
        }
        let slots = self.decision.slots.iter().enumerate();
        slots.filter(|(_, slot)| holes.contains(slot)).map(|(i, _)| i).collect()
    }
}

impl Residency for BatchTicket {
    /// Waits until the earlier batches have looked up. A row that an earlier batch is still pulling
    /// has a slot; it is in place when this batch moves rows.
    fn look_up(&mut self, ids: &[NodeId], at: &[u32]) -> Result<&[u32], ClientError> {
        let tier = Arc::clone(&self.tier);
        let mut state = tier.lock()?;
        while state.next_lookup != self.index {
            let is_past = self.stage != Stage::Waits || state.next_lookup > self.index;
            if is_past || state.given_up.is_some_and(|first| first < self.index) {
                return Err(ClientError::Abandoned { batch: self.index });
            }
            state = tier.wait(state);
        }
        let next_use = |&at: &u32| self.next_uses.get(at as usize).copied();
        let next: Option<Vec<u32>> = at.iter().map(next_use).collect();
        state.tier.announce(&next.unwrap_or_default());
        state.tier.decide(bytemuck::cast_slice(ids), &mut self.decision);
        self.ids = ids.to_vec();
        self.stage = Stage::Decided;
        state.next_lookup += 1;
        let held = state.tier.n_resident() * state.tier.row_bytes();
        tier.held_bytes.fetch_max(held as u64, Ordering::Relaxed);
        drop(state);
        tier.advanced.notify_all();
        Ok(&self.decision.slots)
    }

    /// Waits until the earlier batches have moved their rows or failed.
    ///
    /// Each slot thus holds the same rows in turn as if every batch ended before the next began. No
    /// row is read before it has arrived, and none is overwritten before its last read. Rows that
    /// an earlier batch failed to bring are pulled with `pull`.
    fn move_rows(
        &mut self,
        at: &[u32],
        out: &mut [u8],
        pull: &mut PullAt<'_>,
    ) -> Result<PullStats, ClientError> {
        if self.stage != Stage::Decided {
            return Err(ClientError::Abandoned { batch: self.index });
        }
        let tier = Arc::clone(&self.tier);
        let mut state = tier.lock()?;
        while state.next_move != self.index {
            state = tier.wait(state);
        }
        let slots = &self.decision.slots;
        state.tier.copy_out(slots, at, out);
        let mut pulled = PullStats::default();
        let lost = self.lost(&state.holes);
        if !lost.is_empty() {
            // No other batch moves rows meanwhile, but look-ups may continue.
            drop(state);
            let ids: Vec<NodeId> = lost.iter().map(|&i| self.ids[i]).collect();
            let lost_at: Vec<u32> = lost.iter().map(|&i| at[i]).collect();
            pulled = pull(&ids, &lost_at, out)?;
            state = tier.lock()?;
        }
        let found = lost.into_iter().map(|i| (i, slots[i]));
        let kept = self.decision.placements.iter().map(|it| (it.position as usize, it.slot));
        let row_bytes = state.tier.row_bytes();
        for (i, slot) in found.chain(kept) {
            state.tier.fill(slot, &out[at[i] as usize * row_bytes..][..row_bytes]);
            if !state.holes.is_empty() {
                state.holes.remove(&slot);
            }
        }
        self.stage = Stage::Ended;
        state.next_move += 1;
        state.pass_failed();
        drop(state);
        tier.advanced.notify_all();
        Ok(pulled)
    }

    fn keeps_pulled_rows(&self) -> bool {
        true
    }

    /// Ends the run for later batches, or removes the rows that the batch was to bring: see
    /// [`BatchTicket`].
    fn give_up(&mut self) {
        let stage = std::mem::replace(&mut self.stage, Stage::Ended);
        if stage == Stage::Ended {
            return;
        }
        // A forked child gives up nothing: the turn belongs to its parent.
        let Ok(mut state) = self.tier.lock() else { return };
        if stage == Stage::Waits {
            let first = state.given_up.map_or(self.index, |first| first.min(self.index));
            state.given_up = Some(first);
        } else {
            let placements = &self.decision.placements;
            let is_there = |id: u32, slot| state.tier.directory().slot_of(id) == slot;
            let placed = placements.iter().map(|it| (self.ids[it.position as usize].0, it.slot));
            let there = placed.filter(|&(id, slot)| is_there(id, slot)).map(|(id, _)| id);
            let there: Vec<u32> = there.collect();
            state.tier.remove(&there);
            state.failed.insert(self.index, placements.iter().map(|it| it.slot).collect());
            state.pass_failed();
        }
        drop(state);
        self.tier.advanced.notify_all();
    }
}

impl Drop for BatchTicket {
    fn drop(&mut self) {
        self.give_up();
    }
}

#[cfg(test)]
mod tests;
