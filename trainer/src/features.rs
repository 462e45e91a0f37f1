//! Feature rows as the model reads them: f32, normalised on request.

use lodestore_client::load_stats::LoadStats;
use lodestore_client::source::TensorInfo;
use lodestore_client::{BatchLoader, ClientError};
use lodestore_graph::NodeId;
use lodestore_models::matrix::sparse::{SparsePiece, SparseRows};
use lodestore_models::matrix::spmm::ROWS_PER_TASK;
use lodestore_store::Dtype;
use rayon::prelude::*;

use crate::error::TrainError;

/// Bytes of a row that are searched together; a block with non-zero bytes is searched in parts.
const SPAN_BYTES: usize = 512;
const BLOCK_BYTES: usize = 64;
/// Rows of the first sample.
const SAMPLED_ROWS: usize = 64;
/// Rows with fewer elements per non-zero element are dense.
const LEAST_ELEMENTS_PER_NON_ZERO: usize = 10;
/// Bytes of rows read together: a core's cache holds them until they are searched.
const PIECE_BYTES: usize = 128 << 10;
/// Shorter rows are copied without a search: the copy is cheap.
const LEAST_PIECED_ROW_BYTES: usize = 2 << 10;

/// Conversion of the bytes of feature rows to f32.
#[derive(Clone, Debug)]
pub(crate) struct FeatureRows {
    dtype: Dtype,
    /// Elements of a row.
    pub(crate) width: usize,
    normalize: bool,
    converted: Vec<f32>,
}

impl FeatureRows {
    /// Fails for rows without elements.
    pub(crate) fn new(info: &TensorInfo, normalize: bool) -> Result<Self, TrainError> {
        let (dtype, width) = (info.dtype, info.width as usize);
        if width == 0 {
            return Err(TrainError::tensor(info, "rows of one element or more"));
        }
        Ok(Self { dtype, width, normalize, converted: Vec::new() })
    }

    /// Returns the rows by their non-zero elements if less than a tenth of all elements is
    /// non-zero. This depends on the rows alone.
    pub(crate) fn sparse(&self, rows: &[u8]) -> Option<SparseRows> {
        let row_bytes = self.row_bytes();
        let row = |row: usize| &rows[row * row_bytes..][..row_bytes];
        self.sparse_of(rows.len() / row_bytes, row)
    }

    /// Does as [`Self::sparse`] for `n_rows` rows that may be anywhere: `row` returns the bytes of
    /// one.
    pub(crate) fn sparse_of<'r>(
        &self,
        n_rows: usize,
        row: impl Fn(usize) -> &'r [u8] + Sync,
    ) -> Option<SparseRows> {
        let piece = |rows: &mut dyn Iterator<Item = usize>| {
            let mut piece = SparsePiece::default();
            rows.for_each(|at| self.push_row(row(at), &mut piece));
            piece
        };
        if !self.are_sparse(&[piece(&mut sampled(n_rows))], sampled(n_rows).count()) {
            return None;
        }
        let firsts = (0..n_rows).into_par_iter().step_by(ROWS_PER_TASK);
        let pieces = firsts.map(|first| piece(&mut (first..n_rows.min(first + ROWS_PER_TASK))));
        let pieces: Vec<_> = pieces.collect();
        self.are_sparse(&pieces, n_rows).then(|| SparseRows::new(self.width, pieces))
    }

    /// Loads the rows of `nodes` by their non-zero elements, without a copy of all bytes. Returns
    /// `None` for rows that are dense, too short, or not in this process's memory.
    pub(crate) fn load_sparse(
        &self,
        loader: &BatchLoader,
        nodes: &[NodeId],
    ) -> Result<Option<(SparseRows, LoadStats)>, ClientError> {
        let row_bytes = self.row_bytes();
        if row_bytes < LEAST_PIECED_ROW_BYTES {
            return Ok(None);
        }
        let load = |nodes: &[NodeId]| {
            let n_rows = PIECE_BYTES / row_bytes;
            let loaded = loader.load_in_pieces(nodes, n_rows, |rows| self.piece_of(rows))?;
            let is_sparse = |(pieces, _): &(Vec<_>, _)| self.are_sparse(pieces, nodes.len());
            Ok::<_, ClientError>(loaded.filter(is_sparse))
        };
        let sample: Vec<NodeId> = sampled(nodes.len()).map(|row| nodes[row]).collect();
        if load(&sample)?.is_none() {
            return Ok(None);
        }
        let loaded = load(nodes)?;
        Ok(loaded.map(|(pieces, stats)| (SparseRows::new(self.width, pieces), stats)))
    }

    /// Returns whether `n_elements` non-zero elements are less than a tenth of all.
    pub(crate) fn are_few(&self, n_elements: usize, n_rows: usize) -> bool {
        n_elements.saturating_mul(LEAST_ELEMENTS_PER_NON_ZERO) < n_rows.saturating_mul(self.width)
    }

    /// Returns the non-zero elements of rows, at any density.
    pub(crate) fn non_zeros(&self, rows: &[u8]) -> Vec<SparsePiece> {
        let tasks = rows.par_chunks(ROWS_PER_TASK * self.row_bytes());
        tasks.map(|rows| self.piece_of(rows)).collect()
    }

    fn piece_of(&self, rows: &[u8]) -> SparsePiece {
        let mut piece = SparsePiece::default();
        rows.chunks_exact(self.row_bytes()).for_each(|row| self.push_row(row, &mut piece));
        piece
    }

    /// Returns whether less than a tenth of the elements of `n_rows` rows are in `pieces`.
    fn are_sparse(&self, pieces: &[SparsePiece], n_rows: usize) -> bool {
        self.are_few(pieces.iter().map(SparsePiece::n_elements).sum(), n_rows)
    }

    fn row_bytes(&self) -> usize {
        self.width * self.dtype.size_bytes()
    }

    /// Appends a row; skips blocks of zero bytes, which are zeros of any type.
    fn push_row(&self, row: &[u8], piece: &mut SparsePiece) {
        let (spans, rest) = row.as_chunks::<SPAN_BYTES>();
        for (span, bytes) in spans.iter().enumerate() {
            if !are_zeros(bytes) {
                self.push_span(span * SPAN_BYTES, bytes, piece);
            }
        }
        self.push_span(row.len() - rest.len(), rest, piece);
        let elements = piece.end_row();
        if self.normalize {
            normalize_row(elements);
        }
    }

    /// Appends the elements of `bytes`, which begin at byte `first` of their row.
    fn push_span(&self, first: usize, bytes: &[u8], piece: &mut SparsePiece) {
        let element_bytes = self.dtype.size_bytes();
        let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
        let are_used = blocks.iter().map(|block| !are_zeros(block));
        for block in set_bits(are_used) {
            let first = (first + block * BLOCK_BYTES) / element_bytes;
            self.push_block(first, &blocks[block], piece);
        }
        let first = (first + bytes.len() - rest.len()) / element_bytes;
        self.push_block(first, rest, piece);
    }

    /// Appends the elements of at most [`BLOCK_BYTES`], of which the first is in column `first`.
    fn push_block(&self, first: usize, bytes: &[u8], piece: &mut SparsePiece) {
        let mut widened = [0.0; BLOCK_BYTES];
        let widened = &mut widened[..bytes.len() / self.dtype.size_bytes()];
        self.dtype.widen(bytes, widened);
        for at in set_bits(widened.iter().map(|value| *value != 0.0)) {
            piece.push((first + at) as u32, widened[at]);
        }
    }

    /// Returns the rows as f32. Rows that are f32 already, and not to be normalised, stay where
    /// they are.
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

/// Returns the row numbers of the first sample of `n_rows` rows.
fn sampled(n_rows: usize) -> impl Iterator<Item = usize> {
    (0..n_rows).step_by(n_rows.div_ceil(SAMPLED_ROWS).max(1))
}

/// Returns the positions of the set flags, of at most 64. All flags are read before any branch, so
/// that the processor predicts once for all of them.
fn set_bits(flags: impl Iterator<Item = bool>) -> impl Iterator<Item = usize> {
    let mut left = (0..).zip(flags).fold(0u64, |bits, (at, is_set)| bits | u64::from(is_set) << at);
    std::iter::from_fn(move || {
        let at = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        (at < 64).then_some(at)
    })
}

/// Returns whether all bytes are 0. Reading all bytes is faster than stopping at the first other
/// one.
fn are_zeros<const N: usize>(bytes: &[u8; N]) -> bool {
    const { assert!(N.is_multiple_of(8)) };
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().fold(0, |any, word| any | u64::from_ne_bytes(*word)) == 0
}

/// Divides a row by the sum of its absolute values; a row of zeros stays.
fn normalize_row(row: &mut [f32]) {
    let scale = 1.0 / row.iter().map(|v| v.abs()).sum::<f32>();
    if scale.is_normal() {
        row.iter_mut().for_each(|v| *v *= scale);
        return;
    }
    // The sum or its quotient exceeds the range of f32.
    let sum: f64 = row.iter().map(|v| f64::from(v.abs())).sum();
    if sum > 0.0 {
        row.iter_mut().for_each(|v| *v = (f64::from(*v) / sum) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lodestore_client::buffer::RowBuffer;

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
        let extremes = [3e38f32, -3e38, 0.0, 1e-42];
        let found = view(Dtype::F32, 2, true, bytemuck::cast_slice(&extremes));
        assert_eq!(found, [0.5, -0.5, 0.0, 1.0]);
    }

    #[test]
    fn refuses_rows_of_nothing() {
        let info = TensorInfo { name: "x".to_owned(), dtype: Dtype::F32, width: 0 };
        let error = FeatureRows::new(&info, false).unwrap_err().to_string();
        assert!(error.contains("f32 of width 0"), "{error}");
    }

    #[test]
    fn sparse_rows_are_the_dense_ones_and_denser_ones_are_not_sparse() {
        let (n_rows, width) = (300usize, 150usize);
        let rows = |every: usize| -> Vec<f32> {
            let value = |i: usize| if i.is_multiple_of(every) { (i % 7) as f32 - 3.0 } else { 0.0 };
            (0..n_rows * width).map(value).collect()
        };
        for dtype in [Dtype::F32, Dtype::BF16] {
            for normalize in [false, true] {
                let info = TensorInfo { name: "x".to_owned(), dtype, width: width as u32 };
                let mut features = FeatureRows::new(&info, normalize).unwrap();
                for (every, is_sparse) in [(3, false), (9, true), (40, true)] {
                    let values = rows(every);
                    let bytes: Vec<u8> = match dtype {
                        Dtype::F32 => bytemuck::cast_slice(&values).to_vec(),
                        _ => {
                            let narrow = |&v: &f32| half::bf16::from_f32(v).to_le_bytes();
                            values.iter().flat_map(narrow).collect()
                        }
                    };
                    let mut buffer = RowBuffer::default();
                    buffer.resize(bytes.len());
                    buffer.bytes_mut().copy_from_slice(&bytes);
                    let sparse = features.sparse(buffer.bytes());
                    assert_eq!(sparse.is_some(), is_sparse, "one in {every}");
                    let Some(sparse) = sparse else { continue };
                    assert_eq!(sparse.to_dense().values(), features.view(buffer.bytes()));
                }
            }
        }
    }
}
