//! The workers of this process as threads, stepping together with each other and with those of other
//! processes.

use std::{
    mem::take,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{Scope, ScopedJoinHandle, available_parallelism},
    time::Instant,
};

use lodestore_client::{HaloBuffer, LoadStats, PrefetchStats, RowSource, SteadyStats};

use crate::{
    TrainError,
    group::Group,
    strategy::Rapid,
    worker::{StepOrder, StepOutcome, Worker},
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

/// One step of the whole team.
#[derive(Debug, Default)]
pub(crate) struct TeamStep {
    /// Mean loss over all roots.
    pub(crate) loss: f64,
    pub(crate) n_roots: u64,
    pub(crate) n_right: u64,
    pub(crate) n_batches: u64,
    /// Gradient of the mean loss over all roots, one flat list per parameter.
    pub(crate) gradients: Vec<Vec<f32>>,
    pub(crate) load: LoadStats,
    /// What each worker that had a batch did, without its gradients.
    pub(crate) outcomes: Vec<(u32, StepOutcome)>,
    /// Time to average the gradients.
    pub(crate) average_seconds: f64,
}

/// One worker's figures since the run began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemberStats {
    pub(crate) prefetch: PrefetchStats,
    pub(crate) steady: SteadyStats,
    /// VectorPulls for hot sets up to the epoch asked for.
    pub(crate) pulled: LoadStats,
    /// Memory of the buffer of `massive`.
    pub(crate) buffer_bytes: u64,
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
        group: &mut Group<'_>,
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
                outcomes.push((worker, outcome));
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

impl TeamStep {
    /// The step of these workers' batches: means weighted by roots, summed in the order given.
    pub(crate) fn sum(mut outcomes: Vec<(u32, StepOutcome)>) -> Self {
        let start = Instant::now();
        let n_roots: u64 = outcomes.iter().map(|(_, outcome)| outcome.n_roots).sum();
        let mut sum = Self { n_roots, n_batches: outcomes.len() as u64, ..Self::default() };
        for (_, outcome) in &mut outcomes {
            let share = outcome.n_roots as f64 / n_roots.max(1) as f64;
            sum.loss += share * outcome.loss;
            sum.n_right += outcome.n_right;
            sum.load += outcome.load;
            add_scaled(&mut sum.gradients, share as f32, take(&mut outcome.gradients));
        }
        Self { outcomes, average_seconds: start.elapsed().as_secs_f64(), ..sum }
    }
}

/// `sum += share * gradients`, where an empty `sum` counts as zeros.
fn add_scaled(sum: &mut Vec<Vec<f32>>, share: f32, mut gradients: Vec<Vec<f32>>) {
    if sum.is_empty() {
        gradients.iter_mut().flatten().for_each(|value| *value *= share);
        *sum = gradients;
        return;
    }
    for (sum, gradient) in sum.iter_mut().zip(gradients) {
        for (sum, value) in sum.iter_mut().zip(gradient) {
            *sum += share * value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::StepSeconds;
    use lodestore_client::Met;

    fn outcome(n_roots: u64, loss: f64, gradient: f32) -> StepOutcome {
        StepOutcome {
            loss,
            n_roots,
            n_right: 1,
            gradients: vec![vec![gradient], vec![2.0 * gradient, 0.0]],
            load: LoadStats { local_rows: 3, ..LoadStats::default() },
            n_nodes: 3,
            seconds: StepSeconds::default(),
            met: Met::Ready,
            prefetch: PrefetchStats::default(),
        }
    }

    #[test]
    fn means_are_weighted_by_roots() {
        let step = TeamStep::sum(vec![(0, outcome(3, 1.0, 4.0)), (2, outcome(1, 5.0, 8.0))]);
        assert_eq!((step.loss, step.n_roots, step.n_right, step.n_batches), (2.0, 4, 2, 2));
        assert_eq!(step.gradients, [vec![5.0], vec![10.0, 0.0]]);
        assert_eq!(step.load.local_rows, 6);
        assert_eq!(step.outcomes.iter().map(|(worker, _)| *worker).collect::<Vec<_>>(), [0, 2]);
        assert!(TeamStep::sum(Vec::new()).gradients.is_empty());
    }
}
