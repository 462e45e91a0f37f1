//! Read plans: which pages to read, in which pieces, and where each row goes.
//!
//! A plan is pure: rows, the segment's layout and a device profile go in; extents come out.
//! Readers execute plans and decide nothing.

mod sort;

use std::ops::Range;

use thiserror::Error;

use crate::layout::{DATA_OFFSET, SegmentLayout};
use crate::limits::{MAX_EXTENT_BYTES, PAGE_BYTES};
use crate::row::RowIdx;
use sort::sort_by_row;

const MAX_EXTENT_PAGES: u64 = MAX_EXTENT_BYTES / PAGE_BYTES;

/// Consecutive pages of a segment, to be read by one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First page, counted from the first row.
    pub first_page: u64,
    /// Number of pages, at least 1.
    pub n_pages: u32,
}

impl Extent {
    /// Returns the byte of the segment file at which the extent starts; page-aligned.
    #[must_use]
    pub const fn offset_bytes(&self) -> u64 {
        DATA_OFFSET + self.first_page * PAGE_BYTES
    }

    /// Returns the bytes of the extent; whole pages.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.n_pages as usize * PAGE_BYTES as usize
    }
}

/// One requested row and its destination; the layout knows its offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannedRow {
    /// Row of the segment.
    pub row: RowIdx,
    /// Row of the output.
    pub out_row: u32,
}

/// Deduplicated, sorted, coalesced extents, and where each row goes.
///
/// Invariant: extents ascend and do not overlap, with one exception. Where the 1 MiB limit cuts a
/// run, the next extent may start with the last page of the one before. Rows ascend, so the rows of
/// one extent are neighbours. Each row, or the whole row group that it is in, is within its extent.
/// So no group is in two extents.
#[derive(Clone, Debug, Default)]
pub struct ReadPlan {
    extents: Vec<Extent>,
    /// Per extent: the end of its rows in `rows`.
    row_ends: Vec<u32>,
    rows: Vec<PlannedRow>,
    out_rows: u32,
    /// Scratch of the sort.
    spare: Vec<PlannedRow>,
}

impl ReadPlan {
    /// Plans `rows`, in any order and with duplicates, to output rows `0..rows.len()`.
    ///
    /// Reuses the plan's memory. After an error the plan is empty.
    pub fn build(
        &mut self,
        rows: &[RowIdx],
        layout: &SegmentLayout,
        profile: &DiskProfile,
    ) -> Result<(), PlanError> {
        self.take_in_order(rows)?;
        self.finish(layout, profile)
    }

    /// Plans pairs of a row and its output row, for an output of `out_rows` rows that other plans
    /// fill in other places.
    ///
    /// Reuses the plan's memory. After an error the plan is empty.
    pub fn build_scattered(
        &mut self,
        rows: &[(RowIdx, u32)],
        out_rows: u32,
        layout: &SegmentLayout,
        profile: &DiskProfile,
    ) -> Result<(), PlanError> {
        self.clear();
        if u32::try_from(rows.len()).is_err() {
            return Err(PlanError::TooManyRows { found: rows.len() });
        }
        if let Some(&(_, out_row)) = rows.iter().find(|&&(_, out_row)| out_row >= out_rows) {
            return Err(PlanError::NoOutputRow { out_row, out_rows });
        }
        self.out_rows = out_rows;
        self.rows.extend(rows.iter().map(|&(row, out_row)| PlannedRow { row, out_row }));
        self.finish(layout, profile)
    }

    /// Returns the rows of the output that the plan writes into.
    #[must_use]
    pub fn out_rows(&self) -> u32 {
        self.out_rows
    }

    /// Returns what to read, ascending.
    #[must_use]
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Returns every planned row, ascending; duplicates stay.
    #[must_use]
    pub fn rows(&self) -> &[PlannedRow] {
        &self.rows
    }

    /// Returns the rows that the extent at this position of [`ReadPlan::extents`] was planned for.
    ///
    /// # Panics
    /// When there is no such extent.
    #[must_use]
    pub fn rows_of(&self, extent: usize) -> &[PlannedRow] {
        let start = extent.checked_sub(1).map_or(0, |before| self.row_ends[before]);
        &self.rows[start as usize..self.row_ends[extent] as usize]
    }

    /// Returns each extent with its rows, which are at least one.
    pub fn by_extent(&self) -> impl ExactSizeIterator<Item = (&Extent, &[PlannedRow])> {
        self.extents.iter().enumerate().map(|(i, extent)| (extent, self.rows_of(i)))
    }

    /// Returns the bytes that the extents read.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.extents.iter().map(|extent| u64::from(extent.n_pages) * PAGE_BYTES).sum()
    }

    fn clear(&mut self) {
        self.extents.clear();
        self.row_ends.clear();
        self.rows.clear();
        self.out_rows = 0;
    }

    /// Takes rows to output rows `0..rows.len()`.
    fn take_in_order(&mut self, rows: &[RowIdx]) -> Result<(), PlanError> {
        self.clear();
        let found = rows.len();
        self.out_rows = u32::try_from(found).map_err(|_| PlanError::TooManyRows { found })?;
        let rows = rows.iter().zip(0u32..);
        self.rows.extend(rows.map(|(&row, out_row)| PlannedRow { row, out_row }));
        Ok(())
    }

    /// Checks the rows taken, sorts them by place and finds their extents.
    fn finish(&mut self, layout: &SegmentLayout, profile: &DiskProfile) -> Result<(), PlanError> {
        self.sort_rows(layout)?;
        let max_gap_pages = profile.max_gap_pages();
        match layout.groups() {
            None => self.coalesce(max_gap_pages, |row| layout.packed_span(row)),
            Some(groups) => self.coalesce(max_gap_pages, |row| groups.span_of_row(row)),
        }
        Ok(())
    }

    /// Checks the rows taken and sorts them by place.
    fn sort_rows(&mut self, layout: &SegmentLayout) -> Result<(), PlanError> {
        let n_rows = layout.n_rows();
        if self.rows.iter().fold(false, |any, planned| any | (planned.row.0 >= n_rows)) {
            let position = self.rows.iter().position(|planned| planned.row.0 >= n_rows);
            let position = position.unwrap_or_default();
            let row = self.rows[position].row;
            self.clear();
            return Err(PlanError::NoRow { row, position, n_rows });
        }
        sort_by_row(&mut self.rows, &mut self.spare, n_rows);
        Ok(())
    }

    /// Turns sorted rows into extents. A row joins the last extent when that is cheaper than a
    /// request of its own and the extent stays within its limit.
    fn coalesce(&mut self, max_gap_pages: u64, span_of: impl Fn(RowIdx) -> Range<u64>) {
        let Some(first) = self.rows.first() else { return };
        let pages_of = |row| {
            let span = span_of(row);
            (span.start / PAGE_BYTES, span.end.div_ceil(PAGE_BYTES))
        };
        let (mut first_page, mut end_page) = pages_of(first.row);
        for (planned, n_before) in self.rows.iter().zip(0u32..).skip(1) {
            let (first, end) = pages_of(planned.row);
            // A row that is within the extent always belongs to it, at any length.
            let joins = end <= end_page
                || first <= end_page.saturating_add(max_gap_pages)
                    && end - first_page <= MAX_EXTENT_PAGES;
            if !joins {
                let n_pages = (end_page - first_page) as u32;
                self.extents.push(Extent { first_page, n_pages });
                self.row_ends.push(n_before);
                (first_page, end_page) = (first, end);
            }
            end_page = end_page.max(end);
        }
        self.extents.push(Extent { first_page, n_pages: (end_page - first_page) as u32 });
        self.row_ends.push(self.rows.len() as u32);
    }

    /// Plans without joining anything, as other stores do: one read for each of `rows`, duplicates
    /// included, to output rows `0..rows.len()`.
    ///
    /// Reuses the plan's memory. After an error the plan is empty.
    pub fn build_apart(
        &mut self,
        rows: &[RowIdx],
        layout: &SegmentLayout,
    ) -> Result<(), PlanError> {
        self.take_in_order(rows)?;
        self.sort_rows(layout)?;
        for (planned, n_rows) in self.rows.iter().zip(1u32..) {
            let pages = layout.row_pages(planned.row).unwrap_or_default();
            let n_pages = (pages.end - pages.start) as u32;
            self.extents.push(Extent { first_page: pages.start, n_pages });
            self.row_ends.push(n_rows);
        }
        Ok(())
    }
}

/// Rates of a device under many concurrent requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskProfile {
    /// Random page reads per second with a deep queue.
    pub iops: f64,
    /// Sequential bytes per second.
    pub bandwidth_bytes_per_s: f64,
}

impl Default for DiskProfile {
    /// Returns a common NVMe disk behind virtio; reading through gaps of up to 16 KiB pays.
    fn default() -> Self {
        Self { iops: 90_000.0, bandwidth_bytes_per_s: 1.8e9 }
    }
}

impl DiskProfile {
    /// Returns whether some device could be so: 1 to 10⁹ requests and 1 kB to 1 PB per second.
    #[must_use]
    pub fn is_sensible(&self) -> bool {
        (1.0..=1e9).contains(&self.iops) && (1e3..=1e15).contains(&self.bandwidth_bytes_per_s)
    }

    /// Returns the seconds that a request of `n_bytes` costs the device.
    #[must_use]
    pub fn request_seconds(&self, n_bytes: u64) -> f64 {
        1.0 / self.iops + n_bytes as f64 / self.bandwidth_bytes_per_s
    }

    /// Returns the most pages worth reading through: gap bytes / bandwidth < 1 / IOPS.
    ///
    /// 0 for a profile without sense (zero, negative or not a number).
    #[must_use]
    pub fn max_gap_pages(&self) -> u64 {
        let pages = self.bandwidth_bytes_per_s / self.iops / PAGE_BYTES as f64;
        if !(self.iops > 0.0 && pages > 0.0) {
            return 0;
        }
        // Strictly below: a gap that costs exactly one request is not joined. Saturating cast.
        (pages.ceil() - 1.0).max(0.0) as u64
    }
}

/// Why rows cannot be planned.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// A row past the end of the segment.
    #[error("row {row} at position {position} of the request; the partition has {n_rows} rows")]
    NoRow {
        /// Row asked for.
        row: RowIdx,
        /// Its position in the request.
        position: usize,
        /// Rows of the segment.
        n_rows: u32,
    },
    /// An output row past the end of the output.
    #[error("output row {out_row}; the output has {out_rows} rows")]
    NoOutputRow {
        /// Output row asked for.
        out_row: u32,
        /// Rows of the output.
        out_rows: u32,
    },
    /// More rows than one plan can count.
    #[error("{found} rows in one plan; the limit is {}", u32::MAX)]
    TooManyRows {
        /// Rows asked for.
        found: usize,
    },
}

#[cfg(test)]
mod tests;
