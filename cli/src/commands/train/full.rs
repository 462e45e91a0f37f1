//! How `full` trains over partitions.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use lodestore_graph::sampler::Fanout;
use lodestore_trainer::Strategy;
use lodestore_trainer::config::{Compression, FullConfig, Halo};

use crate::commands::rapa::read_profile;
use crate::usage::UsageError;

/// Layers of a model under `full` unless given.
const LAYERS: u32 = 3;

/// Flags of `--strategy full`.
#[derive(Args, Clone, Debug)]
pub(super) struct FullArgs {
    /// full: layers of the model, each over all neighbours [default: 3].
    #[arg(long, value_name = "L", value_parser = clap::value_parser!(u32).range(1..=64))]
    layers: Option<u32>,
    /// full: rows of halos, exchange or zero [default: exchange]. With `exchange` features are
    /// pulled once, and rows of layers come from their owners. With `zero` they are zeros, so that
    /// nothing travels: a control.
    #[arg(long, value_name = "H")]
    halo: Option<Halo>,
    /// full: epochs that rows of halos, and gradients of them, may be old: they are exchanged every
    /// K + 1 epochs; 0 is exact [default: 0].
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(..1_000_000))]
    staleness: Option<u32>,
    /// full: narrow rows and gradients that travel to f16 or int8, with a scale for each row; the
    /// error is reported.
    #[arg(long, value_name = "C")]
    compress: Option<Compression>,
    /// full: compute only when rows have come, to compare.
    #[arg(long)]
    no_overlap: bool,
    /// full: profiles of `lode-lab profile-device`, one for each worker. Partitions of slow ones do
    /// without halo nodes of least influence, and without the edges from them (RAPA).
    #[arg(long, value_name = "PROFILE", num_args = 1.., value_delimiter = ',')]
    rapa: Vec<PathBuf>,
}

impl FullArgs {
    /// Fails where a flag would do nothing under `strategy`; `others` are flags that are for other
    /// strategies, and whether they are there.
    pub(super) fn check(
        &self,
        strategy: Strategy,
        others: &[(&str, bool)],
    ) -> Result<(), UsageError> {
        let used = [
            ("--layers", self.layers.is_some()),
            ("--halo", self.halo.is_some()),
            ("--staleness", self.staleness.is_some()),
            ("--compress", self.compress.is_some()),
            ("--no-overlap", self.no_overlap),
            ("--rapa", !self.rapa.is_empty()),
        ];
        if strategy != Strategy::Full {
            return match used.into_iter().find(|(_, used)| *used) {
                Some((flag, _)) => Err(UsageError::new(format!("{flag} is for --strategy full"))),
                None => Ok(()),
            };
        }
        match others.iter().find(|(_, used)| *used) {
            Some((flag, _)) => Err(UsageError::new(format!(
                "{flag} is not for --strategy full, which computes all nodes with all of their \
                 neighbours in each step; --layers says how many layers there are"
            ))),
            None => Ok(()),
        }
    }

    /// Returns the settings of `full`, without profiles.
    pub(super) fn config(&self) -> FullConfig {
        let usual = FullConfig::default();
        FullConfig {
            halo: self.halo.unwrap_or(usual.halo),
            staleness: self.staleness.unwrap_or(usual.staleness),
            compress: self.compress,
            overlap: !self.no_overlap,
            ..usual
        }
    }

    /// Returns the fan-out of each layer.
    pub(super) fn fanouts(&self) -> Vec<Fanout> {
        vec![Fanout::All; self.layers.unwrap_or(LAYERS) as usize]
    }

    /// Fails unless there is a profile for each of `workers`, or none; before any is read.
    pub(super) fn check_profiles(&self, workers: u32) -> Result<(), UsageError> {
        let found = self.rapa.len();
        if found == 0 || found as u64 == u64::from(workers) {
            return Ok(());
        }
        Err(UsageError::new(format!(
            "--rapa takes a profile for each worker: {workers}, found {found}"
        )))
    }

    /// Reads the profiles into `config`.
    pub(super) fn read_profiles(paths: &[PathBuf], config: &mut FullConfig) -> Result<()> {
        config.devices = paths.iter().map(|path| read_profile(path)).collect::<Result<_>>()?;
        Ok(())
    }

    /// Returns the files of the profiles.
    pub(super) fn profiles(&self) -> &[PathBuf] {
        &self.rapa
    }
}
