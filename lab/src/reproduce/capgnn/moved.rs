//! Claims C1 and C8: what halos move in an epoch.

use std::ops::ControlFlow;

use anyhow::Result;
use lodestore_trainer::{Progress, TrainConfig, train};
use serde::Serialize;

use super::ways::Way;
use crate::reproduce::cut::{Cut, Source, Splits};

/// Bytes of the halos of all partitions.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Moved {
    pub(super) parts: u16,
    pub(super) halo_rows: u64,
    /// Totals of an epoch: inputs, rows between layers and gradients of these, counted by their
    /// widths: the traffic of a trainer without any cache.
    pub(super) resent_bytes: u64,
    /// The same without the inputs, which never change.
    pub(super) kept_bytes: u64,
    /// Bytes of the exact way in an epoch, and once, in the first one.
    pub(super) exact_bytes: u64,
    pub(super) input_bytes: u64,
}

/// Trains two epochs of the exact way on `cut`.
pub(super) fn moved(source: &Source, cut: &Cut, usual: &TrainConfig) -> Result<Moved> {
    let parts = cut.graph().book.n_parts();
    let config = TrainConfig {
        workers: parts.into(),
        epochs: 2,
        evaluate_every: 0,
        measure_test: false,
        ..Way::Exact.settings(usual, &[])
    };
    let sources = cut.sources(source, config.workers, Splits::Random);
    let quiet = &mut |_: &Progress<'_>| ControlFlow::Continue(());
    let epochs = train(&config, &cut.graph(), &sources, quiet)?.epochs;
    let halo_rows = epochs[0].halo_rows.unwrap_or(0);
    let n_hidden = 2 * (usual.fanouts.len() as u64 - 1) * usual.hidden as u64;
    let kept_bytes = 4 * halo_rows * n_hidden;
    let sent = |epoch: usize| {
        epochs[epoch].embedding_bytes.unwrap_or(0) + epochs[epoch].gradient_bytes.unwrap_or(0)
    };
    Ok(Moved {
        parts,
        halo_rows,
        resent_bytes: kept_bytes + halo_rows * source.row_bytes,
        kept_bytes,
        exact_bytes: sent(1),
        input_bytes: epochs[0].input_bytes.unwrap_or(0),
    })
}
