//! `lode rapa`: which halo replicas partitions would give up for their devices.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use lodestore_graph::npy::{NpyType, NpyWriter};
use lodestore_graph::rapa::{
    Adjusted, AdjustedPart, DeviceProfile, PartLoad, RapaError, RapaParams, adjust, part_loads,
};
use lodestore_store::Graph;
use serde::Serialize;

use crate::console::Console;
use crate::flags::parse_size;
use crate::human;
use crate::outputs::NamedFiles;
use crate::small_file::read_small_file;
use crate::table::Table;
use crate::usage::UsageError;

/// Balance partitions over unlike devices: report which halo replicas they would give up (CaPGNN's
/// RAPA). The graph stays as it is.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode-lab profile-device --name here --out here.json
  lode rapa my-graph --profiles here.json,there.json --tensor feat --out dropped

Dropping replicas drops the edges that start from them, so it changes what is computed: nothing is
applied. With --out, PREFIX-NNN.npy lists the nodes that partition NNN would do without, for a trainer
that wants to. Costs are CaPGNN's (Eqs. 13 and 14), relative to the slowest device.")]
pub(crate) struct RapaArgs {
    /// Folder of the graph.
    graph: PathBuf,
    /// Profiles of `lode-lab profile-device`: one per partition in order, or one for all.
    #[arg(long, value_name = "FILE,FILE,...", value_delimiter = ',', required = true)]
    profiles: Vec<PathBuf>,
    /// Tensor whose rows a subgraph holds; none counts no rows.
    #[arg(long, value_name = "NAME")]
    tensor: Option<String>,
    /// Share of the sparse product in the cost of computing.
    #[arg(long, value_name = "A", default_value_t = RapaParams::default().alpha)]
    alpha: f64,
    /// Balanced is a standard deviation of costs below this share of their mean.
    #[arg(long, value_name = "E", default_value_t = RapaParams::default().epsilon)]
    epsilon: f64,
    /// Memory of a device for everything but the subgraph.
    #[arg(long, value_name = "SIZE", default_value = "100MB", value_parser = parse_size)]
    reserve: u64,
    /// Write what would go: PREFIX-000.npy and so on, the graph's own ids as u32, lowest influence
    /// first.
    #[arg(long, value_name = "PREFIX")]
    out: Option<PathBuf>,
}

/// Output of `--json`.
#[derive(Serialize)]
struct RapaReport {
    graph: String,
    is_balanced: bool,
    passes: u32,
    deviation_before: f64,
    deviation_after: f64,
    parts: Vec<PartReport>,
}

#[derive(Serialize)]
struct PartReport {
    part: u16,
    device: String,
    nodes: u64,
    edges: u64,
    replicas: usize,
    dropped_replicas: usize,
    dropped_edges: u64,
    cost_before: f64,
    cost_after: f64,
    bytes: u64,
    fits: bool,
}

impl RapaArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let graph = Graph::open(&self.graph)?;
        if let Some(prefix) = &self.out {
            let files = NamedFiles::default().inputs("--profiles", &self.profiles);
            files.outputs("--out", dropped_paths(prefix, graph.book().n_parts())).check()?;
        }
        let profiles: Vec<DeviceProfile> =
            self.profiles.iter().map(|path| read_profile(path)).collect::<Result<_>>()?;
        let params = self.params(&graph)?;
        console.stage("topology");
        let topology = graph.open_topology()?;
        console.stage("halos");
        let loads = part_loads(&topology, graph.book());
        console.stage("adjust");
        let adjusted = adjust(&loads, &profiles, &params).map_err(|error| match error {
            RapaError::Profile { .. } => anyhow::Error::new(error),
            _ => UsageError::of(error).into(),
        })?;
        if let Some(prefix) = &self.out {
            write_dropped(prefix, &loads, &adjusted)?;
        }
        let report = report(&graph, &profiles, &loads, &adjusted);
        console.report(&report, text)
    }

    fn params(&self, graph: &Graph) -> Result<RapaParams> {
        let mut node_bytes = RapaParams::default().node_bytes;
        if let Some(name) = &self.tensor {
            node_bytes += graph.tensor(name)?.row_bytes() as u64;
        }
        let (alpha, epsilon, reserve_bytes) = (self.alpha, self.epsilon, self.reserve);
        Ok(RapaParams { alpha, epsilon, node_bytes, reserve_bytes, ..RapaParams::default() })
    }
}

pub(crate) fn read_profile(path: &Path) -> Result<DeviceProfile> {
    let text = read_small_file(path)?;
    serde_json::from_str(&text)
        .with_context(|| format!("{}: not a profile of `lode-lab profile-device`", path.display()))
}

/// Returns the files of `--out`, one for each partition.
fn dropped_paths(prefix: &Path, n_parts: u16) -> impl Iterator<Item = PathBuf> {
    (0..n_parts).map(move |part| {
        let mut path = prefix.as_os_str().to_owned();
        path.push(format!("-{part:03}.npy"));
        PathBuf::from(path)
    })
}

fn write_dropped(prefix: &Path, loads: &[PartLoad], adjusted: &Adjusted) -> Result<()> {
    let paths = dropped_paths(prefix, loads.len() as u16);
    for (path, (load, adjusted)) in paths.zip(loads.iter().zip(&adjusted.parts)) {
        let dropped = &load.replicas[..adjusted.n_dropped];
        let ids: Vec<u32> = dropped.iter().map(|replica| replica.node.0).collect();
        let shape = [ids.len() as u64];
        NpyWriter::write(&path, NpyType::U32, &shape, bytemuck::cast_slice(&ids))?;
    }
    Ok(())
}

fn report(
    graph: &Graph,
    profiles: &[DeviceProfile],
    loads: &[PartLoad],
    adjusted: &Adjusted,
) -> RapaReport {
    let part = |(part, (load, after)): (usize, (&PartLoad, &AdjustedPart))| PartReport {
        part: part as u16,
        device: profiles[part % profiles.len()].name.clone(),
        nodes: load.inner,
        edges: load.edges,
        replicas: load.replicas.len(),
        dropped_replicas: after.n_dropped,
        dropped_edges: after.edges_dropped,
        cost_before: after.cost[0],
        cost_after: after.cost[1],
        bytes: after.bytes,
        fits: after.fits,
    };
    RapaReport {
        graph: graph.dir().display().to_string(),
        is_balanced: adjusted.is_balanced,
        passes: adjusted.passes,
        deviation_before: adjusted.deviation[0],
        deviation_after: adjusted.deviation[1],
        parts: loads.iter().zip(&adjusted.parts).enumerate().map(part).collect(),
    }
}

fn text(report: &RapaReport) -> String {
    let heads = ["partition", "device", "nodes", "replicas", "dropped", "edges", "dropped"];
    let more = ["cost", "after", "memory", "fits"];
    let mut table = Table::new(heads.into_iter().chain(more));
    for part in &report.parts {
        table.row([
            part.part.to_string(),
            part.device.clone(),
            human::count(part.nodes),
            human::count(part.replicas as u64),
            human::count(part.dropped_replicas as u64),
            human::count(part.edges),
            human::count(part.dropped_edges),
            format!("{:.3e}", part.cost_before),
            format!("{:.3e}", part.cost_after),
            human::bytes(part.bytes),
            if part.fits { "yes" } else { "no" }.to_owned(),
        ]);
    }
    let verdict = if report.is_balanced { "balanced" } else { "as far as it goes" };
    format!(
        "{}: {verdict} after {} passes; standard deviation of costs {:.3e}, was {:.3e}\n\n{table}\n  \
         nothing was applied",
        report.graph, report.passes, report.deviation_after, report.deviation_before,
    )
}
