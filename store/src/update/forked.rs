//! A graph open for writing, in a forked child: it is the parent's, and refuses everything.
//!
//! The child has a copy of what the writer holds in memory. The parent's next put makes it stale,
//! and the parent's threads may have held its locks. A graph that is open for reading serves the
//! child too: its files do not change, and its catalog opens again by itself.

use super::{GraphHandle, OpenMode};
use crate::error::StoreError;

impl GraphHandle {
    /// Fails in a child of the process that opened the graph for writing; waits for no lock.
    pub(crate) fn check_process(&self) -> Result<(), StoreError> {
        if self.mode == OpenMode::Read || self.process.is_current() {
            return Ok(());
        }
        Err(StoreError::Forked { dir: self.graph.dir().to_owned() })
    }
}
