//! Traces that policies are compared on: which file, and which part of it.

mod arrays;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use lodestore_cache::Trace;
use lodestore_cache::trace::{RecordFormat, TraceBuilder, read_records};
use lodestore_graph::sampler::is_local;
use lodestore_graph::schedule::Schedule;
use lodestore_store::Graph;

use crate::outputs::NamedFiles;
use crate::usage::{UsageError, refuse_given};

pub use arrays::{trace_paths, write_trace};

/// A trace, and the graph whose rows it asks for.
#[derive(Args)]
pub struct TraceArgs {
    /// A schedule of `lode schedule`.
    #[arg(long, value_name = "FILE")]
    schedule: Option<PathBuf>,
    /// Ids: .npz with arrays `ids` and `offsets`, or .npy with --offsets or --batch.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// A trace of libCacheSim in its format oracleGeneral, plain or .zst.
    #[arg(long, value_name = "FILE")]
    oracle_general: Option<PathBuf>,
    /// A trace of libCacheSim in its format lcs, plain or .zst.
    #[arg(long, value_name = "FILE")]
    lcs: Option<PathBuf>,
    /// With --trace: .npy of where batches start in the ids, from 0, rising.
    #[arg(long, value_name = "FILE", requires = "trace", conflicts_with = "batch")]
    offsets: Option<PathBuf>,
    /// Cut ids into batches of N; 1 without another source.
    #[arg(long, value_name = "N", conflicts_with = "schedule",
          value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Take the first accesses only.
    #[arg(long, value_name = "N", conflicts_with = "schedule")]
    limit: Option<u64>,
    /// With --trace: batches of an epoch [default: one epoch].
    #[arg(long, value_name = "N", requires = "trace",
          value_parser = clap::value_parser!(u32).range(1..))]
    epoch_batches: Option<u32>,
    /// The graph of the ids: supplies policies with degrees and overlap ratios.
    #[arg(long, value_name = "GRAPH")]
    graph: Option<PathBuf>,
    /// With --schedule: batches of one worker only; else of all, in turn.
    #[arg(long, value_name = "W", requires = "schedule")]
    worker: Option<u32>,
    /// With --schedule and --graph: only rows that the batch's worker does not own.
    #[arg(long, requires = "schedule", requires = "graph")]
    remote: bool,
}

/// A checked choice of trace.
pub struct TraceChoice {
    source: Source,
    batch_ids: usize,
    limit: Option<u64>,
    graph: Option<PathBuf>,
}

enum Source {
    Schedule { path: PathBuf, worker: Option<u32>, remote: bool },
    Arrays { path: PathBuf, offsets: Option<PathBuf>, cut: bool, epoch_batches: Option<u32> },
    Records { path: PathBuf, format: RecordFormat },
}

/// One of a schedule's workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedWorker {
    pub worker: u32,
    pub n_workers: u32,
}

/// A trace with its graph.
pub struct LoadedTrace {
    pub trace: Trace,
    pub graph: Option<Graph>,
    /// Whose remote rows all of it asks for.
    pub worker: Option<TracedWorker>,
    /// Its origin.
    pub name: String,
}

impl TraceArgs {
    /// Returns whether any trace is named.
    pub fn is_given(&self) -> bool {
        let named = [&self.schedule, &self.trace, &self.oracle_general, &self.lcs];
        named.into_iter().any(Option::is_some)
    }

    /// Adds the files of the trace to those that a command reads.
    #[must_use]
    pub fn name_inputs(&self, files: NamedFiles) -> NamedFiles {
        files
            .inputs("--schedule", &self.schedule)
            .inputs("--trace", &self.trace)
            .inputs("--oracle-general", &self.oracle_general)
            .inputs("--lcs", &self.lcs)
            .inputs("--offsets", &self.offsets)
    }

    /// Returns which trace is named; no file is opened yet.
    pub fn check(self) -> Result<TraceChoice, UsageError> {
        if self.schedule.is_none() {
            let of_schedule = [("--worker", self.worker.is_some()), ("--remote", self.remote)];
            refuse_given(&of_schedule, "is for --schedule, which has workers")?;
        }
        if self.trace.is_none() {
            let of_arrays = [
                ("--offsets", self.offsets.is_some()),
                ("--epoch-batches", self.epoch_batches.is_some()),
            ];
            refuse_given(&of_arrays, "is for --trace")?;
        }
        if self.graph.is_none() {
            refuse_given(&[("--remote", self.remote)], "needs the graph: --graph GRAPH")?;
        }
        let Self { schedule, trace, oracle_general, lcs, .. } = self;
        let (offsets, epoch_batches, cut) =
            (self.offsets, self.epoch_batches, self.batch.is_some());
        let (worker, remote) = (self.worker, self.remote);
        let source = match (schedule, trace, oracle_general, lcs) {
            (Some(path), None, None, None) => Source::Schedule { path, worker, remote },
            (None, Some(path), None, None) => Source::Arrays { path, offsets, cut, epoch_batches },
            (None, None, Some(path), None) => {
                Source::Records { path, format: RecordFormat::OracleGeneral }
            }
            (None, None, None, Some(path)) => Source::Records { path, format: RecordFormat::Lcs },
            _ => {
                let message = "give one of --schedule, --trace, --oracle-general and --lcs";
                return Err(UsageError::new(message));
            }
        };
        if self.graph.is_some() && matches!(source, Source::Records { .. }) {
            let message = "--graph is for ids of its nodes; libCacheSim's traces have others";
            return Err(UsageError::new(message));
        }
        let batch_ids = self.batch.unwrap_or(1) as usize;
        Ok(TraceChoice { source, batch_ids, limit: self.limit, graph: self.graph })
    }
}

impl TraceChoice {
    /// Returns the name of its file.
    pub fn name(&self) -> String {
        match &self.source {
            Source::Schedule { path, .. }
            | Source::Arrays { path, .. }
            | Source::Records { path, .. } => file_name(path),
        }
    }

    /// Returns whether the trace comes with a graph.
    pub fn has_graph(&self) -> bool {
        self.graph.is_some()
    }

    /// Returns whether all of it is remote rows of one worker.
    pub fn is_of_worker(&self) -> bool {
        matches!(&self.source, Source::Schedule { worker: Some(_), remote: true, .. })
    }

    /// Reads the traces of each worker's remote rows, of a schedule with `--remote`.
    pub fn load_each(&self) -> Result<Vec<LoadedTrace>> {
        let Source::Schedule { path, worker: None, remote: true } = &self.source else {
            bail!("traces of each worker come from a schedule of them all, with --remote");
        };
        let n_workers = Schedule::open(path)?.spec().workers;
        let of_worker = |worker| {
            let source =
                Source::Schedule { path: path.clone(), worker: Some(worker), remote: true };
            let graph = self.graph.clone();
            Self { source, batch_ids: self.batch_ids, limit: self.limit, graph }.load()
        };
        (0..n_workers).map(of_worker).collect()
    }

    /// Reads the trace.
    pub fn load(&self) -> Result<LoadedTrace> {
        let graph = self.graph.as_deref().map(Graph::open).transpose()?;
        let mut traced = None;
        let trace = match &self.source {
            Source::Schedule { path, worker, remote } => {
                let schedule = Schedule::open(path)?;
                let n_workers = schedule.spec().workers;
                let remote_of = worker.filter(|_| *remote);
                traced = remote_of.map(|worker| TracedWorker { worker, n_workers });
                read_schedule(&schedule, graph.as_ref(), *worker, *remote)
                    .with_context(|| path.display().to_string())?
            }
            Source::Arrays { path, offsets, cut, epoch_batches } => {
                let batch_ids = cut.then_some(self.batch_ids);
                let cut =
                    arrays::Cut { batch_ids, limit: self.limit, epoch_batches: *epoch_batches };
                let n_nodes = graph.as_ref().map(|graph| graph.book().n_nodes());
                arrays::read(path, offsets.as_deref(), &cut, n_nodes)?
            }
            Source::Records { path, format } => {
                let mut reader = open(path)?;
                let trace = read_records(&mut *reader, *format, self.batch_ids, self.limit);
                trace.with_context(|| path.display().to_string())?
            }
        };
        Ok(LoadedTrace { trace, graph, worker: traced, name: self.name() })
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the bytes of a file, decompressed if its name ends with `.zst`.
fn open(path: &Path) -> Result<Box<dyn Read>> {
    let failed = || format!("{}: cannot open", path.display());
    let file = File::open(path).with_context(failed)?;
    if path.extension().is_some_and(|ending| ending == "zst") {
        return Ok(Box::new(zstd::Decoder::new(file).with_context(failed)?));
    }
    Ok(Box::new(file))
}

/// Reads the batches of one worker, or of all in turn: those that they train on at the same time
/// follow each other. With `remote` a batch is the rows that its worker does not own, and needs
/// `graph`.
fn read_schedule(
    schedule: &Schedule,
    graph: Option<&Graph>,
    worker: Option<u32>,
    remote: bool,
) -> Result<Trace> {
    if let Some(graph) = graph {
        schedule.expect_graph(*graph.uuid().as_bytes(), graph.book().n_nodes())?;
    }
    let n_workers = schedule.spec().workers;
    let workers = match worker {
        Some(worker) if worker < n_workers => worker..worker + 1,
        Some(worker) => {
            bail!("the schedule has no worker {worker}, but 0 to {}", n_workers - 1)
        }
        None => 0..n_workers,
    };
    let book = graph.filter(|_| remote).map(Graph::book);
    let longest = workers.clone().map(|worker| schedule.n_batches(worker)).max().unwrap_or(0);
    let (mut builder, mut ids) = (TraceBuilder::default(), Vec::new());
    for epoch in 0..schedule.spec().epochs {
        builder.begin_epoch();
        for batch in 0..longest {
            for worker in workers.clone().filter(|&worker| batch < schedule.n_batches(worker)) {
                let nodes = schedule.get(worker, epoch, batch)?.nodes;
                let asked = nodes.iter().filter(|&&node| {
                    book.is_none_or(|book| !is_local(book, worker, n_workers, node))
                });
                ids.clear();
                ids.extend(asked.map(|node| node.0));
                builder.push_batch(&ids)?;
            }
        }
    }
    // Without the graph nothing but the file says how many nodes there are.
    Ok(builder.finish(graph.map(|graph| graph.book().n_nodes())))
}
