//! The catalog of a partition on its way.

use super::piece;
use crate::catalog::Catalog;
use crate::error::StoreError;
use crate::follow::Manifest;
use crate::graph::Graph;
use crate::import::EXTERNAL_ID_TENSOR;
use crate::row::RowIdx;

/// Versions after the committed one that rows may be pending for: the next one, and while a commit
/// is under way the one after that.
const VERSIONS_AHEAD: u32 = 2;

/// The catalog of a partition on its way: it names the files that have come, and takes pending
/// rows.
#[derive(Debug)]
pub struct ArrivingCatalog {
    /// The graph that has come.
    pub(super) graph: Graph,
    pub(super) catalog: Catalog,
}

impl ArrivingCatalog {
    /// Names the files of a manifest, all of which have come, and its version.
    pub fn install(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let (records, deltas) = manifest.records();
        self.catalog.take_over(&records, &deltas, manifest.version, &manifest.commits)
    }

    /// Puts a piece of the pending rows of the source, which are over the version of `manifest`;
    /// durable when it returns.
    ///
    /// Fails with [`StoreError::MoveRefused`] for bytes that are no such piece, and for rows that
    /// this partition cannot have.
    pub fn put(&self, manifest: &Manifest, mut bytes: &[u8]) -> Result<(), StoreError> {
        let (tensors, range) = (&self.graph.meta().tensors, self.graph.book().range(manifest.part));
        let (n_rows, version) = (range.end - range.start, manifest.version);
        let row_bytes = |tensor: u16| Some(tensors.get(usize::from(tensor))?.row_bytes());
        while !bytes.is_empty() {
            let stretch = piece::take(&mut bytes, row_bytes).filter(|stretch| {
                let versions = version.saturating_add(1)..=version.saturating_add(VERSIONS_AHEAD);
                let are_here = stretch.rows.iter().all(|row| *row < n_rows);
                let name = &tensors[usize::from(stretch.tensor)].name;
                versions.contains(&stretch.version) && are_here && name != EXTERNAL_ID_TENSOR
            });
            let Some(piece::RowStretch { tensor, version, rows, bytes }) = stretch else {
                let reason = "its pending rows came cut off, or are of no tensor, row or version that it \
                              may have; nothing has changed, move it again";
                let (part, reason) = (manifest.part, reason.to_owned());
                return Err(StoreError::MoveRefused { part, reason });
            };
            let spec = &tensors[usize::from(tensor)];
            let rows =
                rows.iter().map(|row| RowIdx(*row)).zip(bytes.chunks_exact(spec.row_bytes()));
            self.catalog.put_rows(&spec.name, version, rows)?;
        }
        Ok(())
    }

    /// Moves what was written into tables and closes it.
    pub fn close(self) -> Result<(), StoreError> {
        self.catalog.flush()
    }
}
