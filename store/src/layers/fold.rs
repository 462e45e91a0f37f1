//! Which layers to fold into one: size tiers.
//!
//! Deltas are folded where [`TIER_LAYERS`] neighbours, the newest among them, are of a like size.
//! So a row is written once per tier: O(log(rows put)) times. Everything becomes one segment where
//! the deltas have a large share of the rows under them, which makes reads and memory expensive.

use std::ops::Range;

/// Deltas of a like size that become one.
const TIER_LAYERS: usize = 4;

/// Two deltas are of a like size where the older has at most this many times the rows that are
/// newer.
const TIER_RATIO: u64 = 4;

/// All layers become one segment where their deltas have at least this share of its rows, as a
/// divisor.
const FULL_FOLD_SHARE: u64 = 8;

/// Deltas of fewer rows than this in all stay, however short the segment is. They cost less than
/// the syncs of a compaction after every commit.
const FULL_FOLD_ROWS_MIN: u64 = 4096;

/// A delta counts as this many rows more: files cost descriptors and reads of their own.
const ROWS_PER_DELTA: u64 = 16;

/// Layers to fold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fold {
    /// All layers into a segment that has every row.
    All,
    /// These neighbours, by position in the list of deltas, oldest first, into one delta.
    Deltas(Range<usize>),
}

/// Chooses what pays to be folded, if anything does; `deltas` has the rows of each, oldest first.
pub(crate) fn choose_fold(base_rows: u64, deltas: &[u64]) -> Option<Fold> {
    let cost: u64 = deltas.iter().map(|n_rows| n_rows + ROWS_PER_DELTA).sum();
    if cost >= FULL_FOLD_ROWS_MIN.max(base_rows / FULL_FOLD_SHARE) {
        return Some(Fold::All);
    }
    choose_deltas(deltas).map(Fold::Deltas)
}

/// Chooses neighbours of a like size among deltas, oldest first, by position.
pub(crate) fn choose_deltas(deltas: &[u64]) -> Option<Range<usize>> {
    let mut newer = 0;
    let mut first = deltas.len();
    while let Some(at) = first.checked_sub(1) {
        let n_rows = deltas[at];
        if first < deltas.len() && n_rows > newer * TIER_RATIO {
            break;
        }
        newer += n_rows;
        first = at;
    }
    (deltas.len() - first >= TIER_LAYERS).then_some(first..deltas.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn like_neighbours_at_the_new_end_are_folded() {
        let of = |rows: &[u64]| choose_fold(1 << 30, rows);
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[5, 5, 5]), None);
        assert_eq!(of(&[5, 5, 5, 5]), Some(Fold::Deltas(0..4)));
        assert_eq!(of(&[1000, 5, 5, 5, 5]), Some(Fold::Deltas(1..5)));
        assert_eq!(of(&[1000, 5, 5, 5]), None);
        assert_eq!(of(&[20, 5, 5, 5]), Some(Fold::Deltas(0..4)));
        assert_eq!(of(&[1, 1, 1, 1, 1000]), Some(Fold::Deltas(0..5)), "all older are smaller");
    }

    #[test]
    fn deltas_of_an_eighth_of_the_rows_are_folded_into_a_segment() {
        assert_eq!(choose_fold(1_000_000, &[124_983]), None);
        assert_eq!(choose_fold(1_000_000, &[124_984]), Some(Fold::All));
        assert_eq!(choose_fold(0, &[]), None);
        assert_eq!(choose_fold(0, &[4079]), None);
        assert_eq!(choose_fold(0, &[4080]), Some(Fold::All));
    }

    proptest! {
        /// Commits of any sizes, each followed by the folds that are chosen.
        #[test]
        fn layers_stay_few_and_rows_are_written_seldom(
            commits in prop::collection::vec(1u64..1000, 1..400),
        ) {
            let (mut deltas, mut written) = (Vec::new(), 0u64);
            let total: u64 = commits.iter().sum();
            for rows in commits {
                deltas.push(rows);
                written += rows;
                while let Some(fold) = choose_fold(1 << 40, &deltas) {
                    let Fold::Deltas(range) = fold else { panic!("the base is large") };
                    prop_assert!(range.len() >= TIER_LAYERS && range.end == deltas.len());
                    let folded: u64 = deltas[range.clone()].iter().sum();
                    deltas.splice(range, [folded]);
                    written += folded;
                }
            }
            let bound = u64::from(total.ilog2()) + 2;
            prop_assert!(deltas.len() as u64 <= 3 * bound, "{deltas:?}");
            prop_assert!(written <= total * (bound + 1), "{written} of {total}");
        }
    }
}
