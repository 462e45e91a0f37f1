//! One worker's batches of a schedule, with the rows that are kept for them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::Scope;
use std::time::SystemTime;

use lodestore_graph::NodeId;
use lodestore_graph::batch::Batch;
use lodestore_graph::schedule::{AccessCounts, NEVER, NextUses, Schedule, ScheduleError};

use crate::error::ClientError;
use crate::hot_set_cache::{HotRows, HotSetCache, HotSetStats};
use crate::keep::{Keep, hot_set};
use crate::load_stats::LoadStats;
use crate::loader::{BatchLoader, Residency, RowResidency};
use crate::oracle_tier::{OracleTier, TierFill};
use crate::prefetch::BatchSource;

/// Settings of a worker's batches.
#[derive(Clone, Copy, Debug)]
pub struct PlannedConfig {
    /// The worker.
    pub worker: u32,
    /// Number of the first batch, counted over all epochs.
    pub first: u32,
    /// The rows that are kept.
    pub keep: Keep,
    /// Rows of a hot set. There are two, so that the oracle keeps twice as many.
    pub n_hot: usize,
    /// Most rows of one pull that fills the oracle's tier.
    pub fill_rows: usize,
}

/// The batches of one worker of a schedule, with the rows that are kept for them.
pub struct PlannedBatches<'scope> {
    schedule: Arc<Schedule>,
    worker: u32,
    /// Number of the first batch.
    first: u32,
    keeper: Keeper<'scope>,
}

/// Keeper of remote rows.
enum Keeper<'scope> {
    Nothing,
    Hot(HotSetCache<'scope>),
    Oracle {
        tier: Arc<OracleTier>,
        uses: NextUses,
        /// The pulls that filled the tier.
        filled: LoadStats,
    },
}

impl<'scope> PlannedBatches<'scope> {
    /// Begins to keep rows that `loader` does not own. The next uses of rows are computed in a file
    /// beside `path`, that of the schedule.
    ///
    /// Rows of the first epoch are pulled now, as far as there is room: the first hot set, which the
    /// others follow in the background, or the rows of soonest use. So the first epoch waits no
    /// longer than others.
    ///
    /// # Errors
    /// [`ClientError::Unpinned`] where rows are kept and the loader's remote source keeps to no
    /// version. Errors of the schedule, and of pulls.
    pub fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        schedule: &Arc<Schedule>,
        path: &Path,
        loader: &BatchLoader,
        config: PlannedConfig,
    ) -> Result<Self, ClientError> {
        let PlannedConfig { worker, first, keep, n_hot, fill_rows } = config;
        let per_epoch = schedule.n_batches(worker);
        let epochs = schedule.spec().epochs;
        let numbers = first..per_epoch.saturating_mul(epochs);
        let keep = if numbers.is_empty() { Keep::Nothing } else { keep };
        let keeper = match keep {
            Keep::Nothing => Keeper::Nothing,
            Keep::Hot => {
                let of_loader = loader.clone();
                let of_schedule = Arc::clone(schedule);
                let choose = Arc::new(move |epoch| {
                    let is_remote = |node| of_loader.is_remote(node);
                    let counts = AccessCounts::of(&of_schedule, worker, epoch, &is_remote)?;
                    Ok(hot_set(&counts, n_hot))
                });
                let epochs = first / per_epoch..epochs;
                Keeper::Hot(HotSetCache::start(scope, loader, epochs, choose)?)
            }
            Keep::Oracle => {
                let n_slots = keep.capacity_rows(n_hot);
                let is_remote = |node| loader.is_remote(node);
                let soonest = soonest(schedule, worker, first, n_slots, &is_remote)?;
                let fill = TierFill { soonest: &soonest, most_rows: fill_rows };
                let n_nodes = schedule.n_nodes();
                let (tier, filled) = OracleTier::filled(n_slots, loader, n_nodes, &numbers, fill)?;
                let uses = next_uses(schedule, worker, path)?;
                Keeper::Oracle { tier: Arc::new(tier), uses, filled }
            }
        };
        Ok(Self { schedule: Arc::clone(schedule), worker, first, keeper })
    }

    /// Returns counters and memory of the rows that are kept; of the oracle's, the memory alone.
    #[must_use]
    pub fn kept(&self) -> HotSetStats {
        match &self.keeper {
            Keeper::Nothing => HotSetStats::default(),
            Keeper::Hot(hot) => hot.stats(),
            Keeper::Oracle { tier, .. } => {
                HotSetStats { peak_bytes: tier.held_bytes(), ..HotSetStats::default() }
            }
        }
    }

    /// Returns the VectorPulls of kept rows up to and with `epoch`.
    #[must_use]
    pub fn pulled_until(&self, epoch: u32) -> LoadStats {
        match &self.keeper {
            Keeper::Nothing => LoadStats::default(),
            Keeper::Hot(hot) => hot.pulled_until(epoch),
            Keeper::Oracle { filled, .. } => *filled,
        }
    }

    /// Returns the next uses of the rows of a batch as numbers of batches from the first on.
    fn next_uses(
        &self,
        uses: &NextUses,
        epoch: u32,
        position: u32,
    ) -> Result<Vec<u32>, ClientError> {
        let mut next = uses.get(epoch, position)?;
        for next in next.iter_mut().filter(|next| **next != NEVER) {
            *next -= self.first;
        }
        Ok(next)
    }
}

impl BatchSource for PlannedBatches<'_> {
    fn n_batches(&self) -> u32 {
        self.schedule.n_batches(self.worker).saturating_mul(self.schedule.spec().epochs)
    }

    fn batch(&self, index: u32) -> Result<(Batch, RowResidency), ClientError> {
        let per_epoch = self.schedule.n_batches(self.worker);
        let epoch = index / per_epoch;
        let position = index % per_epoch;
        // Before anything can fail: a turn that is given up lets the others end.
        let kept: RowResidency = match &self.keeper {
            Keeper::Nothing => None,
            Keeper::Hot(hot) => Some(Box::new(HotRows::new(hot.for_epoch(epoch)?))),
            Keeper::Oracle { tier, uses, .. } => {
                let mut turn = tier.turn(index);
                turn.announce(self.next_uses(uses, epoch, position)?);
                Some(Box::new(turn) as Box<dyn Residency>)
            }
        };
        Ok((self.schedule.get(self.worker, epoch, position)?, kept))
    }

    fn end_of_epoch(&self, index: u32) -> u32 {
        let per_epoch = self.schedule.n_batches(self.worker).max(1);
        (index / per_epoch + 1).saturating_mul(per_epoch)
    }
}

/// Returns the first `n` remote rows that the rest of the epoch of batch `first` uses, in the order
/// of use. Each has the number of its batch, counted from `first`.
pub(super) fn soonest(
    schedule: &Schedule,
    worker: u32,
    first: u32,
    n: usize,
    is_remote: &dyn Fn(NodeId) -> bool,
) -> Result<Vec<(NodeId, u32)>, ClientError> {
    let per_epoch = schedule.n_batches(worker);
    let epoch = first / per_epoch;
    let mut is_seen = vec![false; schedule.n_nodes() as usize];
    let mut soonest = Vec::new();
    for (number, position) in (0..).zip(first % per_epoch..per_epoch) {
        if soonest.len() >= n {
            break;
        }
        for node in schedule.get(worker, epoch, position)?.nodes {
            if !std::mem::replace(&mut is_seen[node.index()], true) && is_remote(node) {
                soonest.push((node, number));
            }
        }
    }
    soonest.truncate(n);
    Ok(soonest)
}

/// Computes the next uses in a file of this iteration, since several may use one schedule: beside
/// the schedule, or in the temporary folder where that fails.
fn next_uses(schedule: &Schedule, worker: u32, path: &Path) -> Result<NextUses, ClientError> {
    let scratch = scratch_beside(path, worker);
    match NextUses::of(schedule, worker, &scratch) {
        Err(ScheduleError::Io(_)) => {
            let name = scratch.file_name().unwrap_or_default();
            Ok(NextUses::of(schedule, worker, &std::env::temp_dir().join(name))?)
        }
        uses => Ok(uses?),
    }
}

/// Returns a name that no other iteration has, nor this one for another worker or time.
fn scratch_beside(path: &Path, worker: u32) -> PathBuf {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id();
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let mut scratch = path.as_os_str().to_owned();
    scratch.push(format!(".next-uses-{worker}-{process}-{number}-{since:x}"));
    PathBuf::from(scratch)
}
