//! Batches prepared ahead of the trainer: RapidGNN's rolling prefetch (sections 3, 4.4 and 4.7).
//!
//! A claim decides which thread prepares a batch. The background thread and the trainer claim
//! batches in order from one counter. If the trainer finds its batch unclaimed, it prepares the
//! batch itself, by the default path, so it never waits for work that has not started.
//!
//! Batches are claimed, sampled and, if their order matters, loaded under one lock. Tiers decide by
//! the order of pulls, and the same run must make the same decisions.

mod ahead;
mod rows;

use std::{
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{Scope, ScopedJoinHandle},
    time::Instant,
};

use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::{NodeId, batch::Batch, fork::Generation};
use serde::{Deserialize, Serialize};

use crate::error::ClientError;
use crate::load_stats::LoadStats;
use crate::loader::{BatchLoader, RowResidency};
use crate::source::PullKind;
use ahead::{Coming, Group, Preparer, Ready};
pub use rows::BatchRows;
use rows::{Free, Held, Memory};

/// The batches of one worker, in the order of training.
pub trait BatchSource: Send + Sync {
    /// Returns the number of batches of all epochs.
    fn n_batches(&self) -> u32;

    /// Returns batch `index`, below `n_batches`, and the rows that are kept for it.
    ///
    /// Called once for every index from the first on, in order, but not always by the same thread.
    /// A job that needs a [`crate::oracle_tier::BatchTicket`] takes it before anything can fail, so
    /// that later batches learn of the end.
    fn batch(&self, index: u32) -> Result<(Batch, RowResidency), ClientError>;

    /// Returns the end of the batches that may be loaded together with batch `index`: the end of
    /// its epoch.
    fn end_of_epoch(&self, index: u32) -> u32;
}

/// Loads the rows of a batch's nodes in a form of the caller; returns `None`, without loading any,
/// if they are to be loaded as bytes.
pub type TakeRows<'a> =
    dyn FnMut(&BatchLoader, &[NodeId]) -> Result<Option<LoadStats>, ClientError> + 'a;

/// How far ahead batches are prepared, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Batches that are ready or being loaded: Q in the paper.
    pub n_batches: usize,
    /// Most batches that are loaded together, so that a row that several of them need is read once,
    /// and adjacent rows of different batches are read together. At most half of the window is.
    pub together: usize,
}

impl Window {
    /// Returns a window whose batches are loaded one by one.
    #[must_use]
    pub fn one_by_one(n_batches: usize) -> Self {
        Self { n_batches, together: 1 }
    }

    /// Returns a window that loads as many batches together as it allows.
    #[must_use]
    pub fn joined(n_batches: usize) -> Self {
        Self { n_batches, together: n_batches / 2 }
    }

    /// Returns the window for a run of `n_batches`, of which there is at least one.
    fn clamped(self, n_batches: u32) -> Shape {
        let clamp = |n: usize, most: u32| u32::try_from(n).unwrap_or(u32::MAX).clamp(1, most);
        let places = clamp(self.n_batches, n_batches);
        // With the batch that the trainer holds.
        let all = places.saturating_add(1);
        let together = clamp(self.together, all / 2);
        Shape { places, together, memories: all / together }
    }
}

/// The dimensions of a window.
#[derive(Clone, Copy)]
struct Shape {
    /// Batches in the window.
    places: u32,
    /// Most batches that are loaded together, into one memory.
    together: u32,
    /// Number of memories.
    memories: u32,
}

/// A window of at most Q batches that are ready or being loaded, filled by its own thread. Batches
/// and memory pass through bounded channels, which are rings of slots without a lock while neither
/// end waits.
///
/// Memory: at most (Q + 1)·m_max·d bytes of rows, for the window and the batch that the trainer
/// holds. Here m_max is the number of input nodes of the largest batch, and d the bytes of a row. A
/// batch that the trainer prepares itself is one more, and its memory is reused for the next such
/// batch. So the bound is (Q + 2)·m_max·d, or m_max·d without a window. The trainer must drop a
/// batch before it takes the next.
pub struct Prefetcher<'scope> {
    source: Arc<dyn BatchSource + 'scope>,
    loader: BatchLoader,
    n_batches: u32,
    position: u32,
    shared: Arc<ClaimState>,
    stats: PrefetchStats,
    /// Memory of batches that the trainer prepares itself.
    own: (SyncSender<Free>, Receiver<Free>),
    background: Option<Background<'scope>>,
    /// The process whose thread prepares batches.
    process: Generation,
}

/// One batch with the rows of its input nodes.
#[derive(Debug, Default)]
pub struct PreparedBatch {
    /// Ids and blocks.
    pub batch: Batch,
    /// One row per node of `batch.nodes`, in that order.
    pub rows: BatchRows,
    /// Times of loading the rows.
    pub load: LoadStats,
    /// Time to sample or read the batch.
    pub sample_seconds: f64,
    /// The state in which the trainer found it.
    pub met: BatchReadiness,
    /// Time in which the trainer had no batch, until this one arrived.
    pub wait_seconds: f64,
}

/// The state in which a trainer finds a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BatchReadiness {
    /// It was ready.
    Ready,
    /// It was being prepared.
    Waited,
    /// No thread had started it: the trainer prepared it itself.
    #[default]
    DefaultPath,
}

/// The states in which the trainer found its batches, and the size of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PrefetchStats {
    /// Batches that were ready.
    pub ready: u64,
    /// Batches that were being prepared, so that the trainer waited.
    pub waited: u64,
    /// Batches that the trainer prepared itself, by the default path.
    pub default_path: u64,
    /// Seconds in which the trainer had no batch: waits and default paths.
    pub wait_seconds: f64,
    /// Most bytes that the memory of batches had at one time: in the window, held by the trainer,
    /// prepared by it, and kept for the next batch.
    pub peak_bytes: u64,
    /// Input nodes of the largest batch so far: m_max.
    pub max_nodes: u64,
}

/// State shared by the threads: the claim, and the bytes of their memory.
#[derive(Debug, Default)]
struct ClaimState {
    /// First unclaimed batch. Changed only under `order`.
    next: AtomicU32,
    order: Mutex<()>,
    /// The batch that the trainer requested last.
    requested: AtomicU32,
    is_over: AtomicBool,
    max_nodes: AtomicU64,
    held: Arc<Held>,
}

#[derive(Debug)]
struct Background<'scope> {
    thread: ScopedJoinHandle<'scope, ()>,
    /// Groups of batches in the order of training.
    coming: Receiver<Coming>,
    /// The group whose batches are being taken.
    group: Option<Coming>,
    free: SyncSender<Free>,
}

impl<'scope> Prefetcher<'scope> {
    /// Starts to prepare the batches of `source` from number `first` on, at most `window` ahead.
    ///
    /// With a window of 0 there is no thread, and every batch takes the default path.
    pub fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        source: Arc<dyn BatchSource + 'scope>,
        loader: BatchLoader,
        window: Window,
        first: u32,
    ) -> Self {
        let (next, requested) = (AtomicU32::new(first), AtomicU32::new(first));
        let shared = Arc::new(ClaimState { next, requested, ..ClaimState::default() });
        let n_batches = source.n_batches();
        let left = n_batches.saturating_sub(first);
        let background = (window.n_batches > 0 && left > 0).then(|| {
            let window = window.clamped(left);
            // Room for everything that may be sent: places, memories, the end.
            let (free, heard) = sync_channel(window.places as usize + window.memories as usize + 1);
            for _ in 0..window.memories {
                let _ = free.try_send(Free::Memory(Memory::new(&shared.held)));
            }
            let (sender, coming) = sync_channel(window.places as usize);
            let (shared, loader, home) = (Arc::clone(&shared), loader.clone(), free.clone());
            let source = Arc::clone(&source);
            let thread = scope.spawn(move || {
                let (source, shared) = (&*source, &*shared);
                let (home, coming) = (&home, &sender);
                Preparer { source, shared, window, home, coming }.run(loader, &heard);
            });
            Background { thread, coming, group: None, free }
        });
        let (stats, own, process) = (PrefetchStats::default(), sync_channel(1), Generation::now());
        Self { source, loader, n_batches, position: first, shared, stats, own, background, process }
    }

    /// Returns the next batch, or `None` after the last.
    ///
    /// Memory of batches that the caller keeps is not reused. After an error the run is over: later
    /// calls return `None`. A forked child has no thread that prepares batches: there every call
    /// fails with [`ClientError::Forked`].
    pub fn next_batch(&mut self) -> Result<Option<PreparedBatch>, ClientError> {
        self.next_batch_or(&mut |_, _| Ok(None))
    }

    /// Like [`Prefetcher::next_batch`]. If the batch takes the default path, and none of its rows
    /// is kept, its rows are offered to `take` first. If `take` returns the stats of loading them,
    /// the batch has no rows.
    pub fn next_batch_or(
        &mut self,
        take: &mut TakeRows<'_>,
    ) -> Result<Option<PreparedBatch>, ClientError> {
        if !self.process.is_current() {
            return Err(ClientError::Forked { what: "prefetcher" });
        }
        if self.position >= self.n_batches {
            return Ok(None);
        }
        let index = self.position;
        self.position += 1;
        let start = Instant::now();
        let shared = Arc::clone(&self.shared);
        shared.requested.store(index, Ordering::Relaxed);
        let prepared = match (self.background.as_mut(), shared.claim(index)) {
            (Some(background), None) => background.take(&mut self.stats),
            (_, claim) => self.prepare_now(index, claim, take),
        };
        let (found, mut prepared) = prepared.inspect_err(|_| self.position = self.n_batches)?;
        debug_assert_eq!(found, index, "claims and the window are both in order");
        self.shared.saw(&prepared.batch.nodes);
        prepared.wait_seconds = start.elapsed().as_secs_f64();
        self.stats.wait_seconds += prepared.wait_seconds;
        Ok(Some(prepared))
    }

    /// Prepares a batch on this thread.
    fn prepare_now(
        &mut self,
        index: u32,
        claim: Option<MutexGuard<'_, ()>>,
        take: &mut TakeRows<'_>,
    ) -> Ready {
        self.stats.default_path += 1;
        let (home, free) = &self.own;
        let rows = match free.try_recv() {
            Ok(Free::Memory(rows)) => rows,
            _ => Memory::new(&self.shared.held),
        };
        let group = Group::get(&*self.source, index..index + 1);
        group.load_one(&mut self.loader, claim, rows, home, take)
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn stats(&self) -> PrefetchStats {
        PrefetchStats {
            peak_bytes: self.shared.held.peak_bytes(),
            max_nodes: self.shared.max_nodes.load(Ordering::Relaxed),
            ..self.stats
        }
    }
}

impl Drop for Prefetcher<'_> {
    /// Waits for the thread and its lanes, which end after their current pulls. A forked child has
    /// no thread, and the channels to it may be locked.
    fn drop(&mut self) {
        if !self.process.is_current() {
            let own = std::mem::replace(&mut self.own, sync_channel(0));
            std::mem::forget((self.background.take(), own));
            return;
        }
        if let Some(Background { thread, coming, group, free }) = self.background.take() {
            self.shared.is_over.store(true, Ordering::Relaxed);
            drop((coming, group));
            // There is room, since this is sent once; or the thread has ended.
            let _ = free.try_send(Free::Stop);
            // The thread has logged a panic; the scope would report it again.
            let _ = thread.join();
        }
    }
}

impl Background<'_> {
    /// Returns the next batch if it is ready.
    fn try_take(&mut self) -> Option<Ready> {
        if self.group.is_none() {
            self.group = self.coming.try_recv().ok();
        }
        self.group.as_ref()?.ready.try_recv().ok()
    }

    /// Waits for the next batch, which the thread has claimed.
    fn take(&mut self, stats: &mut PrefetchStats) -> Ready {
        let gone = |_| ClientError::Panicked { thread: "prefetch" };
        let (received, met) = match self.try_take() {
            Some(received) => {
                stats.ready += 1;
                (received, BatchReadiness::Ready)
            }
            None => {
                stats.waited += 1;
                let group = match self.group.take() {
                    Some(group) => group,
                    None => self.coming.recv().map_err(gone)?,
                };
                (self.group.insert(group).ready.recv().map_err(gone)?, BatchReadiness::Waited)
            }
        };
        if let Some(group) = &mut self.group {
            group.n_left -= 1;
        }
        self.group.take_if(|group| group.n_left == 0);
        let (index, prepared) = received?;
        // The thread may have ended after its last batch.
        let _ = self.free.try_send(Free::Place);
        Ok((index, PreparedBatch { met, ..prepared }))
    }
}

impl ClaimState {
    /// Returns whether no more batches are wanted.
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Returns the kind of the pulls for a group of batches: bulk until the trainer requests the
    /// first of them.
    fn kind_of(&self, first: u32) -> PullKind {
        match first <= self.requested.load(Ordering::Relaxed) {
            true => PullKind::Sync,
            false => PullKind::Vector,
        }
    }

    /// Claims batch `index` unless a thread has. The lock is held until the order of the batch is
    /// settled.
    fn claim(&self, index: u32) -> Option<MutexGuard<'_, ()>> {
        if self.next.load(Ordering::Acquire) > index {
            return None;
        }
        let claim = self.order.lock().ignore_poison();
        if self.next.load(Ordering::Acquire) > index {
            return None;
        }
        self.next.store(index + 1, Ordering::Release);
        Some(claim)
    }

    /// Claims the first unclaimed batches, at most `n` of one epoch.
    fn claim_next(
        &self,
        source: &dyn BatchSource,
        n: u32,
    ) -> Option<(Range<u32>, MutexGuard<'_, ()>)> {
        let claim = self.order.lock().ignore_poison();
        let (next, n_batches) = (self.next.load(Ordering::Acquire), source.n_batches());
        if next >= n_batches {
            return None;
        }
        let end = next.saturating_add(n).min(source.end_of_epoch(next)).clamp(next + 1, n_batches);
        self.next.store(end, Ordering::Release);
        Some((next..end, claim))
    }

    fn saw(&self, nodes: &[NodeId]) {
        self.max_nodes.fetch_max(nodes.len() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
