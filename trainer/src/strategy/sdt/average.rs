//! Averages of local models (SDT-GNN, section III-D).

use lodestore_comm::collective::Term;
use lodestore_models::adam::ReplicaState;

use crate::config::OptimizerState;
use crate::error::TrainError;

/// The local models of a run, one for each partition, and their shares of the average.
#[derive(Clone, Debug)]
pub(crate) struct Shares {
    /// Share of the training nodes that each partition has.
    of_parts: Vec<f32>,
    /// Elements of each parameter.
    lengths: Vec<usize>,
    optimizer_state: OptimizerState,
}

impl Shares {
    /// Returns the shares of partitions with these numbers of training nodes.
    pub(crate) fn new(
        n_train: &[u64],
        lengths: Vec<usize>,
        optimizer_state: OptimizerState,
    ) -> Self {
        let all = n_train.iter().sum::<u64>().max(1) as f64;
        let of_parts = n_train.iter().map(|&n| (n as f64 / all) as f32).collect();
        Self { of_parts, lengths, optimizer_state }
    }

    /// Returns whether moments of the optimiser are averaged.
    fn has_moments(&self) -> bool {
        self.optimizer_state == OptimizerState::Averaged
    }

    /// Returns the elements of a term: parameters, and moments if they are averaged.
    pub(crate) fn len(&self) -> usize {
        let n_lists = if self.has_moments() { 3 } else { 1 };
        n_lists * self.lengths.iter().sum::<usize>()
    }

    /// Returns the terms of the average of `states`, each with its partition. Partitions without
    /// training nodes have none. Fails for a state of other layers or with a value that is not
    /// finite.
    pub(crate) fn terms<'s>(
        &self,
        states: impl Iterator<Item = (u32, &'s ReplicaState)>,
    ) -> Result<Vec<Term>, TrainError> {
        let mut terms = Vec::new();
        for (part, state) in states {
            let share = self.of_parts[part as usize];
            if share == 0.0 {
                continue;
            }
            self.check(part, state)?;
            let moments = [&state.means, &state.variances];
            let n_moments = if self.has_moments() { 2 } else { 0 };
            let lists = [&state.values].into_iter().chain(moments.into_iter().take(n_moments));
            let values = lists.flatten().flatten().map(|value| share * value).collect();
            terms.push(Term { order: part, values });
        }
        Ok(terms)
    }

    /// Replaces the parameters of `states` by `average`, and resets, keeps or averages the
    /// optimiser's state by the settings of the run.
    pub(crate) fn adopt<'s>(
        &self,
        average: &[f32],
        states: impl Iterator<Item = &'s mut ReplicaState>,
    ) {
        for state in states {
            let mut rest = average;
            let moments = [&mut state.means, &mut state.variances];
            match self.optimizer_state {
                OptimizerState::Local => fill(&mut state.values, &mut rest),
                OptimizerState::Averaged => {
                    fill(&mut state.values, &mut rest);
                    moments.into_iter().for_each(|lists| fill(lists, &mut rest));
                }
                OptimizerState::Reset => {
                    fill(&mut state.values, &mut rest);
                    moments.into_iter().flatten().for_each(|list| list.fill(0.0));
                    state.n_steps = 0;
                }
            }
        }
    }

    /// Returns the parameters of an average, one list each.
    pub(crate) fn lists(&self, average: &[f32]) -> Vec<Vec<f32>> {
        let mut lists: Vec<Vec<f32>> = self.lengths.iter().map(|&n| vec![0.0; n]).collect();
        fill(&mut lists, &mut &average[..]);
        lists
    }

    fn check(&self, part: u32, state: &ReplicaState) -> Result<(), TrainError> {
        for lists in [&state.values, &state.means, &state.variances] {
            let found: Vec<usize> = lists.iter().map(Vec::len).collect();
            if found != self.lengths {
                let fault = format!(
                    "parameters of {found:?} elements, and those of the run have {:?}; average \
                     models of the same layers only",
                    self.lengths
                );
                return Err(TrainError::LocalModel { part, fault });
            }
        }
        check_finite(part, state)
    }
}

/// Fails where the local model of a partition has a value that is not finite.
pub(super) fn check_finite(part: u32, state: &ReplicaState) -> Result<(), TrainError> {
    let ReplicaState { values, means, variances, .. } = state;
    let mut all = [values, means, variances].into_iter().flatten().flatten();
    let Some(found) = all.find(|value| !value.is_finite()) else { return Ok(()) };
    let fault = format!(
        "a parameter or a moment of {found}; it is not averaged in; try a lower learning rate"
    );
    Err(TrainError::LocalModel { part, fault })
}

/// Fills lists from the front of `rest`.
fn fill(lists: &mut [Vec<f32>], rest: &mut &[f32]) {
    for list in lists {
        let (of_list, others) = rest.split_at(list.len());
        list.copy_from_slice(of_list);
        *rest = others;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use lodestore_comm::collective::Collective;
    use lodestore_comm::tag::Payload;
    use lodestore_comm::threads::ThreadCollective;

    fn state(values: &[f32], n_steps: u32) -> ReplicaState {
        let lists = |factor: f32| {
            let all: Vec<f32> = values.iter().map(|value| factor * value).collect();
            vec![all[..1].to_vec(), all[1..].to_vec()]
        };
        ReplicaState { n_steps, values: lists(1.0), means: lists(2.0), variances: lists(3.0) }
    }

    fn average(shares: &Shares, states: &[ReplicaState]) -> Vec<f32> {
        let terms = shares.terms((0..).zip(states)).unwrap();
        let mut alone = ThreadCollective::alone();
        alone.reduce_ordered(Payload::Parameters, terms, shares.len()).unwrap()
    }

    proptest! {
        /// The naive twin: each element by itself, in f64.
        #[test]
        fn an_average_is_weighted_by_training_nodes(
            parts in prop::collection::vec((0u64..50, prop::collection::vec(-9.0f32..9.0, 3)), 1..7),
        ) {
            let n_train: Vec<u64> = parts.iter().map(|(n, _)| *n).collect();
            let all: u64 = n_train.iter().sum();
            let states: Vec<_> = (3..).zip(&parts).map(|(n, (_, values))| state(values, n)).collect();
            for optimizer_state in
                [OptimizerState::Local, OptimizerState::Averaged, OptimizerState::Reset]
            {
                let shares = Shares::new(&n_train, vec![1, 2], optimizer_state);
                let found = average(&shares, &states);
                let mut adopted = states.clone();
                shares.adopt(&found, adopted.iter_mut());
                for column in 0..3 {
                    let expected: f64 = parts
                        .iter()
                        .map(|(n, values)| *n as f64 * f64::from(values[column]))
                        .sum::<f64>() / all.max(1) as f64;
                    for (before, after) in states.iter().zip(&adopted) {
                        let at = |lists: &[Vec<f32>]| f64::from(lists.concat()[column]);
                        let near = |found: f64, expected: f64| (found - expected).abs() < 1e-4;
                        prop_assert!(near(at(&after.values), expected));
                        let (mean, n_steps) = match optimizer_state {
                            OptimizerState::Local => (at(&before.means), before.n_steps),
                            OptimizerState::Averaged => (2.0 * expected, before.n_steps),
                            OptimizerState::Reset => (0.0, 0),
                        };
                        prop_assert!(near(at(&after.means), mean));
                        prop_assert!(near(at(&after.variances), 1.5 * mean));
                        prop_assert_eq!(after.n_steps, n_steps);
                    }
                }
                prop_assert_eq!(shares.lists(&found).concat(), found[..3].to_vec());
            }
        }
    }

    #[test]
    fn one_partition_is_its_own_average_bit_for_bit() {
        let states = [state(&[0.1, -7.3e-9, 3.3e7], 5)];
        let shares = Shares::new(&[17], vec![1, 2], OptimizerState::Averaged);
        let found = average(&shares, &states);
        let mut adopted = states.clone();
        shares.adopt(&found, adopted.iter_mut());
        assert_eq!(adopted, states);
    }

    #[test]
    fn a_replica_that_is_not_finite_or_has_other_layers_is_named() {
        let shares = Shares::new(&[1, 2, 0], vec![1, 2], OptimizerState::Local);
        let mut states = [state(&[1.0; 3], 0), state(&[1.0; 3], 0), state(&[f32::NAN; 3], 0)];
        // The third has no share.
        assert!(shares.terms((0..).zip(&states)).is_ok());
        states[1].means[1][0] = f32::INFINITY;
        let error = shares.terms((0..).zip(&states)).unwrap_err().to_string();
        assert!(error.contains("local model of partition 1") && error.contains("inf"), "{error}");
        states[1] = ReplicaState { values: vec![vec![1.0; 3]], ..state(&[1.0; 3], 0) };
        let error = shares.terms((0..).zip(&states)).unwrap_err().to_string();
        assert!(error.contains("partition 1") && error.contains("[1, 2]"), "{error}");
        assert!(error.contains("[3]"), "{error}");
    }
}
