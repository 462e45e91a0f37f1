//! The descriptive pages of a segment, one by one: for repair, which reassembles damaged segments.

use super::footer::{footer_page, read_footer};
use super::header::{HeaderFault, Page, SegmentIdentity};
use crate::codec::SegmentCodec;
use crate::layout::Sections;
use crate::limits::PAGE_BYTES;

/// Contents of a header page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FoundHead {
    /// It is whole.
    Sound(SegmentIdentity, SegmentCodec),
    /// It is whole and of a later format than this release knows.
    Newer(u32),
    /// It is not a header.
    Damaged(String),
}

/// Contents of a whole footer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundSeal {
    /// The fields of the header that it copies.
    pub(crate) head: FoundHead,
    /// Bytes of all row groups; 0 in a raw segment.
    pub(crate) data_bytes: u64,
    /// CRC-32 of the tables.
    pub(crate) tables_crc: u32,
}

impl FoundHead {
    /// Reads a header page; of fewer bytes it is damaged.
    pub(crate) fn of(page: &[u8]) -> Self {
        let Ok(page) = <&Page>::try_from(page) else {
            return Self::Damaged(format!("{} bytes are there", page.len()));
        };
        match SegmentIdentity::from_page(page) {
            Ok((identity, codec)) => Self::Sound(identity, codec),
            Err(HeaderFault::Newer(found)) => Self::Newer(found),
            Err(HeaderFault::Damaged(reason)) => Self::Damaged(reason),
        }
    }
}

impl FoundSeal {
    /// Reads a footer page; `None` unless it is whole and vouches for its copy of the header.
    pub(crate) fn of(page: &[u8]) -> Option<Self> {
        let (header, data_bytes, tables_crc) = read_footer(page.try_into().ok()?)?;
        Some(Self { head: FoundHead::of(&header), data_bytes, tables_crc })
    }
}

impl SegmentIdentity {
    /// Returns the header page of a segment.
    pub(crate) fn header(&self, codec: SegmentCodec) -> [u8; PAGE_BYTES as usize] {
        self.to_page(codec)
    }

    /// Returns the footer page that seals it over these tables.
    pub(crate) fn footer(
        &self,
        codec: SegmentCodec,
        sections: &Sections,
        tables: &[u8],
    ) -> [u8; PAGE_BYTES as usize] {
        footer_page(&self.to_page(codec), codec, sections, crc32fast::hash(tables))
    }

    /// Returns the differences between this, which is expected, and another; `None` if there are
    /// none.
    pub(crate) fn mismatch(&self, found: &Self) -> Option<String> {
        let (field, expected, found) = self.difference(found)?;
        Some(format!("expected {field} {expected}, found {found}"))
    }
}
