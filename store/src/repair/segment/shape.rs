//! How much there is of a segment, and which of its pages pass.

use std::ops::Range;

use crate::codec::SegmentCodec;
use crate::layout::{Sections, SegmentLayout};
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
