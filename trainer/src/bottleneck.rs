//! Times of a run's steps, and their bottleneck.

use lodestore_client::prefetch::BatchReadiness;
use serde::Serialize;

use crate::step::{StepSeconds, WorkerStep};

/// Shares of the time of a mean step of one worker. The first four add up to 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepShares {
    /// Forward and backward pass.
    pub compute: f64,
    /// Waiting for a batch.
    pub wait: f64,
    /// Averaging gradients and updating parameters.
    pub update: f64,
    /// Waiting for other workers.
    pub others: f64,
    /// Time to prepare a batch, as a share of a step. A batch that is prepared during earlier steps
    /// takes no time of this one, so the share may exceed 1.
    pub prepare: f64,
    /// Share of `prepare` for sampling. This and the next four add up to 1.
    pub sample: f64,
    /// Share of `prepare` for look-ups of rows.
    pub lookup: f64,
    /// Share of `prepare` for pulls.
    pub pull: f64,
    /// Share of `prepare` for reads of own rows.
    pub read: f64,
    /// Share of `prepare` for copies of other rows.
    pub copy: f64,
    /// The largest of the first four.
    pub bottleneck: Bottleneck,
    /// The largest part of preparation. It explains `wait`.
    pub preparation: Preparation,
    /// Overlap efficiency of MassiveGNN (section V-B2 and Fig. 9): 1 less the share of training
    /// time spent waiting for a batch's preparation. The first batch of each worker does not count,
    /// since no batch can be trained on meanwhile (its Eq. 4). Absent where nothing is prepared
    /// ahead.
    pub overlap_efficiency: Option<f64>,
}

/// The largest part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bottleneck {
    /// Forward and backward pass.
    Compute,
    /// Waiting for batches.
    Wait,
    /// Averaging gradients and updating parameters.
    Update,
    /// Waiting for workers that are slower or have larger batches.
    Others,
}

/// A part of the preparation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Preparation {
    /// Sampling, or reading the schedule.
    Sample,
    /// Look-ups of rows.
    Lookup,
    /// Pulls of remote rows.
    Pull,
    /// Reads of own rows.
    Read,
    /// Copies of other rows.
    Copy,
}

/// Sums over the steps of all workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepSums {
    all: StepSeconds,
    /// Seconds of waiting in all steps but each worker's first.
    wait_later: f64,
    step_later: f64,
    /// Whether each worker has made its first step.
    begun: Vec<bool>,
    /// Whether any batch was prepared ahead.
    is_ahead: bool,
}

impl StepSums {
    pub(crate) fn add(&mut self, step: &WorkerStep, met: BatchReadiness) {
        let worker = step.worker as usize;
        if self.begun.len() <= worker {
            self.begun.resize(worker + 1, false);
        }
        if std::mem::replace(&mut self.begun[worker], true) {
            self.wait_later += step.seconds.wait;
            self.step_later += step.seconds.step;
        }
        self.is_ahead |= met != BatchReadiness::DefaultPath;
        self.all += step.seconds;
    }

    /// Returns the shares of a mean step; none without steps.
    pub(crate) fn shares(&self) -> Option<StepShares> {
        let StepSeconds { step, sample, lookup, pull, read, copy, wait, compute, update } =
            self.all;
        if step <= 0.0 {
            return None;
        }
        let others = (step - wait - compute - update).max(0.0);
        let parts = [
            (compute, Bottleneck::Compute),
            (wait, Bottleneck::Wait),
            (update, Bottleneck::Update),
            (others, Bottleneck::Others),
        ];
        let preparations = [
            (sample, Preparation::Sample),
            (lookup, Preparation::Lookup),
            (pull, Preparation::Pull),
            (read, Preparation::Read),
            (copy, Preparation::Copy),
        ];
        let prepare: f64 = preparations.iter().map(|(seconds, _)| seconds).sum();
        let of_preparation = |seconds: f64| if prepare > 0.0 { seconds / prepare } else { 0.0 };
        let is_measured = self.is_ahead && self.step_later > 0.0;
        Some(StepShares {
            compute: compute / step,
            wait: wait / step,
            update: update / step,
            others: others / step,
            prepare: prepare / step,
            sample: of_preparation(sample),
            lookup: of_preparation(lookup),
            pull: of_preparation(pull),
            read: of_preparation(read),
            copy: of_preparation(copy),
            bottleneck: largest(parts),
            preparation: largest(preparations),
            overlap_efficiency: is_measured.then(|| 1.0 - self.wait_later / self.step_later),
        })
    }
}

/// Returns the name of the largest, the first of equals.
fn largest<T: Copy, const N: usize>(named: [(f64, T); N]) -> T {
    let mut best = named[0];
    for other in &named[1..] {
        if other.0 > best.0 {
            best = *other;
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Place;
    use crate::step_outcome::StepOutcome;

    fn step(worker: u32, seconds: StepSeconds) -> WorkerStep {
        StepOutcome { seconds, ..StepOutcome::default() }.worker_step(Place::default(), worker, 0)
    }

    #[test]
    fn the_largest_share_is_the_bottleneck_and_shares_add_up() {
        let seconds = StepSeconds {
            step: 10.0,
            wait: 5.0,
            compute: 3.0,
            update: 1.0,
            sample: 1.0,
            pull: 7.0,
            read: 1.5,
            copy: 2.0,
            lookup: 0.5,
        };
        let mut sums = StepSums::default();
        assert_eq!(sums.shares(), None);
        sums.add(&step(0, seconds), BatchReadiness::DefaultPath);
        let shares = sums.shares().unwrap();
        let sum = shares.compute + shares.wait + shares.update + shares.others;
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        assert_eq!((shares.wait, shares.others, shares.prepare), (0.5, 0.1, 1.2));
        let prepared = [shares.sample, shares.lookup, shares.pull, shares.read, shares.copy];
        assert!((prepared.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{prepared:?}");
        assert_eq!((shares.pull, shares.read), (7.0 / 12.0, 1.5 / 12.0));
        assert_eq!(shares.bottleneck, Bottleneck::Wait);
        assert_eq!(shares.preparation, Preparation::Pull);
        assert_eq!(shares.overlap_efficiency, None, "nothing was prepared ahead");
        let busy = StepSeconds { step: 10.0, compute: 9.0, ..StepSeconds::default() };
        sums.add(&step(0, busy), BatchReadiness::Ready);
        assert_eq!(sums.shares().unwrap().bottleneck, Bottleneck::Compute);
    }

    #[test]
    fn overlap_leaves_out_the_first_batch_of_each_worker() {
        let mut sums = StepSums::default();
        let waiting = |wait| StepSeconds { step: 4.0, wait, ..StepSeconds::default() };
        for (worker, wait) in [(0, 4.0), (1, 3.0), (0, 1.0), (1, 0.0), (0, 0.5), (1, 0.5)] {
            sums.add(&step(worker, waiting(wait)), BatchReadiness::Waited);
        }
        assert_eq!(sums.shares().unwrap().overlap_efficiency, Some(1.0 - 2.0 / 16.0));
    }
}
