//! Rows in files.

use std::path::Path;

use anyhow::{Result, bail};
use lodestore_graph::npy::{NpyArray, NpyType};
use lodestore_store::nan::first_nan;
use lodestore_store::{Dtype, TensorSpec};

/// Rows of a tensor in a checked `.npy` file, mapped; read in pieces.
pub(crate) struct RowFile {
    array: NpyArray,
    row_bytes: usize,
}

impl RowFile {
    /// Opens an array of shape (n_rows, width), or (n_rows,) for width 1, with the tensor's type.
    pub(crate) fn open(path: &Path, tensor: &TensorSpec, n_rows: u64) -> Result<Self> {
        let array = NpyArray::open(path)?;
        let (found, expected) = (array.dtype(), npy_type(tensor.dtype));
        let is_flag = found == NpyType::Bool && tensor.dtype == Dtype::U8;
        if found != expected && !is_flag {
            bail!(
                "{}: rows of `{}` are {expected} ({}), found {found}",
                path.display(),
                tensor.name,
                tensor.dtype
            );
        }
        let width = u64::from(tensor.width);
        let fits = *array.shape() == [n_rows, width] || width == 1 && *array.shape() == [n_rows];
        if !fits {
            bail!(
                "{}: expected the shape ({n_rows}, {width}), one row of `{}` per id, found {:?}",
                path.display(),
                tensor.name,
                array.shape()
            );
        }
        Ok(Self { array, row_bytes: tensor.row_bytes() })
    }

    /// Fails for the first NaN, with its row and column.
    pub(crate) fn refuse_nan(&self, tensor: &TensorSpec) -> Result<()> {
        let Some(element) = first_nan(tensor.dtype, self.array.bytes()) else { return Ok(()) };
        let width = tensor.width as usize;
        bail!(
            "{}: row {}, column {} is NaN; clean the data, or keep NaN on purpose (--nan keep)",
            self.array.path().display(),
            element / width,
            element % width
        )
    }

    /// Returns the bytes of the rows, `chunk_rows` at a time.
    pub(crate) fn chunks(&self, chunk_rows: usize) -> impl Iterator<Item = &[u8]> {
        self.array.bytes().chunks(chunk_rows * self.row_bytes)
    }
}

/// Returns the type of an `.npy` file that holds rows of `dtype`; that of bf16 holds their bits.
pub(crate) fn npy_type(dtype: Dtype) -> NpyType {
    match dtype {
        Dtype::F32 => NpyType::F32,
        Dtype::F16 => NpyType::F16,
        Dtype::BF16 => NpyType::U16,
        Dtype::F64 => NpyType::F64,
        Dtype::U8 => NpyType::U8,
        Dtype::I8 => NpyType::I8,
        Dtype::I16 => NpyType::I16,
        Dtype::I32 => NpyType::I32,
        Dtype::I64 => NpyType::I64,
    }
}

/// Returns an element of this type as text that reads back to the same number.
///
/// # Panics
/// Panics if `element` has another size.
pub(crate) fn element_text(dtype: Dtype, element: &[u8]) -> String {
    let size = "an element of this type";
    match dtype {
        Dtype::F32 => f32::from_le_bytes(element.try_into().expect(size)).to_string(),
        Dtype::F64 => f64::from_le_bytes(element.try_into().expect(size)).to_string(),
        Dtype::F16 | Dtype::BF16 => {
            let mut wide = [0.0];
            dtype.widen(element, &mut wide);
            wide[0].to_string()
        }
        Dtype::U8 => element[0].to_string(),
        Dtype::I8 => element[0].cast_signed().to_string(),
        Dtype::I16 => i16::from_le_bytes(element.try_into().expect(size)).to_string(),
        Dtype::I32 => i32::from_le_bytes(element.try_into().expect(size)).to_string(),
        Dtype::I64 => i64::from_le_bytes(element.try_into().expect(size)).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use lodestore_graph::npy::NpyWriter;

    use super::*;

    fn open(dtype: NpyType, shape: &[u64], tensor: &TensorSpec) -> Result<Vec<usize>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.npy");
        let n_bytes = shape.iter().product::<u64>() as usize * dtype.size_bytes();
        NpyWriter::write(&path, dtype, shape, &vec![1; n_bytes]).unwrap();
        Ok(RowFile::open(&path, tensor, 5)?.chunks(2).map(<[u8]>::len).collect())
    }

    #[test]
    fn rows_come_in_pieces_of_whole_rows() {
        let feat = TensorSpec::new("feat", Dtype::F32, 3).unwrap();
        assert_eq!(open(NpyType::F32, &[5, 3], &feat).unwrap(), [24, 24, 12]);
        let flag = TensorSpec::new("flag", Dtype::U8, 1).unwrap();
        for (dtype, shape) in [(NpyType::U8, &[5][..]), (NpyType::Bool, &[5, 1])] {
            assert_eq!(open(dtype, shape, &flag).unwrap(), [2, 2, 1]);
        }
        let half = TensorSpec::new("half", Dtype::BF16, 1).unwrap();
        assert_eq!(open(NpyType::U16, &[5], &half).unwrap(), [4, 4, 2]);
    }

    #[test]
    fn elements_are_printed_as_they_are() {
        for (dtype, bytes, text) in [
            (Dtype::F32, &0.1f32.to_le_bytes()[..], "0.1"),
            (Dtype::F32, &f32::NAN.to_le_bytes(), "NaN"),
            (Dtype::F16, &0x3e00u16.to_le_bytes(), "1.5"),
            (Dtype::BF16, &0xbf80u16.to_le_bytes(), "-1"),
            (Dtype::F64, &0.1f64.to_le_bytes(), "0.1"),
            (Dtype::U8, &[255], "255"),
            (Dtype::I8, &[255], "-1"),
            (Dtype::I16, &[0, 128], "-32768"),
            (Dtype::I32, &(-5i32).to_le_bytes(), "-5"),
            (Dtype::I64, &i64::MAX.to_le_bytes(), "9223372036854775807"),
        ] {
            assert_eq!(element_text(dtype, bytes), text, "{dtype}");
        }
    }

    #[test]
    fn nan_is_named_by_row_and_column() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.npy");
        let rows = [1.0, 2.0, 3.0, f32::NAN].map(f32::to_le_bytes).concat();
        NpyWriter::write(&path, NpyType::F32, &[2, 2], &rows).unwrap();
        let feat = TensorSpec::new("feat", Dtype::F32, 2).unwrap();
        let error = RowFile::open(&path, &feat, 2).unwrap().refuse_nan(&feat).unwrap_err();
        assert!(error.to_string().contains("row 1, column 1 is NaN"), "{error}");
        let bits = TensorSpec::new("bits", Dtype::I32, 2).unwrap();
        let rows = RowFile { array: NpyArray::open(&path).unwrap(), row_bytes: 8 };
        rows.refuse_nan(&bits).unwrap();
    }

    #[test]
    fn another_type_or_shape_is_refused_with_both() {
        let feat = TensorSpec::new("feat", Dtype::F32, 3).unwrap();
        let error = open(NpyType::F64, &[5, 3], &feat).unwrap_err().to_string();
        assert!(error.contains("<f4") && error.contains("<f8"), "{error}");
        for shape in [&[4, 3][..], &[5, 2], &[15], &[5, 3, 1]] {
            let error = open(NpyType::F32, shape, &feat).unwrap_err().to_string();
            assert!(error.contains("(5, 3)") && error.contains("found"), "{error}");
        }
        assert!(open(NpyType::Bool, &[5, 3], &feat).is_err());
    }
}
