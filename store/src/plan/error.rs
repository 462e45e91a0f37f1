//! Why rows cannot be planned.

use thiserror::Error;

use crate::row::RowIdx;

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
