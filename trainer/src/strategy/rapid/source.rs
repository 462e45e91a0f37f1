//! A worker's batches from the schedule, with the rows that are kept for them.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread::Scope,
    time::SystemTime,
};

use lodestore_client::hot_set_cache::{HotRows, HotSetCache, HotSetStats};
use lodestore_client::load_stats::LoadStats;
use lodestore_client::loader::{Residency, RowResidency};
use lodestore_client::oracle_tier::{OracleTier, TierFill};
use lodestore_client::prefetch::BatchSource;
use lodestore_client::{BatchLoader, ClientError};
use lodestore_graph::{
    NodeId,
    batch::Batch,
    schedule::{AccessCounts, NEVER, NextUses, Schedule, ScheduleError},
};

use super::schedule::Written;
use crate::config::HotPolicy;
use crate::step::Place;
use crate::worker::KeptRows;

/// A worker's batches as scheduled, with the rows that are kept for them.
pub(crate) struct ScheduledBatches<'scope> {
    written: Arc<Written>,
    worker: u32,
    /// Number of the first batch.
    first: u32,
    keeper: Keeper<'scope>,
}

/// Keeper of remote rows.
enum Keeper<'scope> {
    /// The rows that an epoch uses most, in two buffers (section 4.6).
    Frequency(HotSetCache<'scope>),
    /// The rows that are used soonest, in as much memory as both buffers have, and what filled it.
    Oracle(Arc<OracleTier>, NextUses, LoadStats),
}

impl<'scope> ScheduledBatches<'scope> {
    /// Begins to keep rows. Rows of the first epoch are pulled now, as far as there is room. Under
    /// `frequency` that is the first set, which the others follow in the background. For the oracle
    /// it is the rows of soonest use, so that the first epoch waits no longer than others.
    pub(super) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        worker: u32,
        written: &Arc<Written>,
        place: Place,
        policy: HotPolicy,
        loader: &BatchLoader,
    ) -> Result<Self, ClientError> {
        let schedule = &written.schedule;
        let n_hot = written.budget.n_hot;
        let (per_epoch, epochs) = (schedule.n_batches(worker), schedule.spec().epochs);
        let first = place.first_batch(per_epoch);
        let keeper = match policy {
            HotPolicy::Frequency => {
                let of_loader = loader.clone();
                let of_written = Arc::clone(written);
                let choose = Arc::new(move |epoch| {
                    let is_remote = |node| of_loader.is_remote(node);
                    let schedule = &of_written.schedule;
                    let counts = AccessCounts::of(schedule, worker, epoch, &is_remote)?;
                    Ok(counts.hottest(n_hot))
                });
                let epochs = place.epoch..epochs;
                Keeper::Frequency(HotSetCache::start(scope, loader, epochs, choose)?)
            }
            HotPolicy::Oracle => {
                let n_slots = n_hot.saturating_mul(2);
                let batches = first..per_epoch.saturating_mul(epochs);
                let is_remote = |node| loader.is_remote(node);
                let soonest = soonest(schedule, worker, place, n_slots, &is_remote)?;
                let fill = TierFill { soonest: &soonest, most_rows: written.n_spare };
                let n_nodes = schedule.n_nodes();
                let (tier, filled) = OracleTier::filled(n_slots, loader, n_nodes, &batches, fill)?;
                Keeper::Oracle(Arc::new(tier), next_uses(schedule, worker, &written.path)?, filled)
            }
        };
        Ok(Self { written: Arc::clone(written), worker, first, keeper })
    }

    /// Returns the next uses as numbers of batches from the first on.
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

impl KeptRows for ScheduledBatches<'_> {
    /// For the oracle, only its memory.
    fn stats(&self) -> HotSetStats {
        match &self.keeper {
            Keeper::Frequency(steady) => steady.stats(),
            Keeper::Oracle(tier, ..) => {
                HotSetStats { peak_bytes: tier.held_bytes(), ..HotSetStats::default() }
            }
        }
    }

    /// For the oracle, what filled its tier.
    fn pulled_until(&self, epoch: u32) -> LoadStats {
        match &self.keeper {
            Keeper::Frequency(steady) => steady.pulled_until(epoch),
            Keeper::Oracle(_, _, filled) => *filled,
        }
    }
}

impl BatchSource for ScheduledBatches<'_> {
    fn n_batches(&self) -> u32 {
        self.written
            .schedule
            .n_batches(self.worker)
            .saturating_mul(self.written.schedule.spec().epochs)
    }

    fn batch(&self, index: u32) -> Result<(Batch, RowResidency), ClientError> {
        let per_epoch = self.written.schedule.n_batches(self.worker);
        let (epoch, position) = (index / per_epoch, index % per_epoch);
        // Before anything can fail: a turn that is given up lets the others end.
        let kept: Box<dyn Residency> = match &self.keeper {
            Keeper::Frequency(steady) => Box::new(HotRows::new(steady.for_epoch(epoch)?)),
            Keeper::Oracle(tier, uses, _) => {
                let mut turn = tier.turn(index);
                turn.announce(self.next_uses(uses, epoch, position)?);
                Box::new(turn)
            }
        };
        Ok((self.written.schedule.get(self.worker, epoch, position)?, Some(kept)))
    }

    fn end_of_epoch(&self, index: u32) -> u32 {
        let per_epoch = self.written.schedule.n_batches(self.worker).max(1);
        (index / per_epoch + 1).saturating_mul(per_epoch)
    }
}

/// Returns the first `n` remote rows that the rest of the first epoch uses, in the order of use.
/// With each is the number of its batch, from 0 at `place`.
fn soonest(
    schedule: &Schedule,
    worker: u32,
    place: Place,
    n: usize,
    is_remote: &dyn Fn(NodeId) -> bool,
) -> Result<Vec<(NodeId, u32)>, ClientError> {
    let mut seen = vec![0u64; schedule.n_nodes().div_ceil(64) as usize];
    let mut soonest = Vec::new();
    for (number, position) in (0..).zip(place.step..schedule.n_batches(worker)) {
        if soonest.len() >= n {
            break;
        }
        let nodes = schedule.get(worker, place.epoch, position)?.nodes;
        soonest.extend(nodes.into_iter().filter_map(|node| {
            let (word, bit) = (&mut seen[node.index() / 64], 1 << (node.index() % 64));
            let is_new = *word & bit == 0;
            *word |= bit;
            (is_new && is_remote(node)).then_some((node, number))
        }));
    }
    soonest.truncate(n);
    Ok(soonest)
}

/// Works out the next uses, in a file of this run's own: several may train by one schedule. It is
/// beside the schedule, where there is room for as much, else, in a folder that only may be read,
/// with temporary files.
fn next_uses(schedule: &Schedule, worker: u32, path: &Path) -> Result<NextUses, ClientError> {
    let scratch = scratch_beside(path, worker);
    match NextUses::of(schedule, worker, &scratch) {
        Err(ScheduleError::Io(error)) if is_of_the_folder(&error.source) => {
            let name = scratch.file_name().unwrap_or_default();
            Ok(NextUses::of(schedule, worker, &std::env::temp_dir().join(name))?)
        }
        uses => Ok(uses?),
    }
}

/// Returns a name that no other run has, nor this one for another worker or time.
fn scratch_beside(path: &Path, worker: u32) -> PathBuf {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let (process, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let mut scratch = path.as_os_str().to_owned();
    scratch.push(format!(".next-uses-{worker}-{process}-{number}-{since:x}"));
    PathBuf::from(scratch)
}

/// Returns whether nothing can be made in the folder.
fn is_of_the_folder(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}
