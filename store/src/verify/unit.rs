//! Work that one thread takes in one piece.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::catalog::CatalogUnit;
use super::findings::{FileOrder, Findings};
use super::lists::Lists;
use super::rows;
use crate::segment::Segment;

/// A stretch of one file: enough for a disk to stream, little enough for all threads to share the
/// last file.
const UNIT_BYTES: u64 = 8 << 20;

/// Work on one file.
pub(super) struct Unit<'a> {
    pub(super) order: FileOrder,
    /// Bytes of the file that are done when the unit is.
    pub(super) bytes: u64,
    pub(super) work: Work<'a>,
}

pub(super) enum Work<'a> {
    /// Pages of a segment.
    Rows { segment: Arc<Segment>, pages: Range<u64> },
    /// Pieces of topology or halo.
    Lists { lists: Arc<Lists>, pieces: Range<u64> },
    /// All of a catalog.
    Catalog(CatalogUnit<'a>),
}

/// Cuts a file of `n` pages or pieces into units, at least one. The first stands for everything
/// else in the file, too, which opening has read.
pub(super) fn units<'a>(
    order: FileOrder,
    n: u64,
    file_bytes: u64,
    work: impl Fn(Range<u64>) -> Work<'a>,
) -> impl Iterator<Item = Unit<'a>> {
    let n_units = file_bytes.div_ceil(UNIT_BYTES).max(1);
    let (per_unit, bytes) = (n.div_ceil(n_units).max(1), file_bytes / n_units);
    (0..n_units).map(move |i| {
        let (start, end) = ((i * per_unit).min(n), ((i + 1) * per_unit).min(n));
        let bytes = if i == 0 { file_bytes - bytes * (n_units - 1) } else { bytes };
        Unit { order, bytes, work: work(start..end) }
    })
}

impl Unit<'_> {
    /// Reads and checks; `buffer` is the thread's, kept from unit to unit.
    pub(super) fn check(&self, findings: &Findings, buffer: &mut Vec<u8>) {
        findings.bytes.fetch_add(self.bytes, Ordering::Relaxed);
        match &self.work {
            Work::Rows { segment, pages } => {
                findings.pages.fetch_add(pages.end - pages.start, Ordering::Relaxed);
                rows::check(segment, pages.clone(), buffer, &mut |page, error| {
                    findings.add_error(self.order, segment.path(), Some(page), error);
                });
            }
            Work::Lists { lists, pieces } => {
                for piece in pieces.clone() {
                    if let Err(error) = lists.sum(piece, buffer) {
                        findings.add_error(self.order, lists.path(), None, error);
                    }
                }
            }
            Work::Catalog(unit) => unit.check(self.order, findings),
        }
    }
}
