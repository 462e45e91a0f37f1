//! Figs. 8 to 10: what is learnt, what moves, and what memory holds.

use std::ops::ControlFlow;

use anyhow::{Result, anyhow};
use lodestore_client::PullKind;
use lodestore_graph::NodeId;
use lodestore_trainer::config::{OndemandConfig, OptimizerState, SdtConfig};
use lodestore_trainer::report::EpochReport;
use lodestore_trainer::run_model::parameter_count;
use lodestore_trainer::{Progress, Strategy, TrainConfig, TrainError, TrainReport, train};
use serde::Serialize;

use crate::reproduce::cut::{Cut, Source, Splits};

/// A way to train on p partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SdtWay {
    /// One worker on a graph of one partition.
    Whole,
    /// A worker for each partition, gradients averaged each step (`ondemand`).
    Gradients,
    /// A local model for each partition, averaged each epoch with the moments of its optimiser.
    Sdt,
    /// The same with moments that stay with local models, and that begin again.
    SdtLocal,
    SdtReset,
    /// With halos of one hop, as the paper's code has them.
    OneHop,
    /// Local models averaged once, after the last epoch, and to be measured.
    Once,
    /// Local models that are never averaged: the mean of their accuracies.
    Alone,
}

pub(super) const WAYS: [SdtWay; 8] = [
    SdtWay::Whole,
    SdtWay::Gradients,
    SdtWay::Sdt,
    SdtWay::SdtLocal,
    SdtWay::SdtReset,
    SdtWay::OneHop,
    SdtWay::Once,
    SdtWay::Alone,
];

/// Results of learning in one way.
#[derive(Serialize)]
pub(super) struct SdtLearning {
    pub(super) way: SdtWay,
    /// Accuracies on the test nodes after each epoch, by seed.
    pub(super) accuracies: Vec<Vec<f64>>,
    /// Bytes of an epoch: halos loaded, or remote rows; then models or gradients.
    pub(super) row_bytes: f64,
    pub(super) synchronised_bytes: f64,
    pub(super) kept_share: Option<f64>,
}

/// Memory of one worker of q, with p partitions.
#[derive(Serialize)]
pub(super) struct Held {
    pub(super) parts: u16,
    pub(super) workers: u32,
    pub(super) replication_factor: f64,
    /// Most bytes of partitions.
    pub(super) bytes: u64,
}

impl SdtWay {
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Whole => "whole graph",
            Self::Gradients => "gradients averaged",
            Self::Sdt => "sdt",
            Self::SdtLocal => "sdt, moments local",
            Self::SdtReset => "sdt, moments reset",
            Self::OneHop => "sdt, halo of 1 hop",
            Self::Once => "averaged once",
            Self::Alone => "never averaged",
        }
    }

    fn settings(self, usual: &TrainConfig, n_parts: u32) -> TrainConfig {
        let sdt = SdtConfig::default();
        let with_state = |optimizer_state| SdtConfig { optimizer_state, ..sdt };
        let strategy = match self {
            Self::Whole | Self::Gradients => Strategy::Ondemand(OndemandConfig::default()),
            Self::Sdt => Strategy::Sdt(sdt),
            Self::SdtLocal => Strategy::Sdt(with_state(OptimizerState::Local)),
            Self::SdtReset => Strategy::Sdt(with_state(OptimizerState::Reset)),
            Self::OneHop => Strategy::Sdt(SdtConfig { halo_hops: Some(1), ..sdt }),
            Self::Once | Self::Alone => {
                Strategy::Sdt(SdtConfig { average_every: usual.epochs + 1, ..sdt })
            }
        };
        let workers = if self == Self::Gradients { n_parts } else { 1 };
        TrainConfig { strategy, workers, ..usual.clone() }
    }
}

/// Trains in one way with each seed.
pub(super) fn learn(
    source: &Source,
    cut: &Cut,
    way: SdtWay,
    usual: &TrainConfig,
    n_seeds: u32,
) -> Result<SdtLearning> {
    let n_parts = u32::from(cut.graph().book.n_parts());
    let (mut accuracies, mut last) = (Vec::new(), None);
    for seed in 1..=u64::from(n_seeds) {
        let config = TrainConfig { seed, ..way.settings(usual, n_parts) };
        let splits: Vec<Splits> = match way {
            // A partition without training nodes has no model.
            SdtWay::Alone => cut.graph().book.parts().map(Splits::TrainedPart).collect(),
            _ => vec![Splits::Stored],
        };
        let mut runs = Vec::new();
        for splits in splits {
            let sources = cut.sources(source, config.workers, splits);
            let quiet = &mut |_: &Progress<'_>| ControlFlow::Continue(());
            match train(&config, &cut.graph(), &sources, quiet) {
                Err(TrainError::NothingToTrain { .. }) if splits != Splits::Stored => {}
                report => runs.push(report?),
            }
        }
        let of_epoch = |epoch: usize| {
            let of_run = |run: &TrainReport| run.epochs[epoch].test_accuracy.unwrap_or(0.0);
            runs.iter().map(of_run).sum::<f64>() / runs.len().max(1) as f64
        };
        accuracies.push((0..config.epochs as usize).map(of_epoch).collect());
        last = runs.pop().map(|run| (run, config));
    }
    let (report, config) = last.ok_or_else(|| anyhow!("--seeds: expected 1 or more"))?;
    let mean = |of: &dyn Fn(&EpochReport) -> u64| {
        report.epochs.iter().map(|epoch| of(epoch) as f64).sum::<f64>() / report.epochs.len() as f64
    };
    let sdt = match config.strategy {
        Strategy::Sdt(sdt) => Some(sdt),
        _ => None,
    };
    let n_values = n_values(source, cut, &config)?;
    // As hop counts gradients, for a worker for each partition.
    let of_gradients = 2 * 4 * n_values * u64::from(n_parts - 1);
    // A term to each worker and a share of the sum, as many workers as partitions.
    let synchronised = |epoch: &EpochReport| match sdt {
        Some(sdt) if (epoch.epoch + 1).is_multiple_of(sdt.average_every) => {
            let lists = if sdt.optimizer_state == OptimizerState::Averaged { 3 } else { 1 };
            lists * of_gradients
        }
        Some(_) => 0,
        None => of_gradients * u64::from(epoch.steps),
    };
    Ok(SdtLearning {
        way,
        accuracies,
        row_bytes: mean(&|epoch| match sdt {
            Some(_) => report.epochs[0].halo_bytes.unwrap_or(0),
            None => epoch.remote_bytes,
        }),
        synchronised_bytes: mean(&synchronised),
        kept_share: report.epochs.first().and_then(|epoch| epoch.kept_share),
    })
}

/// Returns the parameters of the model.
fn n_values(source: &Source, cut: &Cut, config: &TrainConfig) -> Result<u64> {
    let sources = cut.sources(source, 1, Splits::Stored);
    let rows = &sources[0].local;
    let width = rows.tensor(&config.feature_tensor)?.width as usize;
    let labels = rows.tensor(&config.label_tensor)?;
    let mut n_classes = labels.width as usize;
    if n_classes == 1 {
        let ids: Vec<_> = (0..source.n_nodes).map(NodeId).collect();
        let mut values = vec![0i64; ids.len()];
        let bytes = bytemuck::cast_slice_mut(&mut values);
        rows.pull(&config.label_tensor, &ids, bytes, PullKind::Vector)?;
        n_classes = values.into_iter().max().unwrap_or(0).max(0) as usize + 1;
    }
    Ok(parameter_count(config, width, n_classes))
}

/// Trains an epoch on `workers` workers, and returns the memory of one.
pub(super) fn hold(source: &Source, cut: &Cut, workers: u32, usual: &TrainConfig) -> Result<Held> {
    let config = TrainConfig {
        epochs: 1,
        evaluate_every: 0,
        measure_test: false,
        workers,
        ..SdtWay::Sdt.settings(usual, 1)
    };
    let sources = cut.sources(source, workers, Splits::Stored);
    let quiet = &mut |_: &Progress<'_>| ControlFlow::Continue(());
    let report = train(&config, &cut.graph(), &sources, quiet)?;
    Ok(Held {
        parts: cut.graph().book.n_parts(),
        workers,
        replication_factor: cut.report.replication_factor,
        bytes: report.memory_measured_bytes,
    })
}
