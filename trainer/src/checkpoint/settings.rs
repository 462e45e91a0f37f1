//! The settings that decide what is computed.

use std::fmt::{Debug, Write};

use crate::TrainConfig;

/// Names and values, one line each: a run goes on only under the same.
///
/// How rows are fetched is not among them, since it never changes what is computed; nor are the
/// number of epochs and patience, which only say when to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings(String);

impl Settings {
    /// Of a run over rows of `n_features`, with labels and splits of this digest.
    pub(crate) fn new(config: &TrainConfig, n_features: usize, labels: &str) -> Self {
        let mut settings = Self(String::new());
        settings.add("mode", &config.strategy.mode());
        settings.add("roots", &config.roots);
        settings.add("migration", &config.hop.migration);
        settings.add("merge", &config.hop.merge);
        settings.add("model", &config.model);
        settings.add("heads", &config.n_heads);
        settings.add("output_heads", &config.n_output_heads);
        settings.add("workers", &config.workers);
        settings.add("fanouts", &config.fanouts);
        settings.add("hidden", &config.hidden);
        settings.add("dropout", &config.dropout);
        settings.add("learning_rate", &config.learning_rate);
        settings.add("weight_decay", &config.weight_decay);
        settings.add("batch_size", &config.batch_size);
        settings.add("seed", &config.seed);
        settings.add("normalize", &config.normalize);
        settings.add("evaluate_every", &config.evaluate_every);
        settings.add("metric", &config.metric);
        settings.add("feature_tensor", &config.feature_tensor);
        settings.add("features", &n_features);
        settings.add("labels_and_splits", &labels);
        settings
    }

    /// As a checkpoint has them.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The lines that differ from those of `found`: this run's, then those of `found`.
    pub(crate) fn differences(&self, found: &str) -> Option<(String, String)> {
        if self.0 == found {
            return None;
        }
        let only = |lines: &str, others: &str| {
            let is_new = |line: &&str| !others.lines().any(|other| other == *line);
            let lines: Vec<&str> = lines.lines().filter(is_new).collect();
            if lines.is_empty() { "none of these".to_owned() } else { lines.join(", ") }
        };
        Some((only(&self.0, found), only(found, &self.0)))
    }

    /// Values as `Debug` writes them: all digits of a number that it takes to read it back.
    fn add(&mut self, name: &str, value: &dyn Debug) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{name} = {value:?}");
    }
}
