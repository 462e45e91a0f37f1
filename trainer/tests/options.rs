//! Options of layers and of updates, under all strategies.

use std::{ops::ControlFlow, path::Path, sync::Arc};

use crate::planted::{
    Planted, config, global, hop, massive, ondemand, planted, rapid, run, run_in_ranks, run_telling,
};
use lodestore_client::RowSource;
use lodestore_graph::sampler::Fanout;
use lodestore_trainer::config::{CheckpointConfig, HopConfig, Migration};
use lodestore_trainer::infer::evaluate_saved;
use lodestore_trainer::options::{
    LayerOptions, Norm, Optimizer, RateSchedule, UpdateOptions, WarmUp,
};
use lodestore_trainer::report::RowsFrom;
use lodestore_trainer::{
    ModelKind, Progress, Strategy, TrainConfig, TrainGraph, TrainReport, WorkerSources,
};

/// A model, options of its layers, and options of updates.
type Choice = (ModelKind, LayerOptions, UpdateOptions);

type Change = fn(&mut TrainConfig);

/// Returns each option in some run, and all of them together.
fn choices() -> [Choice; 5] {
    let layer = LayerOptions::default();
    let update = UpdateOptions::default();
    let (cosine, adamw) = (RateSchedule::Cosine, Optimizer::AdamW);
    let warm = UpdateOptions { warm_up: WarmUp::Steps(3), clip_norm: Some(0.5), ..update };
    let falling = UpdateOptions { schedule: cosine, optimizer: adamw, ..update };
    let all = UpdateOptions { warm_up: WarmUp::Epochs(1), clip_norm: Some(0.5), ..falling };
    [
        (ModelKind::Sage, LayerOptions { norm: Norm::Layer, residual: true }, all),
        (ModelKind::Sage, LayerOptions { norm: Norm::Layer, ..layer }, falling),
        (ModelKind::Sage, LayerOptions { residual: true, ..layer }, warm),
        (ModelKind::Gcn, LayerOptions { norm: Norm::Layer, residual: true }, update),
        (ModelKind::Gat, layer, all),
    ]
}

fn settings(choice: Choice, strategy: Strategy, workers: u32, dir: &Path) -> TrainConfig {
    let (model, layer, update) = choice;
    let fanouts = [3, 4, 2].map(|n| Fanout::at_most(n).unwrap()).to_vec();
    TrainConfig { model, layer, update, fanouts, ..config(strategy, workers, dir) }
}

/// Returns all that was computed, bit for bit.
fn computed(report: &TrainReport) -> (Vec<u64>, Vec<u64>, [String; 2], Option<f64>) {
    let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<u64>>();
    let of_epochs: Vec<f64> = report.epochs.iter().map(|epoch| epoch.loss).collect();
    let digests = [report.parameters_digest.clone(), report.best_parameters_digest.clone()];
    (bits(&report.step_losses), bits(&of_epochs), digests, report.test_accuracy)
}

fn of_leader(graph: &Planted, config: &TrainConfig, n_ranks: u32) -> TrainReport {
    run_in_ranks(graph, config, n_ranks).swap_remove(0).unwrap().unwrap()
}

/// Nothing of such a model is made.
#[test]
fn a_model_that_is_too_large_is_refused_before_it_takes_memory() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    let message = |change: Change| {
        let mut config = config(ondemand(), 2, dir.path());
        change(&mut config);
        run(&graph, &config).unwrap_err().to_string()
    };
    let with_heads = |c: &mut TrainConfig| (c.model, c.n_output_heads) = (ModelKind::Gat, 1 << 30);
    let changes: [Change; 4] = [
        |c| c.hidden = 100_000_000_000,
        |c| c.hidden = 1 << 62,
        |c| c.hidden = usize::MAX,
        with_heads,
    ];
    for change in changes {
        let found = message(change);
        assert!(
            found.contains("setting `model` must be of at most 1000000000 parameters"),
            "{found}"
        );
    }
    let deep = message(|c| c.fanouts = vec![Fanout::All; 65]);
    assert_eq!(deep, "setting `fanouts` must be at most 64 layers, found 65");
}

#[test]
fn threads_processes_and_strategies_give_the_same_bits_under_any_options() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(4);
    for (number, choice) in choices().into_iter().enumerate() {
        let of = |strategy| settings(choice, strategy, 4, dir.path());
        let expected = run(&graph, &of(ondemand())).unwrap();
        for strategy in [rapid(), massive()] {
            let found = run(&graph, &of(strategy)).unwrap();
            assert_eq!(computed(&found), computed(&expected), "{number}: {}", found.strategy);
        }
        let at_home = run(&graph, &of(hop())).unwrap();
        assert_ne!(computed(&at_home).0, computed(&expected).0, "{number}");
        let migrating = HopConfig { migration: Migration::Paper, ..HopConfig::default() };
        let migrating = of(Strategy::Hop(migrating));
        let moved = run(&graph, &migrating).unwrap();
        let runs = [(of(ondemand()), expected), (of(hop()), at_home), (migrating, moved)];
        for (config, expected) in runs {
            for n_ranks in [2, 3] {
                let found = of_leader(&graph, &config, n_ranks);
                let what = format!("{number}: {:?} {n_ranks}", config.strategy);
                assert_eq!(computed(&found), computed(&expected), "{what}");
            }
        }
    }
}

#[test]
fn runs_that_continue_have_the_bits_of_those_that_did_not_end() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(4);
    for (number, choice) in choices().into_iter().enumerate() {
        let plain = settings(choice, ondemand(), 4, dir.path());
        let expected = run(&graph, &plain).unwrap();
        for n_ranks in [1, 3] {
            let folder = dir.path().join(format!("{number}-{n_ranks}"));
            let checkpoint = CheckpointConfig { dir: folder, every_steps: 1, resume: true };
            let config = TrainConfig { checkpoint: Some(checkpoint), ..plain.clone() };
            let rows = Arc::clone(&graph.rows) as Arc<dyn RowSource>;
            let first = run_telling(&graph, &config, [&rows, &rows], &mut |progress| {
                let is_last = matches!(progress, Progress::Step { epoch: 1, done: 2, .. });
                if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert!(first.unwrap().interrupted);
            let found = of_leader(&graph, &config, n_ranks);
            assert!(found.resumed_at.is_some());
            assert_eq!(computed(&found), computed(&expected), "{number}: {n_ranks} ranks");
        }
    }
}

#[test]
fn every_option_changes_the_run_and_is_refused_by_name_when_a_run_continues() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    let usual = (ModelKind::Sage, LayerOptions::default(), UpdateOptions::default());
    let plain = settings(usual, ondemand(), 2, dir.path());
    let expected = run(&graph, &plain).unwrap();
    let checkpoint = CheckpointConfig { dir: dir.path().join("c"), every_steps: 0, resume: true };
    let config = TrainConfig { checkpoint: Some(checkpoint), ..plain.clone() };
    run(&graph, &config).unwrap();
    let changes: [(Change, &str); 6] = [
        (|c| c.layer.norm = Norm::Layer, "norm = None, this one has norm = Layer"),
        (|c| c.layer.residual = true, "residual = false"),
        (|c| c.update.optimizer = Optimizer::AdamW, "this one has optimizer = AdamW"),
        (|c| c.update.schedule = RateSchedule::Cosine, "epochs_of_schedule = Some(3)"),
        (|c| c.update.warm_up = WarmUp::Steps(4), "warm_up = Steps(0)"),
        (|c| c.update.clip_norm = Some(0.25), "this one has clip_norm = Some(0.25)"),
    ];
    for (change, text) in changes {
        let mut other = config.clone();
        change(&mut other);
        let error = run(&graph, &other).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
        let fresh = TrainConfig { checkpoint: None, ..other };
        let found = run(&graph, &fresh).unwrap();
        assert_ne!(computed(&found).2, computed(&expected).2, "{text}");
    }
    // The rates of a cosine depend on its end.
    let dir = dir.path().join("cosine");
    let checkpoint = Some(CheckpointConfig { dir, every_steps: 0, resume: true });
    let update = UpdateOptions { schedule: RateSchedule::Cosine, ..plain.update };
    let cosine = TrainConfig { update, checkpoint, ..plain };
    run(&graph, &cosine).unwrap();
    let error = run(&graph, &TrainConfig { epochs: 4, ..cosine }).unwrap_err().to_string();
    assert!(error.contains("epochs_of_schedule = Some(4)"), "{error}");
}

/// Two workers with half of each global batch compute what one does with all of it.
#[test]
fn the_gradient_that_is_clipped_is_that_of_all_workers() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    let losses = |workers, batch_size, clip_norm| {
        let update = UpdateOptions { clip_norm, ..UpdateOptions::default() };
        let config = config(global(ondemand()), workers, dir.path());
        let config = TrainConfig { batch_size, update, evaluate_every: 0, ..config };
        run(&graph, &config).unwrap().step_losses
    };
    let plain = losses(1, 64, None);
    for limit in [0.3, 0.05] {
        let (one, two) = (losses(1, 64, Some(limit)), losses(2, 32, Some(limit)));
        assert_eq!(one.len(), two.len());
        assert_ne!(one, plain);
        for (step, (one, two)) in one.iter().zip(two).enumerate() {
            assert!((one - two).abs() < 1e-5 * one, "{limit}, step {step}: {one} {two}");
        }
    }
}

/// Returns the accuracy of the model in `path`, as a reader of the file measures it.
fn accuracy(graph: &Planted, path: &Path) -> Option<f64> {
    let rows = Arc::clone(&graph.rows) as Arc<dyn RowSource>;
    let sources = WorkerSources::new(Arc::clone(&rows), rows);
    let (topology, book) = (&graph.topology, &graph.book);
    let on = TrainGraph { topology, book, uuid: [3; 16], rows_from: RowsFrom::Embedded };
    evaluate_saved(path, &on, &sources).unwrap().test_accuracy
}

#[test]
fn models_of_any_options_learn_and_their_files_measure_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (graph, path) = (planted(2), dir.path().join("model"));
    for (number, choice) in choices().into_iter().enumerate() {
        let config = settings(choice, ondemand(), 2, dir.path());
        let config = TrainConfig { epochs: 30, save_model: Some(path.clone()), ..config };
        let report = run(&graph, &config).unwrap();
        let found = report.test_accuracy.unwrap();
        assert!(found > 0.75, "{number}: {found}");
        assert_eq!(accuracy(&graph, &path), Some(found), "{number}");
    }
}

#[test]
fn ten_layers_train_and_their_files_measure_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (graph, path) = (planted(2), dir.path().join("model"));
    let layer = LayerOptions { norm: Norm::Layer, residual: true };
    let fanouts = vec![Fanout::at_most(2).unwrap(); 10];
    let config = TrainConfig {
        layer,
        fanouts,
        epochs: 12,
        dropout: 0.0,
        save_model: Some(path.clone()),
        ..config(ondemand(), 2, dir.path())
    };
    let report = run(&graph, &config).unwrap();
    let (first, last) = (report.epochs[0].loss, report.epochs[11].loss);
    assert!(last < 0.9 * first, "{first} {last}");
    assert_eq!(accuracy(&graph, &path), report.test_accuracy);
    assert!(report.test_accuracy.is_some());
}
