//! The gradient of a step is that of the whole batch, wherever its roots are trained on.

use std::{sync::Arc, thread::scope};

use lodestore_client::RowSource;
use lodestore_client::source::memory::MemorySource;
use lodestore_comm::threads::ThreadCollective;
use lodestore_graph::{
    PartId, PartitionBook, edges::MemoryEdges, relabel::Relabelling, sampler::Fanout, splitmix64,
    topology::Topology,
};
use lodestore_store::Dtype;
use proptest::prelude::*;

use super::migration::MigratingSteps;
use crate::config::{
    HopConfig, Merge, Migration, OndemandConfig, Roots, Sampling, Strategy, TrainConfig,
};
use crate::options::ModelKind;
use crate::process_group::ProcessGroup;
use crate::replica::Replica;
use crate::report::RowsFrom;
use crate::setup::Setup;
use crate::sources::{TrainGraph, WorkerSources};
use crate::step::Place;
use crate::strategy::mini_batches::{BatchFeed, Steps};
use crate::strategy::ondemand::SampledFeed;
use crate::workers::Team;
use lodestore_graph::topology::Direction;

const WIDTH: u32 = 5;

/// A graph of which every node has features, a class, and a place among the training nodes.
struct Graph {
    topology: Topology,
    book: PartitionBook,
    rows: Arc<MemorySource>,
}

fn graph(n_nodes: u32, ends: &[(u32, u32)], n_parts: u16) -> Graph {
    let edges = ends.iter().map(|&(from, to)| [from % n_nodes, to % n_nodes]);
    let edges = edges.chain([[n_nodes - 1; 2]]).collect();
    let owner = |node| PartId((splitmix64(u64::from(node)) % u64::from(n_parts)) as u16);
    let owners: Vec<PartId> = (0..n_nodes).map(owner).collect();
    let relabelling = Relabelling::new(&owners, n_parts).unwrap();
    let edges = MemoryEdges::new(edges).unwrap();
    let topology = Topology::from_edges(&edges, &relabelling, Direction::Undirected).unwrap();
    let mut rows = MemorySource::new(relabelling.book.clone());
    let value = |at| (splitmix64(u64::from(at)) >> 40) as f32 / (1u32 << 23) as f32 - 1.0;
    let features = (0..n_nodes * WIDTH).flat_map(|at| value(at).to_le_bytes()).collect();
    let classes = (0..n_nodes).flat_map(|id| i64::from(id % 3).to_le_bytes()).collect();
    rows.add("feat", Dtype::F32, WIDTH, features).unwrap();
    rows.add("label", Dtype::I64, 1, classes).unwrap();
    rows.add("split", Dtype::U8, 1, vec![0; n_nodes as usize]).unwrap();
    Graph { topology, book: relabelling.book.clone(), rows: Arc::new(rows) }
}

/// Returns the gradient of the first step of a run.
fn gradient(graph: &Graph, config: &TrainConfig, n_merges: u32) -> Vec<f64> {
    let rows: Arc<dyn RowSource> = Arc::clone(&graph.rows) as _;
    let sources = vec![WorkerSources::new(Arc::clone(&rows), rows); config.workers as usize];
    let on = TrainGraph {
        topology: &graph.topology,
        book: &graph.book,
        uuid: [1; 16],
        rows_from: RowsFrom::Embedded,
    };
    let setup = Setup::new(config, on, &sources, (0..config.workers).collect(), None).unwrap();
    let replica = Replica::new(&setup.model, config, setup.n_steps()).unwrap();
    let mut alone = ThreadCollective::alone();
    let mut group = ProcessGroup::new(&mut alone);
    group.open(replica.adam.lengths(), setup.opening(), None).unwrap();
    scope(|scope| {
        let mut team;
        let mut moving;
        let steps: &mut dyn Steps = match &config.strategy {
            Strategy::Hop(hop) if hop.migration == Migration::Paper => {
                moving = MigratingSteps::start(scope, &setup, hop, &group).unwrap();
                moving.n_merges = n_merges;
                &mut moving
            }
            _ => {
                let feed = SampledFeed { setup: &setup, sampling: Sampling::Seeded, ahead: 0 };
                let feed = |worker| feed.start(scope, worker, Place::default());
                team = Team::start(scope, &setup, &group, &feed).unwrap();
                &mut team
            }
        };
        let step = steps.step(Place::default(), &replica, &mut group).unwrap();
        let n_roots: u64 = step.outcomes.iter().map(|(_, outcome)| outcome.n_roots).sum();
        assert_eq!(step.n_roots, n_roots);
        step.gradients.concat().into_iter().map(f64::from).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// HopGNN's claim H4: with dropout, for all models, both migrations, and however time steps are
    /// merged.
    #[test]
    fn moved_roots_and_models_give_the_gradient_of_the_whole_batch(
        n_nodes in 1u32..60,
        ends in prop::collection::vec(any::<(u32, u32)>(), 0..300),
        fanouts in prop::collection::vec(prop::sample::select(vec![1u32, 3, 100]), 1..4),
        n_parts in 1u16..6,
        batch_size in 1usize..12,
        workers in 1u32..6,
        model in prop::sample::select(vec![ModelKind::Sage, ModelKind::Gcn, ModelKind::Gat]),
        merge in prop::sample::select(vec![Merge::Min, Merge::Random]),
        n_merges in 0u32..5,
    ) {
        let graph = graph(n_nodes, &ends, n_parts);
        let fanouts = fanouts.into_iter().map(|n| Fanout::at_most(n).unwrap()).collect();
        let usual = TrainConfig { fanouts, model, hidden: 8, n_heads: 2, n_output_heads: 2, ..TrainConfig::default() };
        let of = |strategy, workers, batch_size| {
            TrainConfig { strategy, workers, batch_size, ..usual.clone() }
        };
        let global = || {
            let roots = Roots::Global;
            Strategy::Ondemand(OndemandConfig { roots, ..OndemandConfig::default() })
        };
        let whole = of(global(), 1, batch_size * workers as usize);
        let expected = gradient(&graph, &whole, 0);
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|it| it * it).sum::<f64>().sqrt();
        let size = norm(&mut expected.iter().copied());
        let paper = || HopConfig { migration: Migration::Paper, ..HopConfig::default() };
        for strategy in [
            global(),
            Strategy::Hop(HopConfig::default()),
            Strategy::Hop(paper()),
            Strategy::Hop(HopConfig { pregather: false, ..paper() }),
            Strategy::Hop(HopConfig { merge, ..paper() }),
        ] {
            let found = gradient(&graph, &of(strategy.clone(), workers, batch_size), n_merges);
            let mut differences = found.iter().zip(&expected).map(|(found, expected)| found - expected);
            let difference = norm(&mut differences);
            prop_assert!(difference <= 1e-6 * size, "{strategy:?}: {difference} of {size}");
        }
    }
}
