//! Topology: whatever the file, it is refused, or every list, column and sample of it is sound.

use lodestore_graph::edges::ArrayEdges;
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::sampler::{Fanout, Sampler};
use lodestore_graph::topology::{Direction, Topology, TopologyOptions, write_topologies_with};
use lodestore_graph::{NodeId, PartitionBook};

use crate::input_file::{PAGE, expand, put_u32, seal_page, squeeze, u32_at, u64_at};
use crate::memory::bounded;
use crate::npy::npy;

/// Nodes whose lists are looked at; the others are of the same kind.
const MAX_NODES: u32 = 2000;

/// Opens a topology, and samples it. The first byte says which checksums are made right; the rest
/// spells the file of a graph's only partition.
pub fn run(data: &[u8]) {
    let Some((&seals, spelled)) = data.split_first() else { return };
    let mut bytes = expand(spelled);
    reseal(&mut bytes, seals);
    let (n_nodes, n_bytes) = (u32_at(&bytes, 36), bytes.len());
    let Some(book) = PartitionBook::new(vec![0, n_nodes]).ok() else { return };
    let uuid = bytes.get(16..32).and_then(|uuid| uuid.try_into().ok()).unwrap_or_default();
    let opened = bounded(n_bytes, || Topology::from_bytes(vec![bytes], &book, uuid));
    let Ok(topology) = opened else { return };
    assert_eq!(topology.n_nodes(), n_nodes);
    let mut n_edges = 0;
    for node in (0..n_nodes.min(MAX_NODES)).map(NodeId) {
        let sources = topology.in_neighbours(node);
        assert!(sources.iter().all(|&source| source < n_nodes));
        let ids = topology.in_edge_ids(node);
        assert!(ids.is_none_or(|ids| ids.len() == sources.len()));
        let weights = topology.in_edge_weights(node);
        assert!(weights.is_none_or(|weights| weights.len() == sources.len()));
        assert!(weights.unwrap_or_default().iter().all(|weight| weight.is_finite()));
        n_edges += sources.len() as u64;
    }
    assert!(n_edges <= topology.n_edges());
    let fanouts = [2, 1].map(|n| Fanout::at_most(n).expect("a fan-out"));
    let roots: Vec<NodeId> = (0..n_nodes.min(20)).map(NodeId).collect();
    let batch = Sampler::new(&topology, &fanouts).sample(&roots, n_edges);
    batch.check(n_nodes).expect("what is drawn holds its invariants");
}

/// Makes right what `seals` names: sections, header.
fn reseal(bytes: &mut [u8], seals: u8) {
    if bytes.len() < PAGE {
        return;
    }
    let columns = if u32_at(bytes, 8) == 2 { u32_at(bytes, 72) } else { 0 };
    let (n_nodes, n_edges) = (u64_at(bytes, 40) as usize, u64_at(bytes, 48) as usize);
    let mut lengths = vec![n_nodes.saturating_add(1).saturating_mul(8), n_edges.saturating_mul(4)];
    lengths.extend((columns & 1 != 0).then(|| n_edges.saturating_mul(8)));
    lengths.extend((columns & 2 != 0).then(|| n_edges.saturating_mul(4)));
    let mut start = PAGE;
    for (i, length) in lengths.into_iter().enumerate() {
        let end = start.saturating_add(length);
        if let (Some(section), true) = (bytes.get(start..end), seals & 1 != 0) {
            let crc = crc32fast::hash(section);
            put_u32(bytes, 56 + 4 * i, crc);
        }
        start = end;
    }
    if seals & 2 != 0 {
        seal_page(&mut bytes[..PAGE]);
    }
}

/// Returns a ring of twelve nodes with a chord, without and with columns.
pub fn seeds() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().expect("a folder");
    let n_nodes = 12u32;
    let ring = (0..n_nodes).flat_map(|i| [i, (i + 1) % n_nodes]);
    let ends = ring.chain([3, 9, 3, 3]).flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
    let edges = dir.path().join("edges.npy");
    std::fs::write(&edges, npy("<u4", "(14, 2)", &ends)).expect("edges");
    let edges = ArrayEdges::open_npy(&edges, Some(n_nodes)).expect("edges");
    let nodes = Relabelling::identity(n_nodes);
    let weights: Vec<f32> = (0..14).map(|edge| edge as f32 / 4.0).collect();
    let path = dir.path().join("topology");
    let mut seeds = Vec::new();
    for (edge_ids, weights) in [(false, None), (true, None), (true, Some(&weights[..]))] {
        let options = TopologyOptions {
            direction: Direction::Undirected,
            edge_ids,
            weights,
            ..TopologyOptions::default()
        };
        write_topologies_with(&edges, &nodes, &options, [6; 16], &|_| path.clone())
            .expect("a topology");
        let spelled = squeeze(&std::fs::read(&path).expect("a topology"));
        seeds.push([vec![0xff], spelled].concat());
    }
    seeds
}
