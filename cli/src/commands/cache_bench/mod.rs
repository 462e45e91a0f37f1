//! `lode cache-bench`: every policy at every capacity on one trace, beside the optimum.

mod capacity;
mod contestants;
mod plot;
mod report;
mod simulate;

use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use lodestore_cache::PolicyKind;

use self::capacity::Capacity;
use self::contestants::{Choice, contestants, needs_graph};
use self::report::{BenchReport, TraceReport, csv, results, text};
use self::simulate::simulate;
use crate::console::Console;
use crate::memory::peak_rss_bytes;
use crate::traces::{TraceArgs, TraceChoice};
use crate::usage::UsageError;

/// Compare cache policies on a trace: hit rates, rows moved, cost, and the optimum beside them.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode schedule my-graph --fanout 10,10 --epochs 5 --workers 4 --out run.schedule
  lode cache-bench --schedule run.schedule --graph my-graph --worker 0 --remote \\
      --policies lru,sieve,frequency --capacities 1%,10%,50% --svg rates.svg

A share is one of the different rows that the trace asks for. `oracle` is Belady's optimum: no
policy that fetches a row only when it is missed hits more; it, and `unbounded`, are always shown.
The gap is the rows that a policy moves beyond the optimum's, for each access. ns/access is the time
of lookups and admissions without any row; run with --threads 1 to measure it undisturbed.")]
pub(crate) struct CacheBenchArgs {
    #[command(flatten)]
    trace: TraceArgs,
    /// Policies, or `all`: none, lru, fifo, clock, sieve, s3-fifo, tinylfu, decay, degree,
    /// frequency, overlap, oracle, unbounded.
    #[arg(long, value_name = "A,B,...", value_delimiter = ',', default_value = "all")]
    policies: Vec<String>,
    /// Capacities: shares (10%), rows (5000) or bytes (64MiB).
    #[arg(
        long,
        value_name = "C,C,...",
        value_delimiter = ',',
        default_value = "1%,5%,10%,25%,50%"
    )]
    capacities: Vec<Capacity>,
    /// Bytes of a row.
    #[arg(long, value_name = "BYTES", default_value_t = 400,
          value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    row_bytes: u64,
    /// Bring the rows that planned policies want before they are missed: when they start, at the
    /// start of an epoch, in the rounds of decay. These rows count as moved.
    #[arg(long)]
    ahead: bool,
    /// decay: what scores are multiplied with in each batch that does not use a row.
    #[arg(long, value_name = "G,G,...", value_delimiter = ',', default_value = "0.995")]
    gamma: Vec<f64>,
    /// decay: batches from one eviction round to the next.
    #[arg(long, value_name = "D,D,...", value_delimiter = ',', default_value = "64",
          value_parser = clap::value_parser!(u32).range(1..))]
    delta: Vec<u32>,
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

/// What to compare.
struct Config {
    trace: TraceChoice,
    choice: Choice,
    capacities: Vec<Capacity>,
    row_bytes: u64,
    n_threads: usize,
    csv: Option<PathBuf>,
    svg: Option<PathBuf>,
}

impl CacheBenchArgs {
    fn check(self) -> Result<Config, UsageError> {
        if let Some(gamma) = self.gamma.iter().find(|&&gamma| !(gamma > 0.0 && gamma <= 1.0)) {
            let message = format!("--gamma must be above 0 and at most 1, found {gamma}");
            return Err(UsageError::new(message));
        }
        let trace = self.trace.check()?;
        let kinds = kinds(&self.policies, trace.has_graph())?;
        let (gammas, deltas) = (distinct(self.gamma), distinct(self.delta));
        let choice = Choice { kinds, gammas, deltas, ahead: self.ahead };
        let cores = available_parallelism().map_or(1, NonZero::get);
        Ok(Config {
            trace,
            choice,
            capacities: self.capacities,
            row_bytes: self.row_bytes,
            n_threads: self.threads.map_or(cores, usize::from),
            csv: self.csv,
            svg: self.svg,
        })
    }

    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let start = Instant::now();
        let config = self.check()?;
        for path in [&config.csv, &config.svg].into_iter().flatten() {
            check_folder(path)?;
        }
        console.stage("trace");
        let loaded = config.trace.load()?;
        let trace = &loaded.trace;
        let (contestants, omitted) = contestants(&config.choice, trace, loaded.graph.as_ref())?;
        let row_bytes = config.row_bytes;
        let rows_of = |&c: &Capacity| (c, c.rows(trace.n_distinct(), row_bytes));
        let mut capacities: Vec<(Capacity, u32)> = config.capacities.iter().map(rows_of).collect();
        capacities.sort_by_key(|&(_, rows)| rows);
        capacities.dedup_by_key(|&mut (_, rows)| rows);
        let rows: Vec<u32> = capacities.iter().map(|&(_, rows)| rows).collect();
        let progress = |done, total| console.at("replay", done, total);
        let outcomes = simulate(trace, &contestants, &rows, config.n_threads, &progress)?;
        let report = BenchReport {
            trace: TraceReport::of(trace, loaded.name),
            row_bytes,
            ahead: config.choice.ahead,
            threads: config.n_threads,
            results: results(&contestants, &capacities, &outcomes, row_bytes),
            omitted,
            seconds: start.elapsed().as_secs_f64(),
            peak_rss_bytes: peak_rss_bytes(),
        };
        if let Some(path) = &config.csv {
            write(path, &csv(&report.results))?;
        }
        if let Some(path) = &config.svg {
            write(path, &plot::svg(&report)?)?;
        }
        console.report(&report, text)
    }
}

/// The policies named, each once, in the order of [`PolicyKind::ALL`]; `oracle` and `unbounded`
/// compete in any case.
fn kinds(names: &[String], has_graph: bool) -> Result<Vec<PolicyKind>, UsageError> {
    let mut named = vec![PolicyKind::Oracle, PolicyKind::Unbounded];
    for name in names {
        if name == "all" {
            named.extend(PolicyKind::ALL);
            continue;
        }
        let kind: PolicyKind = name.trim().parse().map_err(UsageError::of)?;
        if needs_graph(kind) && !has_graph {
            let message = format!("policy {kind} needs the graph of the trace; add --graph");
            return Err(UsageError::new(message));
        }
        named.push(kind);
    }
    Ok(PolicyKind::ALL.into_iter().filter(|kind| named.contains(kind)).collect())
}

fn distinct<T: PartialEq>(values: Vec<T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for value in values {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    distinct
}

/// Tells of a missing folder before the work rather than after.
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
