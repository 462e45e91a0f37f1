//! Times of each worker in each step, one JSON object a line.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use lodestore_trainer::RowVersions;
use lodestore_trainer::step::WorkerStep;
use serde::Serialize;

/// Begin of every line.
const BEGIN: &[u8] = b"{\"epoch\":";
/// More than any line has.
const MAX_LINE_BYTES: u64 = 1 << 16;

/// A file of lines. Those of a step are there when it is reported.
#[derive(Debug)]
pub(super) struct StepLog {
    path: PathBuf,
    file: File,
    /// Lines of a run that this one continues from stay, and more follow.
    resumes: bool,
    has_begun: bool,
    versions: RowVersions,
    lines: Vec<u8>,
}

/// A line.
#[derive(Serialize)]
struct LogLine<'a> {
    #[serde(flatten)]
    step: &'a WorkerStep,
    /// The versions of its rows.
    versions: RowVersions,
}

impl StepLog {
    /// Opens the file, and leaves what it has: the run may yet be refused, and the lines another's.
    /// One that has any is an error, unless the run `resumes`.
    pub(super) fn open(path: &Path, resumes: bool, versions: RowVersions) -> Result<Self> {
        let options = OpenOptions::new().read(true).append(true).create(true).open(path);
        let file = options.with_context(|| cannot("open", path))?;
        let (path, lines) = (path.to_owned(), Vec::new());
        let log = Self { path, file, resumes, has_begun: false, versions, lines };
        log.check()?;
        Ok(log)
    }

    /// Writes a line for each worker's step.
    pub(super) fn write(&mut self, steps: &[WorkerStep]) -> Result<()> {
        if !self.has_begun {
            self.check()?;
            self.cut_half_line()?;
            self.has_begun = true;
        }
        self.lines.clear();
        for step in steps {
            let line = LogLine { step, versions: self.versions };
            serde_json::to_writer(&mut self.lines, &line)?;
            self.lines.push(b'\n');
        }
        self.file.write_all(&self.lines).with_context(|| cannot("write to", &self.path))
    }

    fn check(&self) -> Result<()> {
        let n_bytes = self.file.metadata().with_context(|| cannot("measure", &self.path))?.len();
        if n_bytes > 0 && !self.resumes {
            bail!(
                "the log {} has lines already; name another file, or remove it (only --resume \
                 adds to a log)",
                self.path.display()
            );
        }
        Ok(())
    }

    /// Cuts off what a process that was killed wrote of its last line.
    fn cut_half_line(&mut self) -> Result<()> {
        let tail = self.tail().with_context(|| cannot("read", &self.path))?;
        let half =
            tail.iter().rposition(|&byte| byte == b'\n').map_or(&tail[..], |at| &tail[at + 1..]);
        if half.is_empty() {
            return Ok(());
        }
        let n_begin = half.len().min(BEGIN.len());
        if half[..n_begin] != BEGIN[..n_begin] {
            let path = self.path.display();
            bail!("{path} does not end as a log of steps does; name another file");
        }
        let n_bytes = self.file.metadata().map(|metadata| metadata.len());
        let cut = n_bytes.and_then(|n_bytes| self.file.set_len(n_bytes - half.len() as u64));
        cut.with_context(|| cannot("cut", &self.path))
    }

    /// Returns the last bytes.
    fn tail(&mut self) -> io::Result<Vec<u8>> {
        let (n_bytes, mut tail) = (self.file.metadata()?.len(), Vec::new());
        if n_bytes > 0 {
            self.file.seek(SeekFrom::Start(n_bytes.saturating_sub(MAX_LINE_BYTES)))?;
            (&self.file).take(MAX_LINE_BYTES).read_to_end(&mut tail)?;
        }
        Ok(tail)
    }
}

fn cannot(action: &str, path: &Path) -> String {
    format!("cannot {action} the log {}", path.display())
}
