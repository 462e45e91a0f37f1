//! Sparse features of real graphs, against the figures that were published with them.
//!
//! The data are found through `LODE_DATA`, by default `../shared/data` beside the workspace.

use std::path::PathBuf;

use lodestore_store::Dtype;
use lodestore_store::source::{check_source, open_source};

/// Checks the numbers of nodes, columns and non-zeros, all of which are ones.
fn check_ones(graph: &str, n_nodes: u32, width: u32, n_ones: u64) {
    let data = std::env::var_os("LODE_DATA")
        .map_or_else(|| PathBuf::from("../../shared/data"), PathBuf::from);
    let path = data.join(graph).join("features_csr.npz");
    if !path.exists() {
        println!("SKIPPED: {} is not here; set LODE_DATA", path.display());
        return;
    }
    let source = open_source(&path).expect("a readable matrix");
    let spec = check_source("feat", &*source, n_nodes).expect("one row per node");
    assert_eq!((spec.dtype, spec.width), (Dtype::F32, width));
    let mut row = vec![0u8; spec.row_bytes()];
    let mut found = 0;
    for node in 0..n_nodes {
        source.copy_rows(&[node], &mut row).expect("a row");
        for element in row.as_chunks::<4>().0 {
            let value = f32::from_le_bytes(*element);
            assert!(value == 0.0 || value == 1.0, "node {node}: {value}");
            found += u64::from(value == 1.0);
        }
    }
    assert_eq!(found, n_ones);
}

#[test]
fn cora() {
    check_ones("cora", 2708, 1433, 49_216);
}

#[test]
fn citeseer() {
    check_ones("citeseer", 3327, 3703, 105_165);
}
