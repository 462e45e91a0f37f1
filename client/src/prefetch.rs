//! Batches prepared ahead of the trainer: RapidGNN's rolling prefetch (sections 3, 4.4 and 4.7).
//!
//! A claim decides who prepares a batch. The thread in the background and the trainer take
//! batches in order from one counter; the trainer that finds its batch unclaimed prepares it
//! itself, by the default path, so it never waits for work that nobody has begun.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{Scope, ScopedJoinHandle},
    time::Instant,
};

use lodestore_graph::{NodeId, batch::Batch};

use crate::{BatchLoader, ClientError, Kept, LoadStats, RowBuffer};

/// The batches of one worker, in the order of training.
pub trait BatchSource: Send + Sync {
    /// Number of batches in all epochs together.
    fn n_batches(&self) -> u32;

    /// Batch `index`, below `n_batches`, and what is kept for it.
    ///
    /// Every index from the first on is asked for once, in order, though not always by the same
    /// thread.
    fn batch(&self, index: u32) -> Result<(Batch, Kept), ClientError>;
}

/// A window of at most Q batches that are ready or being loaded, filled by its own thread. Batches
/// and empty buffers go through bounded channels, which are rings of slots without a lock while
/// neither end waits.
///
/// Memory: the window holds at most Q·m_max·d bytes of rows (m_max: input nodes of the largest
/// batch, d: bytes of a row), because Q buffers exist for it; the trainer's own batch is one more.
pub struct Prefetcher<'scope> {
    source: Arc<dyn BatchSource + 'scope>,
    loader: BatchLoader,
    n_batches: u32,
    position: u32,
    shared: Arc<Shared>,
    stats: PrefetchStats,
    background: Option<Background<'scope>>,
}

/// One batch with the rows of its input nodes.
#[derive(Debug, Default)]
pub struct PreparedBatch {
    /// Ids and blocks.
    pub batch: Batch,
    /// One row per node of `batch.nodes`, in that order.
    pub rows: RowBuffer,
    /// What loading the rows took.
    pub load: LoadStats,
    /// Time to sample or read the batch.
    pub sample_seconds: f64,
    /// How the trainer met it.
    pub met: Met,
    /// Time in which the trainer had no batch before this one came.
    pub wait_seconds: f64,
}

/// How a trainer met a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Met {
    /// It lay ready.
    Ready,
    /// It was being prepared.
    Waited,
    /// Nobody had begun it: the trainer prepared it itself.
    #[default]
    DefaultPath,
}

/// How the trainer met its batches, and what the window held.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PrefetchStats {
    /// Batches that lay ready.
    pub ready: u64,
    /// Batches that were being prepared, so that the trainer had to wait.
    pub waited: u64,
    /// Batches that the trainer prepared itself, by the default path.
    pub default_path: u64,
    /// Seconds in which the trainer had no batch: waits and default paths.
    pub wait_seconds: f64,
    /// Most bytes of rows that the window held at once.
    pub peak_window_bytes: u64,
    /// Input nodes of the largest batch so far: m_max.
    pub max_nodes: u64,
}

/// What the two threads share: the claim, and what the window holds.
#[derive(Debug, Default)]
struct Shared {
    next: AtomicU32,
    window_bytes: AtomicU64,
    peak_window_bytes: AtomicU64,
    max_nodes: AtomicU64,
}

#[derive(Debug)]
struct Background<'scope> {
    thread: ScopedJoinHandle<'scope, ()>,
    ready: Receiver<Ready>,
    empty: SyncSender<RowBuffer>,
}

/// A prepared batch and its index, or why there is none.
type Ready = Result<(u32, PreparedBatch), ClientError>;

impl<'scope> Prefetcher<'scope> {
    /// Starts to prepare the batches of `source` from number `first` on, at most `window` ahead.
    ///
    /// With a window of 0 there is no thread, and every batch takes the default path.
    pub fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        source: Arc<dyn BatchSource + 'scope>,
        loader: BatchLoader,
        window: usize,
        first: u32,
    ) -> Self {
        let shared = Arc::new(Shared { next: AtomicU32::new(first), ..Shared::default() });
        let n_batches = source.n_batches();
        let background = (window > 0 && n_batches > first).then(|| {
            let (empty, buffers) = sync_channel(window + 1);
            for _ in 0..window {
                // Cannot fail: the receiver lives, and there is room for one more than these.
                let _ = empty.try_send(RowBuffer::default());
            }
            let (done, ready) = sync_channel(window);
            let (shared, loader) = (Arc::clone(&shared), loader.clone());
            let source = Arc::clone(&source);
            let thread =
                scope.spawn(move || prepare_ahead(&*source, loader, &shared, &buffers, &done));
            Background { thread, ready, empty }
        });
        let stats = PrefetchStats::default();
        Self { source, loader, n_batches, position: first, shared, stats, background }
    }

    /// The next batch, or `None` after the last. `spent` gives back the memory of the batch
    /// before it (or none).
    ///
    /// After an error the run is over: later calls return the end.
    pub fn next(&mut self, spent: RowBuffer) -> Result<Option<PreparedBatch>, ClientError> {
        if self.position >= self.n_batches {
            return Ok(None);
        }
        let index = self.position;
        self.position += 1;
        let start = Instant::now();
        let claimed = self.shared.claim(index);
        let prepared = match self.background.as_mut() {
            Some(background) if !claimed => {
                background.take(index, spent, &self.shared, &mut self.stats)
            }
            _ => {
                self.stats.default_path += 1;
                prepare(&*self.source, &mut self.loader, index, spent, |_| ())
            }
        };
        let mut prepared = prepared.inspect_err(|_| self.position = self.n_batches)?;
        self.shared.saw(&prepared.batch.nodes);
        prepared.wait_seconds = start.elapsed().as_secs_f64();
        self.stats.wait_seconds += prepared.wait_seconds;
        Ok(Some(prepared))
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> PrefetchStats {
        PrefetchStats {
            peak_window_bytes: self.shared.peak_window_bytes.load(Ordering::Relaxed),
            max_nodes: self.shared.max_nodes.load(Ordering::Relaxed),
            ..self.stats
        }
    }
}

impl Drop for Prefetcher<'_> {
    /// Waits for the thread, which ends after the pull that it is in.
    fn drop(&mut self) {
        if let Some(Background { thread, ready, empty }) = self.background.take() {
            drop((ready, empty));
            // A panic was logged by its thread; the scope would report it once more.
            let _ = thread.join();
        }
    }
}

impl Background<'_> {
    /// Waits for batch `index`, which the thread has claimed, and frees its place in the window.
    fn take(
        &mut self,
        index: u32,
        spent: RowBuffer,
        shared: &Shared,
        stats: &mut PrefetchStats,
    ) -> Result<PreparedBatch, ClientError> {
        let (received, met) = match self.ready.try_recv() {
            Ok(received) => {
                stats.ready += 1;
                (received, Met::Ready)
            }
            Err(_) => {
                stats.waited += 1;
                let gone = |_| ClientError::Panicked { thread: "prefetch" };
                (self.ready.recv().map_err(gone)?, Met::Waited)
            }
        };
        let (found, prepared) = received?;
        debug_assert_eq!(found, index, "claims and the window are both in order");
        let n_bytes = prepared.rows.bytes().len() as u64;
        shared.window_bytes.fetch_sub(n_bytes, Ordering::Relaxed);
        // Only now: a buffer given back before would be one more than the window may have. The
        // thread may have ended after its last batch, and then nobody needs the buffer.
        let _ = self.empty.try_send(spent);
        Ok(PreparedBatch { met, ..prepared })
    }
}

impl Shared {
    /// Takes batch `index` if nobody has it.
    fn claim(&self, index: u32) -> bool {
        let claim = (index, index + 1);
        self.next.compare_exchange(claim.0, claim.1, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Takes the first batch that nobody has.
    fn claim_next(&self, n_batches: u32) -> Option<u32> {
        let step = |next| (next < n_batches).then_some(next + 1);
        self.next.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).ok()
    }

    /// Counts `n_bytes` more rows in the window.
    fn grow(&self, n_bytes: u64) {
        let held = self.window_bytes.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes;
        self.peak_window_bytes.fetch_max(held, Ordering::Relaxed);
    }

    fn saw(&self, nodes: &[NodeId]) {
        self.max_nodes.fetch_max(nodes.len() as u64, Ordering::Relaxed);
    }
}

/// The background thread: a free buffer first, so that what is claimed has its place.
fn prepare_ahead(
    source: &dyn BatchSource,
    mut loader: BatchLoader,
    shared: &Shared,
    buffers: &Receiver<RowBuffer>,
    done: &SyncSender<Ready>,
) {
    while let Ok(buffer) = buffers.recv() {
        let Some(index) = shared.claim_next(source.n_batches()) else { return };
        let ready = prepare(source, &mut loader, index, buffer, |bytes| shared.grow(bytes));
        let failed = ready.is_err();
        if done.send(ready.map(|batch| (index, batch))).is_err() || failed {
            return;
        }
    }
}

/// Gets batch `index` and its rows; `about_to_load` hears how many bytes they take.
fn prepare(
    source: &dyn BatchSource,
    loader: &mut BatchLoader,
    index: u32,
    mut rows: RowBuffer,
    about_to_load: impl FnOnce(u64),
) -> Result<PreparedBatch, ClientError> {
    let start = Instant::now();
    let (batch, kept) = source.batch(index)?;
    let sample_seconds = start.elapsed().as_secs_f64();
    let n_bytes = batch.nodes.len().saturating_mul(loader.row_bytes());
    about_to_load(n_bytes as u64);
    rows.resize(n_bytes);
    let load = loader.load_kept(&batch.nodes, kept, rows.bytes_mut())?;
    Ok(PreparedBatch { batch, rows, load, sample_seconds, ..PreparedBatch::default() })
}

#[cfg(test)]
mod tests;
