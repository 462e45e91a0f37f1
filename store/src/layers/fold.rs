//! Which layers to fold into one: size tiers, between versions that stay readable.
//!
//! A version stays readable while no layer has rows of versions on both sides of it. So layers are
//! folded within the groups between the versions that are kept, see [`Kept`]. The group that begins
//! with the segment becomes a segment, any other one delta.
//!
//! Deltas are folded where [`TIER_LAYERS`] neighbours, the newest among them, are of a like size.
//! So a row is written once per tier: O(log(rows put)) times. Everything becomes one segment where
//! the deltas have a large share of the rows under them, which makes reads and memory expensive.

use std::collections::BTreeSet;
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

/// What a compaction folds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folding {
    /// All layers of each tensor into one segment, where there are deltas.
    All,
    /// All deltas of each tensor into one, where there are several; its segment stays.
    Deltas,
    /// Folds that pay: deltas of a like size into one, and all layers where deltas have many of the
    /// rows.
    WherePays,
}

/// The versions of a layer and the rows of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerSpan {
    /// The oldest version that it has rows of; for a segment with every row, its own.
    pub(crate) first: u32,
    /// The newest version that it has rows of.
    pub(crate) last: u32,
    pub(crate) n_rows: u64,
}

/// Versions that stay readable: no fold takes rows from both sides of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The oldest version from which on all are kept.
    pub from: u32,
    /// Versions before it that are kept too.
    pub others: BTreeSet<u32>,
}

impl Kept {
    /// Returns whether any version of a range is kept.
    #[must_use]
    pub fn any_in(&self, versions: Range<u32>) -> bool {
        if versions.is_empty() {
            return false;
        }
        self.from < versions.end || self.others.range(versions).next().is_some()
    }
}

/// Chooses the folds of a tensor, by positions of its layers, the newest first: a fold leaves the
/// positions of those before it. A range that starts with 0 becomes a segment, any other a delta.
pub(crate) fn choose_folds(layers: &[LayerSpan], kept: &Kept, what: Folding) -> Vec<Range<usize>> {
    let groups = groups(layers, kept);
    let chosen = groups.into_iter().rev().filter_map(|group| {
        let deltas = group.start.max(1)..group.end;
        match what {
            Folding::All => (group.len() > 1).then_some(group),
            Folding::Deltas => (deltas.len() > 1).then_some(deltas),
            Folding::WherePays => {
                let sizes: Vec<u64> =
                    layers[deltas.clone()].iter().map(|layer| layer.n_rows).collect();
                let within = |it: Range<usize>| deltas.start + it.start..deltas.start + it.end;
                if group.start > 0 {
                    return choose_deltas(&sizes).map(within);
                }
                match choose_fold(layers[0].n_rows, &sizes)? {
                    Fold::All => Some(group),
                    Fold::Deltas(range) => Some(within(range)),
                }
            }
        }
    });
    chosen.collect()
}

/// Separates layers, oldest first, at the versions that are kept.
fn groups(layers: &[LayerSpan], kept: &Kept) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let mut start = 0;
    for (end, pair) in (1..).zip(layers.windows(2)) {
        // The versions that have the older of the two layers and not the newer one.
        if kept.any_in(pair[0].last..pair[1].first) {
            groups.push(start..end);
            start = end;
        }
    }
    groups.push(start..layers.len());
    groups
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

    fn spans(versions: &[(u32, u32)]) -> Vec<LayerSpan> {
        versions.iter().map(|&(first, last)| LayerSpan { first, last, n_rows: 5 }).collect()
    }

    fn kept(from: u32, others: impl IntoIterator<Item = u32>) -> Kept {
        Kept { from, others: others.into_iter().collect() }
    }

    #[test]
    fn no_fold_crosses_a_version_that_is_kept() {
        let layers = spans(&[(1, 1), (2, 2), (4, 4), (5, 6), (8, 8), (9, 9)]);
        let folds = |kept: &Kept| choose_folds(&layers, kept, Folding::All);
        assert_eq!(folds(&kept(9, [])), [0..6]);
        assert_eq!(folds(&kept(8, [])), [0..5]);
        // Version 3 has the layers of version 2, and version 7 those of version 6.
        assert_eq!(folds(&kept(9, [3])), [2..6, 0..2]);
        assert_eq!(folds(&kept(9, [7])), [4..6, 0..4]);
        assert_eq!(folds(&kept(7, [])), [0..4]);
        // Version 5 is folded already, so that there is nothing to keep of it.
        assert_eq!(folds(&kept(9, [5])), [0..6]);
        assert_eq!(folds(&kept(1, [])), []);
        assert_eq!(folds(&kept(9, [1, 2, 4, 6, 8])), []);
        let deltas = choose_folds(&layers, &kept(9, [2]), Folding::Deltas);
        assert_eq!(deltas, vec![2..6]);
        assert_eq!(choose_folds(&layers, &kept(9, []), Folding::Deltas), vec![1..6]);
    }

    #[test]
    fn folds_that_pay_are_chosen_in_each_group() {
        let versions: Vec<(u32, u32)> = (1..=12).map(|version| (version, version)).collect();
        let mut layers = spans(&versions);
        layers[0].n_rows = 1 << 30;
        let folds = |kept: &Kept| choose_folds(&layers, kept, Folding::WherePays);
        assert_eq!(folds(&kept(12, [])), vec![1..12]);
        assert_eq!(folds(&kept(12, [6])), vec![6..12, 1..6]);
        assert_eq!(folds(&kept(12, [9])), vec![1..9], "three are too few");
        layers[2].n_rows = 1 << 28;
        let folds = choose_folds(&layers, &kept(12, [6]), Folding::WherePays);
        assert_eq!(folds, vec![6..12, 0..6], "the deltas up to version 6 are much of the rows");
    }

    proptest! {
        /// Whatever is committed, kept and folded, a version that is kept has its layers.
        #[test]
        fn a_version_that_is_kept_stays_readable(
            commits in prop::collection::vec((0u64..2000, 0u32..12, any::<bool>()), 1..80),
        ) {
            let mut layers = spans(&[(1, 1)]);
            layers[0].n_rows = 10_000;
            for ((n_rows, newest, all), version) in commits.into_iter().zip(2u32..) {
                if n_rows > 0 {
                    layers.push(LayerSpan { first: version, last: version, n_rows });
                }
                let others = BTreeSet::from([version.saturating_sub(30), version / 2]);
                let kept = Kept { from: version.saturating_sub(newest), others };
                let readable = |layers: &[LayerSpan]| -> Vec<u32> {
                    let splits = |at: u32| {
                        layers[0].last > at
                            || layers.iter().any(|it| it.first <= at && at < it.last)
                    };
                    (1..=version).filter(|&at| kept.any_in(at..at + 1) && !splits(at)).collect()
                };
                let before = readable(&layers);
                let what = if all { Folding::All } else { Folding::WherePays };
                for fold in choose_folds(&layers, &kept, what) {
                    prop_assert!(fold.len() > 1);
                    let parts = &layers[fold.clone()];
                    let last = parts[parts.len() - 1].last;
                    let is_base = fold.start == 0;
                    let first = if is_base { last } else { parts[0].first };
                    let sum = parts.iter().map(|it| it.n_rows).sum();
                    let n_rows = if is_base { 10_000 } else { sum };
                    layers.splice(fold, [LayerSpan { first, last, n_rows }]);
                }
                prop_assert_eq!(readable(&layers), before, "{:?}", &layers);
            }
        }

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
