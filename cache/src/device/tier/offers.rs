//! Rows that come beside batches: offered, or read anew.

use super::super::{DeviceError, RowMove};
use super::DeviceTier;

impl DeviceTier {
    /// Offers rows beside a batch: those that [`DeviceTier::wanted`] asked for, or a hot set.
    /// `rows` has the row of each id, back to back, as it is in the current epoch. A resident row
    /// of an older epoch is written over.
    ///
    /// Fails when the device does.
    ///
    /// # Panics
    ///
    /// Unless there is exactly one row per id.
    pub fn offer(&mut self, ids: &[u32], rows: &[u8]) -> Result<(), DeviceError> {
        self.check_rows(ids, rows);
        self.admit_all(ids);
        self.load(rows)
    }

    /// Decides which of these rows of the current epoch stay.
    pub(crate) fn admit_all(&mut self, ids: &[u32]) {
        self.stamps.clear();
        self.stamps.resize(ids.len(), self.residents.epoch());
        self.misses.clear();
        self.misses.extend(0..ids.len() as u32);
        self.admit_misses(ids);
    }

    /// Writes the current epoch's rows over those of `ids` that are resident, whatever their
    /// stamps. For the periodic synchronisation of rows that change.
    ///
    /// Fails when the device does.
    ///
    /// # Panics
    ///
    /// Unless there is exactly one row per id.
    pub fn refresh(&mut self, ids: &[u32], rows: &[u8]) -> Result<(), DeviceError> {
        self.check_rows(ids, rows);
        self.residents.refresh(ids, &mut self.placements);
        self.load(rows)
    }

    /// Copies what was admitted from host memory to its slots.
    pub(crate) fn load(&mut self, rows: &[u8]) -> Result<(), DeviceError> {
        self.memory.check_not_lost()?; // also when there is nothing to copy
        let row_bytes = self.row_bytes();
        for placements in self.placements.chunks(self.memory.staging_rows()) {
            let staging = self.memory.staging()?.chunks_exact_mut(row_bytes);
            self.moves.clear();
            for ((from, placed), row) in (0..).zip(placements).zip(staging) {
                row.copy_from_slice(&rows[placed.position as usize * row_bytes..][..row_bytes]);
                self.moves.push(RowMove { from, to: placed.slot });
            }
            self.memory.keep_staged(&self.moves)?;
        }
        Ok(())
    }

    pub(crate) fn check_rows(&self, ids: &[u32], rows: &[u8]) {
        let row_bytes = self.row_bytes();
        assert!(
            ids.len().checked_mul(row_bytes) == Some(rows.len()),
            "{} rows of {row_bytes} bytes do not fill {} bytes",
            ids.len(),
            rows.len(),
        );
    }
}
