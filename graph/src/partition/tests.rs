use super::*;
use crate::edges::{MemoryEdges, NpyEdges};
use std::path::PathBuf;

const NAMES: [&str; 3] = ["hash", "range", "spring"];

#[test]
fn names_are_read_back() {
    for name in NAMES {
        assert_eq!(name.parse::<Algorithm>().unwrap().to_string(), name);
    }
    let error = "metis".parse::<Algorithm>().unwrap_err().to_string();
    assert_eq!(error, "partitioner \"metis\" is not known; hash, range and spring are");
}

#[test]
fn small_graphs_work_with_every_algorithm() {
    let none: &[[u32; 2]] = &[];
    let cases = [(none, 0), (none, 1), (none, 5), (&[[0, 0]], 1), (&[[0, 1], [0, 1]], 2)];
    for name in NAMES {
        for (edges, n_nodes) in cases {
            for n_parts in [1, 3, u16::MAX] {
                let edges = MemoryEdges::new(edges.to_vec()).unwrap();
                let algorithm = name.parse().unwrap();
                let done = partition(&edges, n_nodes, n_parts, true, &algorithm).unwrap();
                assert_eq!(done.assignment.len(), n_nodes as usize);
                assert!(done.assignment.iter().all(|part| part.0 < n_parts));
                assert_eq!(done.report.part_nodes.iter().sum::<u64>(), u64::from(n_nodes));
            }
        }
    }
}

#[test]
fn too_few_nodes_and_no_partitions_are_errors() {
    let edges = MemoryEdges::new(vec![[0, 3]]).unwrap();
    for name in NAMES {
        let algorithm = name.parse().unwrap();
        assert!(matches!(
            partition(&edges, 3, 2, false, &algorithm),
            Err(PartitionError::Nodes { expected: 3, found: 4 })
        ));
        let none = partition(&edges, 4, 0, false, &algorithm);
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
        let edges = NpyEdges::open(&path, None).unwrap();
        let spring = Algorithm::Spring(SpringParams::default());
        let report = partition(&edges, edges.n_nodes(), 4, undirected, &spring).unwrap().report;
        assert!(report.edge_cut < most, "{name}: cut {}", report.edge_cut);
        assert!(report.node_balance < 1.25, "{name}: balance {}", report.node_balance);
    }
}
