//! A graph with the parts of format 2 that was written when they were new: it opens for ever.
//!
//! `fixtures/format2.zip` was made by `lode import --edge-ids --edge-weights W --codec packed=zstd
//! --codec brain=raw --dtype brain=bf16 --parts 2` (partitioner spring). It has 300 nodes. Its
//! edges, all modulo 300, are one from each `i` to `i + 1`, then one from each `i` to `7 i + 3`.
//! Last comes that from 0 to 1 once more. Edge `e` weighs `e / 4 - 10`. Tensors:
//!
//! - `packed`: f32 × 64, row i is zeros, but `i` in column `i mod 64`;
//! - `brain`: bf16 × 5, element j of row i is `i mod 128 + j`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use lodestore_graph::halo::Halo;
use lodestore_graph::topology::Topology;
use lodestore_graph::{NodeId, PartId};
use lodestore_store::import::EXTERNAL_ID_TENSOR;
use lodestore_store::repair::{RepairMode, repair};
use lodestore_store::verify::verify;
use lodestore_store::{EmbeddedStore, Graph, GraphHandle, OpenMode, OpenOptions};
use tempfile::TempDir;

const N_NODES: u32 = 300;
const N_EDGES: u64 = 600;

fn unpacked() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let fixture = Path::new("tests/fixtures/format2.zip");
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

/// Returns the input's id of each node.
fn external_ids(store: &EmbeddedStore) -> Vec<u32> {
    let ids = gathered(store, EXTERNAL_ID_TENSOR);
    ids.as_chunks::<8>().0.iter().map(|id| i64::from_le_bytes(*id) as u32).collect()
}

/// Checks all rows; those of `packed` are ones for nodes below `n_ones`.
fn check_rows(graph: &Path, n_ones: usize) {
    let store = EmbeddedStore::open(graph, None).unwrap();
    let external = external_ids(&store);
    let mut all = external.clone();
    all.sort_unstable();
    assert_eq!(all, (0..N_NODES).collect::<Vec<_>>());
    let packed = external.iter().enumerate().flat_map(|(node, &i)| {
        (0..64).map(move |column| match (node < n_ones, column == i % 64) {
            (true, _) => 1.0,
            (false, true) => i as f32,
            (false, false) => 0.0,
        })
    });
    let packed: Vec<u8> = packed.flat_map(f32::to_le_bytes).collect();
    assert!(gathered(&store, "packed") == packed);
    let brain = external.iter().flat_map(|i| (0..5).map(move |j| (i % 128 + j) as f32));
    let brain: Vec<u8> =
        brain.map(half::bf16::from_f32).flat_map(half::bf16::to_le_bytes).collect();
    assert!(gathered(&store, "brain") == brain);
}

/// Checks the sources of every edge, its number and its weight.
fn check_edges(path: &Path) {
    let graph = Graph::open(path).unwrap();
    let external = external_ids(&EmbeddedStore::open(path, None).unwrap());
    let (book, uuid) = (graph.book(), *graph.uuid().as_bytes());
    let paths: Vec<PathBuf> = book.parts().map(|part| graph.topology_path(part)).collect();
    let topology = Topology::open(&paths, book, uuid).unwrap();
    assert_eq!((topology.n_edges(), graph.meta().edges), (N_EDGES, N_EDGES));
    let mut seen = vec![false; N_EDGES as usize];
    for node in (0..N_NODES).map(NodeId) {
        let sources = topology.in_neighbours(node).iter();
        let ids = topology.in_edge_ids(node).unwrap();
        let weights = topology.in_edge_weights(node).unwrap();
        assert_eq!((ids.len(), weights.len()), (sources.len(), sources.len()));
        for ((&source, id), &weight) in sources.zip(ids).zip(weights) {
            let edge = id.get() as usize;
            let (from, to) = (external[source as usize], external[node.index()]);
            let step = if edge < N_NODES as usize { from + 1 } else { 7 * from + 3 };
            assert_eq!((edge % N_NODES as usize, step % N_NODES), (from as usize, to));
            assert_eq!(weight, edge as f32 / 4.0 - 10.0);
            assert!(!std::mem::replace(&mut seen[edge], true), "edge {edge} twice");
        }
    }
    assert!(seen.iter().all(|&seen| seen));
    let halos = book.parts().map(|part| {
        let halo = Halo::open(&graph.halo_path(part), book, part, uuid).unwrap();
        halo.ids.len()
    });
    assert_eq!(halos.collect::<Vec<_>>(), [67, 66]);
}

/// Returns the format in a header.
fn format_of(path: &Path) -> u32 {
    u32::from_le_bytes(fs::read(path).unwrap()[8..12].try_into().unwrap())
}

#[test]
fn a_graph_of_format_2_opens_verifies_and_returns_its_rows_and_edges() {
    let (_dir, path) = unpacked();
    for (file, format) in [("packed.v1.seg", 2), ("brain.v1.seg", 1), ("topology.csr", 2)] {
        assert_eq!(format_of(&path.join("part-000").join(file)), format, "{file}");
    }
    let report = verify(&path, &mut |_, _| {}).unwrap();
    assert!(report.ok && report.unknown.is_empty(), "{report:?}");
    check_rows(&path, 0);
    check_edges(&path);
    let graph = Graph::open(&path).unwrap();
    assert_eq!(graph.segment(PartId(1), "packed").unwrap().codec().name(), "zstd");
}

#[test]
fn a_graph_of_format_2_takes_updates() {
    let (_dir, path) = unpacked();
    let graph = Graph::open(&path).unwrap();
    let live = GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap();
    let ids: Vec<NodeId> = (0..170).map(NodeId).collect();
    let ones: Vec<u8> = (0..170 * 64).flat_map(|_| 1f32.to_le_bytes()).collect();
    live.put_rows("packed", &ids, &ones).unwrap();
    live.commit_version().unwrap();
    live.compact(None, None, lodestore_store::update::Folding::All, &mut |_, _| {
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    drop(live);
    assert_eq!(format_of(&path.join("part-001/packed.v2.seg")), 2);
    check_rows(&path, 170);
    assert!(verify(&path, &mut |_, _| {}).unwrap().ok);
}

#[test]
fn a_graph_of_format_2_is_repaired() {
    let (_dir, path) = unpacked();
    fs::remove_file(path.join("graph.toml")).unwrap();
    fs::remove_file(path.join("part-001/halo.bin")).unwrap();
    let segment = path.join("part-000/packed.v1.seg");
    let mut bytes = fs::read(&segment).unwrap();
    let end = bytes.len() - 4096;
    bytes[..4096].fill(0);
    bytes[end..].fill(0);
    fs::write(&segment, bytes).unwrap();
    let report = repair(&path, RepairMode::Apply, &mut |_, _| {}).unwrap();
    assert!(report.ok, "{report:?}");
    check_rows(&path, 0);
    check_edges(&path);
    assert!(verify(&path, &mut |_, _| {}).unwrap().ok);
}
