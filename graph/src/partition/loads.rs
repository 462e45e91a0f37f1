//! How many nodes each partition has, while nodes are being given to them.

use std::collections::BTreeSet;

use crate::ids::PartId;

/// Nodes in each partition, and the partitions from the least occupied up.
pub(super) struct Loads {
    loads: Vec<u64>,
    order: BTreeSet<(u64, u16)>,
}

impl Loads {
    /// Returns empty partitions; `n_parts` is at least 1.
    pub(super) fn new(n_parts: u16) -> Self {
        let order = (0..n_parts).map(|part| (0, part)).collect();
        Self { loads: vec![0; usize::from(n_parts)], order }
    }

    /// Returns the least occupied partition, of several the first.
    pub(super) fn least(&self) -> PartId {
        PartId(self.order.first().map_or(0, |&(_, part)| part))
    }

    /// Returns the number of nodes in `part`.
    pub(super) fn of(&self, part: PartId) -> u64 {
        self.loads[part.index()]
    }

    /// Adds a node to `part`.
    pub(super) fn add(&mut self, part: PartId) {
        self.set(part, self.loads[part.index()] + 1);
    }

    /// Adds `n_nodes` nodes to the least occupied partition, and returns it.
    pub(super) fn add_to_least(&mut self, n_nodes: u64) -> PartId {
        let least = self.least();
        self.set(least, self.loads[least.index()] + n_nodes);
        least
    }

    /// Moves `n_nodes` nodes of `owner` away if it has too many and they fit elsewhere.
    pub(super) fn relieve(&mut self, owner: &mut PartId, n_nodes: u64, capacity: u64) {
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

/// Moves nodes out of partitions of more than `capacity`, in order of their ids.
pub(super) fn relieve_all(assignment: &mut [PartId], n_parts: u16, capacity: u64) {
    let mut loads = Loads::new(n_parts);
    for owner in &*assignment {
        loads.loads[owner.index()] += 1;
    }
    loads.order = (0..n_parts).map(|part| (loads.loads[usize::from(part)], part)).collect();
    for owner in assignment {
        loads.relieve(owner, 1, capacity);
    }
}
