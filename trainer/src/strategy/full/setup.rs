//! Set-up before the first epoch: the part of the graph of each partition, and its inputs.

use lodestore_graph::halo::part_graph::{Halos, PartGraph};
use lodestore_graph::{
    NodeId, PartId,
    rapa::{DeviceProfile, RapaParams, adjust, part_loads},
};
use lodestore_models::attention::Entries;
use lodestore_models::conv::Hop;
use lodestore_models::matrix::workspace::Workspace;

use super::{
    compress::RowCode,
    config::{FullConfig, Halo},
    exchange::{Placement, Routes},
    inputs::{InputSource, Inputs},
    operator::Operator,
    part::{Aggregator, Part, PartPass, PartRoots},
    plan::{FeatureForm, LayerPlan},
    team::{Exchange, FullTeam},
};
use crate::error::TrainError;
use crate::labels::Labels;
use crate::options::ModelKind;
use crate::process_group::ProcessGroup;
use crate::setup::Setup;
use crate::step_outcome::MemberStats;
use crate::worker_thread::thread_pool;

impl FullTeam {
    /// Makes the partitions of this process, and pulls the inputs of their halos.
    pub(super) fn new(
        setup: &Setup<'_>,
        config: &FullConfig,
        group: &ProcessGroup<'_>,
    ) -> Result<Self, TrainError> {
        let book = setup.graph.book;
        let n_parts = u32::from(book.n_parts());
        let n_workers = setup.config.workers;
        let pool = thread_pool(group.n_local() as usize)?;
        let halos =
            Halos::find(setup.graph.topology, book, &dropped_replicas(setup, &config.devices)?);
        let own = (0..n_parts).filter(|part| setup.workers.contains(&(part % n_workers)));
        let part = |part| part_of(setup, config.halo, part, &halos);
        let parts = pool.install(|| own.map(part).collect::<Result<Vec<Part>, TrainError>>())?;
        let (n_ranks, rank) = (group.n_ranks(), group.rank());
        let placement = Placement { n_workers, n_ranks, rank };
        let n_layers = setup.config.fanouts.len();
        let exchange = Exchange {
            placement,
            routes: Routes::both(&parts, placement),
            code: RowCode { compression: config.compress },
            halo: config.halo,
            overlaps: config.overlap,
            staleness: config.staleness,
            layers: (0..n_layers).map(|_| Default::default()).collect(),
            seconds: std::time::Duration::ZERO,
            waited: std::time::Duration::ZERO,
            oldest: 0,
            epoch: 0,
        };
        let n_train = setup.labels.train.len() as u64;
        let stats = vec![MemberStats::default(); n_workers as usize];
        let kept_share = halos.kept_share;
        Ok(Self { parts, exchange, pool, n_train, n_parts, kept_share, stats })
    }
}

fn part_of(setup: &Setup<'_>, halo: Halo, part: u32, halos: &Halos) -> Result<Part, TrainError> {
    let (topology, book, config) = (setup.graph.topology, setup.graph.book, setup.config);
    let graph = PartGraph::new(topology, book, halos, part)
        .map_err(|error| TrainError::PartitionSize(error.to_string()))?;
    let worker = part % config.workers;
    let source = InputSource {
        sources: setup.sources_of(worker).clone(),
        book: book.clone(),
        tensor: config.feature_tensor.clone(),
        row_bytes: setup.row_bytes,
        features: setup.features.clone(),
        worker,
        n_workers: config.workers,
    };
    let inputs = Inputs::load(source, &graph, halo)?;
    let aggregator = aggregator(setup, &graph);
    let form = if inputs.are_sparse() { FeatureForm::Sparse } else { FeatureForm::Dense };
    let plans = LayerPlan::of_layers(&setup.model.layers, setup.features.width, form);
    let roots = roots_of(&setup.labels, &graph);
    let (workspace, pass) = (Workspace::default(), PartPass::default());
    Ok(Part { graph, inputs, aggregator, plans, roots, workspace, pass, seconds: 0.0 })
}

fn aggregator(setup: &Setup<'_>, graph: &PartGraph) -> Aggregator {
    let degree = |node: NodeId| setup.graph.topology.in_degree(node);
    match setup.config.model {
        ModelKind::Gcn => {
            let degrees: Vec<u32> = graph.nodes.iter().map(|&node| degree(node)).collect();
            Aggregator::Weighted(Operator::normalised(graph, &degrees))
        }
        ModelKind::Sage => Aggregator::Weighted(Operator::mean(graph)),
        ModelKind::Gat => {
            let (block, nodes) = (&graph.block, &graph.nodes[..]);
            let keys = Hop { block, nodes, degree: &degree }.entry_keys().collect();
            Aggregator::Attention { entries: Entries::of(block), keys }
        }
    }
}

/// Returns the replicas that each partition does without by RAPA (section 4.3); none for all
/// unless there are profiles.
fn dropped_replicas(
    setup: &Setup<'_>,
    devices: &[DeviceProfile],
) -> Result<Vec<Vec<NodeId>>, TrainError> {
    let book = setup.graph.book;
    if devices.is_empty() {
        return Ok(Vec::new());
    }
    let of_part = |part: PartId| devices[usize::from(part.0) % devices.len()].clone();
    let of_parts: Vec<_> = book.parts().map(of_part).collect();
    let loads = part_loads(setup.graph.topology, book);
    let node_bytes = RapaParams::default().node_bytes + setup.row_bytes as u64;
    let params = RapaParams { node_bytes, ..RapaParams::default() };
    let adjusted = adjust(&loads, &of_parts, &params)?;
    for (part, (adjusted, device)) in (0u32..).zip(adjusted.parts.iter().zip(&of_parts)) {
        if !adjusted.fits {
            let (needed, found, device) = (adjusted.bytes, device.memory_bytes, &device.name);
            return Err(TrainError::PartitionSize(format!(
                "partition {part} takes {needed} bytes without any halo that it can do without, \
                 and device `{device}` has {found}; import the graph in more partitions, or take \
                 another device"
            )));
        }
    }
    let dropped = loads.iter().zip(&adjusted.parts).map(|(load, adjusted)| {
        load.replicas[..adjusted.n_dropped].iter().map(|replica| replica.node).collect()
    });
    Ok(dropped.collect())
}

/// Returns the training nodes of a partition by local id, with their labels.
fn roots_of(labels: &Labels, graph: &PartGraph) -> PartRoots {
    let Some(first) = graph.own().first().copied() else {
        return PartRoots { local_ids: Vec::new(), targets: labels.targets_of(&[]) };
    };
    let own = first.0..first.0 + graph.n_own as u32;
    let roots = labels.train.iter().copied().filter(|node| own.contains(&node.0));
    let roots: Vec<NodeId> = roots.collect();
    let targets = labels.targets_of(&roots);
    let local_ids = roots.into_iter().map(|node| node.0 - first.0).collect();
    PartRoots { local_ids, targets }
}
