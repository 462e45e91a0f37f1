//! Writing a segment once, front to back, in bounded memory.

use std::path::{Path, PathBuf};

use super::footer::footer_page;
use super::header::{Page, SegmentIdentity};
use crate::checksum::PageChecksum;
use crate::device::{Device, FileWriter};
use crate::error::StoreError;
use crate::layout::{PAGE_BYTES, SegmentLayout};

/// Rows are handed to the file in pieces of this size.
const BUFFER_BYTES: usize = 1 << 20;

/// BLAKE3 of a segment's page checksum table, held in the catalog.
///
/// A page that was valid once and is stale now agrees with a stale table, never with this.
pub type SegmentDigest = [u8; 32];

/// Writes header, rows, checksum table and footer of one segment.
///
/// Memory: 1 MiB, and 4 bytes per page written (1 MiB per GiB of rows).
#[derive(Debug)]
pub struct SegmentWriter {
    path: PathBuf,
    file: Box<dyn FileWriter>,
    header: Page,
    layout: SegmentLayout,
    checksum: PageChecksum,
    buffer: Vec<u8>,
    table: Vec<u8>,
    n_bytes: u64,
}

impl SegmentWriter {
    /// Creates `path`, which must not exist.
    pub fn create(
        device: &dyn Device,
        path: &Path,
        identity: &SegmentIdentity,
    ) -> Result<Self, StoreError> {
        let layout = identity.layout().map_err(|error| StoreError::Io {
            file: path.to_owned(),
            action: "write a segment",
            source: std::io::Error::other(error),
        })?;
        let mut file = device.create(path).map_err(StoreError::io(path, "create"))?;
        let header = identity.to_page();
        file.append(&header).map_err(StoreError::io(path, "write"))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            header,
            layout,
            checksum: PageChecksum::new(identity.segment),
            buffer: Vec::with_capacity(BUFFER_BYTES),
            table: Vec::new(),
            n_bytes: 0,
        })
    }

    /// Appends whole rows, or any part of the rows' bytes; the cuts do not matter.
    ///
    /// # Panics
    /// When more bytes come than the identity promised.
    pub fn write_rows(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        self.n_bytes += bytes.len() as u64;
        assert!(self.n_bytes <= self.layout.data_bytes(), "more rows than the segment's identity");
        while !bytes.is_empty() {
            let take = bytes.len().min(BUFFER_BYTES - self.buffer.len());
            self.buffer.extend_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            if self.buffer.len() == BUFFER_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes table and footer, syncs the file, and gives the digest for the catalog.
    ///
    /// # Panics
    /// When fewer bytes came than the identity promised.
    pub fn finish(mut self) -> Result<SegmentDigest, StoreError> {
        assert_eq!(
            self.n_bytes,
            self.layout.data_bytes(),
            "fewer rows than the segment's identity"
        );
        self.buffer.resize(self.buffer.len().next_multiple_of(PAGE_BYTES as usize), 0);
        self.flush()?;
        self.table.resize(self.layout.table_bytes() as usize, 0);
        let table_crc = crc32fast::hash(&self.table);
        let footer = footer_page(&self.header, &self.layout, table_crc);
        let written = self.file.append(&self.table).and_then(|()| self.file.append(&footer));
        written.map_err(StoreError::io(&self.path, "write"))?;
        self.file.sync().map_err(StoreError::io(&self.path, "sync"))?;
        Ok(blake3::hash(&self.table).into())
    }

    /// Writes the buffered whole pages and notes their checksums.
    fn flush(&mut self) -> Result<(), StoreError> {
        for page in self.buffer.chunks_exact(PAGE_BYTES as usize) {
            let page_no = (self.table.len() / 4) as u64;
            self.table.extend_from_slice(&self.checksum.of(page_no, page).to_le_bytes());
        }
        self.file.append(&self.buffer).map_err(StoreError::io(&self.path, "write"))?;
        self.buffer.clear();
        Ok(())
    }
}
