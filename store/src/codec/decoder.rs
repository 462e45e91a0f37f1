//! Stored groups back into rows.

use std::cell::RefCell;

use zstd::zstd_safe::{DCtx, get_error_name};

use crate::plan::PlannedRow;
use crate::row::RowIdx;

/// The bytes of one group as they lie in a segment, and what they must unpack to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredGroup<'a> {
    /// A zstd frame, or the rows themselves if it is as long as they are.
    pub(crate) stored: &'a [u8],
    pub(crate) first_row: RowIdx,
    /// Bytes of the group's rows.
    pub(crate) raw_bytes: usize,
    pub(crate) row_bytes: usize,
}

/// zstd's state and room for one group, kept for the next.
///
/// Memory: 0.2 MiB, and the longest group that it has unpacked.
pub(crate) struct GroupDecoder {
    zstd: DCtx<'static>,
    rows: Vec<u8>,
}

/// Calls `work` with the decoder of this thread.
///
/// # Panics
/// When `work` does so again.
pub(crate) fn with_decoder<T>(work: impl FnOnce(&mut GroupDecoder) -> T) -> T {
    thread_local! {
        static DECODER: RefCell<GroupDecoder> =
            RefCell::new(GroupDecoder { zstd: DCtx::create(), rows: Vec::new() });
    }
    DECODER.with_borrow_mut(work)
}

impl GroupDecoder {
    /// Copies `rows`, at least one and all of them of this group, each to its place in `out`.
    ///
    /// Whatever the stored bytes are, no more than the group's rows is unpacked. Fails with a
    /// reason when they are not a group of exactly that length.
    pub(crate) fn copy_rows(
        &mut self,
        group: &StoredGroup<'_>,
        rows: &[PlannedRow],
        out: &mut [u8],
    ) -> Result<(), String> {
        let row_bytes = group.row_bytes;
        let place = |row: &PlannedRow| row.out_row as usize * row_bytes;
        if group.stored.len() < group.raw_bytes && group.raw_bytes == row_bytes {
            // The one row of the group needs no room of its own.
            let first = place(&rows[0]);
            unpack(&mut self.zstd, group.stored, &mut out[first..first + row_bytes])?;
            for row in &rows[1..] {
                out.copy_within(first..first + row_bytes, place(row));
            }
            return Ok(());
        }
        let unpacked = self.unpacked(group)?;
        for row in rows {
            let start = (row.row.0 - group.first_row.0) as usize * row_bytes;
            let to = place(row);
            out[to..to + row_bytes].copy_from_slice(&unpacked[start..start + row_bytes]);
        }
        Ok(())
    }

    /// Returns all rows of the group.
    pub(crate) fn unpacked<'a>(&'a mut self, group: &StoredGroup<'a>) -> Result<&'a [u8], String> {
        if group.stored.len() == group.raw_bytes {
            return Ok(group.stored);
        }
        if self.rows.len() < group.raw_bytes {
            self.rows.resize(group.raw_bytes, 0);
        }
        let rows = &mut self.rows[..group.raw_bytes];
        unpack(&mut self.zstd, group.stored, rows)?;
        Ok(rows)
    }
}

fn unpack(zstd: &mut DCtx<'static>, stored: &[u8], rows: &mut [u8]) -> Result<(), String> {
    let expected = rows.len();
    match zstd.decompress(rows, stored) {
        Ok(found) if found == expected => Ok(()),
        Ok(found) => Err(format!("expected {expected} bytes of rows, found {found}")),
        Err(code) => Err(failed(code)),
    }
}

/// zstd's name for an error.
pub(super) fn failed(code: usize) -> String {
    format!("zstd: {}", get_error_name(code))
}
