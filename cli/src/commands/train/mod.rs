//! `lode train`: train a model on a graph, with rows from its servers or from its files.

mod buffer;
mod local_workers;
mod log;
mod options;
mod processes;
mod report;
mod run;
mod sources;
mod strategy_args;
mod tiers;
mod watch;

use std::iter;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lodestore_client::{ClientConfig, Pin};
use lodestore_graph::sampler::Fanout;
use lodestore_store::{OpenOptions, ReaderKind};
use lodestore_trainer::config::{MassiveConfig, OndemandConfig, RapidConfig, Roots};
use lodestore_trainer::{Metric, ModelKind, Strategy, TrainConfig, TrainError, TrainReport};
use serde::Serialize;

use crate::commands::rapa::read_profile;
use crate::commands::schedule::partial_of;
use crate::console::Console;
use crate::flags::parse_size;
use crate::outputs::NamedFiles;
use crate::security_args::ClientArgs;
use crate::usage::{UsageError, refuse_given};
use buffer::BufferArgs;
pub use buffer::BufferChoice;
use options::{CheckpointArgs, OptionArgs};
pub use processes::Form;
pub(crate) use run::check_workers;
use run::{follow, train_telling};
pub use run::{train, train_over_links};
pub(crate) use sources::rows_of;
use strategy_args::{FullArgs, HopArgs, HotArgs, SdtArgs};
use tiers::TierArgs;
pub use tiers::{TierChoice, TierReport};

/// Longest wait of the processes of a run for each other unless another one is given.
const PEER_TIMEOUT_SECONDS: u32 = 3600;

/// Bytes of rows that an evaluation holds unless others are given.
const EVALUATION_BYTES: u64 = 1 << 30;

/// Names of a folder of checkpoints.
const CHECKPOINT_FILES: [&str; 3] = ["checkpoint", "checkpoint.partial", "lock"];

/// Train a GNN on a graph; rows of other partitions come from servers.
#[derive(Args)]
#[command(after_help = "\
Example: two workers, each with a partition of its own; the rest comes from two servers
  lode train --graph my-graph --connect 127.0.0.1:7171 --connect 127.0.0.1:7172 \\
      --workers 2 --strategy rapid --model sage --fanout 10,10 --epochs 20
Example: the same, each worker a process; then as an MPI job (a lode built with --features mpi)
  lode train --graph my-graph --connect 127.0.0.1:7171 --workers 2 --processes
  mpirun -n 2 lode train --graph my-graph --connect 127.0.0.1:7171
Example: full-batch training over four partitions, and with rows that may be one epoch old, narrowed
  lode train --graph my-graph --workers 4 --strategy full --model gcn --layers 3 --hidden 256 --epochs 100
  lode train --graph my-graph --workers 4 --strategy full --model gcn --staleness 1 --compress int8
Example: a deeper model with what keeps it trainable
  lode train --graph my-graph --fanout 10,5,5,5 --hidden 256 --norm layer --residual \\
      --optimizer adamw --weight-decay 0.01 --lr-schedule cosine --warm-up 2epochs --clip-norm 1

Needs tensors `feat` (float), `label` (i64; or of several labels a node u8 or f32, each 0 or 1) and `split`
(u8: 0 train, 1 validation, 2 test).
Partition p belongs to worker p mod W. Losses depend on the seed, on --roots, and on whether --strategy is
hop and its --migration, or sdt or full with their flags and the partitions, never on how rows are fetched, nor on whether workers are threads, processes or an MPI job.
SIGINT (Ctrl-C) or SIGTERM ends the run after its step: a checkpoint is written where there are to be any,
what was done is reported, and the exit code is 130 or 143. A second one that comes over a second later,
or one before the first step, ends it immediately.")]
pub struct TrainArgs {
    /// Folder of the graph: topology, and rows of each worker's own partitions.
    #[arg(long, value_name = "G")]
    graph: PathBuf,
    /// Address of a server for all other rows; repeat for several. Without any, rows come from
    /// the graph's files.
    #[arg(long, value_name = "ADDR")]
    connect: Vec<String>,
    /// Which rows and models move: ondemand, rapid, massive, hop, sdt or full. With `ondemand` each
    /// batch is pulled when needed. With `rapid` (RapidGNN) there are a schedule, a hot set and
    /// prefetch. With `massive` (MassiveGNN) there is a buffer with eviction by score, and the next
    /// batch is prepared ahead. With `hop` (HopGNN) each root of a global batch is trained on by
    /// the worker that owns it. With `sdt` (SDT-GNN) each partition, loaded with its halo, has a
    /// local model; these are averaged each epoch. With `full` (CaPGNN) all nodes are in each step,
    /// over partitions that exchange rows of each layer.
    #[arg(long, value_name = "S", default_value_t)]
    strategy: Strategy,
    /// Which worker trains on which root, owned or global [default: owned]. With `owned` each
    /// trains on those of its own partitions, as DGL. With `global` one order over all is dealt to
    /// workers by turns, as in HopGNN's model-centric baseline. It is not for --strategy hop, which
    /// deals it to owners.
    #[arg(long, value_name = "R")]
    roots: Option<Roots>,
    /// Model: sage, gcn or gat.
    #[arg(long, value_name = "M", default_value_t = ModelKind::Sage)]
    model: ModelKind,
    /// Workers; at most one per partition [default: 1; in an MPI job one for each process].
    #[arg(long, value_name = "W")]
    workers: Option<u32>,
    /// Each worker is a process of its own, not a thread; this one is the first and reports all.
    /// Tiers that workers share are then each process's own, of an equal share of the bytes.
    #[arg(long)]
    processes: bool,
    /// End the run when the first process has waited for another for this many seconds, in a step
    /// or at the start. It is for --processes, and for an MPI job. The others wait twice as long,
    /// while the first evaluates, writes a checkpoint or the schedule. Allow more where these take
    /// longer [default: 3600].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Processes")]
    peer_timeout: Option<u32>,
    /// Which process of a run this is.
    #[arg(long, hide = true)]
    peer: Option<processes::Peer>,
    /// Neighbours per node and layer, the hop next to the roots first; -1 takes all [default:
    /// 10,10].
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', allow_hyphen_values = true)]
    fanout: Option<Vec<Fanout>>,
    /// Width of hidden layers. A model has at most 1,000,000,000 parameters.
    #[arg(long, value_name = "N", default_value_t = 64)]
    hidden: usize,
    /// gat: attention heads; --hidden is a multiple of it [default: 8].
    #[arg(long, value_name = "N", help_heading = "Layers and optimiser")]
    heads: Option<usize>,
    /// gat: heads of the last layer, whose rows are averaged; as --heads unless given. Its paper
    /// has 1 on Cora and Citeseer, 8 on Pubmed.
    #[arg(long, value_name = "N", help_heading = "Layers and optimiser")]
    output_heads: Option<usize>,
    /// Share of hidden elements and attention coefficients dropped.
    #[arg(long, value_name = "P", default_value_t = 0.5)]
    dropout: f32,
    /// The optimiser's learning rate.
    #[arg(long = "lr", value_name = "X", default_value_t = 0.01)]
    learning_rate: f64,
    /// Weight decay; --optimizer says what becomes of it.
    #[arg(long, value_name = "X", default_value_t = 5e-4)]
    weight_decay: f32,
    /// Passes over the training nodes.
    #[arg(long, value_name = "N", default_value_t = 10)]
    epochs: u32,
    /// Roots per batch and worker [default: 512].
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Fixes batches, first parameters and dropout.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Divide each feature row by the sum of its absolute values.
    #[arg(long, help_heading = "Layers and optimiser")]
    normalize: bool,
    /// Measure accuracy after every N epochs; 0: after the last only.
    #[arg(long, value_name = "N", default_value_t = 1)]
    evaluate_every: u32,
    /// Metric of validation and test nodes, wherever accuracy is reported: accuracy (one class a
    /// node), f1-micro, or roc-auc (two classes, or several labels a node) [default: accuracy].
    #[arg(long, value_name = "M", help_heading = "Evaluation")]
    metric: Option<Metric>,
    /// Leave the test nodes out; with --evaluate-every 0 accuracy is not measured at all.
    #[arg(long, help_heading = "Evaluation")]
    no_test: bool,
    /// Most bytes of rows that an evaluation holds in memory; more go to a temporary file (in
    /// TMPDIR). The scores of roc-auc, 8 bytes for each label of each measured node, come on top
    /// [default: 1GiB].
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Evaluation")]
    evaluation_memory: Option<u64>,
    /// Stop when accuracy on the validation nodes has not risen for N epochs; 0: never.
    #[arg(long, value_name = "N", default_value_t = 0)]
    patience: u32,
    /// Write the model that did best on the validation nodes to this file (safetensors), in place
    /// of what is there; `lode evaluate` reads it.
    #[arg(long, value_name = "FILE")]
    save_model: Option<PathBuf>,
    /// Write what each worker did in each step to this file, one JSON object a line;
    /// docs/train-log.md says what is in it. With --resume lines are added, else a file that has
    /// any is refused.
    #[arg(long, value_name = "FILE.jsonl")]
    log: Option<PathBuf>,
    #[command(flatten)]
    options: OptionArgs,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    #[command(flatten)]
    tiers: TierArgs,
    #[command(flatten)]
    buffer: BufferArgs,
    #[command(flatten)]
    hot: HotArgs,
    #[command(flatten)]
    hop: HopArgs,
    #[command(flatten)]
    sdt: SdtArgs,
    #[command(flatten)]
    full: FullArgs,
    /// How rows are read from the graph's files: auto (mapped if they fit in half of the free
    /// memory, else direct), mapped, direct or pread.
    #[arg(long, value_name = "R", default_value_t, help_heading = "Versions and files")]
    reader: ReaderKind,
    /// With --connect: all rows are of the version that the servers have committed at the start; own
    /// rows too, from the graph's files. Without it the newest version of the files must be that of
    /// the servers. Either way no row of another version is used, whatever is put, committed and
    /// compacted meanwhile, and the processes of a run must all find the same.
    #[arg(long, requires = "connect", help_heading = "Versions and files")]
    pin: bool,
    /// Rows of several versions may meet: own rows are of the newest version of the graph's files,
    /// all others of the newest that the servers have at the start. A run that resumes may continue
    /// on another version. Each is an error otherwise.
    #[arg(long, conflicts_with = "pin", help_heading = "Versions and files")]
    mixed_versions: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// A run: settings of the trainer, and where its rows come from.
pub struct TrainRun {
    pub graph: PathBuf,
    pub connect: Vec<String>,
    pub client: ClientConfig,
    pub store: OpenOptions,
    /// Memory for remote rows that stay.
    pub tiers: TierChoice,
    /// `massive`: each worker's buffer.
    pub buffer: Option<BufferChoice>,
    /// Whether own rows are of the version of the servers; otherwise that must be the newest of the
    /// graph's files.
    pub pins_servers: bool,
    /// All but where the schedule is.
    pub train: TrainConfig,
    /// Where the schedule is kept; beside the checkpoints or in a temporary folder unless given.
    pub schedule: Option<PathBuf>,
    /// Destination of the log of steps.
    pub log: Option<PathBuf>,
    /// How workers are spread over processes.
    pub form: Form,
}

impl TrainRun {
    /// Adds the files that the run writes to those that it reads.
    fn name_outputs(&self, inputs: NamedFiles) -> NamedFiles {
        let checkpoints = self.train.checkpoint.as_ref().map(|of| &of.dir);
        let in_checkpoints = |dir: &PathBuf| {
            let files = CHECKPOINT_FILES.map(|name| dir.join(name));
            iter::once(dir.clone()).chain(files).collect::<Vec<_>>()
        };
        let schedule = self.schedule.clone();
        let beside = || checkpoints.map(|dir| dir.join("schedule"));
        let (flag, schedule) = match schedule {
            Some(schedule) => ("--schedule", Some(schedule)),
            None => ("--checkpoint", beside()),
        };
        let with_partial = |schedule: PathBuf| {
            let partial = partial_of(&schedule);
            [schedule, partial]
        };
        inputs
            .outputs("--checkpoint", checkpoints.into_iter().flat_map(in_checkpoints))
            .outputs(flag, schedule.into_iter().flat_map(with_partial))
            .outputs("--save-model", &self.train.save_model)
            .outputs("--log", &self.log)
    }

    /// Returns a run as threads of this process, with rows from the servers at `connect`, or from
    /// the files of `graph` without any.
    pub fn new(graph: PathBuf, connect: Vec<String>, train: TrainConfig) -> Self {
        Self {
            graph,
            connect,
            client: ClientConfig { pin: Some(Pin::Newest), ..ClientConfig::default() },
            store: OpenOptions::default(),
            tiers: TierChoice::default(),
            buffer: None,
            pins_servers: false,
            train,
            schedule: None,
            log: None,
            form: Form::default(),
        }
    }
}

/// Output of `--json`.
#[derive(Serialize)]
pub struct Trained {
    #[serde(flatten)]
    pub report: TrainReport,
    /// Tiers of `ondemand`, the one asked first in front.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<TierReport>,
    /// The reason why the report of the run ended early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl TrainArgs {
    fn check(self) -> Result<TrainRun, UsageError> {
        let patience = self.peer_timeout.unwrap_or(PEER_TIMEOUT_SECONDS);
        let form = Form::of(self.processes, self.peer, Duration::from_secs(patience.into()))?;
        self.check_needed(&form)?;
        let strategy = self.strategy()?;
        let usual = TrainConfig::default();
        let workers = self.workers.unwrap_or(form.usual_workers());
        let n_heads = self.heads.unwrap_or(usual.n_heads);
        self.full.check_profiles(workers)?;
        let mut evaluation_bytes = self.evaluation_memory.unwrap_or(EVALUATION_BYTES);
        if let Strategy::Sdt(sdt) = &strategy {
            // An evaluation is part of what a worker's memory is for.
            evaluation_bytes = evaluation_bytes.min(sdt.memory_bytes.unwrap_or(u64::MAX) / 3);
        }
        let fanouts = match &strategy {
            Strategy::Full(_) => self.full.fanouts(),
            _ => self.fanout.unwrap_or(usual.fanouts),
        };
        let train = TrainConfig {
            strategy,
            model: self.model,
            workers,
            fanouts,
            hidden: self.hidden,
            layer: self.options.layer(),
            n_heads,
            n_output_heads: self.output_heads.unwrap_or(n_heads),
            dropout: self.dropout,
            learning_rate: self.learning_rate,
            weight_decay: self.weight_decay,
            update: self.options.update(),
            epochs: self.epochs,
            batch_size: self.batch.unwrap_or(usual.batch_size),
            seed: self.seed,
            normalize: self.normalize,
            evaluate_every: self.evaluate_every,
            metric: self.metric.unwrap_or(usual.metric),
            measure_test: !self.no_test,
            evaluation_bytes,
            patience: self.patience,
            mixed_versions: self.mixed_versions,
            checkpoint: self.checkpoint.check()?,
            save_model: self.save_model,
            ..usual
        };
        train.validate().map_err(usage_of_setting)?;
        let tiers = self.tiers.check(&train.strategy)?;
        let buffer = self.buffer.check(&train.strategy)?;
        let follows_no_commit = self.pin || !tiers.has_max_age();
        if !self.connect.is_empty() && !follows_no_commit && !self.mixed_versions {
            return Err(UsageError::new(
                "--max-age follows the commits of servers, and own rows stay as they are; give \
                 --mixed-versions too",
            ));
        }
        Ok(TrainRun {
            graph: self.graph,
            connect: self.connect,
            client: ClientConfig {
                deadline: self.client.deadline(),
                pin: follows_no_commit.then_some(Pin::Newest),
                ..ClientConfig::default()
            },
            store: OpenOptions { reader: self.reader },
            tiers,
            buffer,
            pins_servers: self.pin,
            train,
            schedule: self.hot.schedule,
            log: self.log,
            form,
        })
    }

    /// Returns the strategy with the settings of its flags. Fails where a flag would do nothing.
    fn strategy(&self) -> Result<Strategy, UsageError> {
        self.refuse_flags_of_others()?;
        let (roots, policy) = (self.roots.unwrap_or_default(), self.tiers.policy);
        let batch = ("--batch", self.batch.is_some());
        Ok(match self.strategy {
            Strategy::Ondemand(usual) => Strategy::Ondemand(OndemandConfig { roots, ..usual }),
            Strategy::Rapid(_) => {
                Strategy::Rapid(RapidConfig { roots, schedule: self.hot.config(policy)? })
            }
            Strategy::Massive(_) => Strategy::Massive(MassiveConfig { roots }),
            Strategy::Hop(_) => Strategy::Hop(self.hop.config(&self.hot, policy)?),
            Strategy::Sdt(_) => Strategy::Sdt(self.sdt.config(self.hot.memory, batch)?),
            Strategy::Full(_) => {
                let fanout = ("--fanout", self.fanout.is_some());
                Strategy::Full(self.full.config(&[fanout, batch])?)
            }
        })
    }

    /// Fails for a flag of another strategy.
    fn refuse_flags_of_others(&self) -> Result<(), UsageError> {
        let strategy = &self.strategy;
        let is_hop = matches!(strategy, Strategy::Hop(_));
        let is_sdt = matches!(strategy, Strategy::Sdt(_));
        let is_full = matches!(strategy, Strategy::Full(_));
        if !is_hop {
            self.hop.refuse()?;
        }
        if is_hop || is_sdt || is_full {
            let reason = format!("is not for --strategy {strategy}, which deals to owners");
            refuse_given(&[("--roots", self.roots.is_some())], &reason)?;
        }
        if !is_sdt {
            self.sdt.refuse()?;
        }
        if !is_full {
            self.full.refuse()?;
        }
        let is_rapid = matches!(strategy, Strategy::Rapid(_));
        let has_schedule = is_rapid || (is_hop && self.hop.has_schedule());
        if !has_schedule {
            self.hot.refuse(is_sdt)?;
        }
        Ok(())
    }

    /// Fails for a flag that would do nothing, whatever the strategy.
    fn check_needed(&self, form: &Form) -> Result<(), UsageError> {
        if self.connect.is_empty() {
            self.client.refuse_without_servers(&[])?;
            let is_vain = self.mixed_versions && !self.checkpoint.resumes();
            refuse_given(&[("--mixed-versions", is_vain)], "is for --connect, or for --resume")?;
        }
        if matches!(form, Form::Threads) {
            let waits = [("--peer-timeout", self.peer_timeout.is_some())];
            refuse_given(&waits, "is for --processes, or for an MPI job")?;
        }
        if self.model != ModelKind::Gat {
            let heads = [
                ("--heads", self.heads.is_some()),
                ("--output-heads", self.output_heads.is_some()),
            ];
            refuse_given(&heads, "is for --model gat")?;
        }
        if self.no_test && self.evaluate_every == 0 {
            let measures = [
                // A saved model has it.
                ("--metric", self.metric.is_some() && self.save_model.is_none()),
                ("--evaluation-memory", self.evaluation_memory.is_some()),
            ];
            let reason =
                "is for accuracy, which is not measured with --no-test and --evaluate-every 0";
            refuse_given(&measures, reason)?;
        }
        Ok(())
    }

    pub fn run(self, console: &Console) -> Result<()> {
        let (security, profiles) = (self.client.security.clone(), self.full.profiles());
        let mut run = self.check()?;
        if !run.form.is_led() {
            let inputs = NamedFiles::default().inputs("--rapa", &profiles);
            run.name_outputs(security.name_inputs(inputs)).check()?;
        }
        run.client.security = security.read()?;
        run.client.etcd = security.etcd.read()?;
        if let Strategy::Full(full) = &mut run.train.strategy {
            let devices = profiles.iter().map(|path| read_profile(path));
            full.devices = devices.collect::<Result<_>>()?;
        }
        if run.form.is_led() {
            return follow(&run);
        }
        let mut has_head = false;
        let (trained, told) = train_telling(&run, console, true, &mut |epoch| {
            if !has_head {
                console.line(&report::epoch_head())?;
                has_head = true;
            }
            console.line(&report::epoch_row(epoch))
        })?;
        let reported = console.report(&trained, report::text);
        told.and(reported)
    }
}

/// Returns an error of a setting under the name of its flag.
fn usage_of_setting(error: TrainError) -> UsageError {
    let TrainError::Setting { setting, expected, found } = error else {
        return UsageError::of(error);
    };
    let flag = match setting {
        "batch_size" => "batch".to_owned(),
        "fanouts" => "fanout".to_owned(),
        "learning_rate" => "lr".to_owned(),
        "n_heads" => "heads".to_owned(),
        "n_output_heads" => "output-heads".to_owned(),
        "memory_bytes" => "memory".to_owned(),
        "reserved_bytes" => "reserve".to_owned(),
        "devices" => "rapa".to_owned(),
        "schedule.path" => "schedule".to_owned(),
        same => same.replace('_', "-"),
    };
    UsageError::new(format!("--{flag} must be {expected}, found {found}"))
}
