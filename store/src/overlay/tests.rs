use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Layers, and the versions of every row by hand.
fn layers_of(puts: &[Vec<u32>]) -> (Layers, BTreeMap<u32, Vec<u32>>) {
    let mut layers = Layers::default();
    let mut naive: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (version, rows) in (1..).zip(puts) {
        let rows: RoaringBitmap = rows.iter().copied().collect();
        for row in &rows {
            naive.entry(row).or_default().push(version);
        }
        layers.push(version, rows);
    }
    (layers, naive)
}

proptest! {
    #[test]
    fn each_row_is_found_at_its_newest_version(
        puts in prop::collection::vec(prop::collection::vec(0u32..70, 0..20), 0..40),
        cut in 0u32..42,
    ) {
        let (layers, naive) = layers_of(&puts);
        let later = layers.after(cut);
        let newest_of = |row: u32, is_seen: &dyn Fn(u32) -> bool| {
            naive.get(&row)?.iter().copied().filter(|&version| is_seen(version)).max()
        };
        for row in 0..70 {
            let at = RowIdx(row);
            prop_assert_eq!(layers.version_of(at, u32::MAX), newest_of(row, &|_| true));
            prop_assert_eq!(layers.version_of(at, cut), newest_of(row, &|it| it <= cut));
            prop_assert_eq!(later.version_of(at, u32::MAX), newest_of(row, &|it| it > cut));
            let between = newest_of(row, &|it| it > cut && it <= cut + 3);
            prop_assert_eq!(later.version_of(at, cut + 3), between);
        }
        let sizes = |is_seen: &dyn Fn(u32) -> bool| -> Vec<(u32, u64)> {
            let of = |version| naive.values().filter(|it| it.contains(&version)).count() as u64;
            let versions = (1..=40).filter(|&version| is_seen(version));
            versions.map(|version| (version, of(version))).filter(|(_, n)| *n > 0).collect()
        };
        prop_assert_eq!(layers.sizes_at(u32::MAX), sizes(&|_| true));
        prop_assert_eq!(layers.sizes_at(cut), sizes(&|version| version <= cut));
        prop_assert_eq!(later.sizes_at(u32::MAX), sizes(&|version| version > cut));
        let n_seen = (0..70).filter(|&row| newest_of(row, &|it| it <= cut).is_some()).count();
        prop_assert_eq!(layers.n_rows_at(cut), n_seen as u64);
        prop_assert_eq!(layers.is_empty_at(cut), n_seen == 0);
    }

    #[test]
    fn a_split_loses_and_doubles_nothing(rows in prop::collection::vec(0u32..40, 0..60)) {
        let mut layers = Layers::default();
        layers.push(3, (0..40).step_by(3).collect());
        let asked: Vec<(RowIdx, u32)> = rows.iter().map(|&row| RowIdx(row)).zip(0..).collect();
        let (mut base, mut overlaid) = (asked.clone(), Vec::new());
        split(&mut base, &mut overlaid, |row| layers.version_of(row, u32::MAX));
        prop_assert!(base.iter().all(|(row, _)| row.0 % 3 != 0));
        prop_assert!(overlaid.iter().all(|row| row.row.0 % 3 == 0 && row.version == 3));
        let mut all = base;
        all.extend(overlaid.iter().map(|row| (row.row, row.out_row)));
        all.sort_unstable_by_key(|&(_, out_row)| out_row);
        prop_assert_eq!(all, asked);
    }
}

#[test]
fn a_version_without_rows_makes_no_layer() {
    let mut layers = Layers::default();
    layers.push(2, RoaringBitmap::new());
    assert!(layers.is_empty_at(u32::MAX) && layers.sizes_at(u32::MAX).is_empty());
    layers.push(3, [u32::MAX].into_iter().collect());
    assert_eq!(layers.sizes_at(u32::MAX), [(3, 1)]);
    assert_eq!(layers.version_of(RowIdx(u32::MAX), 3), Some(3));
    assert_eq!(layers.version_of(RowIdx(u32::MAX), 2), None);
}

#[test]
#[should_panic(expected = "out of order")]
fn layers_only_grow_upwards() {
    let mut layers = Layers::default();
    layers.push(3, [1].into_iter().collect());
    layers.push(3, RoaringBitmap::new());
}

#[test]
fn few_runs_hold_many_versions() {
    let mut layers = Layers::default();
    for version in 1..=10_000 {
        layers.push(version, [version % 1000, 70_000 + version].into_iter().collect());
        assert!(layers.runs.n_runs() <= 15, "{} at {version}", layers.runs.n_runs());
    }
    assert_eq!(layers.version_of(RowIdx(7), u32::MAX), Some(9007));
    assert_eq!(layers.version_of(RowIdx(7), 9006), Some(8007));
    assert_eq!(layers.version_of(RowIdx(70_001), u32::MAX), Some(1));
}
