//! Set-up before the first partition: plans of all of them, and the memory that they may take.

use std::{sync::Arc, thread::Scope};

use lodestore_client::buffer::RowBuffer;
use lodestore_client::parts::PartitionSource;
use lodestore_client::parts::turns::{Turn, Turns};
use lodestore_client::prefetch::PrefetchStats;
use lodestore_graph::NodeId;
use lodestore_graph::region::{Depth, PartitionPlan};
use lodestore_models::adam::ReplicaState;
use lodestore_models::model::Model;

use super::{
    average::Shares, config::SdtConfig, run::LocalModels, team::PartitionTeam,
    worker::PartitionWorker,
};
use crate::error::TrainError;
use crate::process_group::ProcessGroup;
use crate::setup::Setup;
use crate::step::Place;

/// Returns the training nodes of each partition.
fn roots_of_parts(setup: &Setup<'_>) -> Vec<Vec<NodeId>> {
    let mut roots = vec![Vec::new(); setup.graph.book.n_parts().into()];
    for &node in &setup.labels.train {
        if let Some(part) = setup.graph.book.part_of(node) {
            roots[part.index()].push(node);
        }
    }
    roots
}

fn partition_source<'a>(
    setup: &'a Setup<'_>,
    config: &SdtConfig,
    worker: u32,
) -> PartitionSource<'a> {
    let layers = setup.config.fanouts.len() as u32;
    let sources = setup.sources_of(worker);
    PartitionSource {
        topology: setup.graph.topology,
        book: setup.graph.book,
        local: &*sources.local,
        remote: &*sources.remote,
        tensor: &setup.config.feature_tensor,
        row_bytes: setup.row_bytes,
        depth: Depth { layers, halo_hops: config.halo_hops_of(setup.config.fanouts.len()) },
        worker,
        n_workers: setup.config.workers,
    }
}

/// Returns the local models of a run in which `state` is that of each, before the first step.
pub(super) fn initial_models(
    setup: &Setup<'_>,
    config: &SdtConfig,
    state: ReplicaState,
) -> LocalModels {
    let n_train: Vec<u64> = roots_of_parts(setup).iter().map(|roots| roots.len() as u64).collect();
    let lengths = state.values.iter().map(Vec::len).collect();
    let shares = Shares::new(&n_train, lengths, config.optimizer_state);
    let states = vec![state; n_train.len()];
    LocalModels { states, shares, kept_share: 1.0, saves: false }
}

/// Starts the workers of this process at `place`; also returns the plans of all partitions of the
/// run. Fails if a partition does not fit in the memory of a worker.
pub(super) fn partition_team<'scope, 'env>(
    setup: &'scope Setup<'scope>,
    config: &'scope SdtConfig,
    scope: &'scope Scope<'scope, 'env>,
    place: Place,
    group: &mut ProcessGroup<'_>,
) -> Result<(PartitionTeam<'scope>, Vec<PartitionPlan>), TrainError> {
    let n_parts = u32::from(setup.graph.book.n_parts());
    let roots: Vec<Arc<[NodeId]>> = roots_of_parts(setup).into_iter().map(Arc::from).collect();
    let mut own = Vec::new();
    for part in 0..n_parts {
        let worker = part % setup.config.workers;
        if setup.workers.contains(&worker) {
            let plan = partition_source(setup, config, worker).plan(part, &roots[part as usize]);
            own.push((part, plan));
        }
    }
    let mut plans = vec![PartitionPlan::default(); n_parts as usize];
    for (part, plan) in group.exchange(&own)?.into_iter().flatten() {
        plans[part as usize] = plan;
    }
    let n_graph = setup.graph.topology.n_nodes();
    let sizes: Vec<u64> = plans.iter().map(|plan| plan.bytes(setup.row_bytes, n_graph)).collect();
    check_memory(config, &sizes)?;
    let turn = |part: u32| Turn {
        part,
        roots: Arc::clone(&roots[part as usize]),
        n_bytes: sizes[part as usize],
    };
    let worker = |&worker: &u32| {
        let own = (worker..n_parts).step_by(setup.config.workers as usize);
        let turns: Vec<Turn> =
            own.filter(|&part| !roots[part as usize].is_empty()).map(turn).collect();
        let done = turns.iter().filter(|turn| turn.part < place.step).count();
        let first = place.epoch as usize * turns.len() + done;
        let range = first..setup.config.epochs as usize * turns.len();
        let budget = config.partition_bytes().map(|[left, _]| left);
        let source = partition_source(setup, config, worker);
        let learner = setup.learner(Model::new(&setup.spec(), setup.config.seed));
        let worker_of = PartitionWorker {
            config: setup.config,
            full_partition: config.full_partition,
            plan: setup.root_plan(),
            train: &setup.labels.train,
            learner,
            turns: Turns::start(scope, source, turns, range, budget),
            order: None,
            stats: PrefetchStats::default(),
            rows: RowBuffer::default(),
        };
        Ok((worker, worker_of))
    };
    let workers = setup.workers.iter().map(worker).collect::<Result<_, TrainError>>()?;
    let size = [setup.config.workers, n_parts];
    let team = PartitionTeam::start(scope, workers, group.n_local(), size)?;
    Ok((team, plans))
}

/// Fails if a partition does not fit in the memory of a worker.
fn check_memory(config: &SdtConfig, sizes: &[u64]) -> Result<(), TrainError> {
    let (Some(memory), Some([left, reserved])) = (config.memory_bytes, config.partition_bytes())
    else {
        return Ok(());
    };
    let largest = (0u32..).zip(sizes.iter().copied()).max_by_key(|(_, size)| *size);
    let (part, needed) = largest.unwrap_or_default();
    if needed <= left {
        return Ok(());
    }
    // Scales the number of partitions by the excess of the largest.
    let parts = (u128::from(needed) * sizes.len() as u128).div_ceil(u128::from(left.max(1)));
    let parts = u64::try_from(parts).unwrap_or(u64::MAX);
    Err(TrainError::PartitionSize(format!(
        "partition {part} with its halo takes {needed} bytes, and of the {memory} bytes of a \
         worker {left} are for it, since training is left {reserved}: import the graph in {parts} \
         partitions or more, allow more memory, or leave less to training"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_that_does_not_fit_is_an_error_with_the_partitions_that_would() {
        let usual = SdtConfig::default();
        let checked = |memory_bytes, reserved_bytes, sizes: &[u64]| {
            check_memory(&SdtConfig { memory_bytes, reserved_bytes, ..usual }, sizes)
        };
        checked(None, None, &[u64::MAX]).unwrap();
        checked(Some(300), None, &[100, 99]).unwrap();
        checked(Some(300), Some(0), &[300, 99]).unwrap();
        let error = checked(Some(300), None, &[99, 250, 100]).unwrap_err().to_string();
        assert!(error.contains("partition 1") && error.contains("250 bytes"), "{error}");
        assert!(error.contains("import the graph in 8 partitions or more"), "{error}");
        assert!(checked(Some(3), Some(7), &[1]).is_err());
    }
}
