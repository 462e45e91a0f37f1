//! `lode transfer`: copy a partition from a running server, or move it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lodestore_client::Address;
use lodestore_client::transfer::{PartitionTransfer, TransferPlan, TransferStats};
use lodestore_graph::PartId;
use serde::Serialize;

use crate::console::Console;
use crate::human;
use crate::security_args::SecurityArgs;

/// Copy a partition from a running server into a graph's folder on this machine, or move it to the
/// server of that folder. Clients pull and put meanwhile.
#[derive(Args)]
#[command(after_help = "\
Example: partition 3 moves from one server to another
  lode serve g --local-parts --writable --listen 10.0.0.5:7171 --token-file t --admin-token-file a
  lode serve g --local-parts --writable --listen 10.0.0.6:7171 --token-file t --admin-token-file a
  lode transfer 3 --from 10.0.0.5:7171 --into g --to 10.0.0.6:7171 --token-file a
The first runs on the old machine, the others on the new one.

The old server keeps the folder under another name, part-003.moved-NUMBER; remove it when the new one
serves. With --keep nothing is taken away: that is a copy of the partition as of one moment. A second
server that follows what is committed is started with lode serve --follow.

Servers that are not on this machine require the admin token, which --token-file names.

Whatever cuts it off, run the same command again: it continues with the files that have come whole.
docs/replication.md says who owns the partition at each step.")]
pub(crate) struct TransferArgs {
    /// The partition.
    part: u16,
    /// The server that has it: HOST:PORT or unix:PATH.
    #[arg(long, value_name = "ADDR")]
    from: Address,
    /// Folder of the graph where it goes; made if it is not there.
    #[arg(long, value_name = "GRAPH")]
    into: PathBuf,
    /// The server of that folder, which takes the partition over. The old server announces this
    /// address to followers.
    #[arg(long, value_name = "ADDR")]
    to: Option<Address>,
    /// Move it although no server of that folder is named: no server has it until one is started.
    #[arg(long, conflicts_with_all = ["to", "keep"])]
    unserved: bool,
    /// Leave it at the old server too.
    #[arg(long)]
    keep: bool,
    /// Give up on a step after this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..))]
    deadline: u64,
    #[command(flatten)]
    security: SecurityArgs,
}

/// Output of `--json`.
#[derive(Serialize)]
struct CopyReport {
    part: u16,
    /// Its committed version.
    version: u32,
    /// Whether the old server has given it up.
    moved: bool,
    /// An earlier run had brought it, and there was nothing to do.
    was_here: bool,
    /// Files fetched, and those that had come before.
    files: u64,
    files_kept: u64,
    file_bytes: u64,
    /// Rows that were not committed.
    pending_bytes: u64,
    /// These, and files that came while the old server took no puts.
    late_bytes: u64,
    seconds: f64,
    /// In which the old server took no puts.
    sealed_seconds: f64,
}

impl TransferArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let config = self.security.client_config(Duration::from_secs(self.deadline))?;
        let plan = TransferPlan {
            from: self.from,
            part: PartId(self.part),
            into: self.into,
            to: self.to,
            unserved: self.unserved,
            keep: self.keep,
            config,
        };
        let start = std::time::Instant::now();
        let mut progress = console.progress("copy");
        let stats = PartitionTransfer::run(plan, &mut progress)?;
        drop(progress);
        let TransferStats { files, files_kept, file_bytes, pending_bytes, late_bytes, .. } = stats;
        let report = CopyReport {
            part: self.part,
            version: stats.version,
            moved: !self.keep,
            was_here: stats.was_here,
            files,
            files_kept,
            file_bytes,
            pending_bytes,
            late_bytes,
            seconds: start.elapsed().as_secs_f64(),
            sealed_seconds: stats.sealed.as_secs_f64(),
        };
        console.report(&report, text)
    }
}

fn text(report: &CopyReport) -> String {
    if report.was_here {
        return format!(
            "partition {} was here already, at version {}",
            report.part, report.version
        );
    }
    let bytes = human::bytes(report.file_bytes + report.pending_bytes);
    let (time, sealed) = (human::seconds(report.seconds), human::seconds(report.sealed_seconds));
    let kept = match report.files_kept {
        0 => String::new(),
        n => format!("; {} had come before", human::counted(n, "file")),
    };
    format!(
        "partition {} {}: {}, {bytes} in {time}{kept}; no puts for {sealed}, in which {} came",
        report.part,
        if report.moved { "moved" } else { "copied" },
        human::counted(report.files, "file"),
        human::bytes(report.late_bytes),
    )
}
