//! `lode cache-bench`: every policy at every capacity on one trace, beside the optimum.

mod capacity;
mod charts;
mod contestants;
mod report;
mod simulate;

use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use lodestore_cache::replay::TierSizes;
use lodestore_cache::two_level::Inclusion;
use lodestore_cache::{PolicyKind, Trace};
use lodestore_graph::process::{peak_anonymous_bytes, watch_memory};

use self::capacity::{Capacities, Devices};
use self::charts::{batches_per_point, by_capacity, by_delta, over_time};
use self::contestants::{CandidateInputs, Choice, contestants, distinct, kinds, misses_of};
use self::report::{BenchReport, TraceReport, best_decay, csv, results, text};
use self::simulate::{Lane, misses, simulate};
use crate::candidates::{RuleArgs, RuleReport};
use crate::console::Console;
use crate::flags::InclusionArg;
use crate::outputs::NamedFiles;
use crate::traces::{LoadedTrace, TraceArgs, TraceChoice, trace_paths, write_trace};
use crate::usage::{UsageError, refuse_given};

/// What scores of decay are multiplied with, and batches between its rounds, unless given.
const GAMMA: f64 = 0.9995;
const DELTA: u32 = 64;

/// Compare cache policies on a trace: hit rates, rows moved, cost, and the optimum beside them.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode schedule my-graph --fanout 10,10 --epochs 5 --workers 4 --out run.schedule
  lode cache-bench --schedule run.schedule --graph my-graph --worker 0 --remote \\
      --policies lru,sieve,frequency --capacities 1%,10%,50% --svg rates.svg
Example: MassiveGNN's buffers over 100 epochs (its Table IV and Figs. 11 to 13), as it trains
  lode schedule my-graph --fanout 25,10 --batch 200 --epochs 100 --workers 4 --out long.schedule
  lode cache-bench --schedule long.schedule --graph my-graph --remote --per-worker --ahead \\
      --policies decay,degree --capacities 15%,25%,35%,50% --gamma 0.95,0.995,0.9995 \\
      --delta 16,32,64,128,256,512,1024 --by-delta grid.svg

decay and degree keep what a trainer's buffer may: with --remote and a worker, or --per-worker, the
worker's candidates, else all nodes of the graph, or all ids without one.

With --devices the optimum is that of one tier as large as all of them: rows that another device has
are of no use, so that no policy can reach it.

A share is one of the different rows that the trace asks for, with --per-worker of the worker's halo. `oracle` is Belady's optimum: no
policy that fetches a row only when it is missed hits more; it, and `unbounded`, are always shown.
The gap is the rows that a policy moves beyond the optimum's, for each access; `unbounded`, which has
a slot for every row, has none. ns/access is the time of lookups and admissions without any row (of
two tiers: with rows of one byte, so not to be compared with one); run with --threads 1 to measure it
undisturbed.")]
pub(crate) struct CacheBenchArgs {
    #[command(flatten)]
    trace: TraceArgs,
    /// Policies, or `all`: none, lru, fifo, clock, sieve, s3-fifo, tinylfu, decay, degree,
    /// frequency, overlap, oracle, unbounded.
    #[arg(long, value_name = "A,B,...", value_delimiter = ',', default_value = "all")]
    policies: Vec<String>,
    /// Capacities: shares (10%), rows (5000) or bytes (64MiB); two joined by + are a device's tier
    /// over the host's (1%+10%), both under the same policy.
    #[arg(
        long,
        value_name = "C,C,...",
        value_delimiter = ',',
        default_value = "1%,5%,10%,25%,50%"
    )]
    capacities: Vec<Capacities>,
    /// Two tiers: whether a row may be in both; inclusive unless given.
    #[arg(long, value_enum, value_name = "I")]
    inclusion: Option<InclusionArg>,
    /// Two tiers: a tier on each of this many devices, over one of the host that they share. The
    /// batches of an epoch belong to them in turn: those of partitions, or of a schedule's workers.
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    devices: Option<u16>,
    /// Bytes of a row.
    #[arg(long, value_name = "BYTES", default_value_t = 400,
          value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    row_bytes: u64,
    /// Bring the rows that planned policies want before they are missed: when they start, at the
    /// start of an epoch, in the rounds of decay. These rows count as moved.
    #[arg(long)]
    ahead: bool,
    /// With --schedule, --graph and --remote: a cache for each worker, of shares of its halo;
    /// figures are sums over the workers.
    #[arg(long, requires = "remote", conflicts_with_all = ["worker", "devices", "misses"])]
    per_worker: bool,
    #[command(flatten)]
    rules: RuleArgs,
    /// decay: what scores are multiplied with in each batch that does not use a row [default: 0.9995].
    #[arg(long, value_name = "G,G,...", value_delimiter = ',')]
    gamma: Vec<f64>,
    /// decay: batches from one eviction round to the next [default: 64].
    #[arg(long, value_name = "D,D,...", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..))]
    delta: Vec<u32>,
    /// overlap: beside it the opposite, which keeps the rows that the fewest partitions need.
    #[arg(long)]
    lowest_overlap: bool,
    /// Draw hit rates and rows moved of decay against --delta here, a curve for each --gamma.
    #[arg(long, value_name = "FILE")]
    by_delta: Option<PathBuf>,
    /// Draw hit rates against time here: one point for each group of batches, about 200 in all.
    #[arg(long, value_name = "FILE")]
    over_time: Option<PathBuf>,
    /// Write what the one policy named misses at the one capacity: PREFIX.ids.npy and
    /// PREFIX.offsets.npy, a trace for the cache below.
    #[arg(long, value_name = "PREFIX")]
    misses: Option<PathBuf>,
    /// Threads; as many as cores unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Write the table here, as comma-separated values.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw hit rates against capacities here.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Policies to compare.
struct Config {
    trace: TraceChoice,
    choice: Choice,
    capacities: Vec<Capacities>,
    row_bytes: u64,
    n_threads: usize,
    devices: Devices,
    csv: Option<PathBuf>,
    svg: Option<PathBuf>,
    over_time: Option<PathBuf>,
    by_delta: Option<PathBuf>,
    misses: Option<Misses>,
    per_worker: bool,
}

/// Destination of the misses of one policy.
struct Misses {
    kind: PolicyKind,
    prefix: PathBuf,
}

impl CacheBenchArgs {
    fn check(self) -> Result<Config, UsageError> {
        if let Some(gamma) = self.gamma.iter().find(|&&gamma| !(gamma > 0.0 && gamma <= 1.0)) {
            let message = format!("--gamma must be above 0 and at most 1, found {gamma}");
            return Err(UsageError::new(message));
        }
        let trace = self.trace.check()?;
        let kinds = kinds(&self.policies, trace.has_graph())?;
        if !kinds.contains(&PolicyKind::Decay) {
            let of_decay = [
                ("--gamma", !self.gamma.is_empty()),
                ("--delta", !self.delta.is_empty()),
                ("--by-delta", self.by_delta.is_some()),
            ];
            refuse_given(&of_decay, "is for policy decay; add it")?;
        }
        let gammas = if self.gamma.is_empty() { vec![GAMMA] } else { distinct(self.gamma) };
        let deltas = if self.delta.is_empty() { vec![DELTA] } else { distinct(self.delta) };
        let lowest_overlap = self.lowest_overlap;
        let (rules, ahead) = (self.rules, self.ahead);
        if rules.names_candidates() && !self.per_worker && !trace.is_of_worker() {
            let message = "--candidates is for the remote rows of one worker, --worker W --remote, or of \
                           each, --per-worker";
            return Err(UsageError::new(message));
        }
        let choice = Choice { kinds, gammas, deltas, rules: rules.rules(), ahead, lowest_overlap };
        if let (Some(flag), false) = (rules.used(), choice.follows_rules()) {
            let message = format!("{flag} is for policies decay and degree; add one of them");
            return Err(UsageError::new(message));
        }
        if lowest_overlap && !choice.kinds.contains(&PolicyKind::Overlap) {
            let message = "--lowest-overlap is beside policy overlap; add it, with --graph";
            return Err(UsageError::new(message));
        }
        let choice_of_tiers = (self.capacities.iter().any(|one| one.is_two()), self.inclusion);
        if self.per_worker && choice_of_tiers.0 {
            let message = "--per-worker is for one tier; leave it out, or the capacities with a +";
            return Err(UsageError::new(message));
        }
        if self.ahead && choice_of_tiers.0 {
            let message = "--ahead is for one tier; leave it out, or the capacities with a +";
            return Err(UsageError::new(message));
        }
        if let (false, Some(_)) = choice_of_tiers {
            return Err(UsageError::new("--inclusion is for two tiers: --capacities 1%+10%"));
        }
        if self.devices.is_some() && !self.capacities.iter().all(|one| one.is_two()) {
            let message = "--devices is for two tiers, at every capacity: --capacities 1%+10%";
            return Err(UsageError::new(message));
        }
        if self.over_time.is_some() && self.capacities.len() != 1 {
            return Err(UsageError::new("--over-time is for one capacity; name one"));
        }
        let misses = match self.misses {
            Some(_) if self.ahead => {
                let message = "--misses leaves out what --ahead brings; take one of them";
                return Err(UsageError::new(message));
            }
            Some(prefix) => Some(misses_of(prefix, &self.policies, &choice, &self.capacities)?),
            None => None,
        };
        if self.ahead && !choice.plans() {
            let message = "--ahead is for policies decay, degree, frequency and overlap, which plan; add \
                           one of them";
            return Err(UsageError::new(message));
        }
        let cores = available_parallelism().map_or(1, NonZero::get);
        Ok(Config {
            trace,
            choice,
            capacities: self.capacities,
            row_bytes: self.row_bytes,
            n_threads: self.threads.map_or(cores, usize::from),
            devices: Devices {
                n_devices: self.devices.unwrap_or(1),
                inclusion: self.inclusion.map(Inclusion::from).unwrap_or_default(),
            },
            csv: self.csv,
            svg: self.svg,
            over_time: self.over_time,
            by_delta: self.by_delta,
            misses,
            per_worker: self.per_worker,
        })
    }

    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let start = Instant::now();
        watch_memory();
        let inputs = self.trace.name_inputs(NamedFiles::default());
        let config = self.check()?;
        config.name_outputs(inputs).check()?;
        let prefix = config.misses.as_ref().map(|misses| &misses.prefix);
        for path in [&config.csv, &config.svg, &config.over_time, &config.by_delta]
            .into_iter()
            .flatten()
            .chain(prefix)
        {
            check_folder(path)?;
        }
        console.stage("trace");
        let (mut lanes, mut omitted) = (Vec::new(), Vec::new());
        for loaded in config.load()? {
            config.check_turns(&loaded.trace)?;
            let follows_rules = config.per_worker || config.choice.follows_rules();
            let known = follows_rules.then(|| CandidateInputs::new(config.choice.rules, &loaded));
            let known = known.transpose()?;
            let competing;
            (competing, omitted) = contestants(&config.choice, &loaded, known.as_ref())?;
            let n_all = match &known {
                Some(known) if config.per_worker => known.n_halo(),
                _ => loaded.trace.n_distinct(),
            };
            let sizes = config.capacities.iter();
            let sizes = sizes.map(|of| of.sizes(n_all, config.row_bytes, config.devices)).collect();
            lanes.push(Lane { loaded, contestants: competing, sizes });
        }
        let capacities = config.order(&mut lanes);
        let progress = |done, total| console.at("replay", done, total);
        let n_batches = lanes.iter().map(|lane| lane.loaded.trace.n_batches()).max().unwrap_or(0);
        let per_point = config.over_time.is_some().then(|| batches_per_point(n_batches));
        let n_threads = config.n_threads;
        let outcomes = simulate(&lanes, n_threads, per_point, &progress)?;
        let competing = lanes.first().map_or(&[][..], |lane| &lane.contestants);
        let results = results(competing, &capacities, &outcomes, config.row_bytes);
        let rules = config.choice.rules;
        let is_of_workers = lanes.iter().all(|lane| lane.loaded.worker.is_some());
        let buffer = competing.iter().find(|of| is_of_workers && of.follows_rules());
        let report = BenchReport {
            trace: TraceReport::of(&lanes),
            row_bytes: config.row_bytes,
            rules: buffer.map(|of| RuleReport::new(rules, &of.spec)),
            ahead: config.choice.ahead,
            threads: n_threads,
            batches_per_point: per_point,
            best: best_decay(&results),
            results,
            omitted,
            seconds: start.elapsed().as_secs_f64(),
            peak_anonymous_bytes: peak_anonymous_bytes(),
        };
        config.write(&report, &lanes)?;
        console.report(&report, text)
    }
}

impl Config {
    /// Adds the files to write to those that the command reads.
    fn name_outputs(&self, inputs: NamedFiles) -> NamedFiles {
        let misses = self.misses.as_ref().map(|misses| trace_paths(&misses.prefix));
        inputs
            .outputs("--csv", &self.csv)
            .outputs("--svg", &self.svg)
            .outputs("--over-time", &self.over_time)
            .outputs("--by-delta", &self.by_delta)
            .outputs("--misses", misses.into_iter().flatten())
    }

    /// Fails unless batches that belong to devices in turn come in whole turns.
    fn check_turns(&self, trace: &Trace) -> Result<()> {
        let Devices { n_devices, .. } = self.devices;
        let ends = trace.epochs().iter().skip(1).copied().chain([trace.n_batches()]);
        for ((epoch, &first), end) in (0..).zip(trace.epochs()).zip(ends) {
            let n_batches = end - first;
            if !n_batches.is_multiple_of(n_devices.into()) {
                bail!(
                    "--devices {n_devices}: epoch {epoch} has {n_batches} batches, which that many \
                     devices cannot have in turn; give the number of partitions or workers of the \
                     trace"
                );
            }
        }
        Ok(())
    }

    /// Returns the traces to replay: one, or those of each worker.
    fn load(&self) -> Result<Vec<LoadedTrace>> {
        if !self.per_worker {
            return Ok(vec![self.trace.load()?]);
        }
        let loaded = self.trace.load_each()?;
        if loaded.iter().all(|loaded| loaded.trace.n_ids() == 0) {
            bail!(
                "--per-worker: no batch of {} worker(s) asks for a row of another; give a schedule of \
                 several workers, of a graph in as many partitions",
                loaded.len()
            );
        }
        Ok(loaded)
    }

    /// Puts the tiers of each trace in the order of their rows over all traces, each once.
    fn order(&self, lanes: &mut [Lane]) -> Vec<(Capacities, TierSizes)> {
        let sizes = |at: usize| lanes.iter().map(|lane| lane.sizes[at]).collect::<Vec<_>>();
        let all = self.capacities.iter().enumerate();
        let mut all: Vec<_> = all.map(|(at, &capacity)| (capacity, sizes(at))).collect();
        all.sort_by_key(|(_, sizes)| sizes.iter().map(|sizes| sizes.rows()).sum::<u32>());
        let mut seen: Vec<Vec<TierSizes>> = Vec::new();
        all.retain(|(_, sizes)| {
            let is_new = !seen.contains(sizes);
            seen.push(sizes.clone());
            is_new
        });
        for (number, lane) in lanes.iter_mut().enumerate() {
            lane.sizes = all.iter().map(|(_, sizes)| sizes[number]).collect();
        }
        let together = |sizes: &[TierSizes]| match sizes {
            [one] => *one,
            several => TierSizes::One(several.iter().map(|sizes| sizes.rows()).sum()),
        };
        all.iter().map(|(capacity, sizes)| (*capacity, together(sizes))).collect()
    }

    /// Returns the files that were asked for.
    fn write(&self, report: &BenchReport, lanes: &[Lane]) -> Result<()> {
        if let Some(path) = &self.csv {
            write(path, &csv(&report.results))?;
        }
        if let Some(path) = &self.svg {
            write(path, &by_capacity(report)?)?;
        }
        if let Some(path) = &self.over_time {
            write(path, &over_time(report)?)?;
        }
        if let Some(path) = &self.by_delta {
            write(path, &by_delta(report)?)?;
        }
        if let (Some(Misses { kind, prefix }), [lane]) = (&self.misses, lanes)
            && let Some(contestant) = lane.contestants.iter().find(|one| one.kind == *kind)
        {
            let (ids, offsets) = misses(&lane.loaded.trace, contestant, lane.sizes[0])?;
            write_trace(prefix, &ids, &offsets)?;
        }
        Ok(())
    }
}

/// Reports a missing folder before the work rather than after.
fn check_folder(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    if parent.is_some_and(|parent| !parent.is_dir()) || path.is_dir() {
        bail!("{}: cannot be written; its folder must exist", path.display());
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("{}: cannot write", path.display()))
}
