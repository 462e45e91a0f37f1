//! Residency of a worker's partitions in memory.

/// The partitions of a worker in turn, and which of them are in memory.
///
/// Turns repeat in the same order. If the next partition does not fit, the partition with the
/// farthest next turn is evicted (Belady), but never the present one.
#[derive(Clone, Debug)]
pub(super) struct Residents {
    /// Bytes of each, in the order of turns.
    sizes: Vec<u64>,
    budget: u64,
    is_resident: Vec<bool>,
}

/// Action before a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The partition is in memory.
    Resident,
    /// Evict these, then load the partition.
    Load(Vec<usize>),
    /// The partition does not fit beside the present one.
    Wait,
}

impl Residents {
    /// Returns the state before the first turn. Without a budget any two partitions fit, so one is
    /// loaded during training on another.
    ///
    /// # Panics
    ///
    /// When a partition alone is larger than the budget.
    pub(super) fn new(sizes: Vec<u64>, budget: Option<u64>) -> Self {
        let largest = sizes.iter().copied().max().unwrap_or(0);
        let budget = budget.unwrap_or(largest.saturating_mul(2));
        assert!(largest <= budget, "a partition of {largest} bytes in {budget}");
        let is_resident = vec![false; sizes.len()];
        Self { sizes, budget, is_resident }
    }

    /// Admits the partition of turn `next` during turn `present`, if any.
    pub(super) fn admit(&mut self, next: usize, present: Option<usize>) -> Admission {
        if self.is_resident[next] {
            return Admission::Resident;
        }
        let n = self.sizes.len();
        // Turns after the next one until it is this one's.
        let until = |turn: usize| (turn + n - next) % n;
        let mut leaving: Vec<usize> =
            (0..n).filter(|&turn| self.is_resident[turn] && Some(turn) != present).collect();
        leaving.sort_by_key(|&turn| until(turn));
        let mut held = self.held() + self.sizes[next];
        let mut gone = Vec::new();
        while held > self.budget {
            let Some(turn) = leaving.pop() else { return Admission::Wait };
            held -= self.sizes[turn];
            gone.push(turn);
        }
        gone.iter().for_each(|&turn| self.is_resident[turn] = false);
        self.is_resident[next] = true;
        Admission::Load(gone)
    }

    /// Returns the bytes of resident partitions.
    pub(super) fn held(&self) -> u64 {
        let resident = self.sizes.iter().zip(&self.is_resident).filter(|(_, is)| **is);
        resident.map(|(size, _)| size).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Goes through `n_turns` turns; returns how often a partition was loaded.
    fn loads(sizes: &[u64], budget: Option<u64>, n_turns: usize) -> usize {
        let mut residents = Residents::new(sizes.to_vec(), budget);
        let (mut n_loads, mut present) = (0, None);
        for turn in 0..n_turns {
            let next = turn % sizes.len();
            let mut admission = residents.admit(next, present);
            if admission == Admission::Wait {
                admission = residents.admit(next, None);
            }
            n_loads += usize::from(matches!(admission, Admission::Load(_)));
            assert!(residents.is_resident[next]);
            present = Some(next);
        }
        n_loads
    }

    #[test]
    fn partitions_that_fit_are_loaded_once() {
        assert_eq!(loads(&[5, 3], None, 20), 2);
        assert_eq!(loads(&[5], Some(5), 20), 1);
        // Beside the present one and the next there is room for none.
        assert_eq!(loads(&[1; 3], Some(2), 30), 30);
        // One stays, so that every other turn loads.
        assert_eq!(loads(&[1; 4], Some(3), 40), 22);
        assert_eq!(loads(&[1; 3], Some(3), 30), 3);
        assert_eq!(loads(&[4, 4], Some(4), 10), 10);
    }

    proptest! {
        /// The twin keeps the time of each next turn, and memory is that of a map.
        #[test]
        fn memory_is_never_exceeded_and_the_farthest_goes(
            sizes in prop::collection::vec(1u64..20, 1..8),
            room in 0u64..60,
            n_turns in 1usize..40,
        ) {
            let budget = sizes.iter().max().unwrap() + room;
            let mut residents = Residents::new(sizes.clone(), Some(budget));
            let mut held: BTreeMap<usize, u64> = BTreeMap::new();
            let mut present = None;
            for turn in 0..n_turns {
                let next = turn % sizes.len();
                let next_turn = |of: usize| {
                    (turn + 1..).find(|later| later % sizes.len() == of).unwrap()
                };
                match residents.admit(next, present) {
                    Admission::Resident => prop_assert!(held.contains_key(&next)),
                    Admission::Load(gone) => {
                        prop_assert!(!held.contains_key(&next));
                        for of in gone {
                            prop_assert!(Some(of) != present);
                            held.remove(&of).unwrap();
                            let is_nearer = |other: &usize| {
                                Some(*other) == present || next_turn(*other) <= next_turn(of)
                            };
                            prop_assert!(held.keys().all(is_nearer));
                        }
                        held.insert(next, sizes[next]);
                    }
                    Admission::Wait => {
                        let stays = present.map_or(0, |of| held[&of]);
                        prop_assert!(stays + sizes[next] > budget);
                        let Admission::Load(gone) = residents.admit(next, None) else {
                            panic!("there is room for one partition");
                        };
                        held.retain(|of, _| !gone.contains(of));
                        held.insert(next, sizes[next]);
                    }
                }
                present = Some(next);
                let n_bytes: u64 = held.values().sum();
                prop_assert!(n_bytes <= budget && residents.held() == n_bytes);
            }
        }
    }
}
