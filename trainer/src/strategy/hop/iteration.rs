//! Assignment of roots to models, workers and time steps of an iteration (HopGNN, sections 5.1 and
//! 5.3). Time steps are merged while that makes epochs faster.

use std::sync::Arc;

use lodestore_graph::{
    NodeId,
    sampler::{RootPlan, batch_seed, epoch_order},
};

use crate::config::Merge;
use crate::report::EpochReport;

/// Mixed into the run's seed, so that the choice of time steps does not reuse the sampler's
/// numbers.
const MERGE_STREAM: u64 = 0x686f_705f_6d65_7267;

/// The roots of a global batch by time step and model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Iteration {
    steps: Vec<TimeStep>,
}

/// Roots that all models train on together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeStep {
    /// Model d is at worker (d + offset) mod N.
    pub offset: u32,
    /// Roots by model.
    pub roots: Vec<Vec<NodeId>>,
}

/// The iterations of a run, one epoch after the other.
pub struct Iterations<'a> {
    plan: RootPlan<'a>,
    train: &'a [NodeId],
    merge: Merge,
    /// Epoch of the present order of roots.
    epoch: Option<u32>,
    order: Vec<NodeId>,
}

impl<'a> Iterations<'a> {
    /// Returns the iterations over the training nodes.
    #[must_use]
    pub fn new(plan: RootPlan<'a>, train: &'a [NodeId], merge: Merge) -> Self {
        Self { plan, train, merge, epoch: None, order: Vec::new() }
    }

    /// Returns number `batch` of an epoch, with `n_merges` time steps merged into the others.
    pub fn get(&mut self, epoch: u32, batch: u32, n_merges: u32) -> Arc<Iteration> {
        if self.epoch != Some(epoch) {
            self.order = epoch_order(self.plan.seed, epoch, self.train);
            self.epoch = Some(epoch);
        }
        let roots = self.plan.global_batches(&self.order).nth(batch as usize).unwrap_or_default();
        let mut iteration = Iteration::new(&self.plan, roots);
        for merged in 0..n_merges {
            let chosen = match self.merge {
                Merge::None => break,
                Merge::Min => iteration.fewest_roots(),
                // The pattern of an iteration, in whichever epoch.
                Merge::Random => {
                    let seed = batch_seed(self.plan.seed ^ MERGE_STREAM, merged, 0, batch);
                    (seed % iteration.steps.len() as u64) as usize
                }
            };
            iteration.merge(chosen);
        }
        Arc::new(iteration)
    }
}

impl Iteration {
    /// Deals the roots of a global batch to models in turn, and to time steps by owner.
    fn new(plan: &RootPlan<'_>, batch: &[NodeId]) -> Self {
        let n = plan.workers;
        let none = |offset| TimeStep { offset, roots: vec![Vec::new(); n as usize] };
        let mut steps: Vec<TimeStep> = (0..n).map(none).collect();
        for (&root, model) in batch.iter().zip((0..n).cycle()) {
            let owner = plan.owner_of(root).unwrap_or(model);
            let offset = (owner + n - model) % n;
            steps[offset as usize].roots[model as usize].push(root);
        }
        Self { steps }
    }

    /// Returns the time steps in their order; there is at least one.
    #[must_use]
    pub fn steps(&self) -> &[TimeStep] {
        &self.steps
    }

    /// Returns the number of roots of each model.
    #[must_use]
    pub fn roots_of_models(&self) -> Vec<u64> {
        let of_model =
            |model: usize| self.steps.iter().map(|step| step.roots[model].len() as u64).sum();
        (0..self.steps[0].roots.len()).map(of_model).collect()
    }

    /// Returns the position of the time step with the fewest roots, the first of several.
    fn fewest_roots(&self) -> usize {
        let n_roots = |step: &TimeStep| step.roots.iter().map(Vec::len).sum::<usize>();
        let fewest = (0..self.steps.len()).min_by_key(|&at| n_roots(&self.steps[at]));
        fewest.unwrap_or_default()
    }

    /// Removes a time step; its roots are dealt to the others in turn. The last time step stays.
    fn merge(&mut self, chosen: usize) {
        if self.steps.len() == 1 {
            return;
        }
        let merged = self.steps.remove(chosen);
        let n_left = self.steps.len();
        for (model, roots) in merged.roots.into_iter().enumerate() {
            for (at, root) in roots.into_iter().enumerate() {
                self.steps[at % n_left].roots[model].push(root);
            }
        }
    }
}

impl TimeStep {
    /// Returns the model that is at `worker`.
    #[must_use]
    pub fn model_at(&self, worker: u32) -> u32 {
        let n = self.roots.len() as u32;
        (worker + n - self.offset) % n
    }

    /// Returns the roots that `worker` trains a model on.
    #[must_use]
    pub fn roots_at(&self, worker: u32) -> &[NodeId] {
        &self.roots[self.model_at(worker) as usize]
    }
}

/// Returns how many time steps each iteration of the next epoch loses, from the epochs before it.
/// The first epoch loses none, and each later epoch one more. This ends when an epoch was not
/// faster than the one with one less.
///
/// An epoch in which the run was resumed, or with which it continued, has no time to compare. At
/// most a part of it was timed, with caches and connections that were new. The next epoch repeats
/// it.
pub(super) fn n_merges(epochs: &[EpochReport], n_workers: u32) -> u32 {
    let mut best: Option<(u32, f64)> = None;
    for epoch in epochs.iter().filter(|epoch| !epoch.resumed) {
        let Some(n_time_steps) = epoch.time_steps.filter(|_| epoch.steps > 0) else { continue };
        let per_iteration = u32::try_from(n_time_steps / u64::from(epoch.steps));
        let merged = n_workers.saturating_sub(per_iteration.unwrap_or(u32::MAX));
        match best {
            Some((fewest, seconds)) if merged > fewest && epoch.seconds >= seconds => {
                return fewest;
            }
            Some((fewest, _)) if merged <= fewest => {}
            _ => best = Some((merged, epoch.seconds)),
        }
    }
    best.map_or(0, |(merged, _)| (merged + 1).min(n_workers.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use lodestore_graph::{PartitionBook, sampler::Deal};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn merging_is_that_of_figure_10() {
        // Roots of three models in three time steps; the second has the fewest.
        let sizes = [[2, 4, 3], [1, 2, 1], [2, 2, 3]];
        let mut ids = (0..).map(NodeId);
        let step = |(offset, sizes): (u32, [usize; 3])| TimeStep {
            offset,
            roots: sizes.map(|n| ids.by_ref().take(n).collect()).to_vec(),
        };
        let mut iteration = Iteration { steps: (0..).zip(sizes).map(step).collect() };
        let n_roots = iteration.roots_of_models();
        assert_eq!(iteration.fewest_roots(), 1);
        iteration.merge(1);
        let sizes = |iteration: &Iteration| -> Vec<(u32, Vec<usize>)> {
            let sizes = |step: &TimeStep| step.roots.iter().map(Vec::len).collect();
            iteration.steps.iter().map(|step| (step.offset, sizes(step))).collect()
        };
        assert_eq!(sizes(&iteration), [(0, vec![3, 5, 4]), (2, vec![2, 3, 3])]);
        assert_eq!(iteration.roots_of_models(), n_roots);
        iteration.merge(0);
        iteration.merge(0);
        assert_eq!(sizes(&iteration), [(2, vec![5, 8, 7])]);
    }

    proptest! {
        /// The naive twin: each root of the batch, one by one.
        #[test]
        fn every_model_trains_on_its_own_roots_at_their_owners(
            counts in prop::collection::vec(0u32..30, 1..6),
            workers in 1u32..7,
            batch_size in 1usize..6,
            n_merges in 0u32..7,
            merge in prop::sample::select(vec![Merge::None, Merge::Min, Merge::Random]),
        ) {
            let book = PartitionBook::from_counts(&counts).unwrap();
            let train: Vec<NodeId> = (0..book.n_nodes()).map(NodeId).collect();
            let plan = RootPlan { seed: 3, deal: Deal::Home, workers, batch_size, book: &book };
            let mut iterations = Iterations::new(plan, &train, merge);
            let order = epoch_order(3, 1, &train);
            for (at, batch) in plan.global_batches(&order).enumerate() {
                let iteration = iterations.get(1, at as u32, n_merges);
                let merged = if merge == Merge::None { 0 } else { n_merges };
                let n_steps = workers.saturating_sub(merged).max(1);
                prop_assert_eq!(iteration.steps().len() as u32, n_steps);
                for model in 0..workers as usize {
                    let own = batch.iter().copied().skip(model).step_by(workers as usize);
                    let mut own: Vec<NodeId> = own.collect();
                    let roots = iteration.steps().iter().flat_map(|step| step.roots[model].clone());
                    let mut roots: Vec<NodeId> = roots.collect();
                    prop_assert_eq!(iteration.roots_of_models()[model], own.len() as u64);
                    own.sort_unstable();
                    roots.sort_unstable();
                    prop_assert_eq!(roots, own);
                }
                for step in iteration.steps() {
                    for worker in 0..workers {
                        let model = step.model_at(worker);
                        prop_assert_eq!((model + step.offset) % workers, worker);
                        let is_home = |&root: &NodeId| plan.owner_of(root) == Some(worker);
                        prop_assert!(merged > 0 || step.roots_at(worker).iter().all(is_home));
                    }
                }
            }
        }
    }

    /// Returns how many were merged in each epoch, by the time that each number takes. A run that
    /// was resumed has a slow epoch, of which that many steps were timed.
    fn merged(seconds: &[f64], n_epochs: usize, resumed: Option<(usize, u32)>) -> Vec<u32> {
        let (mut epochs, mut merged, n_workers) = (Vec::new(), Vec::new(), seconds.len() as u32);
        for number in 0..n_epochs {
            let n = n_merges(&epochs, n_workers);
            merged.push(n);
            let (steps, seconds) = (5, seconds[n as usize]);
            let (timed_steps, seconds) = match resumed {
                Some((epoch, timed_steps)) if epoch == number => (timed_steps, 99.0),
                _ => (steps, seconds),
            };
            epochs.push(EpochReport {
                steps,
                timed_steps,
                time_steps: Some(u64::from((n_workers - n) * timed_steps)),
                resumed: resumed.is_some_and(|(epoch, _)| epoch == number),
                seconds,
                ..Default::default()
            });
        }
        merged
    }

    #[test]
    fn merging_stops_at_the_first_epoch_that_is_not_faster() {
        assert_eq!(merged(&[9.0, 8.0, 7.0, 7.0], 6, None), [0, 1, 2, 3, 2, 2]);
        assert_eq!(merged(&[9.0, 9.5, 1.0, 1.0], 4, None), [0, 1, 0, 0]);
        assert_eq!(merged(&[9.0, 8.0, 7.0, 6.0], 6, None), [0, 1, 2, 3, 3, 3]);
        assert_eq!(merged(&[9.0], 3, None), [0, 0, 0]);
        // The time of an epoch that was resumed is not compared.
        for timed_steps in [0, 2, 5] {
            let resumed = |epoch| Some((epoch, timed_steps));
            assert_eq!(merged(&[9.0, 8.0, 9.0], 5, resumed(1)), [0, 1, 1, 2, 1]);
            assert_eq!(merged(&[9.0, 8.0, 9.0], 5, resumed(0)), [0, 0, 1, 2, 1]);
            // Decisions of earlier epochs stay.
            assert_eq!(merged(&[9.0, 8.0, 9.0], 6, resumed(3)), [0, 1, 2, 1, 1, 1]);
            assert_eq!(merged(&[9.0, 8.0, 7.0, 6.0], 6, resumed(4)), [0, 1, 2, 3, 3, 3]);
        }
    }
}
