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
    ranked(sorted.chunk_by(u32::eq).map(|uses| (uses[0], uses.len() as u32)).collect())
}

/// Returns ids in descending order of their weight, then ascending.
pub(super) fn ranked(mut weighted: Vec<(u32, u32)>) -> Vec<u32> {
    weighted.sort_unstable_by_key(|&(id, weight)| (std::cmp::Reverse(weight), id));
    weighted.into_iter().map(|(id, _)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_used_comes_first_and_ties_go_to_the_lower_id() {
        assert_eq!(rank_by_frequency(&[5, 2, 9, 5, 2, 7, 5]), [5, 2, 7, 9]);
        assert!(rank_by_frequency(&[]).is_empty());
    }
}
