//! `lode`: one binary, thin commands over the crates of Lodestore.
//!
//! A command parses and checks what was typed, calls the library, and reports. It does not know
//! formats, policies, or the wire; and nothing depends on it.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

mod candidates;
mod candle_env;
mod child_servers;
mod commands;
#[cfg(test)]
mod commit;
mod console;
mod edges;
mod fanout;
mod hints;
mod human;
mod ids;
mod interrupt;
mod link_emulation;
mod local_parts;
mod log;
mod nan;
mod partitioner;
mod policies;
mod rows;
mod scratch;
mod security_args;
mod size;
mod small_file;
mod staging;
mod table;
mod target;
mod topology;
mod traces;
mod usage;

use std::process::ExitCode;

use clap::Parser;

use crate::commands::Command;
use crate::console::Console;
use crate::interrupt::Interrupted;
use crate::log::{LogFormat, LogLevel};
use crate::usage::UsageError;

/// Graph feature store and cache server for training graph neural networks.
#[derive(Parser)]
#[command(name = "lode", version = env!("LODE_VERSION"), propagate_version = true, arg_required_else_help = true)]
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

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cli.command.computes() {
        candle_env::begin_without_pool();
    }
    let starts_its_log = cli.command.starts_its_log();
    let console = Console::new(cli.json);
    let log = match starts_its_log {
        true => Ok(()),
        false => log::start(LogLevel::default(), LogFormat::default()),
    };
    match log.and_then(|()| cli.command.run(&console)) {
        Ok(code) => code,
        Err(error) => {
            console.failed(&error);
            match error.downcast_ref::<Interrupted>() {
                Some(interrupted) => ExitCode::from(interrupted.exit_code()),
                None if error.is::<UsageError>() => ExitCode::from(2),
                None => ExitCode::FAILURE,
            }
        }
    }
}
