//! The workers of this process as threads, each with a partition of its own at a time.

use std::{
    mem::take,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::{Scope, ScopedJoinHandle, available_parallelism},
};

use super::worker::{PartitionFigures, PartitionOrder, PartitionWorker, Trained};
use crate::error::TrainError;
use crate::replica::ReplicaState;
use crate::step_outcome::MemberStats;

/// The workers of this process.
pub(crate) struct PartitionTeam<'scope> {
    members: Vec<PartitionMember<'scope>>,
    n_workers: u32,
    n_parts: u32,
    /// Figures of all workers of the run, of which this process knows its own.
    stats: Vec<MemberStats>,
}

struct PartitionMember<'scope> {
    worker: u32,
    orders: SyncSender<PartitionOrder>,
    outcomes: Receiver<Result<Trained, TrainError>>,
    thread: ScopedJoinHandle<'scope, ()>,
}

impl<'scope> PartitionTeam<'scope> {
    /// Starts a thread for each of `workers`, in a pool of its own with its share of the cores,
    /// which `n_processes` share. The run has `n_workers` and `n_parts` partitions.
    pub(crate) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        workers: Vec<(u32, PartitionWorker<'scope>)>,
        n_processes: u32,
        [n_workers, n_parts]: [u32; 2],
    ) -> Result<Self, TrainError> {
        let n_cores = available_parallelism().map_or(1, usize::from);
        let n_pools = workers.len().max(1) * n_processes as usize;
        let n_threads = (n_cores / n_pools).max(1);
        let start = |(number, worker): (u32, PartitionWorker<'scope>)| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build()?;
            let (orders, inbox) = sync_channel(1);
            let (outbox, outcomes) = sync_channel(1);
            let thread = scope.spawn(move || pool.install(move || worker.run(&inbox, &outbox)));
            Ok(PartitionMember { worker: number, orders, outcomes, thread })
        };
        let members = workers.into_iter().map(start).collect::<Result<_, TrainError>>()?;
        let stats = vec![MemberStats::default(); n_workers as usize];
        Ok(Self { members, n_workers, n_parts, stats })
    }

    /// Returns the number of partitions.
    pub(crate) fn n_parts(&self) -> u32 {
        self.n_parts
    }

    /// Has each worker train one of the partitions from `first` on, as many as there are workers;
    /// the states of those here are replaced. Returns the figures of these, in their order.
    pub(crate) fn train(
        &mut self,
        epoch: u32,
        first: u32,
        states: &mut [ReplicaState],
    ) -> Result<Vec<PartitionFigures>, TrainError> {
        let end = self.n_parts.min(first.saturating_add(self.n_workers));
        let mut ordered = Vec::new();
        for part in first..end {
            let is_its = |member: &PartitionMember<'_>| member.worker == part % self.n_workers;
            let Some(at) = self.members.iter().position(is_its) else { continue };
            let state = take(&mut states[part as usize]);
            // A worker that is gone shows when its outcome is missing.
            let _ = self.members[at].orders.send(PartitionOrder { epoch, part, state });
            ordered.push((part, at));
        }
        let mut figures = Vec::with_capacity(ordered.len());
        for (part, at) in ordered {
            let member = &self.members[at];
            let worker = member.worker;
            let gone = |_| TrainError::WorkerPanicked { worker };
            let trained = member.outcomes.recv().map_err(gone)??;
            states[part as usize] = trained.state;
            self.stats[worker as usize].prefetch = trained.figures.outcome.prefetch;
            figures.push(trained.figures);
        }
        Ok(figures)
    }

    /// Takes note of the figures of all workers.
    pub(crate) fn note(&mut self, figures: &[PartitionFigures]) {
        for of_part in figures.iter().filter(|of_part| of_part.n_batches > 0) {
            let worker = of_part.part % self.n_workers;
            self.stats[worker as usize].prefetch = of_part.outcome.prefetch;
        }
    }

    /// Returns the figures of all workers of the run.
    pub(crate) fn stats(&self) -> &[MemberStats] {
        &self.stats
    }
}

impl Drop for PartitionTeam<'_> {
    /// Ends the orders and waits for the threads, each of which ends after its present partition.
    fn drop(&mut self) {
        for PartitionMember { orders, outcomes, thread, .. } in self.members.drain(..) {
            drop((orders, outcomes));
            // A panic has been reported as a missing outcome; the scope would raise it again.
            let _ = thread.join();
        }
    }
}
