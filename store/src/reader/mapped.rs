//! A reader over a memory map: best when the page cache holds the rows.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{RowReader, check_output};
use crate::error::StoreError;
use crate::layout::{DATA_OFFSET, PAGE_BYTES, SegmentLayout};
use crate::map::FileMap;
use crate::plan::ReadPlan;
use crate::segment::Segment;

/// Copies rows out of a mapped segment; checks each page when it is first touched.
///
/// Memory: one bit per page beside the segment's table. A page that goes bad on disk after its
/// first touch is noticed at the next opening, as with every use of the page cache.
#[derive(Debug)]
pub struct MappedReader {
    segment: Segment,
    map: FileMap,
    /// One bit per page: set once the page has been found sound.
    sound: Box<[AtomicU64]>,
}

impl MappedReader {
    /// Maps a segment.
    pub fn open(segment: Segment) -> Result<Self, StoreError> {
        let file = segment.file().as_file().ok_or_else(|| std::io::ErrorKind::Unsupported.into());
        let map = file.and_then(FileMap::of).map_err(StoreError::io(segment.path(), "map"))?;
        let expected = segment.layout().file_bytes();
        if map.len() as u64 != expected {
            let (file, found) = (segment.path().to_owned(), map.len() as u64);
            return Err(StoreError::FileLength { file, expected, found });
        }
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
                let start = (DATA_OFFSET + page * PAGE_BYTES) as usize;
                self.segment.check_page(page, &self.map[start..start + PAGE_BYTES as usize])?;
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

impl RowReader for MappedReader {
    fn layout(&self) -> &SegmentLayout {
        self.segment.layout()
    }

    fn execute(&self, plan: &ReadPlan, out: &mut [u8]) -> Result<(), StoreError> {
        check_output(plan, self.layout(), out)?;
        let row_bytes = self.layout().row_bytes();
        // Only pages that hold rows are touched: reading through a gap gains nothing here.
        for row in &plan.rows {
            let extent = &plan.extents[row.extent as usize];
            let start = extent.first_page * PAGE_BYTES + u64::from(row.offset_bytes);
            let end = start + row_bytes as u64;
            self.check_pages(start / PAGE_BYTES, end.div_ceil(PAGE_BYTES))?;
            let (from, to) = ((DATA_OFFSET + start) as usize, row.out_row as usize * row_bytes);
            out[to..to + row_bytes].copy_from_slice(&self.map[from..from + row_bytes]);
        }
        Ok(())
    }
}
