//! Pages of data on their way to a file, each with its checksum.

use std::path::{Path, PathBuf};

use super::header::Page;
use crate::checksum::PageChecksum;
use crate::error::StoreError;
use crate::file_system::{FileSystem, FileWriter};
use crate::limits::PAGE_BYTES;

/// Alignment of the pieces in which data is handed to the file. The page cache can hold each as one
/// huge page, which makes maps of the file faster.
const PIECE_BYTES: usize = 2 << 20;

/// The front of a segment file that is being written: header, then whole pages of data.
///
/// Memory: 2 MiB, and 4 bytes per page written (1 MiB per GiB of data).
#[derive(Debug)]
pub(super) struct PageWriter {
    path: PathBuf,
    file: Box<dyn FileWriter>,
    checksum: PageChecksum,
    buffer: Vec<u8>,
    /// Bytes that the buffer takes until it ends at a multiple of [`PIECE_BYTES`] in the file.
    piece_bytes: usize,
    table: Vec<u8>,
}

impl PageWriter {
    /// Creates `path`, which must not exist, with this header.
    pub(super) fn create(
        device: &dyn FileSystem,
        path: &Path,
        header: &Page,
        checksum: PageChecksum,
    ) -> Result<Self, StoreError> {
        let mut file = device.create(path).map_err(StoreError::io(path, "create"))?;
        file.append(header).map_err(StoreError::io(path, "write"))?;
        let (path, piece_bytes) = (path.to_owned(), PIECE_BYTES - header.len());
        Ok(Self { path, file, checksum, buffer: Vec::new(), piece_bytes, table: Vec::new() })
    }

    /// Appends data.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            let take = bytes.len().min(self.piece_bytes - self.buffer.len());
            self.buffer.extend_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            if self.buffer.len() == self.piece_bytes {
                self.flush()?;
                self.piece_bytes = PIECE_BYTES;
            }
        }
        Ok(())
    }

    /// Pads the last page with zeros and writes it; returns the padded table of page checksums.
    pub(super) fn finish_data(&mut self) -> Result<Vec<u8>, StoreError> {
        self.buffer.resize(self.buffer.len().next_multiple_of(PAGE_BYTES as usize), 0);
        self.flush()?;
        let mut table = std::mem::take(&mut self.table);
        table.resize(table.len().next_multiple_of(PAGE_BYTES as usize), 0);
        Ok(table)
    }

    /// Writes what comes after the data, and syncs the file.
    pub(super) fn seal(mut self, tables: &[u8], footer: &Page) -> Result<(), StoreError> {
        let written = self.file.append(tables).and_then(|()| self.file.append(footer));
        written.map_err(StoreError::io(&self.path, "write"))?;
        self.file.sync().map_err(StoreError::io(&self.path, "sync"))
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
