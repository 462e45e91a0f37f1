//! The strategies against each other, on a graph in memory.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod planted;

use std::sync::{Arc, atomic::AtomicU64};

use lodestore_client::RowSource;
use lodestore_graph::sampler::Fanout;
use lodestore_store::Dtype;
use lodestore_trainer::{
    EpochReport, HotPolicy, ModelKind, Strategy, TrainConfig, TrainError, TrainReport,
};
use planted::{Failing, N_NODES, bytes_of, config, planted, run, run_with};

/// The losses of every step, as bits.
fn losses(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

/// The oracle pulls no more rows than the hot sets do, and no row for one of them.
fn no_more_than(oracle: &TrainReport, frequency: &TrainReport) {
    let remote =
        |report: &TrainReport| -> u64 { report.epochs.iter().map(|e| e.remote_rows).sum() };
    let (oracle_rows, rows) = (remote(oracle), remote(frequency));
    assert!(oracle_rows <= rows, "oracle {oracle_rows}, frequency {rows}");
    assert!(oracle.epochs.iter().all(|epoch| epoch.hot_set_rows == 0));
    assert_eq!(oracle.memory_bound_bytes, frequency.memory_bound_bytes);
}

#[test]
fn only_the_way_of_fetching_differs() {
    let dir = tempfile::tempdir().unwrap();
    for (n_parts, workers, model) in [
        (1, 1, ModelKind::Sage),
        (4, 2, ModelKind::Sage),
        (3, 3, ModelKind::Gcn),
        (2, 2, ModelKind::Gat),
    ] {
        let graph = planted(n_parts);
        let ondemand = TrainConfig { model, ..config(Strategy::Ondemand, workers, dir.path()) };
        let expected = run(&graph, &ondemand).unwrap();
        assert_eq!(expected.step_losses.len() as u32, 3 * expected.epochs[0].steps);
        for (n_hot, window) in [(0, 0), (0, 1), (60, 1), (60, 4), (N_NODES as usize * 2, 2)] {
            let rapid = config(Strategy::Rapid, workers, dir.path());
            let hot_policy = HotPolicy::Frequency;
            let rapid = TrainConfig { model, n_hot, window, hot_policy, ..rapid };
            let found = run(&graph, &rapid).unwrap();
            let oracle = TrainConfig { hot_policy: HotPolicy::Oracle, ..rapid };
            let oracle = run(&graph, &oracle).unwrap();
            no_more_than(&oracle, &found);
            for found in [found, oracle] {
                let what = format!("{workers} workers, n_hot {n_hot}, window {window}");
                assert_eq!(losses(&found.step_losses), losses(&expected.step_losses), "{what}");
                assert_eq!(found.test_accuracy, expected.test_accuracy, "{what}");
                for (found, expected) in found.epochs.iter().zip(&expected.epochs) {
                    assert_eq!(found.local_rows, expected.local_rows, "{what}");
                    let pulled = |e: &EpochReport| e.remote_rows - e.hot_set_rows - e.filled_rows;
                    assert_eq!(found.hit_rows + pulled(found), pulled(expected), "{what}");
                }
                let (held, bound) = (found.memory_measured_bytes, found.memory_bound_bytes);
                assert!(held <= bound, "{what}: {held} of {bound} bytes");
            }
        }
    }
}

#[test]
fn a_hot_set_for_all_remote_nodes_leaves_nothing_to_pull() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(4);
    let rapid = config(Strategy::Rapid, 2, dir.path());
    let (n_hot, hot_policy) = (N_NODES as usize, HotPolicy::Frequency);
    let rapid = TrainConfig { n_hot, hot_policy, ..rapid };
    let rapid = run(&graph, &rapid).unwrap();
    let ondemand = run(&graph, &config(Strategy::Ondemand, 2, dir.path())).unwrap();
    // A set may come late, and then the one before it misses some rows; the first never is.
    assert_eq!(rapid.epochs[0].hit_rate, 1.0);
    let first = &rapid.epochs[0];
    assert_eq!(first.remote_rows, first.hot_set_rows + first.filled_rows);
    assert!(rapid.remote_bytes_per_step * 3.0 < ondemand.remote_bytes_per_step);
    assert_eq!(ondemand.epochs[0].hit_rate, 0.0);
    assert!(ondemand.epochs[0].default_path_batches == ondemand.epochs[0].batches);
}

#[test]
fn runs_repeat_and_seeds_differ() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    let first = config(Strategy::Rapid, 2, dir.path());
    let other = TrainConfig { seed: 8, ..first.clone() };
    let bits = |config| losses(&run(&graph, config).unwrap().step_losses);
    assert_eq!(bits(&first), bits(&first));
    assert_ne!(bits(&first), bits(&other));
}

#[test]
fn all_models_learn_the_communities_in_two_layers_and_in_three() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    for model in [ModelKind::Sage, ModelKind::Gcn, ModelKind::Gat] {
        for n_layers in [2, 3] {
            let fanouts = vec![Fanout::at_most(5).unwrap(); n_layers];
            let config = config(Strategy::Rapid, 2, dir.path());
            let config = TrainConfig { model, fanouts, epochs: 20, ..config };
            let report = run(&graph, &config).unwrap();
            let (what, accuracy) = (format!("{model}, {n_layers} layers"), report.test_accuracy);
            assert!(accuracy.unwrap() > 0.75, "{what}: {accuracy:?}");
            let (first, last) = (&report.epochs[0], &report.epochs[19]);
            assert!(last.loss < 0.8 * first.loss, "{what}: {} to {}", first.loss, last.loss);
        }
    }
}

#[test]
fn patience_ends_a_run_and_the_best_parameters_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    for strategy in [Strategy::Ondemand, Strategy::Rapid, Strategy::Massive] {
        let long = TrainConfig { epochs: 40, ..config(strategy, 2, dir.path()) };
        let short = run(&graph, &TrainConfig { patience: 3, ..long.clone() }).unwrap();
        let n_epochs = short.epochs.len() as u32;
        assert!(short.stopped_early && n_epochs < 40, "{n_epochs} epochs");
        assert_eq!(short.best_epoch + 3, n_epochs - 1);
        let validation = |epoch: u32| short.epochs[epoch as usize].validation_accuracy.unwrap();
        assert!((0..n_epochs).all(|e| validation(e) <= validation(short.best_epoch)));
        assert_eq!(Some(validation(short.best_epoch)), short.validation_accuracy);
        assert_ne!(short.parameters_digest, short.best_parameters_digest);
        // The best parameters are those that a run has that ends with their epoch.
        let until = run(&graph, &TrainConfig { epochs: short.best_epoch + 1, ..long }).unwrap();
        assert_eq!(short.best_parameters_digest, until.parameters_digest);
        assert_eq!(short.best_parameters_digest, until.best_parameters_digest);
        assert!(!until.stopped_early);
        let n_steps = until.step_losses.len();
        assert_eq!(losses(&short.step_losses[..n_steps]), losses(&until.step_losses));
    }
}

#[test]
fn patience_without_validation_nodes_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut graph = planted(1);
    let splits = (0..N_NODES).map(|i| 2 * (i as u8 % 2)).collect();
    Arc::get_mut(&mut graph.rows).unwrap().add("split", Dtype::U8, 1, splits).unwrap();
    let config = TrainConfig { patience: 1, ..config(Strategy::Ondemand, 1, dir.path()) };
    let error = run(&graph, &config).unwrap_err();
    assert!(matches!(error, TrainError::NothingToValidate { .. }), "{error}");
}

#[test]
fn a_worker_without_roots_takes_no_part() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    // Three workers, two partitions: the third owns nothing.
    for strategy in [Strategy::Ondemand, Strategy::Rapid] {
        let report = run(&graph, &config(strategy, 3, dir.path())).unwrap();
        let two = run(&graph, &config(strategy, 2, dir.path())).unwrap();
        assert_eq!(losses(&report.step_losses), losses(&two.step_losses));
    }
}

#[test]
fn a_source_that_fails_ends_the_run_with_its_error() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(3);
    for (strategy, hot_policy) in [
        (Strategy::Ondemand, HotPolicy::Frequency),
        (Strategy::Rapid, HotPolicy::Frequency),
        (Strategy::Rapid, HotPolicy::Oracle),
    ] {
        for good_pulls in [0, 1, 4, 20] {
            let (rows, good_pulls) = (Arc::clone(&graph.rows), AtomicU64::new(good_pulls));
            let remote: Arc<dyn RowSource> = Arc::new(Failing { rows, good_pulls });
            let config = TrainConfig { hot_policy, ..config(strategy, 3, dir.path()) };
            let found = run_with(&graph, &config, &remote);
            assert!(matches!(found, Err(TrainError::Client(_))), "{strategy} {found:?}");
        }
    }
}

#[test]
fn bad_labels_and_splits_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(Strategy::Rapid, 1, dir.path());
    let error = |change: &dyn Fn(&mut lodestore_client::MemorySource)| {
        let mut graph = planted(1);
        change(Arc::get_mut(&mut graph.rows).unwrap());
        run(&graph, &config).unwrap_err().to_string()
    };
    let n = N_NODES as usize;
    let found = error(&|rows| rows.add("split", Dtype::U8, 1, vec![255; n]).unwrap());
    assert!(found.contains("marks no node for training"), "{found}");
    let labels = bytes_of(&vec![-1i64; n], i64::to_le_bytes);
    let found = error(&|rows| rows.add("label", Dtype::I64, 1, labels.clone()).unwrap());
    assert!(found.contains("label is -1"), "{found}");
    let labels = bytes_of(&vec![1i64 << 40; n], i64::to_le_bytes);
    let found = error(&|rows| rows.add("label", Dtype::I64, 1, labels.clone()).unwrap());
    assert!(found.contains("label is 1099511627776"), "{found}");
    let found = error(&|rows| rows.add("label", Dtype::U8, 1, vec![0; n]).unwrap());
    assert!(found.contains("must be i64 of width 1, found u8 of width 1"), "{found}");
}

#[test]
fn features_of_small_integers_train() {
    let dir = tempfile::tempdir().unwrap();
    let mut graph = planted(2);
    let rows = Arc::get_mut(&mut graph.rows).unwrap();
    let features = (0..N_NODES * 3).map(|i| (i * 37) as u8).collect();
    rows.add("feat", Dtype::U8, 3, features).unwrap();
    let report = run(&graph, &config(Strategy::Rapid, 2, dir.path())).unwrap();
    assert!(report.step_losses.iter().all(|loss| loss.is_finite()));
}

#[test]
fn rows_of_another_graph_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let other = Arc::clone(&planted(3).rows) as Arc<dyn RowSource>;
    let found = run_with(&planted(2), &config(Strategy::Rapid, 1, dir.path()), &other);
    assert!(matches!(found, Err(TrainError::OtherGraph { what: "source of rows", .. })));
}

#[test]
fn the_number_of_sources_must_be_that_of_workers() {
    let dir = tempfile::tempdir().unwrap();
    let config = TrainConfig { workers: 0, ..config(Strategy::Rapid, 1, dir.path()) };
    let error = run(&planted(1), &config).unwrap_err().to_string();
    assert!(error.contains("`workers` must be at least 1"), "{error}");
}

#[test]
fn a_memory_budget_shrinks_window_and_hot_sets() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    let wide = config(Strategy::Rapid, 2, dir.path());
    let wide = TrainConfig { hot_policy: HotPolicy::Frequency, ..wide };
    let expected = run(&graph, &wide).unwrap();
    for budget in [expected.memory_bound_bytes - 1, expected.memory_bound_bytes / 3, 1000, 0] {
        let tight = TrainConfig { memory_budget_bytes: Some(budget), ..wide.clone() };
        let found = run(&graph, &tight).unwrap();
        assert!((found.n_hot, found.window) < (expected.n_hot, expected.window));
        assert!(found.memory_bound_bytes <= budget);
        assert!(found.memory_measured_bytes <= budget);
        assert_eq!(losses(&found.step_losses), losses(&expected.step_losses));
        let oracle = TrainConfig { hot_policy: HotPolicy::Oracle, ..tight };
        let oracle = run(&graph, &oracle).unwrap();
        assert!(oracle.memory_measured_bytes <= budget);
        assert_eq!(losses(&oracle.step_losses), losses(&expected.step_losses));
        no_more_than(&oracle, &found);
    }
}
