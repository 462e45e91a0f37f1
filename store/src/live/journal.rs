//! Which rows of a tensor were put since some moment: what a copy of its partition lacks.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use roaring::RoaringBitmap;

use crate::row::RowIdx;

/// Rows by the version that they were put for; kept only while somebody copies.
#[derive(Debug, Default)]
pub(super) struct Journal(Mutex<Option<BTreeMap<u32, RoaringBitmap>>>);

impl Journal {
    /// Notes every put that ends from now on: of one that ended before, the rows can be read.
    pub(super) fn start(&self) {
        *self.lock() = Some(BTreeMap::new());
    }

    pub(super) fn stop(&self) {
        *self.lock() = None;
    }

    /// Rows that are durable now; call it after they are.
    pub(super) fn note(&self, version: u32, rows: impl Iterator<Item = RowIdx>) {
        if let Some(noted) = &mut *self.lock() {
            noted.entry(version).or_default().extend(rows.map(|row| row.0));
        }
    }

    /// All that was noted since the start.
    pub(super) fn noted(&self) -> Vec<(u32, RoaringBitmap)> {
        self.lock().iter().flatten().map(|(&version, rows)| (version, rows.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Option<BTreeMap<u32, RoaringBitmap>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_put_between_start_and_stop_is_noted() {
        let journal = Journal::default();
        let note = |version, rows: &[u32]| {
            journal.note(version, rows.iter().map(|&row| RowIdx(row)));
        };
        note(1, &[1]);
        assert!(journal.noted().is_empty());
        journal.start();
        note(2, &[5, 6]);
        note(2, &[6, 9]);
        note(3, &[5]);
        let rows = |rows: &[u32]| rows.iter().copied().collect::<RoaringBitmap>();
        assert_eq!(journal.noted(), [(2, rows(&[5, 6, 9])), (3, rows(&[5]))]);
        journal.stop();
        note(4, &[1]);
        assert!(journal.noted().is_empty());
        journal.start();
        assert!(journal.noted().is_empty(), "a new copy begins with nothing");
    }
}
