//! Plans that join nothing: what other stores do, to be measured against.

use super::{Extent, PlanError, PlannedRow, ReadPlan};
use crate::layout::SegmentLayout;
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
        self.rows
            .extend(rows.iter().zip(0u32..).map(|(&row, out_row)| PlannedRow { row, out_row }));
        self.take_rows(layout)?;
        for (planned, n_rows) in self.rows.iter().zip(1u32..) {
            let pages = layout.row_pages(planned.row).unwrap_or_default();
            let n_pages = (pages.end - pages.start) as u32;
            self.extents.push(Extent { first_page: pages.start, n_pages });
            self.row_ends.push(n_rows);
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
