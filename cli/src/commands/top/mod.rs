//! `lode top`: a running server, live in a terminal.

mod fetch;
mod screen;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lodestore_client::Address;

use crate::console::Console;
use crate::security_args::read_token;
use fetch::fetch;
use screen::screen;

/// Clears a terminal and puts the cursor to its top.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Show what a running server does: shards, hit rates, queues, latencies.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode serve my-graph --metrics 127.0.0.1:9171 &
  lode top 127.0.0.1:9171

The address is that of --metrics. The first look shows averages since the server started, later ones what
has happened since the look before. Ctrl-C ends it; without a terminal, with --once and with --json it
looks once.")]
pub(crate) struct TopArgs {
    /// Address of the server's metrics, HOST:PORT.
    #[arg(value_parser = metrics_address)]
    address: Address,
    /// Look once.
    #[arg(long)]
    once: bool,
    /// Seconds from one look to the next.
    #[arg(long, value_name = "SECONDS", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
    /// File with the token that a metrics port on another address than loopback wants, readable by
    /// its owner alone.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl TopArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let address = &self.address;
        let token = self.token_file.as_deref().map(read_token).transpose()?;
        let fetch = |address: &Address| fetch(address, token.as_ref());
        let mut before = fetch(address)?;
        if self.once || console.is_json() || !std::io::stdout().is_terminal() {
            return console.report(&before, |now| screen(address, now, None));
        }
        show(&screen(address, &before, None))?;
        loop {
            std::thread::sleep(Duration::from_secs(self.every));
            match fetch(address) {
                Ok(now) => {
                    show(&screen(address, &now, Some(&before)))?;
                    before = now;
                }
                Err(error) => {
                    let old = screen(address, &before, None);
                    show(&format!("{error:#}\nThe figures below are old.\n\n{old}"))?;
                }
            }
        }
    }
}

/// Returns an address that HTTP can be spoken to.
fn metrics_address(text: &str) -> Result<Address, String> {
    match text.parse() {
        Ok(Address::Unix(_)) => Err("metrics are had over TCP: HOST:PORT".to_owned()),
        Ok(address) => Ok(address),
        Err(error) => Err(error.to_string()),
    }
}

fn show(text: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{CLEAR}{text}")?;
    stdout.flush()
}
