//! Progress and warnings of an import.

use std::io;
use std::path::Path;

/// The caller's view of an import while it runs.
pub trait Observer {
    /// Receives the name of a stage that begins.
    fn stage(&mut self, name: &str) {
        let _ = name;
    }

    /// Receives the rows that a stage has done, and those in all.
    fn progress(&mut self, stage: &str, done: u64, total: u64) {
        let _ = (stage, done, total);
    }

    /// Receives a folder that exists until the import ends; a process that ends before should
    /// remove it. An error ends the import.
    fn staged(&mut self, dir: &Path) -> io::Result<()> {
        let _ = dir;
        Ok(())
    }

    /// Returns whether the import is to end before its next stage.
    fn is_cancelled(&self) -> bool {
        false
    }

    /// Receives a warning for people.
    fn warn(&mut self, message: &str) {
        let _ = message;
    }
}

/// An observer that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}
