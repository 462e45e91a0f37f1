//! SPRING, the streaming partitioner of SDT-GNN (Section III-B, Algorithm 1).
//!
//! 1. Degrees: one pass.
//! 2. Node clustering (lines 2–17): a pass in which each edge may pull one of its ends into the
//!    cluster of the other.
//! 3. Cluster merging (lines 18–25): small clusters join the cluster of their representative's
//!    richest neighbour.
//! 4. Assignment (lines 26–29): clusters, largest first, to the least occupied partition.
//!
//! Where the paper leaves a choice:
//!
//! - Ties of representatives and of sizes go to the lower number instead of a coin toss.
//! - Self loops count for nothing, since they can never be cut.
//! - Nodes without edges, which the paper does not have, fill up the least occupied partitions at
//!   the end.

mod cluster;
mod merge;

use serde::Serialize;

use super::{PartitionConfig, PartitionError, Steps};
use crate::edges::EdgeStream;
use crate::ids::PartId;
use crate::partition::loads::Loads;
use merge::Clusters;

pub(super) use cluster::{Mover, Node, UNSEEN, Volumes, degrees, pass as clustering_pass};

/// Parameters of SPRING.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpringParams {
    /// τ_vol: a cluster of larger volume (sum of degrees) neither takes nor loses nodes. The paper
    /// names no value; the default is a twentieth of the volume of all nodes per partition, 0.1 ·
    /// |E| / p of the edges of the stream, as its code has. Twice of it is 1 % worse in the mean of
    /// seven graphs (benches/notes/partitioners.md).
    pub tau_vol: Option<f64>,
    /// β: merging makes no cluster of more than β · |V| / p nodes. It does not bound partitions.
    pub beta: f64,
    /// Clustering passes over the stream, 1 in the paper; more of them undo some bad early moves.
    pub passes: u32,
}

/// How many clusters SPRING had (SDT-GNN, Table II).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClusterCounts {
    /// Clusters with nodes after the clustering passes.
    pub found: u32,
    /// Those that are left after merging.
    pub merged: u32,
}

impl Default for SpringParams {
    fn default() -> Self {
        Self { tau_vol: None, beta: 1.05, passes: 1 }
    }
}

impl SpringParams {
    pub(super) fn check(&self) -> Result<(), PartitionError> {
        let tau_vol = self.tau_vol.unwrap_or(0.0);
        let cases = [
            ("tau_vol", "a number from 0", tau_vol, tau_vol >= 0.0),
            ("beta", "a number above 0", self.beta, self.beta > 0.0),
            ("passes", "1 or more", f64::from(self.passes), self.passes > 0),
        ];
        match cases.into_iter().find(|&(_, _, value, good)| !good || !value.is_finite()) {
            Some((name, expected, found, _)) => {
                Err(PartitionError::Parameter { name, expected, found })
            }
            None => Ok(()),
        }
    }
}

/// Returns the bytes of merging `n_clusters` clusters of `n_nodes` nodes.
pub(super) fn merging_bytes(n_nodes: u64, n_clusters: u64) -> u64 {
    size_of::<cluster::Node>() as u64 * n_nodes + merge::CLUSTER_BYTES * n_clusters
}

/// Returns the owner of each node; clusters of partitions above the capacity move where they fit.
/// Peak memory: 24 bytes per node while clustering, then [`merging_bytes`] of the clusters found.
pub(super) fn spring(
    edges: &dyn EdgeStream,
    n_nodes: u32,
    params: &SpringParams,
    config: &PartitionConfig,
    steps: &mut Steps,
) -> Result<(Vec<PartId>, ClusterCounts), PartitionError> {
    let n_parts = config.n_parts;
    let per_part = f64::from(n_nodes) / f64::from(n_parts);
    // Each edge is part of two degrees.
    let volume = 2.0 * edges.n_edges() as f64;
    let tau_vol = 0.05 * volume / f64::from(n_parts);
    let tau_vol = params.tau_vol.unwrap_or(tau_vol) as u64;

    let mut nodes = cluster::degrees(edges, n_nodes)?;
    steps.done("degrees", 1);
    let mut volumes = Volumes::new(n_nodes as usize);
    for pass in 1..=params.passes {
        cluster::pass(edges, &mut nodes, &mut volumes, cluster::by_spring(tau_vol))?;
        steps.done(format!("clustering {pass}"), 1);
    }
    let n_created = volumes.n_made();
    drop(volumes);
    let found = merge::renumber(&mut nodes, n_created) as u32;
    let needed_bytes = merging_bytes(n_nodes.into(), found.into());
    if let Some(max_bytes) = config.max_memory_bytes.filter(|&most| needed_bytes > most) {
        return Err(PartitionError::MergingMemory { n_clusters: found, needed_bytes, max_bytes });
    }
    let clusters = merge::merge(&nodes, found as usize, params.beta * per_part);
    let counts = ClusterCounts { found, merged: clusters.largest_first().len() as u32 };
    steps.done("merging", 0);

    Ok((assign(&nodes, clusters, n_parts, config.capacity(n_nodes)), counts))
}

/// Assigns clusters to partitions (lines 26–29). Clusters, largest first, go to the least occupied
/// partition (longest processing time first), then nodes without edges one by one. Partitions of
/// more than `capacity` nodes give up clusters, the smallest first, where another has room for
/// them.
fn assign(
    nodes: &[Node],
    mut clusters: Clusters,
    n_parts: u16,
    capacity: Option<u64>,
) -> Vec<PartId> {
    let mut owners = vec![PartId(0); clusters.n_numbered()];
    let mut loads = Loads::new(n_parts);
    let order = clusters.largest_first();
    for &root in &order {
        owners[root as usize] = loads.add_to_least(u64::from(clusters.size(root)));
    }
    if let Some(capacity) = capacity {
        for &root in order.iter().rev() {
            let owner = &mut owners[root as usize];
            loads.relieve(owner, u64::from(clusters.size(root)), capacity);
        }
    }
    drop(order);
    nodes
        .iter()
        .map(|node| match node.cluster {
            UNSEEN => loads.add_to_least(1),
            cluster => owners[clusters.root(cluster) as usize],
        })
        .collect()
}

#[cfg(test)]
mod tests;
