//! Batches with their rows, loaded one by one or several together.

use std::{
    ops::Range,
    sync::{
        Mutex, MutexGuard,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, Scope},
    time::Instant,
};

use lodestore_graph::NodeId;
use lodestore_graph::lock::IgnorePoison;

use super::rows::{BatchRows, Free, Memory};
use super::{BatchSource, ClaimState, PreparedBatch, Shape, TakeRows};
use crate::error::ClientError;
use crate::load_stats::LoadStats;
use crate::loader::{BatchLoader, RowResidency};

/// Most groups of batches that are loaded concurrently, however large the window.
pub(super) const LANES_MAX: u32 = 32;

/// A prepared batch and its index, or the reason why there is none.
pub(super) type Ready = Result<(u32, PreparedBatch), ClientError>;

/// The claim, held until the rows are loaded if their order matters.
type Claim<'a> = Option<MutexGuard<'a, ()>>;

/// Batches that are loaded together, in the order of training.
#[derive(Debug)]
pub(super) struct Coming {
    /// Batches that were not taken yet, including one that failed.
    pub(super) n_left: usize,
    pub(super) ready: Receiver<Ready>,
}

/// Batches whose rows are not loaded yet.
pub(super) struct Group {
    first: u32,
    batches: Vec<PreparedBatch>,
    kept: Vec<RowResidency>,
    /// Why the batch after these could not be obtained.
    failed: Option<ClientError>,
}

/// A group for a lane, the memory for its rows, and the channel for its batches.
struct Job {
    group: Group,
    rows: Memory,
    done: SyncSender<Ready>,
}

/// Prepares batches ahead of the trainer, on the background thread.
pub(super) struct Preparer<'a> {
    pub(super) source: &'a dyn BatchSource,
    pub(super) shared: &'a ClaimState,
    pub(super) window: Shape,
    /// Where memory is returned.
    pub(super) home: &'a SyncSender<Free>,
    pub(super) coming: &'a SyncSender<Coming>,
}

impl Preparer<'_> {
    /// Runs the background thread. It first receives memory and a place in the window over `free`,
    /// so that each claim has both. At the start the trainer waits for batches, so fewer are loaded
    /// together.
    ///
    /// Batches whose tier follows the schedule are loaded by lanes, which are separate threads, so
    /// that their pulls overlap. All others are loaded here, one group after the other: the tiers
    /// of their source decide by the order of pulls.
    pub(super) fn run(&self, loader: BatchLoader, free: &Receiver<Free>) {
        let n_memories = self.window.memories;
        // As many as can be in flight: no job waits for another.
        let (jobs, queue) = sync_channel(n_memories as usize);
        let queue = Mutex::new(queue);
        thread::scope(|scope| {
            let (preparer, queue, most) = (self, &queue, n_memories.min(LANES_MAX));
            self.dispatch(loader, free, Lanes { scope, preparer, queue, jobs, n_lanes: 0, most });
        });
    }

    /// Claims batches as memory becomes free, and has them loaded.
    fn dispatch(&self, mut loader: BatchLoader, free: &Receiver<Free>, mut lanes: Lanes<'_, '_>) {
        let Self { source, shared, window, .. } = *self;
        let (mut memories, mut places, mut together) = (Vec::new(), window.places, 1);
        while let Ok(free) = free.recv() {
            match free {
                Free::Memory(rows) => memories.push(rows),
                Free::Place => places += 1,
                Free::Stop => return,
            }
            while places > 0
                && let Some(rows) = memories.pop()
            {
                let n = together.min(places);
                let Some((claimed, claim)) = shared.claim_next(source, n) else { return };
                places -= claimed.len() as u32;
                together = (2 * together).min(window.together);
                let group = Group::get(source, claimed);
                let claim = (!group.is_unordered()).then_some(claim);
                let n_left = group.batches.len() + usize::from(group.failed.is_some());
                let (done, ready) = sync_channel(n_left);
                let (is_last, overlaps) = (group.failed.is_some(), group.is_planned());
                if self.coming.send(Coming { n_left, ready }).is_err() {
                    return;
                }
                let job = Job { group, rows, done };
                let is_last = match overlaps {
                    true => lanes.send(job, &loader) || is_last,
                    false => job.run(&mut loader, claim, self),
                };
                if is_last {
                    return;
                }
            }
        }
    }

    /// Runs a lane: loads groups in the order of training until there are no more. The first group
    /// in flight waits for no other group, so all groups end.
    fn run_lane(&self, queue: &Mutex<Receiver<Job>>, mut loader: BatchLoader) {
        loop {
            let job = queue.lock().ignore_poison().recv();
            match job {
                Ok(job) if !self.shared.is_over() => job.run(&mut loader, None, self),
                _ => return,
            };
        }
    }
}

/// Threads that load groups of batches, started as needed.
struct Lanes<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    preparer: &'scope Preparer<'scope>,
    queue: &'scope Mutex<Receiver<Job>>,
    jobs: SyncSender<Job>,
    n_lanes: u32,
    most: u32,
}

impl<'scope> Lanes<'scope, '_> {
    /// Has a lane load a group; returns whether no lane is left.
    fn send(&mut self, job: Job, loader: &BatchLoader) -> bool {
        if self.n_lanes < self.most {
            let (preparer, queue, loader) = (self.preparer, self.queue, loader.clone());
            self.n_lanes += 1;
            self.scope.spawn(move || preparer.run_lane(queue, loader));
        }
        self.jobs.send(job).is_err()
    }
}

impl Job {
    /// Loads the group and sends its batches; returns whether one has failed or is not wanted.
    fn run(self, loader: &mut BatchLoader, claim: Claim<'_>, preparer: &Preparer<'_>) -> bool {
        loader.set_kind(preparer.shared.kind_of(self.group.first));
        for ready in self.group.load(loader, claim, self.rows, preparer.home) {
            let failed = ready.is_err();
            if self.done.send(ready).is_err() || failed {
                return true;
            }
        }
        false
    }
}

impl Group {
    /// Obtains the batches `claimed`, up to the first that fails.
    pub(super) fn get(source: &dyn BatchSource, claimed: Range<u32>) -> Self {
        let first = claimed.start;
        let mut this = Self { first, batches: Vec::new(), kept: Vec::new(), failed: None };
        for index in claimed {
            let start = Instant::now();
            match source.batch(index) {
                Ok((batch, kept)) => {
                    let sample_seconds = start.elapsed().as_secs_f64();
                    let batch = PreparedBatch { batch, sample_seconds, ..PreparedBatch::default() };
                    this.batches.push(batch);
                    this.kept.push(kept);
                }
                Err(error) => {
                    this.failed = Some(error);
                    break;
                }
            }
        }
        this
    }

    /// Returns whether tiers that follow the schedule decide the order of rows.
    fn is_planned(&self) -> bool {
        let keeps =
            |kept: &RowResidency| kept.as_ref().is_some_and(|kept| kept.keeps_pulled_rows());
        !self.kept.is_empty() && self.kept.iter().all(keeps)
    }

    /// Returns whether the order of pulls decides nothing: no tier learns from the pulls of hot
    /// sets, and planned tiers keep their order themselves.
    fn is_unordered(&self) -> bool {
        self.kept.iter().all(Option::is_some)
    }

    /// Loads the rows of its only batch, unless `take` loads them. The memory returns `home` when
    /// the batch is dropped.
    pub(super) fn load_one(
        mut self,
        loader: &mut BatchLoader,
        claim: Claim<'_>,
        rows: Memory,
        home: &SyncSender<Free>,
        take: &mut TakeRows<'_>,
    ) -> Ready {
        let claim = claim.filter(|_| !self.is_unordered());
        if let ([prepared], [None]) = (&mut self.batches[..], &self.kept[..])
            && let Some(load) = take(loader, &prepared.batch.nodes)?
        {
            // The channel has room for all memory that was lent.
            let _ = home.try_send(Free::Memory(rows));
            let prepared = PreparedBatch { load, ..std::mem::take(prepared) };
            return Ok((self.first, prepared));
        }
        let ready = self.load(loader, claim, rows, home);
        ready.into_iter().next().unwrap_or_else(|| unreachable!("one was asked for"))
    }

    /// Loads the rows, and releases the claim. Memory returns `home` when the batches are dropped.
    fn load(
        self,
        loader: &mut BatchLoader,
        claim: Claim<'_>,
        rows: Memory,
        home: &SyncSender<Free>,
    ) -> Vec<Ready> {
        let Self { first, mut batches, kept, failed } = self;
        let loaded = load(loader, &mut batches, kept, rows, home);
        drop(claim);
        if let Err(error) = loaded {
            return vec![Err(error)];
        }
        (first..).zip(batches).map(Ok).chain(failed.map(Err)).collect()
    }
}

fn load(
    loader: &mut BatchLoader,
    prepared: &mut [PreparedBatch],
    kept: Vec<RowResidency>,
    mut rows: Memory,
    home: &SyncSender<Free>,
) -> Result<(), ClientError> {
    let row_bytes = loader.row_bytes();
    let bytes_of = |nodes: &[NodeId]| nodes.len().saturating_mul(row_bytes);
    let n_bytes = prepared.iter().map(|of| bytes_of(&of.batch.nodes)).sum();
    let nodes = prepared.iter().map(|of| &of.batch.nodes[..]);
    let mut batches: Vec<_> = nodes.zip(kept).collect();
    let stats: Vec<LoadStats> = loader.load_together(&mut batches, rows.resize(n_bytes))?;
    let lengths = prepared.iter().map(|of| bytes_of(&of.batch.nodes)).collect::<Vec<_>>();
    let rows = BatchRows::split(rows, lengths.into_iter(), home.clone());
    for ((of, load), rows) in prepared.iter_mut().zip(stats).zip(rows) {
        (of.load, of.rows) = (load, rows);
    }
    Ok(())
}
