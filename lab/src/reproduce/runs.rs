//! Training runs of all contestants over shaped links.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use lodestore_client::keep::Keep;
use lodestore_client::{ClientConfig, Pin, Security};
use lodestore_graph::sampler::Fanout;
use lodestore_trainer::config::{
    MassiveConfig, OndemandConfig, RapidConfig, Sampling, ScheduleConfig,
};
use lodestore_trainer::report::EpochReport;
use lodestore_trainer::{ModelKind, Strategy, TrainConfig, TrainReport};
use serde::Serialize;

use super::energy::Energy;
use super::graphs::{Made, Size};
use super::papers::Model;
use super::recording::Recording;
use crate::link_emulation::{Front, LinkSpec, ShapedServer};
use lode_cli::child_servers::ChildServers;
use lode_cli::commands::train::{BufferChoice, TrainRun, Trained, train};
use lode_cli::console::Console;

/// Neighbours per node, next to the roots first: DGL's own example for GraphSAGE.
const FANOUTS: [u32; 2] = [25, 10];
const SEED: u64 = 3;
/// MassiveGNN's γ: its hit rates are best above 0.9 (its Table IV has 0.95 to 0.9995).
pub(super) const GAMMA: f64 = 0.9995;
/// Pulls over the slowest links take seconds.
pub(super) const DEADLINE: Duration = Duration::from_secs(120);

/// A way to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Contestant {
    /// The baseline.
    Ondemand,
    /// The baseline with another model.
    Gcn,
    /// The window of `rapid`, and nothing kept.
    RapidPrefetch,
    /// The hot sets of `rapid`, and no window.
    RapidCache,
    /// Both, as the paper has it.
    Rapid,
    RapidOracle,
    /// MassiveGNN's buffer as it is filled at first.
    MassiveKept,
    Massive,
}

impl Contestant {
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Ondemand => "ondemand",
            Self::Gcn => "ondemand, GCN",
            Self::RapidPrefetch => "prefetch only",
            Self::RapidCache => "cache only",
            Self::Rapid => "rapid",
            Self::RapidOracle => "rapid, oracle",
            Self::MassiveKept => "massive, no eviction",
            Self::Massive => "massive",
        }
    }

    /// Returns its strategy, where `n_kept` rows stay and `ondemand` draws by `sampling`.
    fn strategy(self, sampling: Sampling, n_kept: u32) -> Strategy {
        match self {
            Self::Ondemand | Self::Gcn => {
                Strategy::Ondemand(OndemandConfig { sampling, ..OndemandConfig::default() })
            }
            Self::RapidPrefetch | Self::RapidCache | Self::Rapid | Self::RapidOracle => {
                let schedule = self.schedule(n_kept);
                Strategy::Rapid(RapidConfig { schedule, ..RapidConfig::default() })
            }
            Self::MassiveKept | Self::Massive => Strategy::Massive(MassiveConfig::default()),
        }
    }

    /// Returns the settings of its schedule, by which `n_kept` rows stay.
    fn schedule(self, n_kept: u32) -> ScheduleConfig {
        let usual = ScheduleConfig::default();
        ScheduleConfig {
            keep: match self {
                Self::RapidOracle => Keep::Oracle,
                _ => Keep::Hot,
            },
            n_hot: if self == Self::RapidPrefetch { 0 } else { n_kept as usize / 2 },
            window: if self == Self::RapidCache { 0 } else { usual.window },
            ..usual
        }
    }

    fn buffer(self, n_rows: u32, Eviction { gamma, delta }: Eviction) -> Option<BufferChoice> {
        match self {
            Self::MassiveKept => Some(BufferChoice::without_eviction(n_rows)),
            Self::Massive => Some(BufferChoice::with_eviction(n_rows, gamma, delta)),
            _ => None,
        }
    }

    /// Returns whether its batches are those of a schedule.
    pub(super) fn has_schedule(self) -> bool {
        self.strategy(Sampling::Seeded, 0).schedule().is_some()
    }

    /// Returns what it trains.
    fn model(self) -> ModelKind {
        if self == Self::Gcn { ModelKind::Gcn } else { ModelKind::Sage }
    }
}

/// Results of one run. Times are seconds and those of a mean step, bytes those of one worker's.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    pub(super) contestant: Contestant,
    pub(super) step_seconds: f64,
    /// Least and most of all repeats, of which this run is the middle one (of an even number the
    /// slower of two).
    pub(super) step_range: [f64; 2],
    /// Forward and backward pass, averaging, update.
    pub(super) compute_seconds: f64,
    /// Time waiting for other workers, which may compute or wait for rows.
    pub(super) others_seconds: f64,
    /// Rows that batches lacked on their way, beside the step or in it. Hot sets are pulled between
    /// epochs and do not count.
    pub(super) pull_seconds: f64,
    /// The rest of what prepares batches, likewise.
    pub(super) sample_seconds: f64,
    pub(super) lookup_seconds: f64,
    pub(super) copy_seconds: f64,
    /// Share of a step without a batch.
    pub(super) wait_share: f64,
    /// All that travelled: hot sets and first fills of buffers too.
    pub(super) remote_bytes: f64,
    /// Bytes without hot sets and first fills. Under `rapid` they are what batches lacked, which is
    /// what its paper counts (Algorithm 1, line 16). Under `massive` they include what its rounds
    /// of eviction fetch ahead.
    pub(super) missed_bytes: f64,
    /// Remote rows of all workers, in a mean epoch.
    pub(super) remote_rows_per_epoch: f64,
    pub(super) rows: EpochRows,
    pub(super) epoch_seconds: f64,
    pub(super) warm_up: WarmUp,
    /// On the nodes trained on, after each epoch.
    pub(super) accuracies: Vec<f64>,
    /// At the end, where it was measured.
    pub(super) test_accuracy: Option<f64>,
    /// Use of the whole machine meanwhile, where it is counted.
    pub(super) energy_joules: Option<f64>,
    pub(super) hit_rate: f64,
    pub(super) overlap_efficiency: Option<f64>,
    pub(super) setup_seconds: f64,
    /// Part of the set-up that made the schedule.
    pub(super) schedule_seconds: f64,
    /// Set-up and all epochs.
    pub(super) run_seconds: f64,
    /// Most bytes of rows held, and the bound.
    pub(super) memory_bytes: u64,
    pub(super) memory_bound_bytes: u64,
    /// Digest of the last parameters.
    pub(super) parameters_digest: String,
    #[serde(skip)]
    pub(super) losses: Vec<f64>,
}

impl Run {
    /// Returns the seconds of a step of `ondemand` without its pulls.
    pub(super) fn rest_seconds(&self) -> f64 {
        (self.step_seconds - self.pull_seconds).max(1e-9)
    }

    /// Returns the middle one of `repeats` of a run, by the time of a step, with the range of all.
    pub(super) fn middle_of(mut repeats: Vec<Self>) -> Option<Self> {
        repeats.sort_by(|a, b| a.step_seconds.total_cmp(&b.step_seconds));
        let [first, last] = [repeats.first()?, repeats.last()?].map(|run| run.step_seconds);
        let middle = repeats.swap_remove(repeats.len() / 2);
        Some(Self { step_range: [first, last], ..middle })
    }

    fn of(contestant: Contestant, report: TrainReport, energy_joules: Option<f64>) -> Result<Self> {
        let step = report.step.as_ref().context("a run without steps; give a larger --scale")?;
        let step_seconds = report.mean_step_seconds;
        let mean = |sum: f64| sum / report.epochs.len().max(1) as f64;
        Ok(Self {
            contestant,
            step_seconds,
            step_range: [step_seconds; 2],
            compute_seconds: step_seconds * (step.compute + step.update),
            others_seconds: step_seconds * step.others,
            pull_seconds: step_seconds * step.prepare * step.pull,
            sample_seconds: step_seconds * step.prepare * step.sample,
            lookup_seconds: step_seconds * step.prepare * step.lookup,
            copy_seconds: step_seconds * step.prepare * (step.read + step.copy),
            wait_share: step.wait,
            remote_bytes: report.remote_bytes_per_step,
            missed_bytes: report.remote_bytes_per_step * missed_share(&report),
            remote_rows_per_epoch: mean(
                report.epochs.iter().map(|epoch| epoch.remote_rows as f64).sum(),
            ),
            rows: EpochRows::of(&report),
            epoch_seconds: mean(report.epochs.iter().map(|epoch| epoch.seconds).sum()),
            warm_up: WarmUp::of(&report),
            accuracies: report.epochs.iter().map(|epoch| epoch.accuracy).collect(),
            test_accuracy: report.test_accuracy,
            energy_joules,
            hit_rate: mean(report.epochs.iter().map(EpochReport::found_share).sum()),
            overlap_efficiency: step.overlap_efficiency,
            setup_seconds: report.setup_seconds,
            schedule_seconds: schedule_seconds(&report),
            run_seconds: report.setup_seconds
                + report.epochs.iter().map(|epoch| epoch.seconds).sum::<f64>(),
            memory_bytes: report.memory_measured_bytes,
            memory_bound_bytes: report.schedule.map_or(0, |schedule| schedule.memory_bound_bytes),
            parameters_digest: report.parameters_digest,
            losses: report.step_losses,
        })
    }
}

/// Remote rows of all workers' batches in a mean epoch, by where they came from. The first three
/// add up to all that batches used.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct EpochRows {
    /// From a hot set, the oracle's tier or a buffer.
    pub(super) kept: f64,
    /// With another batch of the window, which was loaded together with theirs.
    pub(super) joined: f64,
    /// Pulled for the batch.
    pub(super) missed: f64,
    /// Pulled for what is kept.
    pub(super) ahead: f64,
    /// Epochs of workers that began before their hot set was there.
    pub(super) late_swaps: u64,
}

impl EpochRows {
    fn of(report: &TrainReport) -> Self {
        let sum = |of: fn(&EpochReport) -> u64| report.epochs.iter().map(of).sum::<u64>();
        let mean = |of| sum(of) as f64 / report.epochs.len().max(1) as f64;
        let ahead = |epoch: &EpochReport| epoch.hot_set_rows + epoch.filled_rows + epoch.ahead_rows;
        let (all, ahead) = (mean(|epoch| epoch.remote_rows), mean(ahead));
        Self {
            kept: mean(|epoch| epoch.hit_rows - epoch.together_rows),
            joined: mean(|epoch| epoch.together_rows),
            missed: all - ahead,
            ahead,
            late_swaps: sum(|epoch| epoch.late_swaps),
        }
    }
}

/// The first epoch beside the others.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct WarmUp {
    /// Pulls before the first step: set-up but for the schedule.
    pub(super) before_seconds: f64,
    pub(super) first_seconds: f64,
    /// Mean of the others.
    pub(super) others_seconds: f64,
    /// Bytes that one worker pulled meanwhile.
    pub(super) filled_bytes: f64,
}

impl WarmUp {
    fn of(report: &TrainReport) -> Self {
        let Some((first, others)) = report.epochs.split_first() else { return Self::default() };
        let mean = |of: fn(&EpochReport) -> f64| {
            others.iter().map(of).sum::<f64>() / others.len().max(1) as f64
        };
        let row_bytes = first.remote_bytes as f64 / first.remote_rows.max(1) as f64;
        let n_filled = (first.hot_set_rows + first.filled_rows) as f64;
        Self {
            before_seconds: report.setup_seconds - schedule_seconds(report),
            first_seconds: first.seconds,
            others_seconds: mean(|epoch| epoch.seconds),
            filled_bytes: row_bytes * n_filled / f64::from(report.workers),
        }
    }
}

/// Starts a server for each of the first `n_parts` partitions; logs go to `logs`.
pub(super) fn start_servers(graph: &Path, logs: &Path, n_parts: u16) -> Result<ChildServers> {
    let parts: Vec<[u16; 1]> = (0..n_parts).map(|part| [part]).collect();
    let parts: Vec<&[u16]> = parts.iter().map(|part| &part[..]).collect();
    ChildServers::start(graph, logs, &parts)
}

/// Puts each of `servers` behind a link of its own.
pub(super) fn behind_links(servers: &ChildServers, spec: LinkSpec) -> Result<Vec<ShapedServer>> {
    let addresses = servers.addresses();
    let link = |(address, last): (&String, u8)| {
        // A server binds its ports on 127.0.0.1, so that they are free on the others.
        let front = Front::Ip(IpAddr::V4(Ipv4Addr::new(127, 0, 1, last)));
        ShapedServer::start(address, Security::default(), &front, spec)
    };
    addresses.iter().zip(2..).map(link).collect()
}

/// Returns where servers are found behind their links.
pub(super) fn addresses(links: &[ShapedServer]) -> Vec<String> {
    links.iter().map(|link| link.address().to_string()).collect()
}

/// Returns a run of `train` with rows from the servers at `connect`, which may be slow.
pub(super) fn train_run(graph: &Path, connect: Vec<String>, train: TrainConfig) -> TrainRun {
    let client =
        ClientConfig { deadline: DEADLINE, pin: Some(Pin::Newest), ..ClientConfig::default() };
    TrainRun { client, ..TrainRun::new(graph.to_owned(), connect, train) }
}

/// A graph and its servers, one for each partition, each on a link of its own.
pub(super) struct Cluster<'a> {
    pub(super) made: &'a Made,
    servers: ChildServers,
    n_workers: u16,
    /// Computation in place of the model.
    recording: Option<Recording>,
}

impl<'a> Cluster<'a> {
    pub(super) fn start(made: &'a Made, logs: &Path, n_workers: u16) -> Result<Self> {
        let servers = start_servers(&made.dir, logs, n_workers)?;
        Ok(Self { made, servers, n_workers, recording: None })
    }

    /// Has steps sleep as recorded ones took, if there is a recording.
    pub(super) fn replaying(self, recording: Option<&Recording>) -> Self {
        Self { recording: recording.cloned(), ..self }
    }

    pub(super) fn stop(self) -> Result<()> {
        self.servers.stop().map(|_| ())
    }

    /// Trains over links of `spec`, or over the loopback as it is.
    pub(super) fn run(
        &self,
        case: Case<'_>,
        spec: Option<LinkSpec>,
        console: &Console,
    ) -> Result<Run> {
        let links = spec.map(|spec| behind_links(&self.servers, spec)).transpose()?;
        let addresses = match &links {
            Some(links) => addresses(links),
            None => self.servers.addresses(),
        };
        let energy = Energy::start();
        let Trained { report, .. } = train(&self.train_run(case, addresses)?, console)?;
        Run::of(case.contestant, report, energy.and_then(|energy| energy.joules()))
    }

    fn train_run(&self, case: Case<'_>, connect: Vec<String>) -> Result<TrainRun> {
        let made = self.made;
        let fanouts = FANOUTS.into_iter().filter_map(Fanout::at_most).collect();
        let n_kept = made.kept_rows;
        let delta = || made.delta(case.epochs, case.batch);
        let eviction = case.eviction.unwrap_or_else(|| Eviction { gamma: GAMMA, delta: delta() });
        let recording = self.recording.as_ref().filter(|_| !case.learns);
        let train = TrainConfig {
            model: case.contestant.model(),
            strategy: case.contestant.strategy(case.sampling, n_kept),
            workers: self.n_workers.into(),
            fanouts,
            epochs: case.epochs,
            batch_size: case.batch,
            evaluate_every: 0,
            measure_test: case.learns,
            replay: recording.map(|recording| recording.of(case.batch)).transpose()?,
            seed: case.seed,
            ..TrainConfig::default()
        };
        Ok(TrainRun {
            buffer: case.contestant.buffer(n_kept, eviction),
            schedule: case.schedule.map(Path::to_owned),
            log: case.log.map(Path::to_owned),
            ..train_run(&made.dir, connect, train)
        })
    }
}

/// MassiveGNN's γ, the decay of scores, and Δ, the batches between rounds of eviction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Eviction {
    pub(super) gamma: f64,
    pub(super) delta: u32,
}

/// Subject and strategy of the training.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    pub(super) contestant: Contestant,
    pub(super) batch: usize,
    pub(super) epochs: u32,
    /// `massive`: other than the usual ([`GAMMA`] and [`Made::delta`]).
    pub(super) eviction: Option<Eviction>,
    /// Where steps are logged, and where the schedule is kept.
    pub(super) log: Option<&'a Path>,
    pub(super) schedule: Option<&'a Path>,
    /// Whether the model is computed whatever was recorded, and accuracy measured at the end.
    pub(super) learns: bool,
    pub(super) sampling: Sampling,
    pub(super) seed: u64,
}

impl Case<'_> {
    /// Returns a case with all else as usual.
    pub(super) fn usual(contestant: Contestant, batch: usize, epochs: u32) -> Self {
        Self {
            contestant,
            batch,
            epochs,
            eviction: None,
            log: None,
            schedule: None,
            learns: false,
            sampling: Sampling::Seeded,
            seed: SEED,
        }
    }
}

/// Setting of a figure's measurement.
#[derive(Clone, Copy)]
pub(super) struct Bench<'a> {
    pub(super) model: &'a Model,
    pub(super) size: Size,
    pub(super) epochs: u32,
    pub(super) repeats: u32,
    /// Computation in place of the models.
    pub(super) recording: Option<&'a Recording>,
    pub(super) scratch: &'a Path,
    pub(super) console: &'a Console,
}

impl Bench<'_> {
    /// Returns the middle one of all repeats of `run`.
    pub(super) fn repeated(&self, run: &dyn Fn() -> Result<Run>) -> Result<Run> {
        let runs = (0..self.repeats).map(|_| run()).collect::<Result<_>>()?;
        Run::middle_of(runs).context("no repeat of a run")
    }
}

/// Returns the part of the set-up that made the schedule; 0 without one.
fn schedule_seconds(report: &TrainReport) -> f64 {
    report.schedule.as_ref().map_or(0.0, |schedule| schedule.seconds)
}

/// Returns the share of remote rows that were pulled for batches and not to fill what is kept.
fn missed_share(report: &TrainReport) -> f64 {
    let sum = |of: fn(&EpochReport) -> u64| report.epochs.iter().map(of).sum::<u64>() as f64;
    let ahead = sum(|epoch| epoch.hot_set_rows + epoch.filled_rows);
    1.0 - ahead / sum(|epoch| epoch.remote_rows).max(1.0)
}

/// Returns the link over which a pull of `baseline`, as measured without a link, takes `ratio`
/// times the rest of its step. Each server sends about what one worker requests.
pub(super) fn slow_link(baseline: &Run, ratio: f64, delay: Duration) -> LinkSpec {
    let seconds = (ratio * baseline.rest_seconds()).max(1e-6);
    LinkSpec { rate_bits: (baseline.remote_bytes * 8.0 / seconds).max(1e6), delay }
}
