//! Read plans: which pages to read, in which pieces, and where each row goes.
//!
//! A plan is pure: rows, the segment's layout and a device profile go in; extents come out.
//! Readers execute plans and decide nothing.

mod apart;
mod error;
mod profile;

pub use error::PlanError;
pub use profile::DeviceProfile;

use crate::layout::{DATA_OFFSET, PAGE_BYTES, SegmentLayout};
use crate::limits::MAX_EXTENT_BYTES;
use crate::row::RowIdx;

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
    /// Byte of the segment file at which the extent starts; page-aligned.
    #[must_use]
    pub const fn offset_bytes(&self) -> u64 {
        DATA_OFFSET + self.first_page * PAGE_BYTES
    }

    /// Bytes of the extent; whole pages.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.n_pages as usize * PAGE_BYTES as usize
    }
}

/// Where one asked-for row lies in the plan's extents and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedRow {
    /// Row of the output.
    pub out_row: u32,
    /// Position in [`ReadPlan::extents`].
    pub extent: u32,
    /// First byte of the row, counted from the extent's start.
    pub offset_bytes: u32,
}

/// Deduplicated, sorted, coalesced extents, and where each row goes.
///
/// Invariant: extents ascend and do not overlap, but for one case: where the 1 MiB limit cuts a
/// run, the next extent may start with the last page of the one before. `rows` is sorted by place
/// in the segment, so the rows of one extent are neighbours.
#[derive(Clone, Debug, Default)]
pub struct ReadPlan {
    /// What to read, ascending.
    pub extents: Vec<Extent>,
    /// Every asked-for row once, by place in the segment; duplicates stay.
    pub rows: Vec<PlannedRow>,
    out_rows: u32,
    /// Scratch: row in the upper half, output row in the lower half.
    keys: Vec<u64>,
}

impl ReadPlan {
    /// Plans `rows`, in any order and with duplicates, to output rows `0..rows.len()`.
    ///
    /// Reuses the plan's memory. After an error the plan is empty.
    pub fn build(
        &mut self,
        rows: &[RowIdx],
        layout: &SegmentLayout,
        profile: &DeviceProfile,
    ) -> Result<(), PlanError> {
        self.clear();
        let found = rows.len();
        self.out_rows = u32::try_from(found).map_err(|_| PlanError::TooManyRows { found })?;
        let pairs = rows.iter().zip(0u32..).map(|(&row, out_row)| (row, out_row));
        self.take_keys(pairs, layout)?;
        self.coalesce(layout, profile.max_gap_pages());
        Ok(())
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
        profile: &DeviceProfile,
    ) -> Result<(), PlanError> {
        self.clear();
        if u32::try_from(rows.len()).is_err() {
            return Err(PlanError::TooManyRows { found: rows.len() });
        }
        if let Some(&(_, out_row)) = rows.iter().find(|&&(_, out_row)| out_row >= out_rows) {
            return Err(PlanError::NoOutputRow { out_row, out_rows });
        }
        self.out_rows = out_rows;
        self.take_keys(rows.iter().copied(), layout)?;
        self.coalesce(layout, profile.max_gap_pages());
        Ok(())
    }

    /// Rows of the output that the plan writes into.
    #[must_use]
    pub fn out_rows(&self) -> u32 {
        self.out_rows
    }

    /// Each extent with its rows, which are at least one.
    pub fn by_extent(&self) -> impl Iterator<Item = (&Extent, &[PlannedRow])> {
        self.extents.iter().zip(self.rows.chunk_by(|a, b| a.extent == b.extent))
    }

    /// Bytes that the extents read.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.extents.iter().map(|extent| u64::from(extent.n_pages) * PAGE_BYTES).sum()
    }

    /// The physical limit of executing the plan: the sum of 1 / IOPS + bytes / bandwidth.
    #[must_use]
    pub fn ideal_seconds(&self, profile: &DeviceProfile) -> f64 {
        self.extents.len() as f64 / profile.iops
            + self.read_bytes() as f64 / profile.bandwidth_bytes_per_s
    }

    fn clear(&mut self) {
        self.extents.clear();
        self.rows.clear();
        self.keys.clear();
        self.out_rows = 0;
    }

    /// Checks the rows and sorts them by place.
    fn take_keys(
        &mut self,
        pairs: impl Iterator<Item = (RowIdx, u32)>,
        layout: &SegmentLayout,
    ) -> Result<(), PlanError> {
        let n_rows = layout.n_rows();
        self.keys.extend(pairs.map(|(row, out)| u64::from(row.0) << 32 | u64::from(out)));
        if let Some(position) = self.keys.iter().position(|key| key >> 32 >= u64::from(n_rows)) {
            let row = RowIdx((self.keys[position] >> 32) as u32);
            self.clear();
            return Err(PlanError::NoRow { row, position, n_rows });
        }
        self.keys.sort_unstable();
        Ok(())
    }

    /// Turns sorted keys into extents: a row joins the last extent when that is cheaper than a
    /// request of its own and the extent stays within its limit.
    fn coalesce(&mut self, layout: &SegmentLayout, max_gap_pages: u64) {
        let row_bytes = layout.row_bytes() as u64;
        self.rows.reserve(self.keys.len());
        let (mut first_page, mut end_page) = (0u64, 0u64);
        for &key in &self.keys {
            let start = (key >> 32) * row_bytes;
            let (first, end) = (start / PAGE_BYTES, (start + row_bytes).div_ceil(PAGE_BYTES));
            let joins = first <= end_page.saturating_add(max_gap_pages)
                && end - first_page <= MAX_EXTENT_PAGES;
            // A row that lies within the extent always belongs to it, whatever its length.
            if self.extents.is_empty() || !(joins || end <= end_page) {
                self.extents.push(Extent { first_page: first, n_pages: 0 });
                (first_page, end_page) = (first, end);
            }
            end_page = end_page.max(end);
            let extent = self.extents.len() - 1;
            self.extents[extent].n_pages = (end_page - first_page) as u32;
            self.rows.push(PlannedRow {
                out_row: key as u32,
                extent: extent as u32,
                offset_bytes: (start - first_page * PAGE_BYTES) as u32,
            });
        }
    }
}

#[cfg(test)]
mod tests;
