//! Where the sections of a segment file start and end.

use super::{DATA_OFFSET, PAGE_BYTES};

/// The three lengths from which every offset in a segment file follows.
///
/// ```text
/// offset                  bytes               content
/// 0                       4096                header
/// 4096                    4096 x n_pages      data pages
/// table_offset            padded to pages     page table: CRC-32 of each data page
/// index_offset            padded to pages     group index: stored bytes of each row group
/// list_offset             padded to pages     row list of a delta: the row of each of its rows
/// footer_offset           4096                footer
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sections {
    /// Bytes of all data, without the padding of the last page.
    pub(crate) data_bytes: u64,
    /// Row groups; 0 in a segment without a group index.
    pub(crate) n_groups: u32,
    /// Entries of the row list; 0 in a segment that has every row.
    pub(crate) n_listed: u32,
}

impl Sections {
    pub(crate) const fn n_pages(&self) -> u64 {
        self.data_bytes.div_ceil(PAGE_BYTES)
    }

    pub(crate) const fn table_offset(&self) -> u64 {
        DATA_OFFSET + self.n_pages() * PAGE_BYTES
    }

    pub(crate) const fn index_offset(&self) -> u64 {
        self.table_offset() + (self.n_pages() * 4).next_multiple_of(PAGE_BYTES)
    }

    pub(crate) const fn list_offset(&self) -> u64 {
        self.index_offset() + (self.n_groups as u64 * 4).next_multiple_of(PAGE_BYTES)
    }

    pub(crate) const fn footer_offset(&self) -> u64 {
        self.list_offset() + (self.n_listed as u64 * 4).next_multiple_of(PAGE_BYTES)
    }

    /// Returns the bytes of page table, group index and row list together.
    pub(crate) const fn tables_bytes(&self) -> u64 {
        self.footer_offset() - self.table_offset()
    }

    pub(crate) const fn file_bytes(&self) -> u64 {
        self.footer_offset() + PAGE_BYTES
    }
}
