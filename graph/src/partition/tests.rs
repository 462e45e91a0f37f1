use super::*;
use crate::edges::{ArrayEdges, MemoryEdges};
use proptest::prelude::*;
use std::path::PathBuf;

#[cfg(not(feature = "metis"))]
const NAMES: [&str; 7] = ["hash", "range", "dbh", "greedy", "hdrf", "2ps-l", "spring"];
#[cfg(feature = "metis")]
const NAMES: [&str; 8] = ["hash", "range", "dbh", "greedy", "hdrf", "2ps-l", "spring", "metis"];

#[test]
fn names_are_read_back() {
    for name in NAMES {
        assert_eq!(name.parse::<Algorithm>().unwrap().to_string(), name);
    }
    assert_eq!("metis".parse::<Algorithm>().is_ok(), cfg!(feature = "metis"));
    let error = "fennel".parse::<Algorithm>().unwrap_err().to_string();
    assert_eq!(
        error,
        "partitioner \"fennel\" is not known; hash, range, dbh, greedy, hdrf, 2ps-l and spring are"
    );
}

#[test]
fn small_graphs_work_with_every_algorithm() {
    let none: &[[u32; 2]] = &[];
    let cases = [(none, 0), (none, 1), (none, 5), (&[[0, 0]], 1), (&[[0, 1], [0, 1]], 2)];
    for name in NAMES {
        for (edges, n_nodes) in cases {
            for n_parts in [1, 3, u16::MAX] {
                let edges = MemoryEdges::new(edges.to_vec()).unwrap();
                let config = PartitionConfig::new(name.parse().unwrap(), n_parts);
                let done = partition(&edges, n_nodes, &config).unwrap();
                assert_eq!(done.assignment.len(), n_nodes as usize);
                assert!(done.assignment.iter().all(|part| part.0 < n_parts));
                assert_eq!(done.report.part_nodes.iter().sum::<u64>(), u64::from(n_nodes));
            }
        }
    }
}

#[test]
fn stars_cliques_pieces_and_loops_work_with_every_algorithm() {
    let star: Vec<[u32; 2]> = (1..100).map(|leaf| [0, leaf]).collect();
    let clique = (0..30u32).flat_map(|u| (0..u).map(move |v| [u, v])).collect();
    // Triangles apart from each other, and nodes without edges at the end.
    let pieces = (0..30u32).map(|i| [i / 3 * 3 + i % 3, i / 3 * 3 + (i + 1) % 3]).collect();
    let loops = (0..50u32).map(|u| [u, u]).collect();
    for (shape, pairs) in [("star", star), ("clique", clique), ("pieces", pieces), ("loops", loops)]
    {
        let edges = MemoryEdges::new(pairs).unwrap();
        let n_nodes = edges.n_nodes() + 10;
        for (name, refine_rounds) in NAMES.into_iter().flat_map(|name| [(name, 0), (name, 2)]) {
            for n_parts in [1, 4, 300] {
                let config = PartitionConfig::new(name.parse().unwrap(), n_parts);
                let config = PartitionConfig { refine_rounds, max_balance: Some(1.05), ..config };
                let report = partition(&edges, n_nodes, &config).unwrap().report;
                let most = report.part_nodes.iter().max().copied().unwrap_or(0) as f64;
                let per_part = f64::from(n_nodes) / f64::from(n_parts);
                assert!(most <= (1.05 * per_part).max(per_part.ceil()), "{shape}, {name}: {most}");
                assert_eq!(report.part_nodes.iter().sum::<u64>(), u64::from(n_nodes));
                assert!(shape != "loops" || report.replication_factor == 1.0, "{name}");
            }
        }
    }
}

#[test]
fn plans_hold_for_every_algorithm_and_name_their_phases() {
    for algorithm in Algorithm::all() {
        let mut config = PartitionConfig::new(algorithm, 16);
        let alone = config.plan(1_000_000, 50_000_000);
        config.refine_rounds = 1;
        let refined = config.plan(1_000_000, 50_000_000);
        assert!(refined.peak_bytes >= alone.peak_bytes);
        let is_metis = config.algorithm == Algorithm::Metis;
        // 40 bytes per node and the owners; refined, of the order of the nodes still.
        assert!(is_metis || alone.peak_bytes <= 50_000_000, "{alone:?}");
        assert!(is_metis || refined.peak_bytes <= 400_000_000, "{refined:?}");
        assert_eq!(config.plan(1_000_000, u64::MAX / 1000).phases.len(), refined.phases.len());
    }
}

#[test]
fn too_few_nodes_and_no_partitions_are_errors() {
    let edges = MemoryEdges::new(vec![[0, 3]]).unwrap();
    for name in NAMES {
        let config = |n_parts| PartitionConfig::new(name.parse().unwrap(), n_parts);
        let found = partition(&edges, 3, &config(2));
        assert!(matches!(found, Err(PartitionError::Nodes { expected: 3, found: 4 })));
        let none = partition(&edges, 4, &config(0));
        assert!(matches!(none, Err(PartitionError::NoParts)));
    }
}

fn data_dir() -> PathBuf {
    std::env::var_os("LODE_DATA").map_or_else(|| PathBuf::from("../../shared/data"), PathBuf::from)
}

#[test]
fn spring_cuts_real_graphs_far_less_than_hash() {
    for (name, undirected, most) in
        [("cora", true, 0.25), ("coauthor-physics", true, 0.55), ("cnr-2000", false, 0.1)]
    {
        let path = data_dir().join(name).join("edges.npy");
        if !path.exists() {
            println!("skipped: {} is not there; set LODE_DATA", path.display());
            continue;
        }
        let edges = ArrayEdges::open_npy(&path, None).unwrap();
        let config = PartitionConfig::new(Algorithm::Spring(SpringParams::default()), 4);
        let config = PartitionConfig { direction: undirected.into(), ..config };
        let report = partition(&edges, edges.n_nodes(), &config).unwrap().report;
        assert!(report.edge_cut < most, "{name}: cut {}", report.edge_cut);
        assert!(report.node_balance < 1.25, "{name}: balance {}", report.node_balance);
    }
}

#[test]
fn a_wrong_bound_of_balance_is_named() {
    let edges = MemoryEdges::default();
    for found in [0.99, f64::NAN, f64::INFINITY] {
        let config = PartitionConfig {
            max_balance: Some(found),
            ..PartitionConfig::new(Algorithm::Hash, 2)
        };
        let error = partition(&edges, 4, &config);
        assert!(matches!(error, Err(PartitionError::Parameter { name: "max_balance", .. })));
    }
}

proptest! {
    #[test]
    fn every_algorithm_keeps_the_bound_of_balance_and_is_repeatable(
        ends in prop::collection::vec((0u32..40, 0u32..40), 0..120),
        n_nodes in 40u32..60,
        n_parts in 1u16..50,
        max_balance in 1f64..2.0,
        refine_rounds in 0u32..2,
    ) {
        let pairs: Vec<[u32; 2]> = ends.iter().map(|&(u, v)| [u, v]).collect();
        let edges = MemoryEdges::new(pairs).unwrap();
        for name in NAMES {
            let config = PartitionConfig {
                max_balance: Some(max_balance),
                refine_rounds,
                ..PartitionConfig::new(name.parse().unwrap(), n_parts)
            };
            let done = partition(&edges, n_nodes, &config).unwrap();
            let per_part = f64::from(n_nodes) / f64::from(n_parts);
            let most = ((max_balance * per_part) as u64).max(per_part.ceil() as u64);
            let largest = done.report.part_nodes.iter().max().copied().unwrap_or(0);
            prop_assert!(largest <= most, "{name}: {largest} of {most}");
            prop_assert_eq!(done.report.part_nodes.iter().sum::<u64>(), u64::from(n_nodes));
            prop_assert_eq!(partition(&edges, n_nodes, &config).unwrap().assignment, done.assignment);
        }
    }
}
