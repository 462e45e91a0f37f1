//! A segment whose header, tables and footer have been checked.

use std::path::{Path, PathBuf};

use super::header::SegmentIdentity;
use super::writer::SegmentDigest;
use crate::checksum::PageChecksum;
use crate::codec::SegmentCodec;
use crate::error::StoreError;
use crate::file_system::FileReader;
use crate::layout::SegmentLayout;
use crate::limits::PAGE_BYTES;

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
}
