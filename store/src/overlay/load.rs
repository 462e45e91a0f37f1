//! The index of a partition's overlay from its catalog.

use std::ops::ControlFlow;

use roaring::RoaringBitmap;

use super::{Layers, Pending};
use crate::catalog::Catalog;
use crate::error::StoreError;
use crate::row::RowIdx;
use crate::tensor::TensorSpec;

/// What a catalog holds over the segment of a tensor.
#[derive(Debug)]
pub(crate) struct LoadedOverlay {
    /// Rows of versions after the segment's, up to the committed one.
    pub(crate) frozen: Layers,
    /// Rows of the version after that.
    pub(crate) pending: Pending,
    /// The newest version with rows that a segment has taken in, and bytes of all such rows: they
    /// are garbage.
    pub(crate) folded: Option<(u32, u64)>,
}

impl LoadedOverlay {
    /// Rows of committed versions, each as often as it was put for one.
    pub(crate) fn n_committed(&self) -> u64 {
        self.frozen.sizes_at(u32::MAX).iter().map(|(_, n_rows)| n_rows).sum()
    }
}

/// Reads which rows lie over a segment of `n_rows` rows at version `base`; `committed` is the
/// partition's version.
///
/// Fails for a row that the tensor cannot have, or of a version that nobody could put for yet.
pub(crate) fn load(
    catalog: &Catalog,
    tensor: &TensorSpec,
    n_rows: u32,
    base: u32,
    committed: u32,
) -> Result<LoadedOverlay, StoreError> {
    let mut by_version: Vec<(u32, RoaringBitmap)> = Vec::new();
    let (mut folded, mut fault) = (None::<(u32, u64)>, None);
    let next = committed.saturating_add(1);
    catalog.scan_rows(&tensor.name, &mut |version, row, n_bytes| {
        if version <= base {
            let before = folded.map_or(0, |(_, n_bytes)| n_bytes);
            folded = Some((version, before + n_bytes as u64));
            return ControlFlow::Continue(());
        }
        if let Some(reason) = out_of_place(version, row, n_rows, next) {
            let (dir, tensor) = (catalog.dir().to_owned(), tensor.name.clone());
            fault = Some(StoreError::DamagedOverlay { dir, tensor, version, row, reason });
            return ControlFlow::Break(());
        }
        match by_version.last_mut() {
            Some((of, rows)) if *of == version => {
                rows.insert(row.0);
            }
            _ => by_version.push((version, RoaringBitmap::from_iter([row.0]))),
        }
        ControlFlow::Continue(())
    })?;
    if let Some(fault) = fault {
        return Err(fault);
    }
    let mut pending = RoaringBitmap::new();
    let mut frozen = Layers::default();
    for (version, rows) in by_version {
        if version > committed { pending = rows } else { frozen.push(version, rows) }
    }
    Ok(LoadedOverlay { frozen, pending: Pending { version: next, rows: pending }, folded })
}

/// Why nobody can have put this row, if so; `next` is the version that puts are for.
pub(crate) fn out_of_place(version: u32, row: RowIdx, n_rows: u32, next: u32) -> Option<String> {
    if version <= next && row.0 < n_rows {
        return None;
    }
    Some(format!("expected rows below {n_rows}, and versions up to {next} to be put"))
}
