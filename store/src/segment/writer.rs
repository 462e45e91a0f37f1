//! Writing a segment once, front to back, in bounded memory.

use std::io;
use std::path::{Path, PathBuf};

use super::header::{Page, SegmentIdentity};
use crate::checksum::PageChecksum;
use crate::codec::{GroupEncoder, SegmentCodec};
use crate::error::StoreError;
use crate::file_system::{FileSystem, FileWriter};
use crate::layout::{Sections, SegmentLayout};
use crate::limits::PAGE_BYTES;

/// Alignment of the pieces in which data is handed to the file. The page cache can hold each as one
/// huge page, which makes maps of the file faster.
const PIECE_BYTES: usize = 2 << 20;

/// BLAKE3 of a segment's tables, held in the catalog: page checksums, and in a compressed segment
/// the lengths of its row groups.
///
/// A page that was valid once and is stale now agrees with a stale table, never with this.
pub type SegmentDigest = [u8; 32];

/// Writes header, rows, tables and footer of one segment.
///
/// Memory: 2 MiB and 4 bytes per page written; with zstd two row groups, 4 bytes per group
/// written and 1 MiB more.
#[derive(Debug)]
pub struct SegmentWriter {
    pages: PageWriter,
    /// `None` where rows are stored as they are.
    groups: Option<GroupEncoder>,
    codec: SegmentCodec,
    identity: SegmentIdentity,
    /// Bytes of rows that were promised.
    expected_bytes: u64,
    n_bytes: u64,
    /// Bytes of rows or groups in the file.
    stored_bytes: u64,
    /// The rows of a delta, as they are listed in the file; empty in another segment.
    list: Vec<u8>,
}

impl SegmentWriter {
    /// Creates `path`, which must not exist, for a segment that has every row.
    ///
    /// # Panics
    /// When the identity is a delta's.
    pub fn create(
        fs: &dyn FileSystem,
        path: &Path,
        identity: &SegmentIdentity,
        codec: SegmentCodec,
    ) -> Result<Self, StoreError> {
        Self::create_delta(fs, path, identity, codec, &[])
    }

    /// Creates `path`, which must not exist, for a delta with these rows, which ascend.
    ///
    /// # Panics
    /// When these are not as many rows as the identity says, or not rows of its partition,
    /// ascending.
    pub fn create_delta(
        fs: &dyn FileSystem,
        path: &Path,
        identity: &SegmentIdentity,
        codec: SegmentCodec,
        rows: &[u32],
    ) -> Result<Self, StoreError> {
        assert_eq!(identity.delta_of.is_none(), rows.is_empty(), "a delta lists its rows");
        let is_whole = rows.is_empty() || rows.len() == identity.n_rows as usize;
        assert!(is_whole, "a place in the list for each row");
        assert!(rows.is_sorted_by(|a, b| a < b), "rows of a delta ascend");
        assert!(rows.last().is_none_or(|last| identity.delta_of.is_some_and(|of| *last < of)));
        let failed = |source| StoreError::io(path, "write a segment")(source);
        let row_bytes = identity.tensor.row_bytes();
        let layout = SegmentLayout::new(identity.n_rows, row_bytes)
            .and_then(|layout| codec.check(row_bytes).map(|()| layout))
            .map_err(|error| failed(io::Error::other(error)))?;
        let groups = match codec {
            SegmentCodec::Raw => None,
            SegmentCodec::Zstd { group_rows } => {
                Some(GroupEncoder::new(group_rows as usize * row_bytes).map_err(failed)?)
            }
        };
        let checksum = PageChecksum::new(identity.segment);
        Ok(Self {
            pages: PageWriter::create(fs, path, &identity.to_page(codec), checksum)?,
            groups,
            codec,
            identity: identity.clone(),
            expected_bytes: layout.raw_bytes(),
            n_bytes: 0,
            stored_bytes: 0,
            list: bytemuck::cast_slice(&rows.iter().map(|row| row.to_le()).collect::<Vec<_>>())
                .to_vec(),
        })
    }

    /// Appends whole rows, or any part of the rows' bytes; the cuts do not matter.
    ///
    /// # Panics
    /// When more bytes come than the identity promised.
    pub fn write_rows(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        self.n_bytes += bytes.len() as u64;
        assert!(self.n_bytes <= self.expected_bytes, "more rows than the segment's identity");
        let Some(groups) = &mut self.groups else {
            self.stored_bytes = self.n_bytes;
            return self.pages.push(bytes);
        };
        while let Some(stored) =
            groups.take(&mut bytes).map_err(StoreError::io(&self.pages.path, "compress"))?
        {
            self.stored_bytes += stored.len() as u64;
            self.pages.push(stored)?;
        }
        Ok(())
    }

    /// Writes tables and footer, syncs the file, and returns the digest for the catalog.
    ///
    /// # Panics
    /// When fewer bytes came than the identity promised.
    pub fn finish(mut self) -> Result<SegmentDigest, StoreError> {
        assert_eq!(self.n_bytes, self.expected_bytes, "fewer rows than the segment's identity");
        let mut index = Vec::new();
        if let Some(mut groups) = self.groups.take() {
            let last = groups.finish().map_err(StoreError::io(&self.pages.path, "compress"))?;
            if let Some(stored) = last {
                self.stored_bytes += stored.len() as u64;
                self.pages.push(stored)?;
            }
            index = groups.into_index();
        }
        let (data_bytes, n_groups) = (self.stored_bytes, (index.len() / 4) as u32);
        let sections = Sections { data_bytes, n_groups, n_listed: (self.list.len() / 4) as u32 };
        let mut tables = self.pages.finish_data()?;
        for mut table in [index, self.list] {
            tables.append(&mut table);
            tables.resize(tables.len().next_multiple_of(PAGE_BYTES as usize), 0);
        }
        debug_assert_eq!(tables.len() as u64, sections.tables_bytes());
        let footer = self.identity.footer(self.codec, &sections, &tables);
        self.pages.seal(&tables, &footer)?;
        Ok(blake3::hash(&tables).into())
    }
}

/// The front of a segment file that is being written: header, then whole pages of data.
///
/// Memory: 2 MiB, and 4 bytes per page written (1 MiB per GiB of data).
#[derive(Debug)]
struct PageWriter {
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
    fn create(
        fs: &dyn FileSystem,
        path: &Path,
        header: &Page,
        checksum: PageChecksum,
    ) -> Result<Self, StoreError> {
        let mut file = fs.create(path).map_err(StoreError::io(path, "create"))?;
        file.append(header).map_err(StoreError::io(path, "write"))?;
        let (path, piece_bytes) = (path.to_owned(), PIECE_BYTES - header.len());
        Ok(Self { path, file, checksum, buffer: Vec::new(), piece_bytes, table: Vec::new() })
    }

    /// Appends data.
    fn push(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
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
    fn finish_data(&mut self) -> Result<Vec<u8>, StoreError> {
        self.buffer.resize(self.buffer.len().next_multiple_of(PAGE_BYTES as usize), 0);
        self.flush()?;
        let mut table = std::mem::take(&mut self.table);
        table.resize(table.len().next_multiple_of(PAGE_BYTES as usize), 0);
        Ok(table)
    }

    /// Writes what comes after the data, and syncs the file.
    fn seal(mut self, tables: &[u8], footer: &Page) -> Result<(), StoreError> {
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
