use super::level::Level;
use super::queue::Queue;
use super::restream::Candidates;
use super::*;
use crate::edges::{MemoryEdges, ReadAhead};
use crate::huge::HugeVec;
use crate::partition::{PartitionConfig, partition};
use crate::topology::Direction;
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
    PartitionConfig { refine_rounds, direction: Direction::Undirected, ..config }
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
fn dense_communities_are_found_again() {
    // 60 neighbours each.
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
        let fitted = !LevelLoads::of_nodes(&parts, 5, capacity).any_over();
        let settings = RefineSettings { n_parts: 5, capacity, n_rounds };
        refine(&edges, &mut parts, settings, &mut Steps::new(0)).unwrap();
        let after = LevelLoads::of_nodes(&parts, 5, capacity);
        prop_assert!(!after.any_over(), "{after:?}");
        if fitted {
            prop_assert!(n_cut_naive(&pairs, &parts) <= n_cut_naive(&pairs, &before));
        }
        let mut again = before;
        refine(&edges, &mut again, settings, &mut Steps::new(0)).unwrap();
        prop_assert_eq!(again, parts, "the same each time");
    }

    #[test]
    fn a_sampled_round_keeps_the_bound_and_never_cuts_more(
        ends in prop::collection::vec((0u32..60, 0u32..60), 0..600),
        parts in prop::collection::vec(0u16..5, 60),
        n_slots in 1usize..6,
        round in 1u32..3,
        slack in 0u64..10,
    ) {
        let pairs = pairs_of(&ends);
        let edges = MemoryEdges::new(pairs.clone()).unwrap();
        let mut parts: Vec<PartId> = parts.into_iter().map(PartId).collect();
        let before = parts.clone();
        let aims = Aims { n_parts: 5, capacity: 12 + slack, within: round > 1, seed: 9, round };
        let fitted = !LevelLoads::of_nodes(&parts, 5, aims.capacity).any_over();
        sampled_round(&edges, &mut parts, n_slots, &aims, &mut Steps::new(0)).unwrap();
        prop_assert!(!LevelLoads::of_nodes(&parts, 5, aims.capacity).any_over());
        if fitted {
            prop_assert!(n_cut_naive(&pairs, &parts) <= n_cut_naive(&pairs, &before));
        }
        let mut again = before;
        let ahead = ReadAhead::new(edges);
        sampled_round(&ahead, &mut again, n_slots, &aims, &mut Steps::new(0)).unwrap();
        prop_assert_eq!(again, parts, "the same with a thread that reads ahead");
    }

    #[test]
    fn complete_lists_have_every_edge_both_ways(
        ends in prop::collection::vec((0u32..30, 0u32..30), 0..100),
    ) {
        let edges = MemoryEdges::new(pairs_of(&ends)).unwrap();
        prop_assert_eq!(weights(&all_edges(&edges, 30).unwrap()), both_ways(&ends));
    }

    #[test]
    fn a_node_keeps_as_many_of_its_neighbours_as_it_has_slots_for(
        ends in prop::collection::vec((0u32..30, 0u32..30), 0..200),
        parts in prop::collection::vec(0u16..3, 30),
        n_slots in 1usize..10,
        seed: u64,
    ) {
        let pairs = pairs_of(&ends);
        let edges = MemoryEdges::new(pairs.clone()).unwrap();
        let parts: Vec<PartId> = parts.into_iter().map(PartId).collect();
        let (slots, n_cut) = Slots::sample(&edges, &parts, n_slots, seed).unwrap();
        prop_assert_eq!(n_cut, n_cut_naive(&pairs, &parts));
        let all = both_ways(&ends);
        let found = weights(&slots);
        for (edge, n_found) in &found {
            prop_assert!(all.get(edge).is_some_and(|n| n_found <= n), "{edge:?}");
        }
        for node in 0..30 {
            let of_node = |edges: &BTreeMap<(u32, u32), u32>| {
                edges.range((node, 0)..=(node, u32::MAX)).map(|(_, &n)| n as usize).sum::<usize>()
            };
            prop_assert_eq!(of_node(&found), of_node(&all).min(n_slots));
        }
    }

    #[test]
    fn clusters_of_a_sample_keep_to_their_size_and_partitions(
        ends in prop::collection::vec((0u32..60, 0u32..60), 0..300),
        parts in prop::collection::vec(0u16..3, 60),
        max_size in 1u32..20,
        within: bool,
    ) {
        let edges = MemoryEdges::new(pairs_of(&ends)).unwrap();
        let parts: Vec<PartId> = parts.into_iter().map(PartId).collect();
        let slots = Slots::sample(&edges, &parts, 4, 1).unwrap().0;
        let clustering = Clustering { max_size, prune: true, within, seed: 3 };
        let clusters = slots::clusters(&slots, &parts, clustering);
        for cluster in 0..60 {
            let members: Vec<usize> = (0..60).filter(|&v| clusters[v] == cluster).collect();
            prop_assert!(members.len() <= max_size as usize);
            prop_assert!(!within || members.iter().all(|&v| parts[v] == parts[members[0]]));
        }
    }

    #[test]
    fn sweeps_over_all_neighbours_never_cut_more_and_relief_empties_what_is_full(
        ends in prop::collection::vec((0u32..40, 0u32..40), 0..200),
        parts in prop::collection::vec(0u16..4, 40),
    ) {
        let pairs = pairs_of(&ends);
        let edges = MemoryEdges::new(pairs.clone()).unwrap();
        let mut parts: Vec<PartId> = parts.into_iter().map(PartId).collect();
        let slots = Slots::sample(&edges, &parts, slots::MAX_SLOTS, 1).unwrap().0;
        let mut loads = LevelLoads::of_nodes(&parts, 4, 12);
        slots::relieve(&slots, &mut parts, &mut loads);
        prop_assert!(!loads.any_over());
        let before = n_cut_naive(&pairs, &parts);
        let is_complete = (0..40).all(|node| slots.degree(node) < slots::MAX_SLOTS as u32);
        let n_moved = slots::sweep(&slots, &mut parts, &mut loads);
        let after = n_cut_naive(&pairs, &parts);
        if is_complete {
            prop_assert!(after + u64::from(n_moved) <= before, "each move gains");
        }
        let fresh = LevelLoads::of_nodes(&parts, 4, 12);
        prop_assert!((0..4).map(PartId).all(|p| fresh.load(p) == loads.load(p)));
        prop_assert!(!fresh.any_over());
    }

    #[test]
    fn candidates_are_ranked_in_order(chosen in prop::collection::vec(any::<bool>(), 0..300)) {
        let candidates = Candidates::of(chosen.len(), |node| chosen[node as usize]);
        let mut n_before = 0;
        for (node, &is_chosen) in (0..).zip(&chosen) {
            prop_assert_eq!(candidates.rank(node), is_chosen.then_some(n_before));
            n_before += usize::from(is_chosen);
        }
        prop_assert_eq!(candidates.len(), n_before);
    }

    #[test]
    fn pruned_lists_keep_the_heaviest_edges(
        ends in prop::collection::vec((0u32..40, 0u32..40), 100..400),
    ) {
        let edges = MemoryEdges::new(pairs_of(&ends)).unwrap();
        let bottom = all_edges(&edges, 40).unwrap();
        let parts = vec![PartId(0); 40];
        let clusters = || HugeVec::from_fn(40, |node| node as u32 / 2 * 2);
        let clustering = |prune| Clustering { max_size: 2, prune, within: false, seed: 5 };
        let all = contract_clusters(&bottom, &parts, clusters(), clustering(false), u64::MAX);
        let all = all.unwrap().level;
        // Room for ten neighbours of each of 20 clusters.
        let max_bytes = 4 * 40 + (14 + 80) * 20;
        let few = contract_clusters(&bottom, &parts, clusters(), clustering(true), max_bytes);
        let few = few.unwrap().level;
        for cluster in 0..20 {
            let sorted = |level: &Level| {
                let mut weights: Vec<u32> = level.edges(cluster).map(|(_, w)| w).collect();
                weights.sort_unstable_by(|a, b| b.cmp(a));
                weights
            };
            let mut expected = sorted(&all);
            expected.truncate(10);
            prop_assert_eq!(sorted(&few), expected);
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
        let bottom = all_edges(&edges, 40).unwrap();
        let parts: Vec<PartId> = parts.into_iter().map(PartId).collect();
        for within in [true, false] {
            let clustering = Clustering { max_size, prune: false, within, seed };
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
        // As many partitions as require a sample of the nodes.
        let edges = MemoryEdges::new(pairs_of(&ends)).unwrap();
        let mut parts: Vec<PartId> = parts.into_iter().map(PartId).collect();
        let slots = Slots::sample(&edges, &parts, 3, seed).unwrap().0;
        let mut loads = LevelLoads::of_nodes(&parts, 40, 6);
        let over_before = loads.any_over();
        restream(&edges, slots, &mut parts, &mut loads, seed).unwrap();
        let fresh = LevelLoads::of_nodes(&parts, 40, 6);
        prop_assert!(over_before || !fresh.any_over());
        for part in (0..40).map(PartId) {
            prop_assert_eq!(loads.load(part), fresh.load(part));
        }
    }

    #[test]
    fn the_queue_returns_the_largest_key_whatever_changes(
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

fn both_ways(ends: &[(u32, u32)]) -> BTreeMap<(u32, u32), u32> {
    let mut expected: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    for &(u, v) in ends.iter().filter(|(u, v)| u != v) {
        *expected.entry((u, v)).or_default() += 1;
        *expected.entry((v, u)).or_default() += 1;
    }
    expected
}

fn weights(level: &impl Lists) -> BTreeMap<(u32, u32), u32> {
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
    let level = all_edges(&edges, 6).unwrap();
    let mut parts = [0, 0, 1, 0, 1, 1].map(PartId);
    let mut loads = LevelLoads::new(&level, &parts, 2, 4);
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

proptest! {
    #[test]
    fn grown_partitions_share_the_nodes_evenly(
        ends in prop::collection::vec((0u32..60, 0u32..60), 0..400),
        n_parts in 1u16..9,
        seed: u64,
    ) {
        let edges = MemoryEdges::new(pairs_of(&ends)).unwrap();
        let level = all_edges(&edges, 60).unwrap();
        let parts = grow::grow(&level, n_parts, seed);
        let loads = LevelLoads::of_nodes(&parts, n_parts, 60);
        let mean = 60 / u64::from(n_parts);
        for part in (0..n_parts).map(PartId) {
            // Each of up to three bisections rounds once.
            prop_assert!(loads.load(part).abs_diff(mean) <= 3, "{loads:?}");
        }
        prop_assert_eq!(parts, grow::grow(&level, n_parts, seed));
    }

    #[test]
    fn growing_keeps_the_better_partitions(
        ends in prop::collection::vec((0u32..60, 0u32..60), 0..400),
        parts in prop::collection::vec(0u16..5, 60),
    ) {
        let pairs = pairs_of(&ends);
        let level = all_edges(&MemoryEdges::new(pairs.clone()).unwrap(), 60).unwrap();
        let aims = Aims { n_parts: 5, capacity: 14, within: false, seed: 9, round: 1 };
        let mut searched: Vec<PartId> = parts.into_iter().map(PartId).collect();
        let mut regrown = searched.clone();
        improve_level(&level, &mut searched, &aims);
        regrow(&level, &mut regrown, &aims);
        prop_assert!(!LevelLoads::of_nodes(&regrown, 5, 14).any_over());
        prop_assert!(n_cut_naive(&pairs, &regrown) <= n_cut_naive(&pairs, &searched));
    }
}

#[test]
fn a_ring_of_communities_is_cut_into_arcs() {
    // Communities of a ring, each in a partition at random: no move of a single one gains enough.
    let pairs = communities(64, 8);
    let level = all_edges(&MemoryEdges::new(pairs.clone()).unwrap(), 512).unwrap();
    let scattered = |node: u32| PartId((splitmix64(u64::from(node / 8)) % 4) as u16);
    let mut parts: Vec<PartId> = (0..512).map(scattered).collect();
    let aims = Aims { n_parts: 4, capacity: 134, within: false, seed: 1, round: 1 };
    improve_level(&level, &mut parts, &aims);
    let searched = n_cut_naive(&pairs, &parts);
    regrow(&level, &mut parts, &aims);
    let regrown = n_cut_naive(&pairs, &parts);
    assert!(regrown <= 8 && regrown < searched / 2, "{regrown} after {searched}");
}
