//! The run of a command: its log, its console, and its exit code.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::candle_env;
use crate::console::Console;
use crate::interrupt::Interrupted;
use crate::log::{self, LogFormat, LogLevel};
use crate::usage::UsageError;

/// A program, and how its command runs.
pub struct Program {
    /// The name that begins its messages of errors.
    pub name: &'static str,
    /// Whether it prints one JSON object on stdout.
    pub json: bool,
    /// Whether the command computes a model.
    pub computes: bool,
    /// Whether the command starts the log itself, once it knows its level and format.
    pub starts_its_log: bool,
}

impl Program {
    /// Runs the command, and returns its exit code: 1 after an error, 2 after one of usage, and
    /// 128 + the signal that ended it.
    pub fn run(self, command: impl FnOnce(&Console) -> Result<ExitCode>) -> ExitCode {
        if self.computes {
            candle_env::begin_without_pool();
        }
        let console = Console::new(self.name, self.json);
        let log = match self.starts_its_log {
            true => Ok(()),
            false => log::start(LogLevel::default(), LogFormat::default()),
        };
        match log.and_then(|()| command(&console)) {
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
}

/// Returns the file of `lode`: this program, or the one beside it where this is `lode-lab`.
///
/// # Errors
/// There is no `lode` beside `lode-lab`.
pub fn lode_program() -> Result<PathBuf> {
    let this = std::env::current_exe().context("cannot find this program's file")?;
    if this.file_name() != Some("lode-lab".as_ref()) {
        return Ok(this);
    }
    let program = this.with_file_name("lode");
    if program.is_file() {
        return Ok(program);
    }
    bail!("{}: no such program; build or install `lode` beside `lode-lab`", program.display())
}
