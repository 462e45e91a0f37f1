//! A damaged segment, put together again where the catalog's digest proves its tables.
//!
//! A page's checksum is known twice: from the stored table, and from the page itself. Where both
//! agree, page and entry are sound (except for one chance in 2³²). Where they differ, one of them
//! is damaged. Each way to choose sides is put before the digest: the tables that it knows are
//! those that were written. Then each page that agrees with them is as it was written.
//!
//! Header and footer follow from the catalog and the tables, the group index follows from the
//! groups. Nothing is used that the digest does not prove.

use std::io;
use std::ops::Range;
use std::sync::Mutex;

use lodestore_graph::lock::IgnorePoison;
use uuid::Uuid;
use zstd::zstd_safe::{find_frame_compressed_size, get_frame_content_size};

use crate::checksum::PageChecksum;
use crate::codec::SegmentCodec;
use crate::file_system::{FileReader, FileWriter};
use crate::layout::{DATA_OFFSET, Sections, SegmentLayout};
use crate::limits::{MAX_GROUP_BYTES, PAGE_BYTES};
use crate::segment::{FoundEnds, SegmentDigest, SegmentIdentity};
use crate::verify::{STRETCH_PAGES, for_each_stretch};

/// Most sides that are chosen on their own: 2¹² tables are put before the digest.
const MAX_CHOICES: usize = 12;

/// Most bytes of tables that are put before the digest: about 20 s of a core.
const MAX_HASHED_BYTES: u64 = 64 << 30;

/// Bytes of a page, as a length in memory.
const PAGE: usize = PAGE_BYTES as usize;

/// A segment as it was written, except for damaged pages.
pub(super) struct Recovered {
    identity: SegmentIdentity,
    codec: SegmentCodec,
    pub(super) layout: SegmentLayout,
    /// Padded page table and group index.
    tables: Vec<u8>,
    /// Pages that are not as they were written, ascending.
    pub(super) lost_pages: Vec<u64>,
}

/// Finds out how the segment `identity` was written, whose tables have this digest; `None` when the
/// file holds no tables that the digest knows.
///
/// Memory: 12 bytes per page, 8 more per disputed one, 4 per row group, and 4 MiB per thread.
pub(super) fn recover(
    file: &dyn FileReader,
    identity: &SegmentIdentity,
    digest: &SegmentDigest,
    n_threads: usize,
) -> io::Result<Option<Recovered>> {
    let ends = FoundEnds::read(file)?;
    let codecs = match &ends.described {
        Some((found, codec)) if found == identity => vec![*codec],
        Some(_) => return Ok(None),
        // What every writer of this release chooses; the digest confirms it or does not.
        None => vec![SegmentCodec::Raw, SegmentCodec::zstd_for(identity.tensor.row_bytes())],
    };
    let probe = Probe { file, ends, identity, digest, n_threads };
    Ok(codecs.into_iter().find_map(|codec| probe.recover(codec)))
}

impl Recovered {
    /// Writes the whole segment: the pages of `file`, under header, tables and footer.
    ///
    /// Fails when a page that is not lost is not what it was when it was looked at.
    pub(super) fn write(&self, file: &dyn FileReader, out: &mut dyn FileWriter) -> io::Result<()> {
        out.append(&self.identity.header(self.codec))?;
        let (n_pages, mut buffer) = (self.layout.n_pages(), Vec::new());
        let checksum = PageChecksum::new(self.identity.segment);
        for first in (0..n_pages).step_by(STRETCH_PAGES as usize) {
            let pages = first..n_pages.min(first + STRETCH_PAGES);
            read_pages(file, pages.clone(), &mut buffer);
            let entries = words(&self.tables[4 * first as usize..]);
            for ((page, bytes), entry) in pages.zip(buffer.chunks_exact(PAGE)).zip(entries) {
                let is_lost = self.lost_pages.binary_search(&page).is_ok();
                if !is_lost && checksum.of(page, bytes) != entry {
                    let reason = "was sound and cannot be read as it was; repair again";
                    let reason = format!("page {page} {reason}");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
                }
            }
            out.append(&buffer)?;
        }
        out.append(&self.tables)?;
        out.append(&self.identity.footer(self.codec, &self.layout.sections(), &self.tables))
    }
}

/// A file that should be the segment `identity`.
struct Probe<'a> {
    file: &'a dyn FileReader,
    ends: FoundEnds,
    identity: &'a SegmentIdentity,
    digest: &'a SegmentDigest,
    n_threads: usize,
}

impl Probe<'_> {
    /// Puts the segment together under the assumption that it has this codec.
    fn recover(&self, codec: SegmentCodec) -> Option<Recovered> {
        let (n_rows, row_bytes) = (self.identity.n_rows, self.identity.tensor.row_bytes());
        let raw = SegmentLayout::new(n_rows, row_bytes).ok()?;
        codec.check(row_bytes).ok()?;
        let SegmentCodec::Zstd { group_rows } = codec else {
            return self.prove(codec, raw.n_pages(), None);
        };
        let by_footer = self.ends.data_bytes.map(|bytes| bytes.div_ceil(PAGE_BYTES));
        let n_pages = by_footer.unwrap_or_else(|| self.pages_by_length(group_rows));
        let stored = (n_pages <= raw.n_pages()).then(|| self.prove(codec, n_pages, None)).flatten();
        // Following groups takes long: it is for those whose index, or whose end, is damaged.
        stored.or_else(|| {
            let data_end = raw.raw_bytes().min(self.ends.file_bytes.checked_sub(PAGE_BYTES)?);
            let (index, data_bytes) =
                follow_groups(self.file, self.identity, group_rows, data_end)?;
            self.prove(codec, data_bytes.div_ceil(PAGE_BYTES), Some(&index))
        })
    }

    /// Returns the number of pages of rows of a compressed segment as long as the file. For 1024 of
    /// them there is a page of the table.
    fn pages_by_length(&self, group_rows: u32) -> u64 {
        let n_groups = u64::from(self.identity.n_rows.div_ceil(group_rows));
        let others = 2 + (4 * n_groups).div_ceil(PAGE_BYTES);
        let with_table = self.ends.file_bytes.div_ceil(PAGE_BYTES).saturating_sub(others);
        with_table - with_table.div_ceil(PAGE_BYTES / 4 + 1)
    }

    /// Puts the segment together with `n_pages` pages, and with `index` or the stored one; `None`
    /// where the digest does not know the tables.
    fn prove(&self, codec: SegmentCodec, n_pages: u64, index: Option<&[u8]>) -> Option<Recovered> {
        let identity = self.identity;
        let n_groups = match codec {
            SegmentCodec::Raw => 0,
            SegmentCodec::Zstd { group_rows } => identity.n_rows.div_ceil(group_rows),
        };
        let sections = Sections { data_bytes: n_pages * PAGE_BYTES, n_groups, n_listed: 0 };
        let mut tables = vec![0; sections.tables_bytes() as usize];
        read_some(self.file, sections.table_offset(), &mut tables);
        let index_at = (sections.index_offset() - sections.table_offset()) as usize;
        tables[4 * n_pages as usize..index_at].fill(0);
        tables[index_at + 4 * n_groups as usize..].fill(0);
        if let Some(index) = index {
            tables[index_at..][..index.len()].copy_from_slice(index);
        }
        let sums = page_sums(self.file, identity.segment, n_pages, self.n_threads);
        if !settle(&mut tables, &sums, self.digest) {
            return None;
        }
        let layout = layout(identity, codec, &tables[index_at..])?;
        let lost_pages = (0..).zip(sums.iter().zip(words(&tables)));
        let lost_pages = lost_pages.filter(|(_, (sum, entry))| *sum != entry);
        let lost_pages = lost_pages.map(|(page, _)| page).collect();
        (layout.n_pages() == n_pages).then(|| Recovered {
            identity: identity.clone(),
            codec,
            layout,
            tables,
            lost_pages,
        })
    }
}

/// Turns the stored tables into those that `digest` knows; returns whether there are any. A
/// disputed entry is the stored one or that of `sums`, which are by page.
///
/// Disputed entries are decided one by one where they are few. Else those side by side are decided
/// together: they share a sector of the disk, and so its damage.
fn settle(tables: &mut [u8], sums: &[u32], digest: &SegmentDigest) -> bool {
    let stored: Vec<u32> = words(tables).take(sums.len()).collect();
    let disputed: Vec<usize> = (0..sums.len()).filter(|&i| stored[i] != sums[i]).collect();
    let are_few = disputed.len() <= MAX_CHOICES;
    let sets: Vec<&[usize]> = disputed.chunk_by(|a, b| !are_few && b - a == 1).collect();
    let is_feasible =
        sets.len() <= MAX_CHOICES && (tables.len() as u64) << sets.len() <= MAX_HASHED_BYTES;
    let n_mixtures = if is_feasible { 1u32 << sets.len() } else { 0 };
    // All as stored, all as the pages have them, then every mixture.
    [0, u32::MAX].into_iter().chain(1..n_mixtures).any(|from_page| {
        for (i, set) in sets.iter().enumerate() {
            let chosen = if from_page >> i.min(31) & 1 == 1 { sums } else { &stored };
            for &entry in *set {
                tables[4 * entry..][..4].copy_from_slice(&chosen[entry].to_le_bytes());
            }
        }
        *digest == *blake3::hash(tables).as_bytes()
    })
}

/// Returns the layout that a padded group index describes; `None` when it contradicts the rows.
fn layout(identity: &SegmentIdentity, codec: SegmentCodec, index: &[u8]) -> Option<SegmentLayout> {
    let (n_rows, row_bytes) = (identity.n_rows, identity.tensor.row_bytes());
    let SegmentCodec::Zstd { group_rows } = codec else {
        return SegmentLayout::new(n_rows, row_bytes).ok();
    };
    let lengths = words(index).take(n_rows.div_ceil(group_rows) as usize);
    SegmentLayout::grouped(n_rows, row_bytes, group_rows, lengths).ok()
}

/// Follows the stored groups from one to the next, `group_rows` rows each; returns the index of
/// their lengths, and their bytes in all. `None` when they lead past byte `data_end` of the rows.
///
/// A group is a zstd frame that is shorter than its rows, or the rows themselves. A found entry is
/// a guess until the digest confirms it: rows that look like such a frame are taken for one.
fn follow_groups(
    file: &dyn FileReader,
    identity: &SegmentIdentity,
    group_rows: u32,
    data_end: u64,
) -> Option<(Vec<u8>, u64)> {
    let row_bytes = identity.tensor.row_bytes() as u64;
    let mut buffer = vec![0; (u64::from(group_rows) * row_bytes) as usize];
    let (mut index, mut data_bytes, mut row) = (Vec::new(), 0, 0);
    while row < identity.n_rows {
        let n_rows = group_rows.min(identity.n_rows - row);
        let rows_bytes = u64::from(n_rows) * row_bytes;
        let n_bytes = rows_bytes.min(data_end.checked_sub(data_bytes)?) as usize;
        let bytes = &mut buffer[..n_bytes];
        read_some(file, DATA_OFFSET + data_bytes, bytes);
        let stored_bytes = frame_bytes(bytes, rows_bytes).unwrap_or(rows_bytes);
        index.extend_from_slice(&(stored_bytes as u32).to_le_bytes());
        data_bytes += stored_bytes;
        row += n_rows;
    }
    (data_bytes <= data_end).then_some((index, data_bytes))
}

/// Returns the length of the frame that `bytes` start with, if it is of `rows_bytes` bytes and
/// shorter.
fn frame_bytes(bytes: &[u8], rows_bytes: u64) -> Option<u64> {
    let content_bytes = get_frame_content_size(bytes).ok().flatten()?;
    let frame_bytes = find_frame_compressed_size(bytes).ok()? as u64;
    (content_bytes == rows_bytes && frame_bytes < rows_bytes).then_some(frame_bytes)
}

/// Returns the checksum of each of `n_pages` pages; what is gone or cannot be read of a page counts
/// as zeros.
fn page_sums(file: &dyn FileReader, segment: Uuid, n_pages: u64, n_threads: usize) -> Vec<u32> {
    let (checksum, sums) = (PageChecksum::new(segment), Mutex::new(vec![0; n_pages as usize]));
    for_each_stretch(n_pages, n_threads, &|pages, buffer| {
        read_pages(file, pages.clone(), buffer);
        let read = pages.clone().zip(buffer.chunks_exact(PAGE));
        let found: Vec<u32> = read.map(|(page, bytes)| checksum.of(page, bytes)).collect();
        let mut sums = sums.lock().ignore_poison();
        sums[pages.start as usize..pages.end as usize].copy_from_slice(&found);
    });
    sums.into_inner().ignore_poison()
}

/// Reads `pages` into `buffer`, with zeros where nothing can be read.
fn read_pages(file: &dyn FileReader, pages: Range<u64>, buffer: &mut Vec<u8>) {
    buffer.resize((pages.end - pages.start) as usize * PAGE, 0);
    if file.read_exact_at(buffer, DATA_OFFSET + pages.start * PAGE_BYTES).is_ok() {
        return;
    }
    for (page, bytes) in pages.zip(buffer.chunks_exact_mut(PAGE)) {
        read_some(file, DATA_OFFSET + page * PAGE_BYTES, bytes);
    }
}

/// Fills `bytes` from `offset` on as far as the file reaches and can be read, then with zeros.
fn read_some(file: &dyn FileReader, offset: u64, bytes: &mut [u8]) {
    let mut n_read = 0;
    while n_read < bytes.len() {
        match file.read_at(&mut bytes[n_read..], offset + n_read as u64) {
            Ok(n) if n > 0 => n_read += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    bytes[n_read..].fill(0);
}

fn words(bytes: &[u8]) -> impl ExactSizeIterator<Item = u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word))
}

/// Placeholder of a segment that is lost entirely: a file in which no page passes.
///
/// The graph opens, every other row is served, and each row of the lost segment is an error. Rows
/// can be put over it.
pub(super) struct Placeholder {
    pub(super) identity: SegmentIdentity,
    pub(super) digest: SegmentDigest,
    pub(super) bytes: Vec<u8>,
}

impl Placeholder {
    /// Returns the placeholder for the lost segment `identity`; the same at every call.
    ///
    /// Row groups of one byte each keep it small, whatever the rows are. `None` for rows that no
    /// segment can have.
    pub(super) fn of(lost: &SegmentIdentity) -> Option<Self> {
        let seed = [lost.segment.as_bytes().as_slice(), b"lost"].concat();
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&blake3::hash(&seed).as_bytes()[..16]);
        let segment = uuid::Builder::from_custom_bytes(uuid).into_uuid();
        let identity = SegmentIdentity { segment, ..lost.clone() };
        let row_bytes = identity.tensor.row_bytes();
        let group_rows = (MAX_GROUP_BYTES / row_bytes).max(1) as u32;
        let n_groups = identity.n_rows.div_ceil(group_rows);
        let lengths = (0..n_groups).map(|_| 1);
        let layout =
            SegmentLayout::grouped(identity.n_rows, row_bytes, group_rows, lengths).ok()?;
        let codec = SegmentCodec::Zstd { group_rows };
        let tables = failing_tables(segment, &layout, n_groups);
        let mut bytes = identity.header(codec).to_vec();
        bytes.resize(layout.table_offset() as usize, 0);
        bytes.extend_from_slice(&tables);
        bytes.extend_from_slice(&identity.footer(codec, &layout.sections(), &tables));
        Some(Self { identity, digest: blake3::hash(&tables).into(), bytes })
    }
}

fn failing_tables(segment: Uuid, layout: &SegmentLayout, n_groups: u32) -> Vec<u8> {
    let checksum = PageChecksum::new(segment);
    let zeros = [0; PAGE_BYTES as usize];
    let failing = (0..layout.n_pages()).map(|page| checksum.of(page, &zeros) ^ 1);
    let mut tables: Vec<u8> = failing.flat_map(u32::to_le_bytes).collect();
    tables.resize(tables.len().next_multiple_of(PAGE_BYTES as usize), 0);
    (0..n_groups).for_each(|_| tables.extend_from_slice(&1u32.to_le_bytes()));
    tables.resize(tables.len().next_multiple_of(PAGE_BYTES as usize), 0);
    tables
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::file_system::{Disk, FileSystem};
    use crate::fixture::{flip, identity, write_encoded};

    /// Returns a table of `n` checksums.
    fn truth(n: usize) -> Vec<u32> {
        (0..n as u32).map(|i| i.wrapping_mul(0x9e37_79b9) ^ 0x1234_5678).collect()
    }

    fn bytes(entries: &[u32]) -> Vec<u8> {
        entries.iter().flat_map(|entry| entry.to_le_bytes()).collect()
    }

    /// Returns whether a table whose entries and pages at these places are damaged is proven, and
    /// then is the right one.
    fn is_settled(n: usize, entries: &BTreeSet<usize>, pages: &BTreeSet<usize>) -> bool {
        let truth = truth(n);
        let damaged = |places: &BTreeSet<usize>, mask: u32| -> Vec<u32> {
            let damage =
                |(i, entry): (usize, &u32)| entry ^ (mask * u32::from(places.contains(&i)));
            truth.iter().enumerate().map(damage).collect()
        };
        let mut tables = bytes(&damaged(entries, 0xf0));
        let digest = blake3::hash(&bytes(&truth)).into();
        let is_proven = settle(&mut tables, &damaged(pages, 0x0f), &digest);
        assert!(!is_proven || tables == bytes(&truth));
        is_proven
    }

    proptest! {
        #[test]
        fn what_no_place_has_lost_twice_is_proven(
            n in 1usize..300,
            entries in prop::collection::btree_set(0usize..300, 0..6),
            pages in prop::collection::btree_set(0usize..300, 0..6),
        ) {
            let entries: BTreeSet<usize> = entries.into_iter().filter(|&i| i < n).collect();
            let pages: BTreeSet<usize> =
                pages.into_iter().filter(|i| *i < n && !entries.contains(i)).collect();
            prop_assert!(is_settled(n, &entries, &pages));
        }
    }

    #[test]
    fn a_torn_sector_of_the_table_beside_damaged_pages_is_proven() {
        let sector: BTreeSet<usize> = (128..256).collect();
        assert!(is_settled(1000, &sector, &BTreeSet::from([3, 300, 999])));
        // Damaged twice in one place: no way to choose is right.
        assert!(!is_settled(1000, &sector, &BTreeSet::from([130])));
        // A table that is gone is proven when all pages are sound, and pages by a sound table.
        let all: BTreeSet<usize> = (0..1000).collect();
        assert!(is_settled(1000, &all, &BTreeSet::new()));
        assert!(is_settled(1000, &BTreeSet::new(), &all));
        let scattered: BTreeSet<usize> = (0..1000).step_by(2).collect();
        assert!(is_settled(1000, &BTreeSet::new(), &scattered));
    }

    #[test]
    fn a_page_that_changes_after_it_was_looked_at_is_not_copied() {
        let dir = tempfile::tempdir().unwrap();
        let (path, identity) = (dir.path().join("a.seg"), identity(500, 99));
        let digest = write_encoded(&path, &identity, SegmentCodec::Raw);
        flip(&path, 100);
        flip(&path, 3 * PAGE_BYTES + 9);
        let file = Disk.open(&path).unwrap();
        let recovered = recover(&*file, &identity, &digest, 1).unwrap().unwrap();
        assert_eq!(recovered.lost_pages, [2]);
        let copy = |name: &str| {
            let mut out = Disk.create(&dir.path().join(name)).unwrap();
            recovered.write(&*Disk.open(&path).unwrap(), &mut *out)
        };
        copy("sound").unwrap();
        // The lost page may be anything.
        flip(&path, 3 * PAGE_BYTES + 19);
        copy("lost").unwrap();
        flip(&path, 7 * PAGE_BYTES + 1);
        let error = copy("changed").unwrap_err().to_string();
        assert!(error.contains("page 6"), "{error}");
        assert!(recover(&*file, &identity, &[0; 32], 1).unwrap().is_none());
    }
}
