//! `lode inspect`: what a graph holds.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use lodestore_bucket::Bucket;
use lodestore_bucket::inspect::BucketSummary;
use lodestore_store::Graph;
use lodestore_store::inspect::{DiskSummary, GraphSummary, TensorSummary, inspect};

use crate::console::Console;
use crate::human;
use crate::table::Table;
use crate::usage::UsageError;

/// Show what a graph holds: nodes, tensors, partitions, sizes.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode inspect my-graph
  lode inspect s3://bucket/my-graph --versions 10")]
pub(crate) struct InspectArgs {
    /// Folder of the graph, or its URL in object storage.
    graph: PathBuf,
    /// List this many of the newest versions that every partition has in object storage.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    versions: Option<u16>,
}

impl InspectArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        if let Some(url) = url_of(&self.graph) {
            let n_versions = self.versions.unwrap_or(1).into();
            return console.report(&Bucket::open(url)?.inspect(n_versions)?, text_of_bucket);
        }
        if self.versions.is_some() {
            let message = "--versions lists those in object storage; of a folder all are shown";
            return Err(UsageError::new(message).into());
        }
        let summary = inspect(&Graph::open(&self.graph)?)?;
        console.report(&summary, text)
    }
}

/// Returns the URL that was given in the place of a folder.
pub(super) fn url_of(graph: &std::path::Path) -> Option<&str> {
    graph.to_str().filter(|text| text.contains("://"))
}

fn text_of_bucket(summary: &BucketSummary) -> String {
    let mut parts = Table::new(["partition", "publication", "version", "files", "size"]);
    for part in &summary.parts {
        parts.row([
            part.part.to_string(),
            part.publication.to_string(),
            part.version.to_string(),
            human::count(part.files as u64),
            human::bytes(part.bytes),
        ]);
    }
    let versions: Vec<String> = summary.versions.iter().map(u32::to_string).collect();
    let version = match versions.len() {
        0 => "no version that every partition has published".to_owned(),
        1 => format!("version {}", versions[0]),
        _ => format!("versions {}", versions.join(", ")),
    };
    format!("{}: {version}, uuid {}\n\n{parts}", summary.url, summary.uuid)
}

fn text(summary: &GraphSummary) -> String {
    let mut tensors = Table::new(["tensor", "dtype", "width", "codec", "size"]);
    for t in &summary.tensors {
        let width = human::count(t.width.into());
        tensors.row([
            t.name.clone(),
            t.dtype.clone(),
            width,
            t.codec.clone(),
            human::bytes(t.bytes),
        ]);
    }
    let choices: Vec<String> = summary.tensors.iter().filter_map(codec_choice).collect();
    let mut parts = Table::new(["partition", "nodes", "size", ""]);
    for p in &summary.parts {
        let (nodes, bytes) = (human::count(p.nodes.into()), human::bytes(p.bytes));
        let place = if p.present { "" } else { "not on this machine" };
        parts.row([p.part.to_string(), nodes, bytes, place.to_owned()]);
    }
    format!(
        "{}: {} nodes, {} in-edges{}, {}, format {}, uuid {}\n\n{tensors}\n{}\n{parts}\n\n{}\
         reader on this machine: {}, because {}\n{}",
        summary.graph,
        human::count(summary.nodes.into()),
        human::count(summary.edges),
        if summary.undirected { " (both directions of each edge)" } else { "" },
        versions(summary),
        summary.format_version,
        summary.uuid,
        choices.concat(),
        layers(summary),
        summary.reader.kind,
        summary.reader.reason,
        device(&summary.device),
    )
}

/// Returns what `--codec auto` would take, where that took a sample or could not be found.
fn codec_choice(tensor: &TensorSummary) -> Option<String> {
    let (name, choice) = (&tensor.name, &tensor.codec_choice);
    let Some(auto) = &choice.auto else {
        return (choice.raw_bytes > 0)
            .then(|| format!("codec of {name}: no sample: {}\n", choice.reason));
    };
    let (zstd_bytes, speed) = (choice.zstd_bytes?, choice.decode_bytes_per_s?);
    Some(format!(
        "codec of {name}: auto takes {auto} here: {} raw, {} compressed, unpacked at {}/s; {}\n",
        human::bytes(choice.raw_bytes),
        human::bytes(zstd_bytes),
        human::bytes_f64(speed),
        choice.reason,
    ))
}

fn versions(summary: &GraphSummary) -> String {
    match (summary.oldest_version, summary.version) {
        (oldest, version) if oldest < version => format!("versions {oldest} to {version}"),
        (_, version) => format!("version {version}"),
    }
}

/// Returns the deltas and pending rows in words, where there are any.
fn layers(summary: &GraphSummary) -> String {
    let mut table =
        Table::new(["partition", "tensor", "over version", "rows of deltas", "pending"]);
    let found = summary.parts.iter().flat_map(|part| part.layers.iter().map(move |it| (part, it)));
    let mut n_found = 0;
    for (part, layers) in found {
        n_found += 1;
        let deltas: Vec<String> = layers.delta_rows.iter().map(|&n| human::count(n)).collect();
        table.row([
            part.part.to_string(),
            layers.tensor.clone(),
            layers.segment_version.to_string(),
            deltas.join(", "),
            human::count(layers.pending_rows),
        ]);
    }
    if n_found == 0 {
        return String::new();
    }
    format!(
        "deltas, oldest first (`lode compact` folds them), and rows not committed:\n{table}\n\n"
    )
}

fn device(device: &DiskSummary) -> String {
    let origin = match (device.measured_unix_s, &device.fault) {
        (Some(measured_unix_s), _) => format!("measured {}", human::ago(measured_unix_s)),
        (None, Some(fault)) => format!("the default, for {fault}"),
        (None, None) => "the default; `lode probe` measures".to_owned(),
    };
    format!(
        "device profile: {} requests/s, {}/s ({origin})",
        human::count(device.iops as u64),
        human::bytes_f64(device.bandwidth_bytes_per_s),
    )
}
