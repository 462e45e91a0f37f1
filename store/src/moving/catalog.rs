//! The catalog of a partition on its way, while pairs come.

use lodestore_graph::PartId;

use super::piece;
use crate::catalog::Catalog;
use crate::error::StoreError;
use crate::follow::Manifest;

/// Its catalog while pairs come.
#[derive(Debug)]
pub struct ArrivingCatalog {
    pub(super) part: PartId,
    pub(super) catalog: Catalog,
}

impl ArrivingCatalog {
    /// Writes the pairs of a piece, durable when it returns.
    ///
    /// Fails for what is no piece, and for pairs that no catalog has.
    pub fn write(&self, mut bytes: &[u8]) -> Result<(), StoreError> {
        let mut pairs = Vec::new();
        while !bytes.is_empty() {
            let Some((key, value)) = piece::take(&mut bytes) else {
                let reason = "a piece of its catalog is cut off".to_owned();
                return Err(StoreError::MoveRefused { part: self.part, reason });
            };
            pairs.push((key, value));
        }
        self.catalog.write_copied(&pairs)
    }

    /// Names the files of a manifest, all of which have come, and its version.
    pub fn install(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let (records, deltas) = manifest.records();
        self.catalog.replace_records(&records, &deltas, manifest.version)
    }

    /// Moves what was written into tables and closes it.
    pub fn close(self) -> Result<(), StoreError> {
        self.catalog.flush()
    }
}
