//! Cluster merging (Algorithm 1, lines 18–25), in O(|V| log |V|).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::cluster::{Node, UNSEEN};

/// Clusters after merging: a forest whose roots are the clusters that are left.
#[derive(Debug)]
pub(super) struct Clusters {
    /// The cluster that this one was merged into; itself when it was not.
    parents: Vec<u32>,
    /// Nodes of each root.
    sizes: Vec<u32>,
}

impl Clusters {
    /// Returns the cluster that `cluster` has become part of. Halves the path to it for the next
    /// time.
    pub(super) fn root(&mut self, mut cluster: u32) -> u32 {
        loop {
            let parent = self.parents[cluster as usize];
            if parent == cluster {
                return cluster;
            }
            let grandparent = self.parents[parent as usize];
            self.parents[cluster as usize] = grandparent;
            cluster = grandparent;
        }
    }

    /// Returns the number of clusters before merging; clusters are numbered below it.
    pub(super) fn n_numbered(&self) -> usize {
        self.parents.len()
    }

    /// Returns the number of nodes of `root`.
    pub(super) fn size(&self, root: u32) -> u32 {
        self.sizes[root as usize]
    }

    /// Returns the clusters that are left, largest first; of equal ones the lower number first.
    pub(super) fn largest_first(&self) -> Vec<u32> {
        let is_root = |&c: &u32| self.parents[c as usize] == c;
        let mut roots: Vec<u32> = (0..self.parents.len() as u32).filter(is_root).collect();
        roots.sort_unstable_by_key(|&root| (Reverse(self.size(root)), root));
        roots
    }
}

/// Bytes of [`merge`] for each cluster: 4 parent, 4 size, 4 target, 1 mark, 8 queue.
pub(super) const CLUSTER_BYTES: u64 = 21;

/// Merges clusters from the smallest up. Each joins the cluster of the richest neighbour of its
/// representative, if both together have at most `max_size` nodes. A cluster that has grown is
/// queued again by its new size.
pub(super) fn merge(nodes: &[Node], n_clusters: usize, max_size: f64) -> Clusters {
    let (mut clusters, mut targets) = unmerged(nodes, n_clusters);
    let mut queued = vec![true; clusters.n_numbered()];
    let mut queue: BinaryHeap<Reverse<(u32, u32)>> =
        (0..).zip(&clusters.sizes).map(|(cluster, &size)| Reverse((size, cluster))).collect();
    while let Some(Reverse((size, cluster))) = queue.pop() {
        if size != clusters.size(cluster) {
            // It grew while it was waiting; one entry per cluster bounds the queue.
            queue.push(Reverse((clusters.size(cluster), cluster)));
            continue;
        }
        queued[cluster as usize] = false;
        let target = targets[cluster as usize];
        let into = clusters.root(nodes[target as usize].cluster);
        let merged_size = f64::from(size) + f64::from(clusters.size(into));
        if into == cluster || merged_size > max_size {
            continue;
        }
        clusters.parents[cluster as usize] = into;
        clusters.sizes[into as usize] += size;
        let into_target = &mut targets[into as usize];
        if nodes[*into_target as usize].degree < nodes[target as usize].degree {
            *into_target = target;
        }
        if !queued[into as usize] {
            queued[into as usize] = true;
            queue.push(Reverse((clusters.size(into), into)));
        }
    }
    clusters
}

/// Numbers the clusters that have nodes by their first node, and returns how many there are.
pub(super) fn renumber(nodes: &mut [Node], n_created: usize) -> usize {
    let mut numbers = vec![UNSEEN; n_created];
    let mut n_clusters = 0;
    for node in nodes.iter_mut().filter(|node| node.cluster != UNSEEN) {
        let number = &mut numbers[node.cluster as usize];
        if *number == UNSEEN {
            *number = n_clusters;
            n_clusters += 1;
        }
        node.cluster = *number;
    }
    n_clusters as usize
}

/// Returns the clusters before any merge and, for each, the richest neighbour of its
/// representative. That is the neighbour of largest degree that any of its nodes has.
fn unmerged(nodes: &[Node], n_clusters: usize) -> (Clusters, Vec<u32>) {
    let (mut sizes, mut targets) = (vec![0; n_clusters], vec![0; n_clusters]);
    for node in nodes.iter().filter(|node| node.cluster != UNSEEN) {
        let cluster = node.cluster as usize;
        let (size, target) = (&mut sizes[cluster], &mut targets[cluster]);
        if *size == 0 || nodes[*target as usize].degree < node.richest_degree {
            *target = node.richest;
        }
        *size += 1;
    }
    let parents = (0..n_clusters as u32).collect();
    (Clusters { parents, sizes }, targets)
}
