//! RapidGNN's Fig. 9: what is learnt beside ordinary random sampling.

use std::fmt::{self, Write};

use anyhow::Result;
use lodestore_trainer::config::Sampling;
use serde::Serialize;

use super::curves::{Curve, Curves};
use super::runs::{Case, Cluster, Contestant};
use lode_cli::console::Console;

/// Each has first parameters and batches of its own, the parameters alike to both samplings.
const SEEDS: [u64; 5] = [1, 2, 3, 4, 5];

/// Results of learning on each graph.
#[derive(Default, Serialize)]
#[serde(transparent)]
pub(super) struct Convergence(Vec<SamplingRuns>);

#[derive(Serialize)]
struct SamplingRuns {
    graph: String,
    batch: usize,
    /// `rapid`, whose batches follow from the seed.
    seeded: Vec<SeedRun>,
    /// `ondemand` with one stream of random numbers.
    ordinary: Vec<SeedRun>,
}

/// A run of one seed.
#[derive(Serialize)]
struct SeedRun {
    seed: u64,
    /// On the nodes trained on, while each epoch trained on them.
    accuracies: Vec<f64>,
    /// After the last epoch.
    test_accuracy: Option<f64>,
}

impl Convergence {
    /// Trains `epochs` epochs of `batch` roots with each seed, over the loopback as it is.
    pub(super) fn measure(
        &mut self,
        graph: &str,
        batch: usize,
        epochs: u32,
        cluster: &Cluster<'_>,
        console: &Console,
    ) -> Result<()> {
        let run = |contestant, sampling| {
            let of_seed = |&seed: &u64| {
                let usual = Case::usual(contestant, batch, epochs);
                let case = Case { learns: true, sampling, seed, ..usual };
                let run = cluster.run(case, None, console)?;
                let (accuracies, test_accuracy) = (run.accuracies, run.test_accuracy);
                Ok(SeedRun { seed, accuracies, test_accuracy })
            };
            SEEDS.iter().map(of_seed).collect::<Result<Vec<_>>>()
        };
        self.0.push(SamplingRuns {
            graph: graph.to_owned(),
            batch,
            seeded: run(Contestant::Rapid, Sampling::Seeded)?,
            ordinary: run(Contestant::Ondemand, Sampling::Ordinary)?,
        });
        Ok(())
    }

    /// Returns the mean accuracies of the seeds in each epoch.
    pub(super) fn curves(&self) -> Curves<'static> {
        let of_runs = |learnt: &SamplingRuns, name: &str, runs: &[SeedRun]| {
            let n_epochs = runs.first().map_or(0, |run| run.accuracies.len());
            let mean = |epoch: usize| Spread::of(runs.iter().map(|run| run.accuracies[epoch])).mean;
            let points = (0..n_epochs).map(|epoch| (epoch as f64 + 1.0, mean(epoch))).collect();
            Curve { label: format!("{}, {name}", learnt.graph), points }
        };
        let both = |learnt: &SamplingRuns| {
            let seeded = of_runs(learnt, "rapid", &learnt.seeded);
            [seeded, of_runs(learnt, "ordinary", &learnt.ordinary)]
        };
        Curves {
            title: "Fig. 9: accuracy in training, mean of five seeds",
            x: "epoch",
            y: "accuracy",
            is_log: false,
            curves: self.0.iter().flat_map(both).collect(),
        }
    }

    pub(super) fn write(&self, text: &mut String) -> fmt::Result {
        writeln!(
            text,
            "\n## What is learnt (Fig. 9)\n\n`rapid`'s batches follow from the seed (Proposition 3.1); \
             *ordinary* draws roots and neighbours from one stream of random numbers, by another \
             implementation. {} seeds each, the same first parameters for the same seed; mean and range. \
             *Alike*: the means differ by less than the seeds of the wider kind spread.\n\n| graph | batch \
             | epochs | accuracy in the last epoch: rapid | ordinary | test accuracy: rapid | ordinary \
             | alike |\n|---|---|---|---|---|---|---|---|",
            SEEDS.len()
        )?;
        for SamplingRuns { graph, batch, seeded, ordinary } in &self.0 {
            let last = |runs: &[SeedRun]| {
                Spread::of(runs.iter().filter_map(|run| run.accuracies.last().copied()))
            };
            let test =
                |runs: &[SeedRun]| Spread::of(runs.iter().filter_map(|run| run.test_accuracy));
            let pairs = [last, test].map(|of| [of(seeded), of(ordinary)]);
            let n_epochs = seeded.first().map_or(0, |run| run.accuracies.len());
            write!(text, "| {graph} | {batch} | {n_epochs} ")?;
            pairs.iter().flatten().try_for_each(|spread| write!(text, "| {spread} "))?;
            let alike = pairs.iter().all(|[a, b]| a.is_like(b));
            writeln!(text, "| {} |", if alike { "yes" } else { "no" })?;
        }
        writeln!(text, "\n![Fig. 9](fig9.svg)")
    }
}

/// Mean, least and most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) mean: f64,
    range: [f64; 2],
}

impl Spread {
    pub(super) fn of(values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.collect();
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        let least = values.iter().copied().fold(mean, f64::min);
        let most = values.iter().copied().fold(mean, f64::max);
        Self { mean, range: [least, most] }
    }

    /// Returns mean and range with `digits` digits behind the point.
    pub(super) fn text(&self, digits: usize) -> String {
        let [least, most] = self.range;
        format!("{:.digits$} ({least:.digits$} to {most:.digits$})", self.mean)
    }

    fn width(&self) -> f64 {
        self.range[1] - self.range[0]
    }

    fn is_like(&self, other: &Self) -> bool {
        (self.mean - other.mean).abs() <= self.width().max(other.width())
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_alike_within_the_spread_of_the_seeds() {
        let [a, b, c] =
            [[0.70, 0.72], [0.71, 0.75], [0.80, 0.81]].map(|of| Spread::of(of.into_iter()));
        assert_eq!(format!("{a}"), "0.710 (0.700 to 0.720)");
        assert!(a.is_like(&b) && b.is_like(&a) && !a.is_like(&c) && !c.is_like(&b));
        assert_eq!(Spread::of(std::iter::empty()), Spread { mean: 0.0, range: [0.0; 2] });
    }
}
