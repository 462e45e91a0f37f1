//! Claims C2, C3 and C7, Tables 7 and 8, Figs. 20 to 22: what is learnt, and what it moves.

use std::ops::ControlFlow;

use anyhow::{Result, anyhow};
use lodestore_trainer::report::EpochReport;
use lodestore_trainer::{Progress, TrainConfig, TrainReport, train};
use serde::Serialize;

use super::ways::CapWay;
use crate::reproduce::convergence::Spread;
use crate::reproduce::cut::{Cut, Source, Splits};

/// Parts of a run after which it is measured.
const MEASURED: u32 = 10;

/// Results of learning in one way.
#[derive(Serialize)]
pub(super) struct CapLearning {
    pub(super) way: CapWay,
    pub(super) splits: Splits,
    /// By seed: loss of each epoch.
    pub(super) losses: Vec<Vec<f64>>,
    /// By seed: epoch and what test nodes were measured at after it.
    pub(super) accuracies: Vec<Vec<(u32, f64)>>,
    /// Mean epoch after the first: bytes of rows and gradients of halos.
    pub(super) halo_bytes: f64,
    /// Share of the edges that were trained on.
    pub(super) kept_share: Option<f64>,
    /// Most epochs that a used row was old.
    pub(super) max_staleness: u32,
    /// Loss by narrowing rows, relative to them, as root mean squares: the most of an epoch.
    pub(super) compression_error: Option<f64>,
}

/// A cut of a graph, with splits of its nodes.
#[derive(Clone, Copy)]
pub(super) struct SplitCut<'a> {
    pub(super) source: &'a Source,
    pub(super) cut: &'a Cut,
    pub(super) splits: Splits,
}

/// Trains with each seed on a cut.
pub(super) fn learn(
    SplitCut { source, cut, splits }: SplitCut<'_>,
    way: CapWay,
    config: &TrainConfig,
    n_seeds: u32,
) -> Result<CapLearning> {
    let evaluate_every = config.epochs.div_ceil(MEASURED);
    let sources = cut.sources(source, config.workers, splits);
    let (mut losses, mut accuracies, mut last) = (Vec::new(), Vec::new(), None);
    for seed in 1..=u64::from(n_seeds) {
        let config = TrainConfig { seed, evaluate_every, ..config.clone() };
        let quiet = &mut |_: &Progress<'_>| ControlFlow::Continue(());
        let report = train(&config, &cut.graph(), &sources, quiet)?;
        losses.push(report.epochs.iter().map(|epoch| epoch.loss).collect());
        let measured = |epoch: &EpochReport| Some((epoch.epoch + 1, epoch.test_accuracy?));
        accuracies.push(report.epochs.iter().filter_map(measured).collect());
        last = Some(report);
    }
    let TrainReport { epochs, .. } = last.ok_or_else(|| anyhow!("--seeds: expected 1 or more"))?;
    let sent = |epoch: &EpochReport| {
        epoch.embedding_bytes.unwrap_or(0) + epoch.gradient_bytes.unwrap_or(0)
    };
    let later = &epochs[1.min(epochs.len() - 1)..];
    Ok(CapLearning {
        way,
        splits,
        losses,
        accuracies,
        halo_bytes: Spread::of(later.iter().map(|epoch| sent(epoch) as f64)).mean,
        kept_share: epochs[0].kept_share,
        max_staleness: epochs.iter().filter_map(|epoch| epoch.max_staleness).max().unwrap_or(0),
        compression_error: epochs
            .iter()
            .filter_map(|epoch| epoch.compression_error)
            .reduce(f64::max),
    })
}

impl CapLearning {
    /// Returns the seeds at the end.
    pub(super) fn last(&self) -> Spread {
        Spread::of(self.accuracies.iter().filter_map(|of| Some(of.last()?.1)))
    }

    /// Returns the mean of the seeds wherever they were measured.
    pub(super) fn means(&self) -> Vec<(f64, f64)> {
        let n = self.accuracies.iter().map(Vec::len).min().unwrap_or(0);
        let mean = |at: usize| {
            let of_seeds = self.accuracies.iter().map(|of| of[at].1);
            (f64::from(self.accuracies[0][at].0), Spread::of(of_seeds).mean)
        };
        (0..n).map(mean).collect()
    }

    /// Returns the largest relative difference of a loss in the first `n_epochs` from that of
    /// `base`, same seed and epoch.
    pub(super) fn loss_difference(&self, base: &Self, n_epochs: usize) -> f64 {
        let of = |learnt: &Self| -> Vec<f64> {
            learnt.losses.iter().flat_map(|of| of.iter().take(n_epochs)).copied().collect()
        };
        let (own, base) = (of(self), of(base));
        let pairs = own.iter().zip(&base);
        let relative =
            pairs.map(|(of, base)| (of - base).abs() / base.abs().max(f64::MIN_POSITIVE));
        relative.fold(0.0, f64::max)
    }
}
