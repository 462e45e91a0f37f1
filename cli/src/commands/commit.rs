//! `lode commit`: what was put becomes a version.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use lodestore_client::remote::CommitOutcome;
use lodestore_graph::{PartId, PartitionBook};
use lodestore_store::{Graph, GraphHandle, OpenOptions};
use serde::Serialize;

use crate::console::Console;
use crate::human;
use crate::local_parts::{line_of, remote_parts};
use crate::security_args::ClientArgs;
use crate::target::Place;
use crate::usage::{UsageError, refuse_given};

/// Make a version of all rows that were put into a graph, or into its servers.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode put --graph my-graph --tensor feat --ids ids.npy --rows rows.npy
  lode commit my-graph
  lode commit 127.0.0.1:7171 127.0.0.1:7172 --wait-followers 1

Readers see rows that were put from the commit on. Where nothing is pending no version is made, which
is no error. A commit that was cut off is finished by the next one. Name all servers that write the
graph, or a map of them: all of them commit the same number.

Of a graph whose partitions are on several machines its folder has some: --parts names those to
commit. A folder whose partitions are not of one history takes no writes until --align.")]
pub(crate) struct CommitArgs {
    /// Folder of the graph, or addresses of its servers: HOST:PORT, unix:PATH or map:FILE.
    #[arg(required = true, value_name = "GRAPH|ADDR")]
    targets: Vec<String>,
    /// With a folder: the partitions to commit, all of which must be here; without it all that are
    /// here.
    #[arg(long, value_name = "P,P,...", value_delimiter = ',')]
    parts: Vec<u16>,
    /// With a folder: accept its partitions as they are, where they have different versions or come
    /// from different histories (one was restored from a copy, or fetched on its own): they get one
    /// new version in common, with all pending rows.
    #[arg(long, conflicts_with_all = ["parts", "wait_followers"])]
    align: bool,
    /// With servers: return when N followers of each partition have the version.
    #[arg(long, value_name = "N", conflicts_with = "parts")]
    wait_followers: Option<usize>,
    #[command(flatten)]
    client: ClientArgs,
}

/// The report of `--json`.
#[derive(Serialize)]
struct CommitReport {
    /// The version that all partitions have.
    version: u32,
    /// Whether this commit has made it; `false` where nothing was pending.
    committed: bool,
    parts: Vec<PartVersion>,
    /// Partitions that are not here, not named, or of other servers: they stay as they are.
    absent: Vec<u16>,
    seconds: f64,
}

#[derive(Serialize)]
struct PartVersion {
    part: u16,
    version: u32,
}

impl CommitArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let folder = self.targets.iter().map(Path::new).find(|path| path.is_dir());
        if let Some(folder) = folder.filter(|_| self.targets.len() > 1) {
            let message = format!(
                "expected one folder, or addresses alone; found {} and {}",
                folder.display(),
                human::counted(self.targets.len() as u64 - 1, "other target")
            );
            return Err(UsageError::new(message).into());
        }
        let is_folder = folder.is_some();
        if is_folder {
            let waits = [("--wait-followers", self.wait_followers.is_some())];
            self.client.refuse_without_servers(&waits)?;
        } else {
            refuse_given(&[("--parts", !self.parts.is_empty())], "is for a folder")?;
            self.targets.iter().try_for_each(|target| check_address(target))?;
        }
        if self.align {
            let Some(folder) = folder else {
                return Err(UsageError::new("--align is for a folder").into());
            };
            return align(folder, console);
        }
        let config = self.client.config()?;
        let start = Instant::now();
        let parts: Vec<PartId> = self.parts.iter().copied().map(PartId).collect();
        let target = Place::find(folder, &self.targets, config)?.open(&parts, true)?;
        let outcome = target.commit_pending()?;
        if let Some(wanted) = self.wait_followers {
            target.wait_for_followers(outcome.version, wanted)?;
        }
        let report = CommitReport::new(&outcome, target.book(), start);
        console.report(&report, text)
    }
}

/// Fails for a target that is no address: it may be the name of a folder, mistyped.
fn check_address(target: &str) -> Result<()> {
    let has_port = target.contains(':');
    if has_port {
        return Ok(());
    }
    bail!(
        "{target}: expected the folder of a graph, or the address of a server (HOST:PORT, unix:PATH or \
         map:FILE); there is no such folder"
    )
}

/// Makes one version of the partitions in `folder` as they are.
fn align(folder: &Path, console: &Console) -> Result<()> {
    let start = Instant::now();
    let (live, version) = GraphHandle::align(Graph::open(folder)?, &OpenOptions::default())?;
    let outcome =
        CommitOutcome { version: version.number, is_new: true, parts: live.part_versions() };
    console.report(&CommitReport::new(&outcome, live.graph().book(), start), text)
}

impl CommitReport {
    fn new(outcome: &CommitOutcome, book: &PartitionBook, start: Instant) -> Self {
        let here: Vec<PartId> = outcome.parts.iter().map(|&(part, _)| part).collect();
        let part_version = |&(part, version): &(PartId, u32)| PartVersion { part: part.0, version };
        Self {
            version: outcome.version,
            committed: outcome.is_new,
            parts: outcome.parts.iter().map(part_version).collect(),
            absent: remote_parts(book, &here),
            seconds: start.elapsed().as_secs_f64(),
        }
    }
}

fn text(report: &CommitReport) -> String {
    let start = match report.committed {
        true => format!("committed in {}", human::seconds(report.seconds)),
        false => "nothing is pending".to_owned(),
    };
    let absent = line_of("left as they are", &report.absent, "");
    format!("{start}; {}{absent}", reached(&report.parts))
}

/// Returns the partitions of each version, neighbours together.
fn reached(parts: &[PartVersion]) -> String {
    let mut runs: Vec<(u16, u16, u32)> = Vec::new();
    for &PartVersion { part, version } in parts {
        match runs.last_mut() {
            Some((_, last, of)) if *of == version && *last + 1 == part => *last = part,
            _ => runs.push((part, part, version)),
        }
    }
    let words = runs.into_iter().map(|(first, last, version)| match first == last {
        true => format!("version {version} of partition {first}"),
        false => format!("version {version} of partitions {first} to {last}"),
    });
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_one_version_are_named_together() {
        let parts = |versions: &[(u16, u32)]| {
            let one = |&(part, version)| PartVersion { part, version };
            reached(&versions.iter().map(one).collect::<Vec<_>>())
        };
        assert_eq!(parts(&[(0, 3)]), "version 3 of partition 0");
        assert_eq!(
            parts(&[(0, 3), (1, 3), (3, 3), (4, 2)]),
            "version 3 of partitions 0 to 1, version 3 of partition 3, version 2 of partition 4"
        );
    }
}
