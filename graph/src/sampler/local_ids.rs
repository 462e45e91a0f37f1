//! From node ids to positions in a batch, in the order of first sight.

use crate::ids::NodeId;
use crate::prefetch::prefetch;

/// A table over all nodes that is emptied by moving a mark, not by clearing it.
pub(super) struct LocalIds {
    /// `base` plus the local id of each node of this batch; less than `base` for all others.
    table: Vec<u32>,
    base: u32,
    /// Nodes of this batch.
    n_known: u32,
}

impl LocalIds {
    pub(super) fn new(n_nodes: u32) -> Self {
        Self { table: vec![0; n_nodes as usize], base: 1, n_known: 0 }
    }

    /// Forgets all nodes.
    pub(super) fn clear(&mut self) {
        self.base += self.n_known;
        self.n_known = 0;
        // There must be room above the base for as many ids as there are nodes.
        if (u32::MAX - self.base) < self.table.len() as u32 {
            self.table.fill(0);
            self.base = 1;
        }
    }

    /// Asks for what `translate` will need.
    #[inline]
    pub(super) fn prefetch(&self, ids: &[u32]) {
        ids.iter().for_each(|&id| prefetch(&self.table[id as usize]));
    }

    /// Replaces each node by its local id. A node not seen before gets the next id and is appended
    /// to `nodes`, which holds all nodes since the last `clear`.
    pub(super) fn translate(&mut self, ids: &mut [u32], nodes: &mut Vec<NodeId>) {
        let n_before = nodes.len();
        debug_assert_eq!(n_before, self.n_known as usize);
        // Whether a node is new cannot be predicted, so there is no branch on it: every node is
        // written behind the last new one, and stays there if it is new itself.
        nodes.resize(n_before + ids.len(), NodeId(0));
        let fresh = &mut nodes[n_before..];
        let mut n_fresh = 0usize;
        for id in ids {
            let entry = &mut self.table[*id as usize];
            let is_new = *entry < self.base;
            let next = self.n_known + n_fresh as u32;
            let local = if is_new { next } else { *entry - self.base };
            *entry = self.base + local;
            fresh[n_fresh] = NodeId(*id);
            n_fresh += usize::from(is_new);
            *id = local;
        }
        nodes.truncate(n_before + n_fresh);
        self.n_known += n_fresh as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_nodes_by_first_sight(
            batches in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(0u32..20, 0..30), 0..4), 0..12),
            base in prop_oneof![Just(1), u32::MAX - 60..u32::MAX - 20],
        ) {
            let mut locals = LocalIds::new(20);
            locals.base = base;
            for batch in &batches {
                locals.clear();
                let (mut nodes, mut naive) = (Vec::new(), Vec::new());
                for ids in batch {
                    let mut translated = ids.clone();
                    locals.translate(&mut translated, &mut nodes);
                    for (id, local) in ids.iter().zip(translated) {
                        if !naive.contains(&NodeId(*id)) {
                            naive.push(NodeId(*id));
                        }
                        prop_assert_eq!(naive[local as usize], NodeId(*id));
                    }
                    prop_assert_eq!(&nodes, &naive);
                }
            }
        }
    }
}
