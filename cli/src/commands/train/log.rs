//! What each worker did in each step, one JSON object a line.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use lodestore_trainer::WorkerStep;

/// A file of lines; the last ones are there after [`StepLog::finish`].
pub(super) struct StepLog {
    path: PathBuf,
    file: BufWriter<File>,
}

impl StepLog {
    /// Begins the file anew.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| cannot("create", path))?;
        Ok(Self { path: path.to_owned(), file: BufWriter::new(file) })
    }

    /// A line for each worker's step.
    pub(super) fn write(&mut self, steps: &[WorkerStep]) -> Result<()> {
        for step in steps {
            let line = serde_json::to_vec(step)?;
            let written = self.file.write_all(&line).and_then(|()| self.file.write_all(b"\n"));
            written.with_context(|| cannot("write to", &self.path))?;
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<()> {
        self.file.flush().with_context(|| cannot("write to", &self.path))
    }
}

fn cannot(action: &str, path: &Path) -> String {
    format!("cannot {action} the log {}", path.display())
}
