//! Contraction: nodes that belong together become one.
//!
//! Clusters come from size-constrained label propagation (Meyerhenke, Sanders and Schulz, SEA
//! 2014). When they keep to the partitions, the partitions of the graph are partitions of the
//! contracted one too, and nothing is lost. When they do not, each takes the partition of most of
//! its nodes, which repairs partitions that tear neighbours apart.

use std::cmp::Reverse;

use super::level::{Level, Lists};
use crate::huge::HugeVec;
use crate::ids::PartId;
use crate::splitmix64::splitmix64;

/// Rounds in which each node joins the cluster that pulls it most.
const ROUNDS: u64 = 3;

/// Bytes of a node of a contracted graph: 8 offset, 4 size, 2 partition.
const CLUSTER_BYTES: u64 = 14;
/// Neighbours that a pruned list keeps at least.
const MIN_LIST: usize = 8;
/// Bytes of an edge in the list of one of its ends: 4 neighbour, 4 weight.
const EDGE_BYTES: u64 = 8;

/// A contracted graph.
pub(super) struct Contracted {
    pub(super) level: Level,
    /// Node of `level` that each node went to.
    pub(super) parents: HugeVec<u32>,
    /// Partition of each node of `level`.
    pub(super) parts: Vec<PartId>,
}

/// How nodes are put together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clustering {
    /// Nodes of the graph in a cluster, at most.
    pub(super) max_size: u32,
    /// Lists that are longer than there is room for keep the heaviest edges.
    pub(super) prune: bool,
    /// Clusters keep to the partitions.
    pub(super) within: bool,
    /// Decides between equal clusters.
    pub(super) seed: u64,
}

/// Contracts clusters of the nodes of `level`; `None` when what comes of it takes more than
/// `max_bytes`.
pub(super) fn contract(
    level: &impl Lists,
    parts: &[PartId],
    clustering: Clustering,
    max_bytes: u64,
) -> Option<Contracted> {
    contract_clusters(level, parts, clusters(level, parts, clustering), clustering, max_bytes)
}

/// Contracts given clusters.
pub(super) fn contract_clusters(
    level: &impl Lists,
    parts: &[PartId],
    mut parents: HugeVec<u32>,
    clustering: Clustering,
    max_bytes: u64,
) -> Option<Contracted> {
    bundle(level, parts, &mut parents, clustering.max_size);
    let n_clusters = renumber(&mut parents);
    let per_node = 4 * parents.len() as u64 + CLUSTER_BYTES * n_clusters as u64;
    let max_edges = max_bytes.checked_sub(per_node)? / EDGE_BYTES;
    let mut sizes = vec![0; n_clusters];
    for (node, &parent) in (0..).zip(&*parents) {
        sizes[parent as usize] += level.size(node);
    }
    let parts = majorities(level, parts, &parents, n_clusters);
    let mut level = contracted_edges(level, &parents, n_clusters, max_edges, clustering)?;
    level.sizes = sizes;
    Some(Contracted { level, parents, parts })
}

impl Contracted {
    /// Returns the bytes that all of it takes.
    pub(super) fn n_bytes(&self) -> u64 {
        let (n_below, n_nodes) = (self.parents.len() as u64, self.parts.len() as u64);
        4 * n_below + CLUSTER_BYTES * n_nodes + EDGE_BYTES * self.level.neighbours.len() as u64
    }
}

/// Returns a cluster for each node, named by one of the nodes. Poor nodes choose first.
fn clusters(level: &impl Lists, parts: &[PartId], clustering: Clustering) -> HugeVec<u32> {
    let Clustering { max_size, within, seed, .. } = clustering;
    let n_nodes = level.n_nodes();
    let mut cluster_of = HugeVec::from_fn(n_nodes as usize, |node| node as u32);
    let mut sizes: Vec<u32> = (0..n_nodes).map(|node| level.size(node)).collect();
    let mut order: Vec<u32> = (0..n_nodes).collect();
    order.sort_unstable_by_key(|&v| (level.degree(v), splitmix64(seed ^ u64::from(v)) as u32, v));
    let mut pulls = vec![0u32; n_nodes as usize];
    let mut met = Vec::new();
    for round in 0..ROUNDS {
        let mut n_moved = 0u32;
        for &node in &order {
            let (own, size) = (cluster_of[node as usize], level.size(node));
            for (neighbour, weight) in level.edges(node) {
                if within && parts[neighbour as usize] != parts[node as usize] {
                    continue;
                }
                let cluster = cluster_of[neighbour as usize];
                let pull = &mut pulls[cluster as usize];
                if *pull == 0 {
                    met.push(cluster);
                }
                *pull = pull.saturating_add(weight);
            }
            // Staying wins only against less.
            let mut best = (pulls[own as usize], 0, own);
            for cluster in met.drain(..) {
                let pull = std::mem::take(&mut pulls[cluster as usize]);
                let fits = sizes[cluster as usize].saturating_add(size) <= max_size;
                if cluster != own && fits && pull >= best.0 {
                    let tie = splitmix64(seed ^ round << 32 ^ u64::from(cluster)) | 1;
                    best = best.max((pull, tie, cluster));
                }
            }
            if best.2 != own {
                cluster_of[node as usize] = best.2;
                sizes[own as usize] -= size;
                sizes[best.2 as usize] += size;
                n_moved += 1;
            }
        }
        if n_moved <= n_nodes / 50 {
            break;
        }
    }
    cluster_of
}

/// Puts nodes together that are alone and have no neighbour in their partition, in order of their
/// ids. Otherwise they would stay alone on every level.
fn bundle(level: &impl Lists, parts: &[PartId], cluster_of: &mut [u32], max_size: u32) {
    let mut alone = vec![true; cluster_of.len()];
    for (node, &cluster) in cluster_of.iter().enumerate() {
        if cluster as usize != node {
            alone[cluster as usize] = false;
            alone[node] = false;
        }
    }
    let n_parts = parts.iter().max().map_or(0, |part| part.index() + 1);
    let mut open = vec![None; n_parts];
    for node in 0..level.n_nodes() {
        let (own, size) = (parts[node as usize], level.size(node));
        if !alone[node as usize] || level.edges(node).any(|(v, _)| parts[v as usize] == own) {
            continue;
        }
        let (cluster, bundled) = match open[own.index()] {
            Some((cluster, bundled)) if bundled + size <= max_size => (cluster, bundled + size),
            _ => (node, size),
        };
        open[own.index()] = Some((cluster, bundled));
        cluster_of[node as usize] = cluster;
    }
}

/// Numbers the clusters by their first node.
fn renumber(cluster_of: &mut [u32]) -> usize {
    let mut numbers = vec![u32::MAX; cluster_of.len()];
    let mut n_clusters = 0;
    for cluster in cluster_of {
        let number = &mut numbers[*cluster as usize];
        if *number == u32::MAX {
            *number = n_clusters;
            n_clusters += 1;
        }
        *cluster = *number;
    }
    n_clusters as usize
}

/// Returns the partition of most nodes of each cluster, if it has more than half of them; else that
/// of any of its nodes. It is the vote of Boyer and Moore, in one word per cluster.
fn majorities(
    level: &impl Lists,
    parts: &[PartId],
    parents: &[u32],
    n_clusters: usize,
) -> Vec<PartId> {
    let mut candidates = vec![PartId(0); n_clusters];
    let mut leads = vec![0u32; n_clusters];
    for (node, &parent) in (0..).zip(parents) {
        let candidate = &mut candidates[parent as usize];
        let lead = &mut leads[parent as usize];
        let (part, size) = (parts[node as usize], level.size(node));
        if *candidate == part {
            *lead += size;
        } else if *lead >= size {
            *lead -= size;
        } else {
            (*candidate, *lead) = (part, size - *lead);
        }
    }
    candidates
}

/// Adds up the edges between clusters; `None` when they are more than `max_edges`, counted at both
/// ends.
fn contracted_edges(
    level: &impl Lists,
    parents: &[u32],
    n_clusters: usize,
    max_edges: u64,
    clustering: Clustering,
) -> Option<Level> {
    let (starts, members) = members(parents, n_clusters);
    // Room for as many as there may be: of memory that is never written none is taken, where lists
    // that grow would take up to twice what they hold.
    let most = level.n_entries().min(usize::try_from(max_edges).unwrap_or(usize::MAX));
    let max_list = match clustering.prune {
        true => {
            let fitting = max_edges / n_clusters.max(1) as u64;
            usize::try_from(fitting).unwrap_or(usize::MAX).max(MIN_LIST)
        }
        false => usize::MAX,
    };
    let mut offsets = Vec::with_capacity(n_clusters + 1);
    offsets.push(0);
    let (neighbours, weights) = (Vec::with_capacity(most), Vec::with_capacity(most));
    let mut coarse = Level { offsets, neighbours, weights, sizes: Vec::new() };
    // Place of each cluster in the list at hand, if it is there.
    let mut places = vec![u32::MAX; n_clusters];
    let mut list: Vec<(u32, u32)> = Vec::new();
    for cluster in 0..n_clusters {
        for &node in &members[starts[cluster] as usize..starts[cluster + 1] as usize] {
            for (neighbour, weight) in level.edges(node) {
                let other = parents[neighbour as usize];
                if other as usize == cluster {
                    continue;
                }
                let place = &mut places[other as usize];
                match list.get_mut(*place as usize) {
                    Some((sum, found)) if *found == other => *sum = sum.saturating_add(weight),
                    _ => {
                        *place = list.len() as u32;
                        list.push((weight, other));
                    }
                }
            }
        }
        if list.len() > max_list {
            let hash = |other: u32| splitmix64(clustering.seed ^ u64::from(other));
            list.select_nth_unstable_by_key(max_list, |&(weight, other)| {
                (Reverse(weight), hash(other))
            });
            list.truncate(max_list);
        }
        if coarse.neighbours.len() + list.len() > most {
            return None;
        }
        coarse.neighbours.extend(list.iter().map(|&(_, other)| other));
        coarse.weights.extend(list.drain(..).map(|(weight, _)| weight));
        coarse.offsets.push(coarse.neighbours.len() as u32);
    }
    coarse.neighbours.shrink_to_fit();
    coarse.weights.shrink_to_fit();
    Some(coarse)
}

/// Returns the nodes by cluster, and where each cluster's start.
fn members(parents: &[u32], n_clusters: usize) -> (Vec<u32>, Vec<u32>) {
    let mut starts = vec![0u32; n_clusters + 1];
    for &parent in parents {
        starts[parent as usize + 1] += 1;
    }
    for cluster in 0..n_clusters {
        starts[cluster + 1] += starts[cluster];
    }
    let mut next = starts.clone();
    let mut members = vec![0u32; parents.len()];
    for (node, &parent) in (0..).zip(parents) {
        let place = &mut next[parent as usize];
        members[*place as usize] = node;
        *place += 1;
    }
    (starts, members)
}
