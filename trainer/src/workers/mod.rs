//! The workers of this process as threads, stepping together with each other and with those of
//! other processes.

use std::{
    sync::Arc,
    thread::Scope,
    time::{Duration, Instant},
};

use lodestore_client::RowSource;
use lodestore_client::hot_set_cache::HotSetStats;
use lodestore_client::load_stats::LoadStats;
use lodestore_client::prefetch::PrefetchStats;

use crate::error::TrainError;
use crate::process_group::ProcessGroup;
use crate::replica::Replica;
use crate::step::Place;
use crate::step_outcome::{GradientTerm, MemberStats, MovingModel, StepOutcome, TeamStep};
use crate::strategy::Rapid;
use crate::strategy::full::FullTeam;
use crate::strategy::hop::{Iteration, Iterations};
use crate::strategy::sdt::PartitionTeam;
use crate::worker::{StepOrder, Worker};
use crate::worker_thread::{WorkerThread, thread_pool};

/// Workers of this process. Parameters do not change while a step is under way.
pub(crate) struct Team<'scope> {
    members: Vec<Member<'scope>>,
    /// Steps of an epoch: the batches of the worker that has most.
    pub(crate) n_steps: u32,
    /// Figures of all workers of the run after the last step.
    stats: Vec<MemberStats>,
    /// Those of a run with migration, in the time steps of which workers train.
    pub(crate) iterations: Option<Iterations<'scope>>,
    /// Time steps of each that are merged into the others.
    pub(crate) n_merges: u32,
}

/// The workers of this process, by what they train.
pub(crate) enum Teams<'scope> {
    /// One model, in steps of all workers together.
    Steps(Team<'scope>),
    /// A local model for each partition.
    Partitions(PartitionTeam<'scope>),
    /// One model, over all partitions together.
    Full(Box<FullTeam>),
}

impl Teams<'_> {
    /// Returns figures of all workers of the run; see [`Team::stats`].
    pub(crate) fn stats(&mut self, epoch: u32) -> &[MemberStats] {
        match self {
            Self::Steps(team) => team.stats(epoch),
            Self::Partitions(team) => &team.stats,
            Self::Full(team) => &team.stats,
        }
    }
}

/// Contribution of a worker to a team.
pub(crate) struct WorkerSetup<'scope> {
    pub(crate) worker: Worker<'scope>,
    /// Batches in each epoch.
    pub(crate) n_batches: u32,
    /// Its schedule and hot sets, when the strategy has any.
    pub(crate) rapid: Option<Arc<Rapid<'scope>>>,
    /// Where its remote rows come from: perhaps a buffer.
    pub(crate) remote: Arc<dyn RowSource>,
}

struct Member<'scope> {
    thread: WorkerThread<'scope, StepOrder, StepOutcome>,
    n_batches: u32,
    rapid: Option<Arc<Rapid<'scope>>>,
    remote: Arc<dyn RowSource>,
    prefetch: PrefetchStats,
}

impl<'scope> Team<'scope> {
    /// Starts a thread per worker. Each computes in a pool of its own with its share of the cores,
    /// which `n_processes` share. So workers neither wait for each other's tasks nor outnumber the
    /// cores. All `n_workers` of the run together make `n_steps` in an epoch.
    pub(crate) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        setups: Vec<WorkerSetup<'scope>>,
        n_processes: u32,
        [n_workers, n_steps]: [u32; 2],
    ) -> Result<Self, TrainError> {
        let n_pools = setups.len() * n_processes as usize;
        let start = |WorkerSetup { mut worker, n_batches, rapid, remote }| {
            let (pool, number) = (thread_pool(n_pools)?, worker.worker);
            let work = move |order: StepOrder| worker.step(&order);
            let thread = WorkerThread::start(scope, number, pool, work);
            Ok(Member { thread, n_batches, rapid, remote, prefetch: PrefetchStats::default() })
        };
        let members = setups.into_iter().map(start).collect::<Result<_, TrainError>>()?;
        let stats = vec![MemberStats::default(); n_workers as usize];
        Ok(Self { members, n_steps, stats, iterations: None, n_merges: 0 })
    }

    /// Has every worker that has a batch left train on it, and averages gradients in the order of
    /// workers, or under migration of models.
    pub(crate) fn step(
        &mut self,
        Place { epoch, step }: Place,
        replica: &Replica,
        group: &mut ProcessGroup<'_>,
    ) -> Result<TeamStep, TrainError> {
        if let Some(iterations) = &mut self.iterations {
            let iteration = iterations.get(epoch, step, self.n_merges);
            return self.step_through(&iteration, Place { epoch, step }, replica, group);
        }
        let order = StepOrder { epoch, batch: step, ..StepOrder::default() };
        let mut outcomes = self.train(&order)?;
        // A batch without roots takes no part in the step.
        outcomes.retain(|(_, outcome)| outcome.n_roots > 0);
        let gradients =
            outcomes.iter_mut().map(|(worker, outcome)| outcome.take_gradient(*worker)).collect();
        self.take_stats(epoch);
        group.step(outcomes, gradients, &mut self.stats)
    }

    /// Trains the models of an iteration, which move between its time steps (HopGNN, section 5.1).
    fn step_through(
        &mut self,
        iteration: &Arc<Iteration>,
        Place { epoch, step }: Place,
        replica: &Replica,
        group: &mut ProcessGroup<'_>,
    ) -> Result<TeamStep, TrainError> {
        let parameters = replica.adam.values().concat();
        let (n_workers, of_models) = (self.stats.len() as u32, iteration.roots_of_models());
        // All are equal as an iteration begins: each is where its first time step is.
        let start = |member: &Member<'_>| {
            let sum = vec![0.0; parameters.len()];
            MovingModel { worker: member.thread.worker, sum }
        };
        let mut models: Vec<MovingModel> = self.members.iter().map(start).collect();
        let mut totals = vec![StepOutcome::default(); models.len()];
        let (mut model_bytes, mut moving) = (0, Duration::ZERO);
        for (at, time_step) in iteration.steps().iter().enumerate() {
            if let Some(before) = at.checked_sub(1).map(|before| &iteration.steps()[before]) {
                let (by, start) = (time_step.offset - before.offset, Instant::now());
                models = group.migrate(models, by, n_workers, &parameters)?;
                moving += start.elapsed();
                model_bytes += u64::from(n_workers) * 2 * size_of_val(&parameters[..]) as u64;
            }
            let (batch, of_iteration) = (step, Some((Arc::clone(iteration), at)));
            let order = StepOrder { epoch, batch, time_step: of_iteration, ..StepOrder::default() };
            let outcomes = self.train(&order)?;
            for (((worker, mut outcome), model), total) in
                outcomes.into_iter().zip(&mut models).zip(&mut totals)
            {
                let of_model = of_models[time_step.model_at(worker) as usize];
                let share = (outcome.n_roots as f64 / of_model.max(1) as f64) as f32;
                let gradient = outcome.take_gradient(worker).values;
                let sum = model.sum.iter_mut().zip(gradient);
                sum.for_each(|(sum, value)| *sum += share * value);
                total.add(&outcome);
            }
        }
        let last = &iteration.steps()[iteration.steps().len() - 1];
        let term = |MovingModel { worker, sum: values }| {
            let order = last.model_at(worker);
            GradientTerm { order, n_roots: of_models[order as usize], values }
        };
        let gradients = models.into_iter().map(term).filter(|term| term.n_roots > 0).collect();
        let workers = self.members.iter().map(|member| member.thread.worker);
        let outcomes = workers.zip(totals).filter(|(_, total)| total.n_roots > 0).collect();
        self.take_stats(epoch);
        let step = group.step(outcomes, gradients, &mut self.stats)?;
        let n_time_steps = iteration.steps().len() as u32;
        let average_seconds = step.average_seconds + moving.as_secs_f64();
        Ok(TeamStep { n_time_steps, model_bytes, average_seconds, ..step })
    }

    /// Has the workers of this process that have the batch of `order` train on it; returns their
    /// outcomes.
    fn train(&mut self, order: &StepOrder) -> Result<Vec<(u32, StepOutcome)>, TrainError> {
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

    /// Returns the figures of all workers of the run, with VectorPulls for the hot sets of epochs
    /// up to `epoch`. Those of other processes are as they were after the last step.
    pub(crate) fn stats(&mut self, epoch: u32) -> &[MemberStats] {
        self.take_stats(epoch);
        &self.stats
    }

    fn take_stats(&mut self, epoch: u32) {
        for member in &self.members {
            let rapid = member.rapid.as_ref();
            self.stats[member.thread.worker as usize] = MemberStats {
                prefetch: member.prefetch,
                steady: rapid.map_or_else(HotSetStats::default, |rapid| rapid.stats()),
                pulled: rapid.map_or_else(LoadStats::default, |rapid| rapid.pulled_until(epoch)),
                buffer_bytes: member.remote.buffer_bytes().unwrap_or(0),
            };
        }
    }
}

impl Drop for Team<'_> {
    /// Waits for the threads, each of which ends after its present batch.
    fn drop(&mut self) {
        self.members.drain(..).for_each(|member| member.thread.end());
    }
}

#[cfg(test)]
mod tests;
