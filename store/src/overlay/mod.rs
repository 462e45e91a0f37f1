//! Which rows lie over a segment, by version: the index of the overlay, in memory.
//!
//! Pure: it knows row numbers and versions, no files and no bytes of rows.

mod load;

use std::sync::Arc;

use roaring::RoaringBitmap;

pub(crate) use load::{LoadedOverlay, load, out_of_place};

use crate::catalog::OverlayRow;
use crate::row::RowIdx;

/// Rows of committed versions over a segment. Immutable: a change makes another, which shares what
/// stays the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers {
    /// Newest first; none is empty.
    layers: Vec<Layer>,
    /// The rows of all layers: most rows of a batch are in none, and one look tells.
    any: RoaringBitmap,
}

/// The rows put for one version.
#[derive(Clone, Debug)]
struct Layer {
    version: u32,
    rows: Arc<RoaringBitmap>,
}

/// Rows put for the version that comes after the committed one.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) version: u32,
    pub(crate) rows: RoaringBitmap,
}

impl Layers {
    pub(crate) fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The rows of all layers.
    pub(crate) fn rows(&self) -> &RoaringBitmap {
        &self.any
    }

    /// Number of rows per version, newest first.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.layers.iter().map(|layer| (layer.version, layer.rows.len()))
    }

    /// The newest version that has `row`.
    pub(crate) fn version_of(&self, row: RowIdx) -> Option<u32> {
        if !self.any.contains(row.0) {
            return None;
        }
        let layer = self.layers.iter().find(|layer| layer.rows.contains(row.0))?;
        Some(layer.version)
    }

    /// These layers and one more on top.
    ///
    /// # Panics
    /// When `version` is not above all that are there.
    pub(crate) fn with(&self, version: u32, rows: RoaringBitmap) -> Self {
        assert!(self.layers.first().is_none_or(|newest| newest.version < version), "out of order");
        if rows.is_empty() {
            return self.clone();
        }
        let any = &self.any | &rows;
        let top = Layer { version, rows: Arc::new(rows) };
        Self { layers: [top].into_iter().chain(self.layers.iter().cloned()).collect(), any }
    }

    /// The layers of versions up to `version`.
    pub(crate) fn up_to(&self, version: u32) -> Self {
        self.only(|of| of <= version)
    }

    /// The layers of versions after `version`.
    pub(crate) fn after(&self, version: u32) -> Self {
        self.only(|of| of > version)
    }

    fn only(&self, keep: impl Fn(u32) -> bool) -> Self {
        let layers: Vec<Layer> =
            self.layers.iter().filter(|layer| keep(layer.version)).cloned().collect();
        if layers.len() == self.layers.len() {
            return self.clone();
        }
        let any = layers.iter().fold(RoaringBitmap::new(), |any, layer| any | &*layer.rows);
        Self { layers, any }
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
