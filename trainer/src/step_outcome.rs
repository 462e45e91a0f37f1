//! Outcome of a step: of one worker, and of all workers of the run.

use lodestore_client::hot_set_cache::HotSetStats;
use lodestore_client::load_stats::LoadStats;
use lodestore_client::prefetch::{BatchReadiness, PrefetchStats};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::TrainError;
use crate::step::{Place, RowsBySource, StepSeconds, WorkerStep, word_of};

/// Elements that are checked together.
const ELEMENTS_PER_CHECK: usize = 1 << 12;

/// The outcome of one batch of one worker.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StepOutcome {
    /// Mean loss over the roots.
    #[serde(with = "exact")]
    pub(crate) loss: f64,
    pub(crate) n_roots: u64,
    /// Roots whose class the model had right.
    pub(crate) n_right: u64,
    /// Gradient of the mean loss, one flat list per parameter. Messages between processes omit it.
    #[serde(skip)]
    pub(crate) gradients: Vec<Vec<f32>>,
    pub(crate) load: LoadStats,
    /// Input nodes.
    pub(crate) n_nodes: u64,
    /// Seconds of the worker's own parts of the step.
    pub(crate) seconds: StepSeconds,
    /// Whether the batch was ready.
    pub(crate) met: BatchReadiness,
    /// The prefetcher's figures so far.
    pub(crate) prefetch: PrefetchStats,
}

/// A gradient that takes part in a step.
#[derive(Clone, Debug)]
pub(crate) struct GradientTerm {
    /// Position in the sum.
    pub(crate) order: u32,
    pub(crate) n_roots: u64,
    /// Gradient of the mean loss over these roots, all parameters concatenated.
    pub(crate) values: Vec<f32>,
}

/// A model that moves between the time steps of an iteration (HopGNN, section 5.1).
#[derive(Clone, Debug)]
pub(crate) struct MovingModel {
    /// Its present worker.
    pub(crate) worker: u32,
    /// Sum of its gradients so far, each weighted by its share of the model's roots.
    pub(crate) sum: Vec<f32>,
}

/// One worker's figures since the run began.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct MemberStats {
    pub(crate) prefetch: PrefetchStats,
    pub(crate) steady: HotSetStats,
    /// VectorPulls for hot sets up to the present epoch.
    pub(crate) pulled: LoadStats,
    /// Memory of the buffer of `massive`.
    pub(crate) buffer_bytes: u64,
}

/// One step of all workers.
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
    /// Time steps.
    pub(crate) n_time_steps: u32,
    /// Bytes of models that moved to other workers, with their gradients.
    pub(crate) model_bytes: u64,
    /// The outcome of each worker that had a batch, without its gradients.
    pub(crate) outcomes: Vec<(u32, StepOutcome)>,
    /// Time to average the gradients, and to move models.
    pub(crate) average_seconds: f64,
}

impl StepOutcome {
    /// Adds the outcome of the worker's next time step.
    pub(crate) fn add(&mut self, next: &Self) {
        let n_roots = self.n_roots + next.n_roots;
        let share = |n: u64| n as f64 / n_roots.max(1) as f64;
        self.loss = share(self.n_roots) * self.loss + share(next.n_roots) * next.loss;
        self.n_roots = n_roots;
        self.n_right += next.n_right;
        self.n_nodes += next.n_nodes;
        self.load += next.load;
        self.seconds += next.seconds;
        (self.met, self.prefetch) = (next.met, next.prefetch);
    }

    /// Returns the log entry of `worker` for the step at `place`, with rows of `row_bytes`.
    pub(crate) fn worker_step(&self, place: Place, worker: u32, row_bytes: u64) -> WorkerStep {
        let (rows, bytes) = RowsBySource::of(&self.load, row_bytes);
        WorkerStep {
            epoch: place.epoch,
            step: place.step,
            worker,
            loss: self.loss,
            roots: self.n_roots,
            nodes: self.n_nodes,
            batch: word_of(self.met),
            seconds: self.seconds,
            rows,
            bytes,
            late_swaps: 0,
            hop: None,
            sdt: None,
            full: None,
        }
    }

    /// Removes the gradient, and returns it as a term of the step's sum.
    pub(crate) fn take_gradient(&mut self, worker: u32) -> GradientTerm {
        let mut lists = std::mem::take(&mut self.gradients).into_iter();
        // The first layer's weights, often the largest, are not copied.
        let mut values = lists.next().unwrap_or_default();
        values.reserve_exact(lists.as_slice().iter().map(Vec::len).sum());
        lists.for_each(|list| values.extend_from_slice(&list));
        GradientTerm { order: worker, n_roots: self.n_roots, values }
    }
}

impl TeamStep {
    /// Returns the step of these outcomes without gradients. Means are weighted by roots.
    pub(crate) fn new(outcomes: Vec<(u32, StepOutcome)>) -> Self {
        let n_roots: u64 = outcomes.iter().map(|(_, outcome)| outcome.n_roots).sum();
        let (n_batches, n_time_steps) = (outcomes.len() as u64, 1);
        let mut step = Self { n_roots, n_batches, n_time_steps, ..Self::default() };
        for (_, outcome) in &outcomes {
            step.loss += step.share(outcome.n_roots) * outcome.loss;
            step.n_right += outcome.n_right;
            step.load += outcome.load;
        }
        Self { outcomes, ..step }
    }

    /// Fails if an element of a gradient is not finite. The error names `place`.
    pub(crate) fn check_finite(&self, place: Place) -> Result<(), TrainError> {
        let loss = self.loss;
        // Whole pieces without branches are faster than single elements.
        let is_finite = |piece: &&[f32]| piece.iter().fold(true, |all, it| all & it.is_finite());
        let pieces = self.gradients.iter().flat_map(|list| list.chunks(ELEMENTS_PER_CHECK));
        let mut wrong = pieces.filter(|piece| !is_finite(piece)).flatten().copied();
        let found = wrong.find(|value| !value.is_finite());
        found.map_or(Ok(()), |found| Err(TrainError::Gradient { place, found, loss }))
    }

    /// Returns the bytes of gradients that `n_workers` workers send, each as a process of its own.
    /// Each sends a share of its gradients to every other one, then a share of the sum.
    pub(crate) fn gradient_bytes(&self, n_workers: u32) -> u64 {
        let n_elements: u64 = self.gradients.iter().map(|list| list.len() as u64).sum();
        2 * 4 * n_elements * u64::from(n_workers.saturating_sub(1))
    }

    /// Returns the share of a batch of `n_roots` in the step's roots.
    pub(crate) fn share(&self, n_roots: u64) -> f64 {
        n_roots as f64 / self.n_roots.max(1) as f64
    }
}

/// Serialises all bits of a number, also if it is not finite.
pub(crate) mod exact {
    use super::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        value.to_bits().serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        u64::deserialize(from).map(f64::from_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_whose_loss_or_gradient_is_not_finite_is_refused() {
        let place = Place { epoch: 3, step: 5 };
        let checked = |last| {
            let gradients = vec![vec![1.0, -2.0], vec![last]];
            TeamStep { loss: 0.5, gradients, ..TeamStep::default() }.check_finite(place)
        };
        checked(f32::MAX).unwrap();
        for last in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = checked(last).unwrap_err();
            let expected = format!("a gradient is {last} in epoch 3, step 5, at a loss of 0.5");
            assert!(error.to_string().contains(&expected) && error.is_common(), "{error}");
        }
        // The first one of several, wherever it is.
        for at in [0, ELEMENTS_PER_CHECK - 1, ELEMENTS_PER_CHECK, 2 * ELEMENTS_PER_CHECK + 6] {
            let mut list = vec![1.0; 2 * ELEMENTS_PER_CHECK + 8];
            *list.last_mut().unwrap() = f32::INFINITY;
            list[at] = f32::NEG_INFINITY;
            let step = TeamStep { gradients: vec![vec![2.0; 9], list], ..TeamStep::default() };
            let error = step.check_finite(place).unwrap_err().to_string();
            assert!(error.contains("a gradient is -inf in epoch 3"), "{at}: {error}");
        }
    }

    #[test]
    fn time_steps_of_a_worker_are_weighted_by_roots() {
        let outcome = |n_roots, loss| StepOutcome {
            loss,
            n_roots,
            n_right: 1,
            n_nodes: 10,
            load: LoadStats { local_rows: 3, ..LoadStats::default() },
            ..StepOutcome::default()
        };
        let mut total = StepOutcome::default();
        for (n_roots, loss) in [(3, 1.0), (1, 5.0), (0, 7.0), (4, 4.0)] {
            total.add(&outcome(n_roots, loss));
        }
        assert_eq!((total.loss, total.n_roots, total.n_right, total.n_nodes), (3.0, 8, 4, 40));
        assert_eq!(total.load.local_rows, 12);
    }

    #[test]
    fn means_are_weighted_by_roots() {
        let outcome = |n_roots, loss| StepOutcome {
            loss,
            n_roots,
            n_right: 1,
            load: LoadStats { local_rows: 3, ..LoadStats::default() },
            ..StepOutcome::default()
        };
        let step = TeamStep::new(vec![(0, outcome(3, 1.0)), (2, outcome(1, 5.0))]);
        assert_eq!((step.loss, step.n_roots, step.n_right, step.n_batches), (2.0, 4, 2, 2));
        assert_eq!(step.load.local_rows, 6);
        assert_eq!(step.outcomes.iter().map(|(worker, _)| *worker).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(TeamStep::new(Vec::new()).share(0), 0.0);
    }
}
