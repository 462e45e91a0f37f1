//! Packed little-endian elements of any type to f32, and rows gathered so.
//!
//! f16, bf16, u8, i8 and i16 are exact; f64, i32 and i64 are rounded to the nearest f32. NaN stays
//! NaN.

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use lodestore_graph::NodeId;

use crate::dtype::Dtype;
use crate::error::StoreError;

/// Elements converted at a time, through a buffer on the stack.
const PIECE: usize = 512;

/// Elements of 8 bytes are gathered in pieces of about this many bytes.
const PIECE_BYTES: usize = 1 << 20;

impl Dtype {
    /// Converts packed elements of this type to f32. The conversion of f16, bf16, u8, i8 and i16 is
    /// exact. The others, f64, i32 and i64, are rounded to the nearest f32. NaN stays NaN.
    ///
    /// # Panics
    ///
    /// When `bytes` does not hold one element for each f32.
    pub fn widen(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), out.len() * self.size_bytes(), "one element for each f32");
        match self {
            Self::F32 => each(bytes, out, f32::from_le_bytes),
            Self::F16 => {
                let (elements, _) = bytes.as_chunks::<2>();
                for (elements, out) in elements.chunks(PIECE).zip(out.chunks_mut(PIECE)) {
                    widen_f16(elements, out);
                }
            }
            // The upper half of an f32; a NaN keeps its bits.
            Self::BF16 => {
                each(bytes, out, |e| f32::from_bits(u32::from(u16::from_le_bytes(e)) << 16));
            }
            Self::F64 => each(bytes, out, |e| f64::from_le_bytes(e) as f32),
            Self::U8 => each(bytes, out, |e: [u8; 1]| f32::from(e[0])),
            Self::I8 => each(bytes, out, |e| f32::from(i8::from_le_bytes(e))),
            Self::I16 => each(bytes, out, |e| f32::from(i16::from_le_bytes(e))),
            Self::I32 => each(bytes, out, |e| i32::from_le_bytes(e) as f32),
            Self::I64 => each(bytes, out, |e| i64::from_le_bytes(e) as f32),
        }
    }
}

/// Gathers the rows of `ids`, of elements of `dtype` and `width`, as f32. `gather` copies the rows
/// of some ids to a buffer of exactly their bytes.
///
/// Elements of up to 4 bytes are gathered together to the end of `out` and converted in place. One
/// read plan then sees the whole batch.
pub(crate) fn gather_as_f32(
    dtype: Dtype,
    width: usize,
    ids: &[NodeId],
    out: &mut [f32],
    mut gather: impl FnMut(&[NodeId], &mut [u8]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let size = dtype.size_bytes();
    if out.len() as u64 != ids.len() as u64 * width as u64 {
        let expected_bytes = ids.len() as u64 * width as u64 * 4;
        let found_bytes = out.len() as u64 * 4;
        return Err(StoreError::OutputLength { expected_bytes, found_bytes });
    }
    if size <= 4 {
        let start = out.len() * (4 - size);
        gather(ids, &mut bytemuck::cast_slice_mut(out)[start..])?;
        widen_in_place(dtype, out);
        return Ok(());
    }
    let piece_rows = (PIECE_BYTES / (width * size)).max(1);
    let mut rows = vec![0; piece_rows.min(ids.len()) * width * size];
    for (ids, out) in ids.chunks(piece_rows).zip(out.chunks_mut(piece_rows * width)) {
        let rows = &mut rows[..ids.len() * width * size];
        gather(ids, rows)?;
        dtype.widen(rows, out);
    }
    Ok(())
}

/// Converts elements of a type of at most 4 bytes that are packed at the end of `out`'s bytes. So
/// `out` is all the memory that reading and converting takes.
///
/// # Panics
/// For a type of 8 bytes.
fn widen_in_place(dtype: Dtype, out: &mut [f32]) {
    let size = dtype.size_bytes();
    assert!(size <= 4, "{dtype} does not fit into f32");
    if dtype == Dtype::F32 {
        return;
    }
    let (n, mut buffer) = (out.len(), [0u8; PIECE * 4]);
    // Front to back: what is written ends at 4 * end, what is not yet read starts at
    // (4 - size) * n + size * end, which is never less as `end` is at most `n`.
    for start in (0..n).step_by(PIECE) {
        let end = n.min(start + PIECE);
        let from = (4 - size) * n + size * start;
        let buffer = &mut buffer[..size * (end - start)];
        buffer.copy_from_slice(&bytemuck::cast_slice(out)[from..from + buffer.len()]);
        dtype.widen(buffer, &mut out[start..end]);
    }
}

fn each<const N: usize>(bytes: &[u8], out: &mut [f32], convert: impl Fn([u8; N]) -> f32) {
    for (element, out) in bytes.as_chunks::<N>().0.iter().zip(out) {
        *out = convert(*element);
    }
}

/// Converts at most [`PIECE`] elements, with the processor's own conversion where it has one.
fn widen_f16(elements: &[[u8; 2]], out: &mut [f32]) {
    let mut bits = [0u16; PIECE];
    let bits = &mut bits[..elements.len()];
    for (bits, element) in bits.iter_mut().zip(elements) {
        *bits = u16::from_le_bytes(*element);
    }
    bits.reinterpret_cast::<f16>().convert_to_f32_slice(out);
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::*;
    use crate::embedded::EmbeddedStore;
    use crate::fixture::{Ring, WIDTH, row};
    use crate::import::EXTERNAL_ID_TENSOR;

    /// Converts one element by the definition of its type.
    fn naive(dtype: Dtype, e: &[u8]) -> f32 {
        match dtype {
            Dtype::F32 => f32::from_le_bytes(e.try_into().unwrap()),
            Dtype::F16 => f16::from_le_bytes(e.try_into().unwrap()).to_f32_const(),
            Dtype::BF16 => bf16::from_le_bytes(e.try_into().unwrap()).to_f32_const(),
            Dtype::F64 => f64::from_le_bytes(e.try_into().unwrap()) as f32,
            Dtype::U8 => f32::from(e[0]),
            Dtype::I8 => f32::from(e[0] as i8),
            Dtype::I16 => f32::from(i16::from_le_bytes(e.try_into().unwrap())),
            Dtype::I32 => i32::from_le_bytes(e.try_into().unwrap()) as f32,
            Dtype::I64 => i64::from_le_bytes(e.try_into().unwrap()) as f32,
        }
    }

    fn check(dtype: Dtype, bytes: &[u8]) {
        let size = dtype.size_bytes();
        let bytes = &bytes[..bytes.len() / size * size];
        let n = bytes.len() / size;
        let expected: Vec<f32> = bytes.chunks(size).map(|e| naive(dtype, e)).collect();
        let same = |found: &[f32]| {
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let both_nan = found.is_nan() && expected.is_nan();
                assert!(both_nan || found.to_bits() == expected.to_bits(), "{dtype} {i}");
            }
        };
        let mut out = vec![-1.0; n];
        dtype.widen(bytes, &mut out);
        same(&out);
        if size <= 4 {
            let mut out = vec![-1.0f32; n];
            let tail = (4 - size) * n;
            bytemuck::cast_slice_mut(&mut out)[tail..].copy_from_slice(bytes);
            widen_in_place(dtype, &mut out);
            same(&out);
        }
    }

    proptest! {
        #[test]
        fn agrees_with_one_element_at_a_time(
            bytes in prop::collection::vec(any::<u8>(), 0..3 * PIECE * 8),
            short in 0usize..40,
        ) {
            for dtype in Dtype::ALL {
                check(dtype, &bytes);
                check(dtype, &bytes[..short.min(bytes.len())]);
            }
        }
    }

    #[test]
    fn every_half_is_right_nan_infinite_and_subnormal_ones_too() {
        let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        for dtype in [Dtype::F16, Dtype::BF16, Dtype::I16] {
            check(dtype, &halves);
        }
        let bytes: Vec<u8> = (0..=u8::MAX).collect();
        check(Dtype::U8, &bytes);
        check(Dtype::I8, &bytes);
        let mut one = [0.0];
        for (bits, expected) in
            [(0x7c00u16, f32::INFINITY), (1, 2f32.powi(-24)), (0xfbff, -65504.0)]
        {
            Dtype::F16.widen(&bits.to_le_bytes(), &mut one);
            assert_eq!(one[0].to_bits(), expected.to_bits());
        }
    }

    #[test]
    fn edges_of_wide_types() {
        let doubles = [f64::NAN, f64::INFINITY, -0.0, 1e300, 5e-324, 1.0 + 2f64.powi(-24)];
        let bytes: Vec<u8> = doubles.iter().flat_map(|x| x.to_le_bytes()).collect();
        check(Dtype::F64, &bytes);
        let longs = [i64::MIN, i64::MAX, (1 << 24) + 1, -1, 0];
        check(Dtype::I64, &longs.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
    }

    #[test]
    fn rows_come_as_f32_from_every_type_in_pieces_of_any_size() {
        // Rows of one element whose value is the id; long ones make more than one piece.
        for (dtype, encode) in [
            (Dtype::F32, (|x| (x as f32).to_le_bytes().to_vec()) as fn(u32) -> Vec<u8>),
            (Dtype::F16, |x| half::f16::from_f32(x as f32).to_le_bytes().to_vec()),
            (Dtype::BF16, |x| half::bf16::from_f32(x as f32).to_le_bytes().to_vec()),
            (Dtype::F64, |x| f64::from(x).to_le_bytes().to_vec()),
            (Dtype::U8, |x| vec![x as u8]),
            (Dtype::I8, |x| vec![x as u8]),
            (Dtype::I16, |x| (x as i16).to_le_bytes().to_vec()),
            (Dtype::I32, |x| x.to_le_bytes().to_vec()),
            (Dtype::I64, |x| i64::from(x).to_le_bytes().to_vec()),
        ] {
            for (n, width) in [(0, 1), (1, 1), (100, 7), (90, 70_000)] {
                let ids: Vec<NodeId> = (0..n).rev().map(NodeId).collect();
                let mut out = vec![-1.0; n as usize * width];
                let mut gathered = 0;
                gather_as_f32(dtype, width, &ids, &mut out, |ids, rows| {
                    gathered += ids.len();
                    let elements = ids.iter().map(|id| encode(id.0)).collect::<Vec<_>>();
                    let row_bytes = width * dtype.size_bytes();
                    assert_eq!(rows.len(), ids.len() * row_bytes);
                    for (row, element) in rows.chunks_exact_mut(row_bytes).zip(elements) {
                        row.copy_from_slice(&element.repeat(width));
                    }
                    Ok(())
                })
                .unwrap();
                assert_eq!(gathered, n as usize);
                let expected = ids.iter().flat_map(|id| std::iter::repeat_n(id.0 as f32, width));
                assert!(out.iter().copied().eq(expected), "{dtype} {n} {width}");
            }
        }
    }

    #[test]
    fn a_store_returns_its_rows_as_f32() {
        let ring = Ring::new(50, 2, 2);
        let store = EmbeddedStore::from_graph(ring.import(), None).unwrap();
        let ids: Vec<NodeId> = [7, 0, 49, 7].map(NodeId).to_vec();
        let external: Vec<u32> = ids.iter().map(|id| ring.nodes.external_of[id.index()]).collect();
        let mut out = vec![-1.0; ids.len() * WIDTH];
        store.gather_f32("feat", &ids, &mut out).unwrap();
        let expected = external.iter().flat_map(|&id| row(id, WIDTH)).map(f32::from);
        assert!(out.iter().copied().eq(expected));
        store.gather_f32(EXTERNAL_ID_TENSOR, &ids, &mut out[..4]).unwrap();
        assert!(out[..4].iter().copied().eq(external.iter().map(|&id| id as f32)));
        for n in [0, WIDTH - 1, 2 * WIDTH] {
            let error = store.gather_f32("feat", &ids[..1], &mut vec![0.0; n]).unwrap_err();
            assert!(matches!(error, StoreError::OutputLength { .. }), "{error}");
        }
        let unknown = store.gather_f32("feat", &[NodeId(50)], &mut [0.0; WIDTH]).unwrap_err();
        assert!(matches!(unknown, StoreError::NoNode { .. }), "{unknown}");
    }
}
