//! Tensors that come and go, as a catalog records them.

use std::collections::BTreeSet;

use super::{Catalog, SegmentRecord, keys};
use crate::error::StoreError;
use crate::file_system::Change;

/// Kinds of records that a tensor may have.
const KINDS: [&[u8]; 5] =
    [keys::SEGMENTS, keys::DELTAS, keys::PREPARED_DELTAS, keys::NEW_SEGMENTS, keys::LOST];

impl Catalog {
    /// Records the segment of a tensor that `graph.toml` does not list yet; durable when it
    /// returns.
    pub(crate) fn stage_tensor(
        &self,
        tensor: &str,
        version: u32,
        record: &SegmentRecord,
    ) -> Result<(), StoreError> {
        let put = keys::put(keys::NEW_SEGMENTS, tensor, version, record.to_bytes());
        self.write(&[self.format_change()?, put])
    }

    /// Makes the new segments of `tensors` ones like any other, and keeps `graph_text`, that of
    /// `graph.toml`: all of it or nothing. Writes nothing where nothing changes.
    pub(crate) fn settle_tensors(
        &self,
        graph_text: &str,
        tensors: &[&str],
    ) -> Result<(), StoreError> {
        let mut changes = Vec::new();
        for tensor in tensors {
            let prefix = keys::of_tensor(keys::NEW_SEGMENTS, tensor);
            self.scan(&prefix, |key, value| {
                let settled = keys::of_tensor(keys::SEGMENTS, tensor);
                let settled = [&settled, &key[prefix.len()..]].concat();
                changes.push(Change::Delete(key.to_vec()));
                changes.push(Change::Put(settled, value.to_vec()));
                Ok(())
            })?;
        }
        // Catalogs of older releases keep no text.
        let copy = self.graph_copy()?;
        if copy.is_some_and(|copy| copy != graph_text.as_bytes()) {
            changes.push(Change::Put(keys::GRAPH_COPY.to_vec(), graph_text.as_bytes().to_vec()));
        }
        if changes.is_empty() { Ok(()) } else { self.write(&changes) }
    }

    /// Removes all records and pending rows of a tensor, and keeps `graph_text`: all of it or
    /// nothing. Returns the files that the records named.
    pub(crate) fn forget_tensor(
        &self,
        tensor: &str,
        graph_text: &str,
    ) -> Result<Vec<String>, StoreError> {
        let mut changes = Vec::new();
        let mut files = BTreeSet::new();
        for kind in KINDS {
            self.scan(&keys::of_tensor(kind, tensor), |key, value| {
                changes.push(Change::Delete(key.to_vec()));
                let is_delta = kind == keys::DELTAS || kind == keys::PREPARED_DELTAS;
                // What cannot be read names no file.
                let record = if is_delta { value.get(4..).unwrap_or_default() } else { value };
                files.extend(SegmentRecord::from_bytes(record).map(|record| record.file));
                Ok(())
            })?;
        }
        let (from, to) = keys::row_range(tensor, 0, u32::MAX);
        changes.push(Change::DeleteRange(from, to));
        if self.graph_copy()?.is_some() {
            changes.push(Change::Put(keys::GRAPH_COPY.to_vec(), graph_text.as_bytes().to_vec()));
        }
        self.write(&changes)?;
        Ok(files.into_iter().collect())
    }

    /// Returns the tensors that have a segment or a delta here, listed in `graph.toml` or not.
    pub(crate) fn tensor_names(&self) -> Result<BTreeSet<String>, StoreError> {
        let mut names = BTreeSet::new();
        for kind in KINDS {
            self.scan(kind, |key, _| {
                names.extend(keys::tensor_of(kind, key).map(|(tensor, _)| tensor.to_owned()));
                Ok(())
            })?;
        }
        Ok(names)
    }
}
