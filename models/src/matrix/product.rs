//! Products of dense matrices, by the crate `gemm`. It chooses its kernel when the program runs:
//! for AVX-512, for AVX2 with FMA, or for any processor.
//!
//! An element of a product is a sum over the inner dimension, taken by one thread. Its order depends
//! on the sizes of the product, on the kernel and on the processor's caches, not on the number of
//! threads. Threads are those of the caller's rayon pool.

#![allow(unsafe_code, reason = "gemm takes pointers; this module checks what lies behind them")]

use gemm::{Parallelism, gemm};

/// A borrowed row-major matrix.
#[derive(Clone, Copy, Debug)]
pub struct MatrixView<'a> {
    values: &'a [f32],
    n_rows: usize,
    width: usize,
}

/// A matrix or its transpose. All its elements are in `values`: the largest offset is
/// `(n_rows - 1) * row_stride + (n_columns - 1) * column_stride`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand<'a> {
    values: &'a [f32],
    n_rows: usize,
    n_columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> MatrixView<'a> {
    /// Returns `values` as rows of `width`.
    ///
    /// # Panics
    ///
    /// The last row is not whole.
    pub fn new(values: &'a [f32], width: usize) -> Self {
        let n_rows = values.len() / width.max(1);
        assert_eq!(n_rows * width, values.len(), "whole rows of {width} elements");
        Self { values, n_rows, width }
    }

    /// Returns the number of rows.
    pub fn n_rows(self) -> usize {
        self.n_rows
    }

    /// Returns the elements of a row.
    pub fn width(self) -> usize {
        self.width
    }

    /// Returns all elements, row by row.
    pub fn values(self) -> &'a [f32] {
        self.values
    }

    pub(super) fn as_is(self) -> Operand<'a> {
        Operand {
            values: self.values,
            n_rows: self.n_rows,
            n_columns: self.width,
            row_stride: self.width,
            column_stride: 1,
        }
    }

    pub(super) fn transposed(self) -> Operand<'a> {
        Operand {
            values: self.values,
            n_rows: self.width,
            n_columns: self.n_rows,
            row_stride: 1,
            column_stride: self.width,
        }
    }
}

/// Writes the product of two matrices to `out`, row by row.
///
/// # Panics
///
/// The matrices do not fit each other, or `out` has another number of elements than their product.
pub(super) fn multiply(left: Operand<'_>, right: Operand<'_>, out: &mut [f32]) {
    let inner = right.n_rows;
    assert_eq!(
        left.n_columns, inner,
        "elements of a row of the left matrix, rows of the right one"
    );
    let n_elements = left.n_rows.checked_mul(right.n_columns);
    assert_eq!(Some(out.len()), n_elements, "elements of the product");
    // SAFETY: the strides of an operand reach elements of its `values` alone, by the constructors
    // above. `out` has all elements of the product, row by row, and is borrowed for this call. gemm
    // does not read `out`, as `read_dst` is false.
    unsafe {
        gemm(
            left.n_rows,
            right.n_columns,
            inner,
            out.as_mut_ptr(),
            1,
            right.n_columns as isize,
            false,
            left.values.as_ptr(),
            left.column_stride as isize,
            left.row_stride as isize,
            right.values.as_ptr(),
            right.column_stride as isize,
            right.row_stride as isize,
            0.0,
            1.0,
            false,
            false,
            false,
            // All threads of the present pool.
            Parallelism::Rayon(0),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::CounterRandom;

    fn values(stream: u64, n: usize) -> Vec<f32> {
        let random = CounterRandom::new(1, stream);
        (0..n as u64).map(|i| random.unit(i) - 0.5).collect()
    }

    /// Kernels have edges at multiples of 8, 16, 48 and 64, and other paths for one row, one column
    /// and at most two inner elements.
    #[test]
    fn products_of_all_sizes_and_transposes_are_those_of_the_formula() {
        for n_rows in [0, 1, 2, 7, 48, 65, 200] {
            for inner in [0, 1, 2, 3, 17, 64, 600] {
                for width in [0, 1, 5, 16, 49, 64, 130] {
                    let (a, b) = (values(1, n_rows * inner), values(2, inner * width));
                    let transpose = |values: &[f32], height: usize, width: usize| -> Vec<f32> {
                        let at = |i: usize| values[i % height * width + i / height];
                        (0..height * width).map(at).collect()
                    };
                    let (at, bt) = (transpose(&a, n_rows, inner), transpose(&b, inner, width));
                    let left = [
                        Operand { row_stride: inner, ..operand(&a, n_rows, inner) },
                        Operand {
                            row_stride: 1,
                            column_stride: n_rows,
                            ..operand(&at, n_rows, inner)
                        },
                    ];
                    let right = [
                        Operand { row_stride: width, ..operand(&b, inner, width) },
                        Operand {
                            row_stride: 1,
                            column_stride: inner,
                            ..operand(&bt, inner, width)
                        },
                    ];
                    for (left, right) in left.into_iter().flat_map(|l| right.map(|r| (l, r))) {
                        let mut out = vec![f32::NAN; n_rows * width];
                        multiply(left, right, &mut out);
                        for (i, found) in out.iter().enumerate() {
                            let (row, column) = (i / width, i % width);
                            let term = |k| {
                                f64::from(a[row * inner + k]) * f64::from(b[k * width + column])
                            };
                            let expected: f64 = (0..inner).map(term).sum();
                            let difference = (f64::from(*found) - expected).abs();
                            assert!(
                                difference < 1e-4,
                                "{n_rows} x {inner} x {width}: {found} {expected}"
                            );
                        }
                    }
                }
            }
        }
    }

    fn operand(values: &[f32], n_rows: usize, n_columns: usize) -> Operand<'_> {
        Operand { values, n_rows, n_columns, row_stride: n_columns, column_stride: 1 }
    }

    #[test]
    fn products_have_the_same_bits_for_any_number_of_threads() {
        for (n_rows, inner, width) in
            [(3000, 200, 64), (700, 1500, 130), (256, 5000, 47), (9, 7, 5)]
        {
            let (left, right) = (values(1, n_rows * inner), values(2, inner * width));
            let grad = values(3, n_rows * width);
            let bits = |n_threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
                pool.install(|| {
                    let left = MatrixView::new(&left, inner);
                    let right = MatrixView::new(&right, width);
                    let grad = MatrixView::new(&grad, width);
                    let mut product = vec![0.0; n_rows * width];
                    multiply(left.as_is(), right.as_is(), &mut product);
                    let mut of_rows = vec![0.0; n_rows * inner];
                    multiply(grad.as_is(), right.transposed(), &mut of_rows);
                    let mut of_weight = vec![0.0; inner * width];
                    multiply(left.transposed(), grad.as_is(), &mut of_weight);
                    [product, of_rows, of_weight].concat().into_iter().map(f32::to_bits).collect()
                })
            };
            let expected: Vec<u32> = bits(1);
            assert!((2..=5).all(|n_threads| bits(n_threads) == expected), "{n_rows} rows");
        }
    }

    #[test]
    #[should_panic(expected = "elements of a row of the left matrix, rows of the right one")]
    fn a_product_never_reads_past_a_matrix_with_rows_too_short() {
        let (left, right) = (values(1, 6), values(2, 12));
        let (left, right) = (MatrixView::new(&left, 2), MatrixView::new(&right, 4));
        multiply(left.as_is(), right.as_is(), &mut [0.0; 12]);
    }

    #[test]
    #[should_panic(expected = "elements of the product")]
    fn sizes_of_a_product_do_not_wrap() {
        let none =
            Operand { values: &[], n_rows: 1 << 32, n_columns: 0, row_stride: 0, column_stride: 1 };
        let wide = Operand { n_rows: 0, n_columns: 1 << 32, ..none };
        multiply(none, wide, &mut []);
    }

    #[test]
    #[should_panic(expected = "elements of the product")]
    fn a_product_never_writes_past_its_memory() {
        let (left, right) = (values(1, 6), values(2, 12));
        let (left, right) = (MatrixView::new(&left, 3), MatrixView::new(&right, 4));
        multiply(left.as_is(), right.as_is(), &mut [0.0; 7]);
    }
}
