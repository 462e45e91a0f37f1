//! Slots to give up, lowest score first, put in order only as far as they are given up.

/// Lower goes first: the score, then what breaks ties, with the slot in its lower half.
pub(super) type Key = (u64, u64);

/// Slots of one round. Most rounds find more of them than go before the next one, and all together:
/// a sort of all was a third of a round.
#[derive(Default)]
pub(super) struct Victims {
    /// The next to go last: of these, as many as are in order.
    keys: Vec<Key>,
    n_in_order: usize,
}

impl Victims {
    /// Fewest keys that are sorted together.
    const PIECE: usize = 1 << 12;

    pub(super) fn planned_bytes(n_slots: u32) -> usize {
        n_slots as usize * size_of::<Key>()
    }

    pub(super) fn with_capacity(n_slots: u32) -> Self {
        Self { keys: Vec::with_capacity(n_slots as usize), n_in_order: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        self.keys.capacity() * size_of::<Key>()
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Forgets those of the last round.
    pub(super) fn replace(&mut self, keys: impl Iterator<Item = Key>) {
        self.keys.clear();
        self.keys.extend(keys);
        self.n_in_order = 0;
    }

    /// Returns the next `n` to go, or all, the first one first.
    pub(super) fn next(&mut self, n: usize) -> impl Iterator<Item = u32> + Clone + '_ {
        self.put_in_order(n);
        self.keys.iter().rev().take(n).map(|key| key.1 as u32)
    }

    pub(super) fn pop(&mut self) -> Option<u32> {
        self.put_in_order(1);
        self.n_in_order = self.n_in_order.saturating_sub(1);
        self.keys.pop().map(|key| key.1 as u32)
    }

    fn put_in_order(&mut self, n: usize) {
        let n = n.min(self.keys.len());
        if n <= self.n_in_order {
            return;
        }
        let n_before = self.keys.len() - self.n_in_order;
        // A share of what is left, so that all of them cost no more than a few passes.
        let piece = (n - self.n_in_order).max(Self::PIECE).max(n_before / 8).min(n_before);
        let rest = &mut self.keys[..n_before];
        if piece < n_before {
            rest.select_nth_unstable_by(n_before - piece, |a, b| b.cmp(a));
        }
        rest[n_before - piece..].sort_unstable_by(|a, b| b.cmp(a));
        self.n_in_order += piece;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Beside a sort of all, over several pieces, with looks ahead of any length.
        #[test]
        fn they_go_in_order(
            scores in prop::collection::vec(0u64..200, 0..40_000), ahead in 0usize..9000,
        ) {
            let mut victims = Victims::default();
            victims.replace([(0, 0); 3].into_iter());
            victims.pop();
            let keys = (0u64..).zip(&scores).map(|(slot, &score)| (score, slot));
            victims.replace(keys.clone());
            let mut naive: Vec<Key> = keys.collect();
            naive.sort_unstable();
            for at in 0..naive.len() {
                if at % 5000 == 7 {
                    let next: Vec<u32> = victims.next(ahead).collect();
                    let end = naive.len().min(at + ahead);
                    let same = naive[at..end].iter().map(|key| key.1 as u32).eq(next);
                    prop_assert!(same, "{} ahead at {}", ahead, at);
                }
                prop_assert_eq!(victims.len(), naive.len() - at);
                prop_assert_eq!(victims.pop(), Some(naive[at].1 as u32));
            }
            prop_assert_eq!(victims.pop(), None);
        }
    }
}
