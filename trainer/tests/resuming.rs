//! Runs that end early and continue from their checkpoints.

use std::{ops::ControlFlow, path::Path, sync::Arc};

use crate::planted::{
    Pinned, Planted, config, failing, global, hop, massive, ondemand, planted, rapid, run,
    run_from, run_in_ranks, run_telling, schedule, scheduled,
};
use lodestore_client::RowSource;
use lodestore_client::keep::Keep;
use lodestore_client::source::VersionTag;
use lodestore_trainer::checkpoint::{CheckpointError, Place};
use lodestore_trainer::config::{CheckpointConfig, HopConfig, Merge, Migration, ScheduleConfig};
use lodestore_trainer::report::EpochReport;
use lodestore_trainer::{ModelKind, Progress, Strategy, TrainConfig, TrainError, TrainReport};

fn with_checkpoints(config: &TrainConfig, dir: &Path, every_steps: u32) -> TrainConfig {
    let (dir, resume) = (dir.to_owned(), true);
    let checkpoint = Some(CheckpointConfig { dir, every_steps, resume });
    TrainConfig { checkpoint, ..config.clone() }
}

/// Runs until rows fail after a number of pulls; then again from the checkpoint, with more pulls
/// each time, until a run ends. Returns its report, and how many were cut short.
fn in_pieces(graph: &Planted, config: &TrainConfig) -> (TrainReport, u64) {
    for n_cut in 0..100 {
        let rows = failing(&graph.rows, 5 + 2 * n_cut);
        match run_from(graph, config, &rows, &rows) {
            Ok(report) => return (report, n_cut),
            Err(error) => assert!(matches!(error, TrainError::Client(_)), "{error}"),
        }
    }
    panic!("no run ended");
}

/// A checkpoint names the version of its rows; a run over another one does not continue it.
#[test]
fn a_run_continues_on_the_version_of_its_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    let config = config(rapid(), 2, dir.path());
    let checkpointed = with_checkpoints(&config, &dir.path().join("c"), 0);
    let train = |config: &TrainConfig, number, commit| {
        let version = Some(VersionTag { number, tag: commit });
        let rows: Arc<dyn RowSource> = Arc::new(Pinned { rows: Arc::clone(&graph.rows), version });
        run_from(&graph, config, &rows, &rows)
    };
    let whole = train(&config, 4, 9).unwrap();
    train(&TrainConfig { epochs: 1, ..checkpointed.clone() }, 4, 9).unwrap();
    for (number, commit) in [(5, 9), (4, 8)] {
        let error = train(&checkpointed, number, commit).unwrap_err().to_string();
        assert!(error.contains("made with rows of version 4 (commit 0000000000000009)"), "{error}");
        assert!(error.contains(&format!("reads version {number} (commit")), "{error}");
    }
    let resumed = train(&TrainConfig { epochs: 2, ..checkpointed.clone() }, 4, 9).unwrap();
    assert_eq!(resumed.resumed_at, Some(Place { epoch: 1, step: 0 }));
    let mixing = TrainConfig { mixed_versions: true, ..checkpointed };
    let mixed = train(&mixing, 5, 9).unwrap();
    assert_eq!(mixed.resumed_at, Some(Place { epoch: 2, step: 0 }));
    assert_eq!(mixed.parameters_digest, whole.parameters_digest, "the rows are the same here");
}

/// All that was computed, bit for bit.
#[derive(Debug, PartialEq)]
struct Computed {
    step_losses: Vec<u64>,
    losses_and_rates: Vec<[u64; 2]>,
    digests: [String; 2],
    best: (u32, Option<f64>),
}

fn computed(report: &TrainReport) -> Computed {
    let of_epoch = |e: &EpochReport| [e.loss.to_bits(), e.accuracy.to_bits()];
    Computed {
        step_losses: report.step_losses.iter().map(|loss| loss.to_bits()).collect(),
        losses_and_rates: report.epochs.iter().map(of_epoch).collect(),
        digests: [report.parameters_digest.clone(), report.best_parameters_digest.clone()],
        best: (report.best_epoch, report.test_accuracy),
    }
}

#[test]
fn runs_cut_short_anywhere_end_with_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(4);
    for (workers, model) in [(1, ModelKind::Sage), (4, ModelKind::Gat)] {
        let plain = |strategy| {
            let plain = config(strategy, workers, dir.path());
            TrainConfig { model, patience: 2, ..plain }
        };
        let expected = run(&graph, &plain(ondemand())).unwrap();
        let frequency = |schedule: &mut ScheduleConfig| schedule.keep = Keep::Hot;
        for (name, plain) in [
            ("ondemand", plain(ondemand())),
            ("frequency", scheduled(plain(rapid()), frequency)),
            ("oracle", plain(rapid())),
            ("massive", plain(massive())),
        ] {
            let of_run = dir.path().join(format!("of-{name}-{workers}"));
            let config = with_checkpoints(&plain, &of_run, 1);
            let (found, n_cut) = in_pieces(&graph, &config);
            let what = format!("{name}, {workers} workers, {n_cut} times cut short");
            assert!(n_cut >= 3 && found.resumed_at.is_some(), "{what}");
            assert_eq!(computed(&found), computed(&expected), "{what}");
            // The finished run has nothing left to do.
            let again = run(&graph, &config).unwrap();
            assert_eq!(computed(&again), computed(&expected), "{what}");
            assert_eq!((again.checkpoints, again.epochs), (0, found.epochs), "{what}");
        }
    }
}

/// Other ranks have no checkpoint: they continue with the parameters and moments of the leader.
#[test]
fn a_run_continues_in_any_number_of_processes_with_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(4);
    let paper = || HopConfig { migration: Migration::Paper, ..HopConfig::default() };
    for (strategy, moves_models) in [
        (ondemand(), false),
        (global(ondemand()), false),
        (global(massive()), false),
        (rapid(), false),
        (global(rapid()), false),
        (hop(), false),
        (Strategy::Hop(HopConfig { schedule: Some(schedule()), ..HopConfig::default() }), false),
        (Strategy::Hop(paper()), true),
        (Strategy::Hop(HopConfig { pregather: false, ..paper() }), true),
    ] {
        let plain = config(strategy.clone(), 4, dir.path());
        let expected = run(&graph, &plain).unwrap();
        let leader = |n_ranks, config: &TrainConfig| -> TrainReport {
            let mut reports = run_in_ranks(&graph, config, n_ranks).into_iter();
            let leader = reports.next().unwrap().unwrap().unwrap();
            assert!(reports.all(|report| report.unwrap().is_none()));
            leader
        };
        for n_ranks in [2, 3, 4] {
            let what = format!("{strategy:?}, {n_ranks} ranks");
            assert_eq!(computed(&leader(n_ranks, &plain)), computed(&expected), "{what}");
            let of_run = tempfile::tempdir().unwrap();
            let config = with_checkpoints(&plain, of_run.path(), 1);
            until(&graph, &config, 1, 2);
            let found = leader(n_ranks, &config);
            let (sent, n_others) = (found.sent_bytes, u64::from(n_ranks) - 1);
            // Parts of four gradients and of their sum; the leader's state to each other process.
            let steps = expected.step_losses.len() as u64 - u64::from(expected.epochs[0].steps) - 2;
            let of_models = if moves_models { moved(&found, 4, n_ranks) } else { 0 };
            assert_eq!(of_models > 0, moves_models, "{what}");
            let of_state = (sent.parameters - of_models) / n_others / 12;
            let sent_gradients = sent.gradients - of_models;
            assert!(sent_gradients >= 4 * of_state * steps && of_state > 0, "{what}: {sent:?}");
            assert!(sent_gradients <= 2 * 4 * 5 * of_state * steps, "{what}: {sent:?}");
            assert_eq!(sent.rows, 0, "{what}");
            // Rows of layers are those of evaluations, which are split.
            assert!(sent.embeddings > 0 && sent.control > 0, "{what}");
            assert_eq!(found.resumed_at, Some(Place { epoch: 1, step: 2 }), "{what}");
            assert_eq!(computed(&found), computed(&expected), "{what}");
            // Nothing is left to do, in any form.
            assert_eq!(computed(&leader(n_ranks, &config)), computed(&expected), "{what}");
        }
    }
}

#[test]
fn a_run_continues_under_another_strategy_and_for_more_epochs() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    let plain = |strategy, epochs| {
        let plain = config(strategy, 2, dir.path());
        TrainConfig { epochs, ..plain }
    };
    let expected = run(&graph, &plain(ondemand(), 6)).unwrap();
    let of_run = dir.path().join("of-run");
    for (strategy, epochs) in [(rapid(), 1), (massive(), 3), (ondemand(), 4), (rapid(), 6)] {
        let config = with_checkpoints(&plain(strategy, epochs), &of_run, 0);
        let found = run(&graph, &config).unwrap();
        assert_eq!(found.epochs.len(), epochs as usize);
        let n_steps = found.step_losses.len();
        assert_eq!(found.step_losses, expected.step_losses[..n_steps]);
        if epochs == 6 {
            assert_eq!(computed(&found), computed(&expected));
        }
    }
    let config = with_checkpoints(&plain(ondemand(), 5), &of_run, 0);
    let error = run(&graph, &config).unwrap_err().to_string();
    assert!(error.contains("in epoch 7 of a run of 5; ask for more epochs"), "{error}");
}

/// The leader's times decide how many time steps are merged, for all processes. A run that was
/// ended continues with the number that its epochs have come to.
#[test]
fn merging_is_the_leaders_decision_in_any_number_of_processes() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(4);
    let (migration, merge) = (Migration::Paper, Merge::Min);
    let hop = HopConfig { migration, merge, ..HopConfig::default() };
    let plain = TrainConfig { epochs: 6, ..config(Strategy::Hop(hop), 4, dir.path()) };
    for n_ranks in [2, 3] {
        let of_run = tempfile::tempdir().unwrap();
        let config = with_checkpoints(&plain, of_run.path(), 1);
        until(&graph, &config, 1, 1);
        let mut reports = run_in_ranks(&graph, &config, n_ranks).into_iter();
        let report = reports.next().unwrap().unwrap().unwrap();
        assert!(reports.all(|report| report.unwrap().is_none()));
        let merged = report
            .epochs
            .iter()
            .map(|epoch| 4 - (epoch.time_steps.unwrap() / u64::from(epoch.timed_steps)) as u32);
        let merged: Vec<u32> = merged.collect();
        // The second epoch was resumed, and says nothing of time: the third repeats it.
        assert_eq!(merged[..3], [0, 1, 1], "{merged:?}");
        assert!(merged[3..].iter().all(|&n| n <= 3), "{merged:?}");
        assert!(report.step_losses.iter().all(|loss| loss.is_finite()));
    }
}

/// An epoch after a restart has caches and connections that are new: its time is not compared, and
/// the next one repeats its merges. The results are those of a run that was not ended.
#[test]
fn a_resumed_run_makes_the_same_merges() {
    let graph = planted(4);
    for merge in [Merge::Min, Merge::Random] {
        let dir = tempfile::tempdir().unwrap();
        let hop = HopConfig { migration: Migration::Paper, merge, ..HopConfig::default() };
        let plain = TrainConfig { epochs: 2, ..config(Strategy::Hop(hop), 4, dir.path()) };
        let whole = run(&graph, &plain).unwrap();
        let bits = |report: &TrainReport, n: usize| -> Vec<u64> {
            report.step_losses[..n].iter().map(|loss| loss.to_bits()).collect()
        };
        let (n_losses, n_steps) = (whole.step_losses.len(), whole.epochs[0].steps);
        // At the end of the first epoch, within the second, and at its end.
        for (epoch, step) in [(0, n_steps), (1, 1), (1, n_steps)] {
            let of_run = tempfile::tempdir().unwrap();
            let config = TrainConfig { epochs: 3, ..plain.clone() };
            let config = with_checkpoints(&config, of_run.path(), 0);
            if (epoch, step) == (0, n_steps) {
                let first = run(&graph, &TrainConfig { epochs: 1, ..config.clone() }).unwrap();
                assert!(!first.epochs[0].resumed);
            } else {
                assert!(until(&graph, &config, epoch, step).interrupted);
            }
            let found = run(&graph, &config).unwrap();
            let what = format!("{merge}, ended in epoch {epoch} after step {step}");
            assert_eq!(bits(&found, n_losses), bits(&whole, n_losses), "{what}");
            let resumed: Vec<bool> = found.epochs.iter().map(|epoch| epoch.resumed).collect();
            assert_eq!(resumed, [false, true, false], "{what}");
            let n_time_steps =
                |at: usize| found.epochs[at].time_steps.map(|n| n / u64::from(n_steps));
            assert_eq!((n_time_steps(0), n_time_steps(2)), (Some(4), Some(3)), "{what}");
        }
    }
}

/// Returns the bytes of parameters, and as many of gradients, with which models moved between
/// processes. This is half of what moved between workers, but for those that are in one process.
fn moved(report: &TrainReport, workers: u64, n_ranks: u32) -> u64 {
    let stays = (0..workers).filter(|from| {
        let to = (from + 1) % workers;
        from % u64::from(n_ranks) == to % u64::from(n_ranks)
    });
    let travel = workers - stays.count() as u64;
    let bytes = report.epochs.iter().filter_map(|epoch| epoch.model_bytes).sum::<u64>();
    let resumed = report.resumed_at.map_or(0, |place| place.epoch as usize);
    let before = report.epochs[..resumed].iter().filter_map(|epoch| epoch.model_bytes).sum::<u64>();
    (bytes - before) / 2 * travel / workers
}

/// Runs until `steps` steps have been made in `epoch`, or to its end.
fn until(graph: &Planted, config: &TrainConfig, epoch: u32, steps: u32) -> TrainReport {
    let rows = Arc::clone(&graph.rows) as Arc<dyn RowSource>;
    let found = run_telling(graph, config, [&rows, &rows], &mut |progress| match progress {
        Progress::Step { epoch: now, done, .. } if (*now, *done) == (epoch, steps) => {
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    });
    found.unwrap()
}

#[test]
fn a_listener_ends_the_run_at_its_step_and_epochs_tell_what_was_timed() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    for strategy in [ondemand(), rapid(), massive()] {
        let of_run = dir.path().join(format!("of-{strategy}"));
        let plain = config(strategy, 2, dir.path());
        let expected = run(&graph, &plain).unwrap();
        let n_steps = expected.epochs[0].steps;
        let config = with_checkpoints(&plain, &of_run, 1);
        let first = until(&graph, &config, 0, 2);
        assert!(first.interrupted && first.epochs.is_empty() && first.step_losses.len() == 2);
        // The second process ends when only the evaluation of the second epoch is missing.
        let second = until(&graph, &config, 1, n_steps);
        assert!(second.interrupted && second.epochs.len() == 1);
        let found = run(&graph, &config).unwrap();
        assert!(!found.interrupted);
        assert_eq!(computed(&found), computed(&expected));
        let timed: Vec<u32> = found.epochs.iter().map(|epoch| epoch.timed_steps).collect();
        assert_eq!(timed, [n_steps - 2, 0, n_steps]);
        assert_eq!(found.epochs[1].mean_step_seconds, 0.0);
        let seconds = found.epochs[0].seconds + found.epochs[2].seconds;
        let mean = seconds / f64::from(2 * n_steps - 2);
        assert!((found.mean_step_seconds / mean - 1.0).abs() < 1e-9);
    }
}

/// A run that is killed while its listener takes a step makes that step again.
#[test]
fn a_step_is_in_a_checkpoint_only_after_its_listener_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    let rows = Arc::clone(&graph.rows) as Arc<dyn RowSource>;
    let plain = config(ondemand(), 2, dir.path());
    let (of_run, killed) = (dir.path().join("of-run"), dir.path().join("killed"));
    std::fs::create_dir(&killed).unwrap();
    let config = with_checkpoints(&plain, &of_run, 1);
    // A kill leaves the checkpoint from before the third step's line is written.
    run_telling(&graph, &config, [&rows, &rows], &mut |progress| {
        if let Progress::Step { epoch: 0, done: 3, .. } = progress {
            std::fs::copy(of_run.join("checkpoint"), killed.join("checkpoint")).unwrap();
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    let mut first = None;
    let config = with_checkpoints(&plain, &killed, 1);
    run_telling(&graph, &config, [&rows, &rows], &mut |progress| {
        if let Progress::Step { epoch, done, .. } = progress {
            first.get_or_insert((*epoch, *done));
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(first, Some((0, 3)));
}

#[test]
fn a_run_that_its_listener_ends_continues_from_that_very_step() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    let plain = config(rapid(), 2, dir.path());
    let expected = run(&graph, &plain).unwrap();
    let n_steps = expected.epochs[0].steps;
    // Without a checkpoint within epochs.
    let config = with_checkpoints(&plain, &dir.path().join("of-run"), 0);
    // With those of the epochs that it ends on its way.
    for (epoch, step, checkpoints) in [(0, 3, 1), (1, n_steps, 2), (2, 1, 2), (2, 2, 1)] {
        let found = until(&graph, &config, epoch, step);
        assert_eq!((found.interrupted, found.checkpoints), (true, checkpoints), "{epoch} {step}");
        assert_eq!(found.step_losses.len() as u32, epoch * n_steps + step);
    }
    let found = run(&graph, &config).unwrap();
    assert_eq!(found.resumed_at, Some(Place { epoch: 2, step: 2 }));
    assert_eq!(computed(&found), computed(&expected));
}

#[test]
fn fewer_epochs_and_spent_patience_end_no_run_within_an_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    let of_run = dir.path().join("of-run");
    // It learns nothing, so that no epoch is better than the first.
    let plain = config(ondemand(), 2, dir.path());
    let plain = TrainConfig { learning_rate: 1e-12, dropout: 0.0, ..plain };
    let config = with_checkpoints(&plain, &of_run, 1);
    until(&graph, &config, 2, 1);
    let with = |epochs, patience| run(&graph, &TrainConfig { epochs, patience, ..config.clone() });
    let error = with(2, 0).unwrap_err().to_string();
    assert!(error.contains("in epoch 3 of a run of 2; ask for more epochs"), "{error}");
    let found = with(3, 1).unwrap();
    assert_eq!((found.epochs.len(), found.stopped_early), (3, true));
    let expected = run(&graph, &plain).unwrap();
    assert_eq!(found.parameters_digest, expected.parameters_digest);
}

#[test]
fn an_evaluation_that_only_the_end_asked_for_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    for evaluate_every in [0, 2] {
        let plain = |epochs| {
            let plain = config(ondemand(), 2, dir.path());
            TrainConfig { epochs, evaluate_every, ..plain }
        };
        let of_run = dir.path().join(format!("of-run-{evaluate_every}"));
        for epochs in [1, 3, 3, 5] {
            let found = run(&graph, &with_checkpoints(&plain(epochs), &of_run, 0)).unwrap();
            let expected = run(&graph, &plain(epochs)).unwrap();
            assert_eq!(computed(&found), computed(&expected), "{evaluate_every}, {epochs}");
            let rates = |of: &TrainReport| -> Vec<Option<f64>> {
                of.epochs.iter().map(|epoch| epoch.validation_accuracy).collect()
            };
            assert_eq!(rates(&found), rates(&expected), "{evaluate_every}, {epochs}");
        }
    }
}

#[test]
fn other_settings_and_a_forgotten_resume_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    let of_run = dir.path().join("of-run");
    let config = with_checkpoints(&config(ondemand(), 2, dir.path()), &of_run, 0);
    run(&graph, &config).unwrap();
    let error = |change: fn(&mut TrainConfig)| {
        let mut config = TrainConfig { epochs: 9, ..config.clone() };
        change(&mut config);
        run(&graph, &config).unwrap_err()
    };
    let differs = |change| {
        let error = error(change);
        assert!(matches!(error, TrainError::Checkpoint(CheckpointError::File { .. })), "{error}");
        error.to_string()
    };
    assert!(differs(|c| c.seed = 8).contains("seed = 7, this one has seed = 8"));
    assert!(differs(|c| c.model = ModelKind::Gcn).contains("model = Sage"));
    assert!(differs(|c| c.strategy = hop()).contains("mode = MiniBatch"));
    assert!(differs(|c| c.strategy = global(ondemand())).contains("roots = Owned"));
    assert!(differs(|c| c.workers = 1).contains("workers = 2"));
    assert!(differs(|c| c.learning_rate = 0.02).contains("learning_rate = 0.01"));
    assert!(differs(|c| c.fanouts.truncate(1)).contains("fanouts"));
    let forgotten = error(|c| c.checkpoint.as_mut().unwrap().resume = false);
    assert!(matches!(forgotten, TrainError::Checkpoint(CheckpointError::Exists { .. })));
}
