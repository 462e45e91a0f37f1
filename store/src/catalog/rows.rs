//! Pending rows: rows that were put and are not committed yet.

use std::ops::{ControlFlow, RangeInclusive};

use super::{Catalog, broken, keys};
use crate::error::StoreError;
use crate::file_system::Change;
use crate::row::RowIdx;

/// Less than this is left to RocksDB to give back in its own time.
const RECLAIM_BYTES: u64 = 64 << 20;

impl Catalog {
    /// Puts rows for `version`, all of them or none, and durable when it returns. The last of two
    /// rows in one place stays. The number of the put, if it has one, is recorded with them.
    pub(crate) fn put_rows<'a>(
        &self,
        tensor: &str,
        version: u32,
        rows: impl IntoIterator<Item = (RowIdx, &'a [u8])>,
        id: Option<u128>,
    ) -> Result<(), StoreError> {
        let change = |(row, bytes): (RowIdx, &[u8])| {
            Change::Put(keys::row(tensor, version, row), bytes.to_vec())
        };
        let id = id.map(|id| Change::Put(keys::put_id(version, id), Vec::new()));
        self.write(&rows.into_iter().map(change).chain(id).collect::<Vec<_>>())
    }

    /// Returns the version that the put of this number was for, of these versions; `None` where
    /// there was none.
    pub(crate) fn version_of_put(
        &self,
        id: u128,
        versions: RangeInclusive<u32>,
    ) -> Result<Option<u32>, StoreError> {
        for version in versions.rev() {
            if self.get(&keys::put_id(version, id))?.is_some() {
                return Ok(Some(version));
            }
        }
        Ok(None)
    }

    /// Calls `each` with row and bytes of every row that was put for `version`, from `first` on and
    /// ascending, until it breaks or fails.
    pub(crate) fn scan_pending(
        &self,
        tensor: &str,
        version: u32,
        first: RowIdx,
        mut each: impl FnMut(RowIdx, &[u8]) -> Result<ControlFlow<()>, StoreError>,
    ) -> Result<(), StoreError> {
        let prefix = keys::of_version(keys::ROWS, tensor, version);
        self.scan_from(&keys::row(tensor, version, first), |key, value| {
            let Some(suffix) = key.strip_prefix(&prefix[..]) else {
                return Ok(ControlFlow::Break(()));
            };
            let reason = || format!("the key {key:02x?} is none of a pending row");
            let row = keys::number(suffix).ok_or_else(|| broken(&self.dir, reason()))?;
            each(RowIdx(row), value)
        })
    }

    /// Returns the first version after `version` that rows of a tensor were put for; `None` where
    /// there is none. Reads one key.
    pub(crate) fn first_put_after(
        &self,
        tensor: &str,
        version: u32,
    ) -> Result<Option<u32>, StoreError> {
        let Some(next) = version.checked_add(1) else { return Ok(None) };
        let prefix = keys::of_tensor(keys::ROWS, tensor);
        let mut found = None;
        self.scan_from(&keys::of_version(keys::ROWS, tensor, next), |key, _| {
            if let Some(suffix) = key.strip_prefix(&prefix[..]) {
                let reason = || format!("a key of a pending row of `{tensor}` cannot be read");
                let row = keys::row_of(suffix).ok_or_else(|| broken(&self.dir, reason()))?;
                found = Some(row.0);
            }
            Ok(ControlFlow::Break(()))
        })?;
        Ok(found)
    }

    /// Lets RocksDB return the room of rows that were removed, of about `n_bytes` in all.
    pub(crate) fn reclaim_rows(&self, tensor: &str, version: u32, n_bytes: u64) {
        if n_bytes >= RECLAIM_BYTES {
            let (from, to) = keys::row_range(tensor, 0, version);
            self.pairs.reclaim(&from, &to);
        }
    }
}
