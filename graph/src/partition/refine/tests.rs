use super::level::Level;
use super::queue::Queue;
use super::*;
use crate::edges::MemoryEdges;
use crate::partition::{PartitionConfig, partition};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Communities of `size` nodes: a ring of chords each, and one edge from each to the next.
fn communities(n_communities: u32, size: u32) -> Vec<[u32; 2]> {
    let mut pairs = Vec::new();
    for community in 0..n_communities {
        let node = |i: u32| community * size + i % size;
        for i in 0..size {
            pairs.extend((1..6).map(|step| [node(i), node(i + step)]));
        }
        pairs.push([node(0), (node(0) + size) % (n_communities * size)]);
    }
    pairs
}

fn run(pairs: &[[u32; 2]], config: &PartitionConfig) -> crate::partition::Partitioning {
    let edges = MemoryEdges::new(pairs.to_vec()).unwrap();
    partition(&edges, edges.n_nodes(), config).unwrap()
}

fn config(algorithm: &str, n_parts: u16, refine_rounds: u32) -> PartitionConfig {
    let config = PartitionConfig::new(algorithm.parse().unwrap(), n_parts);
    PartitionConfig { refine_rounds, undirected: true, ..config }
}

#[test]
fn communities_are_found_again_after_a_hash_tore_them_apart() {
    let pairs = communities(64, 50);
    assert!(run(&pairs, &config("hash", 4, 0)).report.edge_cut > 0.7);
    for rounds in [1, 2] {
        let report = run(&pairs, &config("hash", 4, rounds)).report;
        assert!(report.edge_cut < 0.02, "{rounds} rounds: cut {}", report.edge_cut);
        assert!(report.node_balance <= 1.05, "balance {}", report.node_balance);
    }
}

#[test]
fn a_sample_of_dense_communities_is_enough() {
    // 60 neighbours each, of which the sample keeps about 16.
    let mut pairs = Vec::new();
    for u in 0..1200u32 {
        pairs.extend((1..=29).map(|step| [u, u / 60 * 60 + (u + step) % 60]));
        pairs.push([u, u * 7919 % 1200]);
    }
    let report = run(&pairs, &config("hash", 4, 2)).report;
    assert!(report.edge_cut < 0.05, "cut {}", report.edge_cut);
    assert!(report.node_balance <= 1.05, "balance {}", report.node_balance);
}

fn pairs_of(ends: &[(u32, u32)]) -> Vec<[u32; 2]> {
    ends.iter().map(|&(u, v)| [u, v]).collect()
}

fn n_cut_naive(pairs: &[[u32; 2]], parts: &[PartId]) -> u64 {
    pairs.iter().filter(|e| parts[e[0] as usize] != parts[e[1] as usize]).count() as u64
}

proptest! {
    #[test]
    fn refinement_keeps_the_bound_and_never_cuts_more(
        ends in prop::collection::vec((0u32..60, 0u32..60), 0..600),
        parts in prop::collection::vec(0u16..5, 60),
        n_rounds in 1u32..4,
        slack in 0u64..10,
    ) {
        let pairs = pairs_of(&ends);
        let edges = MemoryEdges::new(pairs.clone()).unwrap();
        let mut parts: Vec<PartId> = parts.into_iter().map(PartId).collect();
        let before = parts.clone();
        let capacity = 12 + slack;
        let fitted = !Loads::of_nodes(&parts, 5, capacity).any_over();
        refine(&edges, &mut parts, 5, capacity, n_rounds, &mut Steps::new(0)).unwrap();
        let after = Loads::of_nodes(&parts, 5, capacity);
        prop_assert!(!after.any_over(), "{after:?}");
        if fitted {
            prop_assert!(n_cut_naive(&pairs, &parts) <= n_cut_naive(&pairs, &before));
        }
        let mut again = before;
        refine(&edges, &mut again, 5, capacity, n_rounds, &mut Steps::new(0)).unwrap();
        prop_assert_eq!(again, parts, "the same each time");
    }

    #[test]
    fn a_complete_sample_has_every_edge_both_ways(
        ends in prop::collection::vec((0u32..30, 0u32..30), 0..100),
    ) {
        let edges = MemoryEdges::new(pairs_of(&ends)).unwrap();
        let sampled = sample(&edges, 30, 100, 1).unwrap();
        prop_assert!(sampled.is_complete);
        let mut expected: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        for &(u, v) in ends.iter().filter(|(u, v)| u != v) {
            *expected.entry((u, v)).or_default() += 1;
            *expected.entry((v, u)).or_default() += 1;
        }
        prop_assert_eq!(weights(&sampled.level), expected);
    }

    #[test]
    fn a_sample_stays_within_its_bound_and_is_symmetric(
        ends in prop::collection::vec((0u32..30, 0u32..30), 100..400),
        max_edges in 1u64..100,
        seed: u64,
    ) {
        let edges = MemoryEdges::new(pairs_of(&ends)).unwrap();
        let sampled = sample(&edges, 30, max_edges, seed).unwrap();
        prop_assert!(!sampled.is_complete);
        prop_assert!(sampled.level.neighbours.len() as u64 <= 2 * max_edges);
        let found = weights(&sampled.level);
        for (&(u, v), weight) in &found {
            prop_assert_eq!(found.get(&(v, u)), Some(weight));
            prop_assert!(ends.contains(&(u, v)) || ends.contains(&(v, u)));
        }
    }

    #[test]
    fn contraction_keeps_sizes_and_weights_and_cut(
        ends in prop::collection::vec((0u32..40, 0u32..40), 0..150),
        parts in prop::collection::vec(0u16..3, 40),
        max_size in 1u32..20,
        seed: u64,
    ) {
        let edges = MemoryEdges::new(pairs_of(&ends)).unwrap();
        let bottom = sample(&edges, 40, 1000, 1).unwrap().level;
        let parts: Vec<PartId> = parts.into_iter().map(PartId).collect();
        for within in [true, false] {
            let clustering = Clustering { max_size, within, seed };
            let top = contract(&bottom, &parts, clustering, u64::MAX).unwrap();
            let n_bytes = top.n_bytes();
            prop_assert!(contract(&bottom, &parts, clustering, n_bytes).is_some());
            prop_assert!(contract(&bottom, &parts, clustering, n_bytes - 1).is_none());
            let n_top = top.level.n_nodes();
            prop_assert_eq!(top.parts.len(), n_top as usize);
            for node in 0..n_top {
                let members = top.parents.iter().filter(|&&p| p == node).count();
                prop_assert_eq!(top.level.size(node) as usize, members);
                prop_assert!(members >= 1 && members <= max_size as usize);
            }
            let mut expected: BTreeMap<(u32, u32), u32> = BTreeMap::new();
            for ((u, v), weight) in weights(&bottom) {
                let ends = (top.parents[u as usize], top.parents[v as usize]);
                if ends.0 != ends.1 {
                    *expected.entry(ends).or_default() += weight;
                }
            }
            prop_assert_eq!(weights(&top.level), expected);
            for (node, &parent) in top.parents.iter().enumerate() {
                let kept = top.parts[parent as usize] == parts[node];
                prop_assert!(kept || !within, "clusters within partitions keep them");
            }
        }
    }

    #[test]
    fn restreaming_places_nodes_by_all_their_neighbours(
        ends in prop::collection::vec((0u32..50, 0u32..50), 0..400),
        parts in prop::collection::vec(0u16..40, 50),
        seed: u64,
    ) {
        // So many partitions that nodes are counted in blocks.
        let edges = MemoryEdges::new(pairs_of(&ends)).unwrap();
        let mut parts: Vec<PartId> = parts.into_iter().map(PartId).collect();
        let mut loads = Loads::of_nodes(&parts, 40, 6);
        let over_before = loads.any_over();
        restream(&edges, &mut parts, &mut loads, seed).unwrap();
        let fresh = Loads::of_nodes(&parts, 40, 6);
        prop_assert!(over_before || !fresh.any_over());
        for part in (0..40).map(PartId) {
            prop_assert_eq!(loads.load(part), fresh.load(part));
        }
    }

    #[test]
    fn the_queue_gives_the_largest_key_whatever_changes(
        steps in prop::collection::vec((0u32..20, prop::option::of(-50i64..50)), 0..200),
    ) {
        let mut queue = Queue::new(20);
        let mut model: BTreeSet<(i64, u32)> = BTreeSet::new();
        for (node, key) in steps {
            match key {
                Some(key) => {
                    model.retain(|&(_, queued)| queued != node);
                    model.insert((key, node));
                    queue.set(node, key);
                }
                None => prop_assert_eq!(queue.pop(), model.pop_last()),
            }
            let expected = model.iter().find(|&&(_, queued)| queued == node).map(|&(key, _)| key);
            prop_assert_eq!(queue.key(node), expected);
        }
    }
}

fn weights(level: &Level) -> BTreeMap<(u32, u32), u32> {
    let mut weights = BTreeMap::new();
    for u in 0..level.n_nodes() {
        for (v, weight) in level.edges(u) {
            *weights.entry((u, v)).or_default() += weight;
        }
    }
    weights
}

#[test]
fn a_search_moves_single_nodes_to_where_they_belong() {
    // Two triangles with an edge between them, one node of each on the wrong side.
    let pairs = [[0, 1], [1, 2], [0, 2], [3, 4], [4, 5], [3, 5], [2, 3]];
    let edges = MemoryEdges::new(pairs.to_vec()).unwrap();
    let level = sample(&edges, 6, 100, 0).unwrap().level;
    let mut parts = [0, 0, 1, 0, 1, 1].map(PartId);
    let mut loads = Loads::new(&level, &parts, 2, 4);
    search::improve(&level, &mut parts, &mut loads);
    assert_eq!(n_cut_naive(&pairs, &parts), 1);
    assert_eq!((loads.load(PartId(0)), loads.load(PartId(1))), (3, 3));
}

#[test]
fn one_partition_and_more_partitions_than_nodes_work() {
    for n_parts in [1, 7, u16::MAX] {
        for pairs in [&[][..], &[[0, 0]], &[[0, 1], [1, 2], [2, 0]]] {
            let done = run(pairs, &config("hash", n_parts, 2));
            assert!(done.assignment.iter().all(|part| part.0 < n_parts));
            assert!(done.report.part_nodes.iter().all(|&n| n <= 1 || n_parts == 1));
        }
    }
}
