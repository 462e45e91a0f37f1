use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::book::PartitionBook;
use crate::edges::MemoryEdges;
use crate::ids::PartId;
use crate::relabel::Relabelling;
use crate::topology::{Direction, Topology};

fn device(name: &str, seconds: f64, memory_bytes: u64) -> DeviceProfile {
    DeviceProfile {
        name: name.to_owned(),
        h2d_seconds: seconds,
        d2h_seconds: seconds,
        idt_seconds: seconds,
        spmm_seconds: seconds,
        mm_seconds: seconds,
        memory_bytes,
    }
}

fn roomy(seconds: f64) -> DeviceProfile {
    device("d", seconds, u64::MAX)
}

/// Returns edges (source, target) of a graph of `counts.sum()` nodes, as loads and as they are.
fn loads(edges: &[[u32; 2]], counts: &[u32]) -> Vec<PartLoad> {
    let book = PartitionBook::from_counts(counts).unwrap();
    let edges = MemoryEdges::new(edges.to_vec()).unwrap();
    let relabelling = Relabelling::identity(book.n_nodes());
    let topology = Topology::from_edges(&edges, &relabelling, Direction::Directed).unwrap();
    part_loads(&topology, &book)
}

#[test]
fn loads_of_a_small_graph_by_hand() {
    // 2 -> 0, 2 -> 1, 3 -> 0 come from outside of partition 0; 0 -> 2 from outside of partition 1.
    let found = loads(&[[2, 0], [2, 1], [3, 0], [1, 0], [0, 2]], &[2, 2]);
    let [a, b] = &found[..] else { panic!("{found:?}") };
    assert_eq!((a.inner, a.edges, b.inner, b.edges), (2, 4, 2, 1));
    // D_in of 0 is 3, of 1 is 1; both replicas are in two subgraphs.
    let of_2 = (1.0 / 3f64.sqrt() + 1.0) / 2f64.sqrt() * 2.0;
    let of_3 = 1.0 / 3f64.sqrt() * 2.0;
    let ids: Vec<(u32, u32)> = a.replicas.iter().map(|r| (r.node.0, r.edges)).collect();
    assert_eq!(ids, [(3, 1), (2, 2)], "the lowest influence first");
    assert!((a.replicas[0].influence - of_3).abs() < 1e-12);
    assert!((a.replicas[1].influence - of_2).abs() < 1e-12);
    assert_eq!(b.replicas, [HaloReplica { node: NodeId(0), edges: 1, influence: 2.0 }]);
}

#[test]
fn a_slow_device_gives_up_what_matters_least() {
    let replica = |node, edges, influence| HaloReplica { node: NodeId(node), edges, influence };
    let replicas: Vec<HaloReplica> =
        (0..100).map(|node| replica(node, 1, f64::from(node))).collect();
    let load = PartLoad { inner: 50, edges: 300, replicas };
    let loads = [load.clone(), load];
    let params = RapaParams { epsilon: 0.05, ..RapaParams::default() };
    let devices = [roomy(1.0), roomy(4.0)];
    let found = adjust(&loads, &devices, &params).unwrap();
    assert_eq!(found.parts[0].n_dropped, 0, "the fast one has room");
    let slow = &found.parts[1];
    assert!(slow.n_dropped > 0 && slow.edges_dropped == slow.n_dropped as u64);
    assert!(slow.cost[1] < slow.cost[0] && found.deviation[1] < found.deviation[0]);
    // Both alike, and alike devices: nothing to do.
    let found = adjust(&loads, &devices[..1], &params).unwrap();
    assert_eq!((found.passes, found.is_balanced), (0, true));
}

#[test]
fn a_subgraph_gives_up_replicas_until_it_fits() {
    let replicas: Vec<HaloReplica> =
        (0..10).map(|node| HaloReplica { node: NodeId(node), edges: 1, influence: 1.0 }).collect();
    let loads = [PartLoad { inner: 5, edges: 20, replicas }];
    let params =
        RapaParams { node_bytes: 100, edge_bytes: 0, reserve_bytes: 7, ..Default::default() };
    let found = adjust(&loads, &[device("small", 1.0, 1207)], &params).unwrap();
    let part = &found.parts[0];
    assert_eq!((part.n_dropped, part.bytes, part.fits), (3, 1207, true));
    let found = adjust(&loads, &[device("tiny", 1.0, 506)], &params).unwrap();
    assert_eq!((found.parts[0].n_dropped, found.parts[0].fits), (10, false));
    assert!(!found.is_balanced, "it does not fit");
}

#[test]
fn nonsense_is_refused() {
    let loads = vec![PartLoad::default(); 3];
    let params = RapaParams::default();
    let error = adjust(&loads, &[roomy(1.0), roomy(1.0)], &params).unwrap_err();
    assert_eq!(error, RapaError::Devices { parts: 3, found: 2 });
    for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = adjust(&loads, &[roomy(seconds)], &params).unwrap_err();
        assert!(error.to_string().contains("device `d`: h2d_seconds"), "{error}");
    }
    let bad = RapaParams { alpha: 1.5, ..params };
    assert!(adjust(&loads, &[roomy(1.0)], &bad).unwrap_err().to_string().contains("alpha"));
    let bad = RapaParams { epsilon: f64::NAN, ..params };
    assert!(adjust(&loads, &[roomy(1.0)], &bad).unwrap_err().to_string().contains("epsilon"));
    let found = adjust(&loads, &[roomy(1.0)], &params).unwrap();
    assert!(found.is_balanced, "nothing is in balance");
}

/// Returns the distinct edges, as a topology has them.
fn distinct(ends: &[(u32, u32)]) -> Vec<[u32; 2]> {
    ends.iter().map(|&(u, v)| [u, v]).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns each partition's edges.
fn subgraphs(
    edges: &[[u32; 2]],
    owner: &dyn Fn(u32) -> usize,
    n_parts: usize,
) -> Vec<Vec<[u32; 2]>> {
    let mut subgraphs = vec![Vec::new(); n_parts];
    edges.iter().for_each(|&[u, v]| subgraphs[owner(v)].push([u, v]));
    subgraphs
}

/// Computes Eq. 16 for a replica, from edge lists.
fn naive_influence(edges: &[[u32; 2]], subgraphs: &[Vec<[u32; 2]>], part: usize, node: u32) -> f64 {
    let own = subgraphs[part].iter().filter(|edge| edge[0] == node);
    let out_degree = own.clone().count() as f64;
    let d_in = |v: u32| edges.iter().filter(|edge| edge[1] == v).count() as f64;
    let sum: f64 = own.map(|edge| 1.0 / d_in(edge[1]).sqrt()).sum();
    let has_it = |edges: &&Vec<[u32; 2]>| edges.iter().any(|edge| edge[0] == node);
    let n_replicas = subgraphs.iter().filter(has_it).count();
    // Its owner may or may not have an edge from it.
    sum / out_degree.sqrt() * n_replicas as f64
}

/// Algorithms 2 and 3 from edge lists, every figure counted again; replicas go in the order given.
fn naive(
    edges: &[[u32; 2]],
    counts: &[u32],
    seconds: &[f64],
    params: &RapaParams,
    orders: &[Vec<u32>],
) -> Vec<Vec<u32>> {
    let book = PartitionBook::from_counts(counts).unwrap();
    let n_parts = counts.len();
    let owner = |node: u32| book.part_of(NodeId(node)).unwrap().index();
    let mut subgraphs = subgraphs(edges, &owner, n_parts);
    let slowest = seconds.iter().copied().fold(0.0, f64::max);
    let cost = |subgraphs: &[Vec<[u32; 2]>], part: usize| {
        let (f, p) = (seconds[part] / slowest, n_parts as f64);
        let outer = subgraphs[part].iter().filter(|edge| owner(edge[0]) != part).count() as f64;
        let comm = outer * ((f + f) * (1.0 - 1.0 / p) + f / p);
        let inner = f64::from(counts[part]);
        comm + params.alpha * subgraphs[part].len() as f64 * f + (1.0 - params.alpha) * inner * f
    };
    let mut order: Vec<usize> = (0..n_parts).collect();
    order.sort_by(|&a, &b| seconds[b].total_cmp(&seconds[a]).then(a.cmp(&b)));
    let mut dropped = vec![Vec::new(); n_parts];
    loop {
        let costs: Vec<f64> = (0..n_parts).map(|part| cost(&subgraphs, part)).collect();
        let (mean, deviation) = adjust::spread(&costs);
        if deviation <= params.epsilon * mean {
            return dropped;
        }
        let mut has_changed = false;
        for &part in &order {
            let costs: Vec<f64> = (0..n_parts).map(|part| cost(&subgraphs, part)).collect();
            let (mean, first) = (costs.iter().sum::<f64>() / n_parts as f64, costs[part]);
            while cost(&subgraphs, part) > mean {
                let Some(&u) = orders[part].get(dropped[part].len()) else { break };
                dropped[part].push(u);
                subgraphs[part].retain(|edge| edge[0] != u);
                has_changed = true;
                if cost(&subgraphs, part) <= 0.5 * (first + mean) {
                    break;
                }
            }
        }
        if !has_changed {
            return dropped;
        }
    }
}

proptest! {
    #[test]
    fn drops_what_a_plain_restatement_drops(
        ends in prop::collection::vec((0u32..24, 0u32..24), 1..90),
        // Powers of two of partitions, and of speeds: sums of costs are exact in any order.
        cuts in prop_oneof![
            prop::collection::vec(1u32..12, 1),
            prop::collection::vec(1u32..12, 3),
        ],
        speeds in prop::collection::vec(0u32..3, 4),
    ) {
        let mut counts = cuts;
        let rest = 24u32.saturating_sub(counts.iter().sum());
        counts.push(rest);
        let n_nodes: u32 = counts.iter().sum();
        prop_assume!(n_nodes >= 24);
        let edges = distinct(&ends);
        let seconds: Vec<f64> =
            speeds.iter().take(counts.len()).map(|&s| f64::from(1 << s)).collect();
        let params = RapaParams { epsilon: 0.03, ..RapaParams::default() };
        let loads = loads(&edges, &counts);
        let devices: Vec<DeviceProfile> = seconds.iter().map(|&s| roomy(s)).collect();
        let found = adjust(&loads, &devices, &params).unwrap();
        let order = |load: &PartLoad| load.replicas.iter().map(|r| r.node.0).collect();
        let orders: Vec<Vec<u32>> = loads.iter().map(order).collect();
        let expected = naive(&edges, &counts, &seconds, &params, &orders);
        for (part, (load, found)) in loads.iter().zip(&found.parts).enumerate() {
            let dropped: Vec<u32> =
                load.replicas[..found.n_dropped].iter().map(|r| r.node.0).collect();
            prop_assert_eq!(&dropped, &expected[part], "partition {}", part);
        }
    }

    #[test]
    fn every_edge_and_every_replica_is_in_a_load(
        ends in prop::collection::vec((0u32..30, 0u32..30), 0..120),
        counts in prop::sample::select(vec![vec![30], vec![10, 20], vec![0, 7, 0, 23], vec![30, 0], vec![6, 9, 7, 8]]),
    ) {
        let edges = distinct(&ends);
        let loads = loads(&edges, &counts);
        let book = PartitionBook::from_counts(&counts).unwrap();
        let owner = |node: u32| book.part_of(NodeId(node)).unwrap();
        prop_assert_eq!(loads.iter().map(|load| load.edges).sum::<u64>(), edges.len() as u64);
        for (part, load) in loads.iter().enumerate() {
            let part = PartId(part as u16);
            let outer = edges.iter().filter(|e| owner(e[1]) == part && owner(e[0]) != part);
            let expected = outer.fold(BTreeMap::new(), |mut all, edge| {
                *all.entry(edge[0]).or_insert(0) += 1;
                all
            });
            let found = load.replicas.iter().map(|r| (r.node.0, r.edges)).collect::<BTreeMap<_, _>>();
            prop_assert_eq!(found, expected);
            prop_assert!(load.replicas.is_sorted_by(|a, b| a.influence <= b.influence));
            let subgraphs = subgraphs(&edges, &|node| owner(node).index(), counts.len());
            for replica in &load.replicas {
                let node = replica.node.0;
                let owner_has = subgraphs[owner(node).index()].iter().any(|edge| edge[0] == node);
                let expected = naive_influence(&edges, &subgraphs, part.index(), node);
                let n = subgraphs.iter().filter(|s| s.iter().any(|e| e[0] == node)).count();
                let with_owner = (n + usize::from(!owner_has)) as f64 / n as f64;
                prop_assert!((replica.influence - expected * with_owner).abs() < 1e-9);
            }
        }
    }
}
