//! Results of learning in each way (Table 3).

use std::fmt::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};
use lodestore_trainer::ModelKind;
use serde::Serialize;

use super::cells::ModelShape;
use super::rows::HopWay;
use super::timing::TrainPlan;
use crate::reproduce::convergence::Spread;
use lode_cli::commands::train::train;
use lode_cli::console::Console;

/// The first is what the others are compared with.
const WAYS: [HopWay; 4] = [HopWay::ModelCentric, HopWay::Pregathered, HopWay::Home, HopWay::Owned];
const MODELS: [ModelKind; 3] = [ModelKind::Gcn, ModelKind::Sage, ModelKind::Gat];

/// All ways with one model.
#[derive(Debug, Serialize)]
pub(super) struct ModelAccuracies {
    model: ModelKind,
    workers: u16,
    batch: usize,
    epochs: u32,
    ways: Vec<WayAccuracies>,
}

/// Accuracies of one way on the test nodes, by seed.
#[derive(Debug, Serialize)]
struct WayAccuracies {
    way: HopWay,
    accuracies: Vec<f64>,
}

/// Number of seeds and epochs of runs whose accuracy is measured.
#[derive(Clone, Copy)]
pub(super) struct AccuracyRuns<'a> {
    pub(super) n_seeds: u32,
    pub(super) epochs: u32,
    pub(super) plan: TrainPlan<'a>,
}

impl AccuracyRuns<'_> {
    /// Trains every model in every way with each seed on `workers`, rows from the files of `graph`.
    pub(super) fn measure(
        self,
        graph: &Path,
        workers: u16,
        console: &Console,
    ) -> Result<Vec<ModelAccuracies>> {
        let Self { n_seeds, epochs, plan } = self;
        let mut learnt = Vec::new();
        for kind in MODELS {
            let mut ways = Vec::new();
            for way in WAYS {
                let of_seed = |at: u32| -> Result<f64> {
                    let model = ModelShape { kind, ..plan.model };
                    let plan = TrainPlan { model, seed: plan.seed + u64::from(at), ..plan };
                    let mut run = plan.run(graph, way, workers.into());
                    run.train.epochs = epochs;
                    (run.train.evaluate_every, run.train.measure_test) = (1, true);
                    console.check_reader()?;
                    let found = train(&run, console)?.report.test_accuracy;
                    found.with_context(|| {
                        format!(
                            "{}: expected test nodes, found none; import tensor `split` with some 2, \
                             or leave --seeds out",
                            graph.display()
                        )
                    })
                };
                let accuracies = (0..n_seeds).map(of_seed).collect::<Result<_>>()?;
                ways.push(WayAccuracies { way, accuracies });
            }
            learnt.push(ModelAccuracies { model: kind, workers, batch: plan.batch, epochs, ways });
        }
        Ok(learnt)
    }
}

/// Writes Table 3, if anything was learnt.
pub(super) fn write(text: &mut String, learnt: &[ModelAccuracies]) -> fmt::Result {
    let Some(first) = learnt.first() else { return Ok(()) };
    let n_seeds = first.ways.first().map_or(0, |way| way.accuracies.len());
    writeln!(
        text,
        "### Accuracy (Table 3): {} workers, {} roots a model, {} epochs, {n_seeds} seeds\n\n\
         On the test nodes, after the epoch that did best on the validation nodes: mean and range in %, \
         and the mean difference from model-centric of the same seed in points.\n",
        first.workers, first.batch, first.epochs
    )?;
    write!(text, "| model |")?;
    WAYS.iter().try_for_each(|way| write!(text, " {} |", name(*way)))?;
    writeln!(text, "\n|---|{}", "---|".repeat(WAYS.len()))?;
    for ModelAccuracies { model, ways, .. } in learnt {
        write!(text, "| {model} |")?;
        for (at, WayAccuracies { accuracies, .. }) in ways.iter().enumerate() {
            let spread = Spread::of(accuracies.iter().map(|accuracy| accuracy * 100.0));
            write!(text, " {}", spread.text(1))?;
            if at > 0 {
                let pairs = accuracies.iter().zip(&ways[0].accuracies);
                let differences = Spread::of(pairs.map(|(a, b)| (a - b) * 100.0));
                write!(text, ", {:+.2}", differences.mean)?;
            }
            write!(text, " |")?;
        }
        writeln!(text)?;
    }
    writeln!(text)
}

fn name(way: HopWay) -> &'static str {
    if way == HopWay::Pregathered { "paper" } else { way.label() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_those_of_the_same_seed() {
        let way = |(way, accuracies): (HopWay, [f64; 2])| {
            let accuracies = accuracies.to_vec();
            WayAccuracies { way, accuracies }
        };
        let rates = [[0.5, 0.6], [0.5, 0.6], [0.6, 0.5], [0.4, 0.6]];
        let ways = WAYS.into_iter().zip(rates).map(way).collect();
        let learnt =
            ModelAccuracies { model: ModelKind::Gcn, workers: 4, batch: 8, epochs: 3, ways };
        let mut text = String::new();
        write(&mut text, &[learnt]).unwrap();
        let expected = "| gcn | 55.0 (50.0 to 60.0) | 55.0 (50.0 to 60.0), +0.00 | \
                        55.0 (50.0 to 60.0), +0.00 | 50.0 (40.0 to 60.0), -5.00 |";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("| model | model-centric | paper | none | LO |"), "{text}");
        text.clear();
        write(&mut text, &[]).unwrap();
        assert_eq!(text, "");
    }
}
