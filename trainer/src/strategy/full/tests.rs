use std::sync::Arc;

use lodestore_client::RowSource;
use lodestore_client::source::memory::MemorySource;
use lodestore_comm::threads::ThreadCollective;
use lodestore_graph::{
    PartId, PartitionBook, edges::MemoryEdges, relabel::Relabelling, sampler::Fanout,
    topology::Topology,
};
use lodestore_models::random::CounterRandom;
use lodestore_store::Dtype;

use super::team::FullTeam;
use crate::config::{FullConfig, Strategy, TrainConfig};
use crate::options::{LayerOptions, ModelKind, Norm};
use crate::process_group::ProcessGroup;
use crate::replica::Replica;
use crate::report::RowsFrom;
use crate::setup::Setup;
use crate::sources::{TrainGraph, WorkerSources};
use lodestore_graph::topology::Direction;

const N: u32 = 40;
const WIDTH: u32 = 6;

/// Returns a graph in three partitions, with features of which `every`-th are not zero.
fn planted(every: u64) -> (Topology, PartitionBook, WorkerSources) {
    planted_in(every, |id| PartId(u16::from(id >= 9) + u16::from(id >= 27)))
}

/// Returns the same graph in other partitions.
fn planted_in(every: u64, owner: fn(u32) -> PartId) -> (Topology, PartitionBook, WorkerSources) {
    let random = CounterRandom::new(5, 9);
    let edges = (0..90u64).map(|at| [0, 1].map(|end| (random.bits(2 * at + end) % 40) as u32));
    let edges = MemoryEdges::new(edges.chain([[N - 1, 0]]).collect()).unwrap();
    let owners: Vec<PartId> = (0..N).map(owner).collect();
    let n_parts = owners.iter().map(|part| part.0 + 1).max().unwrap();
    let relabelling = Relabelling::new(&owners, n_parts).unwrap();
    let topology = Topology::from_edges(&edges, &relabelling, Direction::Undirected).unwrap();
    let book = relabelling.book;
    let mut rows = MemorySource::new(book.clone());
    let feature = |at: u64| {
        let is_there = random.bits(at + 10_000).is_multiple_of(every);
        if is_there { random.unit(at) * 2.0 - 0.7 } else { 0.0 }
    };
    let features = (0..u64::from(N * WIDTH)).flat_map(|at| feature(at).to_le_bytes()).collect();
    let labels = (0..N).flat_map(|id| i64::from(id % 3).to_le_bytes()).collect();
    rows.add("feat", Dtype::F32, WIDTH, features).unwrap();
    rows.add("label", Dtype::I64, 1, labels).unwrap();
    rows.add("split", Dtype::U8, 1, (0..N).map(|id| u8::from(id % 4 == 0)).collect()).unwrap();
    let rows: Arc<dyn RowSource> = Arc::new(rows);
    (topology, book, WorkerSources::new(Arc::clone(&rows), rows))
}

fn config(model: ModelKind, layer: LayerOptions, full: FullConfig) -> TrainConfig {
    TrainConfig {
        strategy: Strategy::Full(full),
        model,
        layer,
        fanouts: vec![Fanout::All; 3],
        hidden: 8,
        n_heads: 2,
        n_output_heads: 2,
        dropout: 0.3,
        ..TrainConfig::default()
    }
}

/// Calls `f` with a team of all partitions, and the replica that it trains.
fn with_team(
    config: &TrainConfig,
    every: u64,
    f: impl FnOnce(&mut FullTeam, &mut Replica, &mut ProcessGroup<'_>),
) {
    with_team_on(&planted(every), config, f);
}

/// Calls `f` with a team of all partitions of a graph, and the replica that it trains.
fn with_team_on(
    graph: &(Topology, PartitionBook, WorkerSources),
    config: &TrainConfig,
    f: impl FnOnce(&mut FullTeam, &mut Replica, &mut ProcessGroup<'_>),
) {
    let (topology, book, sources) = graph;
    let graph = TrainGraph { topology, book, uuid: [1; 16], rows_from: RowsFrom::Embedded };
    let sources = std::slice::from_ref(sources);
    let setup = Setup::new(config, graph, sources, vec![0], None).unwrap();
    let mut collective = ThreadCollective::alone();
    let mut group = ProcessGroup::new(&mut collective);
    let Strategy::Full(full) = &config.strategy else { panic!("settings of `full`") };
    let mut team = FullTeam::new(&setup, full, &group).unwrap();
    let mut replica = Replica::new(&setup.model, config, 1).unwrap();
    f(&mut team, &mut replica, &mut group);
}

/// Returns the loss, and the gradient of all parameters.
fn pass(
    team: &mut FullTeam,
    replica: &Replica,
    epoch: u32,
    group: &mut ProcessGroup<'_>,
) -> (f64, Vec<f64>) {
    let passed = team.pass(&replica.model, epoch, 77, group).unwrap();
    let n_all: u64 = passed.figures.iter().map(|of| of.n_roots).sum();
    let loss = passed.figures.iter().map(|of| of.loss * of.n_roots as f64).sum::<f64>();
    let mut gradient = vec![0.0; passed.terms[0].values.len()];
    for term in &passed.terms {
        gradient.iter_mut().zip(&term.values).for_each(|(sum, value)| *sum += f64::from(*value));
    }
    (loss / n_all as f64, gradient)
}

fn models() -> Vec<(ModelKind, LayerOptions)> {
    let usual = LayerOptions::default();
    vec![
        (ModelKind::Gcn, LayerOptions { norm: Norm::Layer, residual: true }),
        (ModelKind::Gcn, usual),
        (ModelKind::Sage, usual),
        (ModelKind::Sage, LayerOptions { residual: true, ..usual }),
        (ModelKind::Gat, usual),
    ]
}

#[test]
fn gradients_are_those_of_finite_differences() {
    for (model, layer) in models() {
        for (every, hidden) in [(1, 8), (17, 8), (1, 2)] {
            // A row of zeros has no slope that steps could find once it is normalised.
            let norm = if every == 1 { layer.norm } else { Norm::None };
            let layer = LayerOptions { norm, ..layer };
            let config = TrainConfig { hidden, ..config(model, layer, FullConfig::default()) };
            with_team(&config, every, |team, replica, group| {
                // Biases of zero would have rows of zeros stand where an activation has a kink.
                let mut start = replica.adam.values();
                let random = CounterRandom::new(7, 4);
                for (value, at) in start.iter_mut().flatten().zip(0..) {
                    *value += 0.2 * random.unit(at) - 0.1;
                }
                replica.set_values(&start);
                let (_, gradient) = pass(team, replica, 0, group);
                let lengths = replica.adam.lengths();
                assert_eq!(gradient.len(), lengths.iter().sum::<usize>());
                let random = CounterRandom::new(3, 4);
                // Each parameter in a direction of its own.
                for (number, &len) in lengths.iter().enumerate() {
                    let first: usize = lengths[..number].iter().sum();
                    let direction: Vec<f32> =
                        (0..len as u64)
                            .map(|at| {
                                if random.unit(at + 31 * number as u64) < 0.5 { -1.0 } else { 1.0 }
                            })
                            .collect();
                    let slope = |step: f32,
                                 team: &mut FullTeam,
                                 replica: &mut Replica,
                                 group: &mut ProcessGroup<'_>| {
                        let mut values = start.clone();
                        let moved = values[number].iter_mut().zip(&direction);
                        moved.for_each(|(value, by)| *value += step * by);
                        replica.set_values(&values);
                        pass(team, replica, 0, group).0
                    };
                    let step = 2e-4;
                    let up = slope(step, team, replica, group);
                    let down = slope(-step, team, replica, group);
                    let found = (up - down) / (2.0 * f64::from(step));
                    let of_gradient: f64 = gradient[first..first + len]
                        .iter()
                        .zip(&direction)
                        .map(|(gradient, by)| gradient * f64::from(*by))
                        .sum();
                    let error = (found - of_gradient).abs();
                    let what = format!("{model:?} {layer:?} {every} {hidden}, parameter {number}");
                    assert!(
                        error < 2e-3 + 0.02 * of_gradient.abs(),
                        "{what}: {found} {of_gradient}"
                    );
                }
            });
        }
    }
}

/// In the published code the refresh skips rows that are there.
#[test]
fn an_exchange_really_replaces_rows_and_gradients() {
    for (model, layer) in models() {
        let full = FullConfig { staleness: 1, ..FullConfig::default() };
        let config = config(model, layer, full);
        with_team(&config, 1, |team, replica, group| {
            let first = pass(team, replica, 0, group);
            let again = pass(team, replica, 1, group);
            // The same parameters and masks: old rows are the same rows.
            assert_eq!(first, again, "{model:?}");
            let moved: Vec<Vec<f32>> = replica
                .adam
                .values()
                .into_iter()
                .map(|list| list.into_iter().map(|value| value + 0.05).collect())
                .collect();
            replica.set_values(&moved);
            let refreshed = pass(team, replica, 2, group);
            assert_eq!(team.exchange.oldest, 0);
            let mut expected = None;
            with_team(&config, 1, |fresh, replica, group| {
                replica.set_values(&moved);
                expected = Some(pass(fresh, replica, 2, group));
            });
            assert_eq!(Some(&refreshed), expected.as_ref(), "{model:?}");
            // Rows that are one epoch old, under other parameters, are not those of the epoch.
            let moved: Vec<Vec<f32>> =
                moved.iter().map(|list| list.iter().map(|value| value - 0.1).collect()).collect();
            replica.set_values(&moved);
            let old = pass(team, replica, 3, group);
            assert_eq!(team.exchange.oldest, 1);
            assert_ne!(old.0, pass(team, replica, 4, group).0, "{model:?}");
        });
    }
}

/// The rows of a halo go back to tiers after each epoch, also those of a halo without any.
#[test]
fn a_partition_without_a_halo_passes_again_where_there_is_a_tier() {
    let config = config(ModelKind::Sage, LayerOptions::default(), FullConfig::default());
    let mut graph = planted_in(17, |_| PartId(0));
    graph.2.remote = planted_in(17, |_| PartId(0)).2.remote;
    assert!(graph.2.has_tier());
    with_team_on(&graph, &config, |team, replica, group| {
        assert!(team.parts[0].inputs.are_sparse());
        assert_eq!(pass(team, replica, 0, group), pass(team, replica, 0, group));
    });
}
