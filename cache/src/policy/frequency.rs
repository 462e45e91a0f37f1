//! `frequency`: RapidGNN's hot set (sections 4.5 and 4.6).
//!
//! - Ids in order of how often the batches of an epoch use them; ties: lower id first.
//! - The first of them, one per slot, are the target of that epoch. At its end the owner passes the
//!   next epoch's to [`crate::directory::Directory::retarget`], and brings the rows that are wanted
//!   before the first batch. [`crate::double_buffer::DoubleBuffer`] does the same for threads that
//!   read while the next set is being filled.

/// Returns the ids of an epoch's accesses, each once, in the order in which `frequency` prefers
/// them.
#[must_use]
pub fn rank_by_frequency(accesses: &[u32]) -> Vec<u32> {
    let mut sorted = accesses.to_vec();
    sorted.sort_unstable();
    hottest(sorted.chunk_by(u32::eq).map(|uses| (uses[0], uses.len() as u32)), usize::MAX)
}

/// Returns the `n` ids that an epoch uses most, in the order in which `frequency` prefers them.
///
/// `uses` has each id once, with the number of its uses. Ids without a use are left out.
#[must_use]
pub fn hottest(uses: impl IntoIterator<Item = (u32, u32)>, n: usize) -> Vec<u32> {
    // Ordered by falling number of uses, then by rising id.
    let rank = |(id, n_uses): (u32, u32)| u64::from(u32::MAX - n_uses) << 32 | u64::from(id);
    let used = uses.into_iter().filter(|&(_, n_uses)| n_uses > 0);
    let mut ranks: Vec<u64> = used.map(rank).collect();
    if n < ranks.len() {
        ranks.select_nth_unstable(n);
        ranks.truncate(n);
    }
    ranks.sort_unstable();
    ranks.into_iter().map(|rank| rank as u32).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_hottest_are_the_first_of_a_full_sort(
            counts in prop::collection::vec(0u32..5, 0..60),
            n in 0usize..70,
        ) {
            let uses: Vec<(u32, u32)> = (0..).zip(counts).collect();
            let mut naive: Vec<(u32, u32)> = uses.clone();
            naive.retain(|&(_, n_uses)| n_uses > 0);
            naive.sort_by_key(|&(id, n_uses)| (std::cmp::Reverse(n_uses), id));
            let expected: Vec<u32> = naive.into_iter().map(|(id, _)| id).take(n).collect();
            prop_assert_eq!(hottest(uses, n), expected);
        }
    }

    #[test]
    fn the_most_used_comes_first_and_ties_go_to_the_lower_id() {
        assert_eq!(rank_by_frequency(&[5, 2, 9, 5, 2, 7, 5]), [5, 2, 7, 9]);
        assert!(rank_by_frequency(&[]).is_empty());
    }
}
