//! A graph of format 1 that was written when format 1 was the newest: it opens for ever.
//!
//! `fixtures/format1.zip` was made by `lode import --undirected --parts 2` (partitioner spring). It
//! has 300 nodes with edges from each `i` to `i + 1` and to `7 i + 3`, all modulo 300, and these
//! tensors:
//!
//! - `feat`: f32 × 19, element j of row i is 0.5 (31 i + 7 j);
//! - `code`: u8 × 3, 31 i + 7 j + i / 256 modulo 256;
//! - `half`: f16 × 2, i + j.
//!
//! Its catalogs keep no copy of `graph.toml`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use lodestore_graph::halo::Halo;
use lodestore_graph::topology::Topology;
use lodestore_graph::{NodeId, PartId};
use lodestore_store::file_system::{Access, Change, Disk, FileSystem};
use lodestore_store::import::EXTERNAL_ID_TENSOR;
use lodestore_store::repair::{RepairMode, repair};
use lodestore_store::verify::verify;
use lodestore_store::{EmbeddedStore, Graph, GraphHandle, OpenMode, OpenOptions, StoreError};
use tempfile::TempDir;

const N_NODES: u32 = 300;

fn unpacked() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let fixture = Path::new("tests/fixtures/format1.zip");
    let graph = dir.path().join("graph");
    zip::ZipArchive::new(File::open(fixture).unwrap()).unwrap().extract(&graph).unwrap();
    (dir, graph)
}

fn gathered(store: &EmbeddedStore, tensor: &str) -> Vec<u8> {
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let mut rows = vec![0; ids.len() * store.tensor(tensor).unwrap().spec().row_bytes()];
    store.gather(tensor, &ids, &mut rows).unwrap();
    rows
}

/// Checks all rows, those of the external ids in `zero` being all zeros in `code`.
fn check_rows(graph: &Path, zero: &[u32]) {
    let store = EmbeddedStore::open(graph, None).unwrap();
    let external = gathered(&store, EXTERNAL_ID_TENSOR);
    let external: Vec<u32> = external
        .chunks_exact(8)
        .map(|id| u32::try_from(i64::from_le_bytes(id.try_into().unwrap())).unwrap())
        .collect();
    let mut all = external.clone();
    all.sort_unstable();
    assert_eq!(all, (0..N_NODES).collect::<Vec<_>>());
    let floats = |&i: &u32| (0..19).map(move |j| 0.5 * (31 * i + 7 * j) as f32);
    let feat: Vec<u8> = external.iter().flat_map(floats).flat_map(f32::to_le_bytes).collect();
    assert!(gathered(&store, "feat") == feat);
    let code = |i: &u32| {
        let scale = u32::from(!zero.contains(i));
        let i = *i;
        (0..3).map(move |j| (scale * (31 * i + 7 * j + (i >> 8))) as u8)
    };
    assert!(gathered(&store, "code") == external.iter().flat_map(code).collect::<Vec<u8>>());
    let half = |i: &u32| [*i, *i + 1].map(|value| half::f16::from_f32(value as f32));
    let half: Vec<u8> = external.iter().flat_map(half).flat_map(half::f16::to_le_bytes).collect();
    assert!(gathered(&store, "half") == half);
}

#[test]
fn a_graph_of_format_1_opens_verifies_and_returns_its_rows() {
    let (_dir, path) = unpacked();
    let report = verify(&path, &mut |_, _| {}).unwrap();
    assert!(report.ok && report.unknown.is_empty(), "{report:?}");
    check_rows(&path, &[]);
    let graph = Graph::open(&path).unwrap();
    assert_eq!((graph.meta().edges, graph.meta().undirected), (1188, true));
    let (book, uuid) = (graph.book(), *graph.uuid().as_bytes());
    let paths: Vec<PathBuf> = book.parts().map(|part| graph.topology_path(part)).collect();
    let topology = Topology::open(&paths, book, uuid).unwrap();
    assert_eq!(topology.n_edges(), 1188);
    let halo = Halo::open(&graph.halo_path(PartId(1)), book, PartId(1), uuid).unwrap();
    assert_eq!(halo.ids.len(), 104);
}

#[test]
fn a_graph_of_format_1_takes_updates() {
    let (_dir, path) = unpacked();
    let store = EmbeddedStore::open(&path, None).unwrap();
    let external = gathered(&store, EXTERNAL_ID_TENSOR);
    let external = |id: usize| {
        let [low, high] = [external[id * 8], external[id * 8 + 1]];
        u32::from(u16::from_le_bytes([low, high]))
    };
    let zero: Vec<u32> = [0, 151, 152, 299].map(external).to_vec();
    drop(store);
    let graph = Graph::open(&path).unwrap();
    let live = GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap();
    live.put_rows("code", &[0, 151, 152, 299].map(NodeId), &[0; 12]).unwrap();
    live.commit_version().unwrap();
    live.compact(None, None, lodestore_store::update::Folding::All, &mut |_, _| {
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    drop(live);
    check_rows(&path, &zero);
    let report = verify(&path, &mut |_, _| {}).unwrap();
    assert!(report.ok, "{report:?}");
}

#[test]
fn a_graph_of_format_1_is_repaired() {
    let (_dir, path) = unpacked();
    fs::remove_file(path.join("part-001/halo.bin")).unwrap();
    let text = fs::read(path.join("graph.toml")).unwrap();
    fs::remove_file(path.join("graph.toml")).unwrap();
    // No catalog has a copy of it.
    let error = repair(&path, RepairMode::Apply, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, StoreError::Unrepairable { .. }), "{error}");
    fs::write(path.join("graph.toml"), text).unwrap();
    let report = repair(&path, RepairMode::Apply, &mut |_, _| {}).unwrap();
    assert!(report.ok && report.done.len() == 1, "{report:?}");
    check_rows(&path, &[]);
    assert!(verify(&path, &mut |_, _| {}).unwrap().ok);
}

/// Sets the format in a header page and seals it again.
fn make_newer(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    bytes[8..12].copy_from_slice(&77u32.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..4092]).to_le_bytes();
    bytes[4092..4096].copy_from_slice(&crc);
    fs::write(path, bytes).unwrap();
}

/// Rewrites the value of a key of the catalog of partition 0.
fn change_catalog(graph: &Path, key: &[u8]) {
    let pairs = Disk.key_values(&graph.join("part-000/catalog"), Access::Write).unwrap();
    let mut value = pairs.get(key).unwrap().unwrap();
    value[..4].copy_from_slice(&77u32.to_le_bytes());
    pairs.write(&[Change::Put(key.to_vec(), value)]).unwrap();
}

#[test]
fn a_file_of_a_later_format_is_refused_by_name_and_number() {
    type Change<'a> = &'a dyn Fn(&Path);
    let kinds: [(&str, Change); 6] = [
        ("graph.toml", &|graph| {
            let text = fs::read_to_string(graph.join("graph.toml")).unwrap();
            let body = text.split_once('\n').unwrap().1.replace("version = 1", "version = 77");
            let crc = crc32fast::hash(body.as_bytes());
            let text = format!("checksum = \"{crc:08x}\"\n{body}");
            fs::write(graph.join("graph.toml"), text).unwrap();
        }),
        ("feat.v1.seg", &|graph| make_newer(&graph.join("part-000/feat.v1.seg"))),
        ("topology.csr", &|graph| make_newer(&graph.join("part-000/topology.csr"))),
        ("halo.bin", &|graph| make_newer(&graph.join("part-000/halo.bin"))),
        ("catalog", &|graph| change_catalog(graph, b"identity")),
        ("catalog", &|graph| change_catalog(graph, b"segment/feat/\0\0\0\x01")),
    ];
    for (name, change) in kinds {
        let (_dir, path) = unpacked();
        change(&path);
        let report = verify(&path, &mut |_, _| {}).unwrap();
        let damage = report.damaged.first().unwrap_or_else(|| panic!("{name}: {report:?}"));
        let names = damage.file.contains(name) || damage.reason.contains(name);
        assert!(names && damage.reason.contains("77"), "{name}: {damage:?}");
        if !["topology.csr", "halo.bin"].contains(&name) {
            let error = EmbeddedStore::open(&path, None).unwrap_err();
            assert!(error.to_string().contains("77"), "{name}: {error}");
        }
        let error = repair(&path, RepairMode::Apply, &mut |_, _| {}).unwrap_err();
        assert!(matches!(error, StoreError::NewerFormat { found: 77, .. }), "{name}: {error}");
    }
    let (_dir, path) = unpacked();
    make_newer(&path.join("part-000/feat.v1.seg"));
    let error = Graph::open(&path).unwrap().segment(PartId(0), "feat").unwrap_err();
    assert!(matches!(error, StoreError::NewerFormat { found: 77, .. }), "{error}");
    assert!(error.to_string().contains("use a newer release"), "{error}");
}
