//! Flags of one strategy each: `rapid`, `hop`, `sdt` and `full`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use lodestore_cache::PolicyKind;
use lodestore_client::keep::Keep;
use lodestore_graph::is_stream;
use lodestore_graph::sampler::Fanout;
use lodestore_trainer::config::{
    Compression, FullConfig, Halo, HopConfig, Merge, Migration, OptimizerState, ScheduleConfig,
    SdtConfig,
};

use crate::flags::parse_size;
use crate::usage::{UsageError, refuse_given};

/// Layers of a model under `full` unless given.
const LAYERS: u32 = 3;

/// Flags of rows that come by a schedule.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "RapidGNN: --strategy rapid, or hop with --fetch rapid")]
pub(super) struct HotArgs {
    /// rapid: rows in each worker's hot set under --policy frequency, of which there are two; the
    /// oracle, the policy unless given, keeps twice as many. At most what it does not own [default:
    /// 10000].
    #[arg(long = "hot", value_name = "ROWS")]
    pub(super) n_hot: Option<usize>,
    /// rapid: batches prepared ahead [default: 4].
    #[arg(long, value_name = "Q")]
    pub(super) window: Option<usize>,
    /// rapid: batches of the window whose rows are read together [default: half of the window].
    /// Shared rows and neighbours on disk are read once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) together: Option<u32>,
    /// rapid: most bytes of rows that one worker's kept rows and batches may take. Batches are
    /// those of the window, the one that is trained on, and one that the trainer had to prepare
    /// itself. Both shrink to it; less than one batch takes is an error that says how much that is.
    /// Under sdt it is the memory of each worker; a third of it is for its partitions, see
    /// --reserve. A partition that is larger is an error that says how many partitions would fit.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) memory: Option<u64>,
    /// rapid: where the schedule is kept, and used if it is there already; beside the checkpoints
    /// unless given, or in a temporary file without any. Another file, or the schedule of another
    /// run, is an error, and stays.
    #[arg(long, value_name = "FILE")]
    pub(super) schedule: Option<PathBuf>,
}

impl HotArgs {
    /// Fails for a flag, where rows come by no schedule. `--memory` is for sdt too.
    pub(super) fn refuse(&self, is_sdt: bool) -> Result<(), UsageError> {
        let used = [
            ("--hot", self.n_hot.is_some()),
            ("--window", self.window.is_some()),
            ("--together", self.together.is_some()),
            ("--memory", self.memory.is_some() && !is_sdt),
            ("--schedule", self.schedule.is_some()),
        ];
        refuse_given(&used, "is for --strategy rapid, or hop with --fetch rapid")
    }

    /// Returns the settings of a schedule, with rows kept by `--policy`. The run says where the
    /// schedule is.
    pub(super) fn config(&self, policy: Option<PolicyKind>) -> Result<ScheduleConfig, UsageError> {
        let usual = ScheduleConfig::default();
        let window = self.window.unwrap_or(usual.window);
        if let Some(found) = self.together.filter(|&together| together as usize > window) {
            let message =
                format!("--together must be at most the window of {window}, found {found}");
            return Err(UsageError::new(message));
        }
        if let Some(path) = self.schedule.as_deref().filter(|path| is_stream(path)) {
            return Err(UsageError::new(format!(
                "--schedule {}: expected a file, which is read again, found a pipe or a device",
                path.display()
            )));
        }
        Ok(ScheduleConfig {
            keep: kept_by(policy)?,
            n_hot: self.n_hot.unwrap_or(usual.n_hot),
            window,
            together: self.together.map(|n| n as usize),
            memory_budget_bytes: self.memory,
            ..usual
        })
    }
}

/// Returns which rows are kept by a schedule, by `--policy`.
fn kept_by(policy: Option<PolicyKind>) -> Result<Keep, UsageError> {
    match policy {
        None | Some(PolicyKind::Oracle) => Ok(Keep::Oracle),
        Some(PolicyKind::Frequency) => Ok(Keep::Hot),
        Some(policy) => Err(UsageError::new(format!(
            "--policy: the schedule of rapid cannot follow `{policy}`; one of: frequency, oracle"
        ))),
    }
}

/// Way of rows to a worker: that of the strategy of this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetch {
    Ondemand,
    Rapid,
    Massive,
}

impl FromStr for Fetch {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "ondemand" => Ok(Self::Ondemand),
            "rapid" => Ok(Self::Rapid),
            "massive" => Ok(Self::Massive),
            _ => Err(format!("no way to fetch `{name}`; there are: ondemand, rapid, massive")),
        }
    }
}

/// Flags of `--strategy hop`.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "HopGNN: --strategy hop")]
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
    /// Fails for a flag, under another strategy.
    pub(super) fn refuse(&self) -> Result<(), UsageError> {
        let used = [
            ("--migration", self.migration.is_some()),
            ("--no-pregather", self.no_pregather),
            ("--merge", self.merge.is_some()),
            ("--fetch", self.fetch.is_some()),
        ];
        refuse_given(&used, "is for --strategy hop")
    }

    /// Returns whether rows come by a schedule.
    pub(super) fn has_schedule(&self) -> bool {
        self.fetch == Some(Fetch::Rapid)
    }

    /// Returns the settings of `hop`; `hot` and `policy` are those of its schedule, if it has one.
    pub(super) fn config(
        &self,
        hot: &HotArgs,
        policy: Option<PolicyKind>,
    ) -> Result<HopConfig, UsageError> {
        let usual = HopConfig::default();
        let migration = self.migration.unwrap_or(usual.migration);
        match migration {
            Migration::None => {
                let models =
                    [("--no-pregather", self.no_pregather), ("--merge", self.merge.is_some())];
                refuse_given(&models, "is for --migration paper")?;
            }
            Migration::Paper => {
                let rows = [("--fetch", self.fetch.is_some())];
                refuse_given(&rows, "is for --migration none")?;
            }
        }
        let schedule = match self.fetch {
            None | Some(Fetch::Ondemand) => None,
            Some(Fetch::Rapid) => Some(hot.config(policy)?),
            Some(Fetch::Massive) => {
                let message = "--fetch must be ondemand or rapid under hop, found massive";
                return Err(UsageError::new(message));
            }
        };
        let (pregather, merge) = (!self.no_pregather, self.merge.unwrap_or(usual.merge));
        Ok(HopConfig { migration, pregather, merge, schedule })
    }
}

/// Flags of `--strategy sdt`.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "SDT-GNN: --strategy sdt")]
pub(super) struct SdtArgs {
    /// sdt: average the local models after every N epochs [default: 1].
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    average_every: Option<u32>,
    /// sdt: what becomes of the states of optimisers then: averaged (as parameters are), local
    /// (each local model keeps its own) or reset [default: averaged].
    #[arg(long, value_name = "O")]
    optimizer_state: Option<OptimizerState>,
    /// sdt: hops of the halo that each partition has. As many as layers keep sampled neighbourhoods
    /// whole; 1 is what SDT-GNN's code does, and 0 no halo [default: as many as layers].
    #[arg(long, value_name = "L")]
    halo_hops: Option<u32>,
    /// sdt: one batch for each partition, with all of its training nodes and all of their
    /// neighbours. Only the number of layers of --fanout counts, and --batch does not.
    #[arg(long)]
    full_partition: bool,
    /// sdt --memory: what training takes of it; the rest is for partitions [default: two thirds].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    reserve: Option<u64>,
}

impl SdtArgs {
    /// Fails for a flag, under another strategy.
    pub(super) fn refuse(&self) -> Result<(), UsageError> {
        let used = [
            ("--average-every", self.average_every.is_some()),
            ("--optimizer-state", self.optimizer_state.is_some()),
            ("--halo-hops", self.halo_hops.is_some()),
            ("--full-partition", self.full_partition),
            ("--reserve", self.reserve.is_some()),
        ];
        refuse_given(&used, "is for --strategy sdt")
    }

    /// Returns the settings of `sdt`, with the memory of each worker. Fails where a flag would do
    /// nothing; `batch` is `--batch`, and whether it is there.
    pub(super) fn config(
        &self,
        memory: Option<u64>,
        batch: (&str, bool),
    ) -> Result<SdtConfig, UsageError> {
        if self.reserve.is_some() && memory.is_none() {
            return Err(UsageError::new("--reserve is a part of --memory; give both"));
        }
        if self.full_partition {
            let reason = "is not for --full-partition, whose batches have all nodes of a partition";
            refuse_given(&[batch], reason)?;
        }
        let usual = SdtConfig::default();
        Ok(SdtConfig {
            average_every: self.average_every.unwrap_or(usual.average_every),
            optimizer_state: self.optimizer_state.unwrap_or(usual.optimizer_state),
            halo_hops: self.halo_hops,
            full_partition: self.full_partition,
            memory_bytes: memory,
            reserved_bytes: self.reserve,
        })
    }
}

/// Flags of `--strategy full`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "CaPGNN: --strategy full")]
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
    /// Fails for a flag, under another strategy.
    pub(super) fn refuse(&self) -> Result<(), UsageError> {
        let used = [
            ("--layers", self.layers.is_some()),
            ("--halo", self.halo.is_some()),
            ("--staleness", self.staleness.is_some()),
            ("--compress", self.compress.is_some()),
            ("--no-overlap", self.no_overlap),
            ("--rapa", !self.rapa.is_empty()),
        ];
        refuse_given(&used, "is for --strategy full")
    }

    /// Returns the settings of `full`, without profiles. Fails where a flag would do nothing;
    /// `sampling` are the flags of samples, and whether they are there.
    pub(super) fn config(&self, sampling: &[(&str, bool)]) -> Result<FullConfig, UsageError> {
        if self.halo == Some(Halo::Zero) {
            let exchange = [("--no-overlap", self.no_overlap)];
            refuse_given(&exchange, "is for --halo exchange; with zero nothing travels")?;
        }
        refuse_given(
            sampling,
            "is not for --strategy full, which computes all nodes with all of their neighbours in \
             each step; --layers says how many layers there are",
        )?;
        let usual = FullConfig::default();
        Ok(FullConfig {
            halo: self.halo.unwrap_or(usual.halo),
            staleness: self.staleness.unwrap_or(usual.staleness),
            compress: self.compress,
            overlap: !self.no_overlap,
            ..usual
        })
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

    /// Returns the files of the profiles.
    pub(super) fn profiles(&self) -> Vec<PathBuf> {
        self.rapa.clone()
    }
}
