//! Schedules of `rapid`: their files, and the batches that are loaded by them.

use super::*;

/// A path travels as text, which not every path is.
#[test]
fn a_schedule_may_have_any_name_in_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    let path = dir.path().join(OsStr::from_bytes(b"s\xff.schedule"));
    let config = scheduled(config(rapid(), 2, dir.path()), |schedule| schedule.path = path);
    run(&graph, &config).unwrap();
    for found in run_in_ranks(&graph, &config, 2) {
        let found = found.unwrap_err().to_string();
        assert!(found.contains("`schedule.path` must be UTF-8 with several processes"), "{found}");
    }
}

/// The fill of the oracle's tier, or of the first hot set, precedes the first step.
#[test]
fn the_first_epoch_waits_for_no_more_rows_than_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(4);
    let local = Arc::clone(&graph.rows) as Arc<dyn RowSource>;
    // Pulls up to the end of each step: before the evaluation at the end.
    let pulled_by = |config: &TrainConfig| {
        let ((remote, pulled), mut by_step) = (counting(&graph.rows), Vec::new());
        let report = run_telling(&graph, config, [&local, &remote], &mut |progress| {
            if matches!(progress, Progress::Step { .. }) {
                by_step.push(pulled.lock().unwrap().clone());
            }
            ControlFlow::Continue(())
        });
        (report.unwrap(), by_step)
    };
    let of =
        |strategy| TrainConfig { epochs: 4, evaluate_every: 0, ..config(strategy, 2, dir.path()) };
    let (expected, needed) = pulled_by(&of(ondemand()));
    let needed = needed.last().unwrap();
    assert!(needed.sync_rows + needed.vector_rows > 0);
    for keep in [Keep::Oracle, Keep::Hot] {
        let rapid = scheduled(of(rapid()), |schedule| {
            (schedule.n_hot, schedule.keep) = (N_NODES as usize, keep);
        });
        let (found, by_step) = pulled_by(&rapid);
        assert_eq!(losses(&found.step_losses), losses(&expected.step_losses));
        let first = &found.epochs[0];
        assert_eq!(first.remote_rows, first.hot_set_rows + first.filled_rows, "{keep:?}");
        assert_eq!(first.found_share(), 1.0, "{keep:?}");
        // The window of two, and the batch after it, do not reach into the second epoch yet, whose
        // set may be late.
        let within = &by_step[..first.steps as usize - 3];
        assert!(!within.is_empty());
        assert!(within.iter().all(|pulled| pulled.n_sync == 0), "{keep:?}");
        assert!(by_step[0].vector_rows >= first.hot_set_rows, "{keep:?}");
        if keep == Keep::Oracle {
            assert!(within.iter().all(|pulled| pulled.vector_rows == first.hot_set_rows));
            // Each row that is needed, once; by one worker, for each pulls the other's.
            let last = by_step.last().unwrap();
            assert_eq!(last.ids, needed.ids);
            assert_eq!(last.vector_rows + last.sync_rows, needed.ids.len() as u64);
        }
    }
}

/// Batches of a window that are loaded together are of one epoch: its first has no row of
/// another's.
#[test]
fn no_batch_is_loaded_together_with_one_of_the_epoch_before() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    let rows = Arc::clone(&graph.rows) as Arc<dyn RowSource>;
    let schedule =
        ScheduleConfig { keep: Keep::Hot, n_hot: 0, window: 8, together: Some(3), ..schedule() };
    let rapid = Strategy::Rapid(RapidConfig { schedule, ..RapidConfig::default() });
    for batch_size in [20, 32, 50] {
        let usual = config(rapid.clone(), 2, dir.path());
        let config = TrainConfig { batch_size, epochs: 6, evaluate_every: 0, ..usual };
        let mut joined = [0, 0];
        let report = run_telling(&graph, &config, [&rows, &rows], &mut |progress| {
            if let Progress::Step { workers, .. } = progress {
                for worker in *workers {
                    joined[usize::from(worker.step > 0)] += worker.rows.together;
                }
            }
            ControlFlow::Continue(())
        });
        let n_steps = report.unwrap().epochs[0].steps;
        assert_eq!(joined[0], 0, "{n_steps} steps of {batch_size} roots");
        assert!(joined[1] > 0, "none were loaded together");
    }
}

#[test]
fn a_schedule_that_is_not_of_this_run_is_never_lost() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(1);
    let replacing = config(rapid(), 1, dir.path());
    let rapid = scheduled(replacing.clone(), |schedule| schedule.replaces_other = false);
    let path = rapid.strategy.schedule().unwrap().path.clone();
    fs::write(&path, "labels of ten years").unwrap();
    for config in [&rapid, &replacing] {
        let error = run(&graph, config).unwrap_err();
        assert!(error.to_string().contains("the name is taken"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"labels of ten years");
    }
    fs::remove_file(&path).unwrap();
    assert!(!schedule_of(&run(&graph, &rapid).unwrap()).is_stored);
    assert!(schedule_of(&run(&graph, &rapid).unwrap()).is_stored);
    let first = fs::read(&path).unwrap();
    let error = run(&graph, &TrainConfig { seed: 8, ..rapid }).unwrap_err();
    assert!(matches!(error, TrainError::OtherSchedule { .. }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), first);
    run(&graph, &TrainConfig { seed: 8, ..replacing }).unwrap();
}

#[test]
fn a_schedule_larger_than_the_disk_is_not_begun() {
    let dir = tempfile::tempdir().unwrap();
    let rapid = TrainConfig { epochs: u32::MAX, ..config(rapid(), 1, dir.path()) };
    match run(&planted(1), &rapid).unwrap_err() {
        TrainError::ScheduleRoom { expected, found, epochs, .. } => {
            assert!(expected > found && epochs == u32::MAX, "{expected} of {found}");
        }
        error => panic!("{error}"),
    }
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
}
