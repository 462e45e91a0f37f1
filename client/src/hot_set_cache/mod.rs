//! The steady cache of RapidGNN (section 4.6): the hot set of one epoch serves while that of the
//! next is pulled in the background.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        mpsc::{Receiver, Sender, channel},
    },
    thread::{Scope, ScopedJoinHandle, sleep},
    time::Duration,
};

use lodestore_cache::double_buffer::DoubleBuffer;
use lodestore_cache::hot_set::HotSet;
use lodestore_cache::slots::NO_SLOT;
use lodestore_graph::NodeId;
use lodestore_graph::fork::Generation;
use lodestore_graph::lock::IgnorePoison;
use serde::{Deserialize, Serialize};

use crate::buffer::spread;
use crate::error::ClientError;
use crate::load_stats::LoadStats;
use crate::loader::{BatchLoader, PullAt, Residency};
use crate::oracle_tier::FILL_BYTES;
use crate::source::{PullKind, PullStats};

/// Chooses the hot set of an epoch: distinct ids, ascending.
pub type ChooseHotSet<'a> = dyn Fn(u32) -> Result<Vec<NodeId>, ClientError> + Send + Sync + 'a;

/// Hot sets of one worker, epoch after epoch, in two buffers.
///
/// Memory: 2·n_hot·d bytes of rows (d: bytes of a row). A set is built only once the buffer before
/// the current one is free again.
pub struct HotSetCache<'scope> {
    shared: Arc<HotSetBuffers>,
    builder: Option<(Sender<u32>, ScopedJoinHandle<'scope, ()>)>,
    n_epochs: u32,
    /// The process whose thread builds sets.
    process: Generation,
}

/// Counters of the steady cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HotSetStats {
    /// Rows copied from the previous set instead of pulled again.
    pub kept_rows: u64,
    /// Epochs whose first batch was requested before their set was ready, so that an older set
    /// served it.
    pub late: u64,
    /// Most bytes of rows that both buffers held at one time.
    pub peak_bytes: u64,
}

/// State shared by the callers and the builder.
struct HotSetBuffers {
    buffers: DoubleBuffer,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Epoch of the callers.
    epoch: u32,
    /// The previous set; its buffer is free when its last reader ends.
    retired: Weak<HotSet>,
    error: Option<ClientError>,
    stats: HotSetStats,
    /// Each set built so far: its epoch, and the stats of its pull.
    pulled: Vec<(u32, LoadStats)>,
}

impl<'scope> HotSetCache<'scope> {
    /// Builds the set of the first of `epochs`, and starts to build the next one.
    ///
    /// `choose` names the rows of each epoch; `loader` is the worker's, for its remote source. A
    /// set copies rows of the previous one, so all rows have the version that the source is pinned
    /// to.
    ///
    /// # Errors
    /// [`ClientError::Unpinned`] if the source is not pinned, and the errors of a pull.
    pub fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        loader: &BatchLoader,
        epochs: Range<u32>,
        choose: Arc<ChooseHotSet<'scope>>,
    ) -> Result<Self, ClientError> {
        ClientError::check_pinned(loader.remote(), "a steady cache")?;
        let none = HotSet::empty(loader.row_bytes())?;
        let Range { start: first, end: n_epochs } = epochs;
        let built = build(loader, &choose(first)?, &none)?;
        let mut state = State { epoch: first, ..State::default() };
        state.count(first, &built, &none);
        let buffers = DoubleBuffer::new(built.set);
        let shared = Arc::new(HotSetBuffers { buffers, state: Mutex::new(state) });
        let builder = (n_epochs.saturating_sub(first) > 1).then(|| {
            let (requests, read_buffer) = channel();
            // Cannot fail: the receiver exists.
            let _ = requests.send(first + 1);
            let (shared, loader) = (Arc::clone(&shared), loader.clone());
            (requests, scope.spawn(move || build_ahead(&shared, &loader, &*choose, &read_buffer)))
        });
        Ok(Self { shared, builder, n_epochs, process: Generation::now() })
    }

    /// Returns the set that serves `epoch`. The first call of an epoch swaps the buffers if the
    /// second one is ready; otherwise the old set continues to serve until the new one is ready.
    ///
    /// Fails if a set could not be built, and in a forked child, which builds none.
    pub fn for_epoch(&self, epoch: u32) -> Result<Arc<HotSet>, ClientError> {
        self.check_process()?;
        let mut state = self.shared.lock();
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        while state.epoch < epoch {
            state.epoch += 1;
            let before = self.shared.buffers.current();
            if self.shared.buffers.swap() {
                state.retired = Arc::downgrade(&before);
            }
            self.request(state.epoch + 1);
        }
        Ok(self.shared.buffers.current())
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn stats(&self) -> HotSetStats {
        if self.check_process().is_err() {
            return HotSetStats::default();
        }
        let late = self.shared.buffers.late_swaps();
        HotSetStats { late, ..self.shared.lock().stats }
    }

    /// Returns the stats of the VectorPulls for the sets up to and including `epoch`, as far as
    /// built.
    #[must_use]
    pub fn pulled_until(&self, epoch: u32) -> LoadStats {
        let mut sum = LoadStats::default();
        if self.check_process().is_err() {
            return sum;
        }
        for &(_, pulled) in self.shared.lock().pulled.iter().filter(|(of, _)| *of <= epoch) {
            sum += pulled;
        }
        sum
    }

    /// Fails in a forked child, without touching locks that a thread of its parent may hold.
    fn check_process(&self) -> Result<(), ClientError> {
        let what = "steady cache";
        if self.process.is_current() { Ok(()) } else { Err(ClientError::Forked { what }) }
    }

    fn request(&self, epoch: u32) {
        if let Some((requests, _)) = self.builder.as_ref().filter(|_| epoch < self.n_epochs) {
            // The builder is gone only after an error, which is in the state.
            let _ = requests.send(epoch);
        }
    }
}

impl Drop for HotSetCache<'_> {
    /// Waits for the builder, which ends after its current pull. A forked child has none.
    fn drop(&mut self) {
        if self.check_process().is_err() {
            std::mem::forget((self.builder.take(), Arc::clone(&self.shared)));
            return;
        }
        if let Some((requests, thread)) = self.builder.take() {
            drop(requests);
            // The thread has logged a panic; the scope would report it again.
            let _ = thread.join();
        }
    }
}

/// One batch's access to the rows of a hot set.
pub struct HotRows {
    set: Arc<HotSet>,
    /// The slot of each remote node of the batch.
    slots: Vec<u32>,
}

impl HotRows {
    /// Returns the access of one batch to `set`.
    #[must_use]
    pub fn new(set: Arc<HotSet>) -> Self {
        Self { set, slots: Vec::new() }
    }
}

impl Residency for HotRows {
    fn look_up(&mut self, ids: &[NodeId], _at: &[u32]) -> Result<&[u32], ClientError> {
        self.slots.clear();
        self.set.find(bytemuck::cast_slice(ids), &mut self.slots);
        Ok(&self.slots)
    }

    fn move_rows(
        &mut self,
        at: &[u32],
        out: &mut [u8],
        _pull: &mut PullAt<'_>,
    ) -> Result<PullStats, ClientError> {
        let row_bytes = self.set.row_bytes();
        for (&slot, &at) in self.slots.iter().zip(at).filter(|(slot, _)| **slot != NO_SLOT) {
            out[at as usize * row_bytes..][..row_bytes].copy_from_slice(self.set.row(slot));
        }
        Ok(PullStats::default())
    }

    fn keeps_pulled_rows(&self) -> bool {
        false
    }
}

/// A hot set, and the stats of building it.
struct Built {
    set: HotSet,
    pulled: LoadStats,
    kept_rows: u64,
}

impl State {
    fn count(&mut self, epoch: u32, built: &Built, other: &HotSet) {
        self.pulled.push((epoch, built.pulled));
        self.stats.kept_rows += built.kept_rows;
        let held = row_bytes_of(&built.set) + row_bytes_of(other);
        self.stats.peak_bytes = self.stats.peak_bytes.max(held);
    }
}

impl HotSetBuffers {
    /// Locks the state, also after a panic of another thread: each change of the state is complete
    /// in itself.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().ignore_poison()
    }

    /// Waits for readers of the previous set. A batch that is being loaded may read it, and a third
    /// set would break the memory bound. Such a load ends soon.
    fn wait_for_a_free_buffer(&self) {
        let retired = self.lock().retired.clone();
        while retired.strong_count() > 0 {
            sleep(Duration::from_millis(1));
        }
    }
}

/// Runs the builder thread: builds one set per request, and publishes it once it is complete.
fn build_ahead(
    shared: &HotSetBuffers,
    loader: &BatchLoader,
    choose: &ChooseHotSet<'_>,
    requests: &Receiver<u32>,
) {
    while let Ok(epoch) = requests.recv() {
        // An epoch that ended before its set was started needs none.
        if epoch < shared.lock().epoch {
            continue;
        }
        shared.wait_for_a_free_buffer();
        let current = shared.buffers.current();
        let built = || choose(epoch).and_then(|ids| build(loader, &ids, &current));
        let built = catch_unwind(AssertUnwindSafe(built))
            .unwrap_or(Err(ClientError::Panicked { thread: "hot set" }));
        let mut state = shared.lock();
        match built {
            Ok(built) => {
                state.count(epoch, &built, &current);
                // Callers change epochs under the same lock.
                if epoch > state.epoch {
                    shared.buffers.publish(built.set);
                } else {
                    shared.buffers.replace(built.set);
                    state.retired = Arc::downgrade(&current);
                }
            }
            Err(error) => {
                state.error = Some(error);
                return;
            }
        }
    }
}

fn row_bytes_of(set: &HotSet) -> u64 {
    (set.n_rows() * set.row_bytes()) as u64
}

/// Returns the set of `ids`: rows that `previous` has are copied, the others come by VectorPulls.
fn build(loader: &BatchLoader, ids: &[NodeId], previous: &HotSet) -> Result<Built, ClientError> {
    let row_bytes = loader.row_bytes();
    let (mut missing, mut missing_at) = (Vec::new(), Vec::new());
    for (position, &id) in (0u32..).zip(ids) {
        if previous.get(id.0).is_none() {
            missing.push(id);
            missing_at.push(position);
        }
    }
    let mut pulled = LoadStats::default();
    let kept_rows = (ids.len() - missing.len()) as u64;
    let ids = ids.iter().map(|id| id.0).collect();
    let set = HotSet::build(ids, row_bytes, |ids, rows| {
        pulled = LoadStats::from_pull(pull_missing(loader, &missing, &missing_at, rows)?);
        for (&id, row) in ids.iter().zip(rows.chunks_exact_mut(row_bytes)) {
            if let Some(kept) = previous.get(id) {
                row.copy_from_slice(kept);
            }
        }
        Ok::<(), ClientError>(())
    })?;
    Ok(Built { set, pulled, kept_rows })
}

/// Pulls the rows of `missing` by VectorPulls, and puts row `i` at `missing_at[i]` of `rows`.
///
/// Other rows are overwritten. The pull is received into the last rows and spread from there, so
/// that a set needs no second copy of its missing rows.
fn pull_missing(
    loader: &BatchLoader,
    missing: &[NodeId],
    missing_at: &[u32],
    rows: &mut [u8],
) -> Result<PullStats, ClientError> {
    if missing.is_empty() {
        return Ok(PullStats::default());
    }
    let row_bytes = loader.row_bytes();
    let landing = rows.len() - missing.len() * row_bytes;
    let n_piece = (FILL_BYTES / row_bytes.max(1)).max(1);
    let mut pulled = PullStats::default();
    for (ids, out) in missing.chunks(n_piece).zip(rows[landing..].chunks_mut(n_piece * row_bytes)) {
        pulled += loader.remote().pull(loader.tensor(), ids, out, PullKind::Vector)?;
    }
    spread(rows, loader.row_bytes(), missing_at);
    Ok(pulled)
}

impl std::fmt::Debug for HotSetCache<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HotSetCache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
