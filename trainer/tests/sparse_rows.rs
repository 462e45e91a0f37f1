//! Wide rows that are mostly zeros, which workers load by their non-zero elements.

use std::sync::Arc;

use crate::planted::{config, counting, ondemand, planted_sparse, run, run_from, sdt};
use lodestore_client::RowSource;
use lodestore_graph::NodeId;
use lodestore_trainer::{TrainConfig, TrainError, TrainReport};

/// Returns losses, parameters and measurements, as bits.
fn computed(report: &TrainReport) -> (Vec<u64>, String, Vec<Option<u64>>) {
    let losses = report.step_losses.iter().map(|loss| loss.to_bits()).collect();
    let measured = report.epochs.iter().map(|epoch| epoch.test_accuracy.map(f64::to_bits));
    (losses, report.parameters_digest.clone(), measured.collect())
}

#[test]
fn rows_in_memory_and_rows_that_come_as_bytes_train_alike() {
    let (dir, graph) = (tempfile::tempdir().unwrap(), planted_sparse(1, None));
    for normalize in [false, true] {
        let ondemand = TrainConfig { normalize, ..config(ondemand(), 1, dir.path()) };
        // Rows of this source are not known to be in memory.
        let (counted, _) = counting(&graph.rows);
        let expected = run_from(&graph, &ondemand, &counted, &counted).unwrap();
        let found = run(&graph, &ondemand).unwrap();
        assert_eq!(computed(&found), computed(&expected));
        assert!(found.epochs[2].test_accuracy > Some(0.5), "{:?}", found.epochs[2].test_accuracy);
        // Batches whose bytes were never together leave no memory for them.
        assert!(expected.memory_measured_bytes > 0 && found.memory_measured_bytes == 0);

        let sdt = TrainConfig { normalize, ..config(sdt(), 1, dir.path()) };
        let of_partition = run(&graph, &sdt).unwrap();
        assert_eq!(of_partition.parameters_digest, expected.parameters_digest);
    }
}

#[test]
fn workers_with_remote_rows_train_alike_too() {
    let (dir, graph) = (tempfile::tempdir().unwrap(), planted_sparse(3, None));
    let ondemand = config(ondemand(), 2, dir.path());
    let (counted, _) = counting(&graph.rows);
    let expected = run_from(&graph, &ondemand, &counted, &counted).unwrap();
    let rows = Arc::clone(&graph.rows) as Arc<dyn RowSource>;
    let found = run_from(&graph, &ondemand, &rows, &counted).unwrap();
    assert_eq!(computed(&found), computed(&expected));
    assert_eq!(found.epochs[0].remote_rows, expected.epochs[0].remote_rows);
}

#[test]
fn a_feature_that_is_no_number_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (node, column) = (NodeId(123), 457);
    let graph = planted_sparse(1, Some((node, column)));
    let (counted, _) = counting(&graph.rows);
    for strategy in [ondemand(), sdt()] {
        let config = config(strategy.clone(), 1, dir.path());
        for rows in [&(Arc::clone(&graph.rows) as Arc<dyn RowSource>), &counted] {
            match run_from(&graph, &config, rows, rows).unwrap_err() {
                TrainError::Feature { node: found, column: at, found: value, .. } => {
                    assert_eq!((found, at as u32), (node, column));
                    assert!(value.is_nan());
                }
                error => panic!("{strategy}: {error}"),
            }
        }
    }
}
