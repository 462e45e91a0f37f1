//! The descriptive pages of a segment, one by one: for files that may be damaged.

use std::io;

use super::footer::{footer_page, read_footer};
use super::header::{HeaderFault, Page, SegmentIdentity};
use crate::codec::SegmentCodec;
use crate::file_system::FileReader;
use crate::layout::Sections;
use crate::limits::PAGE_BYTES;

/// Contents of the header and of the footer of a file, each as far as it is whole.
#[derive(Debug)]
pub(crate) struct FoundEnds {
    /// Bytes of the file.
    pub(crate) file_bytes: u64,
    /// Description by the header, or else by the footer's copy of it.
    pub(crate) described: Option<(SegmentIdentity, SegmentCodec)>,
    /// Format of a header that only a later release reads.
    pub(crate) newer: Option<u32>,
    /// Bytes of all row groups by the footer; 0 in a raw segment.
    pub(crate) data_bytes: Option<u64>,
}

impl FoundEnds {
    /// Reads the first and the last page of a file. A page that cannot be read describes nothing.
    ///
    /// Fails when the length of the file is unknown.
    pub(crate) fn read(file: &dyn FileReader) -> io::Result<Self> {
        let file_bytes = file.len_bytes()?;
        let page = |offset| {
            let mut page = [0; PAGE_BYTES as usize];
            file.read_exact_at(&mut page, offset).ok().map(|()| page)
        };
        // A file that was cut or extended has other bytes where its footer would be.
        let footer =
            page(file_bytes.saturating_sub(PAGE_BYTES)).and_then(|page| read_footer(&page));
        let data_bytes = footer.map(|(_, data_bytes)| data_bytes);
        let mut ends = Self { file_bytes, described: None, newer: None, data_bytes };
        for header in [page(0), footer.map(|(header, _)| header)].into_iter().flatten() {
            match SegmentIdentity::from_page(&header) {
                Ok(found) if ends.described.is_none() => ends.described = Some(found),
                Err(HeaderFault::Newer(found)) => ends.newer = Some(found),
                Ok(_) | Err(HeaderFault::Damaged(_)) => {}
            }
        }
        Ok(ends)
    }
}

/// Returns the description in a segment file, by header or footer; `None` if neither can be read.
pub(crate) fn identity_of(file: &dyn FileReader) -> Option<SegmentIdentity> {
    FoundEnds::read(file).ok()?.described.map(|(identity, _)| identity)
}

impl SegmentIdentity {
    /// Returns the header page of a segment.
    pub(crate) fn header(&self, codec: SegmentCodec) -> Page {
        self.to_page(codec)
    }

    /// Returns the footer page that seals it over these tables.
    pub(crate) fn footer(&self, codec: SegmentCodec, sections: &Sections, tables: &[u8]) -> Page {
        footer_page(&self.to_page(codec), codec, sections, crc32fast::hash(tables))
    }
}
