//! A segment whose header, tables and footer have been checked.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::header::SegmentIdentity;
use super::writer::SegmentDigest;
use crate::checksum::PageChecksum;
use crate::codec::{SegmentCodec, with_decoder};
use crate::error::StoreError;
use crate::file_system::FileReader;
use crate::layout::{DATA_OFFSET, RowGroups, SegmentLayout};
use crate::limits::{MAX_EXTENT_BYTES, PAGE_BYTES};

/// An open segment: everything about it is known to be sound but the rows themselves, whose pages
/// are checked with [`Segment::check_page`] whenever they are read.
#[derive(Debug)]
pub struct Segment {
    pub(super) path: PathBuf,
    pub(super) file: Box<dyn FileReader>,
    pub(super) identity: SegmentIdentity,
    pub(super) layout: SegmentLayout,
    pub(super) checksum: PageChecksum,
    /// Checksum of each page.
    pub(super) table: Vec<u32>,
    pub(super) digest: SegmentDigest,
    /// The rows of a delta, ascending; empty in a segment that has every row.
    pub(super) listed: Box<[u32]>,
}

impl Segment {
    /// Checks the bytes of one page, counted from the first row, as they were read from the file.
    ///
    /// # Panics
    /// When `page` is past the last page.
    pub fn check_page(&self, page: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let found = self.checksum.of(page, bytes);
        if bytes.len() as u64 == PAGE_BYTES {
            return self.check_sum(page, found);
        }
        Err(self.damaged_page(page, found))
    }

    /// Checks the checksum of one page.
    pub(crate) fn check_sum(&self, page: u64, found: u32) -> Result<(), StoreError> {
        if self.table[page as usize] == found {
            return Ok(());
        }
        Err(self.damaged_page(page, found))
    }

    fn damaged_page(&self, page: u64, found: u32) -> StoreError {
        let expected = self.table[page as usize];
        StoreError::DamagedPage { file: self.path.clone(), page, expected, found }
    }

    /// Returns where the rows lie.
    #[must_use]
    pub fn layout(&self) -> &SegmentLayout {
        &self.layout
    }

    /// Returns how the rows are stored.
    #[must_use]
    pub fn codec(&self) -> SegmentCodec {
        self.layout.groups().map_or(SegmentCodec::Raw, |groups| SegmentCodec::Zstd {
            group_rows: groups.group_rows(),
        })
    }

    /// Returns the identity, which says whose rows these are.
    #[must_use]
    pub fn identity(&self) -> &SegmentIdentity {
        &self.identity
    }

    /// Returns the rows that a delta holds, ascending: row `i` of the file is this row of the
    /// partition. Empty for a segment that has every row.
    #[must_use]
    pub fn listed_rows(&self) -> &[u32] {
        &self.listed
    }

    /// Returns the file's path when it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the BLAKE3 of the tables, to be compared with the catalog's.
    #[must_use]
    pub fn digest(&self) -> &SegmentDigest {
        &self.digest
    }

    /// Returns the open file.
    #[must_use]
    pub(crate) fn file(&self) -> &dyn FileReader {
        &*self.file
    }

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
