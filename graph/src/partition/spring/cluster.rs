//! Node clustering (Algorithm 1, lines 2–17).

use bytemuck::{Pod, Zeroable};

use crate::edges::{EdgeError, EdgeStream};
use crate::huge::HugeVec;

/// The cluster of a node that no edge has named yet.
pub(in crate::partition) const UNSEEN: u32 = u32::MAX;

/// Edges whose state is loaded ahead together.
const TOUCH_EDGES: usize = 128;

/// State of a node; 16 bytes side by side, so that an edge costs one cache miss per end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(in crate::partition) struct Node {
    /// Edges at the node, in either direction.
    pub(in crate::partition) degree: u32,
    /// The cluster that it is in.
    pub(in crate::partition) cluster: u32,
    /// Its neighbour of the largest degree, the first seen of several; itself before there is one.
    pub(in crate::partition) richest: u32,
    /// Degree of that neighbour; 0 before there is one.
    pub(in crate::partition) richest_degree: u32,
}

/// Sums of degrees of the nodes of clusters; there is room for a cluster of each node.
#[derive(Debug)]
pub(in crate::partition) struct Volumes {
    /// Volumes of the clusters made so far, then zeros.
    volumes: HugeVec<u64>,
    n_made: usize,
}

impl Volumes {
    /// No clusters yet, of `n_nodes` nodes.
    pub(in crate::partition) fn new(n_nodes: usize) -> Self {
        Self { volumes: HugeVec::zeroed(n_nodes), n_made: 0 }
    }

    /// Returns the number of clusters that were ever made.
    pub(in crate::partition) fn n_made(&self) -> usize {
        self.n_made
    }

    /// Returns the volumes of all clusters.
    pub(in crate::partition) fn made(&self) -> &[u64] {
        &self.volumes[..self.n_made]
    }
}

/// Counts the degrees of all nodes in one pass. Self loops do not count.
pub(in crate::partition) fn degrees(
    edges: &dyn EdgeStream,
    n_nodes: u32,
) -> Result<HugeVec<Node>, EdgeError> {
    // Apart from the rest of a node: four times as many stay near the core.
    let mut degrees = HugeVec::<u32>::zeroed(n_nodes as usize);
    edges.for_each_chunk(&mut |chunk| {
        let degrees = &mut degrees[..];
        for &[u, v] in chunk {
            let counted = u32::from(u != v);
            for end in [u, v] {
                let degree = &mut degrees[end as usize];
                *degree = degree.saturating_add(counted);
            }
        }
        Ok(())
    })?;
    Ok(HugeVec::from_fn(n_nodes as usize, |id| Node {
        degree: degrees[id],
        cluster: UNSEEN,
        richest: id as u32,
        richest_degree: 0,
    }))
}

/// Which end of an edge moves into the cluster of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::partition) enum Mover {
    First,
    Second,
}

/// SPRING's rule (lines 10–15): of two clusters of at most `tau_vol` the smaller one loses its
/// node.
pub(in crate::partition) fn by_spring(
    tau_vol: u64,
) -> impl Fn([u64; 2], [u32; 2]) -> Option<Mover> {
    move |[volume_u, volume_v], _| match volume_u <= tau_vol && volume_v <= tau_vol {
        true if volume_u <= volume_v => Some(Mover::First),
        true => Some(Mover::Second),
        false => None,
    }
}

/// One clustering pass; `volumes` has an entry for each cluster that was ever made. `rule` decides
/// the end that moves from the volumes of both ends' clusters, which differ, and the degrees of
/// both.
pub(in crate::partition) fn pass(
    edges: &dyn EdgeStream,
    nodes: &mut [Node],
    volumes: &mut Volumes,
    rule: impl Fn([u64; 2], [u32; 2]) -> Option<Mover>,
) -> Result<(), EdgeError> {
    let Volumes { volumes, n_made } = volumes;
    edges.for_each_chunk(&mut |chunk| {
        let volumes = &mut volumes[..];
        for edges in chunk.chunks(TOUCH_EDGES) {
            touch(nodes, volumes, edges);
            for &[u, v] in edges {
                if u != v {
                    see_edge(nodes, volumes, n_made, &rule, [u, v]);
                }
            }
        }
        Ok(())
    })
}

/// Loads what the next edges will need. Each edge waits for the one before it, so that their cache
/// misses would come one by one; here they overlap.
fn touch(nodes: &[Node], volumes: &[u64], edges: &[[u32; 2]]) {
    let mut sum = 0;
    for &end in edges.as_flattened() {
        sum ^= u64::from(nodes[end as usize].degree);
    }
    for &end in edges.as_flattened() {
        let cluster = nodes[end as usize].cluster as usize;
        sum ^= volumes.get(cluster).copied().unwrap_or(0);
    }
    std::hint::black_box(sum);
}

#[inline]
fn see_edge(
    nodes: &mut [Node],
    volumes: &mut [u64],
    n_made: &mut usize,
    rule: &impl Fn([u64; 2], [u32; 2]) -> Option<Mover>,
    [u, v]: [u32; 2],
) {
    let (mut node_u, mut node_v) = (nodes[u as usize], nodes[v as usize]);
    for node in [&mut node_u, &mut node_v] {
        if node.cluster == UNSEEN {
            // At most one cluster per node, so numbers stay below UNSEEN.
            node.cluster = *n_made as u32;
            volumes[*n_made] = u64::from(node.degree);
            *n_made += 1;
        }
    }
    let (cluster_u, cluster_v) = (node_u.cluster as usize, node_v.cluster as usize);
    if cluster_u != cluster_v {
        let both = [volumes[cluster_u], volumes[cluster_v]];
        if let Some(mover) = rule(both, [node_u.degree, node_v.degree]) {
            let (mover, from, to) = match mover {
                Mover::First => (&mut node_u, cluster_u, cluster_v),
                Mover::Second => (&mut node_v, cluster_v, cluster_u),
            };
            mover.cluster = to as u32;
            // A changing file could make degrees disagree with an earlier pass: never below 0.
            volumes[from] = volumes[from].saturating_sub(u64::from(mover.degree));
            volumes[to] += u64::from(mover.degree);
        }
    }
    if node_u.richest_degree < node_v.degree {
        (node_u.richest, node_u.richest_degree) = (v, node_v.degree);
    }
    if node_v.richest_degree < node_u.degree {
        (node_v.richest, node_v.richest_degree) = (u, node_u.degree);
    }
    nodes[u as usize] = node_u;
    nodes[v as usize] = node_v;
}
