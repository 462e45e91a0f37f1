//! Partitions that look at ids only: by a hash of them, or by ranges of them.

use crate::ids::PartId;
use crate::splitmix64::splitmix64;

/// Spreads nodes over partitions by a mixed hash of their id, so that order means nothing.
#[must_use]
pub(super) fn by_hash(n_nodes: u32, n_parts: u16) -> Vec<PartId> {
    (0..n_nodes).map(|node| hashed(node, n_parts)).collect()
}

/// Returns a partition by the hash of an id.
pub(super) fn hashed(node: u32, n_parts: u16) -> PartId {
    // The high half of hash × partitions is uniform over the partitions, without a division.
    PartId(((u128::from(splitmix64(u64::from(node))) * u128::from(n_parts)) >> 64) as u16)
}

/// Cuts the ids into ranges whose lengths differ by one at most.
#[must_use]
pub(super) fn by_range(n_nodes: u32, n_parts: u16) -> Vec<PartId> {
    let part = |node| u64::from(node) * u64::from(n_parts) / u64::from(n_nodes);
    (0..n_nodes).map(|node| PartId(part(node) as u16)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(assignment: &[PartId], n_parts: u16) -> Vec<usize> {
        let count = |part| assignment.iter().filter(|&&p| p == PartId(part)).count();
        (0..n_parts).map(count).collect()
    }

    #[test]
    fn ranges_ascend_and_are_even() {
        assert_eq!(by_range(5, 2), [0, 0, 0, 1, 1].map(PartId));
        assert_eq!(by_range(2, 5), [0, 2].map(PartId));
        assert!(by_range(0, 3).is_empty());
        let many = by_range(100_003, 7);
        assert!(many.is_sorted());
        assert!(counts(&many, 7).iter().all(|&n| n == 14_286 || n == 14_287));
    }

    #[test]
    fn hashes_are_near_even_and_do_not_follow_ids() {
        let assignment = by_hash(70_000, 7);
        assert!(counts(&assignment, 7).iter().all(|&n| (9_600..10_400).contains(&n)));
        let same = assignment.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!((9_500..10_500).contains(&same), "{same} of 69999 neighbours together");
        assert!(by_hash(9, 1).iter().all(|&p| p == PartId(0)));
    }
}
