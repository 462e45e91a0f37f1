//! State of a segment file, and its consequences.

use std::io;
use std::ops::Range;

use super::header_footer::HeaderFooter;
use super::reconcile::{Remains, reconcile};
use super::shape::{Followed, follow_groups, layout, lost_pages, pages_of};
use super::sums::{page_sums, read_some};
use crate::checksum::PageChecksum;
use crate::codec::SegmentCodec;
use crate::error::StoreError;
use crate::file_system::FileReader;
use crate::layout::{Sections, SegmentLayout};
use crate::limits::PAGE_BYTES;
use crate::segment::{SegmentDigest, SegmentIdentity};

/// Knowledge of a segment from outside its file.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub(crate) identity: SegmentIdentity,
    /// The catalog's digest of its tables; `None` when there is no catalog to say.
    pub(crate) digest: Option<SegmentDigest>,
}

/// A segment as it can be put together again.
#[derive(Clone, Debug)]
pub(crate) struct Recovered {
    pub(crate) identity: SegmentIdentity,
    pub(crate) codec: SegmentCodec,
    pub(crate) sections: Sections,
    pub(crate) layout: SegmentLayout,
    /// Padded page table and group index.
    pub(crate) tables: Vec<u8>,
    /// The tables are those that were written.
    pub(crate) proven: bool,
    /// Header, tables and footer are not as they must be, or the length is not.
    pub(crate) broken: Vec<&'static str>,
    /// Pages whose rows are lost, ascending.
    pub(crate) lost_pages: Vec<Range<u64>>,
}

/// The outcome of a look at a file.
#[derive(Clone, Debug)]
pub(crate) enum Assessment {
    /// It is, or can be put together again.
    Recovered(Box<Recovered>),
    /// Nothing in it can be used, for this reason.
    Hopeless(String),
}

impl Recovered {
    pub(crate) fn digest(&self) -> SegmentDigest {
        blake3::hash(&self.tables).into()
    }

    /// Checks the checksum of a page against the tables, unless its rows are lost anyway.
    pub(crate) fn check_page(&self, page: u64, found: u32) -> io::Result<()> {
        let after = self.lost_pages.partition_point(|lost| lost.end <= page);
        let entry = self.tables.as_chunks::<4>().0.get(page as usize);
        let is_lost = self.lost_pages.get(after).is_some_and(|lost| lost.contains(&page));
        if is_lost || entry.is_some_and(|entry| u32::from_le_bytes(*entry) == found) {
            return Ok(());
        }
        let reason = format!("page {page} was sound and cannot be read as it was; repair again");
        Err(io::Error::new(io::ErrorKind::InvalidData, reason))
    }

    pub(crate) fn header(&self) -> [u8; PAGE_BYTES as usize] {
        self.identity.header(self.codec)
    }

    pub(crate) fn footer(&self) -> [u8; PAGE_BYTES as usize] {
        self.identity.footer(self.codec, &self.sections, &self.tables)
    }
}

/// Looks at a file that should be `expected`.
///
/// Fails only for a file of a later format, which this release must not touch.
pub(crate) fn assess(
    file: &dyn FileReader,
    path: &std::path::Path,
    expected: &Expected,
    n_threads: usize,
) -> Result<Assessment, StoreError> {
    let file_bytes = file.len_bytes().map_err(StoreError::io(path, "read the length of"))?;
    let ends = HeaderFooter::read(file, file_bytes);
    if let Some(found) = ends.newer() {
        let (file, supported) = (path.to_owned(), crate::segment::SEGMENT_FORMAT_VERSION);
        return Err(StoreError::NewerFormat { file, found, supported });
    }
    Ok(SegmentProbe { file, file_bytes, ends, expected, n_threads }.assess())
}

/// How much a file may hold.
struct SegmentSize {
    /// Pages of rows.
    n_pages: u64,
    n_groups: u32,
    /// The index that the groups themselves tell.
    followed: Option<Vec<u8>>,
}

/// One look at a file.
struct SegmentProbe<'a> {
    file: &'a dyn FileReader,
    file_bytes: u64,
    ends: HeaderFooter,
    expected: &'a Expected,
    n_threads: usize,
}

impl SegmentProbe<'_> {
    fn assess(&self) -> Assessment {
        let identity = &self.expected.identity;
        let found = self.ends.identity();
        if let Some(reason) = found.as_ref().and_then(|(found, _)| identity.mismatch(found)) {
            return Assessment::Hopeless(format!("it belongs elsewhere: {reason}"));
        }
        let mended = match found {
            Some((_, codec)) => self.mend(codec).ok_or("its row groups can be separated no more"),
            // What every writer of this release chooses; a guess counts when a witness confirms it.
            None => [SegmentCodec::Raw, SegmentCodec::zstd_for(identity.tensor.row_bytes())]
                .into_iter()
                .filter_map(|codec| self.mend(codec))
                .find(|mended| mended.proven)
                .ok_or("header and footer are damaged, and more"),
        };
        match mended {
            Ok(mended) if self.is_another(&mended) => Assessment::Hopeless(
                "it is whole, but not the one that the catalog recorded: \
                 the digest of its tables differs"
                    .to_owned(),
            ),
            Ok(mended) => Assessment::Recovered(Box::new(mended)),
            Err(reason) => Assessment::Hopeless(reason.to_owned()),
        }
    }

    /// Puts the segment together under the assumption that it has this codec.
    fn mend(&self, codec: SegmentCodec) -> Option<Recovered> {
        let stored = self.extent(codec).and_then(|extent| self.mend_extent(codec, &extent));
        if stored.as_ref().is_some_and(|mended| mended.proven) {
            return stored;
        }
        // Following groups takes long: it is for those whose index, or whose end, is damaged.
        let followed = self.followed(codec).and_then(|extent| self.mend_extent(codec, &extent));
        match (stored, followed) {
            (Some(stored), Some(followed)) if !followed.proven => Some(stored),
            (stored, followed) => followed.or(stored),
        }
    }

    /// Returns whether the file agrees with itself and not with the catalog: it was put there
    /// whole.
    fn is_another(&self, mended: &Recovered) -> bool {
        let agrees = match &self.ends.seal {
            Some(seal) => seal.tables_crc == crc32fast::hash(&mended.tables),
            None => mended.lost_pages.is_empty(),
        };
        let has_table = !mended.broken.contains(&"page table");
        self.expected.digest.is_some() && !mended.proven && has_table && agrees
    }

    /// Does as [`SegmentProbe::mend`], under the assumption that it has this extent, too.
    fn mend_extent(&self, codec: SegmentCodec, extent: &SegmentSize) -> Option<Recovered> {
        let identity = &self.expected.identity;
        let SegmentSize { n_pages, n_groups, followed } = extent;
        let (n_pages, n_groups) = (*n_pages, *n_groups);
        let checksum = PageChecksum::new(identity.segment);
        let sums = page_sums(self.file, &checksum, n_pages, self.n_threads);
        // Only the number of pages matters to where the tables start.
        let rough = Sections { data_bytes: n_pages * PAGE_BYTES, n_groups, n_listed: 0 };
        let mut stored = vec![0; rough.tables_bytes() as usize];
        let n_stored = read_some(self.file, rough.table_offset(), &mut stored);
        let (table, index) =
            stored.split_at((rough.index_offset() - rough.table_offset()) as usize);
        let indexes = self.indexes(codec, n_pages, index, followed.as_deref());
        let table = &table[..table.len().min(n_stored)];
        let remains = Remains { stored: table, sums: &sums, indexes: &indexes };
        let tables_crc = self.ends.seal.as_ref().map(|seal| seal.tables_crc);
        let mut witness = |tables: &[u8]| match (&self.expected.digest, tables_crc) {
            (Some(digest), _) => blake3::hash(tables) == *digest,
            (None, Some(crc)) => crc32fast::hash(tables) == crc,
            (None, None) => false,
        };
        let reconciled = reconcile(&remains, &mut witness)?;
        let layout = layout(identity, codec, n_pages, &reconciled.tables)?;
        let sections = layout.sections();
        let lost_pages = lost_pages(&sums, &reconciled.tables);
        let (identity, tables, proven) = (identity.clone(), reconciled.tables, reconciled.proven);
        let broken = Vec::new();
        let mut mended =
            Recovered { identity, codec, sections, layout, tables, proven, broken, lost_pages };
        mended.broken = self.broken(&mended, &stored[..n_stored]);
        Some(mended)
    }

    /// Returns how much there is, by what the footer or the length of the file says; `None` if the
    /// file cannot have this codec.
    fn extent(&self, codec: SegmentCodec) -> Option<SegmentSize> {
        let identity = &self.expected.identity;
        let layout = SegmentLayout::new(identity.n_rows, identity.tensor.row_bytes()).ok()?;
        let SegmentCodec::Zstd { group_rows } = codec else {
            return Some(SegmentSize { n_pages: layout.n_pages(), n_groups: 0, followed: None });
        };
        codec.check(identity.tensor.row_bytes()).ok()?;
        let n_groups = identity.n_rows.div_ceil(group_rows);
        let sealed = self.ends.seal.as_ref().map(|seal| seal.data_bytes.div_ceil(PAGE_BYTES));
        let by_length = pages_of(self.file_bytes, n_groups, layout.n_pages());
        let n_pages = sealed.unwrap_or(by_length);
        let extent = SegmentSize { n_pages, n_groups, followed: None };
        Some(extent).filter(|extent| extent.n_pages <= layout.n_pages())
    }

    /// Returns how much there is, by what the row groups themselves say.
    fn followed(&self, codec: SegmentCodec) -> Option<SegmentSize> {
        let identity = &self.expected.identity;
        let SegmentCodec::Zstd { group_rows } = codec else { return None };
        let layout = SegmentLayout::new(identity.n_rows, identity.tensor.row_bytes()).ok()?;
        codec.check(identity.tensor.row_bytes()).ok()?;
        let data_end = layout.raw_bytes().min(self.file_bytes.checked_sub(PAGE_BYTES)?);
        let Followed { index, data_bytes } =
            follow_groups(self.file, identity, group_rows, data_end)?;
        let n_groups = identity.n_rows.div_ceil(group_rows);
        Some(SegmentSize {
            n_pages: data_bytes.div_ceil(PAGE_BYTES),
            n_groups,
            followed: Some(index),
        })
    }

    /// Returns padded indexes that may be the right one, the stored one first.
    fn indexes(
        &self,
        codec: SegmentCodec,
        n_pages: u64,
        stored: &[u8],
        followed: Option<&[u8]>,
    ) -> Vec<Vec<u8>> {
        if codec == SegmentCodec::Raw {
            return vec![Vec::new()];
        }
        let identity = &self.expected.identity;
        let n_table_bytes = (n_pages * 4).next_multiple_of(PAGE_BYTES) as usize;
        let is_index = |index: &Vec<u8>| {
            let tables = [vec![0; n_table_bytes].as_slice(), index].concat();
            layout(identity, codec, n_pages, &tables).is_some()
        };
        let mut indexes = vec![stored.to_vec()];
        indexes.extend(followed.filter(|followed| *followed != stored).map(<[u8]>::to_vec));
        indexes.retain(is_index);
        indexes
    }

    /// Returns the parts of the file that are not those of `mended`.
    fn broken(&self, mended: &Recovered, stored_tables: &[u8]) -> Vec<&'static str> {
        let n_table_bytes = (mended.sections.n_pages() * 4).next_multiple_of(PAGE_BYTES) as usize;
        let (table, index) = mended.tables.split_at(n_table_bytes);
        let stored_index = stored_tables.get(n_table_bytes..).unwrap_or_default();
        let parts = [
            ("header", self.ends.first == mended.header()),
            ("page table", stored_tables.get(..n_table_bytes) == Some(table)),
            ("group index", stored_index == index),
            ("footer", self.ends.last == mended.footer()),
            ("length", self.file_bytes == mended.sections.file_bytes()),
        ];
        parts.into_iter().filter(|(_, is_right)| !is_right).map(|(part, _)| part).collect()
    }
}
