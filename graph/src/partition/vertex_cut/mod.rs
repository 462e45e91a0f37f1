//! Edge partitioners, made fit for graph neural networks.
//!
//! `dbh`, `greedy`, `hdrf` and `2ps-l` assign edges to partitions, and a node has a copy wherever
//! it has an edge. A network needs every node once with all of its neighbours (SDT-GNN, Section
//! II-B). So each node is owned by the partition that has most of its edges: there the fewest
//! neighbours are missing.
//!
//! The owner's list is then completed, as for every other partitioner. The replication factor of
//! the report includes this. The factor over the copies alone, which the papers of these
//! partitioners state, is reported beside it.
//!
//! Edges are counted in a byte per node and partition. Counts are exact up to 255; for hubs above
//! that, all counts of the node are halved, rounded upwards.

mod dbh;
mod greedy;
mod hdrf;
mod state;
mod two_ps_l;

use serde::Serialize;

use super::spring::degrees;
use super::{Algorithm, PartitionError, Steps};
use crate::edges::EdgeStream;
use crate::ids::PartId;
use state::State;

/// Result of a partitioner of edges, before neighbour lists were completed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VertexCutReport {
    /// Mean number of partitions with an edge of a node; a node without edges counts 1.
    pub replication_factor: f64,
    /// Edges of the fullest partition over the mean; self loops are not placed.
    pub edge_balance: f64,
}

/// Places all edges that are no loops by `rule`, one of the four, and returns each node an owner.
pub(super) fn vertex_cut(
    edges: &dyn EdgeStream,
    n_nodes: u32,
    n_parts: u16,
    rule: &Algorithm,
    steps: &mut Steps,
) -> Result<(Vec<PartId>, VertexCutReport), PartitionError> {
    let mut state = State::new(n_nodes, n_parts);
    if *rule == Algorithm::Hdrf {
        hdrf::place(edges, &mut state)?;
    } else {
        let known = degrees(edges, n_nodes)?;
        steps.done("degrees", 1);
        match rule {
            Algorithm::Dbh => dbh::place(edges, &known, &mut state)?,
            Algorithm::Greedy => greedy::place(edges, known, &mut state)?,
            _ => two_ps_l::place(edges, known, &mut state, steps)?,
        }
    }
    steps.done("edges", 1);
    Ok(state.finish())
}

#[cfg(test)]
mod tests;
