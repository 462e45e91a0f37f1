//! The rows that a shard preloads, piece by piece.

use std::collections::VecDeque;

use lodestore_graph::{NodeId, PartId};
use lodestore_schema::Stripes;

/// Rows of one tensor of one partition to preload; rows of other shards are skipped.
#[derive(Clone, Debug)]
pub(super) struct Portion {
    /// Position of the tensor.
    pub(super) tensor: usize,
    pub(super) part: PartId,
    pub(super) first_node: u32,
    pub(super) stripes: Stripes,
    pub(super) shard: u16,
    /// Maximum rows of a piece.
    pub(super) piece_rows: usize,
    pub(super) rows: Rows,
}

/// Rows of a partition.
#[derive(Clone, Debug)]
pub(super) enum Rows {
    /// From the first row to the second, exclusive.
    Range(u32, u32),
    /// Listed rows, ascending, from this position on.
    Listed(Vec<u32>, usize),
}

/// Portions that are left, consumed by all workers of a shard.
#[derive(Debug, Default)]
pub(crate) struct PreloadWork(VecDeque<Portion>);

impl PreloadWork {
    pub(super) fn push(&mut self, portion: Portion) {
        self.0.push_back(portion);
    }

    /// Writes the next rows of this shard to `ids`: ascending, of one tensor, whose position is
    /// returned. Returns `None` when no rows are left.
    pub(super) fn next(&mut self, ids: &mut Vec<NodeId>) -> Option<usize> {
        ids.clear();
        loop {
            let portion = self.0.front_mut()?;
            portion.take(ids);
            if !ids.is_empty() {
                return Some(portion.tensor);
            }
            self.0.pop_front();
        }
    }

    /// Drops the remaining rows of a tensor.
    pub(super) fn drop_tensor(&mut self, tensor: usize) {
        self.0.retain(|portion| portion.tensor != tensor);
    }
}

impl Portion {
    /// Returns the number of this shard's remaining rows.
    pub(super) fn n_rows(&self) -> u64 {
        match &self.rows {
            &Rows::Range(first, end) => {
                let (mut row, mut n_rows) = (first, 0);
                while row < end {
                    let stripe = stripe_end(self.stripes, row, end);
                    n_rows += if self.owns(row) { u64::from(stripe - row) } else { 0 };
                    row = stripe;
                }
                n_rows
            }
            Rows::Listed(rows, at) => {
                rows[*at..].iter().filter(|row| self.owns(**row)).count() as u64
            }
        }
    }

    fn take(&mut self, ids: &mut Vec<NodeId>) {
        let (shard, part, stripes) = (self.shard, self.part.0, self.stripes);
        let (first_node, piece_rows) = (self.first_node, self.piece_rows);
        match &mut self.rows {
            Rows::Range(next, end) => {
                while ids.len() < piece_rows && *next < *end {
                    let stripe = stripe_end(stripes, *next, *end);
                    if stripes.shard_of(part, *next) != shard {
                        *next = stripe;
                        continue;
                    }
                    let n_rows = (piece_rows - ids.len()).min((stripe - *next) as usize) as u32;
                    ids.extend((*next..*next + n_rows).map(|row| NodeId(first_node + row)));
                    *next += n_rows;
                }
            }
            Rows::Listed(rows, at) => {
                for &row in &rows[*at..] {
                    if ids.len() == piece_rows {
                        break;
                    }
                    *at += 1;
                    if stripes.shard_of(part, row) == shard {
                        ids.push(NodeId(first_node + row));
                    }
                }
            }
        }
    }

    fn owns(&self, row: u32) -> bool {
        self.stripes.shard_of(self.part.0, row) == self.shard
    }
}

/// Returns the end of a row's stripe, or `end` if that is lower.
fn stripe_end(stripes: Stripes, row: u32, end: u32) -> u32 {
    let n_rows = stripes.stripe_rows();
    (row / n_rows).saturating_add(1).saturating_mul(n_rows).min(end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns all rows of a portion, piece by piece.
    fn all_of(portion: &Portion) -> Vec<u32> {
        let (mut work, mut ids, mut all) = (PreloadWork::default(), Vec::new(), Vec::new());
        work.push(portion.clone());
        while let Some(tensor) = work.next(&mut ids) {
            assert_eq!(tensor, portion.tensor);
            assert!(!ids.is_empty() && ids.len() <= portion.piece_rows);
            all.extend(ids.iter().map(|id| id.0 - portion.first_node));
        }
        all
    }

    proptest! {
        #[test]
        fn each_row_is_loaded_once_by_its_owner(
            n_shards in 1u16..5, stripe_rows in 1u32..9, n_rows in 0u32..200, part in 0u16..9,
            piece_rows in 1usize..50, listed in proptest::collection::btree_set(0u32..200, 0..60),
        ) {
            let stripes = Stripes::new(n_shards, stripe_rows).unwrap();
            let listed: Vec<u32> = listed.into_iter().collect();
            for shard in 0..n_shards {
                let owned = |row: &u32| stripes.shard_of(part, *row) == shard;
                let portion = |rows| Portion {
                    tensor: 2, part: PartId(part), first_node: 1000, stripes, shard, piece_rows,
                    rows,
                };
                let range = portion(Rows::Range(0, n_rows));
                let expected: Vec<u32> = (0..n_rows).filter(owned).collect();
                prop_assert_eq!(range.n_rows(), expected.len() as u64);
                prop_assert_eq!(all_of(&range), expected);
                let some = portion(Rows::Listed(listed.clone(), 0));
                let expected: Vec<u32> = listed.iter().copied().filter(owned).collect();
                prop_assert_eq!(some.n_rows(), expected.len() as u64);
                prop_assert_eq!(all_of(&some), expected);
            }
        }
    }

    #[test]
    fn the_last_rows_of_the_largest_partition_are_loaded() {
        let stripes = Stripes::for_rows(2, 1);
        let rows = Rows::Range(u32::MAX - 5, u32::MAX);
        let (part, first_node, piece_rows) = (PartId(0), 0, 3);
        let owner = stripes.shard_of(0, u32::MAX - 1);
        let portion =
            Portion { tensor: 0, part, first_node, stripes, shard: owner, piece_rows, rows };
        assert_eq!(all_of(&portion), (u32::MAX - 5..u32::MAX).collect::<Vec<_>>());
    }

    #[test]
    fn the_rest_of_a_tensor_can_be_dropped() {
        let stripes = Stripes::new(1, 4).unwrap();
        let mut work = PreloadWork::default();
        for tensor in [0, 1, 0] {
            let (part, rows) = (PartId(0), Rows::Range(0, 10));
            let (first_node, shard, piece_rows) = (0, 0, 4);
            work.push(Portion { tensor, part, first_node, stripes, shard, piece_rows, rows });
        }
        let mut ids = Vec::new();
        assert_eq!(work.next(&mut ids), Some(0));
        work.drop_tensor(0);
        let rest: Vec<_> = std::iter::from_fn(|| work.next(&mut ids)).collect();
        assert_eq!(rest, [1, 1, 1]);
    }
}
