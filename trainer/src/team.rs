//! The workers of this process as threads, stepping together with each other and with those of other
//! processes.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{Scope, ScopedJoinHandle, available_parallelism},
};

use lodestore_client::{HaloBuffer, LoadStats, PrefetchStats, RowSource, SteadyStats};

use crate::{
    TrainError,
    process_group::ProcessGroup,
    step_outcome::{MemberStats, StepOutcome, TeamStep},
    strategy::Rapid,
    worker::{StepOrder, Worker},
};

/// The workers of this process. Parameters stand still while a step is under way.
pub(crate) struct Team<'scope> {
    members: Vec<Member<'scope>>,
    n_steps: u32,
    /// Figures of all workers of the run after the last step.
    stats: Vec<MemberStats>,
}

/// What a worker brings to a team.
pub(crate) struct Recruit<'scope> {
    pub(crate) worker: Worker<'scope>,
    /// Batches in each epoch.
    pub(crate) n_batches: u32,
    /// Its schedule and hot sets, when the strategy has any.
    pub(crate) rapid: Option<Arc<Rapid<'scope>>>,
    /// Where its remote rows come from: perhaps a buffer.
    pub(crate) remote: Arc<dyn RowSource>,
}

struct Member<'scope> {
    worker: u32,
    orders: SyncSender<StepOrder>,
    outcomes: Receiver<Result<StepOutcome, TrainError>>,
    thread: ScopedJoinHandle<'scope, ()>,
    n_batches: u32,
    rapid: Option<Arc<Rapid<'scope>>>,
    remote: Arc<dyn RowSource>,
    prefetch: PrefetchStats,
}

impl<'scope> Team<'scope> {
    /// Starts a thread per worker. Each computes in a pool of its own with its share of the
    /// cores, so that workers neither wait for each other's tasks nor outnumber the cores, which
    /// `n_processes` share. All `n_workers` of the run together make `n_steps` in an epoch.
    pub(crate) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        recruits: Vec<Recruit<'scope>>,
        n_processes: u32,
        [n_workers, n_steps]: [u32; 2],
    ) -> Result<Self, TrainError> {
        let n_cores = available_parallelism().map_or(1, usize::from);
        let n_pools = recruits.len().max(1) * n_processes as usize;
        let n_threads = (n_cores / n_pools).max(1);
        let start = |Recruit { worker, n_batches, rapid, remote }| {
            let number = worker.worker;
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build()?;
            let (orders, inbox) = sync_channel(1);
            let (outbox, outcomes) = sync_channel(1);
            let thread = scope.spawn(move || pool.install(move || worker.run(&inbox, &outbox)));
            let prefetch = PrefetchStats::default();
            let worker = number;
            Ok(Member { worker, orders, outcomes, thread, n_batches, rapid, remote, prefetch })
        };
        let members = recruits.into_iter().map(start).collect::<Result<_, TrainError>>()?;
        Ok(Self { members, n_steps, stats: vec![MemberStats::default(); n_workers as usize] })
    }

    /// Steps of an epoch: the batches of the worker that has most.
    pub(crate) fn n_steps(&self) -> u32 {
        self.n_steps
    }

    /// Lets every worker that has a batch left train on it, and averages in order of workers. None if
    /// the leader has ended the run.
    pub(crate) fn step(
        &mut self,
        epoch: u32,
        step: u32,
        group: &mut ProcessGroup<'_>,
    ) -> Result<Option<TeamStep>, TrainError> {
        let order = StepOrder { epoch, batch: step };
        let mut outcomes = Vec::with_capacity(self.members.len());
        for member in self.members.iter().filter(|member| step < member.n_batches) {
            // A worker that is gone shows when its outcome is missing.
            let _ = member.orders.send(order);
        }
        for member in &mut self.members {
            if step < member.n_batches {
                let worker = member.worker;
                let gone = |_| TrainError::WorkerPanicked { worker };
                let outcome = member.outcomes.recv().map_err(gone)??;
                member.prefetch = outcome.prefetch;
                // A batch without roots takes no part in the step.
                if outcome.n_roots > 0 {
                    outcomes.push((worker, outcome));
                }
            }
        }
        self.take_stats(epoch);
        group.step(outcomes, &mut self.stats)
    }

    /// Figures of all workers of the run, with VectorPulls for the hot sets of epochs up to `epoch`;
    /// those of other processes are as they were after the last step.
    pub(crate) fn stats(&mut self, epoch: u32) -> &[MemberStats] {
        self.take_stats(epoch);
        &self.stats
    }

    fn take_stats(&mut self, epoch: u32) {
        for member in &self.members {
            let rapid = member.rapid.as_ref();
            self.stats[member.worker as usize] = MemberStats {
                prefetch: member.prefetch,
                steady: rapid.map_or_else(SteadyStats::default, |rapid| rapid.stats()),
                pulled: rapid.map_or_else(LoadStats::default, |rapid| rapid.pulled_until(epoch)),
                buffer_bytes: member.remote.halo_buffer().map_or(0, HaloBuffer::bytes),
            };
        }
    }
}

impl Drop for Team<'_> {
    /// Ends the orders and waits for the threads, each of which ends after its present batch.
    fn drop(&mut self) {
        for Member { orders, outcomes, thread, .. } in self.members.drain(..) {
            drop((orders, outcomes));
            // A panic has been reported as a missing outcome; the scope would raise it again.
            let _ = thread.join();
        }
    }
}
