//! Tables 7 and 8 by seconds: epochs over links that behave like networks.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use lodestore_store::Graph;
use lodestore_trainer::TrainConfig;
use lodestore_trainer::report::EpochReport;
use serde::Serialize;

use super::ways::{CapWay, profiles};
use crate::link_emulation::{LinkSpec, ShapedRank};
use crate::reproduce::convergence::Spread;
use crate::reproduce::runs::{DEADLINE, addresses, behind_links, start_servers, train_run};
use lode_cli::commands::train::{TierChoice, train_over_links};

/// Epochs after the first, of which the mean is taken: a whole period of the longest staleness.
const EPOCHS: u32 = 11;

/// Epochs over one link.
#[derive(Serialize)]
pub(super) struct CapLinkRuns {
    #[serde(flatten)]
    pub(super) spec: LinkSpec,
    pub(super) runs: Vec<CapLinkRun>,
}

/// Epochs in one way; means of those after the first.
#[derive(Serialize)]
pub(super) struct CapLinkRun {
    pub(super) way: CapWay,
    pub(super) seconds: f64,
    /// Time in which rows and gradients were on their way, and the part of it in which nothing
    /// was left to compute.
    pub(super) exchange_seconds: f64,
    pub(super) wait_seconds: f64,
    /// Bytes of features, rows and gradients.
    pub(super) halo_bytes: f64,
    /// How far the computing time of the slowest worker is above the mean.
    pub(super) imbalance: f64,
}

/// Trains with a worker and a server for each partition of the graph in `dir`, where it has two or
/// more.
pub(super) fn over_links(
    dir: &Path,
    usual: &TrainConfig,
    rates: &[f64],
    delay: Duration,
    staleness: &[u32],
) -> Result<Vec<CapLinkRuns>> {
    let n_parts = Graph::open(dir)?.book().n_parts();
    if n_parts < 2 {
        return Ok(Vec::new());
    }
    let devices = profiles(n_parts)?;
    let logs = tempfile::tempdir()?;
    let servers = start_servers(dir, logs.path(), n_parts)?;
    // Table 8's first.
    let mut ways = vec![
        CapWay::Resent,
        CapWay::Waiting,
        CapWay::ResentRapa,
        CapWay::RapaWaiting,
        CapWay::Rapa,
        CapWay::Exact,
    ];
    ways.extend(staleness.iter().max().map(|&epochs| CapWay::Stale(epochs)));
    ways.push(CapWay::Int8);
    ways.extend(staleness.iter().max().map(|&epochs| CapWay::StaleInt8(epochs)));
    ways.push(CapWay::Zero);
    let mut all = Vec::new();
    for &rate_bits in rates {
        let (spec, mut runs) = (LinkSpec { rate_bits, delay }, Vec::new());
        for &way in &ways {
            let links = behind_links(&servers, spec)?;
            let train = TrainConfig {
                epochs: EPOCHS + 1,
                evaluate_every: 0,
                measure_test: false,
                ..way.settings(usual, &devices)
            };
            let mut run = train_run(dir, addresses(&links), train);
            if way.resends_inputs() {
                run.tiers = TierChoice::keeping_nothing();
            }
            let report = train_over_links(&run, ShapedRank::group(&links, DEADLINE))?;
            runs.push(CapLinkRun::of(way, &report.epochs[1..]));
        }
        all.push(CapLinkRuns { spec, runs });
    }
    servers.stop()?;
    Ok(all)
}

impl CapLinkRun {
    fn of(way: CapWay, epochs: &[EpochReport]) -> Self {
        let mean = |of: &dyn Fn(&EpochReport) -> Option<f64>| {
            Spread::of(epochs.iter().filter_map(of)).mean
        };
        Self {
            way,
            seconds: mean(&|epoch| Some(epoch.seconds)),
            exchange_seconds: mean(&|epoch| epoch.exchange_seconds),
            wait_seconds: mean(&|epoch| epoch.exchange_wait_seconds),
            halo_bytes: mean(&|epoch| epoch.halo_bytes.map(|n_bytes| n_bytes as f64)),
            imbalance: mean(&|epoch| epoch.compute_imbalance),
        }
    }
}
