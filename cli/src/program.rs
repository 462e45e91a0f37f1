//! The run of a command: its log, its console, and its exit code.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::console::{Console, OutputFormat};
use crate::interrupt::Interrupted;
use crate::log::{self, LogFormat, LogLevel};
use crate::usage::UsageError;

/// Threads of candle's own pool, its user included. Training is faster without the pool.
///
/// candle 0.11 spreads element-wise operations of 64 Ki elements or more over one pool for the
/// whole process. Users of the pool take turns, and its threads spin until all are done. Workers
/// that have the cores already wait there for each other, and for whatever else runs on the
/// machine. A step then takes 1.5 to 4.1 times as long (`benches/notes/training-steps.md`). The
/// pool's size is read from the environment once, and nothing else sets it.
const VARIABLE: &str = "CANDLE_NUM_THREADS";

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
            begin_without_pool();
        }
        raise_descriptor_limit();
        let format = if self.json { OutputFormat::Json } else { OutputFormat::Text };
        let console = Console::new(self.name, format);
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
    let this = env::current_exe().context("cannot find this program's file")?;
    let is_lab =
        this.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"lode-lab"));
    if !is_lab {
        return Ok(this);
    }
    let program = this.with_file_name("lode");
    if program.is_file() {
        return Ok(program);
    }
    bail!("{}: no such program; build or install `lode` beside `lode-lab`", program.display())
}

/// Raises the number of files that may be open to the most that the system allows this user: files
/// of layers and connections need more than the usual 1,024.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!("the limit of open files stays {:?}: {error}", limit.current);
    }
}

/// Begins this process again with a pool of none, unless the environment says how large it is. Must
/// be called before anything is done; continues as it is if the program's file is gone.
fn begin_without_pool() {
    let mut args = env::args_os();
    if let (None, Some(name), Ok(program)) =
        (env::var_os(VARIABLE), args.next(), env::current_exe())
    {
        // It returns only if it cannot.
        let _ = Command::new(program).arg0(name).args(args).env(VARIABLE, "1").exec();
    }
}
