//! Where `hop` trains on roots, and how their rows come.

use clap::Args;
use lodestore_trainer::Strategy;
use lodestore_trainer::config::{Fetch, HopConfig, Merge, Migration};

use crate::usage::UsageError;

/// Flags of `--strategy hop`.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct HopArgs {
    /// hop: where models train, none or paper [default: none]. With `none` each worker trains on
    /// all roots that it owns, in one step. With `paper` each model trains on its own roots, and
    /// moves to the workers that own them. It takes as many time steps as there are workers.
    #[arg(long, value_name = "M")]
    migration: Option<Migration>,
    /// hop --migration paper: pull rows for each time step, not for all of an iteration together.
    #[arg(long)]
    no_pregather: bool,
    /// hop --migration paper: which time step is merged into the others, min (the one with the
    /// fewest roots), random or none [default: none]. From the second epoch on, one time step more
    /// is merged in each epoch, until epochs become no faster. Times decide, so that two runs may
    /// differ in the last bits of their losses.
    #[arg(long, value_name = "M")]
    merge: Option<Merge>,
    /// hop --migration none: how rows reach a worker, ondemand or rapid, with the flags of that
    /// [default: ondemand].
    #[arg(long, value_name = "F")]
    fetch: Option<Fetch>,
}

impl HopArgs {
    /// Returns the settings of `hop`; fails where a flag would do nothing.
    pub(super) fn check(&self, strategy: Strategy) -> Result<HopConfig, UsageError> {
        let used = [
            ("--migration", self.migration.is_some()),
            ("--no-pregather", self.no_pregather),
            ("--merge", self.merge.is_some()),
            ("--fetch", self.fetch.is_some()),
        ];
        let mut used = used.into_iter().filter(|(_, used)| *used).map(|(flag, _)| flag);
        let usual = HopConfig::default();
        let migration = self.migration.unwrap_or(usual.migration);
        let refused = match (strategy, migration) {
            (Strategy::Hop, Migration::None) => used
                .find(|flag| ["--no-pregather", "--merge"].contains(flag))
                .map(|flag| format!("{flag} is for --migration paper")),
            (Strategy::Hop, Migration::Paper) => used
                .find(|flag| *flag == "--fetch")
                .map(|flag| format!("{flag} is for --migration none")),
            _ => used.next().map(|flag| format!("{flag} is for --strategy hop")),
        };
        match refused {
            Some(message) => Err(UsageError::new(message)),
            None => Ok(HopConfig {
                migration,
                pregather: !self.no_pregather,
                merge: self.merge.unwrap_or(usual.merge),
                fetch: self.fetch.unwrap_or(usual.fetch),
            }),
        }
    }
}
