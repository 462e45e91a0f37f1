//! Compaction by servers.

use std::time::Instant;

use anyhow::Result;
use lodestore_client::{Client, ClientConfig, Security};
use serde::Serialize;

use crate::console::Console;
use crate::human;

/// Output of `--json`.
#[derive(Serialize)]
struct ServersReport {
    servers: Vec<ServerReport>,
    seconds: f64,
    /// Whether it was waited for, and is done.
    done: bool,
}

#[derive(Serialize)]
struct ServerReport {
    address: String,
    /// Committed version.
    version: u32,
    /// Rows of deltas that there were.
    rows: u64,
}

/// Has servers compact, and waits for them by default.
pub(super) fn compact(
    addresses: &[String],
    security: Security,
    no_wait: bool,
    console: &Console,
) -> Result<()> {
    let config = ClientConfig { security, ..ClientConfig::default() };
    let client = Client::connect(addresses, config)?;
    let start = Instant::now();
    let before = client.stats()?;
    let runs = client.compact()?;
    if !no_wait {
        client.wait_for_compactions(&runs, &mut console.progress("compact"))?;
    }
    let servers = before.into_iter().map(|(address, stats)| ServerReport {
        address: address.to_string(),
        version: stats.updates.version,
        rows: stats.updates.committed_rows,
    });
    let report = ServersReport {
        servers: servers.collect(),
        seconds: start.elapsed().as_secs_f64(),
        done: !no_wait,
    };
    console.report(&report, text)
}

fn text(report: &ServersReport) -> String {
    let lines = report.servers.iter().map(|server| {
        let rows = human::counted(server.rows, "row");
        let (address, version) = (&server.address, server.version);
        if report.done {
            let time = human::seconds(report.seconds);
            format!("{address}: {rows} folded in {time}, version {version}")
        } else {
            format!("{address}: folds {rows}, version {version}; `lode stat {address}` reports it")
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}
