//! The workers of this process, as threads that step together with all workers of the run.

use std::{
    sync::Arc,
    thread::{self, Scope, ScopedJoinHandle},
};

use lodestore_client::halo_buffer::HaloBuffer;
use lodestore_client::hot_set_cache::HotSetStats;
use lodestore_client::load_stats::LoadStats;
use lodestore_client::prefetch::PrefetchStats;

use crate::error::TrainError;
use crate::process_group::ProcessGroup;
use crate::setup::Setup;
use crate::step_outcome::{MemberStats, StepOutcome};
use crate::worker::{KeptRows, StepOrder, Worker, WorkerBatches};
use crate::worker_thread::{WorkerThread, thread_pool};

/// Workers of this process. Parameters do not change during a step.
pub(crate) struct Team<'scope, P> {
    members: Vec<Member<'scope, P>>,
    /// Figures of all workers of the run, after the last step.
    stats: Vec<MemberStats>,
}

/// Batches of a worker, and the rows that are kept for them.
pub(crate) struct Feed<'scope, P> {
    pub(crate) batches: Box<dyn WorkerBatches<P> + 'scope>,
    pub(crate) kept: Option<Arc<dyn KeptRows + 'scope>>,
}

struct Member<'scope, P> {
    thread: WorkerThread<'scope, StepOrder<P>, StepOutcome>,
    /// Batches in each epoch.
    n_batches: u32,
    kept: Option<Arc<dyn KeptRows + 'scope>>,
    /// The buffer before its remote rows.
    buffer: Option<Arc<HaloBuffer>>,
    prefetch: PrefetchStats,
}

/// Contribution of a worker to a team.
struct WorkerSetup<'scope, P> {
    worker: Worker<'scope, P>,
    kept: Option<Arc<dyn KeptRows + 'scope>>,
}

impl<'scope, P: Clone + Send + 'scope> Team<'scope, P> {
    /// Starts a thread for each worker of this process, with the batches that `feed` returns for
    /// it. Each computes in a pool of its own with its share of the cores, which the processes of
    /// this machine share. So workers neither wait for each other's tasks nor outnumber the cores.
    pub(crate) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        setup: &'scope Setup<'scope>,
        group: &ProcessGroup<'_>,
        feed: &(dyn Fn(u32) -> Result<Feed<'scope, P>, TrainError> + Sync),
    ) -> Result<Self, TrainError> {
        let n_pools = setup.workers.len() * group.n_local() as usize;
        let mut members = Vec::new();
        for WorkerSetup { mut worker, kept } in set_up_workers(setup, feed)? {
            let pool = thread_pool(n_pools)?;
            let number = worker.worker;
            let work = move |order: StepOrder<P>| worker.step(&order);
            members.push(Member {
                thread: WorkerThread::start(scope, number, pool, work),
                n_batches: setup.n_batches_of(number),
                kept,
                buffer: setup.sources_of(number).buffer().cloned(),
                prefetch: PrefetchStats::default(),
            });
        }
        let stats = vec![MemberStats::default(); setup.config.workers as usize];
        Ok(Self { members, stats })
    }

    /// Returns the workers of this process, in their order.
    pub(crate) fn workers(&self) -> impl Iterator<Item = u32> {
        self.members.iter().map(|member| member.thread.worker)
    }

    /// Trains the batch of `order` in each worker of this process that has it. Returns the
    /// outcomes.
    pub(crate) fn train(
        &mut self,
        order: &StepOrder<P>,
    ) -> Result<Vec<(u32, StepOutcome)>, TrainError> {
        let mut outcomes = Vec::with_capacity(self.members.len());
        for member in self.members.iter().filter(|member| order.batch < member.n_batches) {
            let ends_epoch = order.batch + 1 == member.n_batches;
            member.thread.order(StepOrder { ends_epoch, ..order.clone() });
        }
        for member in &mut self.members {
            if order.batch < member.n_batches {
                let outcome = member.thread.outcome()?;
                member.prefetch = outcome.prefetch;
                outcomes.push((member.thread.worker, outcome));
            }
        }
        Ok(outcomes)
    }

    /// Returns the figures of all workers of the run, with the pulls for kept rows of epochs up to
    /// `epoch`. Figures of other processes are those of the last step.
    pub(crate) fn stats(&mut self, epoch: u32) -> &mut [MemberStats] {
        for member in &self.members {
            let kept = member.kept.as_ref();
            self.stats[member.thread.worker as usize] = MemberStats {
                prefetch: member.prefetch,
                steady: kept.map_or_else(HotSetStats::default, |kept| kept.stats()),
                pulled: kept.map_or_else(LoadStats::default, |kept| kept.pulled_until(epoch)),
                buffer_bytes: member.buffer.as_ref().map_or(0, |buffer| buffer.bytes()),
            };
        }
        &mut self.stats
    }
}

impl<P> Drop for Team<'_, P> {
    /// Waits for the threads. Each ends after its present batch.
    fn drop(&mut self) {
        self.members.drain(..).for_each(|member| member.thread.end());
    }
}

/// Returns all workers of this process.
fn set_up_workers<'scope, P: Send + 'scope>(
    setup: &'scope Setup<'scope>,
    feed: &(dyn Fn(u32) -> Result<Feed<'scope, P>, TrainError> + Sync),
) -> Result<Vec<WorkerSetup<'scope, P>>, TrainError> {
    let set_up = |worker| {
        let Feed { batches, kept } = feed(worker)?;
        let worker = Worker {
            worker,
            plan: setup.root_plan(),
            batches,
            learner: setup.learner(setup.model.clone()),
            replay: setup.config.replay.as_ref(),
            topology: setup.graph.topology,
            config: setup.config,
        };
        Ok(WorkerSetup { worker, kept })
    };
    if let [worker] = setup.workers[..] {
        return Ok(vec![set_up(worker)?]);
    }
    // Concurrently: each reads its schedule, and pulls the rows that it keeps.
    thread::scope(|starting| {
        let start = |&worker| (worker, starting.spawn(move || set_up(worker)));
        let started: Vec<_> = setup.workers.iter().map(start).collect();
        let join = |(worker, thread): (u32, ScopedJoinHandle<'_, _>)| {
            thread.join().unwrap_or(Err(TrainError::WorkerPanicked { worker }))
        };
        // Waits for all before it returns the first error.
        let setups: Vec<_> = started.into_iter().map(join).collect();
        setups.into_iter().collect()
    })
}
