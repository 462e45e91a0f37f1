use super::*;
use crate::edges::MemoryEdges;
use crate::header::{EdgeColumns, HEADER_BYTES, Header, Identity};
use crate::ids::PartId;
use proptest::prelude::*;
use tempfile::TempDir;

const UUID: [u8; 16] = [9; 16];

struct Written {
    dir: TempDir,
    relabelling: Relabelling,
    paths: Vec<PathBuf>,
    summary: TopologySummary,
}

fn write(edges: &MemoryEdges, assignment: &[u16], n_parts: u16, direction: Direction) -> Written {
    let dir = tempfile::tempdir().unwrap();
    let assignment: Vec<PartId> = assignment.iter().map(|&p| PartId(p)).collect();
    let relabelling = Relabelling::new(&assignment, n_parts).unwrap();
    let path_of = |part: PartId| dir.path().join(format!("{part}.csr"));
    let summary = write_topologies(edges, &relabelling, direction, UUID, &path_of).unwrap();
    let paths = relabelling.book.parts().map(path_of).collect();
    Written { dir, relabelling, paths, summary }
}

/// Writes a graph where partitions 1 and 3 own nodes, and 0, 2 and 4 own none.
fn small() -> Written {
    let edges = MemoryEdges::new(vec![[0, 1], [1, 2], [2, 0], [3, 3], [0, 1]]).unwrap();
    write(&edges, &[1, 3, 1, 3], 5, Direction::Directed)
}

fn open(written: &Written) -> Result<Topology, TopologyError> {
    Topology::open(&written.paths, &written.relabelling.book, UUID)
}

#[test]
fn lists_are_in_neighbours_with_loops_kept_and_repetitions_dropped() {
    let written = small();
    // External 0, 2 become 0, 1 in partition 1; external 1, 3 become 2, 3 in partition 3.
    let topology = open(&written).unwrap();
    let lists: Vec<&[u32]> = (0..5).map(|v| topology.in_neighbours(NodeId(v))).collect();
    assert_eq!(lists, [[1].as_slice(), &[2], &[0], &[3], &[]]);
    assert_eq!((topology.n_nodes(), topology.n_edges()), (4, 4));
    assert_eq!(topology.in_degree(NodeId(u32::MAX)), 0);
    let expected = TopologySummary { n_edges_directed: 4, n_self_loops: 1, n_duplicates: 1 };
    assert_eq!(written.summary, expected);
}

#[test]
fn no_edges_and_no_nodes_work() {
    let none = MemoryEdges::default();
    for assignment in [[].as_slice(), &[0], &[1, 1]] {
        let topology = open(&write(&none, assignment, 2, Direction::Undirected)).unwrap();
        assert_eq!((topology.n_nodes() as usize, topology.n_edges()), (assignment.len(), 0));
        assert!(topology.in_neighbours(NodeId(0)).is_empty());
    }
    let memory =
        Topology::from_edges(&none, &Relabelling::identity(0), Direction::Undirected).unwrap();
    assert_eq!((memory.n_nodes(), memory.in_degree(NodeId(0))), (0, 0));
}

/// Replaces a file by a new one; ext4 would sync one that is cut short and written again.
fn replace(path: &Path, bytes: &[u8]) {
    std::fs::remove_file(path).unwrap();
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn every_truncation_and_every_flipped_bit_is_an_error() {
    let written = small();
    let path = &written.paths[3];
    let open = || open_part(path, &written.relabelling.book, PartId(3), UUID);
    let whole = std::fs::read(path).unwrap();
    for len in 0..=whole.len() + 1 {
        let mut bytes = whole.clone();
        bytes.resize(len, 0);
        replace(path, &bytes);
        assert_eq!(open().is_ok(), len == whole.len(), "{len} bytes");
    }
    // Every bit of the header is flipped in the tests of the header; one of each byte here.
    for bit in (0..HEADER_BYTES * 8).step_by(9).chain(HEADER_BYTES * 8..whole.len() * 8) {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        replace(path, &bytes);
        let error = open().unwrap_err().to_string();
        assert!(error.contains("3.csr: "), "bit {bit}: {error}");
    }
}

/// Writes a file with good checksums and wrong numbers.
fn forge(written: &Written, offsets: &[u64; 3], neighbours: &[u32], n_edges: u64) {
    let (offsets, neighbours) = (bytemuck::cast_slice(offsets), bytemuck::cast_slice(neighbours));
    let header = Header {
        kind: FileKind::Topology,
        identity: Identity::of(&written.relabelling.book, PartId(3), UUID),
        n_nodes: 2,
        n_edges,
        columns: EdgeColumns::default(),
        section_crcs: [crc32fast::hash(offsets), crc32fast::hash(neighbours), 0, 0],
    };
    let bytes = [header.encode().as_slice(), offsets, neighbours].concat();
    std::fs::write(&written.paths[3], bytes).unwrap();
}

#[test]
fn forged_contents_are_refused() {
    let written = small();
    forge(&written, &[0, 1, 2], &[0, 3], 2);
    assert!(open(&written).is_ok());
    let cases: [(_, &[u32], _); 6] = [
        ([1, 1, 2], &[0, 3], 2),
        ([0, 2, 1], &[0, 3], 2),
        ([0, 1, 1], &[0, 3], 2),
        ([0, u64::MAX, 2], &[0, 3], 2),
        ([0, 1, 2], &[0, 4], 2),
        ([0, 1, 2], &[0, 3], u64::MAX / 4 + 1),
    ];
    for (offsets, neighbours, n_edges) in cases {
        forge(&written, &offsets, neighbours, n_edges);
        assert!(open(&written).is_err(), "{offsets:?} {neighbours:?} {n_edges}");
    }
}

#[test]
fn files_in_the_wrong_place_are_refused() {
    let mut written = small();
    assert!(matches!(
        Topology::open(&written.paths[1..], &written.relabelling.book, UUID),
        Err(TopologyError::Files { expected: 5, found: 4 })
    ));
    assert!(Topology::open(&written.paths, &written.relabelling.book, [8; 16]).is_err());
    written.paths.swap(1, 3);
    assert!(matches!(open(&written), Err(TopologyError::File { fault: FileFault::Header(_), .. })));
    written.paths[1] = written.dir.path().join("none.csr");
    assert!(matches!(open(&written), Err(TopologyError::Io { .. })));
}

proptest! {
    // Few cases: each syncs six files.
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn files_and_memory_give_the_same_lists(
        ends in prop::collection::vec((0u32..12, 0u32..12), 0..60),
        assignment in prop::collection::vec(0u16..6, 12..15),
        direction in any::<bool>().prop_map(Direction::from),
    ) {
        let pairs = ends.iter().map(|&(u, v)| [u, v]).collect();
        let edges = MemoryEdges::new(pairs).unwrap();
        let written = write(&edges, &assignment, 6, direction);
        let mapped = open(&written).unwrap();
        let memory = Topology::from_edges(&edges, &written.relabelling, direction).unwrap();
        let read = written.paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
        let read = Topology::from_bytes(read, &written.relabelling.book, UUID).unwrap();
        prop_assert_eq!(mapped.n_edges(), memory.n_edges());
        prop_assert_eq!(mapped.n_edges(), written.summary.n_edges_directed);
        for v in 0..=mapped.n_nodes() {
            prop_assert_eq!(mapped.in_neighbours(NodeId(v)), memory.in_neighbours(NodeId(v)));
            prop_assert_eq!(mapped.in_neighbours(NodeId(v)), read.in_neighbours(NodeId(v)));
        }
        let both = Topology::from_edges(&edges, &written.relabelling, Direction::Undirected).unwrap();
        let path = written.dir.path().join("scratch");
        let (same, scratch) =
            scratch_topology(&edges, written.relabelling.clone(), &path).unwrap();
        prop_assert_eq!(same, written.relabelling);
        for v in 0..=both.n_nodes() {
            prop_assert_eq!(scratch.in_neighbours(NodeId(v)), both.in_neighbours(NodeId(v)));
        }
    }
}

#[test]
fn lists_in_memory_are_checked() {
    let topology = Topology::from_lists(vec![0, 2, 2, 3], vec![1, 2, 0]).unwrap();
    assert_eq!(topology.in_neighbours(NodeId(0)), [1, 2]);
    assert_eq!((topology.n_nodes(), topology.n_edges()), (3, 3));
    assert_eq!(Topology::from_lists(vec![0], vec![]).unwrap().n_nodes(), 0);
    for (offsets, neighbours) in [
        (vec![], vec![]),
        (vec![1, 1], vec![0]),
        (vec![0, 2], vec![0]),
        (vec![0, 2, 1, 3], vec![1, 2, 0]),
        (vec![0, 1], vec![1]),
        (vec![0, u64::MAX, 1], vec![0]),
    ] {
        let error = Topology::from_lists(offsets, neighbours).unwrap_err();
        assert!(matches!(error, TopologyError::File { .. }), "{error}");
    }
}

/// Files with edge columns of `edges`, in which each weight is half of the edge's number.
fn write_columns(
    edges: &MemoryEdges,
    assignment: &[u16],
    options: &TopologyOptions<'_>,
) -> (Written, TopologySummary) {
    let written = write(edges, assignment, 5, options.direction);
    let path_of = |part: PartId| written.dir.path().join(format!("{part}.csr"));
    let summary =
        write_topologies_with(edges, &written.relabelling, options, UUID, &path_of).unwrap();
    (written, summary)
}

fn weights_of(n_edges: usize) -> Vec<f32> {
    (0..n_edges).map(|edge| edge as f32 / 2.0).collect()
}

proptest! {
    // Few cases: each syncs many files.
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn columns_tell_which_edge_of_the_input_each_neighbour_is(
        ends in prop::collection::vec((0u32..12, 0u32..12), 0..60),
        assignment in prop::collection::vec(0u16..5, 12..15),
        undirected: bool,
        (keep_loops, keep_duplicates) in any::<(bool, bool)>(),
        (edge_ids, with_weights) in any::<(bool, bool)>(),
    ) {
        let pairs: Vec<[u32; 2]> = ends.iter().map(|&(u, v)| [u, v]).collect();
        let edges = MemoryEdges::new(pairs.clone()).unwrap();
        let weights = weights_of(pairs.len());
        let policy = |keep| if keep { EdgePolicy::Keep } else { EdgePolicy::Drop };
        let options = TopologyOptions {
            direction: undirected.into(),
            self_loops: policy(keep_loops),
            duplicates: policy(keep_duplicates),
            edge_ids,
            weights: with_weights.then_some(&weights),
            window_bytes: 256,
        };
        let (written, summary) = write_columns(&edges, &assignment, &options);
        let topology = open(&written).unwrap();
        prop_assert_eq!(topology.n_edges(), summary.n_edges_directed);
        let loops = pairs.iter().filter(|[u, v]| u == v).count() as u64;
        prop_assert_eq!(summary.n_self_loops, loops);
        let both = if undirected { 2 * pairs.len() as u64 - loops } else { pairs.len() as u64 };
        let kept = if keep_loops { both } else { both - loops };
        let dropped = if keep_duplicates { 0 } else { summary.n_duplicates };
        prop_assert_eq!(summary.n_edges_directed, kept - dropped);
        let external = |v: u32| written.relabelling.external_of[v as usize];
        for v in 0..topology.n_nodes() {
            let sources = topology.in_neighbours(NodeId(v));
            let ids = topology.in_edge_ids(NodeId(v));
            let found = topology.in_edge_weights(NodeId(v));
            prop_assert_eq!((ids.is_some(), found.is_some()), (edge_ids, with_weights));
            prop_assert!(sources.is_sorted_by(|a, b| a < b || (keep_duplicates && a == b)));
            for (i, &source) in sources.iter().enumerate() {
                let ends = [external(source), external(v)];
                let turned = [ends[1], ends[0]];
                let is_it = |edge: &[u32; 2]| *edge == ends || (undirected && *edge == turned);
                let mut places = pairs.iter().enumerate().filter(|(_, edge)| is_it(edge));
                // Repeated edges that are kept come in the order of the input.
                let nth = sources[..i].iter().filter(|&&s| s == source).count();
                let place = places.nth(nth).unwrap().0;
                if let Some(ids) = ids {
                    prop_assert_eq!(ids[i].get(), place as u64);
                }
                if let Some(found) = found {
                    prop_assert_eq!(found[i], weights[place]);
                }
            }
        }
        let past = NodeId(topology.n_nodes());
        prop_assert_eq!(topology.in_edge_ids(past).is_some(), edge_ids);
        prop_assert!(topology.in_edge_weights(past).unwrap_or_default().is_empty());
    }
}

#[test]
fn damage_to_columns_is_an_error() {
    let edges = MemoryEdges::new(vec![[0, 1], [1, 2], [2, 0], [3, 3], [0, 1]]).unwrap();
    let weights = weights_of(5);
    let options = TopologyOptions { edge_ids: true, weights: Some(&weights), ..Default::default() };
    let (written, _) = write_columns(&edges, &[1, 3, 1, 3], &options);
    let path = &written.paths[3];
    let whole = std::fs::read(path).unwrap();
    assert_eq!(whole.len(), HEADER_BYTES + 3 * 8 + 2 * 4 + 2 * 8 + 2 * 4);
    for len in (HEADER_BYTES..whole.len()).chain([whole.len() + 1]) {
        let mut bytes = whole.clone();
        bytes.resize(len, 0);
        replace(path, &bytes);
        assert!(open(&written).is_err(), "{len} bytes");
    }
    for bit in HEADER_BYTES * 8..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        replace(path, &bytes);
        assert!(open(&written).is_err(), "bit {bit}");
    }
    // A sound file of the same graph that holds other columns.
    let fewer = TopologyOptions { edge_ids: false, ..options };
    let (other, _) = write_columns(&edges, &[1, 3, 1, 3], &fewer);
    replace(path, &std::fs::read(&other.paths[3]).unwrap());
    assert!(matches!(open(&written), Err(TopologyError::Columns { .. })));
}

#[test]
fn weights_that_are_none_are_refused() {
    let edges = MemoryEdges::new(vec![[0, 1], [1, 0]]).unwrap();
    let nodes = Relabelling::identity(2);
    let dir = tempfile::tempdir().unwrap();
    let refused = |weights: &[f32]| {
        let options = TopologyOptions { weights: Some(weights), ..Default::default() };
        let path_of = |_| dir.path().join("x");
        let error = write_topologies_with(&edges, &nodes, &options, UUID, &path_of).unwrap_err();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        error
    };
    assert!(matches!(refused(&[1.0]), TopologyError::Weights { expected: 2, found: 1 }));
    assert!(matches!(refused(&[1.0, f32::NAN]), TopologyError::Weight { edge: 1, .. }));
    assert!(matches!(refused(&[f32::INFINITY, 1.0]), TopologyError::Weight { edge: 0, .. }));
}
