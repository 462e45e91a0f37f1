//! Output for the user: text or one JSON object on stdout, progress on a terminal's stderr.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use thiserror::Error;

use crate::advice::command_against;

/// The error of a process that has already reported it to the first one, which prints it.
#[derive(Debug, Error)]
#[error("reported to the first process of the run")]
pub struct AlreadyReported;

/// Form of the answer on stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    Text,
    Json,
}

/// The one way to stdout and to the progress bar.
pub struct Console {
    /// The program's name, which begins its messages of errors.
    name: &'static str,
    format: OutputFormat,
    bar: ProgressBar,
    /// Whether the answer has been printed; with JSON it is the only object.
    has_answered: AtomicBool,
}

/// A report and how long it took.
#[derive(Serialize)]
pub(crate) struct TimedReport<R> {
    #[serde(flatten)]
    pub(crate) report: R,
    pub(crate) seconds: f64,
}

impl Console {
    /// Makes a console of the program `name` for text or JSON. The bar shows only where stderr is a
    /// terminal.
    pub fn new(name: &'static str, format: OutputFormat) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        Self { name, format, bar, has_answered: AtomicBool::new(false) }
    }

    /// Prints nothing: another process reports this one's work.
    pub fn silent() -> Self {
        Self { bar: ProgressBar::hidden(), ..Self::new("", OutputFormat::Json) }
    }

    /// Returns whether one JSON object is wanted.
    pub fn is_json(&self) -> bool {
        self.format == OutputFormat::Json
    }

    /// Prints the command's answer: `report` as JSON, or `text` made from it.
    pub fn report<T: Serialize>(&self, report: &T, text: impl FnOnce(&T) -> String) -> Result<()> {
        self.bar.finish_and_clear();
        self.has_answered.store(true, Ordering::Relaxed);
        let text = if self.is_json() { serde_json::to_string(report)? } else { text(report) };
        Ok(print(&text)?)
    }

    /// Prints a line of text ahead of the answer; nothing when JSON is wanted.
    pub fn line(&self, text: &str) -> Result<()> {
        if self.is_json() {
            return Ok(());
        }
        Ok(self.bar.suspend(|| print(text))?)
    }

    /// Fails when the reader of our output has left, so that unread output is not computed.
    pub fn check_reader(&self) -> Result<()> {
        let stdout = io::stdout();
        let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
        // A poll that fails says nothing of the reader.
        if poll(&mut polled, Some(&Timespec::default())).is_ok()
            && polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
        {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        }
        Ok(())
    }

    /// Starts a stage whose length is not known.
    pub fn stage(&self, name: &str) {
        // In this order: each call may draw, and must not draw the bar of the stage before.
        self.bar.set_style(style("{spinner} {msg} {elapsed}"));
        self.bar.set_message(name.to_owned());
        self.bar.set_prefix("");
        self.bar.unset_length();
        self.bar.reset();
        // A stage that reports nothing must not look dead; hidden bars need no thread.
        if !self.bar.is_hidden() {
            self.bar.enable_steady_tick(Duration::from_millis(120));
        }
    }

    /// Starts a stage; the returned function takes what is done of what there is to do.
    pub fn progress<'a>(&'a self, name: &'a str) -> impl FnMut(u64, u64) + 'a {
        self.stage(name);
        move |done, total| self.at(name, done, total)
    }

    /// Shows how far stage `name` is; another name starts another stage.
    pub fn at(&self, name: &str, done: u64, total: u64) {
        if self.bar.message() != name {
            self.stage(name);
        }
        if self.bar.length() != Some(total) {
            self.bar.set_length(total);
            self.bar
                .set_style(style("{spinner} {msg} {wide_bar} {prefix} {percent:>3} % {eta:>4}"));
        }
        self.bar.set_position(done);
    }

    /// Shows `text` beside the progress of the stage; `text` is not computed without a terminal.
    pub fn detail(&self, text: impl FnOnce() -> String) {
        if !self.bar.is_hidden() {
            self.bar.set_prefix(text());
        }
    }

    /// Says why the command failed: on stderr, and as the JSON object if one is wanted and none has
    /// been printed.
    pub fn failed(&self, error: &anyhow::Error) {
        self.bar.finish_and_clear();
        if is_broken_pipe(error) || error.is::<AlreadyReported>() {
            return;
        }
        let mut message = message(error);
        if let Some(hint) = hint(&message) {
            message = format!("{message}; {hint}");
        }
        if let Some(command) = command_against(error, &message) {
            message = format!("{message}: {command}");
        }
        eprintln!("{}: {message}", self.name);
        if self.is_json() && !self.has_answered.load(Ordering::Relaxed) {
            // A reader that closed stdout does not want it.
            let _ = print(&serde_json::json!({ "error": message }).to_string());
        }
    }
}

/// Returns an error with its causes, less those that an outer message already ends with.
fn message(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if message.is_empty() {
            message = cause;
        } else if !message.contains(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    message
}

/// Returns whether the reader of the output has left, as `head` does.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Prints a line on stdout.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")?;
    stdout.flush()
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Messages of the system, and the hint for each.
const HINTS: [(&str, &str); 5] = [
    ("No space left on device", "make room on that disk, or choose another, and try again"),
    ("Disk quota exceeded", "make room within the quota, or choose another disk, and try again"),
    ("Read-only file system", "mount it writable, or work on a copy of the graph"),
    ("Permission denied", "run as the owner of the graph, or change its permissions"),
    ("Too many open files", "raise the limit of open files (`ulimit -n`) and try again"),
];

/// Returns the hint for an error with this message, if it is one of the system's refusals.
///
/// By message, since RocksDB passes them on as text.
fn hint(message: &str) -> Option<&'static str> {
    HINTS.iter().find(|(refusal, _)| message.contains(refusal)).map(|&(_, hint)| hint)
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::anyhow;
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn causes_are_reported_once() {
        let error = anyhow!("disk full").context("a.npy: cannot write: disk full");
        assert_eq!(message(&error), "a.npy: cannot write: disk full");
        let error = anyhow!("disk full").context("import failed");
        assert_eq!(message(&error), "import failed: disk full");
    }

    #[test]
    fn the_system_speaks_as_expected() {
        let refusals = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::ACCESS, Errno::MFILE];
        for (errno, (_, expected)) in refusals.into_iter().zip(HINTS) {
            assert_eq!(hint(&io::Error::from(errno).to_string()), Some(expected));
        }
        assert_eq!(hint("damaged page 3"), None);
    }
}
