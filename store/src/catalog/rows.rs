//! Overlay rows: rows that were put over a segment.

use std::ops::{ControlFlow, RangeInclusive};

use super::{Catalog, broken, failed, keys};
use crate::device::Change;
use crate::error::StoreError;
use crate::row::RowIdx;
use crate::tensor::TensorSpec;

/// Rows that one look-up asks for at most, and about the bytes that it brings.
const MAX_ROWS_PER_READ: usize = 1024;
const MAX_BYTES_PER_READ: usize = 4 << 20;

/// Less than this is left to RocksDB to give back in its own time.
const RECLAIM_BYTES: u64 = 64 << 20;

/// A row of the overlay, and the row of the output where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OverlayRow {
    /// Version that it was put for.
    pub version: u32,
    /// The row.
    pub row: RowIdx,
    /// Row of the output.
    pub out_row: u32,
}

impl OverlayRow {
    fn is_at_the_place_of(&self, other: &Self) -> bool {
        (self.version, self.row) == (other.version, other.row)
    }
}

/// Keys of one look-up; kept from one to the next so that their memory is.
#[derive(Debug, Default)]
pub struct RowKeys {
    keys: Vec<Vec<u8>>,
    /// Where the asked-for rows of each key start.
    starts: Vec<usize>,
}

impl Catalog {
    /// Puts rows for `version`, all of them or none, and durable when it returns. Of two rows in
    /// one place the last stays.
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

    /// Tells `each` version, row and length of every overlay row of a tensor, ascending.
    ///
    /// Reads the rows too, and so checks what the store itself has checksums for.
    pub(crate) fn scan_rows(
        &self,
        tensor: &str,
        each: &mut dyn FnMut(u32, RowIdx, usize) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let prefix = keys::rows_of(tensor);
        let mut fault = None;
        let mut pair = |key: &[u8], value: &[u8]| match keys::row_of(&key[prefix.len()..]) {
            Some((version, row)) => each(version, row, value.len()),
            None => {
                fault = Some(format!("the key {key:02x?} is none of an overlay row"));
                ControlFlow::Break(())
            }
        };
        self.pairs.scan(&prefix, &mut pair).map_err(failed(&self.dir))?;
        fault.map_or(Ok(()), |reason| Err(broken(&self.dir, reason)))
    }

    /// Copies overlay rows to their places in `out`; sorts `rows`. Each must be there and have the
    /// length of the tensor's rows.
    pub(crate) fn read_rows(
        &self,
        tensor: &TensorSpec,
        rows: &mut [OverlayRow],
        out: &mut [u8],
        scratch: &mut RowKeys,
    ) -> Result<(), StoreError> {
        rows.sort_unstable();
        let prefix = keys::rows_of(&tensor.name);
        let per_read = (MAX_BYTES_PER_READ / tensor.row_bytes()).clamp(1, MAX_ROWS_PER_READ);
        let mut rest = &*rows;
        while !rest.is_empty() {
            let taken = scratch.take(&prefix, rest, per_read);
            let (now, later) = rest.split_at(taken);
            self.read_some(tensor, now, out, scratch)?;
            rest = later;
        }
        Ok(())
    }

    /// Removes the rows of these versions, of about `n_bytes` in all: at once, and durable when it
    /// returns. Gives back the room on disk if it is much.
    pub(crate) fn remove_rows(
        &self,
        tensor: &str,
        versions: RangeInclusive<u32>,
        n_bytes: u64,
    ) -> Result<(), StoreError> {
        let (from, to) = keys::row_range(tensor, *versions.start(), *versions.end());
        self.write(&[Change::DeleteRange(from.clone(), to.clone())])?;
        if n_bytes >= RECLAIM_BYTES {
            self.pairs.reclaim(&from, &to);
        }
        Ok(())
    }

    /// One look-up: the rows that `scratch` has the keys of.
    fn read_some(
        &self,
        tensor: &TensorSpec,
        rows: &[OverlayRow],
        out: &mut [u8],
        scratch: &RowKeys,
    ) -> Result<(), StoreError> {
        let row_bytes = tensor.row_bytes();
        let (mut n_found, mut wrong_length) = (0, None);
        let mut copy = |position: usize, value: &[u8]| {
            n_found += 1;
            if value.len() != row_bytes {
                wrong_length = Some((scratch.starts[position], value.len()));
                return;
            }
            for row in scratch.rows_of(position, rows) {
                let to = row.out_row as usize * row_bytes;
                out[to..to + row_bytes].copy_from_slice(value);
            }
        };
        self.pairs.get_sorted(scratch.keys(), &mut copy).map_err(failed(&self.dir))?;
        if let Some((at, found)) = wrong_length {
            let reason = format!("expected {row_bytes} bytes, found {found}");
            return Err(self.damaged_row(tensor, rows[at], reason));
        }
        if n_found != scratch.keys().len() {
            return Err(self.missing_row(tensor, rows, scratch));
        }
        Ok(())
    }

    /// Names the first row that is not there.
    fn missing_row(
        &self,
        tensor: &TensorSpec,
        rows: &[OverlayRow],
        scratch: &RowKeys,
    ) -> StoreError {
        for (key, &start) in scratch.keys().iter().zip(&scratch.starts) {
            match self.get(key) {
                Ok(Some(_)) => {}
                Ok(None) => {
                    return self.damaged_row(tensor, rows[start], "it is not there".to_owned());
                }
                Err(error) => return error,
            }
        }
        broken(&self.dir, "rows were missing, and then were not".to_owned())
    }

    fn damaged_row(&self, tensor: &TensorSpec, row: OverlayRow, reason: String) -> StoreError {
        let (dir, tensor) = (self.dir.clone(), tensor.name.clone());
        StoreError::DamagedOverlay { dir, tensor, version: row.version, row: row.row, reason }
    }
}

impl RowKeys {
    /// Builds the keys of the first rows of the sorted `rows`, at most `n_keys` of them; gives how
    /// many rows they are for.
    fn take(&mut self, prefix: &[u8], rows: &[OverlayRow], n_keys: usize) -> usize {
        self.starts.clear();
        let mut taken = 0;
        for places in rows.chunk_by(OverlayRow::is_at_the_place_of).take(n_keys) {
            let n_before = self.starts.len();
            if self.keys.len() == n_before {
                self.keys.push(Vec::new());
            }
            let key = &mut self.keys[n_before];
            key.clear();
            key.extend_from_slice(prefix);
            keys::push_row(key, places[0].version, places[0].row);
            self.starts.push(taken);
            taken += places.len();
        }
        taken
    }

    fn keys(&self) -> &[Vec<u8>] {
        &self.keys[..self.starts.len()]
    }

    /// The asked-for rows of a key; `rows` as given to [`RowKeys::take`], cut to what it took.
    fn rows_of<'a>(&self, position: usize, rows: &'a [OverlayRow]) -> &'a [OverlayRow] {
        let end = self.starts.get(position + 1).copied().unwrap_or(rows.len());
        &rows[self.starts[position]..end]
    }
}
