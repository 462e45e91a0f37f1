//! Bounds of memory, and what is measured of it.

use super::*;

#[test]
fn a_memory_budget_shrinks_window_and_hot_sets() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    let frequency = |schedule: &mut ScheduleConfig| schedule.keep = Keep::Hot;
    let wide = scheduled(config(rapid(), 2, dir.path()), frequency);
    let expected = run(&graph, &wide).unwrap();
    let bound = schedule_of(&expected).memory_bound_bytes;
    // Two sets of 60 rows, of the window's 2 batches 4.
    let batch = (bound - 2 * 60 * ROW_BYTES) / 4;
    for budget in [bound - 1, 3 * batch + 7 * ROW_BYTES, 3 * batch - 1, batch] {
        let tight = scheduled(wide.clone(), |it| it.memory_budget_bytes = Some(budget));
        let found = run(&graph, &tight).unwrap();
        let [shrunk, whole] = [&found, &expected].map(schedule_of);
        assert!((shrunk.n_hot, shrunk.window) < (whole.n_hot, whole.window));
        assert!(shrunk.memory_bound_bytes <= budget);
        assert!(found.memory_measured_bytes <= budget);
        assert_eq!(losses(&found.step_losses), losses(&expected.step_losses));
        let oracle = scheduled(tight, |it| it.keep = Keep::Oracle);
        let oracle = run(&graph, &oracle).unwrap();
        assert!(oracle.memory_measured_bytes <= budget);
        assert_eq!(losses(&oracle.step_losses), losses(&expected.step_losses));
        no_more_than(&oracle, &found);
    }
    let least = scheduled(wide, |it| it.memory_budget_bytes = Some(batch - 1));
    match run(&graph, &least).unwrap_err() {
        TrainError::Memory { found, least, .. } => assert_eq!((found, least), (batch - 1, batch)),
        error => panic!("{error}"),
    }
}

/// Batches of one length never move, so that every place that rows were put into is memory to the
/// end.
#[test]
fn measured_memory_is_that_which_rows_were_put_into() {
    let dir = tempfile::tempdir().unwrap();
    let graph = complete(2);
    let n_nodes = u64::from(graph.book.n_nodes());
    for (n_hot, window, keep) in [
        (0, 0, Keep::Oracle),
        (0, 1, Keep::Hot),
        (0, 4, Keep::Oracle),
        (1000, 2, Keep::Hot),
        (1000, 2, Keep::Oracle),
    ] {
        let together = Some(1);
        let schedule = ScheduleConfig { keep, n_hot, window, together, ..schedule() };
        let rapid = Strategy::Rapid(RapidConfig { schedule, ..RapidConfig::default() });
        let rapid = TrainConfig {
            fanouts: vec![Fanout::All],
            batch_size: 4,
            evaluate_every: 0,
            ..config(rapid, 2, dir.path())
        };
        let noting = || Noting { rows: Arc::clone(&graph.rows), memory: Mutex::default() };
        let (local, other): (Arc<Noting>, Arc<Noting>) = (Arc::new(noting()), Arc::new(noting()));
        let remote = Arc::clone(&other) as Arc<dyn RowSource>;
        let found = run_from(&graph, &rapid, &(Arc::clone(&local) as _), &remote).unwrap();
        // Each worker owns half of the nodes; keeps all others twice, or once under the oracle.
        let kept = match (n_hot, keep) {
            (0, _) | (_, Keep::Nothing) => 0,
            (_, Keep::Hot) => n_nodes * ROW_BYTES,
            (_, Keep::Oracle) => n_nodes / 2 * ROW_BYTES,
        };
        // The evaluation, at the end, has memory of its own, larger than any batch's.
        let memory = local.memory.lock().unwrap();
        let of_batches: Vec<u64> = memory.values().map(|&n| n as u64).collect();
        let batch = n_nodes * ROW_BYTES;
        let n_found = of_batches.iter().filter(|&&n| n == batch).count() as u64;
        let measured = found.memory_measured_bytes.checked_sub(kept).expect("less than is kept");
        let what = format!("{keep:?}, {n_hot}, {window}: {of_batches:?}, {measured}");
        assert_eq!(measured % batch, 0, "{what}");
        // The bytes of the worker that had most, of two.
        assert!(measured >= batch && 2 * measured >= n_found * batch, "{what}");
        assert!(measured <= n_found * batch, "{what}");
        let all = found.memory_measured_bytes;
        let bound = schedule_of(&found).memory_bound_bytes;
        assert!(all <= bound, "{what}: {all} of {bound}");
        let n_batches = if window == 0 { 1 } else { window as u64 + 2 };
        let n_hot = if n_hot == 0 { 0 } else { n_nodes / 2 };
        let n_hot = if keep == Keep::Oracle { n_hot.div_ceil(2) } else { n_hot };
        assert_eq!(bound, 2 * n_hot * ROW_BYTES + n_batches * batch, "{what}");
    }
}

#[test]
fn memory_of_a_buffer_is_measured_and_a_source_without_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    let massive = config(massive(), 2, dir.path());
    let found = run(&graph, &massive).unwrap();
    assert_eq!(found.schedule, None, "batches are not known ahead");
    // Scores of 24 bytes a node alone, and a batch.
    let least = u64::from(N_NODES) * 24 + ROW_BYTES * 32;
    assert!(found.memory_measured_bytes > least, "{}", found.memory_measured_bytes);
    let hits: u64 = found.epochs.iter().map(|epoch| epoch.hit_rows).sum();
    assert!(hits > 0);
    let plain = Arc::clone(&graph.rows) as Arc<dyn RowSource>;
    let sources = vec![WorkerSources::new(Arc::clone(&plain), plain); 2];
    let (topology, book) = (&graph.topology, &graph.book);
    let on = TrainGraph { topology, book, uuid: [3; 16], rows_from: RowsFrom::Embedded };
    let error = train(&massive, &on, &sources, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, TrainError::NoBuffer { worker: 0 }), "{error}");
}
