//! Table IV: an epoch over links, beside gradients averaged each step.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use lodestore_store::Graph;
use lodestore_trainer::config::{OndemandConfig, SdtConfig};
use lodestore_trainer::{Strategy, TrainConfig};
use serde::Serialize;

use crate::link_emulation::LinkSpec;
use crate::reproduce::convergence::Spread;
use crate::reproduce::runs::{addresses, behind_links, start_servers, train_run};
use lode_cli::commands::train::train;
use lode_cli::console::Console;

/// Epochs over one link.
#[derive(Serialize)]
pub(super) struct SdtLinkRuns {
    /// None for the loopback as it is.
    pub(super) rate_bits: Option<f64>,
    pub(super) runs: Vec<SdtLinkRun>,
}

/// Epochs in one way.
#[derive(Serialize)]
pub(super) struct SdtLinkRun {
    pub(super) strategy: &'static str,
    pub(super) first_seconds: f64,
    /// Mean of the epochs after the first.
    pub(super) seconds: f64,
    /// Bytes of rows in the first epoch, and in a later one.
    pub(super) row_bytes: [u64; 2],
}

/// Epochs after the first, of which the mean is taken.
const EPOCHS: u32 = 3;

/// Trains with a worker and a server for each partition of the graph in `dir`, where it has two or
/// more.
pub(super) fn over_links(
    dir: &Path,
    usual: &TrainConfig,
    rates: &[f64],
    delay: Duration,
    console: &Console,
) -> Result<Vec<SdtLinkRuns>> {
    let n_parts = Graph::open(dir)?.book().n_parts();
    if n_parts < 2 {
        return Ok(Vec::new());
    }
    let logs = tempfile::tempdir()?;
    let servers = start_servers(dir, logs.path(), n_parts)?;
    let mut all = Vec::new();
    for rate_bits in [None].into_iter().chain(rates.iter().copied().map(Some)) {
        console.stage("links");
        let spec = rate_bits.map(|rate_bits| LinkSpec { rate_bits, delay });
        let links = spec.map(|spec| behind_links(&servers, spec)).transpose()?;
        let connect = links.as_deref().map_or_else(|| servers.addresses(), addresses);
        let mut runs = Vec::new();
        for strategy in
            [Strategy::Ondemand(OndemandConfig::default()), Strategy::Sdt(SdtConfig::default())]
        {
            let config = TrainConfig {
                strategy,
                workers: n_parts.into(),
                epochs: EPOCHS + 1,
                evaluate_every: 0,
                measure_test: false,
                ..usual.clone()
            };
            runs.push(run(dir, config, connect.clone(), console)?);
        }
        all.push(SdtLinkRuns { rate_bits, runs });
    }
    servers.stop()?;
    Ok(all)
}

fn run(
    dir: &Path,
    config: TrainConfig,
    connect: Vec<String>,
    console: &Console,
) -> Result<SdtLinkRun> {
    let strategy = config.strategy.name();
    let epochs = train(&train_run(dir, connect, config), console)?.report.epochs;
    let later = &epochs[1..];
    Ok(SdtLinkRun {
        strategy,
        first_seconds: epochs[0].seconds,
        seconds: Spread::of(later.iter().map(|epoch| epoch.seconds)).mean,
        row_bytes: [epochs[0].remote_bytes, later[0].remote_bytes],
    })
}
