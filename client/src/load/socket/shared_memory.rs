//! Rows of a load that are copied out of memory of the server, as a trainer would.

use lodestore_schema::limits::LENT_FOR;

use super::{Check, LoadSocket};
use crate::load::tally::LoadError;
use crate::shared_memory::SharedMemory;

impl LoadSocket {
    /// Copies a chunk out of the shared memory, as a trainer would.
    pub(super) fn take_shared(
        &mut self,
        offset: usize,
        n_bytes: usize,
        n_rows: usize,
        check: &mut Check<'_>,
    ) -> Result<(), LoadError> {
        let is_within = |memory: &&SharedMemory| {
            memory.len().checked_sub(offset).is_some_and(|left| n_bytes <= left)
        };
        let memory = self.shared.as_ref().filter(is_within).ok_or(LoadError::Wire)?;
        self.taken.resize(n_bytes, 0);
        memory.copy_to(offset, &mut self.taken);
        self.has_taken(n_rows, check)
    }

    /// Copies rows from where the server keeps them, as a trainer would; their slots have come.
    pub(super) fn take_lent(
        &mut self,
        row_bytes: usize,
        check: &mut Check<'_>,
    ) -> Result<(), LoadError> {
        let slots = self.read_buffer.take(self.body_left).as_chunks().0;
        let n_rows = slots.len();
        self.taken.resize(n_rows * row_bytes, 0);
        let tier = self.tier.as_ref().ok_or(LoadError::Wire)?;
        let gathered = tier.gather(slots, row_bytes, 0..n_rows, &mut self.taken);
        gathered.map_err(|_| LoadError::Wire)?;
        if self.asked.front().is_some_and(|ask| ask.sent.elapsed() > LENT_FOR) {
            return Err(LoadError::Broken);
        }
        (self.body_left, self.is_lent) = (0, false);
        self.has_taken(n_rows, check)
    }

    /// Takes the next rows of the first request, which are in `taken`.
    fn has_taken(&mut self, n_rows: usize, check: &mut Check<'_>) -> Result<(), LoadError> {
        let ask = self.asked.front_mut().ok_or(LoadError::Wire)?;
        if !ask.ids.is_empty() {
            check(&ask.ids[ask.n_come..ask.n_come + n_rows], &self.taken);
        }
        ask.n_come += n_rows;
        Ok(())
    }
}
