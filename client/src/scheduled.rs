//! The batches of a schedule with the rows of several tensors, prepared by a thread of their own.
//!
//! [`crate::Prefetcher`] borrows from the scope that its threads live in. What is here owns all
//! that it needs, for callers that have no scope around their loop.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use lodestore_graph::NodeId;
use lodestore_graph::batch::Batch;
use lodestore_graph::fork::Generation;
use lodestore_graph::schedule::{NEVER, NextUses, Schedule, ScheduleError};

use crate::{
    BatchLoader, BatchSource, ClientError, Kept, LoadStats, PlannedTier, PrefetchStats, Prefetcher,
    PreparedBatch, PullKind, RowBudget, RowBuffer, RowSource, Window,
};

/// Which rows stay in memory from batch to batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// None.
    Nothing,
    /// Those that the schedule needs again soonest (Belady's MIN).
    Oracle,
}

/// A walk over the batches of one worker of a schedule.
#[derive(Clone, Debug)]
pub struct Walk {
    /// The worker.
    pub worker: u32,
    /// Number of the first batch, counted over all epochs.
    pub first: u32,
    /// How far ahead batches are prepared.
    pub window: Window,
    /// What stays in memory.
    pub keeping: Keeping,
    /// Most bytes of rows of the first tensor: those that are kept and those of the window.
    pub memory_bytes: u64,
}

/// A batch with the rows of all tensors.
#[derive(Debug)]
pub struct ScheduledBatch {
    /// Number of the batch over all epochs.
    pub index: u32,
    /// The batch, with the rows of the first tensor.
    pub prepared: PreparedBatch,
    /// The rows of the other tensors, in their order.
    pub others: Vec<RowBuffer>,
}

/// Batches that a thread prepares ahead.
pub struct ScheduledBatches {
    coming: Mutex<Receiver<Result<ScheduledBatch, ClientError>>>,
    stop: Arc<AtomicBool>,
    stats: Arc<Mutex<WalkStats>>,
    process: Generation,
}

/// What a walk has done so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct WalkStats {
    /// How the window filled.
    pub window: PrefetchStats,
    /// What loading rows of the first tensor took, over the batches that were handed out.
    pub load: LoadStats,
    /// Rows that were pulled before the first batch.
    pub filled_rows: u64,
    /// Rows of the first tensor that there is memory for.
    pub kept_rows_most: u64,
}

impl ScheduledBatches {
    /// Starts to prepare the batches of `schedule`, of which `walk` says which and how.
    ///
    /// The rows of `tensors[0]` are kept and prefetched; those of the others are pulled batch by
    /// batch.
    ///
    /// # Errors
    /// [`ClientError::UnknownTensor`]; [`ScheduleError::Graph`] for a schedule of another graph,
    /// and [`ScheduleError::NoSuchBatch`] for a worker without batches.
    ///
    /// # Panics
    ///
    /// Without a tensor.
    pub fn start(
        source: &Arc<dyn RowSource>,
        schedule: Arc<Schedule>,
        path: &Path,
        tensors: &[String],
        walk: &Walk,
    ) -> Result<Self, ClientError> {
        let (tensor, others) = tensors.split_first().expect("at least one tensor");
        for other in others {
            source.tensor(other)?;
        }
        let loader = BatchLoader::new(Arc::clone(source), Arc::clone(source), tensor, &[])?;
        let (worker, batch) = (walk.worker, 0);
        if schedule.n_batches(worker) == 0 {
            return Err(ScheduleError::NoSuchBatch { epoch: 0, worker, batch }.into());
        }
        // Batches wait in the window, not here.
        let (sender, coming) = sync_channel(0);
        let (stop, stats) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let pump = Pump {
            source: Arc::clone(source),
            loader,
            schedule,
            path: path.to_owned(),
            others: others.to_vec(),
            walk: walk.clone(),
            sender,
            stop: Arc::clone(&stop),
            stats: Arc::clone(&stats),
        };
        let thread = thread::Builder::new().name("scheduled".to_owned());
        thread.spawn(move || pump.run()).map_err(|source| ClientError::Poll { source })?;
        Ok(Self { coming: Mutex::new(coming), stop, stats, process: Generation::now() })
    }

    /// Waits for the next batch at most for `time`. Returns `Some(None)` after the last one, and
    /// `None` where none has come by then.
    ///
    /// # Errors
    /// Those of pulls and of the schedule, after which there are no more batches; in a forked child
    /// [`ClientError::Forked`].
    pub fn next_within(
        &self,
        time: Duration,
    ) -> Result<Option<Option<ScheduledBatch>>, ClientError> {
        if !self.process.is_current() {
            return Err(ClientError::Forked { what: "walk over a schedule" });
        }
        let coming = self.coming.lock().unwrap_or_else(PoisonError::into_inner);
        match coming.recv_timeout(time) {
            Ok(batch) => batch.map(|batch| Some(Some(batch))),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Ok(Some(None)),
        }
    }

    /// Returns what was done so far.
    #[must_use]
    pub fn stats(&self) -> WalkStats {
        if !self.process.is_current() {
            return WalkStats::default();
        }
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ScheduledBatches {
    /// Has the thread end after the pulls that it is in.
    fn drop(&mut self) {
        if !self.process.is_current() {
            // Its locks may be held for ever in a forked child.
            let (_, coming) = sync_channel(0);
            std::mem::forget(std::mem::replace(&mut self.coming, Mutex::new(coming)));
            return;
        }
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The thread that goes through the batches.
struct Pump {
    source: Arc<dyn RowSource>,
    loader: BatchLoader,
    schedule: Arc<Schedule>,
    path: PathBuf,
    others: Vec<String>,
    walk: Walk,
    sender: SyncSender<Result<ScheduledBatch, ClientError>>,
    stop: Arc<AtomicBool>,
    stats: Arc<Mutex<WalkStats>>,
}

impl Pump {
    fn run(self) {
        if let Err(error) = self.go_through() {
            // The caller may be gone.
            let _ = self.sender.send(Err(error));
        }
    }

    fn go_through(&self) -> Result<(), ClientError> {
        let (batches, window, filled) = self.batches()?;
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).filled_rows = filled.remote_rows;
        let batches: Arc<dyn BatchSource> = Arc::new(batches);
        thread::scope(|scope| {
            let (loader, first) = (self.loader.clone(), self.walk.first);
            let mut prefetcher = Prefetcher::start(scope, batches, loader, window, first);
            for index in first.. {
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let Some(prepared) = prefetcher.next_batch()? else { return Ok(()) };
                let others = self.rows_of_others(&prepared.batch)?;
                self.note(prefetcher.stats(), &prepared.load);
                let batch = ScheduledBatch { index, prepared, others };
                if self.sender.send(Ok(batch)).is_err() {
                    return Ok(());
                }
            }
            Ok(())
        })
    }

    /// Returns the batches, the window that there is memory for, and what filling the tier took.
    fn batches(&self) -> Result<(Batches, Window, LoadStats), ClientError> {
        let (walk, schedule) = (&self.walk, &self.schedule);
        let n_nodes = schedule.n_nodes() as usize;
        let (row_bytes, max_nodes) = (self.loader.row_bytes(), schedule.max_ids() as usize);
        let n_hot = if walk.keeping == Keeping::Oracle { n_nodes.div_ceil(2) } else { 0 };
        let wanted = RowBudget { n_hot, window: walk.window.n_batches };
        // Less than one batch cannot be: then nothing is kept, and nothing prepared ahead.
        let least = RowBudget { n_hot: 0, window: 0 };
        let budget = wanted.fit(walk.memory_bytes, max_nodes, row_bytes).unwrap_or(least);
        let window = Window { n_batches: budget.window, ..walk.window };
        let n_slots = budget.n_hot.saturating_mul(2).min(n_nodes);
        let per_worker = schedule.n_batches(walk.worker);
        let end = per_worker.saturating_mul(schedule.spec().epochs);
        let (mut tier, mut filled) = (None, LoadStats::default());
        if n_slots > 0 && walk.first < end {
            let soonest = soonest(schedule, walk, n_slots)?;
            let sizes = (n_slots, max_nodes.max(1));
            let numbers = walk.first..end;
            let (planned, took) =
                PlannedTier::filled(sizes, &self.loader, schedule.n_nodes(), &numbers, &soonest)?;
            filled = took;
            tier = Some((Arc::new(planned), next_uses(schedule, walk.worker, &self.path)?));
        }
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).kept_rows_most = n_slots as u64;
        let (schedule, worker, first) = (Arc::clone(schedule), walk.worker, walk.first);
        Ok((Batches { schedule, worker, first, tier }, window, filled))
    }

    fn rows_of_others(&self, batch: &Batch) -> Result<Vec<RowBuffer>, ClientError> {
        let pull = |tensor: &String| {
            let mut rows = RowBuffer::default();
            rows.resize(batch.nodes.len() * self.source.tensor(tensor)?.row_bytes());
            self.source.pull(tensor, &batch.nodes, rows.bytes_mut(), PullKind::Sync)?;
            Ok(rows)
        };
        self.others.iter().map(pull).collect()
    }

    fn note(&self, window: PrefetchStats, load: &LoadStats) {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        stats.window = window;
        stats.load += *load;
    }
}

/// One worker's batches, with the tier that keeps rows for them and when each is used next.
struct Batches {
    schedule: Arc<Schedule>,
    worker: u32,
    /// Number of the first batch.
    first: u32,
    tier: Option<(Arc<PlannedTier>, NextUses)>,
}

impl BatchSource for Batches {
    fn n_batches(&self) -> u32 {
        self.schedule.n_batches(self.worker).saturating_mul(self.schedule.spec().epochs)
    }

    fn batch(&self, index: u32) -> Result<(Batch, Kept), ClientError> {
        let per_epoch = self.schedule.n_batches(self.worker);
        let (epoch, position) = (index / per_epoch, index % per_epoch);
        // Before anything can fail: a turn that is given up lets the others end.
        let kept = match &self.tier {
            None => Kept::Nothing,
            Some((tier, uses)) => {
                let mut turn = tier.turn(index);
                let mut next = uses.get(epoch, position)?;
                for next in next.iter_mut().filter(|next| **next != NEVER) {
                    *next -= self.first;
                }
                turn.announce(next);
                Kept::Planned(turn)
            }
        };
        Ok((self.schedule.get(self.worker, epoch, position)?, kept))
    }

    fn end_of_epoch(&self, index: u32) -> u32 {
        let per_epoch = self.schedule.n_batches(self.worker).max(1);
        (index / per_epoch + 1).saturating_mul(per_epoch)
    }
}

/// Returns the first `n` rows that what is left of the first epoch uses, each with the number of
/// the batch from the first on, in that order.
fn soonest(schedule: &Schedule, walk: &Walk, n: usize) -> Result<Vec<(NodeId, u32)>, ClientError> {
    let per_epoch = schedule.n_batches(walk.worker);
    let (epoch, first) = (walk.first / per_epoch, walk.first % per_epoch);
    let mut is_seen = vec![false; schedule.n_nodes() as usize];
    let mut soonest = Vec::new();
    for (number, position) in (0..).zip(first..per_epoch) {
        if soonest.len() >= n {
            break;
        }
        for node in schedule.get(walk.worker, epoch, position)?.nodes {
            if !std::mem::replace(&mut is_seen[node.index()], true) {
                soonest.push((node, number));
            }
        }
    }
    soonest.truncate(n);
    Ok(soonest)
}

/// Works out the next uses in a file of this walk's own: beside the schedule, or where no file can
/// be made there, among temporary ones.
fn next_uses(schedule: &Schedule, worker: u32, path: &Path) -> Result<NextUses, ClientError> {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let (process, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
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
