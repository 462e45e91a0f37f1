//! `lode gc`: remove old versions from object storage.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lodestore_bucket::{Bucket, GcOptions, GcReport};
use serde::Serialize;

use crate::console::Console;
use crate::human;
use crate::usage::UsageError;

/// Remove old versions of a graph from object storage, and what an interrupted push has left.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode gc s3://bucket/my-graph --keep 3
  lode gc s3://bucket/my-graph --keep 3 --pin paper=7
  lode gc s3://bucket/my-graph --keep 3 --unpin paper

The newest version stays always, and so do versions that are pinned, versions that were replaced
within the grace period, and chunks of a push under way, however long it takes: readers and writers
may be midway. Ages are those by the clock of the store. A shorter grace period than 24 hours is safe
only while nothing pushes or pulls.")]
pub(crate) struct GcArgs {
    /// Where the graph is stored; `lode push --help` has the forms.
    url: String,
    /// Number of versions to keep, the newest ones that every partition has published.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep: u32,
    /// Hours for which what was replaced stays.
    #[arg(long, value_name = "HOURS", default_value_t = 24.0)]
    grace: f64,
    /// Keep a version under this name until it is unpinned.
    #[arg(long, value_name = "NAME=VERSION")]
    pin: Vec<String>,
    /// Remove a pin.
    #[arg(long, value_name = "NAME")]
    unpin: Vec<String>,
    /// Report what would go, and remove nothing.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct PrintedReport {
    #[serde(flatten)]
    report: GcReport,
    dry_run: bool,
    /// Hours for which what was replaced stays.
    grace_hours: f64,
}

impl GcArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let grace = Duration::try_from_secs_f64(self.grace * 3600.0);
        let grace =
            grace.map_err(|_| UsageError::new("--grace: expected hours, such as 24 or 0.5"))?;
        let pin: Vec<(String, u32)> =
            self.pin.iter().map(|text| parse_pin(text)).collect::<Result<_, UsageError>>()?;
        self.unpin.iter().try_for_each(|name| check_name(name))?;
        let both = pin.iter().find(|(name, _)| self.unpin.contains(name));
        if let Some((name, _)) = both {
            let message =
                format!("--pin and --unpin: expected different names, found {name} in both");
            return Err(UsageError::new(message).into());
        }
        let options = GcOptions {
            keep: self.keep as usize,
            grace,
            pin,
            unpin: self.unpin,
            is_dry_run: self.dry_run,
        };
        console.stage("gc");
        let report = Bucket::open(&self.url)?.gc(&options)?;
        let printed = PrintedReport { report, dry_run: self.dry_run, grace_hours: self.grace };
        console.report(&printed, text)
    }
}

fn parse_pin(text: &str) -> Result<(String, u32), UsageError> {
    let pin = text.split_once('=').and_then(|(name, version)| Some((name, version.parse().ok()?)));
    let (name, version) = pin.ok_or_else(|| {
        UsageError::new(format!("--pin: expected NAME=VERSION such as paper=7, found {text:?}"))
    })?;
    check_name(name)?;
    Ok((name.to_owned(), version))
}

/// Fails for a name that would be another key.
fn check_name(name: &str) -> Result<(), UsageError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !name.is_empty() && name.len() <= 100 && name.chars().all(is_plain) {
        return Ok(());
    }
    Err(UsageError::new(format!(
        "a name of a pin has 1 to 100 letters, digits, - and _; found {name:?}"
    )))
}

fn text(printed: &PrintedReport) -> String {
    let PrintedReport { report, dry_run, grace_hours } = printed;
    format!(
        "{}{} and {} removed, {}; {} and {} kept, {}; what was replaced within {grace_hours} h stays",
        if *dry_run { "would be: " } else { "" },
        human::counted(report.publications, "publication"),
        human::counted(report.chunks, "chunk"),
        human::bytes(report.bytes),
        human::counted(report.publications_kept, "publication"),
        human::counted(report.chunks_kept, "chunk"),
        human::counted(report.pins.len() as u64, "pin"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_read_and_names_that_lead_elsewhere_are_refused() {
        assert_eq!(parse_pin("paper=7").ok(), Some(("paper".to_owned(), 7)));
        for text in ["paper", "paper=x", "=7", "a/b=7", "..=7"] {
            assert!(parse_pin(text).is_err(), "{text}");
        }
    }
}
