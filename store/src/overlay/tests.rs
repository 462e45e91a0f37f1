use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Layers, and the version of every row by hand.
fn layers_of(puts: &[Vec<u32>]) -> (Layers, BTreeMap<u32, Vec<u32>>) {
    let mut layers = Layers::default();
    let mut naive: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (version, rows) in (1..).zip(puts) {
        layers = layers.with(version, rows.iter().copied().collect());
        for &row in rows {
            naive.entry(row).or_default().push(version);
        }
    }
    (layers, naive)
}

proptest! {
    #[test]
    fn each_row_is_found_at_its_newest_version(
        puts in prop::collection::vec(prop::collection::vec(0u32..70, 0..20), 0..6),
        cut in 0u32..7,
    ) {
        let (layers, naive) = layers_of(&puts);
        for row in 0..70 {
            let versions = naive.get(&row).cloned().unwrap_or_default();
            let newest = versions.iter().copied().max();
            prop_assert_eq!(layers.version_of(RowIdx(row)), newest);
            let early = versions.iter().copied().filter(|&v| v <= cut).max();
            prop_assert_eq!(layers.up_to(cut).version_of(RowIdx(row)), early);
            let late = versions.iter().copied().filter(|&v| v > cut).max();
            prop_assert_eq!(layers.after(cut).version_of(RowIdx(row)), late);
            prop_assert_eq!(layers.rows().contains(row), newest.is_some());
        }
        prop_assert_eq!(layers.is_empty(), naive.is_empty());
    }

    #[test]
    fn a_split_loses_and_doubles_nothing(rows in prop::collection::vec(0u32..40, 0..60)) {
        let layers = Layers::default().with(3, (0..40).step_by(3).collect());
        let asked: Vec<(RowIdx, u32)> = rows.iter().map(|&row| RowIdx(row)).zip(0..).collect();
        let (mut base, mut overlaid) = (asked.clone(), Vec::new());
        split(&mut base, &mut overlaid, |row| layers.version_of(row));
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
    let layers = Layers::default().with(2, RoaringBitmap::new());
    assert!(layers.is_empty() && layers.sizes().next().is_none());
    let layers = layers.with(3, [u32::MAX].into_iter().collect());
    assert_eq!(layers.sizes().collect::<Vec<_>>(), [(3, 1)]);
    assert_eq!(layers.version_of(RowIdx(u32::MAX)), Some(3));
}

#[test]
#[should_panic(expected = "out of order")]
fn layers_only_grow_upwards() {
    let _ = Layers::default().with(3, [1].into_iter().collect()).with(3, RoaringBitmap::new());
}
