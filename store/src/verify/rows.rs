//! Pages of rows, and the row groups in them.

use std::ops::Range;

use crate::error::StoreError;
use crate::layout::DATA_OFFSET;
use crate::limits::PAGE_BYTES;
use crate::segment::Segment;

/// Pages that are read together: they stay in a core's cache until they have been checked.
const PAGES_PER_READ: u64 = 64;

/// Checks the pages `pages`, and the row groups that start in them; `fault` receives each page that
/// is damaged. Groups are looked at where all of their pages are sound.
///
/// Memory: 256 KiB in `buffer`; 1 MiB for groups, or the longest group where that is more.
pub(super) fn check(
    segment: &Segment,
    pages: Range<u64>,
    buffer: &mut Vec<u8>,
    fault: &mut dyn FnMut(u64, StoreError),
) {
    let mut damaged = Vec::new();
    check_pages(segment, pages.clone(), buffer, &mut |page, error| {
        damaged.push(page);
        fault(page, error);
    });
    let Some(all) = segment.layout().groups() else { return };
    let groups = all.starting_in(pages.start * PAGE_BYTES..pages.end * PAGE_BYTES);
    let Some(last) = groups.clone().last() else { return };
    // The last group may end in pages that are another stretch's to report.
    let end = all.span(last).end;
    let rest = pages.end..end.div_ceil(PAGE_BYTES).max(pages.end);
    check_pages(segment, rest, buffer, &mut |page, _| damaged.push(page));
    let mut first = groups.start;
    if !damaged.is_empty() {
        for group in groups.clone() {
            let span = all.span(group);
            let its = span.start / PAGE_BYTES..span.end.div_ceil(PAGE_BYTES);
            if damaged.iter().any(|page| its.contains(page)) {
                segment.check_groups(first..group, buffer, fault);
                first = group + 1;
            }
        }
    }
    segment.check_groups(first..groups.end, buffer, fault);
}

fn check_pages(
    segment: &Segment,
    pages: Range<u64>,
    buffer: &mut Vec<u8>,
    fault: &mut dyn FnMut(u64, StoreError),
) {
    buffer.resize(buffer.len().max((PAGES_PER_READ * PAGE_BYTES) as usize), 0);
    for first in pages.clone().step_by(PAGES_PER_READ as usize) {
        let end = pages.end.min(first + PAGES_PER_READ);
        if check_read(segment, first..end, buffer, fault).is_err() {
            // Whatever cannot be read is one page or few: the others are still looked at.
            for page in first..end {
                let read = check_read(segment, page..page + 1, buffer, fault);
                read.unwrap_or_else(|error| fault(page, error));
            }
        }
    }
}

/// Reads pages together and checks each; fails when they cannot be read.
fn check_read(
    segment: &Segment,
    pages: Range<u64>,
    buffer: &mut [u8],
    fault: &mut dyn FnMut(u64, StoreError),
) -> Result<(), StoreError> {
    let bytes = &mut buffer[..((pages.end - pages.start) * PAGE_BYTES) as usize];
    let read = segment.file().read_exact_at(bytes, DATA_OFFSET + pages.start * PAGE_BYTES);
    read.map_err(StoreError::io(segment.path(), "read"))?;
    for (page, bytes) in pages.zip(bytes.chunks_exact(PAGE_BYTES as usize)) {
        segment.check_page(page, bytes).unwrap_or_else(|error| fault(page, error));
    }
    Ok(())
}
