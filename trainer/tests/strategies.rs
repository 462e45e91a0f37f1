//! The strategies against each other, on a graph in memory.

mod memory;
mod schedules;

use std::{
    ffi::OsStr,
    fs,
    ops::ControlFlow,
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::{Arc, Mutex},
};

use crate::planted::{
    N_NODES, Noting, Pinned, ROW_BYTES, bytes_of, complete, config, counting, failing, global, hop,
    massive, ondemand, planted, rapid, run, run_from, run_in_ranks, run_in_ranks_from, run_telling,
    run_with, schedule, schedule_of, scheduled,
};
use lodestore_client::keep::Keep;
use lodestore_client::source::VersionTag;
use lodestore_client::{ClientError, RowSource};
use lodestore_graph::sampler::Fanout;
use lodestore_store::Dtype;
use lodestore_trainer::config::{
    HopConfig, Merge, Migration, OndemandConfig, RapidConfig, Sampling, ScheduleConfig,
};
use lodestore_trainer::replay::Replay;
use lodestore_trainer::report::{EpochReport, RowsFrom};
use lodestore_trainer::{
    ModelKind, Progress, Strategy, TrainConfig, TrainError, TrainGraph, TrainReport, WorkerSources,
    train,
};

/// Returns the losses of every step, as bits.
fn losses(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

/// Returns remote rows of all epochs.
fn remote_rows(report: &TrainReport) -> u64 {
    report.epochs.iter().map(|epoch| epoch.remote_rows).sum()
}

/// Checks that the oracle pulls no more rows than the hot sets do, and after the first batch none
/// beside what one misses.
fn no_more_than(oracle: &TrainReport, frequency: &TrainReport) {
    let (oracle_rows, rows) = (remote_rows(oracle), remote_rows(frequency));
    assert!(oracle_rows <= rows, "oracle {oracle_rows}, frequency {rows}");
    assert!(oracle.epochs[1..].iter().all(|epoch| epoch.hot_set_rows == 0));
    let [oracle, frequency] = [oracle, frequency].map(|of| schedule_of(of).memory_bound_bytes);
    assert!(oracle <= frequency, "oracle {oracle} bytes, frequency {frequency}");
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
        let ondemand = TrainConfig { model, ..config(ondemand(), workers, dir.path()) };
        let expected = run(&graph, &ondemand).unwrap();
        assert_eq!(expected.step_losses.len() as u32, 3 * expected.epochs[0].steps);
        let massive = TrainConfig { strategy: massive(), ..ondemand.clone() };
        let massive = run(&graph, &massive).unwrap();
        assert_eq!(losses(&massive.step_losses), losses(&expected.step_losses));
        assert_eq!(massive.parameters_digest, expected.parameters_digest);
        for (n_hot, window) in [(0, 0), (0, 1), (60, 1), (60, 4), (N_NODES as usize * 2, 2)] {
            let keep = Keep::Hot;
            let schedule = ScheduleConfig { n_hot, window, keep, ..schedule() };
            let rapid = Strategy::Rapid(RapidConfig { schedule, ..RapidConfig::default() });
            let rapid = TrainConfig { model, ..config(rapid, workers, dir.path()) };
            let found = run(&graph, &rapid).unwrap();
            let oracle = scheduled(rapid, |schedule| schedule.keep = Keep::Oracle);
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
                let held = found.memory_measured_bytes;
                let bound = schedule_of(&found).memory_bound_bytes;
                assert!(held <= bound, "{what}: {held} of {bound} bytes");
            }
        }
    }
}

#[test]
fn a_hot_set_for_all_remote_nodes_leaves_nothing_to_pull() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(4);
    let rapid = scheduled(config(rapid(), 2, dir.path()), |schedule| {
        (schedule.n_hot, schedule.keep) = (N_NODES as usize, Keep::Hot);
    });
    let rapid = run(&graph, &rapid).unwrap();
    let ondemand = run(&graph, &config(ondemand(), 2, dir.path())).unwrap();
    // A set may come late, and then the one before it misses some rows; the first never is.
    assert_eq!(rapid.epochs[0].found_share(), 1.0);
    let first = &rapid.epochs[0];
    assert_eq!(first.remote_rows, first.hot_set_rows + first.filled_rows);
    assert!(rapid.remote_bytes_per_step * 3.0 < ondemand.remote_bytes_per_step);
    assert_eq!(ondemand.epochs[1].hit_rate, None, "nothing was kept");
    // Rows that were pulled to be kept are no hits.
    let saved = first.hit_rows.saturating_sub(first.remote_rows) as f64 / first.hit_rows as f64;
    assert_eq!(first.hit_rate, Some(saved));
    assert!(ondemand.epochs[0].default_path_batches == ondemand.epochs[0].batches);
}

#[test]
fn runs_repeat_and_seeds_differ() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    let first = config(rapid(), 2, dir.path());
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
            let config = config(rapid(), 2, dir.path());
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
    for strategy in [ondemand(), rapid(), massive()] {
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
    let config = TrainConfig { patience: 1, ..config(ondemand(), 1, dir.path()) };
    let error = run(&graph, &config).unwrap_err();
    assert!(matches!(error, TrainError::NothingToValidate { .. }), "{error}");
}

#[test]
fn a_worker_without_roots_takes_no_part() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    // Three workers, two partitions: the third owns nothing.
    for strategy in [ondemand(), rapid(), massive()] {
        let report = run(&graph, &config(strategy.clone(), 3, dir.path())).unwrap();
        let two = run(&graph, &config(strategy, 2, dir.path())).unwrap();
        assert_eq!(losses(&report.step_losses), losses(&two.step_losses));
    }
}

/// Many steps of few roots, so that the last batch of an epoch leaves workers without any.
#[test]
fn global_roots_are_all_trained_on_and_fetching_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(4);
    // As many roots in an epoch as the book has; of 4 workers and 3 roots each.
    let of = |strategy, workers, batch_size| {
        let plain = config(strategy, workers, dir.path());
        TrainConfig { batch_size, dropout: 0.0, ..plain }
    };
    let one = run(&graph, &of(global(ondemand()), 1, 12)).unwrap();
    let owned = run(&graph, &of(ondemand(), 1, 12)).unwrap();
    assert_eq!(losses(&one.step_losses), losses(&owned.step_losses), "one worker owns all");
    for workers in [2, 3, 4] {
        let config = of(global(ondemand()), workers, 12 / workers as usize);
        let found = run(&graph, &config).unwrap();
        // The same global batches of the same neighbours: the same losses but for rounding.
        assert_eq!(found.step_losses.len(), one.step_losses.len());
        for (step, (found, expected)) in found.step_losses.iter().zip(&one.step_losses).enumerate()
        {
            let near = (found - expected).abs() <= 1e-3 * expected.abs();
            assert!(near, "{workers} workers, step {step}: {found}, {expected}");
        }
        let first = (found.step_losses[0] - one.step_losses[0]).abs();
        assert!(first <= 1e-6 * one.step_losses[0], "{first}");
        let massive = TrainConfig { strategy: global(massive()), ..config.clone() };
        let massive = run(&graph, &massive).unwrap();
        assert_eq!(losses(&massive.step_losses), losses(&found.step_losses));
        assert_eq!(massive.parameters_digest, found.parameters_digest);
    }
    // More workers than roots in the last batch: some have none, and none counts for them.
    let few = TrainConfig { epochs: 1, ..of(global(ondemand()), 4, 1) };
    let mut by_worker = [0; 4];
    let rows = Arc::clone(&graph.rows) as Arc<dyn RowSource>;
    let report = run_telling(&graph, &few, [&rows, &rows], &mut |progress| {
        if let Progress::Step { workers, .. } = progress {
            workers.iter().for_each(|of| by_worker[of.worker as usize] += of.roots);
        }
        ControlFlow::Continue(())
    });
    let report = report.unwrap();
    let n_roots: u64 = by_worker.iter().sum();
    assert_ne!(n_roots % 4, 0, "the last batch is not whole");
    assert_eq!(report.epochs[0].batches, n_roots, "batches of one root");
    assert_eq!(u64::from(report.epochs[0].steps), n_roots.div_ceil(4));
}

/// The loss, and so its gradient, is that of one process on the same global batch.
#[test]
fn roots_at_home_give_the_losses_of_the_whole_batch_and_pull_less() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(4);
    let models = [ModelKind::Sage, ModelKind::Gcn, ModelKind::Gat];
    for (model, dropout) in models.into_iter().flat_map(|model| [(model, 0.0), (model, 0.5)]) {
        let of = |strategy, workers: u32| {
            let plain = config(strategy, workers, dir.path());
            TrainConfig { batch_size: 12 / workers as usize, dropout, model, ..plain }
        };
        let one = run(&graph, &of(ondemand(), 1)).unwrap();
        for workers in [1, 2, 3, 4] {
            let hop = run(&graph, &of(hop(), workers)).unwrap();
            let what = format!("{model}, dropout {dropout}, {workers} workers");
            let near = |a: f64, b: f64, by: f64| (a - b).abs() <= by * b.abs();
            assert_eq!(hop.step_losses.len(), one.step_losses.len(), "{what}");
            assert!(near(hop.step_losses[0], one.step_losses[0], 1e-6), "{what}");
            for (found, expected) in hop.step_losses.iter().zip(&one.step_losses) {
                assert!(near(*found, *expected, 1e-3), "{what}: {found}, {expected}");
            }
            let with = |hop| run(&graph, &of(Strategy::Hop(hop), workers)).unwrap();
            let planned = with(HopConfig { schedule: Some(schedule()), ..HopConfig::default() });
            assert_eq!(losses(&planned.step_losses), losses(&hop.step_losses), "{what}");
            assert_eq!(planned.parameters_digest, hop.parameters_digest, "{what}");
            assert!(workers == 1 || remote_rows(&planned) < remote_rows(&hop), "{what}");
            let paper = || HopConfig { migration: Migration::Paper, ..HopConfig::default() };
            let gathered = with(paper());
            let apart = with(HopConfig { pregather: false, ..paper() });
            assert_eq!(losses(&gathered.step_losses), losses(&apart.step_losses), "{what}");
            assert_eq!(gathered.parameters_digest, apart.parameters_digest, "{what}");
            assert!(workers == 1 || remote_rows(&gathered) < remote_rows(&apart), "{what}");
            // The same rows as without migration, each once.
            assert_eq!(remote_rows(&gathered), remote_rows(&hop), "{what}");
            for (found, expected) in gathered.step_losses.iter().zip(&one.step_losses) {
                assert!(near(*found, *expected, 1e-3), "{what}: {found}, {expected}");
            }
            for (epoch, without) in gathered.epochs.iter().zip(&hop.epochs) {
                let (steps, others) = (u64::from(epoch.steps), u64::from(workers) - 1);
                assert_eq!(epoch.time_steps, Some(steps * u64::from(workers)), "{what}");
                assert_eq!(epoch.gradient_bytes, without.gradient_bytes, "{what}");
                // Each of the models moves with its gradients, as a gradient and its sum do.
                let moved = epoch.gradient_bytes.map(|bytes| bytes * u64::from(workers));
                assert_eq!(epoch.model_bytes, moved.filter(|_| others > 0).or(Some(0)), "{what}");
            }
            for merge in [Merge::Min, Merge::Random] {
                let merged = with(HopConfig { merge, ..paper() });
                let n_time_steps = |at: usize| merged.epochs[at].time_steps.unwrap();
                let steps = u64::from(merged.epochs[0].steps);
                assert_eq!(n_time_steps(0), steps * u64::from(workers), "{what}");
                let one_less = u64::from(workers).saturating_sub(1).max(1);
                assert_eq!(n_time_steps(1), steps * one_less, "{what}");
                for (found, expected) in merged.step_losses.iter().zip(&one.step_losses) {
                    assert!(near(*found, *expected, 1e-3), "{what}: {found}, {expected}");
                }
            }
            let global = run(&graph, &of(global(ondemand()), workers)).unwrap();
            for (hop, global) in hop.epochs.iter().zip(&global.epochs) {
                assert_eq!((hop.model_bytes, hop.time_steps), (Some(0), Some(hop.steps.into())));
                let rows = hop.local_rows + hop.remote_rows - hop.filled_rows;
                let missed = hop.remote_rows - hop.filled_rows;
                assert_eq!(hop.miss_rate, Some(missed as f64 / rows as f64), "{what}");
                assert!(workers == 1 || hop.roots_imbalance > Some(0.0), "{what}");
                assert!(workers == 1 || hop.gradient_bytes > Some(0), "{what}");
                assert_eq!(global.miss_rate, None);
                // The last batch leaves some workers without roots, and most steps are uneven.
                assert!(workers == 1 || hop.remote_rows < global.remote_rows, "{what}");
            }
        }
        // Steps in which a worker has no root at all.
        let few = TrainConfig { batch_size: 1, epochs: 1, ..of(hop(), 4) };
        let report = run(&graph, &few).unwrap();
        assert!(report.epochs[0].batches < 4 * u64::from(report.epochs[0].steps));
    }
}

#[test]
fn a_source_that_fails_ends_the_run_with_its_error() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(3);
    let with = |strategy| config(strategy, 3, dir.path());
    let frequency = |schedule: &mut ScheduleConfig| schedule.keep = Keep::Hot;
    for config in
        [with(ondemand()), scheduled(with(rapid()), frequency), with(rapid()), with(massive())]
    {
        for good_pulls in [0, 1, 4, 20] {
            let remote = failing(&graph.rows, good_pulls);
            let found = run_with(&graph, &config, &remote);
            let strategy = &config.strategy;
            assert!(matches!(found, Err(TrainError::Client(_))), "{strategy} {found:?}");
        }
    }
    // In the first time step, and in others.
    let (migration, pregather) = (Migration::Paper, false);
    let hop = HopConfig { migration, pregather, ..HopConfig::default() };
    for good_pulls in [0, 2, 4, 7, 20] {
        let remote = failing(&graph.rows, good_pulls);
        let config = config(Strategy::Hop(hop.clone()), 3, dir.path());
        let found = run_with(&graph, &config, &remote);
        assert!(matches!(found, Err(TrainError::Client(_))), "{found:?}");
    }
}

#[test]
fn bad_labels_and_splits_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(rapid(), 1, dir.path());
    let error = |change: &dyn Fn(&mut lodestore_client::source::memory::MemorySource)| {
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
    let found = error(&|rows| rows.add("label", Dtype::F32, 1, vec![0; 4 * n]).unwrap());
    assert!(found.contains("must be integers of width 1, or u8 or f32 of more"), "{found}");
    assert!(found.contains("found f32 of width 1"), "{found}");
    let mut splits = vec![0; n];
    splits[7] = 3;
    let found = error(&|rows| rows.add("split", Dtype::U8, 1, splits.clone()).unwrap());
    assert!(found.contains("node 7 has 3 in `split`; expected 0 for training"), "{found}");
}

/// Classes are numbers, whatever type the files have.
#[test]
fn classes_of_every_integer_type_train_alike() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(ondemand(), 1, dir.path());
    let classes: Vec<u8> = (0..N_NODES).map(|node| (node % 3) as u8).collect();
    let losses = |dtype, bytes: Vec<u8>| {
        let mut graph = planted(1);
        let rows = Arc::get_mut(&mut graph.rows).unwrap();
        rows.add("label", dtype, 1, bytes).unwrap();
        run(&graph, &config).unwrap().step_losses
    };
    let of_i64: Vec<i64> = classes.iter().map(|&class| class.into()).collect();
    let of_i32: Vec<i32> = classes.iter().map(|&class| class.into()).collect();
    let expected = losses(Dtype::I64, bytes_of(&of_i64, i64::to_le_bytes));
    assert_eq!(losses(Dtype::I32, bytes_of(&of_i32, i32::to_le_bytes)), expected);
    assert_eq!(losses(Dtype::U8, classes), expected);
}

#[test]
fn features_of_small_integers_train() {
    let dir = tempfile::tempdir().unwrap();
    let mut graph = planted(2);
    let rows = Arc::get_mut(&mut graph.rows).unwrap();
    let features = (0..N_NODES * 3).map(|i| (i * 37) as u8).collect();
    rows.add("feat", Dtype::U8, 3, features).unwrap();
    let report = run(&graph, &config(rapid(), 2, dir.path())).unwrap();
    assert!(report.step_losses.iter().all(|loss| loss.is_finite()));
}

#[test]
fn rows_of_another_graph_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let other = Arc::clone(&planted(3).rows) as Arc<dyn RowSource>;
    let found = run_with(&planted(2), &config(rapid(), 1, dir.path()), &other);
    assert!(matches!(found, Err(TrainError::OtherGraph { what: "source of rows", .. })));
}

#[test]
fn the_number_of_sources_must_be_that_of_workers() {
    let dir = tempfile::tempdir().unwrap();
    let config = TrainConfig { workers: 0, ..config(rapid(), 1, dir.path()) };
    let error = run(&planted(1), &config).unwrap_err().to_string();
    assert!(error.contains("`workers` must be at least 1"), "{error}");
}

/// Each process connects for itself, and a commit may come between.
#[test]
fn processes_that_have_pinned_other_versions_do_not_train_together() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    for strategy in [ondemand(), massive()] {
        let config = config(strategy, 2, dir.path());
        let run = |versions: [u32; 2]| {
            run_in_ranks_from(&graph, &config, 2, &|rank| {
                let version = Some(VersionTag::any(versions[rank as usize]));
                Arc::new(Pinned { rows: Arc::clone(&graph.rows), version })
            })
        };
        assert!(run([4, 4]).iter().all(Result::is_ok));
        for found in run([4, 5]) {
            let found = found.unwrap_err().to_string();
            assert!(found.contains("process 1 of the run reads version 5"), "{found}");
            assert!(found.contains("the first one version 4"), "{found}");
        }
    }
}

/// Own rows of one version never meet others' of another one, however these are fetched.
#[test]
fn rows_of_two_versions_meet_in_no_batch_unless_they_may() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    let pinned = |version| -> Arc<dyn RowSource> {
        Arc::new(Pinned { rows: Arc::clone(&graph.rows), version })
    };
    let of = |number, commit| Some(VersionTag { number, tag: commit });
    for strategy in [ondemand(), rapid(), massive()] {
        let config = config(strategy.clone(), 2, dir.path());
        for others in [of(2, 7), of(1, 8), None] {
            let found = run_from(&graph, &config, &pinned(of(1, 7)), &pinned(others));
            let error = found.unwrap_err();
            assert!(matches!(error, TrainError::MixedVersions { .. }), "{strategy}: {error}");
            assert!(error.to_string().contains("version 1 (commit 0000000000000007)"), "{error}");
        }
        let same = run_from(&graph, &config, &pinned(of(1, 7)), &pinned(of(1, 7))).unwrap();
        assert!(same.versions.is_one() && same.versions.own == of(1, 7), "{strategy}");
        let mixing = TrainConfig { mixed_versions: true, ..config };
        let mixed = run_from(&graph, &mixing, &pinned(of(1, 7)), &pinned(of(2, 8))).unwrap();
        assert_eq!((mixed.versions.own, mixed.versions.remote), (of(1, 7), of(2, 8)));
    }
    let loose = config(ondemand(), 2, dir.path());
    let found = run_from(&graph, &loose, &pinned(None), &pinned(None));
    assert!(matches!(found, Err(TrainError::Client(ClientError::Unpinned { .. }))), "{found:?}");
    // What rapid keeps over epochs is of one version also where versions may mix.
    let mixing = TrainConfig { mixed_versions: true, ..config(rapid(), 2, dir.path()) };
    let found = run_from(&graph, &mixing, &pinned(of(1, 7)), &pinned(None));
    assert!(matches!(found, Err(TrainError::Client(ClientError::Unpinned { .. }))), "{found:?}");
}

/// Recorded steps take their time under every strategy, and their losses stand for the same rows.
#[test]
fn recorded_steps_take_the_place_of_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    let of = |strategy, replay| {
        let usual = config(strategy, 2, dir.path());
        run(&graph, &TrainConfig { measure_test: false, evaluate_every: 0, replay, ..usual })
    };
    let replay = |seconds: &[f64]| Some(Replay::new(seconds.to_vec()).unwrap());
    let [pulled, planned] =
        [ondemand(), rapid()].map(|of_run| of(of_run, replay(&[0.01])).unwrap());
    assert_eq!(losses(&pulled.step_losses), losses(&planned.step_losses));
    assert_eq!(pulled.parameters_digest, planned.parameters_digest);
    assert_eq!((pulled.device, of(rapid(), None).unwrap().device), ("replayed", "cpu"));
    assert!(planned.mean_step_seconds >= 0.01, "{}", planned.mean_step_seconds);
    let found = of(rapid(), replay(&[0.0; 99])).unwrap_err().to_string();
    assert!(found.contains("an epoch, found 99 steps"), "{found}");
}

/// Ordinary sampling learns as well from other batches, and only where nothing depends on the
/// seeds.
#[test]
fn ordinary_sampling_is_another_that_learns_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    let of = |sampling| {
        let ondemand = OndemandConfig { sampling, ..OndemandConfig::default() };
        let usual = config(Strategy::Ondemand(ondemand), 2, dir.path());
        run(&graph, &TrainConfig { epochs: 12, ..usual }).unwrap()
    };
    let (seeded, ordinary) = (of(Sampling::Seeded), of(Sampling::Ordinary));
    assert_ne!(losses(&seeded.step_losses), losses(&ordinary.step_losses));
    assert_eq!(seeded.epochs.len(), ordinary.epochs.len());
    // There are three classes, and dropout.
    let [seeded, ordinary] = [&seeded, &ordinary].map(|of| of.epochs.last().unwrap().accuracy);
    assert!(seeded > 0.6 && ordinary > 0.6, "{seeded}, {ordinary}");
    assert!((seeded - ordinary).abs() < 0.1, "{seeded}, {ordinary}");
}

#[test]
fn a_model_that_cannot_be_saved_ends_the_run_before_it_begins_or_is_reported_at_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(1);
    let ondemand = |path: &Path| TrainConfig {
        save_model: Some(path.to_owned()),
        ..config(ondemand(), 1, dir.path())
    };
    for nowhere in [dir.path().join("no/such/model"), dir.path().to_owned()] {
        let mut n_steps = 0;
        let rows = Arc::clone(&graph.rows) as Arc<dyn RowSource>;
        let found = run_telling(&graph, &ondemand(&nowhere), [&rows, &rows], &mut |_| {
            n_steps += 1;
            ControlFlow::Continue(())
        });
        assert!(matches!(found, Err(TrainError::SavedModel(_))), "{found:?}");
        assert_eq!(n_steps, 0);
    }
    // The place goes while the run is under way.
    let folder = dir.path().join("models");
    fs::create_dir(&folder).unwrap();
    let (path, rows) = (folder.join("model"), Arc::clone(&graph.rows) as Arc<dyn RowSource>);
    let found = run_telling(&graph, &ondemand(&path), [&rows, &rows], &mut |_| {
        let _ = fs::remove_dir(&folder);
        ControlFlow::Continue(())
    });
    let found = found.unwrap();
    assert!(found.save_error.is_some_and(|error| error.contains("cannot write it")));
    assert_eq!(found.epochs.len(), 3);
}
