//! Claims C4 and C5, Figs. 14 to 19: what a tier of halos' features hits, with the trainer in the
//! loop.

use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::{Result, ensure};
use lodestore_cache::shared::SharedSettings;
use lodestore_cache::{PolicyKind, PolicySpec, SharedTier, TierSpec};
use lodestore_client::{RowSource, TieredSource};
use lodestore_trainer::report::EpochReport;
use lodestore_trainer::{Progress, TrainConfig, WorkerSources, train};
use serde::Serialize;

use super::halos::overlap_ratios;
use super::ways::CapWay;
use crate::reproduce::convergence::Spread;
use crate::reproduce::cut::{Cut, Source, Splits};

/// JACA and its controls.
const POLICIES: [PolicyKind; 3] = [PolicyKind::Overlap, PolicyKind::Fifo, PolicyKind::Lru];
/// Rows of the tier, as percent of those that are in any halo.
const PERCENTS: [u32; 6] = [10, 25, 50, 75, 90, 100];
/// Epochs of a run: the first one fills the tier.
const EPOCHS: u32 = 4;

/// Epochs with one tier for the halos of all partitions; none for kept features.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Cached {
    pub(super) policy: Option<&'static str>,
    pub(super) percent: u32,
    pub(super) rows: u32,
    /// Hit rate and bytes of the last epoch.
    pub(super) hit_rate: f64,
    pub(super) input_bytes: u64,
    /// Mean of the epochs after the first.
    pub(super) seconds: f64,
}

/// Trains on `cut` under each policy and capacity. Fails where a loss is not that of kept features.
pub(super) fn cached(source: &Source, cut: &Cut, usual: &TrainConfig) -> Result<Vec<Cached>> {
    let graph = cut.graph();
    let n_parts = graph.book.n_parts();
    let config = TrainConfig {
        workers: n_parts.into(),
        epochs: EPOCHS,
        evaluate_every: 0,
        measure_test: false,
        ..CapWay::Exact.settings(usual, &[])
    };
    let quiet = &mut |_: &Progress<'_>| ControlFlow::Continue(());
    let sources = || cut.sources(source, config.workers, Splits::Random);
    let kept = train(&config, &graph, &sources(), quiet)?;
    let ratios: Arc<[u16]> = overlap_ratios(&graph).into();
    let n_wanted = ratios.iter().filter(|&&ratio| ratio > 0).count() as u32;
    let mut all = vec![Cached::of(None, 100, n_wanted, &kept.epochs)];
    for policy in POLICIES {
        let spec = match policy {
            PolicyKind::Overlap => PolicySpec::Overlap(Arc::clone(&ratios)),
            policy => PolicySpec::try_from(policy)?,
        };
        for percent in PERCENTS {
            let n_rows = (u64::from(n_wanted) * u64::from(percent) / 100) as u32;
            let sources = tiered(sources(), n_rows, source.row_bytes, &spec, &config)?;
            let report = train(&config, &graph, &sources, quiet)?;
            ensure!(
                report.step_losses == kept.step_losses,
                "{policy}, {percent} % of the rows: losses {:?}, with kept features {:?}",
                report.step_losses,
                kept.step_losses
            );
            all.push(Cached::of(Some(policy.name()), percent, n_rows, &report.epochs));
        }
    }
    Ok(all)
}

/// Puts one tier before the rows of all workers.
fn tiered(
    mut sources: Vec<WorkerSources>,
    wanted_rows: u32,
    row_bytes: u64,
    spec: &PolicySpec,
    config: &TrainConfig,
) -> Result<Vec<WorkerSources>> {
    let Some(first) = sources.first() else { return Ok(sources) };
    let n_nodes = first.remote.book().n_nodes();
    let room = TierSpec { free_bytes: u64::MAX, reserve_bytes: 0, row_bytes, wanted_rows };
    let tier = Arc::new(SharedTier::within(room, n_nodes, spec, SharedSettings::default())?);
    for of_worker in &mut sources {
        let (inner, tier) = (Arc::clone(&of_worker.remote), Arc::clone(&tier));
        let tensor = &config.feature_tensor;
        let remote: Arc<dyn RowSource> = Arc::new(TieredSource::new(inner, tensor, tier)?);
        of_worker.remote = remote;
    }
    Ok(sources)
}

impl Cached {
    fn of(policy: Option<&'static str>, percent: u32, rows: u32, epochs: &[EpochReport]) -> Self {
        let (last, later) = (epochs.last(), epochs.get(1..).unwrap_or_default());
        Self {
            policy,
            percent,
            rows,
            hit_rate: last.and_then(|epoch| epoch.input_hit_rate).unwrap_or(0.0),
            input_bytes: last.and_then(|epoch| epoch.input_bytes).unwrap_or(0),
            seconds: Spread::of(later.iter().map(|epoch| epoch.seconds)).mean,
        }
    }
}
