//! Full-batch training over partitions: what one partition of the whole graph learns.

mod refused;

use std::{
    ops::{ControlFlow, Range},
    path::Path,
    sync::Arc,
};

use crate::planted::{
    Planted, bytes_of, config, counting, failing, ondemand, run, run_from, run_in_ranks,
    run_telling,
};
use lodestore_client::RowSource;
use lodestore_client::source::memory::MemorySource;
use lodestore_graph::topology::Direction;
use lodestore_graph::{
    PartId, edges::MemoryEdges, rapa::DeviceProfile, relabel::Relabelling, sampler::Fanout,
    topology::Topology,
};
use lodestore_store::Dtype;
use lodestore_trainer::config::{CheckpointConfig, Compression, FullConfig, Halo};
use lodestore_trainer::options::{LayerOptions, Norm};
use lodestore_trainer::{ModelKind, Progress, Strategy, TrainConfig, TrainReport};

const N: u32 = 90;
const N_CLASSES: u32 = 3;

/// Returns a number that looks random.
fn number(at: u32) -> u32 {
    let x = (u64::from(at) + 7).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33) as u32
}

/// A graph whose nodes keep their ids however it is cut: partitions are the ranges between
/// `bounds`.
struct Cut<'a> {
    n_nodes: u32,
    edges: Vec<[u32; 2]>,
    bounds: &'a [u32],
    /// One feature in this many is not zero.
    every: u32,
    width: u32,
    is_trained: fn(u32) -> bool,
}

impl<'a> Cut<'a> {
    fn new(bounds: &'a [u32]) -> Self {
        let mut edges = Vec::new();
        for from in 0..N - 10 {
            for draw in 0..4 {
                let to = number(4 * from + draw) % (N - 10);
                edges.push([from, if draw < 2 { to / 3 * 3 + from % 3 } else { to }]);
            }
        }
        edges.retain(|[_, to]| *to < N - 10);
        // One of the last has an edge to itself, the others none.
        edges.push([N - 1, N - 1]);
        let is_trained = |id| !number(id + 500).is_multiple_of(3);
        Self { n_nodes: N, edges, bounds, every: 1, width: 7, is_trained }
    }

    fn sparse(bounds: &'a [u32]) -> Self {
        Self { every: 23, width: 90, ..Self::new(bounds) }
    }

    fn graph(&self) -> Planted {
        let (n, width) = (self.n_nodes, self.width);
        let part = |id: u32| self.bounds.iter().filter(|bound| **bound <= id).count();
        let assignment: Vec<PartId> = (0..n).map(|id| PartId(part(id) as u16)).collect();
        let relabelling = Relabelling::new(&assignment, self.bounds.len() as u16 + 1).unwrap();
        assert!((0..n).eq(relabelling.external_of.iter().copied()));
        let edges = MemoryEdges::new(self.edges.clone()).unwrap();
        let topology = Topology::from_edges(&edges, &relabelling, Direction::Undirected).unwrap();
        let book = relabelling.book;
        let mut rows = MemorySource::new(book.clone());
        let feature = |at: u32| {
            let (id, column) = (at / width, at % width);
            let is_there = self.every == 1 || number(at).is_multiple_of(self.every);
            let noise = (number(at + 99) % 1000) as f32 / 500.0 - 1.0;
            if is_there { f32::from(column % N_CLASSES == id % N_CLASSES) + noise } else { 0.0 }
        };
        let features: Vec<f32> = (0..n * width).map(feature).collect();
        let labels: Vec<i64> = (0..n).map(|id| (id % N_CLASSES).into()).collect();
        let split = |id: u32| {
            if (self.is_trained)(id) { 0 } else { [1, 2, 255][number(id) as usize % 3] }
        };
        rows.add("feat", Dtype::F32, width, bytes_of(&features, f32::to_le_bytes)).unwrap();
        rows.add("label", Dtype::I64, 1, bytes_of(&labels, i64::to_le_bytes)).unwrap();
        rows.add("split", Dtype::U8, 1, (0..n).map(split).collect()).unwrap();
        Planted { topology, book, rows: Arc::new(rows) }
    }
}

/// Cuts in 1, 2, 3 and 5 partitions, of unlike sizes.
const CUTS: [&[u32]; 4] = [&[], &[31], &[20, 71], &[11, 12, 50, 83]];

/// Returns models with three layers, each with other options.
fn models() -> Vec<(ModelKind, LayerOptions)> {
    let usual = LayerOptions::default();
    vec![
        (ModelKind::Gcn, usual),
        (ModelKind::Gcn, LayerOptions { norm: Norm::Layer, residual: true }),
        (ModelKind::Sage, usual),
        (ModelKind::Sage, LayerOptions { residual: true, ..usual }),
        (ModelKind::Sage, LayerOptions { norm: Norm::Layer, ..usual }),
        (ModelKind::Gat, usual),
    ]
}

fn settings(
    (model, layer): (ModelKind, LayerOptions),
    workers: u32,
    full: FullConfig,
) -> TrainConfig {
    TrainConfig {
        model,
        layer,
        fanouts: vec![Fanout::All; 3],
        hidden: 16,
        n_heads: 4,
        n_output_heads: 2,
        epochs: 4,
        learning_rate: 0.01,
        ..config(Strategy::Full(full), workers, Path::new(""))
    }
}

fn exact(model: (ModelKind, LayerOptions), workers: u32) -> TrainConfig {
    settings(model, workers, FullConfig::default())
}

fn gcn() -> (ModelKind, LayerOptions) {
    (ModelKind::Gcn, LayerOptions::default())
}

/// Returns the everything that is computed, as bits.
fn computed(report: &TrainReport) -> (Vec<u64>, String, String, Vec<Option<u64>>) {
    let losses = report.step_losses.iter().map(|loss| loss.to_bits()).collect();
    let accuracies = report.epochs.iter().map(|epoch| epoch.test_accuracy.map(f64::to_bits));
    let (last, best) = (&report.parameters_digest, &report.best_parameters_digest);
    (losses, last.clone(), best.clone(), accuracies.collect())
}

fn assert_near(found: &TrainReport, expected: &TrainReport, what: &str) {
    assert_eq!(found.step_losses.len(), expected.step_losses.len(), "{what}");
    for (found, expected) in found.step_losses.iter().zip(&expected.step_losses) {
        assert!((found / expected - 1.0).abs() < 1e-5, "{what}: {found} {expected}");
    }
    for (found, expected) in found.epochs.iter().zip(&expected.epochs) {
        assert_eq!(found.accuracy, expected.accuracy, "{what}");
        assert_eq!(found.test_accuracy, expected.test_accuracy, "{what}");
    }
}

#[test]
fn partitions_compute_what_the_whole_graph_does_with_dropout_on() {
    for model in models() {
        for is_sparse in [false, true] {
            let cut = |bounds| if is_sparse { Cut::sparse(bounds) } else { Cut::new(bounds) };
            let whole = run(&cut(CUTS[0]).graph(), &exact(model, 1)).unwrap();
            assert!(whole.step_losses.windows(2).all(|pair| pair[0] != pair[1]));
            for bounds in &CUTS[1..] {
                let found = run(&cut(bounds).graph(), &exact(model, 1)).unwrap();
                assert_near(&found, &whole, &format!("{model:?}, sparse {is_sparse}, {bounds:?}"));
            }
        }
    }
}

#[test]
fn workers_and_processes_change_no_bit() {
    let graph = Cut::sparse(CUTS[3]).graph();
    for model in models() {
        for compress in [None, Some(Compression::Int8)] {
            let full = FullConfig { compress, staleness: 1, ..FullConfig::default() };
            for full in [FullConfig { compress, ..FullConfig::default() }, full] {
                let expected = run(&graph, &settings(model, 1, full.clone())).unwrap();
                for (workers, n_ranks) in [(2, 1), (5, 1), (2, 2), (3, 2), (5, 3), (5, 5)] {
                    let after = FullConfig { overlap: workers == 3, ..full.clone() };
                    let config = settings(model, workers, after);
                    let mut found = run_in_ranks(&graph, &config, n_ranks);
                    let found = found.swap_remove(0).unwrap().unwrap();
                    let what = format!("{model:?}, {workers} workers in {n_ranks} processes");
                    assert_eq!(computed(&found), computed(&expected), "{what}");
                    let error = |report: &TrainReport| report.epochs[0].compression_error;
                    assert_eq!(error(&found), error(&expected));
                }
            }
        }
    }
}

/// The naive twin is the mini-batch trainer with one batch of all nodes and all of their
/// neighbours. It drops aggregated features where `full` drops features, but for GAT.
#[test]
fn an_epoch_is_a_step_on_a_batch_of_all_training_nodes() {
    for model in models() {
        for is_sparse in [false, true] {
            let bounds = CUTS[2];
            let cut = if is_sparse { Cut::sparse(bounds) } else { Cut::new(bounds) };
            let dropout = if model.0 == ModelKind::Gat { 0.5 } else { 0.0 };
            let full = TrainConfig { dropout, ..exact(model, 2) };
            let batch = TrainConfig {
                strategy: ondemand(),
                workers: 1,
                batch_size: N as usize,
                ..full.clone()
            };
            let found = run(&cut.graph(), &full).unwrap();
            let expected = run(&Cut { bounds: CUTS[0], ..cut }.graph(), &batch).unwrap();
            assert_near(&found, &expected, &format!("{model:?}, sparse {is_sparse}"));
        }
    }
}

#[test]
fn what_travels_is_the_narrower_side_and_features_travel_once() {
    let graph = Cut::sparse(CUTS[3]).graph();
    let n_halo = |workers: u32| -> u64 {
        let (book, topology) = (&graph.book, &graph.topology);
        let of_part = |part: PartId| {
            let own = book.range(part);
            let mut halo: Vec<u32> = own
                .flat_map(|node| topology.in_neighbours(lodestore_graph::NodeId(node)).to_vec())
                .filter(|source| {
                    let other = book.part_of(lodestore_graph::NodeId(*source)).unwrap();
                    u32::from(other.0) % workers != u32::from(part.0) % workers
                })
                .collect();
            halo.sort_unstable();
            halo.dedup();
            halo.len() as u64
        };
        book.parts().map(of_part).sum()
    };
    for workers in [1, 2, 5] {
        let (local, _) = counting(&graph.rows);
        let (remote, pulled) = counting(&graph.rows);
        let quiet = TrainConfig { evaluate_every: 0, measure_test: false, ..exact(gcn(), workers) };
        let report = run_from(&graph, &quiet, &local, &remote).unwrap();
        let n = n_halo(workers);
        assert_eq!(n > 0, workers > 1);
        assert_eq!(pulled.lock().unwrap().vector_rows, n);
        for epoch in &report.epochs {
            // Hidden rows of 16 between the first two layers, classes between the last two.
            assert_eq!(epoch.embedding_bytes, Some(n * 4 * (16 + 3)), "{workers}");
            assert_eq!(epoch.gradient_bytes, epoch.embedding_bytes);
            let inputs = if epoch.epoch == 0 { n * 4 * 90 } else { 0 };
            assert_eq!(epoch.input_bytes, Some(inputs));
            assert_eq!(epoch.halo_bytes, Some(inputs + 2 * n * 4 * 19));
            assert_eq!(epoch.halo_rows, Some(n_halo(5)));
            assert_eq!((epoch.max_staleness, epoch.kept_share), (Some(0), Some(1.0)));
            assert_eq!(epoch.compression_error, Some(0.0));
            // Features of the halo are kept, two layers of three are not.
            let hits = if workers == 1 || epoch.epoch == 0 { 0.0 } else { 1.0 / 3.0 };
            assert!((epoch.hit_rate.unwrap_or(0.0) - hits).abs() < 1e-9, "{:?}", epoch.hit_rate);
        }
    }
}

#[test]
fn halos_of_zeros_send_nothing_and_learn_something_else() {
    let graph = Cut::new(CUTS[2]).graph();
    for model in models() {
        let full = FullConfig { halo: Halo::Zero, ..FullConfig::default() };
        let zero = settings(model, 3, full);
        let (remote, pulled) = counting(&graph.rows);
        let local: Arc<dyn RowSource> = Arc::clone(&graph.rows) as _;
        let quiet = TrainConfig { evaluate_every: 0, measure_test: false, ..zero.clone() };
        let found = run_from(&graph, &quiet, &local, &remote).unwrap();
        assert_eq!(pulled.lock().unwrap().vector_rows, 0);
        for epoch in &found.epochs {
            assert_eq!(epoch.halo_bytes, Some(0));
            assert!(epoch.halo_rows > Some(0));
        }
        let exchanged = run(&graph, &exact(model, 3)).unwrap();
        let relative = found.step_losses[0] / exchanged.step_losses[0] - 1.0;
        assert!(relative.abs() > 1e-4, "{model:?}: {relative}");
        // One partition has no halo.
        let whole = Cut::new(CUTS[0]).graph();
        let alone = run(&whole, &TrainConfig { workers: 1, ..zero }).unwrap();
        assert_eq!(computed(&alone), computed(&run(&whole, &exact(model, 1)).unwrap()));
    }
}

#[test]
fn old_rows_are_as_old_as_allowed_and_no_older() {
    let graph = Cut::new(CUTS[2]).graph();
    let with = |staleness| {
        let full = FullConfig { staleness, ..FullConfig::default() };
        let config = settings(gcn(), 3, full);
        run(&graph, &TrainConfig { epochs: 7, dropout: 0.0, ..config }).unwrap()
    };
    let exact = with(0);
    for staleness in 1..4u32 {
        let report = with(staleness);
        assert_eq!(report.step_losses[0], exact.step_losses[0]);
        assert_ne!(report.step_losses[2], exact.step_losses[2]);
        for epoch in &report.epochs {
            let age = epoch.epoch % (staleness + 1);
            assert_eq!(epoch.max_staleness, Some(age));
            assert_eq!(epoch.embedding_bytes > Some(0), age == 0);
            assert_eq!(epoch.gradient_bytes, epoch.embedding_bytes);
            assert!(age == 0 || epoch.hit_rate == Some(1.0));
        }
    }
    // Much older than the run: never exchanged again.
    assert_eq!(with(100).epochs[6].max_staleness, Some(6));
}

#[test]
fn narrow_rows_are_a_fraction_of_the_bytes_and_their_error_is_reported() {
    let graph = Cut::new(CUTS[2]).graph();
    let with = |compress| {
        let full = FullConfig { compress, ..FullConfig::default() };
        run(&graph, &TrainConfig { dropout: 0.0, ..settings(gcn(), 3, full) }).unwrap()
    };
    let exact = with(None);
    for (compress, [least, most], [wide, narrow]) in [
        (Compression::F16, [1e-5, 4e-4], [4 * 16 + 4 * 3, 4 + 2 * 16 + 4 + 2 * 3]),
        (Compression::Int8, [5e-4, 8e-3], [4 * 16 + 4 * 3, 4 + 16 + 4 + 3]),
    ] {
        let found = with(Some(compress));
        for (epoch, expected) in found.epochs.iter().zip(&exact.epochs) {
            let error = epoch.compression_error.unwrap();
            assert!(error > least && error < most, "{compress}: {error}");
            let bytes = expected.embedding_bytes.unwrap() * narrow / wide;
            assert_eq!(epoch.embedding_bytes, Some(bytes));
            assert_eq!(epoch.gradient_bytes, Some(bytes));
        }
        assert_ne!(found.step_losses[1], exact.step_losses[1]);
        for (found, expected) in found.step_losses.iter().zip(&exact.step_losses) {
            assert!((found / expected - 1.0).abs() < 10.0 * most, "{compress}: {found} {expected}");
        }
    }
}

#[test]
fn every_way_to_exchange_learns() {
    let cut = |bounds| Cut { width: 9, ..Cut::new(bounds) };
    let graph = cut(CUTS[3]).graph();
    let usual = FullConfig::default;
    for full in [
        usual(),
        FullConfig { staleness: 2, ..usual() },
        FullConfig { compress: Some(Compression::Int8), staleness: 1, ..usual() },
    ] {
        for model in models() {
            let config = TrainConfig { epochs: 60, ..settings(model, 2, full.clone()) };
            let report = run(&graph, &config).unwrap();
            let (first, last) = (report.step_losses[0], report.step_losses[59]);
            assert!(last < 0.85 * first, "{model:?}, {full:?}: {first} {last}");
        }
    }
}

/// Runs in pieces of a step, each with another number of workers, until the run is over.
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
fn a_run_cut_short_ends_with_the_same_bits_though_rows_were_old() {
    let graph = Cut::new(CUTS[3]).graph();
    for model in [models()[1], models()[5]] {
        for staleness in [0, 1, 2] {
            let compress = (staleness == 2).then_some(Compression::Int8);
            let full = FullConfig { staleness, compress, ..FullConfig::default() };
            let config = TrainConfig { epochs: 7, ..settings(model, 2, full) };
            let expected = run(&graph, &config).unwrap();
            for workers in [vec![2], vec![1, 3, 5]] {
                let dir = tempfile::tempdir().unwrap();
                let place =
                    CheckpointConfig { dir: dir.path().to_owned(), every_steps: 0, resume: true };
                let config = TrainConfig { checkpoint: Some(place), ..config.clone() };
                let found = in_pieces(&graph, &config, &workers);
                assert_eq!(computed(&found), computed(&expected), "{staleness} {workers:?}");
                assert!(found.resumed_at.is_some());
                let mut over =
                    run_in_ranks(&graph, &TrainConfig { workers: 3, ..config.clone() }, 3);
                let over = over.swap_remove(0).unwrap().unwrap();
                assert_eq!(computed(&over), computed(&expected));
                // More epochs, as processes that get the state from the leader.
                let longer = TrainConfig { epochs: 9, ..config };
                let mut found =
                    run_in_ranks(&graph, &TrainConfig { workers: 3, ..longer.clone() }, 3);
                let found = found.swap_remove(0).unwrap().unwrap();
                let straight = run(&graph, &TrainConfig { checkpoint: None, ..longer }).unwrap();
                assert_eq!(found.step_losses, straight.step_losses);
            }
        }
    }
}

#[test]
fn other_settings_are_another_run() {
    let (dir, graph) = (tempfile::tempdir().unwrap(), Cut::new(CUTS[2]).graph());
    let place = CheckpointConfig { dir: dir.path().to_owned(), every_steps: 0, resume: true };
    let config = TrainConfig { checkpoint: Some(place), ..exact(gcn(), 2) };
    run(&graph, &config).unwrap();
    for (full, expected) in [
        (FullConfig { halo: Halo::Zero, ..FullConfig::default() }, "halo = Zero"),
        (FullConfig { staleness: 3, ..FullConfig::default() }, "staleness = 3"),
        (FullConfig { compress: Some(Compression::F16), ..FullConfig::default() }, "compress"),
    ] {
        let config = TrainConfig { strategy: Strategy::Full(full), ..config.clone() };
        let error = run(&graph, &config).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let other = TrainConfig { strategy: ondemand(), ..config };
    let error = run(&graph, &other).unwrap_err().to_string();
    assert!(error.contains("mode = Full"), "{error}");
}

#[test]
fn graphs_at_the_edge_train_as_any_other() {
    let one_node =
        || Cut { n_nodes: 1, edges: vec![[0, 0]], is_trained: |_| true, ..Cut::new(&[]) };
    let no_edges = |bounds| Cut { edges: vec![[N - 1, N - 1]], ..Cut::new(bounds) };
    // Each partition is a component: halos are empty.
    let apart = |range: Range<u32>| range.clone().skip(1).map(move |id| [id, range.start]);
    let components = |bounds| Cut {
        edges: apart(0..20).chain(apart(20..71)).chain(apart(71..90)).collect(),
        ..Cut::new(bounds)
    };
    let untrained = |bounds| Cut { is_trained: |id| id >= 71, ..Cut::new(bounds) };
    for model in models() {
        let report = run(&one_node().graph(), &exact(model, 1)).unwrap();
        assert!(report.step_losses.iter().all(|loss| loss.is_finite()), "{model:?}");
        for (whole, cut, workers) in [
            (no_edges(CUTS[0]), no_edges(CUTS[3]), 3),
            (components(CUTS[0]), components(CUTS[2]), 2),
            (untrained(CUTS[0]), untrained(CUTS[2]), 3),
        ] {
            let expected = run(&whole.graph(), &exact(model, 1)).unwrap();
            let found = run(&cut.graph(), &exact(model, workers)).unwrap();
            assert_near(&found, &expected, &format!("{model:?}"));
        }
    }
}
