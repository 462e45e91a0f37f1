use super::*;
use crate::edges::MemoryEdges;
use crate::partition::{Algorithm, PartitionConfig, partition};
use crate::topology::Direction;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn run(pairs: &[[u32; 2]], n_nodes: u32, n_parts: u16, params: &SpringParams) -> Vec<PartId> {
    let edges = MemoryEdges::new(pairs.to_vec()).unwrap();
    let config = PartitionConfig::new(Algorithm::Spring(*params), n_parts);
    spring(&edges, n_nodes, params, &config, &mut Steps::new(0)).unwrap().0
}

fn sizes(assignment: &[PartId], n_parts: u16) -> Vec<usize> {
    (0..n_parts).map(|p| assignment.iter().filter(|a| a.0 == p).count()).collect()
}

/// Runs Algorithm 1 word for word, with sets for clusters and a search for every "smallest".
fn naive(pairs: &[[u32; 2]], n_nodes: u32, n_parts: u16, params: &SpringParams) -> Vec<PartId> {
    let n = n_nodes as usize;
    let pairs: Vec<[usize; 2]> =
        pairs.iter().filter(|e| e[0] != e[1]).map(|&[u, v]| [u as usize, v as usize]).collect();
    let degree = |v: usize| pairs.iter().flatten().filter(|&&end| end == v).count() as u64;
    let tau_vol = params.tau_vol.unwrap() as u64;
    let mut clusters: Vec<BTreeSet<usize>> = Vec::new();
    let mut richest: Vec<Option<usize>> = vec![None; n];
    let find =
        |clusters: &[BTreeSet<usize>], v: usize| clusters.iter().position(|c| c.contains(&v));
    let volume = |cluster: &BTreeSet<usize>| cluster.iter().map(|&v| degree(v)).sum::<u64>();
    for &[u, v] in &pairs {
        for end in [u, v] {
            if find(&clusters, end).is_none() {
                clusters.push(BTreeSet::from([end]));
            }
        }
        let (i, j) = (find(&clusters, u).unwrap(), find(&clusters, v).unwrap());
        let (volume_u, volume_v) = (volume(&clusters[i]), volume(&clusters[j]));
        if i != j && volume_u <= tau_vol && volume_v <= tau_vol {
            let (mover, from, to) = if volume_u <= volume_v { (u, i, j) } else { (v, j, i) };
            clusters[from].remove(&mover);
            clusters[to].insert(mover);
        }
        for (end, other) in [(u, v), (v, u)] {
            if richest[end].map_or(0, degree) < degree(other) {
                richest[end] = Some(other);
            }
        }
    }
    clusters.retain(|cluster| !cluster.is_empty());
    clusters.sort_by_key(|cluster| cluster.first().copied());
    let max_size = params.beta * f64::from(n_nodes) / f64::from(n_parts);
    // Each cluster carries the richest neighbour of its representative.
    let representative = |cluster: &BTreeSet<usize>| {
        let mut best = richest[*cluster.first().unwrap()].unwrap();
        for &v in cluster {
            let target = richest[v].unwrap();
            best = if degree(best) < degree(target) { target } else { best };
        }
        best
    };
    let mut targets: Vec<usize> = clusters.iter().map(representative).collect();
    let mut scanned = vec![false; clusters.len()];
    let waiting = |clusters: &[BTreeSet<usize>], scanned: &[bool]| {
        let smallest = (0..clusters.len()).filter(|&i| !scanned[i] && !clusters[i].is_empty());
        smallest.min_by_key(|&i| clusters[i].len())
    };
    while let Some(i) = waiting(&clusters, &scanned) {
        scanned[i] = true;
        let j = find(&clusters, targets[i]).unwrap();
        if i != j && (clusters[i].len() + clusters[j].len()) as f64 <= max_size {
            let merged = std::mem::take(&mut clusters[i]);
            clusters[j].extend(merged);
            targets[j] =
                if degree(targets[j]) < degree(targets[i]) { targets[i] } else { targets[j] };
            scanned[j] = false;
        }
    }
    let mut order: Vec<usize> = (0..clusters.len()).filter(|&i| !clusters[i].is_empty()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(clusters[i].len()));
    let mut loads = vec![0; usize::from(n_parts)];
    let mut assignment = vec![PartId(0); n];
    let isolated = (0..n).filter(|&v| degree(v) == 0).map(|v| BTreeSet::from([v]));
    for cluster in order.into_iter().map(|i| clusters[i].clone()).chain(isolated) {
        let least = (0..loads.len()).min_by_key(|&p| loads[p]).unwrap();
        loads[least] += cluster.len();
        for v in cluster {
            assignment[v] = PartId(least as u16);
        }
    }
    assignment
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn agrees_with_the_algorithm_word_for_word(
        ends in prop::collection::vec((0u32..24, 0u32..24), 0..60),
        n_nodes in 24u32..30,
        n_parts in 1u16..6,
        tau_vol in 0u32..30,
        beta in 0.2f64..3.0,
    ) {
        let pairs: Vec<[u32; 2]> = ends.iter().map(|&(u, v)| [u, v]).collect();
        let params =
            SpringParams { tau_vol: Some(f64::from(tau_vol)), beta, ..SpringParams::default() };
        let expected = naive(&pairs, n_nodes, n_parts, &params);
        prop_assert_eq!(run(&pairs, n_nodes, n_parts, &params), expected);
    }

    #[test]
    fn max_balance_is_kept_whatever_the_edges(
        ends in prop::collection::vec((0u32..40, 0u32..40), 0..120),
        n_nodes in 40u32..60,
        n_parts in 1u16..50,
        max_balance in 1f64..2.0,
        passes in 1u32..4,
    ) {
        let pairs: Vec<[u32; 2]> = ends.iter().map(|&(u, v)| [u, v]).collect();
        // One cluster may take everything, so that there is something to give up.
        let params = SpringParams { tau_vol: Some(1e18), beta: 1e9, passes };
        let config = PartitionConfig {
            max_balance: Some(max_balance),
            ..PartitionConfig::new(Algorithm::Spring(params), n_parts)
        };
        let edges = MemoryEdges::new(pairs).unwrap();
        let assignment = partition(&edges, n_nodes, &config).unwrap().assignment;
        let most = max_balance * f64::from(n_nodes) / f64::from(n_parts);
        let fewest = n_nodes.div_ceil(u32::from(n_parts));
        for size in sizes(&assignment, n_parts) {
            prop_assert!(size <= (most as usize).max(fewest as usize), "{size} of {n_nodes}");
        }
    }
}

/// Rings of `size` nodes, each closed with chords, and one edge from each ring to the next.
fn rings(n_rings: u32, size: u32) -> Vec<[u32; 2]> {
    let mut pairs = Vec::new();
    for ring in 0..n_rings {
        let node = |i: u32| ring * size + i % size;
        for i in 0..size {
            pairs.extend((1..4).map(|step| [node(i), node(i + step)]));
        }
        pairs.push([node(0), (node(0) + size) % (n_rings * size)]);
    }
    pairs
}

#[test]
fn communities_stay_together_and_hash_tears_them_apart() {
    let pairs = rings(40, 25);
    let edges = MemoryEdges::new(pairs).unwrap();
    let cut = |algorithm: &str| {
        let config = PartitionConfig::new(algorithm.parse().unwrap(), 4);
        let config = PartitionConfig { direction: Direction::Undirected, ..config };
        partition(&edges, 1000, &config).unwrap().report
    };
    let spring = cut("spring");
    assert!(spring.edge_cut < 0.1, "cut {}", spring.edge_cut);
    assert!(spring.node_balance < 1.1, "balance {}", spring.node_balance);
    assert!(cut("hash").edge_cut > 0.6);
}

#[test]
fn isolated_nodes_fill_up_the_least_occupied() {
    // One cluster of 4 and 6 nodes without edges, in 2 partitions.
    let pairs = [[0, 1], [0, 2], [0, 3], [1, 2], [2, 3]];
    let params = SpringParams { tau_vol: Some(100.0), beta: 2.0, ..SpringParams::default() };
    assert_eq!(sizes(&run(&pairs, 10, 2, &params), 2), [5, 5]);
    assert_eq!(sizes(&run(&[], 10, 4, &params), 4), [3, 3, 2, 2]);
    assert_eq!(sizes(&run(&[[3, 3]], 4, 4, &params), 4), [1; 4]);
}

#[test]
fn wrong_parameters_are_named() {
    let edges = MemoryEdges::default();
    let of = |change: fn(&mut SpringParams)| {
        let mut params = SpringParams::default();
        change(&mut params);
        match partition(&edges, 1, &PartitionConfig::new(Algorithm::Spring(params), 1)) {
            Err(PartitionError::Parameter { name, .. }) => name,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(of(|p| p.beta = 0.0), "beta");
    assert_eq!(of(|p| p.beta = f64::NAN), "beta");
    assert_eq!(of(|p| p.tau_vol = Some(-1.0)), "tau_vol");
    assert_eq!(of(|p| p.tau_vol = Some(f64::INFINITY)), "tau_vol");
    assert_eq!(of(|p| p.passes = 0), "passes");
}

#[test]
fn merging_is_bounded_by_the_clusters_found() {
    // Pairs of nodes, a cluster each; as many nodes without edges.
    let pairs: Vec<[u32; 2]> = (0..100).map(|i| [2 * i, 2 * i + 1]).collect();
    let edges = MemoryEdges::new(pairs).unwrap();
    let found_in = |max_memory_bytes| {
        let spring = Algorithm::Spring(SpringParams::default());
        let config = PartitionConfig { max_memory_bytes, ..PartitionConfig::new(spring, 4) };
        partition(&edges, 400, &config)
    };
    let needed = merging_bytes(400, 100);
    assert_eq!(found_in(Some(needed)).unwrap().assignment, found_in(None).unwrap().assignment);
    let error = found_in(Some(needed - 1)).unwrap_err();
    let PartitionError::MergingMemory { n_clusters, needed_bytes, max_bytes } = error else {
        panic!("found {error}")
    };
    assert_eq!((n_clusters, needed_bytes, max_bytes), (100, needed, needed - 1));
}
