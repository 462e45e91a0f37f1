//! The catalog of a partition on its way, while pairs come.

use lodestore_graph::PartId;

use super::piece;
use crate::catalog::{Catalog, Membership};
use crate::error::StoreError;

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

    /// Says of what holders the copy is one; durable when it returns.
    pub fn set_membership(&self, membership: Membership) -> Result<(), StoreError> {
        self.catalog.set_membership(membership)
    }

    /// Leaves out what came of the holders: the copy is none of them. Durable when it returns.
    pub fn forget_membership(&self) -> Result<(), StoreError> {
        self.catalog.forget_membership()
    }

    /// Moves what was written into tables and closes it.
    pub fn close(self) -> Result<(), StoreError> {
        self.catalog.flush()
    }
}
