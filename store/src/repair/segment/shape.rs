//! How much there is of a segment, by its pages and by its row groups.

use std::ops::Range;

use zstd::zstd_safe::{find_frame_compressed_size, get_frame_content_size};

use super::sums::read_some;
use crate::codec::SegmentCodec;
use crate::file_system::FileReader;
use crate::layout::{DATA_OFFSET, Sections, SegmentLayout};
use crate::limits::PAGE_BYTES;
use crate::segment::SegmentIdentity;

/// Returns the number of pages of rows of a compressed segment that has this length, `most` at
/// most.
pub(super) fn pages_of(file_bytes: u64, n_groups: u32, most: u64) -> u64 {
    let length =
        |n_pages| Sections { data_bytes: n_pages * PAGE_BYTES, n_groups, n_listed: 0 }.file_bytes();
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low) / 2;
        if length(middle) < file_bytes { low = middle + 1 } else { high = middle }
    }
    low
}

/// Returns the layout that tables describe; `None` when they contradict the rows or the pages.
pub(super) fn layout(
    identity: &SegmentIdentity,
    codec: SegmentCodec,
    n_pages: u64,
    tables: &[u8],
) -> Option<SegmentLayout> {
    let (n_rows, row_bytes) = (identity.n_rows, identity.tensor.row_bytes());
    let SegmentCodec::Zstd { group_rows } = codec else {
        return SegmentLayout::new(n_rows, row_bytes).ok();
    };
    let index = tables.get((n_pages * 4).next_multiple_of(PAGE_BYTES) as usize..)?;
    let lengths = index.as_chunks::<4>().0.iter().map(|length| u32::from_le_bytes(*length));
    let lengths = lengths.take(n_rows.div_ceil(group_rows) as usize);
    let layout = SegmentLayout::grouped(n_rows, row_bytes, group_rows, lengths).ok()?;
    (layout.n_pages() == n_pages).then_some(layout)
}

/// Runs of pages whose checksum is not that of the table.
pub(super) fn lost_pages(sums: &[u32], tables: &[u8]) -> Vec<Range<u64>> {
    let entries = tables.as_chunks::<4>().0.iter().map(|entry| u32::from_le_bytes(*entry));
    let mut lost: Vec<Range<u64>> = Vec::new();
    for (page, _) in (0..).zip(sums.iter().zip(entries)).filter(|(_, (sum, entry))| *sum != entry) {
        match lost.last_mut() {
            Some(run) if run.end == page => run.end += 1,
            _ => lost.push(page..page + 1),
        }
    }
    lost
}

/// Index entries that the groups of a file imply.
pub(super) struct Followed {
    /// Padded index of their lengths.
    pub(super) index: Vec<u8>,
    /// Bytes of all of them.
    pub(super) data_bytes: u64,
}

/// Follows the stored groups from one to the next, `group_rows` rows each; `None` when they lead
/// past byte `data_end` of the rows.
///
/// A group is a zstd frame that is shorter than its rows, or the rows themselves. A found entry is
/// a guess until a witness confirms it: rows that look like such a frame are taken for one.
pub(super) fn follow_groups(
    file: &dyn FileReader,
    identity: &SegmentIdentity,
    group_rows: u32,
    data_end: u64,
) -> Option<Followed> {
    let row_bytes = identity.tensor.row_bytes() as u64;
    let mut buffer = vec![0; (u64::from(group_rows) * row_bytes) as usize];
    let (mut index, mut data_bytes, mut row) = (Vec::new(), 0, 0);
    while row < identity.n_rows {
        let n_rows = group_rows.min(identity.n_rows - row);
        let rows_bytes = u64::from(n_rows) * row_bytes;
        let n_bytes = rows_bytes.min(data_end.checked_sub(data_bytes)?) as usize;
        let bytes = &mut buffer[..n_bytes];
        read_some(file, DATA_OFFSET + data_bytes, bytes);
        let stored_bytes = frame_bytes(bytes, rows_bytes).unwrap_or(rows_bytes);
        index.extend_from_slice(&(stored_bytes as u32).to_le_bytes());
        data_bytes += stored_bytes;
        row += n_rows;
    }
    index.resize(index.len().next_multiple_of(PAGE_BYTES as usize), 0);
    (data_bytes <= data_end).then_some(Followed { index, data_bytes })
}

/// Returns the length of the frame that `bytes` start with, if it is of `rows_bytes` bytes and
/// shorter.
fn frame_bytes(bytes: &[u8], rows_bytes: u64) -> Option<u64> {
    let content_bytes = get_frame_content_size(bytes).ok().flatten()?;
    let frame_bytes = find_frame_compressed_size(bytes).ok()? as u64;
    (content_bytes == rows_bytes && frame_bytes < rows_bytes).then_some(frame_bytes)
}
