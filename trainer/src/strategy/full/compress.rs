//! Encoding of rows between partitions: f32, or narrowed.
//!
//! A narrowed row has a scale of its own, f32, in front. Gradients of a mean over many nodes are
//! far below what f16 can hold.

use half::f16;
use lodestore_models::matrix::spmm::ROWS_PER_TASK;
use rayon::prelude::*;

use crate::config::Compression;

/// Largest element of a row of int8.
const MOST: f32 = 127.0;

/// Encoding of rows in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowCode {
    pub(crate) compression: Option<Compression>,
}

/// Sums of squares of narrowing errors, and of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct NarrowingLoss {
    pub(crate) error: f64,
    pub(crate) all: f64,
}

impl NarrowingLoss {
    /// Adds the loss of other rows.
    pub(crate) fn add(&mut self, other: Self) {
        self.error += other.error;
        self.all += other.all;
    }
}

impl RowCode {
    /// Returns the bytes of a row of `width`.
    pub(crate) fn row_bytes(self, width: usize) -> usize {
        match self.compression {
            None => 4 * width,
            Some(Compression::F16) => 4 + 2 * width,
            Some(Compression::Int8) => 4 + width,
        }
    }

    /// Encodes the rows of `x` with these numbers into `out`. Returns the loss.
    pub(crate) fn encode(
        self,
        x: &[f32],
        width: usize,
        rows: &[u32],
        out: &mut [u8],
    ) -> NarrowingLoss {
        let row_bytes = self.row_bytes(width);
        if row_bytes == 0 {
            return NarrowingLoss::default();
        }
        let pieces = out.par_chunks_mut(row_bytes * ROWS_PER_TASK);
        let losses = pieces.zip(rows.par_chunks(ROWS_PER_TASK)).map(|(out, rows)| {
            let mut loss = NarrowingLoss::default();
            for (out, &row) in out.chunks_exact_mut(row_bytes).zip(rows) {
                loss.add(self.encode_row(&x[row as usize * width..][..width], out));
            }
            loss
        });
        // In the order of rows, so bits do not depend on threads.
        let losses: Vec<NarrowingLoss> = losses.collect();
        losses.into_iter().fold(NarrowingLoss::default(), |mut sum, loss| {
            sum.add(loss);
            sum
        })
    }

    fn encode_row(self, x: &[f32], out: &mut [u8]) -> NarrowingLoss {
        let Some(compression) = self.compression else {
            out.copy_from_slice(bytemuck::cast_slice(x));
            return NarrowingLoss::default();
        };
        let scale = scale_of(x, compression);
        let (head, elements) = out.split_at_mut(4);
        head.copy_from_slice(&scale.to_ne_bytes());
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let mut loss = NarrowingLoss::default();
        let mut note = |x: f32, found: f32| {
            loss.error += (f64::from(x) - f64::from(found)).powi(2);
            loss.all += f64::from(x).powi(2);
        };
        match compression {
            Compression::F16 => {
                for (out, &x) in elements.as_chunks_mut::<2>().0.iter_mut().zip(x) {
                    let narrow = f16::from_f32(x * inverse);
                    *out = narrow.to_ne_bytes();
                    note(x, narrow.to_f32() * scale);
                }
            }
            Compression::Int8 => {
                for (out, &x) in elements.iter_mut().zip(x) {
                    let narrow = (x * inverse).round().clamp(-MOST, MOST) as i8;
                    *out = narrow.cast_unsigned();
                    note(x, f32::from(narrow) * scale);
                }
            }
        }
        loss
    }

    /// Calls `f` with each row of `bytes`, its number and its elements, in order.
    pub(crate) fn decode_each(self, bytes: &[u8], width: usize, mut f: impl FnMut(usize, &[f32])) {
        let mut row = vec![0.0; width];
        for (number, bytes) in bytes.chunks_exact(self.row_bytes(width).max(1)).enumerate() {
            self.decode_row(bytes, &mut row);
            f(number, &row);
        }
    }

    /// Decodes the rows in `bytes` into `out`.
    pub(crate) fn decode(self, bytes: &[u8], width: usize, out: &mut [f32]) {
        let rows = out.par_chunks_exact_mut(width.max(1));
        let pairs = rows.zip(bytes.par_chunks_exact(self.row_bytes(width).max(1)));
        pairs.with_min_len(ROWS_PER_TASK).for_each(|(out, bytes)| self.decode_row(bytes, out));
    }

    fn decode_row(self, bytes: &[u8], out: &mut [f32]) {
        let Some(compression) = self.compression else {
            let elements = bytes.as_chunks().0.iter().map(|value| f32::from_ne_bytes(*value));
            out.iter_mut().zip(elements).for_each(|(out, value)| *out = value);
            return;
        };
        let Some((head, elements)) = bytes.split_first_chunk() else { return };
        let scale = f32::from_ne_bytes(*head);
        match compression {
            Compression::F16 => {
                for (out, value) in out.iter_mut().zip(elements.as_chunks().0) {
                    *out = f16::from_ne_bytes(*value).to_f32() * scale;
                }
            }
            Compression::Int8 => {
                for (out, value) in out.iter_mut().zip(elements) {
                    *out = f32::from(value.cast_signed()) * scale;
                }
            }
        }
    }
}

/// Returns the divisor of a row's elements; NaN if one is not finite, so that the whole row shows
/// it.
fn scale_of(x: &[f32], compression: Compression) -> f32 {
    let top = x.iter().fold(0.0f32, |top, x| top.max(x.abs()));
    if x.iter().any(|x| !x.is_finite()) {
        return f32::NAN;
    }
    let scale = match compression {
        Compression::F16 => top,
        Compression::Int8 => top / MOST,
    };
    // Below 3e-39 nothing can be divided by it: such rows are zeros.
    if scale.recip().is_finite() { scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn passed(
        compression: Option<Compression>,
        x: &[f32],
        width: usize,
    ) -> (Vec<f32>, NarrowingLoss) {
        let code = RowCode { compression };
        let rows: Vec<u32> = (0..(x.len() / width) as u32).collect();
        let mut bytes = vec![0; rows.len() * code.row_bytes(width)];
        let loss = code.encode(x, width, &rows, &mut bytes);
        let mut out = vec![0.0; x.len()];
        code.decode(&bytes, width, &mut out);
        let mut each = Vec::new();
        code.decode_each(&bytes, width, |_, row| each.extend_from_slice(row));
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&each), bits(&out));
        (out, loss)
    }

    proptest! {
        #[test]
        fn an_element_is_off_by_half_a_step_at_most(
            width in 1usize..20,
            exponent in -30i32..30,
            values in prop::collection::vec(-1.0f32..1.0, 1..200),
        ) {
            let n = values.len() / width * width;
            let x: Vec<f32> = values[..n].iter().map(|value| value * 2f32.powi(exponent)).collect();
            prop_assert_eq!(&passed(None, &x, width), &(x.clone(), NarrowingLoss::default()));
            for (compression, step) in [(Compression::F16, 2f32.powi(-11)), (Compression::Int8, 0.5 / MOST)] {
                let (found, loss) = passed(Some(compression), &x, width);
                let (mut error, mut all) = (0.0, 0.0);
                for (x, found) in x.chunks_exact(width).zip(found.chunks_exact(width)) {
                    let top = x.iter().fold(0.0f32, |top, x| top.max(x.abs()));
                    for (x, found) in x.iter().zip(found) {
                        prop_assert!((x - found).abs() <= top * step * 1.001, "{x} {found} of {top}");
                        error += (f64::from(*x) - f64::from(*found)).powi(2);
                        all += f64::from(*x).powi(2);
                    }
                }
                prop_assert!((loss.error - error).abs() <= 1e-9 * error);
                prop_assert!((loss.all - all).abs() <= 1e-9 * all);
            }
        }
    }

    #[test]
    fn zeros_stay_zeros_and_what_is_no_number_is_not_hidden() {
        for compression in [Compression::F16, Compression::Int8] {
            assert_eq!(passed(Some(compression), &[0.0; 3], 3).0, [0.0; 3]);
            assert_eq!(passed(Some(compression), &[1e-42, -1e-42, 0.0], 3).0, [0.0; 3]);
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let (found, _) = passed(Some(compression), &[1.0, bad, 2.0, 3.0], 2);
                assert!(found[..2].iter().all(|value| value.is_nan()), "{bad}");
                assert!((found[3] - 3.0).abs() < 1e-2);
            }
        }
    }
}
