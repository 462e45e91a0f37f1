//! Header and footer of a segment file.

use super::sums::read_some;
use crate::codec::SegmentCodec;
use crate::file_system::FileReader;
use crate::limits::PAGE_BYTES;
use crate::segment::{FoundHead, FoundSeal, SegmentIdentity};

/// First and last page of a file, as they are.
pub(super) struct HeaderFooter {
    pub(super) first: [u8; PAGE_BYTES as usize],
    pub(super) head: FoundHead,
    pub(super) last: [u8; PAGE_BYTES as usize],
    pub(super) seal: Option<FoundSeal>,
}

impl HeaderFooter {
    pub(super) fn read(file: &dyn FileReader, file_bytes: u64) -> Self {
        let page = |offset| {
            let mut page = [0; PAGE_BYTES as usize];
            read_some(file, offset, &mut page);
            page
        };
        // A file that was cut or extended has other bytes where its footer would be.
        let (first, last) = (page(0), page(file_bytes.saturating_sub(PAGE_BYTES)));
        Self { first, head: FoundHead::of(&first), last, seal: FoundSeal::of(&last) }
    }

    pub(super) fn newer(&self) -> Option<u32> {
        let heads = [Some(&self.head), self.seal.as_ref().map(|seal| &seal.head)];
        heads.into_iter().flatten().find_map(|head| match head {
            FoundHead::Newer(found) => Some(*found),
            _ => None,
        })
    }

    /// Returns the description in the file; its header first, then the footer's copy.
    pub(super) fn identity(&self) -> Option<(SegmentIdentity, SegmentCodec)> {
        let heads = [Some(&self.head), self.seal.as_ref().map(|seal| &seal.head)];
        heads.into_iter().flatten().find_map(|head| match head {
            FoundHead::Sound(identity, codec) => Some((identity.clone(), *codec)),
            _ => None,
        })
    }
}

/// Returns the description in a segment file, by header or footer; `None` if neither can be read.
pub(crate) fn identity_of(file: &dyn FileReader) -> Option<SegmentIdentity> {
    let file_bytes = file.len_bytes().ok()?;
    HeaderFooter::read(file, file_bytes).identity().map(|(identity, _)| identity)
}

/// Returns the format of a segment that only a later release reads.
pub(crate) fn newer_format_of(file: &dyn FileReader) -> Option<u32> {
    let file_bytes = file.len_bytes().ok()?;
    HeaderFooter::read(file, file_bytes).newer()
}
