//! Assigning clusters to partitions (Algorithm 1, lines 26–29).

use std::collections::BTreeSet;

use super::cluster::{Node, UNSEEN};
use super::merge::Clusters;
use crate::PartId;

/// Clusters, largest first, go to the least occupied partition (longest processing time first),
/// then nodes without edges one by one. `capacity` bounds the nodes of every partition.
pub(super) fn assign(
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
    let mut assignment: Vec<PartId> = nodes
        .iter()
        .map(|node| match node.cluster {
            UNSEEN => loads.add_to_least(1),
            cluster => owners[clusters.root(cluster) as usize],
        })
        .collect();
    if let Some(capacity) = capacity {
        for owner in &mut assignment {
            loads.relieve(owner, 1, capacity);
        }
    }
    assignment
}

/// Nodes in each partition, and the partitions from the least occupied up.
struct Loads {
    loads: Vec<u64>,
    order: BTreeSet<(u64, u16)>,
}

impl Loads {
    /// Empty partitions; `n_parts` is at least 1.
    fn new(n_parts: u16) -> Self {
        let order = (0..n_parts).map(|part| (0, part)).collect();
        Self { loads: vec![0; usize::from(n_parts)], order }
    }

    /// The least occupied partition, of several the first.
    fn least(&self) -> PartId {
        PartId(self.order.first().map_or(0, |&(_, part)| part))
    }

    fn add_to_least(&mut self, n_nodes: u64) -> PartId {
        let least = self.least();
        self.set(least, self.loads[least.index()] + n_nodes);
        least
    }

    /// Moves `n_nodes` nodes of `owner` away if it has too many and they fit elsewhere.
    fn relieve(&mut self, owner: &mut PartId, n_nodes: u64, capacity: u64) {
        let load = self.loads[owner.index()];
        let least = self.least();
        if load > capacity && self.loads[least.index()] + n_nodes <= capacity {
            self.set(*owner, load - n_nodes);
            *owner = self.add_to_least(n_nodes);
        }
    }

    fn set(&mut self, part: PartId, load: u64) {
        let old = std::mem::replace(&mut self.loads[part.index()], load);
        self.order.remove(&(old, part.0));
        self.order.insert((load, part.0));
    }
}
