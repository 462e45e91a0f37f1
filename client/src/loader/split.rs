//! Which row of which batch comes from where.

use std::ops::Range;

use lodestore_cache::{HotSet, NO_SLOT};
use lodestore_graph::NodeId;

/// The rows of batches that are loaded together, by where they come from. Positions are those of
/// rows in the memory of all batches, and rise in each list.
#[derive(Clone, Default)]
pub(super) struct Split {
    pub(super) local: Vec<NodeId>,
    pub(super) local_at: Vec<u32>,
    pub(super) missing: Vec<NodeId>,
    pub(super) missing_at: Vec<u32>,
    pub(super) hot_at: Vec<u32>,
    /// Where in their hot sets the rows of `hot_at` are.
    pub(super) hot_slots: Vec<u32>,
    /// Missing rows that another missing one is a copy of: where that is, and where they belong.
    pub(super) repeats: Vec<(u32, u32)>,
    /// State of each node of the batch that is loaded.
    slots: Vec<u32>,
    /// Ids and places in `missing`, to find repeats.
    by_id: Vec<u64>,
}

/// How many rows of a batch come from where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) local: usize,
    pub(super) hot: usize,
    pub(super) missing: usize,
    /// Part of `missing` that the batch has twice or an earlier one has; known when all are in.
    pub(super) repeats: usize,
}

/// Mark of a position whose row is a repeat; no row is there, since positions are below a number of
/// rows.
const REPEATED: u32 = u32::MAX;

impl Split {
    pub(super) fn clear(&mut self) {
        self.local.clear();
        self.local_at.clear();
        self.missing.clear();
        self.missing_at.clear();
        self.hot_at.clear();
        self.hot_slots.clear();
        self.repeats.clear();
    }

    /// Adds a batch whose rows are at position `first` and after.
    pub(super) fn add(
        &mut self,
        nodes: &[NodeId],
        first: u32,
        owned: &[Range<u32>],
        hot: Option<&HotSet>,
    ) -> Counts {
        let before = self.counts();
        self.slots.clear();
        match hot {
            Some(hot) => hot.find(bytemuck::cast_slice(nodes), &mut self.slots),
            None => self.slots.resize(nodes.len(), NO_SLOT),
        }
        for (position, (&node, &slot)) in (first..).zip(nodes.iter().zip(&self.slots)) {
            if owned.iter().any(|range| range.contains(&node.0)) {
                self.local.push(node);
                self.local_at.push(position);
            } else if slot != NO_SLOT {
                self.hot_at.push(position);
                self.hot_slots.push(slot);
            } else {
                self.missing.push(node);
                self.missing_at.push(position);
            }
        }
        let now = self.counts();
        Counts {
            local: now.local - before.local,
            hot: now.hot - before.hot,
            missing: now.missing - before.missing,
            repeats: 0,
        }
    }

    /// Leaves of the missing rows the first of each node; the others become repeats of the batches
    /// of `counts`, which must be all.
    pub(super) fn find_repeats(&mut self, counts: &mut [Counts]) {
        self.by_id.clear();
        let keys = (0u64..).zip(&self.missing).map(|(place, id)| u64::from(id.0) << 32 | place);
        self.by_id.extend(keys);
        self.by_id.sort_unstable();
        let (id_of, place_of) = (|key: u64| key >> 32, |key: u64| (key & 0xFFFF_FFFF) as usize);
        for same in self.by_id.chunk_by(|&a, &b| id_of(a) == id_of(b)) {
            let from = self.missing_at[place_of(same[0])];
            for &key in &same[1..] {
                let at = &mut self.missing_at[place_of(key)];
                self.repeats.push((from, *at));
                *at = REPEATED;
            }
        }
        if !self.repeats.is_empty() {
            let mut asked = self.missing_at.iter();
            for of in counts {
                let repeated = asked.by_ref().take(of.missing).filter(|&&at| at == REPEATED);
                of.repeats = repeated.count();
            }
            let mut positions = self.missing_at.iter();
            self.missing.retain(|_| positions.next() != Some(&REPEATED));
            self.missing_at.retain(|&at| at != REPEATED);
        }
    }

    fn counts(&self) -> Counts {
        let (local, hot, missing) = (self.local.len(), self.hot_at.len(), self.missing.len());
        Counts { local, hot, missing, repeats: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lodestore_cache::HotSetError;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_row_has_one_place_and_each_missing_node_is_asked_for_once(
            batches in prop::collection::vec(prop::collection::vec(0u32..40, 0..30), 0..6),
            hot in prop::collection::btree_set(0u32..40, 0..12),
        ) {
            let hot_rows = |_: &[u32], _: &mut [u8]| Ok::<(), HotSetError>(());
            let hot = HotSet::build(hot.into_iter().collect(), 1, hot_rows).unwrap();
            let (mut split, owned) = (Split::default(), [10..20, 30..31]);
            let (mut of_row, mut all) = (Vec::new(), Vec::new());
            for ids in &batches {
                let nodes: Vec<NodeId> = ids.iter().map(|&id| NodeId(id)).collect();
                let counts =
                    split.add(&nodes, of_row.len() as u32, &owned, Some(&hot));
                prop_assert_eq!(counts.local + counts.hot + counts.missing, ids.len());
                all.push(counts);
                of_row.extend(nodes);
            }
            split.find_repeats(&mut all);
            prop_assert_eq!(
                all.iter().map(|of| of.repeats).sum::<usize>(), split.repeats.len());
            let mut found = vec![None; of_row.len()];
            let asked = split.missing.iter().zip(&split.missing_at);
            for (&node, &at) in asked.clone().chain(split.local.iter().zip(&split.local_at)) {
                prop_assert!(found[at as usize].replace(node).is_none());
            }
            prop_assert_eq!(split.hot_at.len(), split.hot_slots.len());
            for (&at, &slot) in split.hot_at.iter().zip(&split.hot_slots) {
                prop_assert_eq!(hot.ids()[slot as usize], of_row[at as usize].0);
                prop_assert!(found[at as usize].replace(of_row[at as usize]).is_none());
            }
            for &(from, to) in &split.repeats {
                prop_assert!(from < to);
                let node = found[from as usize];
                prop_assert!(node.is_some() && found[to as usize].is_none());
                found[to as usize] = node;
            }
            prop_assert_eq!(found.into_iter().flatten().collect::<Vec<_>>(), of_row);
            let mut once: Vec<u32> = split.missing.iter().map(|id| id.0).collect();
            once.sort_unstable();
            prop_assert!(once.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(split.missing_at.is_sorted() && split.local_at.is_sorted());
        }
    }
}
