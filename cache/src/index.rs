//! From the id of a row to the slot that holds it.

use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;

/// What [`RowIndex::find`] gives for an id that has no slot.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// Not the answer yet: the probe goes on past its first entry. No slot of a sparse index, which
/// has about a quarter as many slots as there are ids at most.
const PROBE: u32 = u32::MAX - 1;

/// Map id → slot of at most a fixed number of ids. Its memory never grows.
pub(crate) enum RowIndex {
    /// One entry per id of the id space.
    Dense(Vec<u32>),
    /// Open addressing over the resident ids only.
    Sparse(SparseIndex),
}

impl RowIndex {
    /// Ids that may be in the index beyond `n_slots`, so that a few can be inserted before those
    /// that they replace are removed together.
    pub(crate) const SLACK_IDS: usize = 64;

    /// An index for ids below `id_space` of which at most `n_slots` are resident at once: dense
    /// or sparse, whichever takes less memory.
    pub(crate) fn new(id_space: u32, n_slots: u32) -> Self {
        if n_slots == 0 {
            Self::Dense(Vec::new())
        } else if dense_bytes(id_space) <= sparse_bytes(n_slots) {
            Self::Dense(vec![NO_SLOT; id_space as usize])
        } else {
            Self::Sparse(SparseIndex::new(n_slots))
        }
    }

    /// Memory that [`RowIndex::new`] will take, in bytes.
    pub(crate) fn planned_bytes(id_space: u32, n_slots: u32) -> usize {
        if n_slots == 0 { 0 } else { dense_bytes(id_space).min(sparse_bytes(n_slots)) }
    }

    /// Memory taken, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Dense(slots) => size_of_val(slots.as_slice()),
            Self::Sparse(index) => size_of_val(index.entries.as_slice()),
        }
    }

    /// Writes the slot of each id, or [`NO_SLOT`]. Both slices have the same length.
    pub(crate) fn find(&self, ids: &[u32], slots: &mut [u32]) {
        debug_assert_eq!(ids.len(), slots.len());
        let pairs = slots.iter_mut().zip(ids);
        match self {
            Self::Dense(index) => {
                pairs.for_each(|(slot, &id)| {
                    *slot = index.get(id as usize).copied().unwrap_or(NO_SLOT);
                });
            }
            Self::Sparse(index) => {
                // Most probes end where they start. Those go first, without a branch to predict,
                // so that their cache misses overlap.
                pairs.for_each(|(slot, &id)| *slot = index.get_at_home(id));
                for (slot, &id) in slots.iter_mut().zip(ids) {
                    if *slot == PROBE {
                        *slot = index.get(id);
                    }
                }
            }
        }
    }

    /// The slot of one id, or [`NO_SLOT`].
    pub(crate) fn get(&self, id: u32) -> u32 {
        match self {
            Self::Dense(index) => index.get(id as usize).copied().unwrap_or(NO_SLOT),
            Self::Sparse(index) => index.get(id),
        }
    }

    /// Adds an id that is not in the index; once all slots are taken, at most
    /// [`RowIndex::SLACK_IDS`] times before the ids that they replace are removed.
    pub(crate) fn insert(&mut self, id: u32, slot: u32) {
        debug_assert!(slot != NO_SLOT && self.get(id) == NO_SLOT);
        match self {
            Self::Dense(index) => index[id as usize] = slot,
            Self::Sparse(index) => index.insert(id, slot),
        }
    }

    /// Removes ids that are in the index, each of them once.
    pub(crate) fn remove_all(&mut self, ids: &[u32]) {
        match self {
            Self::Dense(index) => ids.iter().for_each(|&id| index[id as usize] = NO_SLOT),
            Self::Sparse(index) => {
                // Read first, for the same reason as in `find`: a removal stalls on its branches.
                black_box(ids.iter().fold(0, |seen, &id| seen ^ index.get_at_home(id)));
                ids.iter().for_each(|&id| index.remove(id));
            }
        }
    }
}

fn dense_bytes(id_space: u32) -> usize {
    size_of::<u32>() * id_space as usize
}

fn sparse_bytes(n_slots: u32) -> usize {
    size_of::<u64>() * SparseIndex::n_entries(n_slots)
}

/// Linear probing in a table that stays half empty, with removal by shifting back: no tombstones,
/// so probes stay short however many ids come and go.
pub(crate) struct SparseIndex {
    /// `id << 32 | slot`, or [`EMPTY`].
    entries: Vec<u64>,
    /// Random, so that nobody outside can choose ids that collide.
    key: u64,
}

/// No entry: its upper half is a possible id, but its lower half is never a slot.
const EMPTY: u64 = u64::MAX;

impl SparseIndex {
    fn new(n_slots: u32) -> Self {
        let key = RandomState::new().hash_one(0);
        Self { entries: vec![EMPTY; Self::n_entries(n_slots)], key }
    }

    /// Half of the entries stay empty, and one at least, which ends every probe.
    fn n_entries(n_slots: u32) -> usize {
        2 * n_slots as usize + RowIndex::SLACK_IDS + 1
    }

    /// Where the probe for `id` starts: a hash, scaled to the table. One product alone would send
    /// runs of ids, which rows in a good order are, to a few crowded places.
    #[inline]
    fn home(&self, id: u32) -> usize {
        let once = (u64::from(id) ^ self.key).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let hash = (once ^ (once >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 32;
        ((hash * self.entries.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.entries.len() { 0 } else { at + 1 }
    }

    /// How many steps of a probe lead from one entry to another.
    #[inline]
    fn steps(&self, from: usize, to: usize) -> usize {
        if from <= to { to - from } else { to + self.entries.len() - from }
    }

    /// The slot of `id` if its probe ends at its first entry, else [`PROBE`].
    #[inline]
    fn get_at_home(&self, id: u32) -> u32 {
        let entry = self.entries[self.home(id)];
        let is_end = (entry >> 32) as u32 == id || entry == EMPTY;
        if is_end { entry as u32 } else { PROBE }
    }

    #[inline]
    fn get(&self, id: u32) -> u32 {
        let mut at = self.home(id);
        loop {
            let entry = self.entries[at];
            if (entry >> 32) as u32 == id || entry == EMPTY {
                return entry as u32;
            }
            at = self.after(at);
        }
    }

    fn insert(&mut self, id: u32, slot: u32) {
        let mut at = self.home(id);
        while self.entries[at] != EMPTY {
            at = self.after(at);
        }
        self.entries[at] = u64::from(id) << 32 | u64::from(slot);
    }

    fn remove(&mut self, id: u32) {
        let mut hole = self.home(id);
        while (self.entries[hole] >> 32) as u32 != id {
            hole = self.after(hole);
        }
        let mut at = self.after(hole);
        while self.entries[at] != EMPTY {
            // An entry may fill the hole when its probe starts at the hole or before it.
            let home = self.home((self.entries[at] >> 32) as u32);
            if self.steps(home, at) >= self.steps(hole, at) {
                self.entries[hole] = self.entries[at];
                hole = at;
            }
            at = self.after(at);
        }
        self.entries[hole] = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn the_smaller_kind_is_chosen() {
        // 265 entries of 8 bytes.
        assert!(matches!(RowIndex::new(530, 100), RowIndex::Dense(_)));
        assert!(matches!(RowIndex::new(531, 100), RowIndex::Sparse(_)));
        for (id_space, n_slots) in [(530, 100), (531, 100), (0, 0), (9, 0)] {
            let index = RowIndex::new(id_space, n_slots);
            assert_eq!(index.bytes(), RowIndex::planned_bytes(id_space, n_slots));
        }
    }

    #[test]
    fn an_empty_index_has_nothing() {
        assert_eq!(RowIndex::new(0, 0).get(0), NO_SLOT);
        assert_eq!(RowIndex::new(9, 0).get(3), NO_SLOT);
        assert_eq!(RowIndex::new(9, 9).get(9), NO_SLOT);
    }

    #[test]
    fn the_largest_id_is_an_id_like_any_other() {
        let mut index = RowIndex::new(u32::MAX, 2);
        assert_eq!(index.get(u32::MAX), NO_SLOT);
        index.insert(u32::MAX, 1);
        index.insert(0, 0);
        assert_eq!((index.get(u32::MAX), index.get(0)), (1, 0));
        index.remove_all(&[u32::MAX]);
        assert_eq!((index.get(u32::MAX), index.get(0)), (NO_SLOT, 0));
    }

    /// Mean number of entries that a probe reads to find an id.
    fn mean_probe(index: &SparseIndex) -> f64 {
        let steps = (0..index.entries.len()).filter(|&at| index.entries[at] != EMPTY).map(|at| {
            let home = index.home((index.entries[at] >> 32) as u32);
            index.steps(home, at) + 1
        });
        steps.clone().sum::<usize>() as f64 / steps.count() as f64
    }

    #[test]
    fn probes_stay_short_for_runs_strides_and_after_removals() {
        const N: u32 = 10_000;
        for stride in [1, 2, 3, 64, 4096, 100_003, 429_000] {
            let mut index = SparseIndex::new(N);
            (0..N).for_each(|i| index.insert(i * stride, i));
            // 1.5 is expected of linear probing at a load of one half (Knuth, 6.4).
            assert!(mean_probe(&index) < 1.6, "stride {stride}: {}", mean_probe(&index));
            for i in 0..N {
                index.remove(i * stride);
                index.insert((N + i).wrapping_mul(stride), i);
            }
            assert!(mean_probe(&index) < 1.6, "stride {stride}: {}", mean_probe(&index));
        }
    }

    proptest! {
        /// Toggles ids in and out of both kinds beside a standard map.
        #[test]
        fn both_kinds_agree_with_a_map(toggled in prop::collection::vec(0u32..40, 0..400)) {
            const N_SLOTS: u32 = 16;
            let dense = RowIndex::Dense(vec![NO_SLOT; 40]);
            for mut index in [dense, RowIndex::Sparse(SparseIndex::new(N_SLOTS))] {
                let mut naive = HashMap::new();
                for (time, &id) in (0..).zip(&toggled) {
                    if naive.remove(&id).is_some() {
                        index.remove_all(&[id]);
                    } else if naive.len() < N_SLOTS as usize {
                        naive.insert(id, time);
                        index.insert(id, time);
                    }
                    let ids: Vec<u32> = (0..41).collect();
                    let mut found = vec![0; ids.len()];
                    index.find(&ids, &mut found);
                    for (id, slot) in ids.iter().zip(found) {
                        prop_assert_eq!(slot, naive.get(id).copied().unwrap_or(NO_SLOT));
                        prop_assert_eq!(slot, index.get(*id));
                    }
                }
            }
        }
    }
}
