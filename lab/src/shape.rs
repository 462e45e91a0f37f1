//! `lode-lab shape`: a link of a given rate and delay before a server.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::link_emulation::{Front, LinkSpec, ShapedServer, parse_delay, parse_rate};
use lode_cli::console::Console;
use lode_cli::human;
use lode_cli::interrupt::{EndOfStdin, stop_signal, wait_for_stop};
use lode_cli::security_args::SecurityArgs;

/// Put a link that behaves like a network before a server: a rate and a delay in each direction.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode serve graph --listen 127.0.0.1:7171
  lode-lab shape 127.0.0.1:7171 --at 127.0.0.2 --rate 1Gbit --delay 500us
  lode train graph --connect 127.0.0.2:7171

All connections to the server share the link, as they would share its network card. Whole chunks of 64
KiB at most travel together, and each costs two more copies and two wake-ups of this machine's processors.")]
pub(crate) struct ShapeArgs {
    /// Address of the server: HOST:PORT or unix:PATH.
    address: String,
    /// Where clients find it: another address of this machine, on the server's own ports, such as
    /// 127.0.0.2; or unix:PATH.
    #[arg(long, value_name = "IP or unix:PATH")]
    at: Front,
    /// Bits per second, in each direction.
    #[arg(long, default_value = "10Gbit", value_name = "RATE", value_parser = parse_rate)]
    rate: f64,
    /// Time from one end to the other.
    #[arg(long, default_value = "100us", value_name = "TIME", value_parser = parse_delay)]
    delay: Duration,
    #[command(flatten)]
    security: SecurityArgs,
    /// End when stdin does.
    #[arg(long)]
    exit_with_stdin: bool,
}

/// Output of `--json` when clients may connect.
#[derive(Serialize)]
struct ShapeReport {
    address: String,
    server: String,
    #[serde(flatten)]
    spec: LinkSpec,
}

impl ShapeArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        // Before the first thread starts: a signal must find its handler from now on.
        let end_of_stdin =
            if self.exit_with_stdin { EndOfStdin::Stops } else { EndOfStdin::Ignored };
        let stop = stop_signal(end_of_stdin)?;
        let spec = LinkSpec { rate_bits: self.rate, delay: self.delay };
        let shaped = ShapedServer::start(&self.address, self.security.read()?, &self.at, spec)?;
        let report =
            ShapeReport { address: shaped.address().to_string(), server: self.address, spec };
        console.report(&report, text)?;
        wait_for_stop(stop)?;
        let [to_server, to_client] = shaped.n_bytes();
        let passed = (human::bytes(to_server), human::bytes(to_client));
        console.line(&format!("{} to the server, {} to clients", passed.0, passed.1))
    }
}

fn text(report: &ShapeReport) -> String {
    let ShapeReport { address, server, spec } = report;
    format!(
        "{server} is at {address}, {} Mbit/s and {:.0} us away",
        spec.rate_bits / 1e6,
        spec.delay.as_secs_f64() * 1e6,
    )
}
