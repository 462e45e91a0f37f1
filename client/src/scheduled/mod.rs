//! The batches of one worker, of a schedule or sampled as they are needed; and those of a schedule
//! with the rows of several tensors, prepared by a background thread.
//!
//! [`crate::prefetch::Prefetcher`] borrows from the scope of its threads. [`ScheduledBatches`] owns
//! everything that it needs, for callers without such a scope.

mod planned;
mod sampled;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, Scope};
use std::time::Duration;

use lodestore_graph::batch::Batch;
use lodestore_graph::fork::Generation;
use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::schedule::{Schedule, ScheduleError};

use crate::budget::RowBudget;
use crate::buffer::RowBuffer;
use crate::error::ClientError;
use crate::keep::Keep;
use crate::load_stats::LoadStats;
use crate::loader::BatchLoader;
use crate::prefetch::{BatchSource, PrefetchStats, Prefetcher, PreparedBatch, Window};
use crate::source::{PullKind, RowSource, VersionTag};
pub use planned::{PlannedBatches, PlannedConfig};
pub use sampled::SampledBatches;

/// Settings of an iteration over the batches of one worker of a schedule.
#[derive(Clone, Debug)]
pub struct IterationConfig {
    /// The worker.
    pub worker: u32,
    /// Number of the first batch, counted over all epochs.
    pub first: u32,
    /// Bounds of the batches prepared ahead.
    pub window: Window,
    /// The rows that stay in memory.
    pub keep: Keep,
    /// Most bytes of rows: those of the first tensor that are kept or prepared ahead, and those of
    /// the other tensors for two batches.
    pub memory_bytes: u64,
}

/// A batch with the rows of all tensors.
#[derive(Debug)]
pub struct ScheduledBatch {
    /// Number of the batch, counted over all epochs.
    pub index: u32,
    /// The batch, with the rows of the first tensor.
    pub prepared: PreparedBatch,
    /// The rows of the other tensors, in their order.
    pub others: Vec<RowBuffer>,
}

/// Batches that a background thread prepares ahead.
pub struct ScheduledBatches {
    receiver: Mutex<Receiver<Result<ScheduledBatch, ClientError>>>,
    stop: Arc<AtomicBool>,
    is_awaited: Arc<AtomicBool>,
    stats: Arc<Mutex<IterationStats>>,
    version: VersionTag,
    process: Generation,
}

/// Counters of an iteration so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct IterationStats {
    /// State of the window.
    pub window: PrefetchStats,
    /// Times of loading rows of the first tensor, over the returned batches.
    pub load: LoadStats,
    /// Rows that were pulled to be kept: before the first batch, and hot sets of later epochs.
    pub filled_rows: u64,
    /// Most rows of the first tensor that are kept for an epoch.
    pub capacity_rows: u64,
}

impl ScheduledBatches {
    /// Starts a thread that prepares batches of a schedule of the source's graph.
    ///
    /// The rows of `tensors[0]` are prefetched and kept; those of the others are pulled batch
    /// by batch. All are of one version, whatever is committed meanwhile: that of `source`.
    ///
    /// # Errors
    /// [`ClientError::Unpinned`] if the source is not pinned; [`ClientError::UnknownTensor`];
    /// [`ScheduleError::NoSuchBatch`] for a worker without batches.
    ///
    /// # Panics
    ///
    /// If `tensors` is empty.
    pub fn start(
        source: &Arc<dyn RowSource>,
        schedule: Arc<Schedule>,
        path: &Path,
        tensors: &[String],
        config: &IterationConfig,
    ) -> Result<Self, ClientError> {
        let (tensor, others) = tensors.split_first().expect("at least one tensor");
        let version = ClientError::check_pinned(&**source, "an iteration over a schedule")?;
        let mut others_row_bytes = 0;
        for other in others {
            others_row_bytes += source.tensor(other)?.row_bytes();
        }
        let loader = BatchLoader::new(Arc::clone(source), Arc::clone(source), tensor, &[])?;
        let worker = config.worker;
        if schedule.n_batches(worker) == 0 {
            return Err(ScheduleError::NoSuchBatch { epoch: 0, worker, batch: 0 }.into());
        }
        // Without capacity: ready batches wait in the window only.
        let (sender, receiver) = sync_channel(0);
        let stop = Arc::new(AtomicBool::new(false));
        let stats = Arc::default();
        let is_awaited = Arc::default();
        let worker_thread = IterationWorker {
            source: Arc::clone(source),
            loader,
            schedule,
            path: path.to_owned(),
            others: others.to_vec(),
            others_row_bytes,
            config: config.clone(),
            sender,
            stop: Arc::clone(&stop),
            is_awaited: Arc::clone(&is_awaited),
            stats: Arc::clone(&stats),
        };
        let thread = thread::Builder::new().name("scheduled".to_owned());
        thread.spawn(move || worker_thread.run()).map_err(|source| ClientError::Poll { source })?;
        let receiver = Mutex::new(receiver);
        Ok(Self { receiver, stop, is_awaited, stats, version, process: Generation::now() })
    }

    /// Waits up to `time` for the next batch. Returns `Some(None)` after the last batch, and `None`
    /// if the time is over.
    ///
    /// # Errors
    /// Errors of pulls and of the schedule, which end the iteration; in a forked child
    /// [`ClientError::Forked`].
    pub fn next_within(
        &self,
        time: Duration,
    ) -> Result<Option<Option<ScheduledBatch>>, ClientError> {
        if !self.process.is_current() {
            return Err(ClientError::Forked { what: "iteration over a schedule" });
        }
        let receiver = self.receiver.lock().ignore_poison();
        self.is_awaited.store(true, Ordering::Relaxed);
        let received = receiver.recv_timeout(time);
        if received.is_ok() {
            self.is_awaited.store(false, Ordering::Relaxed);
        }
        match received {
            Ok(batch) => batch.map(|batch| Some(Some(batch))),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Ok(Some(None)),
        }
    }

    /// Returns the version of all rows.
    #[must_use]
    pub fn version(&self) -> VersionTag {
        self.version
    }

    /// Returns the counters so far; zeros in a forked child.
    #[must_use]
    pub fn stats(&self) -> IterationStats {
        if !self.process.is_current() {
            return IterationStats::default();
        }
        *self.stats.lock().ignore_poison()
    }
}

impl Drop for ScheduledBatches {
    /// Stops the thread after its current pulls.
    fn drop(&mut self) {
        if !self.process.is_current() {
            // Dropping the receiver could wait for a lock that a thread of the parent holds.
            let (_, receiver) = sync_channel(0);
            std::mem::forget(std::mem::replace(&mut self.receiver, Mutex::new(receiver)));
            return;
        }
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The state of the background thread.
struct IterationWorker {
    source: Arc<dyn RowSource>,
    loader: BatchLoader,
    schedule: Arc<Schedule>,
    path: PathBuf,
    others: Vec<String>,
    /// Bytes of a row of all other tensors together.
    others_row_bytes: usize,
    config: IterationConfig,
    sender: SyncSender<Result<ScheduledBatch, ClientError>>,
    stop: Arc<AtomicBool>,
    /// Whether the caller waits for a batch.
    is_awaited: Arc<AtomicBool>,
    stats: Arc<Mutex<IterationStats>>,
}

impl IterationWorker {
    fn run(self) {
        if let Err(error) = self.send_batches() {
            // Fails if the iteration was dropped.
            let _ = self.sender.send(Err(error));
        }
    }

    fn send_batches(&self) -> Result<(), ClientError> {
        thread::scope(|scope| {
            let (batches, window) = self.batches(scope)?;
            let batches = Arc::new(batches);
            let per_epoch = self.schedule.n_batches(self.config.worker);
            let first = self.config.first;
            let filled_rows = |index| batches.pulled_until(index / per_epoch).remote_rows;
            self.stats.lock().ignore_poison().filled_rows = filled_rows(first);
            let source: Arc<dyn BatchSource + '_> = Arc::clone(&batches) as _;
            let loader = self.loader.clone();
            let mut prefetcher = Prefetcher::start(scope, source, loader, window, first);
            for index in first.. {
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let Some(prepared) = prefetcher.next_batch()? else { return Ok(()) };
                let others = self.rows_of_others(&prepared.batch)?;
                self.record(prefetcher.stats(), &prepared.load, filled_rows(index));
                let batch = ScheduledBatch { index, prepared, others };
                if self.sender.send(Ok(batch)).is_err() {
                    return Ok(());
                }
            }
            Ok(())
        })
    }

    /// Returns the batches, and the window that fits the memory.
    fn batches<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
    ) -> Result<(PlannedBatches<'scope>, Window), ClientError> {
        let config = &self.config;
        let schedule = &self.schedule;
        let n_nodes = schedule.n_nodes() as usize;
        let row_bytes = self.loader.row_bytes();
        let max_nodes = schedule.max_ids() as usize;
        let n_hot = config.keep.n_hot_of(n_nodes);
        let wanted = RowBudget { n_hot, window: config.window.n_batches };
        // With memory for less than a batch, no row is kept and no batch prepared ahead.
        let least = RowBudget { n_hot: 0, window: 0 };
        let others_bytes = self.others_row_bytes.saturating_mul(2 * max_nodes) as u64;
        let memory_bytes = config.memory_bytes.saturating_sub(others_bytes);
        let budget = wanted.fit(memory_bytes, max_nodes, row_bytes).unwrap_or(least);
        let keep = if budget.n_hot > 0 { config.keep } else { Keep::Nothing };
        let planned = PlannedConfig {
            worker: config.worker,
            first: config.first,
            keep,
            n_hot: budget.n_hot,
            fill_rows: max_nodes.max(1),
        };
        let batches = PlannedBatches::start(scope, schedule, &self.path, &self.loader, planned)?;
        let capacity_rows = keep.capacity_rows(budget.n_hot).min(n_nodes);
        self.stats.lock().ignore_poison().capacity_rows = capacity_rows as u64;
        Ok((batches, Window { n_batches: budget.window, ..config.window }))
    }

    fn rows_of_others(&self, batch: &Batch) -> Result<Vec<RowBuffer>, ClientError> {
        let kind = match self.is_awaited.load(Ordering::Relaxed) {
            true => PullKind::Sync,
            false => PullKind::Vector,
        };
        let pull = |tensor: &String| {
            let mut rows = RowBuffer::default();
            rows.resize(batch.nodes.len() * self.source.tensor(tensor)?.row_bytes());
            self.source.pull(tensor, &batch.nodes, rows.bytes_mut(), kind)?;
            Ok(rows)
        };
        self.others.iter().map(pull).collect()
    }

    fn record(&self, window: PrefetchStats, load: &LoadStats, filled_rows: u64) {
        let mut stats = self.stats.lock().ignore_poison();
        stats.filled_rows = filled_rows;
        stats.window = window;
        stats.load += *load;
    }
}

#[cfg(test)]
mod tests;
