//! The workers of this process as threads, each with a partition of its own at a time.

use std::{mem::take, thread::Scope};

use lodestore_models::adam::ReplicaState;

use super::worker::{PartitionFigures, PartitionOrder, PartitionWorker, Trained};
use crate::error::TrainError;
use crate::step_outcome::MemberStats;
use crate::worker_thread::{WorkerThread, thread_pool};

/// The workers of this process.
pub(crate) struct PartitionTeam<'scope> {
    members: Vec<WorkerThread<'scope, PartitionOrder, Trained>>,
    n_workers: u32,
    pub(super) n_parts: u32,
    /// Figures of all workers of the run; this process updates its own.
    pub(crate) stats: Vec<MemberStats>,
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
        let n_pools = workers.len() * n_processes as usize;
        let start = |(number, mut worker): (u32, PartitionWorker<'scope>)| {
            let work = move |order| worker.train(order);
            Ok(WorkerThread::start(scope, number, thread_pool(n_pools)?, work))
        };
        let members = workers.into_iter().map(start).collect::<Result<_, TrainError>>()?;
        let stats = vec![MemberStats::default(); n_workers as usize];
        Ok(Self { members, n_workers, n_parts, stats })
    }

    /// Trains the partitions from `first` on, one by each worker, and replaces the states of those
    /// of this process. Returns their figures in order.
    pub(crate) fn train(
        &mut self,
        epoch: u32,
        first: u32,
        states: &mut [ReplicaState],
    ) -> Result<Vec<PartitionFigures>, TrainError> {
        let end = self.n_parts.min(first.saturating_add(self.n_workers));
        let mut ordered = Vec::new();
        for part in first..end {
            let owner = part % self.n_workers;
            let Some(member) = self.members.iter().find(|of| of.worker == owner) else { continue };
            let state = take(&mut states[part as usize]);
            member.order(PartitionOrder { epoch, part, state });
            ordered.push((part, member));
        }
        let mut figures = Vec::with_capacity(ordered.len());
        for (part, member) in ordered {
            let trained = member.outcome()?;
            states[part as usize] = trained.state;
            self.stats[member.worker as usize].prefetch = trained.figures.outcome.prefetch;
            figures.push(trained.figures);
        }
        Ok(figures)
    }

    /// Records the figures of all workers.
    pub(crate) fn note(&mut self, figures: &[PartitionFigures]) {
        for of_part in figures.iter().filter(|of_part| of_part.n_batches > 0) {
            let worker = of_part.part % self.n_workers;
            self.stats[worker as usize].prefetch = of_part.outcome.prefetch;
        }
    }
}

impl Drop for PartitionTeam<'_> {
    /// Joins the threads; each ends after its present partition.
    fn drop(&mut self) {
        self.members.drain(..).for_each(WorkerThread::end);
    }
}
