//! `lode-lab`: experiments beside the store. Figures of the papers, load on servers, traces of
//! known patterns, emulated links, and profiles of devices.
//!
//! It knows the commands of `lode` and runs servers by them. Nothing depends on it.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

mod generate_trace;
mod link_emulation;
mod load;
mod profile_device;
mod reproduce;
mod shape;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use lode_cli::console::Console;
use lode_cli::program::{self, Program};

/// Experiments with Lodestore: the papers' figures, load, traces, links and device profiles.
#[derive(Parser)]
#[command(name = "lode-lab", version = lode_cli::VERSION, propagate_version = true)]
#[command(arg_required_else_help = true)]
#[command(after_help = "\
`lode-lab COMMAND --help` shows an example of each command. Servers are those of the program `lode`
beside this one.
Exit codes: 0 done, 1 failed, 2 wrong usage, 128 + the signal that ended it. LODE_LOG=debug logs to stderr.")]
struct Cli {
    /// Print one JSON object on stdout instead of text; rates are fractions, sizes bytes, times
    /// seconds.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
#[expect(clippy::large_enum_variant, reason = "a process has one")]
enum Command {
    #[command(subcommand)]
    Reproduce(reproduce::ReproduceCommand),
    Load(load::LoadArgs),
    Shape(shape::ShapeArgs),
    GenerateTrace(generate_trace::GenerateTraceArgs),
    ProfileDevice(profile_device::ProfileDeviceArgs),
}

impl Command {
    fn run(self, console: &Console) -> Result<ExitCode> {
        let done = match self {
            Self::Reproduce(args) => args.run(console),
            // Its exit code reports lost and wrong rows.
            Self::Load(args) => return args.run(console),
            Self::Shape(args) => args.run(console),
            Self::GenerateTrace(args) => args.run(console),
            Self::ProfileDevice(args) => args.run(console),
        };
        done.map(|()| ExitCode::SUCCESS)
    }
}

fn main() -> ExitCode {
    let cli: Cli = match program::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let program = Program { name: "lode-lab", json: cli.json, starts_its_log: false };
    program.run(|console| cli.command.run(console))
}
