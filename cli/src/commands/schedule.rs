//! `lode schedule`: sample all batches of a run ahead of time.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use lodestore_graph::micrograph::{Locality, Micrographs};
use lodestore_graph::sampler::Deal;
use lodestore_graph::schedule::{Schedule, ScheduleInput, ScheduleSpec, write_schedule};
use lodestore_graph::{NodeId, PartitionBook};
use lodestore_store::{Dtype, EmbeddedStore, Graph};
use serde::Serialize;

use crate::commands::train::check_workers;
use crate::console::Console;
use crate::flags::FanoutArgs;
use crate::human;
use crate::outputs::NamedFiles;
use crate::usage::UsageError;

/// Split of training nodes in a tensor of splits.
const TRAIN: u8 = 0;

/// Sample every batch of a run ahead of time, and write the schedule.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode schedule my-graph --seed 1 --fanout 10,25 --batch 512 --epochs 10 --workers 2 \\
      --out run.schedule

The digest is of the content: the same settings give the same digest on every machine.

Until it is whole the file is called FILE.partial. After an interruption the same command checks what
is there and continues behind it; another one overwrites it.")]
pub(crate) struct ScheduleArgs {
    /// Folder of the graph.
    graph: PathBuf,
    /// Fixes every batch.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    fanout: FanoutArgs,
    /// Roots per batch and worker.
    #[arg(long, value_name = "B", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Passes over the roots.
    #[arg(long, value_name = "E", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// Workers, at most one per partition; partition p belongs to worker p mod W.
    #[arg(long, value_name = "W", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    workers: u32,
    /// Which nodes are roots.
    #[arg(long, value_enum, default_value_t = Roots::Train)]
    roots: Roots,
    /// Measure locality on this many batches of the first epoch (HopGNN). It is the share of a
    /// root's micrograph that is on the root's own worker, and the same of its whole batch.
    #[arg(long, value_name = "N", default_value_t = 0)]
    locality: u32,
    /// Which worker has which root: `home` is what `train --strategy hop` uses.
    #[arg(long, value_name = "DEAL", default_value = "owned")]
    deal: DealArg,
    /// The schedule; replaced if it exists.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Deal of roots to workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DealArg {
    /// Batches of each worker's own nodes.
    Owned,
    /// Global batches, dealt by turns.
    Turns,
    /// Global batches, each root with its owner.
    Home,
}

impl From<DealArg> for Deal {
    fn from(deal: DealArg) -> Self {
        match deal {
            DealArg::Owned => Self::Owned,
            DealArg::Turns => Self::Turns,
            DealArg::Home => Self::Home,
        }
    }
}

/// Nodes that batches are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Roots {
    /// Nodes that tensor `split` marks with 0.
    Train,
    /// All nodes.
    All,
}

/// Output of `--json`.
#[derive(Serialize)]
struct ScheduleReport {
    schedule: String,
    digest: String,
    batches: u64,
    /// Batches that an interrupted run had left.
    resumed_batches: u64,
    ids: u64,
    bytes: u64,
    bytes_per_id: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    locality: Option<Locality>,
    seconds: f64,
}

impl ScheduleArgs {
    fn check(&self) -> Result<ScheduleSpec, UsageError> {
        let spec = ScheduleSpec {
            graph_uuid: [0; 16],
            seed: self.seed,
            fanouts: self.fanout.fanout.clone(),
            batch_size: self.batch as usize,
            epochs: self.epochs,
            workers: self.workers,
            deal: self.deal.into(),
        };
        spec.check().map_err(UsageError::of)?;
        Ok(spec)
    }

    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let start = Instant::now();
        let spec = self.check()?;
        let files = [self.out.clone(), partial_of(&self.out)];
        NamedFiles::default().outputs("--out", files).check()?;
        let graph = Graph::open(&self.graph)?;
        check_workers(self.workers, graph.book().n_parts())?;
        let (book, uuid) = (graph.book().clone(), *graph.uuid().as_bytes());
        let spec = ScheduleSpec { graph_uuid: uuid, ..spec };
        console.stage("topology");
        let topology = graph.open_topology()?;
        let roots = roots(graph, self.roots)?;
        let mut progress = console.progress("schedule");
        let threads = available_parallelism().map_or(1, NonZero::get);
        let summary = write_schedule(
            &ScheduleInput { topology: &topology, book: &book, train_roots: &roots },
            &spec,
            &self.out,
            threads,
            &mut progress,
        )?;
        drop(progress);
        let locality = match self.locality {
            0 => None,
            n_batches => {
                console.stage("locality");
                Some(locality(&Schedule::open(&self.out)?, &book, n_batches)?)
            }
        };
        let report = ScheduleReport {
            schedule: self.out.display().to_string(),
            digest: summary.digest,
            batches: summary.batches,
            resumed_batches: summary.resumed,
            ids: summary.ids,
            bytes: summary.bytes,
            bytes_per_id: summary.bytes as f64 / summary.ids.max(1) as f64,
            locality,
            seconds: start.elapsed().as_secs_f64(),
        };
        console.report(&report, text)
    }
}

/// Returns the name of a schedule until it is whole.
pub(crate) fn partial_of(schedule: &Path) -> PathBuf {
    let mut name = schedule.as_os_str().to_owned();
    name.push(".partial");
    PathBuf::from(name)
}

fn roots(graph: Graph, which: Roots) -> Result<Vec<NodeId>> {
    let all: Vec<NodeId> = (0..graph.book().n_nodes()).map(NodeId).collect();
    if which == Roots::All {
        return Ok(all);
    }
    let Some(spec) = graph.meta().tensor("split") else {
        bail!("the graph has no tensor `split` that marks training nodes; add --roots all");
    };
    if spec.dtype != Dtype::U8 || spec.width != 1 {
        bail!(
            "tensor `split` must be u8 of width 1, found {} of width {}; import it with --dtype split=u8",
            spec.dtype,
            spec.width
        );
    }
    let mut splits = vec![0; all.len()];
    EmbeddedStore::from_graph(graph, None)?.gather("split", &all, &mut splits)?;
    Ok(all.into_iter().zip(splits).filter(|&(_, split)| split == TRAIN).map(|(id, _)| id).collect())
}

/// Returns the locality of `n_batches` batches of the first epoch, the workers' in turn.
fn locality(schedule: &Schedule, book: &PartitionBook, n_batches: u32) -> Result<Locality> {
    let n_workers = schedule.spec().workers;
    let (mut locality, mut micrographs) = (Locality::default(), Micrographs::default());
    let longest = (0..n_workers).map(|worker| schedule.n_batches(worker)).max().unwrap_or(0);
    let in_turn = (0..longest).flat_map(|batch| (0..n_workers).map(move |w| (w, batch)));
    let there_are = in_turn.filter(|&(worker, batch)| batch < schedule.n_batches(worker));
    for (worker, batch) in there_are.take(n_batches as usize) {
        let batch = schedule.get(worker, 0, batch)?;
        locality.add(&batch, book, n_workers, &mut micrographs);
    }
    Ok(locality)
}

fn text(report: &ScheduleReport) -> String {
    let mut text = format!(
        "{}: {} batches, {} node ids, {} ({:.2} bytes an id) in {}\n  digest {}",
        report.schedule,
        human::count(report.batches),
        human::count(report.ids),
        human::bytes(report.bytes),
        report.bytes_per_id,
        human::seconds(report.seconds),
        report.digest,
    );
    if report.resumed_batches > 0 {
        let resumed = human::count(report.resumed_batches);
        text += &format!("\n  {resumed} batches were there from an interrupted run");
    }
    if let Some(Locality { roots, r_micro, r_sub }) = report.locality {
        let (micro, sub) = (human::percent(r_micro), human::percent(r_sub));
        let roots = human::count(roots);
        text +=
            &format!("\n  at home with {roots} roots: {micro} of micrographs, {sub} of batches");
    }
    text
}
