//! Opening a segment: nothing in the file is believed before it is checked.

use std::path::Path;

use super::SEGMENT_FORMAT_VERSION;
use super::footer::{check_footer, data_bytes_of};
use super::header::{HeaderFault, Page, SegmentIdentity};
use super::segment::Segment;
use crate::checksum::PageChecksum;
use crate::codec::SegmentCodec;
use crate::error::StoreError;
use crate::file_system::{FileReader, FileSystem};
use crate::layout::{Sections, SegmentLayout};
use crate::limits::PAGE_BYTES;

impl Segment {
    /// Opens `path` for reading and checks it against its own length and against `expected`.
    ///
    /// Holds 4 bytes of memory per page, 8 per row group of a compressed segment, and 4 per row of
    /// a delta. Read-only files and mounts work.
    pub fn open(
        fs: &dyn FileSystem,
        path: &Path,
        expected: &SegmentIdentity,
    ) -> Result<Self, StoreError> {
        let file = fs.open(path).map_err(StoreError::io(path, "open"))?;
        let found_bytes = file.len_bytes().map_err(StoreError::io(path, "read the length of"))?;
        let wrong_length = |expected| StoreError::FileLength {
            file: path.to_owned(),
            expected,
            found: found_bytes,
        };
        if found_bytes < 2 * PAGE_BYTES {
            return Err(wrong_length(2 * PAGE_BYTES));
        }
        let mut header = [0; PAGE_BYTES as usize];
        read_page(&*file, path, 0, &mut header)?;
        let (identity, codec) =
            SegmentIdentity::from_page(&header).map_err(|fault| match fault {
                HeaderFault::Damaged(reason) => damaged(path, "header", 0, reason),
                HeaderFault::Newer(found) => {
                    let (file, supported) = (path.to_owned(), SEGMENT_FORMAT_VERSION);
                    StoreError::NewerFormat { file, found, supported }
                }
            })?;
        let mut footer = [0; PAGE_BYTES as usize];
        let footer_offset = found_bytes - PAGE_BYTES;
        read_page(&*file, path, footer_offset, &mut footer)?;
        let sections = sections_of(&footer, footer_offset, path, &identity, codec)?;
        if sections.file_bytes() != found_bytes {
            return Err(wrong_length(sections.file_bytes()));
        }
        if let Some((field, expected, found)) = expected.difference(&identity) {
            return Err(StoreError::Misplaced { file: path.to_owned(), field, expected, found });
        }
        let tables_crc = check_footer(&footer, &header, codec, &sections)
            .map_err(|reason| damaged(path, "footer", footer_offset, reason))?;
        let tables = read_tables(&*file, path, &sections, tables_crc)?;
        let index_start = (sections.index_offset() - sections.table_offset()) as usize;
        let (table, index) = tables.split_at(index_start);
        let list_start = (sections.list_offset() - sections.index_offset()) as usize;
        let (index, list) = index.split_at(list_start);
        let listed = listed_of(&identity, list)
            .map_err(|reason| damaged(path, "row list", sections.list_offset(), reason))?;
        let layout = layout_of(&identity, codec, &sections, index)
            .map_err(|reason| damaged(path, "group index", sections.index_offset(), reason))?;
        let table = words(table).take(sections.n_pages() as usize).collect();
        let checksum = PageChecksum::new(identity.segment);
        let (path, digest) = (path.to_owned(), blake3::hash(&tables).into());
        Ok(Self { path, file, identity, layout, checksum, table, digest, listed })
    }
}

/// Returns the sections, which follow from the header. In a compressed segment they follow also
/// from one length in the footer, which is within the bounds that the rows set.
fn sections_of(
    footer: &Page,
    footer_offset: u64,
    path: &Path,
    identity: &SegmentIdentity,
    codec: SegmentCodec,
) -> Result<Sections, StoreError> {
    let raw_bytes = u64::from(identity.n_rows) * identity.tensor.row_bytes() as u64;
    let n_listed = if identity.delta_of.is_some() { identity.n_rows } else { 0 };
    let SegmentCodec::Zstd { group_rows } = codec else {
        return Ok(Sections { data_bytes: raw_bytes, n_groups: 0, n_listed });
    };
    let data_bytes = data_bytes_of(footer).map_err(|reason| {
        let reason = format!("{reason}; or the file was cut or extended");
        damaged(path, "footer", footer_offset, reason)
    })?;
    let n_groups = identity.n_rows.div_ceil(group_rows);
    if !(u64::from(n_groups)..=raw_bytes).contains(&data_bytes) {
        let reason =
            format!("expected {n_groups} to {raw_bytes} bytes of rows, found {data_bytes}");
        return Err(damaged(path, "footer", footer_offset, reason));
    }
    Ok(Sections { data_bytes, n_groups, n_listed })
}

/// Reads the tables, whose length was checked against the file's before.
fn read_tables(
    file: &dyn FileReader,
    path: &Path,
    sections: &Sections,
    tables_crc: u32,
) -> Result<Vec<u8>, StoreError> {
    let offset = sections.table_offset();
    let mut tables = vec![0u8; sections.tables_bytes() as usize];
    file.read_exact_at(&mut tables, offset).map_err(StoreError::io(path, "read"))?;
    let found = crc32fast::hash(&tables);
    if found == tables_crc {
        return Ok(tables);
    }
    let reason = format!("checksum expected {tables_crc:#010x}, found {found:#010x}");
    Err(damaged(path, "page table", offset, reason))
}

/// Returns the layout that the padded group index describes; fails when it contradicts rows or
/// data.
fn layout_of(
    identity: &SegmentIdentity,
    codec: SegmentCodec,
    sections: &Sections,
    index: &[u8],
) -> Result<SegmentLayout, String> {
    let (n_rows, row_bytes) = (identity.n_rows, identity.tensor.row_bytes());
    let layout = match codec {
        SegmentCodec::Raw => SegmentLayout::new(n_rows, row_bytes),
        SegmentCodec::Zstd { group_rows } => {
            let lengths = words(index).take(sections.n_groups as usize);
            SegmentLayout::grouped(n_rows, row_bytes, group_rows, lengths)
        }
    };
    let layout = layout.map_err(|error| error.to_string())?.listed(identity.delta_of.is_some());
    if layout.sections() == *sections {
        return Ok(layout);
    }
    let (expected, found) = (sections.data_bytes, layout.data_bytes());
    Err(format!("row groups of {expected} bytes in all expected, found {found}"))
}

/// Returns the row list of a delta, which ascends and stays within the rows of its partition.
fn listed_of(identity: &SegmentIdentity, list: &[u8]) -> Result<Box<[u32]>, String> {
    let Some(of) = identity.delta_of else { return Ok(Box::default()) };
    let rows: Box<[u32]> = words(list).take(identity.n_rows as usize).collect();
    if let Some(at) = rows.windows(2).position(|pair| pair[0] >= pair[1]) {
        let (row, next) = (rows[at], rows[at + 1]);
        return Err(format!(
            "row {next} comes after row {row}; expected ascending rows, each once"
        ));
    }
    match rows.last() {
        Some(&last) if last >= of => Err(format!("expected rows below {of}, found row {last}")),
        _ => Ok(rows),
    }
}

fn words(bytes: &[u8]) -> impl ExactSizeIterator<Item = u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word))
}

/// Reads into a page of the caller's: moving one out costs as much as reading it.
fn read_page(
    file: &dyn FileReader,
    path: &Path,
    offset: u64,
    page: &mut Page,
) -> Result<(), StoreError> {
    file.read_exact_at(page, offset).map_err(StoreError::io(path, "read"))
}

fn damaged(path: &Path, section: &'static str, offset: u64, reason: String) -> StoreError {
    StoreError::DamagedSegment { file: path.to_owned(), section, offset, reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::identity;

    fn listed(rows: &[u32]) -> Result<Box<[u32]>, String> {
        let identity = SegmentIdentity { delta_of: Some(10), ..identity(rows.len() as u32, 4) };
        // As it is in the file, padded to a page.
        let list = rows.iter().flat_map(|row| row.to_le_bytes()).chain([0; 64]);
        listed_of(&identity, &list.collect::<Vec<u8>>())
    }

    #[test]
    fn row_lists_ascend_and_stay_within_their_partition() {
        assert_eq!(listed(&[0, 4, 9]).as_deref(), Ok(&[0, 4, 9][..]));
        let refused = |rows: &[u32], reason: &str| {
            let found = listed(rows).unwrap_err();
            assert!(found.contains(reason), "{found}");
        };
        refused(&[0, 5, 4], "row 4 comes after row 5; expected ascending rows, each once");
        refused(&[0, 5, 5, 6], "row 5 comes after row 5; expected ascending rows, each once");
        refused(&[0, 10], "expected rows below 10, found row 10");
        refused(&[u32::MAX], "expected rows below 10");
    }
}
