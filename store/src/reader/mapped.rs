//! A reader over a memory map: best when the page cache holds the rows.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lodestore_graph::prefetch::prefetch_all;

use super::{ReaderKind, RowReader, available_memory_bytes, check_output, choose, whole_rows};
use crate::error::StoreError;
use crate::layers::{Finder, Place};
use crate::layout::{DATA_OFFSET, SegmentLayout};
use crate::limits::PAGE_BYTES;
use crate::map::FileMap;
use crate::plan::{DiskProfile, ReadPlan};
use crate::row::RowIdx;
use crate::segment::{Segment, SoundBytes};

/// Rows are asked of the processor this many bytes before they are copied.
const AHEAD_BYTES: usize = 8 << 10;
/// Rows between two steps of a copy at most, however short they are.
const MAX_AHEAD: usize = 64;

/// Copies rows out of a mapped segment; checks each page when it is first touched.
///
/// Memory: one bit per page beside the segment's table. A page that goes bad on disk after its
/// first touch is noticed at the next opening, as with every use of the page cache. One that the
/// system threw out of memory and then cannot read again ends the process with SIGBUS.
#[derive(Debug)]
pub struct MappedReader {
    segment: Arc<Segment>,
    map: FileMap,
    /// One bit per page: set once the page has been found sound.
    sound: Box<[AtomicU64]>,
}

impl MappedReader {
    /// Maps a segment.
    pub fn open(segment: impl Into<Arc<Segment>>) -> Result<Self, StoreError> {
        let segment = segment.into();
        let file = segment.file().as_file().ok_or_else(|| std::io::ErrorKind::Unsupported.into());
        let map = file.and_then(FileMap::of).map_err(StoreError::io(segment.path(), "map"))?;
        let expected = segment.layout().file_bytes();
        if map.len() as u64 != expected {
            let (file, found) = (segment.path().to_owned(), map.len() as u64);
            return Err(StoreError::FileLength { file, expected, found });
        }
        let stays = choose(expected, available_memory_bytes()).0 == ReaderKind::Mapped;
        map.expect_random_reads(stays);
        let n_words = segment.layout().n_pages().div_ceil(64);
        let sound = (0..n_words).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { segment, map, sound })
    }

    /// Returns the segment behind the map.
    #[must_use]
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Checks the pages from `first` to before `end` that were not checked yet.
    #[inline]
    fn check_pages(&self, first: u64, end: u64) -> Result<(), StoreError> {
        for page in first..end {
            let (word, bit) = (&self.sound[(page / 64) as usize], 1 << (page % 64));
            // Relaxed: the bit says something about bytes that never change, and orders nothing.
            if word.load(Ordering::Relaxed) & bit == 0 {
                self.check_page(page)?;
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    #[cold]
    fn check_page(&self, page: u64) -> Result<(), StoreError> {
        let offset_bytes = DATA_OFFSET + page * PAGE_BYTES;
        let bytes = offset_bytes as usize..(offset_bytes + PAGE_BYTES) as usize;
        if let Err(error) = self.map.bring_in(bytes.clone()) {
            // The kernel says only that it cannot; a plain read says why, or that it can.
            tracing::debug!("{}: page {page}: {error}", self.segment.path().display());
            let mut read = [0; PAGE_BYTES as usize];
            let why = self.segment.file().read_exact_at(&mut read, offset_bytes);
            why.map_err(|source| {
                let file = self.segment.path().to_owned();
                StoreError::Read { file, offset_bytes, source }
            })?;
        }
        self.segment.check_page(page, &self.map[bytes])
    }

    /// Returns whether all of these rows and their output rows exist.
    fn has_all(&self, rows: &[(RowIdx, u32)], out: &[u8]) -> bool {
        let (n_rows, out_rows) = (self.layout().n_rows(), whole_rows(self.layout(), out));
        rows.iter().fold(true, |all, &(row, out_row)| all & (row.0 < n_rows) & (out_row < out_rows))
    }

    /// Returns the rows of a segment without groups, one after the other.
    fn packed(&self) -> &[u8] {
        &self.map[DATA_OFFSET as usize..]
    }

    /// Returns the row at `start` among the packed rows, once its pages have been found sound.
    #[inline]
    fn packed_row(&self, start: usize, row_bytes: usize) -> Result<&[u8], StoreError> {
        let (first, end) = (start as u64 / PAGE_BYTES, (start + row_bytes) as u64);
        self.check_pages(first, end.div_ceil(PAGE_BYTES))?;
        Ok(&self.packed()[start..start + row_bytes])
    }
}

/// Copies rows, given with their output rows, out of layers of a tensor. The first layer has every
/// row, and `finder` says which layer has the newest value.
///
/// Returns `false`, and copies nothing, where a layer has groups, or a row or an output row does
/// not exist: a plan is for these.
pub(crate) fn gather_mapped(
    layers: &[&MappedReader],
    finder: &impl Finder,
    rows: &[(RowIdx, u32)],
    out: &mut [u8],
) -> Result<bool, StoreError> {
    let has_groups = layers.iter().any(|layer| layer.layout().groups().is_some());
    if has_groups || !layers[0].has_all(rows, out) {
        return Ok(false);
    }
    check_output(whole_rows(layers[0].layout(), out), layers[0].layout(), out)?;
    copy_packed(layers, finder, rows.len(), |i| rows[i], out)?;
    Ok(true)
}

/// Copies `n` rows of layers without groups, in any order, each to its place in `out`. A row, which
/// must exist, and its output row come from `at`.
///
/// A row goes through four steps, some rows apart, so that the memory that a step needs has come.
/// The steps are the two look-ups of its place, the request of its bytes, and the copy.
fn copy_packed(
    layers: &[&MappedReader],
    finder: &impl Finder,
    n: usize,
    at: impl Fn(usize) -> (RowIdx, u32),
    out: &mut [u8],
) -> Result<(), StoreError> {
    let row_bytes = layers[0].layout().row_bytes();
    let apart = (AHEAD_BYTES / row_bytes).clamp(1, MAX_AHEAD).min(n);
    let (mut entries, mut places) = ([0; MAX_AHEAD], [Place::default(); MAX_AHEAD]);
    // Later steps come first: they use what earlier ones replace.
    for step in 0..n + 3 * apart {
        if let Some(i) = step.checked_sub(3 * apart) {
            let (Place { layer, row }, to) = (places[i % MAX_AHEAD], at(i).1 as usize * row_bytes);
            let start = row.0 as usize * row_bytes;
            let bytes = layers[layer as usize].packed_row(start, row_bytes)?;
            out[to..to + row_bytes].copy_from_slice(bytes);
        }
        if let Some(i) = step.checked_sub(2 * apart).filter(|&i| i < n) {
            let place = finder.place(at(i).0, entries[i % MAX_AHEAD]);
            let start = place.row.0 as usize * row_bytes;
            prefetch_all(&layers[place.layer as usize].packed()[start..start + row_bytes]);
            places[i % MAX_AHEAD] = place;
        }
        if let Some(i) = step.checked_sub(apart).filter(|&i| i < n) {
            entries[i % MAX_AHEAD] = finder.entry(at(i).0);
        }
        if step < n {
            finder.prefetch(at(step).0);
        }
    }
    Ok(())
}

/// A single layer.
struct OneLayer;

impl Finder for OneLayer {
    fn prefetch(&self, _: RowIdx) {}

    fn entry(&self, _: RowIdx) -> u32 {
        0
    }

    fn place(&self, row: RowIdx, _: u32) -> Place {
        Place { layer: 0, row }
    }
}

impl<'a> SoundBytes<'a> for &'a MappedReader {
    fn sound(&mut self, span: Range<u64>) -> Result<&'a [u8], StoreError> {
        self.check_pages(span.start / PAGE_BYTES, span.end.div_ceil(PAGE_BYTES))?;
        let (start, end) = (DATA_OFFSET + span.start, DATA_OFFSET + span.end);
        Ok(&self.map[start as usize..end as usize])
    }
}

impl RowReader for MappedReader {
    fn layout(&self) -> &SegmentLayout {
        self.segment.layout()
    }

    /// Touches only pages that hold rows: reading through a gap gains nothing here.
    fn execute(&self, plan: &ReadPlan, out: &mut [u8]) -> Result<(), StoreError> {
        check_output(plan.out_rows(), self.layout(), out)?;
        let rows = plan.rows();
        match self.layout().groups() {
            None => {
                let at = |i: usize| (rows[i].row, rows[i].out_row);
                copy_packed(&[self], &OneLayer, rows.len(), at, out)
            }
            Some(groups) => self.segment.copy_groups(groups, rows, out, self),
        }
    }

    /// Copies packed rows in the order requested: sorting them costs more than it saves.
    fn gather(
        &self,
        rows: &[(RowIdx, u32)],
        profile: &DiskProfile,
        plan: &mut ReadPlan,
        out: &mut [u8],
    ) -> Result<(), StoreError> {
        if gather_mapped(&[self], &OneLayer, rows, out)? {
            return Ok(());
        }
        let layout = self.layout();
        plan.build_scattered(rows, whole_rows(layout, out), layout, profile)?;
        self.execute(plan, out)
    }

    fn as_mapped(&self) -> Option<&MappedReader> {
        Some(self)
    }
}
