//! `lode-lab generate-trace`: traces of known patterns, and those of sampling a graph.

mod graphs;
mod patterns;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use clap::{Args, ValueEnum};
use lodestore_cache::Trace;
use serde::Serialize;

use self::graphs::{Sampled, halos, neighbours};
use self::patterns::{looping, scan, zipf};
use lode_cli::console::Console;
use lode_cli::flags::FanoutArgs;
use lode_cli::human;
use lode_cli::outputs::NamedFiles;
use lode_cli::traces::{trace_paths, write_trace};
use lode_cli::usage::UsageError;

/// Generate a trace for `lode cache-bench`: a pattern, or batches sampled from a graph.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode-lab generate-trace --kind zipf --ids 100000 --batches 2000 --batch 512 --out zipf
  lode cache-bench --trace zipf.ids.npy --offsets zipf.offsets.npy --capacities 1%,10%

zipf        rows drawn by a power law, repeats in a batch left out
scan        every row once, in order
loop        every row in order, again and again
neighbours  input nodes of batches sampled from a graph: --graph, or --nodes with --degree
halos       the halo of each partition of --graph in turn, as full-batch training reads them

Writes PREFIX.ids.npy (u32) and PREFIX.offsets.npy (u64, one more than batches).")]
pub(crate) struct GenerateTraceArgs {
    /// Pattern.
    #[arg(long, value_enum)]
    kind: Kind,
    /// zipf, scan, loop: different rows.
    #[arg(long, value_name = "N", default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(1..))]
    ids: u32,
    /// zipf, loop: number of batches.
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..))]
    batches: u32,
    /// Rows per batch, or for neighbours roots per batch [default: 512]. For halos it is the rows
    /// that a partition requests before the next one has its turn; the whole halo unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// zipf: exponent; 0 draws every row equally often.
    #[arg(long, value_name = "A", default_value_t = 1.0)]
    alpha: f64,
    /// neighbours, halos: folder of the graph.
    #[arg(long, value_name = "GRAPH", conflicts_with = "nodes")]
    graph: Option<PathBuf>,
    /// neighbours: nodes of a graph that is generated.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    nodes: Option<u32>,
    /// neighbours: mean degree of that graph.
    #[arg(long, value_name = "D", default_value_t = 20.0)]
    degree: f32,
    #[command(flatten)]
    fanout: FanoutArgs,
    /// neighbours: share of the nodes that are roots.
    #[arg(long, value_name = "S", default_value_t = 0.1)]
    roots: f64,
    /// neighbours, halos: passes.
    #[arg(long, value_name = "E", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// Fixes every byte.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Start of the names of both files, which are replaced if they exist.
    #[arg(long, value_name = "PREFIX")]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Zipf,
    Scan,
    Loop,
    Neighbours,
    Halos,
}

/// Ids of all batches, and where each starts, then where the last one ends.
#[derive(Debug, PartialEq, Eq)]
struct Batches {
    ids: Vec<u32>,
    offsets: Vec<u64>,
}

/// Output of `--json`.
#[derive(Serialize)]
struct TraceReport {
    ids: String,
    offsets: String,
    accesses: usize,
    batches: usize,
    seconds: f64,
}

impl Batches {
    fn new() -> Self {
        Self { ids: Vec::new(), offsets: vec![0] }
    }

    /// Ends a batch, unless the trace has become longer than what is replayed.
    fn end_batch(&mut self) -> Result<(), UsageError> {
        check_length(self.ids.len() as u64)?;
        if self.offsets.len() > Trace::MAX_BATCHES {
            let most = human::count(Trace::MAX_BATCHES as u64);
            let message = format!("a trace has at most {most} batches; make it shorter");
            return Err(UsageError::new(message));
        }
        self.offsets.push(self.ids.len() as u64);
        Ok(())
    }
}

impl GenerateTraceArgs {
    fn check(&self) -> Result<(), UsageError> {
        if !(0.0..=20.0).contains(&self.alpha) {
            return Err(UsageError::new(format!("--alpha must be 0 to 20, found {}", self.alpha)));
        }
        if !(self.roots > 0.0 && self.roots <= 1.0) {
            let message = format!("--roots must be above 0 and at most 1, found {}", self.roots);
            return Err(UsageError::new(message));
        }
        let needs = match self.kind {
            Kind::Neighbours if self.graph.is_none() && self.nodes.is_none() => {
                "neighbours needs --graph or --nodes"
            }
            Kind::Halos if self.graph.is_none() => "halos needs --graph",
            Kind::Zipf | Kind::Loop => {
                return check_length(u64::from(self.batches) * u64::from(self.batch_rows()));
            }
            _ => return Ok(()),
        };
        Err(UsageError::new(needs))
    }

    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let start = Instant::now();
        self.check()?;
        NamedFiles::default().outputs("--out", trace_paths(&self.out)).check()?;
        let (n_ids, batch) = (self.ids, self.batch_rows());
        let made = match self.kind {
            Kind::Zipf => zipf(n_ids, self.alpha, self.batches, batch, self.seed)?,
            Kind::Scan => scan(n_ids, batch)?,
            Kind::Loop => looping(n_ids, self.batches, batch)?,
            Kind::Neighbours => neighbours(&self.sampled(), console)?,
            Kind::Halos => {
                let graph = self.graph.as_deref().unwrap_or(Path::new(""));
                halos(graph, self.batch, self.epochs)?
            }
        };
        let [ids, offsets] = write_trace(&self.out, &made.ids, &made.offsets)?;
        let report = TraceReport {
            ids: ids.display().to_string(),
            offsets: offsets.display().to_string(),
            accesses: made.ids.len(),
            batches: made.offsets.len() - 1,
            seconds: start.elapsed().as_secs_f64(),
        };
        console.report(&report, text)
    }

    fn batch_rows(&self) -> u32 {
        self.batch.unwrap_or(512)
    }

    fn sampled(&self) -> Sampled<'_> {
        Sampled {
            graph: self.graph.as_deref(),
            n_nodes: self.nodes.unwrap_or(0),
            mean_degree: self.degree,
            fanouts: &self.fanout.fanout,
            roots: self.roots,
            batch_size: self.batch_rows() as usize,
            epochs: self.epochs,
            seed: self.seed,
        }
    }
}

fn check_length(n_ids: u64) -> Result<(), UsageError> {
    if n_ids <= Trace::MAX_IDS as u64 {
        return Ok(());
    }
    let most = human::count(Trace::MAX_IDS as u64);
    Err(UsageError::new(format!("a trace has at most {most} accesses; make it shorter")))
}

fn text(report: &TraceReport) -> String {
    format!(
        "{}, {}: {} accesses in {} batches, made in {}",
        report.ids,
        report.offsets,
        human::count(report.accesses as u64),
        human::count(report.batches as u64),
        human::seconds(report.seconds),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_without_ids_have_a_bound_too() {
        // Unwritten zeros take no memory.
        let mut batches = Batches { ids: Vec::new(), offsets: vec![0; Trace::MAX_BATCHES + 1] };
        assert!(batches.end_batch().unwrap_err().to_string().contains("batches"));
        batches.offsets.truncate(Trace::MAX_BATCHES);
        batches.end_batch().unwrap();
    }
}
