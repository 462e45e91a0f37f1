//! Writing a segment once, front to back, in bounded memory.

use std::io;
use std::path::{Path, PathBuf};

use super::footer::footer_page;
use super::header::{Page, SegmentIdentity};
use super::pages::PageWriter;
use crate::checksum::PageChecksum;
use crate::codec::{GroupEncoder, SegmentCodec};
use crate::error::StoreError;
use crate::file_system::FileSystem;
use crate::layout::{Sections, SegmentLayout};
use crate::limits::PAGE_BYTES;

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
    path: PathBuf,
    pages: PageWriter,
    /// `None` where rows are stored as they are.
    groups: Option<GroupEncoder>,
    codec: SegmentCodec,
    header: Page,
    /// Bytes of rows that were promised.
    expected_bytes: u64,
    n_bytes: u64,
    /// Bytes of stored groups.
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
        device: &dyn FileSystem,
        path: &Path,
        identity: &SegmentIdentity,
        codec: SegmentCodec,
    ) -> Result<Self, StoreError> {
        Self::create_listed(device, path, identity, codec, &[])
    }

    /// Creates `path`, which must not exist, for a delta with these rows, which ascend.
    ///
    /// # Panics
    /// When these are not as many rows as the identity says, or not rows of its partition,
    /// ascending.
    pub fn create_delta(
        device: &dyn FileSystem,
        path: &Path,
        identity: &SegmentIdentity,
        codec: SegmentCodec,
        rows: &[u32],
    ) -> Result<Self, StoreError> {
        assert_eq!(identity.n_rows as usize, rows.len(), "a place in the list for each row");
        Self::create_listed(device, path, identity, codec, rows)
    }

    fn create_listed(
        device: &dyn FileSystem,
        path: &Path,
        identity: &SegmentIdentity,
        codec: SegmentCodec,
        rows: &[u32],
    ) -> Result<Self, StoreError> {
        assert_eq!(identity.delta_of.is_none(), rows.is_empty(), "a delta lists its rows");
        assert!(rows.is_sorted_by(|a, b| a < b), "rows of a delta ascend");
        assert!(rows.last().is_none_or(|last| identity.delta_of.is_some_and(|of| *last < of)));
        let failed = StoreError::io(path, "write a segment");
        let row_bytes = identity.tensor.row_bytes();
        let layout = SegmentLayout::new(identity.n_rows, row_bytes)
            .and_then(|layout| codec.check(row_bytes).map(|()| layout));
        let (layout, groups) = match (layout, codec) {
            (Err(error), _) => return Err(failed(io::Error::other(error))),
            (Ok(layout), SegmentCodec::Raw) => (layout, None),
            (Ok(layout), SegmentCodec::Zstd { group_rows }) => {
                let encoder = GroupEncoder::new(group_rows as usize * row_bytes);
                (layout, Some(encoder.map_err(failed)?))
            }
        };
        let header = identity.to_page(codec);
        let checksum = PageChecksum::new(identity.segment);
        Ok(Self {
            path: path.to_owned(),
            pages: PageWriter::create(device, path, &header, checksum)?,
            groups,
            codec,
            header,
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
        let Some(groups) = &mut self.groups else { return self.pages.push(bytes) };
        while let Some(stored) =
            groups.take(&mut bytes).map_err(StoreError::io(&self.path, "compress"))?
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
        let n_listed = (self.list.len() / 4) as u32;
        let mut sections = Sections { data_bytes: self.n_bytes, n_groups: 0, n_listed };
        let mut index = Vec::new();
        if let Some(mut groups) = self.groups.take() {
            let last = groups.finish().map_err(StoreError::io(&self.path, "compress"))?;
            if let Some(stored) = last {
                self.stored_bytes += stored.len() as u64;
                self.pages.push(stored)?;
            }
            index = groups.into_index();
            let n_groups = (index.len() / 4) as u32;
            sections = Sections { data_bytes: self.stored_bytes, n_groups, n_listed };
            index.resize(index.len().next_multiple_of(PAGE_BYTES as usize), 0);
        }
        let mut tables = self.pages.finish_data()?;
        tables.append(&mut index);
        self.list.resize(self.list.len().next_multiple_of(PAGE_BYTES as usize), 0);
        tables.append(&mut self.list);
        debug_assert_eq!(tables.len() as u64, sections.tables_bytes());
        let footer = footer_page(&self.header, self.codec, &sections, crc32fast::hash(&tables));
        self.pages.seal(&tables, &footer)?;
        Ok(blake3::hash(&tables).into())
    }
}
