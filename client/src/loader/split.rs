//! The split of the rows of batches by their source.

use std::ops::Range;

use lodestore_cache::slots::NO_SLOT;
use lodestore_graph::NodeId;

use super::Residency;
use crate::error::ClientError;

/// The rows of batches that are loaded together, by their source. Positions are those of rows in
/// the memory of all batches, and ascend in each list.
#[derive(Clone, Default)]
pub(super) struct Split {
    pub(super) local: Vec<NodeId>,
    pub(super) local_at: Vec<u32>,
    pub(super) missing: Vec<NodeId>,
    pub(super) missing_at: Vec<u32>,
    /// Missing rows that repeat another missing row: the position of that row, and their own.
    pub(super) repeats: Vec<(u32, u32)>,
    /// Ids with their index in `missing`, to find repeats.
    by_id: Vec<u64>,
}

/// Numbers of rows of a batch, by their source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) local: usize,
    pub(super) hot: usize,
    pub(super) missing: usize,
    /// Part of `missing` that the batch has twice, or that an earlier batch has; known once all
    /// batches are added.
    pub(super) repeats: usize,
}

/// Mark of a position whose row is a repeat. No row has this position, since positions are below a
/// number of rows.
const REPEATED: u32 = u32::MAX;

impl Split {
    pub(super) fn clear(&mut self) {
        self.local.clear();
        self.local_at.clear();
        self.missing.clear();
        self.missing_at.clear();
        self.repeats.clear();
    }

    /// Adds a batch whose rows start at position `first`; all its remote rows are missing.
    pub(super) fn add(&mut self, nodes: &[NodeId], first: u32, owned: &[Range<u32>]) -> Counts {
        let (n_local, n_missing) = (self.local.len(), self.missing.len());
        for (position, &node) in (first..).zip(nodes) {
            if owned.iter().any(|range| range.contains(&node.0)) {
                self.local.push(node);
                self.local_at.push(position);
            } else {
                self.missing.push(node);
                self.missing_at.push(position);
            }
        }
        let (local, missing) = (self.local.len() - n_local, self.missing.len() - n_missing);
        Counts { local, missing, ..Counts::default() }
    }

    /// Looks up the missing rows of the batch that was added last, and leaves those that `kept`
    /// lacks. Returns the positions of all remote rows of the batch.
    pub(super) fn look_up(
        &mut self,
        counts: &mut Counts,
        first: u32,
        kept: &mut dyn Residency,
    ) -> Result<Vec<u32>, ClientError> {
        let before = self.missing.len() - counts.missing;
        let remote_at = self.missing_at[before..].to_vec();
        let in_batch: Vec<u32> = remote_at.iter().map(|at| at - first).collect();
        let slots = kept.look_up(&self.missing[before..], &in_batch)?;
        assert_eq!(slots.len(), in_batch.len(), "a slot for each remote node");
        let mut n_missing = before;
        for (i, _) in slots.iter().enumerate().filter(|(_, slot)| **slot == NO_SLOT) {
            self.missing[n_missing] = self.missing[before + i];
            self.missing_at[n_missing] = self.missing_at[before + i];
            n_missing += 1;
        }
        self.missing.truncate(n_missing);
        self.missing_at.truncate(n_missing);
        counts.hot = counts.missing - (n_missing - before);
        counts.missing = n_missing - before;
        Ok(remote_at)
    }

    /// Keeps the first missing row of each node; the others become repeats of the batches of
    /// `counts`, which must be all batches.
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
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::loader::PullAt;
    use crate::source::PullStats;

    /// Keeps the rows of some nodes: each is its own slot.
    struct Kept<'a>(&'a BTreeSet<u32>, Vec<u32>);

    impl Residency for Kept<'_> {
        fn look_up(&mut self, ids: &[NodeId], _: &[u32]) -> Result<&[u32], ClientError> {
            let slot = |id: &NodeId| if self.0.contains(&id.0) { id.0 } else { NO_SLOT };
            self.1 = ids.iter().map(slot).collect();
            Ok(&self.1)
        }

        fn move_rows(
            &mut self,
            _: &[u32],
            _: &mut [u8],
            _: &mut PullAt<'_>,
        ) -> Result<PullStats, ClientError> {
            unreachable!("rows are not moved here")
        }

        fn keeps_pulled_rows(&self) -> bool {
            false
        }
    }

    proptest! {
        #[test]
        fn every_row_has_one_place_and_each_missing_node_is_pulled_once(
            batches in prop::collection::vec(prop::collection::vec(0u32..40, 0..30), 0..6),
            hot in prop::collection::btree_set(0u32..40, 0..12),
        ) {
            let (mut split, owned) = (Split::default(), [10..20, 30..31]);
            let (mut of_row, mut all, mut hot_at) = (Vec::new(), Vec::new(), Vec::new());
            for ids in &batches {
                let nodes: Vec<NodeId> = ids.iter().map(|&id| NodeId(id)).collect();
                let first = of_row.len() as u32;
                let mut counts = split.add(&nodes, first, &owned);
                let mut kept = Kept(&hot, Vec::new());
                let remote_at = split.look_up(&mut counts, first, &mut kept).unwrap();
                prop_assert_eq!(counts.local + counts.hot + counts.missing, ids.len());
                prop_assert_eq!(remote_at.len(), counts.hot + counts.missing);
                let found = kept.1.iter().zip(remote_at).filter(|(slot, _)| **slot != NO_SLOT);
                let found: Vec<(u32, u32)> = found.map(|(slot, at)| (*slot, at)).collect();
                prop_assert_eq!(found.len(), counts.hot);
                hot_at.extend(found);
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
            for (slot, at) in hot_at {
                prop_assert_eq!(slot, of_row[at as usize].0);
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
