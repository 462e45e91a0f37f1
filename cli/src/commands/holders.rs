//! `lode holders`: how many servers are to hold a partition.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lodestore_client::{Client, ClientConfig, Holder};
use lodestore_graph::PartId;
use serde::Serialize;

use crate::console::Console;
use crate::human;
use crate::secrets::SecurityArgs;
use crate::usage::UsageError;

/// Tell which servers hold a partition that takes puts, or say how many are to: then puts are refused
/// unless all of them are there.
#[derive(Args)]
#[command(after_help = "\
Example: partition 3 is on two servers, and puts must go to both
  lode holders 3 --connect 10.0.0.5:7171 --connect 10.0.0.6:7171 --set 2

A third comes by `lode copy-part 3 --keep`, which counts it; then the others are told with --set 3. One
that is lost is left out with --set by the others that are there: remove its folder before it comes back,
although clients leave it out by themselves.

Servers that are not on this machine want the admin token, which --token-file gives.")]
pub(crate) struct HoldersArgs {
    /// The partition.
    part: u16,
    /// Address of a server or a map: HOST:PORT, unix:PATH, map:FILE; repeat for several.
    #[arg(long, value_name = "ADDR", required = true)]
    connect: Vec<String>,
    /// Say that so many servers are to hold it: those that are connected and do.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    set: Option<u16>,
    /// With --set: those too that were left out of an earlier change, or counted apart. They must have
    /// all rows.
    #[arg(long, requires = "set")]
    include_behind: bool,
    /// Give up after this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(1..))]
    deadline: u64,
    #[command(flatten)]
    security: SecurityArgs,
}

/// What `--json` prints.
#[derive(Serialize)]
struct HoldersReport {
    part: u16,
    /// Holders that there are to be; 0 where nobody has said.
    holders: u16,
    /// How often that has changed.
    generation: u32,
    found: Vec<FoundHolder>,
}

#[derive(Serialize)]
struct FoundHolder {
    address: String,
    writable: bool,
    generation: u32,
    holders: u16,
    /// The last change, in hexadecimal; empty where there was none.
    change: String,
    /// An address before it that is of the same server.
    same_as: Option<String>,
}

impl HoldersArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let deadline = Duration::from_secs(self.deadline);
        let config =
            ClientConfig { deadline, security: self.security.read()?, ..ClientConfig::default() };
        check_map(&self.connect)?;
        let (client, part) = (Client::connect(&self.connect, config)?, PartId(self.part));
        if let Some(n_holders) = self.set {
            client.set_holders(part, n_holders, self.include_behind)?;
        }
        let found =
            client.holders(part)?.into_iter().map(|Holder { address, writable, told, same_as }| {
                let change = match told.generation {
                    0 => String::new(),
                    _ => format!("{:016x}", told.change),
                };
                let (generation, holders) = (told.generation, told.n_holders);
                let (address, same_as) = (address.to_string(), same_as.map(|it| it.to_string()));
                FoundHolder { address, writable, generation, holders, change, same_as }
            });
        let found: Vec<FoundHolder> = found.collect();
        let newest = found.iter().map(|it| (it.generation, it.holders)).max().unwrap_or_default();
        let (generation, holders) = newest;
        console.report(&HoldersReport { part: self.part, holders, generation, found }, text)
    }
}

/// Fails for servers that are looked up in etcd: they are shown the admin token, and whoever writes
/// there says who they are.
fn check_map(connect: &[String]) -> Result<()> {
    let Some(map) = connect.iter().find(|it| it.starts_with("etcd:")) else { return Ok(()) };
    Err(UsageError::new(format!(
        "--connect {map}: whoever can write below that prefix would be shown the admin token; name the \
         servers themselves, HOST:PORT for each"
    ))
    .into())
}

fn text(report: &HoldersReport) -> String {
    let is_newest = |it: &&FoundHolder| it.generation == report.generation;
    let mut newest = report.found.iter().filter(is_newest);
    let first = newest.next().map(|it| &it.change);
    let are_apart = newest.any(|it| Some(&it.change) != first);
    let counted = match report.holders {
        0 => "nobody has said how many holders there are to be".to_owned(),
        _ if are_apart => "holders by changes that know nothing of each other".to_owned(),
        n => {
            let (holders, change) = (human::counted(n.into(), "holder"), report.generation);
            format!("{holders} by change {change}")
        }
    };
    let found = report.found.iter().map(|it| {
        let behind =
            if it.generation < report.generation { ", left out: it may lack rows" } else { "" };
        let puts = if it.writable { "" } else { ", takes no puts" };
        let same = it.same_as.as_ref().map(|it| format!(", the same server as {it}"));
        let same = same.unwrap_or_default();
        let FoundHolder { address, generation, holders, change, .. } = it;
        let apart = match are_apart && is_newest(&it) {
            true => format!(", one of {holders} by change {generation} ({change})"),
            false => String::new(),
        };
        format!("\n  {address}{same}{puts}{behind}{apart}")
    });
    format!("partition {}: {counted}{}", report.part, found.collect::<String>())
}
