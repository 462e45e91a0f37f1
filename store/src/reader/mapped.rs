//! A reader over a memory map: best when the page cache holds the rows.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lodestore_graph::prefetch::prefetch_all;

use super::{ReaderKind, RowReader, available_memory_bytes, check_output, choose, whole_rows};
use crate::error::StoreError;
use crate::layout::{DATA_OFFSET, PAGE_BYTES, SegmentLayout};
use crate::map::FileMap;
use crate::plan::{DeviceProfile, PlannedRow, ReadPlan};
use crate::row::RowIdx;
use crate::segment::{Segment, SoundBytes};

/// Rows are asked of the processor this many bytes before they are copied.
const AHEAD_BYTES: usize = 8 << 10;

/// Copies rows out of a mapped segment; checks each page when it is first touched.
///
/// Memory: one bit per page beside the segment's table. A page that goes bad on disk after its
/// first touch is noticed at the next opening, as with every use of the page cache; one that the
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

    /// The segment behind the map.
    #[must_use]
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Checks the pages from `first` to before `end` that nobody has checked yet.
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

    /// Copies rows that lie as they are, `n` of them, in any order, each to its place in `out`:
    /// `at` gives a row, which is below the number of rows, and its output row.
    fn copy_packed(
        &self,
        n: usize,
        at: impl Fn(usize) -> (RowIdx, u32),
        out: &mut [u8],
    ) -> Result<(), StoreError> {
        let row_bytes = self.layout().row_bytes();
        let rows = &self.map[DATA_OFFSET as usize..];
        let place = |i: usize| {
            let span = self.layout().packed_span(at(i).0);
            span.start as usize..span.end as usize
        };
        let n_ahead = (AHEAD_BYTES / row_bytes).max(1);
        for i in 0..n.min(n_ahead) {
            prefetch_all(&rows[place(i)]);
        }
        for i in 0..n {
            if i + n_ahead < n {
                prefetch_all(&rows[place(i + n_ahead)]);
            }
            let (span, to) = (place(i), at(i).1 as usize * row_bytes);
            let (first, end) = (span.start as u64 / PAGE_BYTES, span.end as u64);
            self.check_pages(first, end.div_ceil(PAGE_BYTES))?;
            out[to..to + row_bytes].copy_from_slice(&rows[span]);
        }
        Ok(())
    }

    /// Copies planned rows, in the order of their places.
    fn copy_planned(&self, rows: &[PlannedRow], out: &mut [u8]) -> Result<(), StoreError> {
        match self.layout().groups() {
            None => self.copy_packed(rows.len(), |i| (rows[i].row, rows[i].out_row), out),
            Some(groups) => self.segment.copy_groups(groups, rows, out, self),
        }
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
        self.copy_planned(plan.rows(), out)
    }

    /// Rows that lie as they are get copied in the order asked for: sorting them costs more than
    /// it saves.
    fn gather(
        &self,
        rows: &[(RowIdx, u32)],
        profile: &DeviceProfile,
        plan: &mut ReadPlan,
        out: &mut [u8],
    ) -> Result<(), StoreError> {
        let layout = self.layout();
        let (n_rows, out_rows) = (layout.n_rows(), whole_rows(layout, out));
        let unknown = |&(row, out_row): &(RowIdx, u32)| row.0 >= n_rows || out_row >= out_rows;
        // Rows that do not exist are left to the plan to refuse.
        if layout.groups().is_some() || rows.iter().fold(false, |any, pair| any | unknown(pair)) {
            plan.build_scattered(rows, out_rows, layout, profile)?;
            return self.execute(plan, out);
        }
        check_output(out_rows, layout, out)?;
        self.copy_packed(rows.len(), |i| rows[i], out)
    }
}
