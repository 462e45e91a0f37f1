//! The best parameters of a run, and early stopping.

use lodestore_models::metric::Accuracy;

/// Parameters of the evaluation with the highest accuracy on the validation nodes, the first of
/// equals. Without validation nodes those of the last evaluation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct BestModel {
    /// Epoch after which they were measured.
    pub(crate) epoch: u32,
    pub(crate) accuracy: Accuracy,
    /// One flat list per parameter; none before the first evaluation.
    pub(crate) parameters: Vec<Vec<f32>>,
    /// Epoch of the last evaluation.
    pub(crate) evaluated: u32,
}

impl BestModel {
    /// Records an evaluation after `epoch`; copies `parameters` if they are the best.
    pub(crate) fn evaluated(
        &mut self,
        epoch: u32,
        accuracy: Accuracy,
        parameters: impl FnOnce() -> Vec<Vec<f32>>,
    ) {
        self.evaluated = epoch;
        let is_first = self.parameters.is_empty();
        let is_better = match (accuracy.validation, self.accuracy.validation) {
            (Some(now), Some(best)) => now > best,
            _ => true,
        };
        if is_first || is_better {
            self.parameters = parameters();
            (self.epoch, self.accuracy) = (epoch, accuracy);
        }
    }

    /// Returns whether the last evaluation is at least `patience` epochs after the best; never for
    /// a patience of 0.
    pub(crate) fn is_stale(&self, patience: u32) -> bool {
        patience > 0 && self.evaluated - self.epoch >= patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the best epoch, and after which epoch patience ends.
    fn outcome(patience: u32, validation: &[Option<f64>]) -> (u32, Option<u32>) {
        let mut best = BestModel::default();
        for (epoch, &validation) in (0..).zip(validation) {
            let accuracy = Accuracy { validation, test: None };
            best.evaluated(epoch, accuracy, || vec![vec![epoch as f32]]);
            assert_eq!(best.parameters, [[best.epoch as f32]]);
            if best.is_stale(patience) {
                return (best.epoch, Some(epoch));
            }
        }
        (best.epoch, None)
    }

    #[test]
    fn only_a_rise_counts_and_patience_begins_again_with_each() {
        let rates = [0.1, 0.3, 0.3, 0.2, 0.4, 0.4, 0.4, 0.4, 0.9].map(Some);
        assert_eq!(outcome(0, &rates), (8, None));
        assert_eq!(outcome(1, &rates), (1, Some(2)));
        assert_eq!(outcome(2, &rates), (1, Some(3)));
        assert_eq!(outcome(3, &rates), (4, Some(7)));
        assert_eq!(outcome(4, &rates), (8, None));
    }

    #[test]
    fn without_validation_nodes_the_last_is_the_best() {
        assert_eq!(outcome(1, &[None; 4]), (3, None));
    }

    #[test]
    fn epochs_count_and_not_evaluations() {
        let mut best = BestModel::default();
        for (epoch, rate, stale) in [(4, 0.5, false), (9, 0.4, false), (14, 0.3, true)] {
            best.evaluated(epoch, Accuracy { validation: Some(rate), test: None }, Vec::new);
            best.parameters = vec![vec![]];
            assert_eq!(best.is_stale(7), stale, "{epoch}");
        }
    }
}
