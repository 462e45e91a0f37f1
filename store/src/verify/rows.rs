//! Pages of rows, and the row groups in them.

use std::ops::Range;

use crate::error::StoreError;
use crate::layout::PAGE_BYTES;
use crate::limits::MAX_EXTENT_BYTES;
use crate::plan::Extent;
use crate::segment::Segment;

/// Checks the pages `pages`, and the row groups that start in them; `fault` is told each page that
/// is damaged. Groups are looked at where all pages are sound.
///
/// Memory: 1 MiB in `buffer`, or the longest group where that is more.
pub(super) fn check(
    segment: &Segment,
    pages: Range<u64>,
    buffer: &mut Vec<u8>,
    fault: &mut dyn FnMut(u64, StoreError),
) {
    let mut all_sound = true;
    check_pages(segment, pages.clone(), buffer, &mut |page, error| {
        all_sound = false;
        fault(page, error);
    });
    let Some(groups) = segment.layout().groups() else { return };
    let groups = groups.starting_in(pages.start * PAGE_BYTES..pages.end * PAGE_BYTES);
    let Some(last) = groups.clone().last() else { return };
    // The last group may end in pages that are another stretch's to report.
    let end = segment.layout().groups().map_or(0, |groups| groups.span(last).end);
    let rest = pages.end..end.div_ceil(PAGE_BYTES).max(pages.end);
    check_pages(segment, rest, buffer, &mut |_, _| all_sound = false);
    if all_sound {
        segment.check_groups(groups, buffer, fault);
    }
}

fn check_pages(
    segment: &Segment,
    pages: Range<u64>,
    buffer: &mut Vec<u8>,
    fault: &mut dyn FnMut(u64, StoreError),
) {
    let pages_per_read = MAX_EXTENT_BYTES / PAGE_BYTES;
    for first_page in pages.clone().step_by(pages_per_read as usize) {
        let n_pages = pages_per_read.min(pages.end - first_page) as u32;
        let extent = Extent { first_page, n_pages };
        buffer.resize(extent.len_bytes().max(buffer.len()), 0);
        let bytes = &mut buffer[..extent.len_bytes()];
        match segment.file().read_exact_at(bytes, extent.offset_bytes()) {
            Ok(()) => {
                let pages = (first_page..).zip(bytes.chunks_exact(PAGE_BYTES as usize));
                for (page, bytes) in pages {
                    segment.check_page(page, bytes).unwrap_or_else(|error| fault(page, error));
                }
            }
            Err(error) => fault(first_page, StoreError::io(segment.path(), "read")(error)),
        }
    }
}
