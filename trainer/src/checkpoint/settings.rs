//! The settings that decide what is computed.

use std::fmt::{Debug, Write};

use crate::config::{Roots, TrainConfig};
use crate::options::{LayerOptions, RateSchedule, UpdateOptions};

/// Settings that a run has a line for only where they are not as here: those of older checkpoints
/// are all so.
const USUAL: [(&str, &str); 7] = [
    ("norm", "None"),
    ("residual", "false"),
    ("optimizer", "Adam"),
    ("schedule", "Constant"),
    ("epochs_of_schedule", "None"),
    ("warm_up", "Steps(0)"),
    ("clip_norm", "None"),
];

/// Lines that checkpoints of earlier releases have and no run of this one.
const REMOVED: [&str; 3] = ["aggregation = Max", "aggregation = Sum", "norm = Batch"];

/// Lines that the settings of every strategy have, with the value where a strategy lacks the
/// setting.
const OF_EACH_STRATEGY: [(&str, &str); 3] =
    [("roots", "Owned"), ("migration", "None"), ("merge", "None")];

/// What a strategy computes, as far as its settings decide it.
#[derive(Clone, Debug)]
pub(crate) struct Computation {
    /// Name of what is computed; that of strategies which compute the same is the same.
    mode: &'static str,
    /// Values of [`OF_EACH_STRATEGY`], as `Debug` writes them.
    of_each: [String; OF_EACH_STRATEGY.len()],
    /// Names and values of further settings, as `Debug` writes them.
    further: Vec<(&'static str, String)>,
}

impl Computation {
    /// Returns that of a strategy without settings.
    pub(crate) fn new(mode: &'static str) -> Self {
        let of_each = OF_EACH_STRATEGY.map(|(_, value)| value.to_owned());
        Self { mode, of_each, further: Vec::new() }
    }

    /// Returns that of strategies that differ in the way of rows to the trainer alone.
    pub(crate) fn mini_batches(config: &TrainConfig, roots: Roots) -> Self {
        Self::new("MiniBatch").with("roots", &roots).with("workers", &config.workers)
    }

    /// Adds a setting.
    pub(crate) fn with(mut self, name: &'static str, value: &dyn Debug) -> Self {
        let value = format!("{value:?}");
        match OF_EACH_STRATEGY.iter().position(|(of_each, _)| *of_each == name) {
            Some(at) => self.of_each[at] = value,
            None => self.further.push((name, value)),
        }
        self
    }
}

/// Names and values, one line each. A run continues only under the same settings.
///
/// How rows are fetched is not among them, since it never changes what is computed. Nor are the
/// number of epochs and patience, which only say when to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings(String);

impl Settings {
    /// Returns the settings of a run over rows of `n_features`, with labels and splits of this
    /// digest.
    pub(crate) fn new(config: &TrainConfig, n_features: usize, labels: &str) -> Self {
        let mut settings = Self(String::new());
        let computation = config.strategy.config().computation(config);
        settings.add_text("mode", computation.mode);
        for ((name, _), value) in OF_EACH_STRATEGY.iter().zip(&computation.of_each) {
            settings.add_text(name, value);
        }
        settings.add("model", &config.model);
        settings.add("heads", &config.n_heads);
        settings.add("output_heads", &config.n_output_heads);
        for (name, value) in &computation.further {
            settings.add_text(name, value);
        }
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
        settings.add_options(config);
        settings
    }

    fn add_options(&mut self, config: &TrainConfig) {
        let LayerOptions { norm, residual } = config.layer;
        let UpdateOptions { optimizer, schedule, warm_up, clip_norm } = config.update;
        // The rate of each step of a cosine depends on where it ends.
        let epochs = (schedule == RateSchedule::Cosine).then_some(config.epochs);
        let found: [&dyn Debug; USUAL.len()] =
            [&norm, &residual, &optimizer, &schedule, &epochs, &warm_up, &clip_norm];
        for ((name, usual), found) in USUAL.into_iter().zip(found) {
            if format!("{found:?}") != usual {
                self.add(name, found);
            }
        }
    }

    /// Returns the text that a checkpoint has of them.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the lines that differ from those of `found`: this run's, then those of `found`.
    pub(crate) fn differences(&self, found: &str) -> Option<(String, String)> {
        if self.0 == found {
            return None;
        }
        let only = |lines: &str, others: &str| {
            let (lines, others) = (complete(lines), complete(others));
            let is_new = |line: &&String| !others.contains(line);
            let lines: Vec<&str> = lines.iter().filter(is_new).map(String::as_str).collect();
            if lines.is_empty() { "none of these".to_owned() } else { lines.join(", ") }
        };
        Some((only(&self.0, found), only(found, &self.0)))
    }

    /// Adds a value as `Debug` writes it: with all digits of a number that it takes to read it
    /// back.
    fn add(&mut self, name: &str, value: &dyn Debug) {
        self.add_text(name, &format!("{value:?}"));
    }

    fn add_text(&mut self, name: &str, value: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{name} = {value}");
    }
}

/// Returns a setting of a checkpoint that this release lacks.
pub(crate) fn removed_setting(found: &str) -> Option<&'static str> {
    REMOVED.into_iter().find(|removed| found.lines().any(|line| line == *removed))
}

/// Returns all lines, those of settings that are as usual included.
fn complete(lines: &str) -> Vec<String> {
    let mut lines: Vec<String> = lines.lines().map(str::to_owned).collect();
    for (name, usual) in USUAL {
        let prefix = format!("{name} = ");
        if !lines.iter().any(|line| line.starts_with(&prefix)) {
            lines.push(prefix + usual);
        }
    }
    lines
}
