//! Plans that join nothing: what other stores do, to be measured against.

use super::{Extent, PlanError, PlannedRow, ReadPlan};
use crate::layout::{PAGE_BYTES, SegmentLayout};
use crate::row::RowIdx;

impl ReadPlan {
    /// Plans one read for each of `rows`, duplicates included, to output rows `0..rows.len()`.
    ///
    /// Reuses the plan's memory. After an error the plan is empty.
    pub fn build_apart(
        &mut self,
        rows: &[RowIdx],
        layout: &SegmentLayout,
    ) -> Result<(), PlanError> {
        self.clear();
        let found = rows.len();
        self.out_rows = u32::try_from(found).map_err(|_| PlanError::TooManyRows { found })?;
        let pairs = rows.iter().zip(0u32..).map(|(&row, out_row)| (row, out_row));
        self.take_keys(pairs, layout)?;
        let row_bytes = layout.row_bytes() as u64;
        for (&key, extent) in self.keys.iter().zip(0u32..) {
            let start = (key >> 32) * row_bytes;
            let (first_page, end) = (start / PAGE_BYTES, (start + row_bytes).div_ceil(PAGE_BYTES));
            self.extents.push(Extent { first_page, n_pages: (end - first_page) as u32 });
            let offset_bytes = (start % PAGE_BYTES) as u32;
            self.rows.push(PlannedRow { out_row: key as u32, extent, offset_bytes });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_read_of_its_own() {
        let layout = SegmentLayout::new(100, 400).unwrap();
        let rows = [RowIdx(99), RowIdx(10), RowIdx(11), RowIdx(10)];
        let mut plan = ReadPlan::default();
        plan.build_apart(&rows, &layout).unwrap();
        let reads: Vec<_> = plan.by_extent().map(|(extent, rows)| (*extent, rows.len())).collect();
        let expected = [10, 10, 11, 99].map(|row| {
            let pages = layout.row_pages(RowIdx(row)).unwrap();
            let n_pages = (pages.end - pages.start) as u32;
            (Extent { first_page: pages.start, n_pages }, 1)
        });
        assert_eq!(reads, expected);
        assert!(plan.build_apart(&[RowIdx(100)], &layout).is_err());
        assert_eq!(plan.out_rows(), 0);
    }
}
