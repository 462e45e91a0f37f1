//! Progress of a run's steps.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use crate::planted::{
    FILLED, N_NODES, Planted, ROW_BYTES, config, massive, ondemand, planted, rapid, run_telling,
    scheduled, slow,
};
use lodestore_cache::shared::SharedSettings;
use lodestore_cache::{PolicyKind, PolicySpec, SharedTier};
use lodestore_client::keep::Keep;
use lodestore_client::{RowSource, TieredSource};
use lodestore_trainer::bottleneck::{Bottleneck, Preparation};
use lodestore_trainer::step::WorkerStep;
use lodestore_trainer::{Progress, TrainConfig, TrainReport};

/// Returns the report, and every worker's steps.
fn observed(
    graph: &Planted,
    config: &TrainConfig,
    remote: &Arc<dyn RowSource>,
) -> (TrainReport, Vec<WorkerStep>) {
    let mut steps = Vec::new();
    let local = Arc::clone(&graph.rows) as Arc<dyn RowSource>;
    let report = run_telling(graph, config, [&local, remote], &mut |progress| {
        if let Progress::Step { epoch, done, workers, .. } = progress {
            assert!(workers.iter().all(|w| (w.epoch, w.step + 1) == (*epoch, *done)));
            steps.extend_from_slice(workers);
        }
        ControlFlow::Continue(())
    });
    (report.unwrap(), steps)
}

#[test]
fn every_row_of_every_step_has_a_source_and_all_times_fit_into_the_step() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(4);
    let plain = Arc::clone(&graph.rows) as Arc<dyn RowSource>;
    for strategy in [ondemand(), rapid(), massive()] {
        let (report, steps) = observed(&graph, &config(strategy, 2, dir.path()), &plain);
        let batches: u64 = report.epochs.iter().map(|epoch| epoch.batches).sum();
        assert_eq!(steps.len() as u64, batches);
        for step in &steps {
            let (rows, seconds) = (step.rows, step.seconds);
            let found = rows.hot_set + rows.buffer + rows.device_tier + rows.host_tier;
            assert_eq!(rows.local + found + rows.remote, step.nodes);
            assert_eq!(step.bytes.local, rows.local * ROW_BYTES);
            let parts = seconds.wait + seconds.compute + seconds.update;
            assert!(parts <= seconds.step + 1e-6, "{seconds:?}");
            if step.batch == "default" {
                let preparation =
                    seconds.sample + seconds.lookup + seconds.pull + seconds.read + seconds.copy;
                assert!(preparation <= seconds.wait + 1e-6, "{seconds:?}");
            }
        }
        let sum = |of: fn(&WorkerStep) -> u64| steps.iter().map(of).sum::<u64>();
        let of_epochs = |of: fn(&lodestore_trainer::report::EpochReport) -> u64| {
            report.epochs.iter().map(of).sum::<u64>()
        };
        assert_eq!(sum(|s| s.rows.local), of_epochs(|e| e.local_rows));
        assert_eq!(sum(|s| s.bytes.local), of_epochs(|e| e.local_bytes));
        assert!(sum(|s| s.bytes.local) > 0 && report.disk_bytes.is_some());
        assert_eq!(sum(|s| s.rows.hot_set + s.rows.buffer), of_epochs(|e| e.hit_rows));
        assert_eq!(sum(|s| s.rows.buffer) > 0, report.strategy == massive());
        let pulled = of_epochs(|e| e.remote_rows - e.hot_set_rows - e.filled_rows);
        let filled: Vec<u64> = report.epochs.iter().map(|epoch| epoch.filled_rows).collect();
        assert_eq!(filled, [2 * FILLED.rows, 0, 0]);
        let bytes = of_epochs(|e| e.remote_bytes);
        assert_eq!(bytes, of_epochs(|e| e.remote_rows) * ROW_BYTES);
        assert_eq!(sum(|s| s.rows.remote + s.rows.ahead), pulled);
        assert_eq!(sum(|s| s.bytes.remote + s.bytes.ahead), pulled * ROW_BYTES);
        let ready = steps.iter().filter(|s| s.batch == "ready").count() as u64;
        assert_eq!(ready, of_epochs(|e| e.ready_batches));
        let shares = report.step.unwrap();
        let all = shares.compute + shares.wait + shares.update + shares.others;
        assert!((all - 1.0).abs() < 1e-6, "{shares:?}");
    }
}

#[test]
fn rows_of_a_tier_are_counted_there() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(2);
    let plain = Arc::clone(&graph.rows) as Arc<dyn RowSource>;
    let spec = PolicySpec::try_from(PolicyKind::Lru).unwrap();
    let n_bytes = 100 * ROW_BYTES as usize;
    let tier =
        SharedTier::new(n_bytes, ROW_BYTES as usize, N_NODES, &spec, SharedSettings::default())
            .unwrap();
    let tiered = Arc::new(TieredSource::new(plain, "feat", Arc::new(tier)).unwrap());
    let remote = Arc::clone(&tiered) as Arc<dyn RowSource>;
    let (report, steps) = observed(&graph, &config(ondemand(), 2, dir.path()), &remote);
    let host: u64 = steps.iter().map(|step| step.rows.host_tier).sum();
    assert!(host > 0);
    assert_eq!(host, report.epochs.iter().map(|epoch| epoch.hit_rows).sum::<u64>());
    assert!(steps.iter().all(|step| step.rows.hot_set + step.rows.buffer == 0));
}

#[test]
fn a_slow_network_is_named_as_the_bottleneck_and_rapid_hides_it() {
    let dir = tempfile::tempdir().unwrap();
    let graph = planted(4);
    // Far longer than a step computes, even beside other work.
    let slow = slow(&graph.rows, Duration::from_millis(300));
    let observed =
        |config: TrainConfig| observed(&graph, &TrainConfig { epochs: 1, ..config }, &slow);
    let (report, _) = observed(config(ondemand(), 2, dir.path()));
    let shares = report.step.unwrap();
    assert_eq!((shares.bottleneck, shares.preparation), (Bottleneck::Wait, Preparation::Pull));
    assert_eq!(shares.overlap_efficiency, None);
    // All remote rows are hot, so that no batch has anything to wait for.
    let hot = scheduled(config(rapid(), 2, dir.path()), |schedule| {
        schedule.n_hot = N_NODES as usize;
        schedule.keep = Keep::Hot;
    });
    let (rapid, rapid_steps) = observed(hot);
    let (massive, massive_steps) = observed(config(massive(), 2, dir.path()));
    assert!(rapid_steps.iter().all(|step| step.rows.remote == 0 && step.seconds.pull < 0.3));
    assert!(massive_steps.iter().all(|step| step.rows.remote > 0 && step.seconds.pull >= 0.3));
    let wait = |steps: &[WorkerStep]| steps.iter().map(|step| step.seconds.wait).sum::<f64>();
    let (of_rapid, of_massive) = (wait(&rapid_steps), wait(&massive_steps));
    assert!(2.0 * of_rapid < of_massive, "rapid waited {of_rapid} s, massive {of_massive} s");
    let overlap = |report: TrainReport| report.step.and_then(|step| step.overlap_efficiency);
    let (rapid, massive) = (overlap(rapid).unwrap(), overlap(massive).unwrap());
    assert!(rapid > massive, "rapid {rapid}, massive {massive}");
}
