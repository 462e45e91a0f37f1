//! Row groups of a segment, unpacked to see whether it can be.

use std::ops::Range;

use super::segment::Segment;
use crate::codec::with_decoder;
use crate::error::StoreError;
use crate::layout::{DATA_OFFSET, RowGroups};
use crate::limits::{MAX_EXTENT_BYTES, PAGE_BYTES};

impl Segment {
    /// Reads and unpacks row groups; `fault` receives the first page of each that fails, and why.
    /// Does not check pages; does nothing for a raw segment.
    ///
    /// Memory: 1 MiB in `buffer`, or the longest group where that is more.
    pub(crate) fn check_groups(
        &self,
        range: Range<u32>,
        buffer: &mut Vec<u8>,
        fault: &mut dyn FnMut(u64, StoreError),
    ) {
        let Some(groups) = self.layout.groups() else { return };
        let (mut group, range_end) = (range.start, range.end.min(groups.n_groups()));
        while group < range_end {
            let end = end_of_read(groups, group).min(range_end);
            let (start, stop) = (groups.span(group).start, groups.span(end - 1).end);
            let n_bytes = (stop - start) as usize;
            buffer.resize(n_bytes.max(buffer.len()), 0);
            match self.file.read_exact_at(&mut buffer[..n_bytes], DATA_OFFSET + start) {
                Ok(()) => self.unpack_groups(groups, group..end, &buffer[..n_bytes], fault),
                Err(error) => fault(start / PAGE_BYTES, StoreError::io(&self.path, "read")(error)),
            }
            group = end;
        }
    }

    fn unpack_groups(
        &self,
        groups: &RowGroups,
        range: Range<u32>,
        bytes: &[u8],
        fault: &mut dyn FnMut(u64, StoreError),
    ) {
        let base = groups.span(range.start).start;
        with_decoder(|decoder| {
            for group in range {
                let span = groups.span(group);
                let stored = &bytes[(span.start - base) as usize..(span.end - base) as usize];
                if let Err(reason) = decoder.unpacked(&self.stored_group(groups, group, stored)) {
                    fault(span.start / PAGE_BYTES, self.damaged_group(group, reason));
                }
            }
        });
    }
}

/// Returns the end of the groups from `first` on that one read of about 1 MiB takes; at least one.
fn end_of_read(groups: &RowGroups, first: u32) -> u32 {
    let limit = groups.span(first).start + MAX_EXTENT_BYTES;
    let mut end = first + 1;
    while end < groups.n_groups() && groups.span(end).end <= limit {
        end += 1;
    }
    end
}
