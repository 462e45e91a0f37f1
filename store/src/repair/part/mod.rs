//! One partition: its catalog and the segments that the catalog names.

mod candidates;
mod contents;
mod deltas;
mod rebuild;
mod tensor;

use super::actions::RepairActions;
use super::partitions::Partition;
use crate::error::StoreError;
use crate::graph::Graph;
use contents::Contents;
use deltas::plan_deltas;
use rebuild::CatalogPlan;
use tensor::TensorWork;

/// Repairs catalog and segments of a partition.
///
/// The catalog comes first: it says which tables the segments must have before they have them. A
/// crash in between leaves segments that cannot be opened, as they were before, and whose tables
/// the catalog now proves.
pub(super) fn restore(
    actions: &mut RepairActions,
    graph: &Graph,
    partition: Partition,
) -> Result<(), StoreError> {
    let part = partition.part;
    let contents = Contents::read(actions, graph, partition)?;
    let mut work = Vec::new();
    for spec in &graph.meta().tensors {
        work.push(TensorWork::plan(actions, graph, part, spec, &contents)?);
    }
    let deltas = plan_deltas(actions, graph, part, &contents, &work)?;
    // Before a new catalog loses the reason: files that it does not name are removed by the next
    // writer.
    for tensor in &work {
        tensor.set_strays_aside(actions)?;
    }
    CatalogPlan { graph, part, contents, work: &work, deltas: &deltas }.publish(actions)?;
    work.into_iter().try_for_each(|tensor| tensor.publish(actions))
}
