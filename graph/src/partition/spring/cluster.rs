//! Node clustering (Algorithm 1, lines 2–17).

use crate::edges::{EdgeError, EdgeStream};

/// The cluster of a node that no edge has named yet.
pub(crate) const UNSEEN: u32 = u32::MAX;

/// Edges whose state is loaded ahead together.
const TOUCH_EDGES: usize = 128;

/// What is kept of a node; 16 bytes side by side, so that an edge costs one cache miss per end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// Counts the degrees of all nodes in one pass. Self loops do not count.
pub(in crate::partition) fn degrees(
    edges: &dyn EdgeStream,
    n_nodes: u32,
) -> Result<Vec<Node>, EdgeError> {
    let unseen = |id| Node { degree: 0, cluster: UNSEEN, richest: id, richest_degree: 0 };
    let mut nodes: Vec<Node> = (0..n_nodes).map(unseen).collect();
    edges.for_each_chunk(&mut |chunk| {
        for &[u, v] in chunk {
            let counted = u32::from(u != v);
            for end in [u, v] {
                let degree = &mut nodes[end as usize].degree;
                *degree = degree.saturating_add(counted);
            }
        }
        Ok(())
    })?;
    Ok(nodes)
}

/// Which end of an edge moves into the cluster of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::partition) enum Mover {
    First,
    Second,
}

/// SPRING's rule (lines 10–15): of two clusters of at most `tau_vol` the smaller one gives its node.
pub(in crate::partition) fn by_spring(
    tau_vol: u64,
) -> impl Fn([u64; 2], [u32; 2]) -> Option<Mover> {
    move |[volume_u, volume_v], _| match volume_u <= tau_vol && volume_v <= tau_vol {
        true if volume_u <= volume_v => Some(Mover::First),
        true => Some(Mover::Second),
        false => None,
    }
}

/// One clustering pass; `volumes` has an entry for each cluster that was ever made. `rule` tells who
/// moves from the volumes of both ends' clusters, which differ, and the degrees of both.
pub(in crate::partition) fn pass(
    edges: &dyn EdgeStream,
    nodes: &mut [Node],
    volumes: &mut Vec<u64>,
    rule: impl Fn([u64; 2], [u32; 2]) -> Option<Mover>,
) -> Result<(), EdgeError> {
    edges.for_each_chunk(&mut |chunk| {
        for edges in chunk.chunks(TOUCH_EDGES) {
            touch(nodes, volumes, edges);
            for &[u, v] in edges {
                if u != v {
                    see_edge(nodes, volumes, &rule, u, v);
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
    volumes: &mut Vec<u64>,
    rule: &impl Fn([u64; 2], [u32; 2]) -> Option<Mover>,
    u: u32,
    v: u32,
) {
    let (mut node_u, mut node_v) = (nodes[u as usize], nodes[v as usize]);
    for node in [&mut node_u, &mut node_v] {
        if node.cluster == UNSEEN {
            // At most one cluster per node, so numbers stay below UNSEEN.
            node.cluster = volumes.len() as u32;
            volumes.push(u64::from(node.degree));
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
