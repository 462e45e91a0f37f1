//! Metric of a model.

use crate::{
    loss::{Targets, is_positive, largest},
    matrix::Matrix,
    options::Metric,
};

/// The metric on both splits; absent for an empty one, or one that is not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Accuracy {
    /// The metric of the validation nodes.
    pub validation: Option<f64>,
    /// The metric of the test nodes.
    pub test: Option<f64>,
}

/// Logits of nodes as they come, summed up for a metric.
///
/// Memory: for [`Metric::RocAuc`] 8 bytes for each label of each measured node, twice that while
/// vectors grow; else nothing.
#[derive(Debug, Default)]
pub struct Measure {
    metric: Metric,
    n_nodes: u64,
    n_right: u64,
    true_positives: u64,
    /// Labels that are there or found, each counted for itself.
    positives: u64,
    /// For each label the score of each node, and whether it has the label.
    scores: Vec<Vec<(f32, bool)>>,
}

impl Measure {
    /// Returns the measure without nodes.
    pub fn new(metric: Metric) -> Self {
        Self { metric, ..Self::default() }
    }

    /// Adds a node by its number in `logits` and `targets`.
    pub fn add(&mut self, number: usize, logits: &Matrix, targets: &Targets) {
        let row = &logits.values()[number * logits.width()..][..logits.width()];
        self.n_nodes += 1;
        match targets {
            Targets::Classes(classes) => {
                let class = classes[number] as usize;
                self.n_right += u64::from(largest(row) == class);
                if self.metric == Metric::RocAuc {
                    let score = row.get(1).unwrap_or(&0.0) - row[0];
                    self.score(0, score, class == 1);
                }
            }
            Targets::Several { width, labels } => {
                let labels = &labels[number * width..][..*width];
                for (at, (&logit, &label)) in row.iter().zip(labels).enumerate() {
                    let (is_there, is_found) = (label == 1, is_positive(logit));
                    self.true_positives += u64::from(is_there && is_found);
                    self.positives += u64::from(is_there) + u64::from(is_found);
                    if self.metric == Metric::RocAuc {
                        self.score(at, logit, is_there);
                    }
                }
            }
        }
    }

    /// Returns the metric; none without nodes, or where no label distinguishes any.
    pub fn value(self) -> Option<f64> {
        if self.n_nodes == 0 {
            return None;
        }
        let accuracy = self.n_right as f64 / self.n_nodes as f64;
        match self.metric {
            Metric::Accuracy => Some(accuracy),
            // Each wrong class is a false positive and a false negative.
            Metric::F1Micro if self.positives == 0 && self.true_positives == 0 => Some(accuracy),
            Metric::F1Micro => Some(2.0 * self.true_positives as f64 / self.positives as f64),
            Metric::RocAuc => {
                let areas: Vec<f64> = self.scores.into_iter().filter_map(area).collect();
                (!areas.is_empty()).then(|| areas.iter().sum::<f64>() / areas.len() as f64)
            }
        }
    }

    fn score(&mut self, label: usize, score: f32, is_there: bool) {
        if self.scores.len() <= label {
            self.scores.resize(label + 1, Vec::new());
        }
        self.scores[label].push((score, is_there));
    }
}

/// Returns the chance that a positive has a higher score than a negative, an equal one counting
/// half; none unless there are both.
fn area(mut scores: Vec<(f32, bool)>) -> Option<f64> {
    scores.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let n_positive = scores.iter().filter(|(_, is_positive)| *is_positive).count();
    let n_pairs = n_positive as f64 * (scores.len() - n_positive) as f64;
    let (mut below, mut wins) = (0.0, 0.0);
    for equal in scores.chunk_by(|a, b| a.0 == b.0) {
        let positives = equal.iter().filter(|(_, is_positive)| *is_positive).count() as f64;
        let negatives = equal.len() as f64 - positives;
        wins += positives * (below + negatives / 2.0);
        below += negatives;
    }
    (n_pairs > 0.0).then(|| wins / n_pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::CounterRandom;

    const N: usize = 200;

    /// Returns logits of few different values, so that some are equal.
    fn logits(width: usize) -> Matrix {
        let random = CounterRandom::new(3, 0);
        let logit = |i| (random.unit(i) * 9.0).floor() * 0.5 - 1.75;
        Matrix::new((0..(N * width) as u64).map(logit).collect(), width)
    }

    fn measured(metric: Metric, logits: &Matrix, targets: &Targets) -> Option<f64> {
        let mut measure = Measure::new(metric);
        (0..logits.n_rows()).for_each(|number| measure.add(number, logits, targets));
        measure.value()
    }

    /// Returns the share of pairs of a positive and a negative that are in order, pair by pair.
    fn pairs(scores: &[(f32, bool)]) -> f64 {
        let (mut wins, mut n) = (0.0, 0.0);
        for (positive, _) in scores.iter().filter(|score| score.1) {
            for (negative, _) in scores.iter().filter(|score| !score.1) {
                n += 1.0;
                wins += match positive.total_cmp(negative) {
                    std::cmp::Ordering::Greater => 1.0,
                    std::cmp::Ordering::Equal => 0.5,
                    std::cmp::Ordering::Less => 0.0,
                };
            }
        }
        wins / n
    }

    #[test]
    fn metrics_of_classes_agree_with_their_definitions() {
        let random = CounterRandom::new(4, 0);
        let classes: Vec<u32> = (0..N as u64).map(|i| random.bits(i) as u32 % 2).collect();
        let logits = logits(2);
        let rows = || logits.values().chunks(2).zip(&classes);
        let right = rows().filter(|(row, class)| u32::from(row[1] > row[0]) == **class).count();
        let targets = Targets::Classes(classes.clone());
        let found = |metric| measured(metric, &logits, &targets).unwrap();
        assert_eq!(found(Metric::Accuracy), right as f64 / N as f64);
        assert_eq!(found(Metric::F1Micro), right as f64 / N as f64);
        let scores: Vec<_> = rows().map(|(row, class)| (row[1] - row[0], *class == 1)).collect();
        assert!((found(Metric::RocAuc) - pairs(&scores)).abs() < 1e-12);
        assert_eq!(measured(Metric::RocAuc, &Matrix::new(vec![], 2), &targets), None);
    }

    #[test]
    fn metrics_of_several_labels_agree_with_their_definitions() {
        let (width, random) = (4, CounterRandom::new(4, 0));
        // All nodes have the last label, so that it has no area.
        let label = |i: u64| u8::from(i % 4 == 3 || random.bits(i).is_multiple_of(3));
        let labels: Vec<u8> = (0..(N * width) as u64).map(label).collect();
        let logits = logits(width);
        let targets = Targets::Several { width, labels: labels.clone() };
        let (mut both, mut found, mut there) = (0, 0, 0);
        for (logit, label) in logits.values().iter().zip(&labels) {
            both += u32::from(*logit > 0.0 && *label == 1);
            found += u32::from(*logit > 0.0);
            there += u32::from(*label == 1);
        }
        let (precision, recall) =
            (f64::from(both) / f64::from(found), f64::from(both) / f64::from(there));
        let f1 = 2.0 * precision * recall / (precision + recall);
        assert!((measured(Metric::F1Micro, &logits, &targets).unwrap() - f1).abs() < 1e-12);
        let areas = (0..3).map(|column| {
            let pairs_of = logits.values().iter().zip(&labels).skip(column).step_by(width);
            pairs(&pairs_of.map(|(logit, label)| (*logit, *label == 1)).collect::<Vec<_>>())
        });
        let expected = areas.sum::<f64>() / 3.0;
        let found = measured(Metric::RocAuc, &logits, &targets).unwrap();
        assert!((found - expected).abs() < 1e-12, "{found} {expected}");
    }
}
