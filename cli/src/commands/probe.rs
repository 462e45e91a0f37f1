//! `lode probe`: what the disk under a folder can do.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Args;
use lodestore_store::Graph;
use lodestore_store::file_system::Disk;
use lodestore_store::graph::META_FILE;
use lodestore_store::limits::PAGE_BYTES;
use lodestore_store::probe::{ProbeCell, ProbeOptions, ProbeReport, StoredProfile, probe};
use serde::Serialize;

use crate::console::Console;
use crate::flags::parse_size;
use crate::human;
use crate::table::Table;
use crate::usage::UsageError;

/// Measure random reads at several sizes and queue depths; a graph keeps the result, and its rows
/// are read accordingly.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode probe my-graph
  lode probe /mnt/nvme --size 4GiB

Reads a graph's own largest segment past the page cache if it has 256 MiB or more; else writes a
file without a name in PATH, which is gone however the command ends, and reads that. Run it on an
idle machine, and again when the graph has moved to another disk.")]
pub(crate) struct ProbeArgs {
    /// A graph, a file, or a folder on the file system to measure.
    path: PathBuf,
    /// Write and read a file of this size; without a graph, 1GiB or a quarter of the free space if
    /// that is less.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Keep the result in PATH although it is no graph: imports into graphs beside it choose codecs
    /// by it.
    #[arg(long)]
    keep: bool,
    /// Seconds of reading, for all sizes and depths together.
    #[arg(long, value_name = "SECONDS", default_value_t = 12,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

/// Smallest segment that is measured instead of a file written for it.
const MIN_SEGMENT_BYTES: u64 = 256 << 20;

/// Output of `--json`.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    probe: ProbeReport,
    /// The file that keeps the profile; `null` where PATH is no graph.
    kept: Option<String>,
}

impl ProbeArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        if self.keep && !self.path.is_dir() {
            let path = self.path.display();
            return Err(
                UsageError::new(format!("--keep wants a folder, and {path} is none")).into()
            );
        }
        let is_graph = self.path.join(META_FILE).exists();
        let graph = if is_graph { Some(Graph::open(&self.path)?) } else { None };
        let duration = Duration::from_secs(self.seconds);
        let options = ProbeOptions { scratch_bytes: self.size, duration };
        let segment = match &graph {
            Some(graph) if self.size.is_none() => largest_segment(graph),
            _ => None,
        };
        let probe =
            probe(segment.as_ref().unwrap_or(&self.path), &options, &mut |stage, done, total| {
                console.at(stage, done, total);
            })?;
        let folder = (is_graph || self.keep).then_some(&self.path);
        let kept = folder.map(|dir| keep(dir, &probe)).transpose()?;
        console.report(&Report { probe, kept }, text)
    }
}

/// Returns the graph's largest segment that is here and can be opened, if it is large enough.
fn largest_segment(graph: &Graph) -> Option<PathBuf> {
    let tensors = || graph.meta().tensors.iter();
    let segments = graph.book().parts().flat_map(|part| tensors().map(move |spec| (part, spec)));
    segments
        .filter_map(|(part, spec)| {
            let path = graph.segment(part, &spec.name).ok()?.path().to_owned();
            let n_bytes = std::fs::metadata(&path).ok()?.len();
            (n_bytes >= MIN_SEGMENT_BYTES).then_some((n_bytes, path))
        })
        .max()
        .map(|(_, path)| path)
}

/// Keeps the profile in a folder; returns the file's name.
fn keep(dir: &Path, probe: &ProbeReport) -> Result<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut stored = StoredProfile::new(probe.profile(), probe.cells.clone(), now.as_secs());
    stored.direct = probe.direct;
    stored.write(&Disk, dir)?;
    Ok(dir.join(lodestore_store::probe::DEVICE_FILE).display().to_string())
}

fn text(report: &Report) -> String {
    let probe = &report.probe;
    let way = if probe.io_uring { "through io_uring" } else { "by threads, without io_uring" };
    let cache = if probe.direct {
        "past the page cache"
    } else {
        "through the page cache: this file system has no direct reads, so this is mostly memory"
    };
    let kept = match &report.kept {
        Some(file) => format!("kept in {file}"),
        None => "not kept: this folder is no graph; --keep keeps it for imports into it".to_owned(),
    };
    format!(
        "{}: random reads of {}, {way}, {cache}\n\n\
         requests/s by request size and queue depth\n{}\n\n\
         bytes/s\n{}\n\nprofile: {} requests/s and {}/s; reading through a gap of up to {} pays \
         ({kept})",
        probe.path,
        human::bytes(probe.file_bytes),
        table(&probe.cells, |cell| human::count(cell.iops as u64)),
        table(&probe.cells, |cell| human::bytes_f64(cell.bytes_per_s)),
        human::count(probe.iops as u64),
        human::bytes_f64(probe.bandwidth_bytes_per_s),
        human::bytes(probe.profile().max_gap_pages() * PAGE_BYTES),
    )
}

/// Returns a table with sizes down and depths across.
fn table(cells: &[ProbeCell], figure: fn(&ProbeCell) -> String) -> Table {
    let mut depths: Vec<u32> = cells.iter().map(|cell| cell.depth).collect();
    depths.sort_unstable();
    depths.dedup();
    let mut table =
        Table::new(std::iter::once("size".to_owned()).chain(depths.iter().map(u32::to_string)));
    for of_size in cells.chunk_by(|a, b| a.request_bytes == b.request_bytes) {
        let size = format!("{} KiB", of_size[0].request_bytes >> 10);
        let cell_at = |depth: &u32| of_size.iter().find(|cell| cell.depth == *depth);
        let figures = depths.iter().map(|depth| cell_at(depth).map_or_else(String::new, figure));
        table.row(std::iter::once(size).chain(figures));
    }
    table
}
