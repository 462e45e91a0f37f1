use super::*;
use crate::npy::{NpyType, NpyWriter};
use std::fs::File;
use std::path::PathBuf;
use tempfile::TempDir;

fn all(edges: &dyn EdgeStream) -> Result<Vec<[u32; 2]>, EdgeError> {
    let mut out = Vec::new();
    edges.for_each_chunk(&mut |chunk| {
        out.extend_from_slice(chunk);
        Ok(())
    })?;
    Ok(out)
}

fn npy(dir: &TempDir, dtype: NpyType, ids: &[i64]) -> PathBuf {
    let path = dir.path().join("edges.npy");
    let mut writer = NpyWriter::create(&path, dtype, &[ids.len() as u64 / 2, 2]).unwrap();
    for id in ids {
        writer.write_all(&id.to_le_bytes()[..dtype.size_bytes()]).unwrap();
    }
    writer.finish().unwrap();
    path
}

#[test]
fn all_integer_types_give_the_same_edges_across_chunks() {
    let dir = tempfile::tempdir().unwrap();
    let ids: Vec<i64> = (0..2 * CHUNK_EDGES as i64 + 6).collect();
    let expected: Vec<[u32; 2]> = ids.chunks(2).map(|e| [e[0] as u32, e[1] as u32]).collect();
    for dtype in [NpyType::U32, NpyType::I32, NpyType::U64, NpyType::I64] {
        let edges = ArrayEdges::open_npy(&npy(&dir, dtype, &ids), None).unwrap();
        assert_eq!(edges.n_nodes(), ids.len() as u32);
        assert_eq!(edges.n_edges(), expected.len() as u64);
        assert_eq!(all(&edges).unwrap(), expected, "{dtype}");
    }
    assert_eq!(all(&MemoryEdges::new(expected.clone()).unwrap()).unwrap(), expected);
}

#[test]
fn ids_out_of_range_name_edge_and_id() {
    let dir = tempfile::tempdir().unwrap();
    let mut ids = vec![0; 2 * CHUNK_EDGES + 8];
    ids[2 * CHUNK_EDGES + 5] = 7;
    for dtype in [NpyType::U32, NpyType::I32, NpyType::U64, NpyType::I64] {
        let path = npy(&dir, dtype, &ids);
        assert!(all(&ArrayEdges::open_npy(&path, Some(8)).unwrap()).is_ok());
        let error = all(&ArrayEdges::open_npy(&path, Some(7)).unwrap()).unwrap_err().to_string();
        assert!(error.contains("edge 65538 names node 7"), "{error}");
        assert!(all(&ArrayEdges::open_npy(&path, Some(0)).unwrap()).is_err());
    }
}

#[test]
fn negative_and_huge_ids_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let found = |dtype, id| match ArrayEdges::open_npy(&npy(&dir, dtype, &[0, id]), None) {
        Err(EdgeError::OutOfRange { found, edge: 0, .. }) => found,
        other => panic!("{other:?}"),
    };
    assert_eq!(found(NpyType::I32, -1), -1);
    assert_eq!(found(NpyType::I64, -1), -1);
    assert_eq!(found(NpyType::U64, -1), i128::from(u64::MAX));
    assert_eq!(found(NpyType::U32, i64::from(u32::MAX)), i128::from(u32::MAX));
    assert_eq!(found(NpyType::I64, 1 << 32), 1 << 32);
    let last = npy(&dir, NpyType::U32, &[0, i64::from(u32::MAX) - 1]);
    assert!(matches!(
        ArrayEdges::open_npy(&last, None),
        Err(EdgeError::Sparse { found: u32::MAX, n_edges: 1, .. })
    ));
    assert_eq!(all(&ArrayEdges::open_npy(&last, Some(u32::MAX)).unwrap()).unwrap().len(), 1);
    let large = npy(&dir, NpyType::U32, &[0, (1 << 20) - 1]);
    assert_eq!(ArrayEdges::open_npy(&large, None).unwrap().n_nodes(), 1 << 20);
    let negative = npy(&dir, NpyType::I32, &[0, -1]);
    assert!(all(&ArrayEdges::open_npy(&negative, Some(u32::MAX)).unwrap()).is_err());
    assert!(MemoryEdges::new(vec![[0, u32::MAX]]).is_err());
}

#[test]
fn other_types_and_shapes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let float = npy(&dir, NpyType::F32, &[1, 2]);
    assert!(matches!(ArrayEdges::open_npy(&float, None), Err(EdgeError::Type { .. })));
    let path = dir.path().join("wide.npy");
    NpyWriter::create(&path, NpyType::U32, &[2, 0]).unwrap().finish().unwrap();
    let error = ArrayEdges::open_npy(&path, None).unwrap_err().to_string();
    assert!(error.contains("(E, 2), found [2, 0]"), "{error}");
}

#[test]
fn no_edges_are_no_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let edges = ArrayEdges::open_npy(&npy(&dir, NpyType::I64, &[]), None).unwrap();
    assert_eq!((edges.n_edges(), edges.n_nodes()), (0, 0));
    assert!(all(&edges).unwrap().is_empty());
    assert_eq!(ArrayEdges::open_npy(&npy(&dir, NpyType::I64, &[]), Some(5)).unwrap().n_nodes(), 5);
}

#[test]
fn a_file_that_shrinks_between_passes_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = npy(&dir, NpyType::U32, &[0, 1, 1, 0]);
    let edges = ArrayEdges::open_npy(&path, None).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(130).unwrap();
    let error = all(&edges).unwrap_err().to_string();
    assert!(error.contains("cannot read edge 0: "), "{error}");
}

fn raw(dir: &TempDir, bytes: &[u8]) -> PathBuf {
    let path = dir.path().join("edges.bin");
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn raw_pairs_give_the_same_edges_across_chunks() {
    let dir = tempfile::tempdir().unwrap();
    let expected: Vec<[u32; 2]> = (0..CHUNK_EDGES as u32 + 3).map(|i| [i, i / 2]).collect();
    let wide: Vec<u64> = expected.iter().flatten().map(|&id| u64::from(id)).collect();
    let narrow = raw(&dir, bytemuck::cast_slice(&expected));
    assert!(all(&ArrayEdges::open_raw(&narrow, IdWidth::U32, None).unwrap()).unwrap() == expected);
    let wide =
        ArrayEdges::open_raw(&raw(&dir, bytemuck::cast_slice(&wide)), IdWidth::U64, None).unwrap();
    assert_eq!((wide.n_edges(), wide.n_nodes()), (expected.len() as u64, CHUNK_EDGES as u32 + 3));
    assert!(all(&wide).unwrap() == expected);
    let none = ArrayEdges::open_raw(&raw(&dir, &[]), IdWidth::U64, None).unwrap();
    assert_eq!((none.n_edges(), none.n_nodes()), (0, 0));
}

#[test]
fn raw_files_that_are_cut_or_out_of_range_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (u32s, u64s) = (IdWidth::U32, IdWidth::U64);
    for (width, len) in [(u32s, 7), (u32s, 12), (u64s, 8), (u64s, 24)] {
        let error = ArrayEdges::open_raw(&raw(&dir, &vec![0; len]), width, None).unwrap_err();
        assert!(matches!(error, EdgeError::Length { .. }), "{error}");
        assert!(error.to_string().contains(&format!("edges.bin: {len} bytes")), "{error}");
    }
    let minus_one = raw(&dir, &[0xff; 16]);
    let wide = ArrayEdges::open_raw(&minus_one, IdWidth::U64, None);
    assert!(matches!(wide, Err(EdgeError::OutOfRange { edge: 0, .. })));
    assert!(all(&ArrayEdges::open_raw(&minus_one, IdWidth::U32, Some(9)).unwrap()).is_err());
    let file = EdgeFile { format: Some(EdgeFormat::U32), ..EdgeFile::at(minus_one) };
    assert!(file.open(Some(9)).is_err(), "opening checks every id");
    assert!(matches!(
        ArrayEdges::open_raw(&dir.path().join("none"), IdWidth::U32, None),
        Err(EdgeError::Io(error)) if error.action == "open"
    ));
}

#[test]
fn spooled_edges_are_the_same_and_never_overwrite() {
    let dir = tempfile::tempdir().unwrap();
    let expected: Vec<[u32; 2]> = (0..CHUNK_EDGES as u32 + 3).map(|i| [i / 3, i]).collect();
    let edges = MemoryEdges::new(expected.clone()).unwrap();
    let path = dir.path().join("spool");
    let spooled = spool(&edges, &path).unwrap();
    assert_eq!((spooled.n_edges(), spooled.n_nodes()), (edges.n_edges(), edges.n_nodes()));
    assert!(all(&spooled).unwrap() == expected);
    let error = spool(&edges, &path).unwrap_err();
    assert!(matches!(error, EdgeError::Io(error) if error.action == "write"));
}
