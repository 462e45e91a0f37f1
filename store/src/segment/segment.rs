//! A segment whose header, checksum table and footer have been checked.

use std::path::{Path, PathBuf};

use super::SEGMENT_FORMAT_VERSION;
use super::footer::check_footer;
use super::header::{HeaderFault, Page, SegmentIdentity};
use super::writer::SegmentDigest;
use crate::checksum::PageChecksum;
use crate::device::{Device, FileReader};
use crate::error::StoreError;
use crate::layout::{PAGE_BYTES, SegmentLayout};
use crate::plan::{Extent, PlannedRow};

/// An open segment: everything about it is known to be sound but the rows themselves, whose pages
/// are checked with [`Segment::check_page`] whenever they are read.
#[derive(Debug)]
pub struct Segment {
    path: PathBuf,
    file: Box<dyn FileReader>,
    identity: SegmentIdentity,
    layout: SegmentLayout,
    checksum: PageChecksum,
    /// Checksum of each page.
    table: Vec<u32>,
    digest: SegmentDigest,
}

impl Segment {
    /// Opens `path` for reading and checks it against its own length and against `expected`.
    ///
    /// Holds 4 bytes of memory per page. Read-only files and mounts work.
    pub fn open(
        device: &dyn Device,
        path: &Path,
        expected: &SegmentIdentity,
    ) -> Result<Self, StoreError> {
        let file = device.open(path).map_err(StoreError::io(path, "open"))?;
        let found_bytes = file.len_bytes().map_err(StoreError::io(path, "read the length of"))?;
        if found_bytes < 2 * PAGE_BYTES {
            let (file, expected) = (path.to_owned(), 2 * PAGE_BYTES);
            return Err(StoreError::FileLength { file, expected, found: found_bytes });
        }
        let header = read_page(&*file, path, 0)?;
        let identity = SegmentIdentity::from_page(&header).map_err(|fault| match fault {
            HeaderFault::Damaged(reason) => damaged(path, "header", 0, reason),
            HeaderFault::Newer(found) => StoreError::NewerFormat {
                file: path.to_owned(),
                found,
                supported: SEGMENT_FORMAT_VERSION,
            },
        })?;
        let layout =
            identity.layout().map_err(|error| damaged(path, "header", 0, error.to_string()))?;
        if layout.file_bytes() != found_bytes {
            let (file, expected) = (path.to_owned(), layout.file_bytes());
            return Err(StoreError::FileLength { file, expected, found: found_bytes });
        }
        if let Some((field, expected, found)) = expected.difference(&identity) {
            return Err(StoreError::Misplaced { file: path.to_owned(), field, expected, found });
        }
        let footer = read_page(&*file, path, layout.footer_offset())?;
        let table_crc = check_footer(&footer, &header, &layout)
            .map_err(|reason| damaged(path, "footer", layout.footer_offset(), reason))?;
        let (table, digest) = read_table(&*file, path, &layout, table_crc)?;
        let checksum = PageChecksum::new(identity.segment);
        Ok(Self { path: path.to_owned(), file, identity, layout, checksum, table, digest })
    }

    /// Checks the bytes of one page, counted from the first row, as they were read from the file.
    ///
    /// # Panics
    /// When `page` is past the last page.
    pub fn check_page(&self, page: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let expected = self.table[page as usize];
        let found = self.checksum.of(page, bytes);
        if bytes.len() as u64 == PAGE_BYTES && expected == found {
            return Ok(());
        }
        Err(StoreError::DamagedPage { file: self.path.clone(), page, expected, found })
    }

    /// Copies rows of a plan out of what one read of their extent gave, each to its place in `out`.
    ///
    /// Every page that holds one of the rows is checked before it is used. Pages of a gap that was
    /// read through are not looked at: damage there is nobody's concern.
    ///
    /// # Panics
    /// When extent and rows are not of a plan for this layout and for an output as long as `out`.
    pub fn copy_rows(
        &self,
        extent: &Extent,
        rows: &[PlannedRow],
        bytes: &[u8],
        out: &mut [u8],
    ) -> Result<(), StoreError> {
        if bytes.len() != extent.len_bytes() {
            let source = std::io::ErrorKind::UnexpectedEof.into();
            return Err(StoreError::Io { file: self.path.clone(), action: "read", source });
        }
        let (row_bytes, page_bytes) = (self.layout.row_bytes(), PAGE_BYTES as usize);
        let mut checked = 0;
        for row in rows {
            let (start, to) = (row.offset_bytes as usize, row.out_row as usize * row_bytes);
            let end = start + row_bytes;
            // Rows come in the order of their places, so no page is checked twice.
            for page in checked.max(start / page_bytes)..end.div_ceil(page_bytes) {
                let bytes = &bytes[page * page_bytes..(page + 1) * page_bytes];
                self.check_page(extent.first_page + page as u64, bytes)?;
                checked = page + 1;
            }
            out[to..to + row_bytes].copy_from_slice(&bytes[start..end]);
        }
        Ok(())
    }

    /// Where the rows lie.
    #[must_use]
    pub fn layout(&self) -> &SegmentLayout {
        &self.layout
    }

    /// Whose rows these are.
    #[must_use]
    pub fn identity(&self) -> &SegmentIdentity {
        &self.identity
    }

    /// The file's path when it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// BLAKE3 of the page checksum table, to be compared with the catalog's.
    #[must_use]
    pub fn digest(&self) -> &SegmentDigest {
        &self.digest
    }

    /// The open file.
    #[must_use]
    pub(crate) fn file(&self) -> &dyn FileReader {
        &*self.file
    }
}

fn read_page(file: &dyn FileReader, path: &Path, offset: u64) -> Result<Page, StoreError> {
    let mut page = [0u8; PAGE_BYTES as usize];
    file.read_exact_at(&mut page, offset).map_err(StoreError::io(path, "read"))?;
    Ok(page)
}

/// Reads the checksum table, whose length was checked against the file's before.
fn read_table(
    file: &dyn FileReader,
    path: &Path,
    layout: &SegmentLayout,
    table_crc: u32,
) -> Result<(Vec<u32>, SegmentDigest), StoreError> {
    let mut bytes = vec![0u8; layout.table_bytes() as usize];
    file.read_exact_at(&mut bytes, layout.table_offset()).map_err(StoreError::io(path, "read"))?;
    let found = crc32fast::hash(&bytes);
    if found != table_crc {
        let reason = format!("checksum expected {table_crc:#010x}, found {found:#010x}");
        return Err(damaged(path, "page table", layout.table_offset(), reason));
    }
    let digest = blake3::hash(&bytes).into();
    let entries = bytes.chunks_exact(4).take(layout.n_pages() as usize);
    let table = entries.map(|e| u32::from_le_bytes([e[0], e[1], e[2], e[3]])).collect();
    Ok((table, digest))
}

fn damaged(path: &Path, section: &'static str, offset: u64, reason: String) -> StoreError {
    StoreError::DamagedSegment { file: path.to_owned(), section, offset, reason }
}
