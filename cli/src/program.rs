//! The run of a command: its log, its console, and its exit code.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::console::{Console, OutputFormat, print};
use crate::interrupt::Interrupted;
use crate::log::{self, LogFormat, LogLevel};
use crate::usage::UsageError;

/// The flag that shows all flags of a command.
const HELP_ALL: &str = "--help-all";

/// Words of the standard library for a text that is no number without a sign.
const NO_DIGIT: &str = "invalid digit found in string";

/// Words for it in a message to a user.
const EXPECTED_NUMBER: &str = "expected a whole number from 0 on";

/// Parses the arguments of the process. Where they are wrong, or ask for a help text, it is printed,
/// and the exit code comes back; with `--json` an error is one JSON object too.
///
/// # Errors
/// The exit code of a process that has nothing left to do.
pub fn parse<P: Parser>() -> Result<P, ExitCode> {
    let mut command = with_negative_numbers(<P as CommandFactory>::command());
    let mut arguments: Vec<OsString> = env::args_os().collect();
    if arguments.iter().any(|argument| argument == HELP_ALL) {
        arguments.iter_mut().filter(|it| *it == HELP_ALL).for_each(|it| *it = "--help".into());
    } else {
        command = with_groups_hidden(command);
    }
    let matches = command.try_get_matches_from_mut(arguments);
    let parsed = matches.and_then(|mut matches| P::from_arg_matches_mut(&mut matches));
    let error = match parsed {
        Ok(parsed) => return Ok(parsed),
        Err(error) => error.format(&mut command),
    };
    let text = error.render().to_string();
    if error.kind() == ErrorKind::ValueValidation && text.contains(NO_DIGIT) {
        eprint!("{}", text.replace(NO_DIGIT, EXPECTED_NUMBER));
    } else {
        // A reader that has left does not want it.
        let _ = error.print();
    }
    if error.use_stderr() && env::args_os().any(|argument| argument == "--json") {
        let _ = print(&serde_json::json!({ "error": summary(&text) }).to_string());
    }
    Err(ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)))
}

/// Leaves the flags that have a heading of their own out of help texts, which name the headings.
fn with_groups_hidden(command: clap::Command) -> clap::Command {
    let mut headings: Vec<String> = Vec::new();
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        if let Some(heading) = argument.get_help_heading()
            && headings.iter().all(|known| known != heading)
        {
            headings.push(heading.to_owned());
        }
    }
    let command = command.mut_args(hidden_in_group).mut_subcommands(with_groups_hidden);
    if headings.is_empty() {
        return command;
    }
    let mut text = format!("{HELP_ALL} has more flags:\n");
    for heading in headings {
        text.push_str(&format!("  {heading}\n"));
    }
    if let Some(after) = command.get_after_help() {
        text.push_str(&format!("\n{after}"));
    }
    command.after_help(text)
}

fn hidden_in_group(argument: clap::Arg) -> clap::Arg {
    let is_hidden = argument.is_hide_set() || argument.get_help_heading().is_some();
    argument.hide(is_hidden)
}

/// Has each flag with a value take negative numbers, so that one out of range is reported as that and
/// not as an unknown flag.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    command.mut_args(allow_negative_number).mut_subcommands(with_negative_numbers)
}

fn allow_negative_number(argument: clap::Arg) -> clap::Arg {
    if argument.is_positional() || !argument.get_action().takes_values() {
        return argument;
    }
    argument.allow_negative_numbers(true)
}

/// Returns the message of a parser's error in one line, without the usage that follows it.
fn summary(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let ends = ["\n\nUsage:", "\n\nFor more information"].map(|end| text.find(end));
    let end = ends.into_iter().flatten().min().unwrap_or(text.len());
    let message = text[..end].replace(NO_DIGIT, EXPECTED_NUMBER);
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A program, and how its command runs.
pub struct Program {
    /// The name that begins its messages of errors.
    pub name: &'static str,
    /// Whether it prints one JSON object on stdout.
    pub json: bool,
    /// Whether the command starts the log itself, once it knows its level and format.
    pub starts_its_log: bool,
}

impl Program {
    /// Runs the command, and returns its exit code: 1 after an error, 2 after one of usage, and
    /// 128 + the signal that ended it.
    pub fn run(self, command: impl FnOnce(&Console) -> Result<ExitCode>) -> ExitCode {
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
