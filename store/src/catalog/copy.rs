//! The copy of `graph.toml` that each catalog keeps, for the day that the file is lost.

use super::{Catalog, keys};
use crate::device::Change;
use crate::error::StoreError;

impl Catalog {
    /// Keeps `text`, that of a `graph.toml`.
    pub(crate) fn put_graph_copy(&self, text: &str) -> Result<(), StoreError> {
        self.write(&[Change::Put(keys::GRAPH_COPY.to_vec(), text.as_bytes().to_vec())])
    }

    /// The text that is kept; `None` in a catalog of a release that kept none.
    pub(crate) fn graph_copy(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.get(keys::GRAPH_COPY)
    }
}
