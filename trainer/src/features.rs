//! Feature rows as the model reads them: f32, normalised if wanted.

use lodestore_client::{RowBuffer, TensorInfo};
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
    /// Fails for a tensor whose elements are no features.
    pub(crate) fn new(info: &TensorInfo, normalize: bool) -> Result<Self, TrainError> {
        let (dtype, width) = (info.dtype, info.width as usize);
        let usable = matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F64);
        if !usable || width == 0 {
            return Err(TrainError::Tensors {
                tensor: info.name.clone(),
                expected: "f32, f16, bf16 or f64 of width 1 or more",
                found: format!("{} of width {width}", dtype.name()),
            });
        }
        Ok(Self { dtype, width, normalize, converted: Vec::new() })
    }

    /// Elements per row.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// The rows as f32. Rows that are f32 already stay where they are.
    pub(crate) fn view<'a>(&'a mut self, rows: &'a mut RowBuffer) -> &'a [f32] {
        let values: &mut [f32] = if self.dtype == Dtype::F32 {
            rows.elements_mut()
        } else {
            convert(self.dtype, rows, &mut self.converted);
            &mut self.converted
        };
        if self.normalize {
            values.chunks_exact_mut(self.width).for_each(normalize_row);
        }
        values
    }
}

fn convert(dtype: Dtype, rows: &RowBuffer, out: &mut Vec<f32>) {
    out.clear();
    match dtype {
        Dtype::F16 => out.extend(rows.elements::<half::f16>().iter().map(|v| v.to_f32())),
        Dtype::BF16 => out.extend(rows.elements::<half::bf16>().iter().map(|v| v.to_f32())),
        Dtype::F64 => out.extend(rows.elements::<f64>().iter().map(|&v| v as f32)),
        _ => out.extend_from_slice(rows.elements::<f32>()),
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

    fn view(dtype: Dtype, width: u32, normalize: bool, bytes: &[u8]) -> Vec<f32> {
        let info = TensorInfo { name: "x".to_owned(), dtype, width };
        let mut buffer = RowBuffer::default();
        buffer.resize(bytes.len());
        buffer.bytes_mut().copy_from_slice(bytes);
        FeatureRows::new(&info, normalize).unwrap().view(&mut buffer).to_vec()
    }

    #[test]
    fn converts_each_dtype() {
        let values = [1.5f32, -2.0, 0.0];
        let f16: Vec<u8> =
            values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect();
        let bf16: Vec<u8> =
            values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect();
        let f64: Vec<u8> = values.iter().flat_map(|&v| f64::from(v).to_le_bytes()).collect();
        assert_eq!(view(Dtype::F32, 3, false, bytemuck::cast_slice(&values)), values);
        assert_eq!(view(Dtype::F16, 3, false, &f16), values);
        assert_eq!(view(Dtype::BF16, 3, false, &bf16), values);
        assert_eq!(view(Dtype::F64, 3, false, &f64), values);
    }

    #[test]
    fn normalises_rows_and_leaves_zeros() {
        let values = [1.0f32, -3.0, 0.0, 0.0];
        let found = view(Dtype::F32, 2, true, bytemuck::cast_slice(&values));
        assert_eq!(found, [0.25, -0.75, 0.0, 0.0]);
    }

    #[test]
    fn refuses_integers() {
        let info = TensorInfo { name: "x".to_owned(), dtype: Dtype::I64, width: 2 };
        let error = FeatureRows::new(&info, false).unwrap_err().to_string();
        assert!(error.contains("i64 of width 2"), "{error}");
    }
}
