//! Feature rows as the model reads them: f32, normalised if wanted.

use lodestore_client::TensorInfo;
use lodestore_store::Dtype;

use crate::TrainError;

/// How the bytes of feature rows become f32.
#[derive(Clone, Debug)]
pub(crate) struct FeatureRows {
    dtype: Dtype,
    width: usize,
    normalize: bool,
    converted: Vec<f32>,
}

impl FeatureRows {
    /// Fails for rows without elements.
    pub(crate) fn new(info: &TensorInfo, normalize: bool) -> Result<Self, TrainError> {
        let (dtype, width) = (info.dtype, info.width as usize);
        if width == 0 {
            return Err(TrainError::Tensors {
                tensor: info.name.clone(),
                expected: "rows of one element or more",
                found: format!("{} of width {width}", dtype.name()),
            });
        }
        Ok(Self { dtype, width, normalize, converted: Vec::new() })
    }

    /// Elements per row.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// The rows as f32. Rows that are f32 already, and not to be normalised, stay where they are.
    pub(crate) fn view<'a>(&'a mut self, rows: &'a [u8]) -> &'a [f32] {
        if self.dtype == Dtype::F32 && !self.normalize {
            return bytemuck::cast_slice(rows);
        }
        self.converted.resize(rows.len() / self.dtype.size_bytes(), 0.0);
        self.dtype.widen(rows, &mut self.converted);
        if self.normalize {
            self.converted.chunks_exact_mut(self.width).for_each(normalize_row);
        }
        &self.converted
    }
}

/// Divides a row by the sum of its absolute values; a row of zeros stays.
fn normalize_row(row: &mut [f32]) {
    let sum: f32 = row.iter().map(|v| v.abs()).sum();
    if sum > 0.0 {
        let scale = 1.0 / sum;
        row.iter_mut().for_each(|v| *v *= scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lodestore_client::RowBuffer;

    fn view(dtype: Dtype, width: u32, normalize: bool, bytes: &[u8]) -> Vec<f32> {
        let info = TensorInfo { name: "x".to_owned(), dtype, width };
        let mut buffer = RowBuffer::default();
        buffer.resize(bytes.len());
        buffer.bytes_mut().copy_from_slice(bytes);
        FeatureRows::new(&info, normalize).unwrap().view(buffer.bytes()).to_vec()
    }

    #[test]
    fn any_dtype_is_a_feature() {
        let values = [1.5f32, -2.0, 0.0];
        let bf16: Vec<u8> =
            values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect();
        assert_eq!(view(Dtype::F32, 3, false, bytemuck::cast_slice(&values)), values);
        assert_eq!(view(Dtype::BF16, 3, false, &bf16), values);
        assert_eq!(view(Dtype::U8, 2, false, &[7, 255]), [7.0, 255.0]);
        assert_eq!(view(Dtype::I64, 1, true, &(-3i64).to_le_bytes()), [-1.0]);
    }

    #[test]
    fn normalises_rows_and_leaves_zeros() {
        let values = [1.0f32, -3.0, 0.0, 0.0];
        let found = view(Dtype::F32, 2, true, bytemuck::cast_slice(&values));
        assert_eq!(found, [0.25, -0.75, 0.0, 0.0]);
    }

    #[test]
    fn refuses_rows_of_nothing() {
        let info = TensorInfo { name: "x".to_owned(), dtype: Dtype::F32, width: 0 };
        let error = FeatureRows::new(&info, false).unwrap_err().to_string();
        assert!(error.contains("f32 of width 0"), "{error}");
    }
}
