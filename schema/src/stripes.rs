//! Which shard of a server owns which row: the part of the wire that lets a client talk to the
//! owner directly.

use crate::limits::ROW_BYTES_MAX;

const PAGE_BYTES: u32 = 4096;
/// Stripes are about this long: long enough that rows read together stay with one shard, short
/// enough that a hot range spreads over all shards.
const STRIPE_BYTES: u32 = 64 << 10;

/// Stripes of one tensor: runs of `stripe_rows` rows of a partition, dealt to shards in turn.
///
/// Partition `p` starts its deal at shard `p mod n_shards`, so that small partitions do not all
/// fall to shard 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripes {
    n_shards: u32,
    stripe_rows: u32,
}

impl Stripes {
    /// Returns stripes of `stripe_rows` rows over `n_shards` shards; `None` if either is 0.
    #[must_use]
    pub fn new(n_shards: u16, stripe_rows: u32) -> Option<Self> {
        (n_shards > 0 && stripe_rows > 0).then_some(Self { n_shards: n_shards.into(), stripe_rows })
    }

    /// Returns stripes for rows of `row_bytes` bytes. They are whole pages, unless that would take
    /// more than 1 MiB. Then two shards share the page at a boundary.
    ///
    /// # Panics
    /// When `n_shards` is 0 or `row_bytes` is not within 1 byte and 1 MiB.
    #[must_use]
    pub fn for_rows(n_shards: u16, row_bytes: u32) -> Self {
        assert!(n_shards > 0, "a server has at least one shard");
        assert!(row_bytes > 0 && row_bytes as usize <= ROW_BYTES_MAX, "rows of 1 B to 1 MiB");
        // Rows that end on a page boundary come in multiples of `step`.
        let step = PAGE_BYTES >> row_bytes.trailing_zeros().min(PAGE_BYTES.trailing_zeros());
        let stripe_rows = if u64::from(step) * u64::from(row_bytes) <= ROW_BYTES_MAX as u64 {
            step * (STRIPE_BYTES / (step * row_bytes)).max(1)
        } else {
            (STRIPE_BYTES / row_bytes).max(1)
        };
        Self { n_shards: n_shards.into(), stripe_rows }
    }

    /// Returns the rows of a stripe.
    #[must_use]
    pub fn stripe_rows(self) -> u32 {
        self.stripe_rows
    }

    /// Returns the shard that owns `row` of partition `part`.
    #[must_use]
    #[inline]
    pub fn shard_of(self, part: u16, row: u32) -> u16 {
        if self.n_shards == 1 {
            return 0;
        }
        let stripe = row / self.stripe_rows;
        let shard = (stripe % self.n_shards + u32::from(part) % self.n_shards) % self.n_shards;
        u16::try_from(shard).unwrap_or(u16::MAX)
    }

    /// Returns the position of `row` among the rows that its shard owns in its partition, as if
    /// every stripe were full. Distinct rows of a shard have distinct positions below
    /// [`Self::keys_of`].
    #[must_use]
    #[inline]
    pub fn key_of(self, row: u32) -> u32 {
        if self.n_shards == 1 {
            return row;
        }
        let stripe = row / self.stripe_rows;
        (stripe / self.n_shards) * self.stripe_rows + row % self.stripe_rows
    }

    /// Returns the row of partition `part` that [`Self::key_of`] maps to `key` on `shard`.
    #[must_use]
    pub fn row_of(self, part: u16, shard: u16, key: u32) -> u32 {
        let first = u32::from(shard) + self.n_shards - u32::from(part) % self.n_shards;
        let stripe = key / self.stripe_rows * self.n_shards + first % self.n_shards;
        stripe * self.stripe_rows + key % self.stripe_rows
    }

    /// Returns an upper bound, exclusive, of the keys of a partition of `n_rows` rows.
    #[must_use]
    pub fn keys_of(self, n_rows: u32) -> u64 {
        let stripes = u64::from(n_rows).div_ceil(u64::from(self.stripe_rows));
        let full = stripes.div_ceil(u64::from(self.n_shards)) * u64::from(self.stripe_rows);
        full.min(u64::from(n_rows))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn stripes_are_whole_pages() {
        assert_eq!(Stripes::for_rows(2, 512).stripe_rows(), 128);
        assert_eq!(Stripes::for_rows(2, 400).stripe_rows() * 400 % 4096, 0);
        assert_eq!(Stripes::for_rows(1, 1).stripe_rows(), 65536);
        assert_eq!(Stripes::for_rows(1, 1 << 20).stripe_rows(), 1);
        // 8415 f32: whole pages would take 34 MB.
        assert_eq!(Stripes::for_rows(2, 33660).stripe_rows(), 1);
    }

    #[test]
    fn first_stripes_of_partitions_fall_to_different_shards() {
        let stripes = Stripes::new(3, 2).unwrap();
        let of = |part| [0, 1, 2, 4, 6].map(|row| stripes.shard_of(part, row));
        assert_eq!((of(0), of(1), of(5)), ([0, 0, 1, 2, 0], [1, 1, 2, 0, 1], [2, 2, 0, 1, 2]));
        // 2³¹ - 1 and 65 535 leave 1 and 0.
        assert_eq!(stripes.shard_of(u16::MAX, u32::MAX), 1);
    }

    proptest! {
        #[test]
        fn every_row_has_one_owner_and_a_key_of_its_own(
            n_shards in 1u16..5, stripe_rows in 1u32..9, n_rows in 0u32..200, part in 0u16..9,
        ) {
            let stripes = Stripes::new(n_shards, stripe_rows).unwrap();
            let mut seen = HashSet::new();
            for row in 0..n_rows {
                let shard = stripes.shard_of(part, row);
                prop_assert!(shard < n_shards);
                prop_assert!(u64::from(stripes.key_of(row)) < stripes.keys_of(n_rows));
                prop_assert!(seen.insert((shard, stripes.key_of(row))));
                prop_assert_eq!(stripes.row_of(part, shard, stripes.key_of(row)), row);
            }
        }
    }
}
