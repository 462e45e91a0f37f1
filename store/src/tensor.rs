//! Description of a tensor: a name, an element type and a width.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::dtype::Dtype;
use crate::limits::{MAX_ROW_BYTES, MAX_TENSOR_NAME_BYTES};

/// A named tensor of a graph: one row of `width` elements per node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorSpec {
    /// Name, 1 to 64 of `a-z A-Z 0-9 _ -`; it becomes part of file names.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Elements per row, at least 1.
    pub width: u32,
}

/// Why a tensor cannot be stored.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TensorSpecError {
    /// The name is empty, too long, or holds other characters.
    #[error(
        "tensor name {found:?} must be 1 to {MAX_TENSOR_NAME_BYTES} of a-z A-Z 0-9 _ - \
         and must not start with -"
    )]
    Name {
        /// Name given.
        found: String,
    },
    /// A row without elements.
    #[error("tensor `{name}` has width 0; a row needs at least one element")]
    ZeroWidth {
        /// Name of the tensor.
        name: String,
    },
    /// A row above the limit.
    #[error("tensor `{name}` has rows of {found_bytes} bytes, the limit is {MAX_ROW_BYTES}")]
    RowTooLong {
        /// Name of the tensor.
        name: String,
        /// Bytes of one row.
        found_bytes: u64,
    },
}

impl TensorSpec {
    /// Returns a checked tensor.
    pub fn new(name: &str, dtype: Dtype, width: u32) -> Result<Self, TensorSpecError> {
        let spec = Self { name: name.to_owned(), dtype, width };
        spec.check()?;
        Ok(spec)
    }

    /// Checks a tensor that came from a file.
    pub fn check(&self) -> Result<(), TensorSpecError> {
        let name = &self.name;
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        let length_fits = (1..=MAX_TENSOR_NAME_BYTES).contains(&name.len());
        if !length_fits || name.starts_with('-') || !name.bytes().all(plain) {
            return Err(TensorSpecError::Name { found: name.chars().take(80).collect() });
        }
        if self.width == 0 {
            return Err(TensorSpecError::ZeroWidth { name: name.clone() });
        }
        let found_bytes = u64::from(self.width) * self.dtype.size_bytes() as u64;
        if found_bytes > MAX_ROW_BYTES as u64 {
            return Err(TensorSpecError::RowTooLong { name: name.clone(), found_bytes });
        }
        Ok(())
    }

    /// Returns the bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.width as usize * self.dtype.size_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_the_folder_are_refused() {
        for name in ["", "..", "a/b", "a.b", "-x", "a\0", "ä", &"x".repeat(65)] {
            let refused = TensorSpec::new(name, Dtype::F32, 1);
            assert!(matches!(refused, Err(TensorSpecError::Name { .. })), "{name:?}");
        }
        assert!(TensorSpec::new(&"x".repeat(64), Dtype::F32, 1).is_ok());
    }

    #[test]
    fn widths_are_bounded_on_both_sides() {
        let zero = TensorSpec::new("t", Dtype::U8, 0);
        assert_eq!(zero, Err(TensorSpecError::ZeroWidth { name: "t".into() }));
        assert!(TensorSpec::new("t", Dtype::F32, 4 << 20).is_ok());
        let long = TensorSpec::new("t", Dtype::F32, (4 << 20) + 1);
        assert!(matches!(long, Err(TensorSpecError::RowTooLong { .. })));
        assert!(TensorSpec::new("t", Dtype::F64, u32::MAX).is_err());
    }
}
