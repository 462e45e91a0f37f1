//! Local models of partitions, and their averages.

use std::{
    fs,
    ops::ControlFlow,
    path::Path,
    sync::{Arc, Mutex},
};

use crate::planted::{
    Planted, ROW_BYTES, bytes_of, config, counting, ondemand, planted, run, run_from, run_in_ranks,
    run_telling,
};
use lodestore_client::RowSource;
use lodestore_client::source::memory::MemorySource;
use lodestore_graph::PartId;
use lodestore_graph::edges::MemoryEdges;
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::sampler::Fanout;
use lodestore_graph::topology::{Direction, Topology};
use lodestore_store::Dtype;
use lodestore_trainer::config::{CheckpointConfig, OptimizerState, SdtConfig};
use lodestore_trainer::options::{Norm, RateSchedule, UpdateOptions, WarmUp};
use lodestore_trainer::{ModelKind, Progress, Strategy, TrainConfig, TrainReport};

/// Returns the everything that is computed, as bits.
fn computed(report: &TrainReport) -> (Vec<u64>, String, String, Vec<Option<u64>>) {
    let losses = report.step_losses.iter().map(|loss| loss.to_bits()).collect();
    let accuracies = report.epochs.iter().map(|epoch| epoch.test_accuracy.map(f64::to_bits));
    let (last, best) = (&report.parameters_digest, &report.best_parameters_digest);
    (losses, last.clone(), best.clone(), accuracies.collect())
}

fn of_sdt(workers: u32, sdt: SdtConfig, dir: &Path) -> TrainConfig {
    config(Strategy::Sdt(sdt), workers, dir)
}

#[test]
fn one_partition_trains_as_one_worker_does() {
    let (dir, graph) = (tempfile::tempdir().unwrap(), planted(1));
    let falling = UpdateOptions {
        schedule: RateSchedule::Cosine,
        warm_up: WarmUp::Epochs(1),
        ..UpdateOptions::default()
    };
    for (model, optimizer_state, update) in [
        (ModelKind::Sage, OptimizerState::Local, UpdateOptions::default()),
        (ModelKind::Gcn, OptimizerState::Averaged, falling),
        (ModelKind::Gat, OptimizerState::Local, falling),
    ] {
        let ondemand = TrainConfig { model, update, ..config(ondemand(), 1, dir.path()) };
        let sdt = SdtConfig { optimizer_state, ..SdtConfig::default() };
        let sdt = TrainConfig { model, update, ..of_sdt(1, sdt, dir.path()) };
        let (expected, found) = (run(&graph, &ondemand).unwrap(), run(&graph, &sdt).unwrap());
        assert_eq!(found.parameters_digest, expected.parameters_digest, "{model}");
        assert_eq!(found.best_parameters_digest, expected.best_parameters_digest);
        for (found, expected) in found.epochs.iter().zip(&expected.epochs) {
            assert_eq!(found.test_accuracy, expected.test_accuracy);
            assert_eq!((found.batches, found.steps), (expected.batches, 1));
            assert!((found.loss - expected.loss).abs() < 1e-12);
            assert_eq!((found.halo_rows, found.kept_share), (Some(0), Some(1.0)));
        }
    }
}

/// Returns settings of which each exercises another part.
fn kinds() -> Vec<(SdtConfig, ModelKind, Norm)> {
    let usual = SdtConfig::default();
    let (local, reset) = (OptimizerState::Local, OptimizerState::Reset);
    vec![
        (usual, ModelKind::Sage, Norm::None),
        (
            SdtConfig { average_every: 2, optimizer_state: local, ..usual },
            ModelKind::Gcn,
            Norm::None,
        ),
        (SdtConfig { halo_hops: Some(1), ..usual }, ModelKind::Gat, Norm::None),
        (
            SdtConfig { full_partition: true, optimizer_state: reset, ..usual },
            ModelKind::Sage,
            Norm::Layer,
        ),
    ]
}

#[test]
fn workers_and_processes_change_no_bit() {
    let (dir, graph) = (tempfile::tempdir().unwrap(), planted(4));
    for (sdt, model, norm) in kinds() {
        let with = |workers| {
            let mut config = TrainConfig { model, ..of_sdt(workers, sdt, dir.path()) };
            config.layer.norm = norm;
            config
        };
        let expected = run(&graph, &with(1)).unwrap();
        assert!(expected.step_losses.len() == 12 && expected.epochs[0].steps == 4);
        let halo: u64 = expected.epochs[0].halo_rows.unwrap();
        assert!(halo > 0 && expected.epochs[0].halo_bytes == Some(halo * ROW_BYTES));
        assert_eq!(expected.epochs[0].synchronised_bytes, Some(0));
        for (workers, n_ranks) in [(2, 1), (3, 1), (4, 1), (2, 2), (4, 2), (3, 3)] {
            let mut found = run_in_ranks(&graph, &with(workers), n_ranks);
            let found = found.swap_remove(0).unwrap().unwrap();
            let what = format!("{sdt:?}, {workers} workers in {n_ranks} processes");
            assert_eq!(computed(&found), computed(&expected), "{what}");
            assert_eq!(found.epochs[0].kept_share, expected.epochs[0].kept_share, "{what}");
            assert_eq!(found.epochs[0].halo_rows, expected.epochs[0].halo_rows, "{what}");
            let is_averaged = |epoch: u32| (epoch + 1).is_multiple_of(sdt.average_every);
            for epoch in &found.epochs {
                assert_eq!(epoch.synchronised_bytes > Some(0), is_averaged(epoch.epoch), "{what}");
            }
        }
    }
}

#[test]
fn no_row_travels_while_a_partition_trains() {
    let (dir, graph) = (tempfile::tempdir().unwrap(), planted(4));
    for workers in [1, 2, 4] {
        let (remote, pulled) = counting(&graph.rows);
        let (local, pulled_local) = counting(&graph.rows);
        let config = of_sdt(workers, SdtConfig::default(), dir.path());
        let quiet = TrainConfig { evaluate_every: 0, measure_test: false, ..config };
        let report = run_from(&graph, &quiet, &local, &remote).unwrap();
        let (pulled, of_local) = (pulled.lock().unwrap(), pulled_local.lock().unwrap());
        assert_eq!([pulled.sync_rows, of_local.sync_rows], [0; 2]);
        let remote_rows: u64 =
            report.epochs.iter().map(|epoch| epoch.remote_rows - epoch.filled_rows).sum();
        assert_eq!(pulled.vector_rows, remote_rows);
        assert_eq!(pulled.vector_rows > 0, workers > 1);
        // Two partitions of a worker stay, more are loaded again.
        for epoch in &report.epochs[1..] {
            assert_eq!(epoch.halo_rows > Some(0), workers == 1, "{workers} workers");
        }
    }
}

#[test]
fn memory_is_that_of_the_partitions_held_and_less_changes_nothing_but_loads() {
    let (dir, graph) = (tempfile::tempdir().unwrap(), planted(4));
    let with = |memory_bytes, reserved_bytes| {
        let sdt = SdtConfig { memory_bytes, reserved_bytes, ..SdtConfig::default() };
        run(&graph, &of_sdt(1, sdt, dir.path()))
    };
    let two = with(None, None).unwrap();
    let error = with(Some(3000), Some(2000)).unwrap_err().to_string();
    assert!(error.contains("of the 3000 bytes of a worker 1000 are for it"), "{error}");
    assert!(error.contains("partitions or more, allow more memory, or leave less"), "{error}");
    // The bytes that the largest takes.
    let least: u64 =
        error.split(" takes ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(with(Some(least - 1), Some(0)).is_err());
    let one = with(Some(least), Some(0)).unwrap();
    let all = with(Some(8 * least), Some(4 * least)).unwrap();
    assert_eq!(computed(&one), computed(&two));
    assert_eq!(computed(&all), computed(&two));
    assert_eq!(one.memory_measured_bytes, least);
    assert!(two.memory_measured_bytes > least && two.memory_measured_bytes <= 2 * least);
    assert!(all.memory_measured_bytes > 2 * least && all.memory_measured_bytes <= 4 * least);
    let halo = |report: &TrainReport| -> Vec<u64> {
        report.epochs.iter().map(|epoch| epoch.halo_rows.unwrap()).collect()
    };
    assert!(halo(&one)[1] == halo(&one)[0] && halo(&all)[1] == 0);
}

#[test]
fn halos_of_fewer_hops_keep_less_and_load_less() {
    let (dir, graph) = (tempfile::tempdir().unwrap(), planted(3));
    let with = |halo_hops| {
        let sdt = SdtConfig { halo_hops, ..SdtConfig::default() };
        let report = run(&graph, &of_sdt(2, sdt, dir.path())).unwrap();
        (report.epochs[0].kept_share.unwrap(), report.epochs[0].halo_rows.unwrap(), report)
    };
    let (whole, none, one) = (with(None), with(Some(0)), with(Some(1)));
    assert_eq!(whole.0, 1.0);
    assert_eq!(none.1, 0);
    assert!(none.0 < one.0 && one.0 < 1.0, "{} {}", none.0, one.0);
    assert!(one.1 > 0 && one.1 < whole.1);
    assert_eq!(computed(&with(Some(7)).2), computed(&whole.2));
    assert_ne!(computed(&one.2), computed(&whole.2));
}

#[test]
fn local_models_and_averages_learn() {
    let (dir, graph) = (tempfile::tempdir().unwrap(), planted(4));
    for (sdt, model, norm) in kinds() {
        let mut config = TrainConfig { model, epochs: 30, ..of_sdt(2, sdt, dir.path()) };
        config.layer.norm = norm;
        let report = run(&graph, &config).unwrap();
        let accuracy = report.test_accuracy.unwrap();
        assert!(accuracy > 0.7, "{sdt:?}: {accuracy}");
    }
}

/// Returns a graph of two partitions that are equal but for the ids of their nodes.
fn halves() -> Planted {
    const N: u32 = 200;
    let ends = |node: u32| (1..6).map(move |step| (node * 7 + step * step * 13) % N);
    let of_half = |first: u32| {
        (0..N).flat_map(move |node| ends(node).map(move |end| [first + node, first + end]))
    };
    let edges = MemoryEdges::new(of_half(0).chain(of_half(N)).collect()).unwrap();
    let assignment: Vec<PartId> = (0..2 * N).map(|node| PartId((node / N) as u16)).collect();
    let relabelling = Relabelling::new(&assignment, 2).unwrap();
    let topology = Topology::from_edges(&edges, &relabelling, Direction::Undirected).unwrap();
    let mut rows = MemorySource::new(relabelling.book.clone());
    let features: Vec<f32> = (0..2 * N).map(|node| (node % N % 9) as f32 / 9.0).collect();
    let labels: Vec<i64> = (0..2 * N).map(|node| (node % N % 2).into()).collect();
    let splits: Vec<u8> = (0..2 * N).map(|node| u8::from(node % 20 > 0)).collect();
    rows.add("feat", Dtype::F32, 1, bytes_of(&features, f32::to_le_bytes)).unwrap();
    rows.add("label", Dtype::I64, 1, bytes_of(&labels, i64::to_le_bytes)).unwrap();
    rows.add("split", Dtype::U8, 1, splits).unwrap();
    Planted { topology, book: relabelling.book, rows: Arc::new(rows) }
}

#[test]
fn each_partition_draws_neighbourhoods_of_its_own() {
    let (dir, graph) = (tempfile::tempdir().unwrap(), halves());
    let rows = Arc::clone(&graph.rows) as Arc<dyn RowSource>;
    let nodes = |fanout: Fanout| {
        let config = of_sdt(2, SdtConfig::default(), dir.path());
        let config = TrainConfig { fanouts: vec![fanout; 2], batch_size: 100, ..config };
        let mut nodes = Vec::new();
        run_telling(&graph, &config, [&rows, &rows], &mut |progress| {
            if let Progress::Step { workers, .. } = progress {
                nodes.extend(workers.iter().map(|worker| worker.nodes));
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(nodes.len(), 6, "two partitions, three epochs");
        nodes.as_chunks::<2>().0.to_vec()
    };
    assert!(nodes(Fanout::All).iter().all(|[one, other]| one == other), "the halves are equal");
    assert!(nodes(Fanout::at_most(2).unwrap()).iter().any(|[one, other]| one != other));
}

fn with_checkpoints(config: &TrainConfig, dir: &Path, every_steps: u32) -> TrainConfig {
    let (dir, resume) = (dir.to_owned(), true);
    TrainConfig {
        checkpoint: Some(CheckpointConfig { dir, every_steps, resume }),
        ..config.clone()
    }
}

/// Runs in pieces of a round, each with another number of workers, until the run is over.
fn in_pieces(graph: &Planted, config: &TrainConfig, workers: &[u32]) -> TrainReport {
    let rows: Arc<dyn RowSource> = Arc::clone(&graph.rows) as _;
    for piece in 0..40 {
        let config = TrainConfig { workers: workers[piece % workers.len()], ..config.clone() };
        let mut stop = |progress: &Progress<'_>| match progress {
            Progress::Step { .. } => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        let report = run_telling(graph, &config, [&rows, &rows], &mut stop).unwrap();
        if !report.interrupted {
            return report;
        }
    }
    panic!("the run does not end");
}

#[test]
fn a_run_cut_short_between_partitions_ends_with_the_same_bits() {
    let graph = planted(5);
    for (sdt, model, norm) in kinds() {
        for workers in [vec![1], vec![2], vec![3, 1, 2]] {
            let dir = tempfile::tempdir().unwrap();
            let mut config = TrainConfig { model, ..of_sdt(2, sdt, dir.path()) };
            config.layer.norm = norm;
            let expected = run(&graph, &config).unwrap();
            let config = with_checkpoints(&config, &dir.path().join("run"), 0);
            let found = in_pieces(&graph, &config, &workers);
            assert_eq!(computed(&found), computed(&expected), "{sdt:?}, {workers:?}");
            assert!(found.resumed_at.is_some());
            // A run that is over is measured again, and nothing is trained.
            let over = run(&graph, &config).unwrap();
            assert_eq!(computed(&over), computed(&expected));
        }
    }
}

#[test]
fn checkpoints_within_an_epoch_are_those_of_all_processes() {
    let (dir, graph) = (tempfile::tempdir().unwrap(), planted(5));
    let config = of_sdt(3, SdtConfig::default(), dir.path());
    let expected = run(&graph, &config).unwrap();
    let all = dir.path().join("all");
    let kept = with_checkpoints(&config, &all, 2);
    let mut found = run_in_ranks(&graph, &kept, 3);
    let found = found.swap_remove(0).unwrap().unwrap();
    assert_eq!(computed(&found), computed(&expected));
    // After partitions 3 (2 passed) and 5 (4 passed) of each epoch, and after each epoch.
    assert!(found.checkpoints >= 6, "{}", found.checkpoints);
    // The last one within an epoch, as a process alone and as two would continue from it.
    let copies = Mutex::new(0);
    let rows: Arc<dyn RowSource> = Arc::clone(&graph.rows) as _;
    let piece = dir.path().join("piece");
    let mut stop = |progress: &Progress<'_>| match progress {
        Progress::Step { epoch: 1, .. } => {
            *copies.lock().unwrap() += 1;
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    };
    let begun = with_checkpoints(&config, &piece, 0);
    assert!(run_telling(&graph, &begun, [&rows, &rows], &mut stop).unwrap().interrupted);
    for n_ranks in [1, 2, 3] {
        let copy = dir.path().join(format!("copy-{n_ranks}"));
        fs::create_dir(&copy).unwrap();
        fs::copy(piece.join("checkpoint"), copy.join("checkpoint")).unwrap();
        let mut found = run_in_ranks(&graph, &with_checkpoints(&config, &copy, 1), n_ranks);
        let found = found.swap_remove(0).unwrap().unwrap();
        assert_eq!(computed(&found), computed(&expected), "{n_ranks} processes");
        assert_eq!(found.resumed_at.map(|place| (place.epoch, place.step)), Some((1, 3)));
    }
    // Another number of partitions between averages is another run.
    let other = SdtConfig { average_every: 2, ..SdtConfig::default() };
    let strategy = Strategy::Sdt(other);
    let error = run(&graph, &TrainConfig { strategy, ..with_checkpoints(&config, &piece, 0) });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("average_every = 2") && error.contains("average_every = 1"), "{error}");
}

#[test]
fn a_replica_that_leaves_the_numbers_is_named_and_averaged_by_no_process() {
    let (dir, graph) = (tempfile::tempdir().unwrap(), planted(3));
    let config = TrainConfig { learning_rate: 1e38, ..of_sdt(3, SdtConfig::default(), dir.path()) };
    let error = run(&graph, &config).unwrap_err().to_string();
    assert!(error.contains("the local model of partition 0"), "{error}");
    for error in run_in_ranks(&graph, &config, 3) {
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("the local model of partition") && error.contains("not averaged"),
            "{error}"
        );
    }
}

#[test]
fn more_workers_than_partitions_are_refused() {
    let (dir, graph) = (tempfile::tempdir().unwrap(), planted(2));
    let error = run(&graph, &of_sdt(3, SdtConfig::default(), dir.path())).unwrap_err().to_string();
    assert!(
        error.contains("`workers` must be at most one for each of the 2 partitions"),
        "{error}"
    );
}
