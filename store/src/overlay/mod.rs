//! Which rows lie over a segment, and at which version: the index of the overlay, in memory.
//!
//! Pure: it knows row numbers and versions, no files and no bytes of rows.

mod load;
mod runs;

use std::collections::BTreeMap;
use std::sync::Arc;

use roaring::RoaringBitmap;

pub(crate) use load::{LoadedOverlay, load, out_of_place};

use crate::catalog::OverlayRow;
use crate::row::RowIdx;
use runs::Runs;

/// Rows of committed versions over a segment. It grows with every commit; whoever sees an earlier
/// version looks at the same rows and says up to which version.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers {
    runs: Runs,
    /// The rows of all versions: most rows of a batch are in none, and one look tells.
    any: RoaringBitmap,
    /// Versions and their numbers of rows, oldest first; none is empty.
    sizes: Vec<(u32, u64)>,
}

/// Rows put for the version that comes after the committed one.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) version: u32,
    pub(crate) rows: RoaringBitmap,
}

impl Layers {
    /// Whether no version up to `newest` has rows.
    pub(crate) fn is_empty_at(&self, newest: u32) -> bool {
        self.sizes.first().is_none_or(|(oldest, _)| *oldest > newest)
    }

    /// Number of rows of each version up to `newest`, oldest first.
    pub(crate) fn sizes_at(&self, newest: u32) -> &[(u32, u64)] {
        &self.sizes[..self.sizes.partition_point(|(version, _)| *version <= newest)]
    }

    /// Number of rows that any version up to `newest` has.
    pub(crate) fn n_rows_at(&self, newest: u32) -> u64 {
        if self.sizes.last().is_none_or(|(last, _)| *last <= newest) {
            return self.any.len();
        }
        let mut rows = RoaringBitmap::new();
        self.runs.for_each(|row, version| {
            if version <= newest {
                rows.insert(row);
            }
        });
        rows.len()
    }

    /// The newest version up to `newest` that has `row`.
    pub(crate) fn version_of(&self, row: RowIdx, newest: u32) -> Option<u32> {
        if !self.any.contains(row.0) {
            return None;
        }
        self.runs.version_of(row.0, newest)
    }

    /// Adds the rows of a version on top.
    ///
    /// # Panics
    /// When `version` is not above all that are there.
    pub(crate) fn push(&mut self, version: u32, rows: RoaringBitmap) {
        assert!(self.sizes.last().is_none_or(|(newest, _)| *newest < version), "out of order");
        if rows.is_empty() {
            return;
        }
        self.any |= &rows;
        self.sizes.push((version, rows.len()));
        self.runs.push(version, Arc::new(rows));
    }

    /// The rows of versions after `version`.
    pub(crate) fn after(&self, version: u32) -> Self {
        let mut kept: BTreeMap<u32, RoaringBitmap> = BTreeMap::new();
        if self.sizes.last().is_some_and(|(newest, _)| *newest > version) {
            self.runs.for_each(|row, of| {
                if of > version {
                    kept.entry(of).or_default().insert(row);
                }
            });
        }
        let mut layers = Self::default();
        kept.into_iter().for_each(|(version, rows)| layers.push(version, rows));
        layers
    }
}

/// Moves the rows that `version_of` knows out of `rows` into `overlaid`.
pub(crate) fn split(
    rows: &mut Vec<(RowIdx, u32)>,
    overlaid: &mut Vec<OverlayRow>,
    version_of: impl Fn(RowIdx) -> Option<u32>,
) {
    rows.retain(|&(row, out_row)| match version_of(row) {
        Some(version) => {
            overlaid.push(OverlayRow { version, row, out_row });
            false
        }
        None => true,
    });
}

#[cfg(test)]
mod tests;
