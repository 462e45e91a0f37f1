//! The batches of a schedule with the rows of several tensors, prepared by a background thread.
//!
//! [`crate::prefetch::Prefetcher`] borrows from the scope of its threads. [`ScheduledBatches`] owns
//! everything that it needs, for callers without such a scope.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lodestore_graph::NodeId;
use lodestore_graph::batch::Batch;
use lodestore_graph::fork::Generation;
use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::schedule::{NEVER, NextUses, Schedule, ScheduleError};

use crate::budget::RowBudget;
use crate::buffer::RowBuffer;
use crate::error::ClientError;
use crate::load_stats::LoadStats;
use crate::loader::{BatchLoader, RowResidency};
use crate::oracle_tier::{OracleTier, TierFill};
use crate::prefetch::{BatchSource, PrefetchStats, Prefetcher, PreparedBatch, Window};
use crate::source::{PullKind, RowSource, VersionTag};

/// Policy for the rows that stay in memory between batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// No row is kept.
    Nothing,
    /// The rows with the nearest next use are kept (Belady's MIN).
    Oracle,
}

/// Settings of an iteration over the batches of one worker of a schedule.
#[derive(Clone, Debug)]
pub struct IterationConfig {
    /// The worker.
    pub worker: u32,
    /// Number of the first batch, counted over all epochs.
    pub first: u32,
    /// Bounds of the batches prepared ahead.
    pub window: Window,
    /// Policy for the rows that stay in memory.
    pub retention: Retention,
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
    /// Rows pulled before the first batch.
    pub filled_rows: u64,
    /// Most rows of the first tensor that are kept.
    pub capacity_rows: u64,
}

impl ScheduledBatches {
    /// Starts a thread that prepares batches of a schedule of the source's graph.
    ///
    /// The rows of `tensors[0]` are prefetched and kept; those of the others are pulled batch by
    /// batch. All have the version that `source` is pinned to, whatever is committed meanwhile.
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
        let (batches, window, filled) = self.batches()?;
        self.stats.lock().ignore_poison().filled_rows = filled.remote_rows;
        let batches: Arc<dyn BatchSource> = Arc::new(batches);
        thread::scope(|scope| {
            let loader = self.loader.clone();
            let first = self.config.first;
            let mut prefetcher = Prefetcher::start(scope, batches, loader, window, first);
            for index in first.. {
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let Some(prepared) = prefetcher.next_batch()? else { return Ok(()) };
                let others = self.rows_of_others(&prepared.batch)?;
                self.record(prefetcher.stats(), &prepared.load);
                let batch = ScheduledBatch { index, prepared, others };
                if self.sender.send(Ok(batch)).is_err() {
                    return Ok(());
                }
            }
            Ok(())
        })
    }

    /// Returns the batches, the window that fits into the memory, and the cost of filling the tier.
    fn batches(&self) -> Result<(ScheduledSource, Window, LoadStats), ClientError> {
        let config = &self.config;
        let schedule = &self.schedule;
        let n_nodes = schedule.n_nodes() as usize;
        let row_bytes = self.loader.row_bytes();
        let max_nodes = schedule.max_ids() as usize;
        let n_hot = if config.retention == Retention::Oracle { n_nodes.div_ceil(2) } else { 0 };
        let wanted = RowBudget { n_hot, window: config.window.n_batches };
        // With memory for less than a batch, no row is kept and no batch is prepared ahead.
        let least = RowBudget { n_hot: 0, window: 0 };
        let others_bytes = self.others_row_bytes.saturating_mul(2 * max_nodes) as u64;
        let memory_bytes = config.memory_bytes.saturating_sub(others_bytes);
        let budget = wanted.fit(memory_bytes, max_nodes, row_bytes).unwrap_or(least);
        let window = Window { n_batches: budget.window, ..config.window };
        let n_slots = budget.n_hot.saturating_mul(2).min(n_nodes);
        let per_worker = schedule.n_batches(config.worker);
        let end = per_worker.saturating_mul(schedule.spec().epochs);
        let mut tier = None;
        let mut filled = LoadStats::default();
        if n_slots > 0 && config.first < end {
            let soonest = soonest(schedule, config, n_slots)?;
            let fill = TierFill { soonest: &soonest, most_rows: max_nodes.max(1) };
            let numbers = config.first..end;
            let (planned, took) =
                OracleTier::filled(n_slots, &self.loader, schedule.n_nodes(), &numbers, fill)?;
            filled = took;
            tier = Some((Arc::new(planned), next_uses(schedule, config.worker, &self.path)?));
        }
        self.stats.lock().ignore_poison().capacity_rows = n_slots as u64;
        let schedule = Arc::clone(schedule);
        let worker = config.worker;
        let first = config.first;
        Ok((ScheduledSource { schedule, worker, first, tier }, window, filled))
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

    fn record(&self, window: PrefetchStats, load: &LoadStats) {
        let mut stats = self.stats.lock().ignore_poison();
        stats.window = window;
        stats.load += *load;
    }
}

/// The batches of one worker, with the tier of kept rows and the next use of each row.
struct ScheduledSource {
    schedule: Arc<Schedule>,
    worker: u32,
    /// Number of the first batch.
    first: u32,
    tier: Option<(Arc<OracleTier>, NextUses)>,
}

impl BatchSource for ScheduledSource {
    fn n_batches(&self) -> u32 {
        self.schedule.n_batches(self.worker).saturating_mul(self.schedule.spec().epochs)
    }

    fn batch(&self, index: u32) -> Result<(Batch, RowResidency), ClientError> {
        let per_epoch = self.schedule.n_batches(self.worker);
        let epoch = index / per_epoch;
        let position = index % per_epoch;
        // Taken before anything can fail: a dropped turn releases the batches that wait for it.
        let kept: RowResidency = match &self.tier {
            None => None,
            Some((tier, uses)) => {
                let mut turn = tier.turn(index);
                let mut next = uses.get(epoch, position)?;
                for next in next.iter_mut().filter(|next| **next != NEVER) {
                    *next -= self.first;
                }
                turn.announce(next);
                Some(Box::new(turn))
            }
        };
        Ok((self.schedule.get(self.worker, epoch, position)?, kept))
    }

    fn end_of_epoch(&self, index: u32) -> u32 {
        let per_epoch = self.schedule.n_batches(self.worker).max(1);
        (index / per_epoch + 1).saturating_mul(per_epoch)
    }
}

/// Returns the first `n` nodes that the rest of the first epoch uses, in that order. Each has the
/// number of its batch, counted from the first batch of the iteration.
fn soonest(
    schedule: &Schedule,
    config: &IterationConfig,
    n: usize,
) -> Result<Vec<(NodeId, u32)>, ClientError> {
    let per_epoch = schedule.n_batches(config.worker);
    let epoch = config.first / per_epoch;
    let first = config.first % per_epoch;
    let mut is_seen = vec![false; schedule.n_nodes() as usize];
    let mut soonest = Vec::new();
    for (number, position) in (0..).zip(first..per_epoch) {
        if soonest.len() >= n {
            break;
        }
        for node in schedule.get(config.worker, epoch, position)?.nodes {
            if !std::mem::replace(&mut is_seen[node.index()], true) {
                soonest.push((node, number));
            }
        }
    }
    soonest.truncate(n);
    Ok(soonest)
}

/// Computes the next uses in a file of this iteration: beside the schedule, or in the temporary
/// folder if that is not writable.
fn next_uses(schedule: &Schedule, worker: u32, path: &Path) -> Result<NextUses, ClientError> {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id();
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".next-uses-{worker}-{process}-{number}-{since:x}"));
    let beside = PathBuf::from(beside);
    match NextUses::of(schedule, worker, &beside) {
        Err(ScheduleError::Io { .. }) => {
            let name = beside.file_name().unwrap_or_default();
            Ok(NextUses::of(schedule, worker, &std::env::temp_dir().join(name))?)
        }
        uses => Ok(uses?),
    }
}

#[cfg(test)]
mod tests;
