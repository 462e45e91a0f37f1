//! Rows of another source, with elements of another type.

use std::path::Path;

use super::{SourceError, TensorSource};
use crate::convert::{Unfit, narrow};
use crate::dtype::Dtype;

/// A source whose elements are converted as they are copied.
///
/// To a float, elements are rounded to the nearest, and a finite one that would become infinite is
/// an error. To an integer, only integers within its range pass. Errors name row and column.
pub struct ConvertedSource {
    source: Box<dyn TensorSource>,
    to: Dtype,
}

impl ConvertedSource {
    /// Returns the rows of `source` with elements of type `to`.
    #[must_use]
    pub fn new(source: Box<dyn TensorSource>, to: Dtype) -> Self {
        Self { source, to }
    }
}

impl TensorSource for ConvertedSource {
    fn dtype(&self) -> Dtype {
        self.to
    }

    fn width(&self) -> u64 {
        self.source.width()
    }

    fn n_rows(&self) -> u64 {
        self.source.n_rows()
    }

    fn path(&self) -> &Path {
        self.source.path()
    }

    fn copy_rows(&self, rows: &[u32], out: &mut [u8]) -> Result<(), SourceError> {
        let from = self.source.dtype();
        let mut bytes = vec![0; out.len() / self.to.size_bytes() * from.size_bytes()];
        self.source.copy_rows(rows, &mut bytes)?;
        narrow(from, &bytes, self.to, out).map_err(|Unfit { element, value }| {
            let width = self.width() as usize;
            SourceError::Unfit {
                file: self.path().to_owned(),
                row: rows[element / width],
                column: element % width,
                value,
                dtype: self.to,
            }
        })
    }
}
