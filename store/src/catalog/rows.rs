//! Pending rows: rows that were put and are not committed yet.

use std::ops::ControlFlow;

use super::{Catalog, broken, failed, keys};
use crate::error::StoreError;
use crate::file_system::Change;
use crate::row::RowIdx;

/// Less than this is left to RocksDB to give back in its own time.
const RECLAIM_BYTES: u64 = 64 << 20;

impl Catalog {
    /// Puts rows for `version`, all of them or none, and durable when it returns. The last of two
    /// rows in one place stays.
    pub(crate) fn put_rows<'a>(
        &self,
        tensor: &str,
        version: u32,
        rows: impl IntoIterator<Item = (RowIdx, &'a [u8])>,
    ) -> Result<(), StoreError> {
        let prefix = keys::rows_of(tensor);
        let change = |(row, bytes): (RowIdx, &[u8])| {
            let mut key = prefix.clone();
            keys::push_row(&mut key, version, row);
            Change::Put(key, bytes.to_vec())
        };
        self.write(&rows.into_iter().map(change).collect::<Vec<_>>())
    }

    /// Calls `each` with row and bytes of every row that was put for `version`, ascending, until it
    /// breaks.
    pub(crate) fn scan_pending(
        &self,
        tensor: &str,
        version: u32,
        each: &mut dyn FnMut(RowIdx, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        self.scan_pending_from(tensor, version, RowIdx(0), each)
    }

    /// Scans as [`Catalog::scan_pending`], from a row of the version on.
    pub(crate) fn scan_pending_from(
        &self,
        tensor: &str,
        version: u32,
        first: RowIdx,
        each: &mut dyn FnMut(RowIdx, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let (prefix, mut from) = (keys::rows_of_version(tensor, version), keys::rows_of(tensor));
        keys::push_row(&mut from, version, first);
        let mut fault = None;
        let mut pair = |key: &[u8], value: &[u8]| {
            let Some(suffix) = key.strip_prefix(&prefix[..]) else { return ControlFlow::Break(()) };
            match keys::row_number(suffix) {
                Some(row) => each(row, value),
                None => {
                    fault = Some(format!("the key {key:02x?} is none of a pending row"));
                    ControlFlow::Break(())
                }
            }
        };
        self.pairs.scan_from(&from, &mut pair).map_err(failed(&self.dir))?;
        fault.map_or(Ok(()), |reason| Err(broken(&self.dir, reason)))
    }

    /// Returns the first version after `version` that rows of a tensor were put for; `None` where
    /// there is none. Reads one key.
    pub(crate) fn first_put_after(
        &self,
        tensor: &str,
        version: u32,
    ) -> Result<Option<u32>, StoreError> {
        let Some(next) = version.checked_add(1) else { return Ok(None) };
        let prefix = keys::rows_of(tensor);
        let mut found = None;
        let mut pair = |key: &[u8], _: &[u8]| {
            found = key.strip_prefix(&prefix[..]).map(keys::row_of);
            ControlFlow::Break(())
        };
        let from = keys::rows_of_version(tensor, next);
        self.pairs.scan_from(&from, &mut pair).map_err(failed(&self.dir))?;
        match found {
            None => Ok(None),
            Some(Some((version, _))) => Ok(Some(version)),
            Some(None) => {
                let reason = format!("a key of a pending row of `{tensor}` cannot be read");
                Err(broken(&self.dir, reason))
            }
        }
    }

    /// Lets RocksDB return the room of rows that were removed, of about `n_bytes` in all.
    pub(crate) fn reclaim_rows(&self, tensor: &str, version: u32, n_bytes: u64) {
        if n_bytes >= RECLAIM_BYTES {
            let (from, to) = keys::row_range(tensor, 0, version);
            self.pairs.reclaim(&from, &to);
        }
    }
}
