//! The commands of `lode`, and what its programs share: the console, signals, arguments and tables.
//!
//! A command parses and checks its arguments, calls the library, and reports. It does not know
//! formats, policies, or the wire. Only `lode` and `lode-lab` depend on this crate.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]
#![allow(
    missing_docs,
    reason = "fields of arguments and reports are described where they are printed"
)]

mod advice;
mod candidates;
pub mod child_servers;
pub mod commands;
#[cfg(test)]
mod commit;
pub mod console;
pub mod flags;
pub mod human;
mod ids;
pub mod interrupt;
mod local_parts;
pub mod log;
pub mod outputs;
pub mod program;
mod rows;
mod scratch;
pub mod security_args;
pub mod small_file;
mod staging;
pub mod table;
mod target;
pub mod traces;
pub mod usage;

use std::process::ExitCode;

use clap::Parser;

use crate::commands::Command;
use crate::program::Program;

/// Version and commit of the source tree.
pub const VERSION: &str = env!("LODE_VERSION");

/// Graph feature store and cache server for training graph neural networks.
#[derive(Parser)]
#[command(name = "lode", version = VERSION, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = "\
Start with `lode quickstart`; `lode COMMAND --help` shows an example of each command.
Exit codes: 0 done, 1 failed, 2 wrong usage, 128 + the signal that ended it. LODE_LOG=debug logs to stderr.")]
struct Cli {
    /// Print one JSON object on stdout instead of text; rates are fractions, sizes bytes, times
    /// seconds.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

/// Runs `lode` with the arguments of the process.
#[must_use]
pub fn main() -> ExitCode {
    let cli: Cli = match program::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let program =
        Program { name: "lode", json: cli.json, starts_its_log: cli.command.starts_its_log() };
    program.run(|console| cli.command.run(console))
}
