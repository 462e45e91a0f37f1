//! Work of partitions, from a topology.

use crate::book::PartitionBook;
use crate::ids::{NodeId, PartId};
use crate::topology::Topology;

use super::{HaloReplica, PartLoad};

/// Not a replica of the partition that is looked at.
const NONE: u32 = u32::MAX;

/// Returns each partition's load, its replicas by influence (Eq. 16). Takes 6 bytes per node and 16
/// per replica.
///
/// # Panics
///
/// When topology and book are of different graphs.
#[must_use]
pub fn part_loads(topology: &Topology, book: &PartitionBook) -> Vec<PartLoad> {
    assert_eq!(topology.n_nodes(), book.n_nodes(), "one graph");
    let mut place = vec![NONE; book.n_nodes() as usize];
    let mut loads: Vec<PartLoad> =
        book.parts().map(|part| part_load(topology, book, part, &mut place)).collect();
    // C of the equation: in how many subgraphs a node is, its owner's included.
    let mut n_subgraphs = vec![1u16; book.n_nodes() as usize];
    for replica in loads.iter().flat_map(|load| &load.replicas) {
        n_subgraphs[replica.node.index()] += 1;
    }
    for load in &mut loads {
        for replica in &mut load.replicas {
            let out_degree = f64::from(replica.edges);
            let n_subgraphs = f64::from(n_subgraphs[replica.node.index()]);
            replica.influence *= n_subgraphs / out_degree.sqrt();
        }
        load.replicas.sort_by(|a, b| a.influence.total_cmp(&b.influence).then(a.node.cmp(&b.node)));
    }
    loads
}

/// Returns a partition's load, with Σ 1/√D_in of the targets as influence. `place` is `NONE`
/// throughout, before and after.
fn part_load(
    topology: &Topology,
    book: &PartitionBook,
    part: PartId,
    place: &mut [u32],
) -> PartLoad {
    let range = book.range(part);
    let mut load = PartLoad { inner: u64::from(range.end - range.start), ..PartLoad::default() };
    for node in range.clone() {
        let sources = topology.in_neighbours(NodeId(node));
        load.edges += sources.len() as u64;
        let weight = 1.0 / (sources.len() as f64).sqrt();
        for &source in sources.iter().filter(|source| !range.contains(source)) {
            let at = &mut place[source as usize];
            if *at == NONE {
                *at = load.replicas.len() as u32;
                load.replicas.push(HaloReplica { node: NodeId(source), edges: 0, influence: 0.0 });
            }
            let replica = &mut load.replicas[*at as usize];
            replica.edges += 1;
            replica.influence += weight;
        }
    }
    for replica in &load.replicas {
        place[replica.node.index()] = NONE;
    }
    load
}
