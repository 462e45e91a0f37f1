use super::*;
use crate::edges::MemoryEdges;
use crate::relabel::Relabelling;
use proptest::prelude::*;
use std::collections::HashSet;

fn topology_of(edges: &[[u32; 2]], n_nodes: u32) -> Topology {
    let edges = MemoryEdges::new(edges.to_vec()).unwrap();
    Topology::from_edges(&edges, &Relabelling::identity(n_nodes), false).unwrap()
}

fn at_most(fanouts: &[u32]) -> Vec<Fanout> {
    fanouts.iter().map(|&n| Fanout::at_most(n).unwrap_or(Fanout::All)).collect()
}

/// Edges of block `i` as (source, destination) node ids.
fn edges_of(batch: &Batch, i: usize) -> Vec<[u32; 2]> {
    let block = &batch.blocks[i];
    let of_dst = |dst: usize| block.sources_of(dst).iter().map(move |&src| (src, dst));
    let id = |local: usize| batch.nodes[local].0;
    (0..block.n_dst as usize)
        .flat_map(of_dst)
        .map(|(src, dst)| [id(src as usize), id(dst)])
        .collect()
}

#[test]
fn all_neighbours_of_two_hops() {
    // 4 → 3 → 2 → 0, 3 → 1, and 5 alone.
    let topology = topology_of(&[[4, 3], [3, 2], [2, 0], [3, 1]], 6);
    let mut sampler = Sampler::new(&topology, &[Fanout::All; 2]);
    let batch = sampler.sample(&[0, 1, 5, 0].map(NodeId), 1);
    assert_eq!(batch.nodes, [0, 1, 5, 2, 3, 4].map(NodeId));
    assert_eq!(batch.roots(), [0, 1, 5].map(NodeId));
    assert_eq!(edges_of(&batch, 1), [[2, 0], [3, 1]]);
    assert_eq!(edges_of(&batch, 0), [[2, 0], [3, 1], [3, 2], [4, 3]]);
    assert_eq!(batch.check(6), Ok(()));
}

#[test]
fn no_roots_and_no_hops_work() {
    let topology = topology_of(&[[0, 1]], 2);
    let empty = Sampler::new(&topology, &at_most(&[2, 2])).sample(&[], 1);
    assert_eq!((empty.nodes.len(), empty.blocks.len(), empty.check(2)), (0, 2, Ok(())));
    let roots_only = Sampler::new(&topology, &[]).sample(&[NodeId(1)], 1);
    assert_eq!((roots_only.nodes.len(), roots_only.check(2)), (1, Ok(())));
}

#[test]
fn every_neighbour_is_drawn_equally_often() {
    let edges: Vec<[u32; 2]> = (1..=20).map(|source| [source, 0]).collect();
    let topology = topology_of(&edges, 21);
    let mut sampler = Sampler::new(&topology, &at_most(&[5]));
    let mut counts = [0u32; 21];
    for seed in 0..20_000 {
        for [source, _] in edges_of(&sampler.sample(&[NodeId(0)], seed), 0) {
            counts[source as usize] += 1;
        }
    }
    // 5000 each, ± 5 standard deviations of 61.
    assert!(counts[1..].iter().all(|count| (4700..5300).contains(count)), "{counts:?}");
}

#[test]
fn a_fixed_batch_is_pinned() {
    let edges: Vec<[u32; 2]> = (0u32..400).map(|i| [i * 37 % 61, i * 11 % 59]).collect();
    let topology = topology_of(&edges, 61);
    let batch = Sampler::new(&topology, &at_most(&[3, 2])).sample(&[9, 4].map(NodeId), 42);
    assert_eq!(batch.check(61), Ok(()));
    let edges = [[36, 9], [23, 9], [58, 9], [42, 4], [46, 4], [7, 4]];
    assert_eq!(edges_of(&batch, 1), edges);
    let last = [10, 33, 17, 52, 40, 5, 39, 47, 25, 45, 35, 48].map(NodeId);
    assert_eq!(batch.nodes[8..], last);
}

fn graph() -> impl Strategy<Value = (u32, Vec<[u32; 2]>)> {
    (1u32..40).prop_flat_map(|n_nodes| {
        let edge = (0..n_nodes, 0..n_nodes).prop_map(|(source, dst)| [source, dst]);
        (Just(n_nodes), prop::collection::vec(edge, 0..300))
    })
}

proptest! {
    #[test]
    fn batches_are_samples_without_replacement_of_the_graph(
        (n_nodes, edges) in graph(),
        fanouts in prop::collection::vec(0u32..6, 0..4),
        seed: u64,
    ) {
        let topology = topology_of(&edges, n_nodes);
        let fanouts = at_most(&fanouts);
        let roots: Vec<NodeId> = (0..n_nodes).step_by(3).map(NodeId).collect();
        let batch = Sampler::new(&topology, &fanouts).sample(&roots, seed);

        prop_assert_eq!(batch.check(n_nodes), Ok(()));
        prop_assert_eq!(batch.roots(), &roots[..]);
        let distinct: HashSet<_> = batch.nodes.iter().collect();
        prop_assert_eq!(distinct.len(), batch.nodes.len());
        let mut reached = vec![false; batch.nodes.len()];
        for (hop, block) in batch.blocks.iter().rev().enumerate() {
            for dst in 0..block.n_dst as usize {
                let real = topology.in_neighbours(batch.nodes[dst]);
                let drawn = block.sources_of(dst);
                prop_assert_eq!(drawn.len() as u32, fanouts[hop].of(real.len() as u32));
                let ids: HashSet<u32> = drawn.iter().map(|&s| batch.nodes[s as usize].0).collect();
                prop_assert_eq!(ids.len(), drawn.len());
                prop_assert!(ids.iter().all(|id| real.contains(id)));
                drawn.iter().for_each(|&source| reached[source as usize] = true);
            }
        }
        prop_assert!(reached[batch.n_roots..].iter().all(|&reached| reached));
    }

    #[test]
    fn neighbours_do_not_depend_on_who_else_is_in_the_batch(
        (n_nodes, edges) in graph(),
        seed: u64,
    ) {
        let topology = topology_of(&edges, n_nodes);
        let mut sampler = Sampler::new(&topology, &at_most(&[3, 2]));
        let roots: Vec<NodeId> = (0..n_nodes).rev().map(NodeId).collect();
        let together: Vec<_> = edges_of(&sampler.sample(&roots, seed), 1);
        for &root in &roots {
            let alone = edges_of(&sampler.sample(&[root], seed), 1);
            let same: Vec<_> = together.iter().copied().filter(|edge| edge[1] == root.0).collect();
            prop_assert_eq!(alone, same);
        }
    }
}
