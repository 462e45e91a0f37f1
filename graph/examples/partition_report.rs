//! Partitions the edges of a `.npy` file and prints what each algorithm is worth.
//!
//!     cargo run -p lodestore-graph --example partition_report -- \
//!         edges.npy 4 undirected [tau] [passes]

use std::path::Path;

use lodestore_graph::edges::{EdgeStream, NpyEdges};
use lodestore_graph::partition::{Algorithm, SpringParams, partition};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [edges, n_parts, direction, rest @ ..] = args.as_slice() else {
        return Err(
            "usage: partition_report EDGES.npy PARTS directed|undirected [tau] [passes]".into()
        );
    };
    let edges = NpyEdges::open(Path::new(edges), None)?;
    let tau_vol = rest.first().map(|tau| tau.parse()).transpose()?;
    let passes = rest.get(1).map_or(Ok(1), |passes| passes.parse())?;
    let spring = SpringParams { tau_vol, passes, ..SpringParams::default() };
    println!("{} nodes, {} edges", edges.n_nodes(), edges.n_edges());
    for algorithm in [Algorithm::Spring(spring), Algorithm::Range, Algorithm::Hash] {
        let undirected = direction == "undirected";
        let report =
            partition(&edges, edges.n_nodes(), n_parts.parse()?, undirected, &algorithm)?.report;
        println!(
            "{:8} cut {:.3}  copies {:.3}  balance {:.3} of nodes, {:.3} of edges  {:.3} s",
            report.algorithm,
            report.edge_cut,
            report.replication_factor,
            report.node_balance,
            report.edge_balance,
            report.seconds,
        );
        for step in report.steps {
            println!("         {:.3} s {}", step.seconds, step.step);
        }
    }
    Ok(())
}
