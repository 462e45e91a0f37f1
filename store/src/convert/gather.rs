//! Rows of any type, gathered as f32.

use lodestore_graph::NodeId;

use super::widen::widen_in_place;
use crate::dtype::Dtype;
use crate::error::StoreError;

/// Elements of 8 bytes are gathered in pieces of about this many bytes.
const PIECE_BYTES: usize = 1 << 20;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::EmbeddedStore;
    use crate::fixture::{Ring, WIDTH, row};
    use crate::import::EXTERNAL_ID_TENSOR;

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
        let store = EmbeddedStore::of(ring.import(), None).unwrap();
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
