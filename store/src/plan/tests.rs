use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Coalescing told another way: a set of pages per extent, grown by the definition alone.
fn naive(rows: &[u32], layout: &SegmentLayout, profile: &DeviceProfile) -> Vec<Extent> {
    let distinct: BTreeSet<u32> = rows.iter().copied().collect();
    let mut extents: Vec<BTreeSet<u64>> = Vec::new();
    for row in distinct {
        let pages = layout.row_pages(RowIdx(row)).unwrap();
        let joined = extents.last().map(|last| {
            let (start, end) = (*last.first().unwrap(), last.last().unwrap() + 1);
            let gap_bytes = (pages.start.saturating_sub(end) * PAGE_BYTES) as f64;
            let cheaper =
                gap_bytes == 0.0 || gap_bytes / profile.bandwidth_bytes_per_s < 1.0 / profile.iops;
            let fits = (pages.end - start) * PAGE_BYTES <= MAX_EXTENT_BYTES || pages.end <= end;
            cheaper && fits
        });
        if joined == Some(true) {
            let last = extents.last_mut().unwrap();
            let start = *last.last().unwrap();
            last.extend(start..pages.end);
        } else {
            extents.push(pages.collect());
        }
    }
    let extent = |pages: &BTreeSet<u64>| Extent {
        first_page: *pages.first().unwrap(),
        n_pages: pages.len() as u32,
    };
    extents.iter().map(extent).collect()
}

/// Everything that a plan promises, whatever the rows.
fn check(plan: &ReadPlan, rows: &[RowIdx], layout: &SegmentLayout) {
    let mut out_rows: Vec<u32> = plan.rows.iter().map(|row| row.out_row).collect();
    for row in &plan.rows {
        let extent = plan.extents[row.extent as usize];
        let start = extent.first_page * PAGE_BYTES + u64::from(row.offset_bytes);
        assert_eq!(Some(start), layout.row_range(rows[row.out_row as usize]).map(|r| r.start));
        let end = row.offset_bytes as usize + layout.row_bytes();
        assert!(end <= extent.len_bytes(), "the row lies within its extent");
    }
    out_rows.sort_unstable();
    assert!(out_rows.iter().copied().eq(0..rows.len() as u32), "every output row once");
    assert!(plan.rows.is_sorted_by_key(|row| (row.extent, row.offset_bytes)));
    let n_rows: usize = plan.by_extent().map(|(_, rows)| rows.len()).sum();
    assert_eq!(n_rows, rows.len());
    for (extent, rows) in plan.by_extent() {
        assert!(rows.iter().all(|row| plan.extents[row.extent as usize] == *extent));
    }
    let row_pages = layout.row_bytes() as u64 / PAGE_BYTES + 2;
    for extent in &plan.extents {
        assert!(extent.n_pages >= 1);
        assert!(u64::from(extent.n_pages) <= MAX_EXTENT_PAGES.max(row_pages));
        assert!(extent.first_page + u64::from(extent.n_pages) <= layout.n_pages());
    }
    for pair in plan.extents.windows(2) {
        let end = pair[0].first_page + u64::from(pair[0].n_pages);
        let run_was_cut = pair[1].first_page + 1 == end
            && pair[0].n_pages + pair[1].n_pages > MAX_EXTENT_PAGES as u32;
        assert!(pair[1].first_page >= end || run_was_cut, "{pair:?}");
    }
}

fn row_lengths() -> impl Strategy<Value = usize> {
    prop_oneof![
        1usize..40,
        Just(400),
        Just(4096),
        4000usize..9000,
        300_000usize..400_000,
        1_040_000usize..1_060_000,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn agrees_with_the_naive_twin(
        row_bytes in row_lengths(),
        n_rows in 1u32..5000,
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..300),
        iops in prop_oneof![Just(90_000.0), Just(1e9), Just(100.0)],
    ) {
        let layout = SegmentLayout::new(n_rows, row_bytes).unwrap();
        let profile = DeviceProfile { iops, ..DeviceProfile::default() };
        let rows: Vec<u32> = picks.iter().map(|pick| pick.index(n_rows as usize) as u32).collect();
        let idx: Vec<RowIdx> = rows.iter().copied().map(RowIdx).collect();
        let mut plan = ReadPlan::default();
        plan.build(&idx, &layout, &profile).unwrap();
        prop_assert_eq!(&plan.extents, &naive(&rows, &layout, &profile));
        check(&plan, &idx, &layout);
    }

    #[test]
    fn never_costs_more_than_a_request_per_row(
        picks in prop::collection::btree_set(0u32..100_000, 1..200),
    ) {
        let layout = SegmentLayout::new(100_000, 400).unwrap();
        let profile = DeviceProfile::default();
        let rows: Vec<RowIdx> = picks.iter().copied().map(RowIdx).collect();
        let (mut joint, mut alone) = (ReadPlan::default(), ReadPlan::default());
        joint.build(&rows, &layout, &profile).unwrap();
        let mut seconds = 0.0;
        for row in rows {
            alone.build(&[row], &layout, &profile).unwrap();
            seconds += alone.ideal_seconds(&profile);
        }
        prop_assert!(joint.ideal_seconds(&profile) <= seconds * 1.000_001);
    }
}

#[test]
fn gaps_join_up_to_the_price_of_a_request() {
    let layout = SegmentLayout::new(1000, 4096).unwrap();
    let mut plan = ReadPlan::default();
    // 1.8 GB/s and 90 000 requests: 20 000 bytes cost a request, so four pages join, five do not.
    assert_eq!(DeviceProfile::default().max_gap_pages(), 4);
    plan.build(&[RowIdx(5), RowIdx(0)], &layout, &DeviceProfile::default()).unwrap();
    assert_eq!(plan.extents, [Extent { first_page: 0, n_pages: 6 }]);
    plan.build(&[RowIdx(6), RowIdx(0)], &layout, &DeviceProfile::default()).unwrap();
    assert_eq!(plan.extents.len(), 2);
    assert_eq!(plan.rows[1], PlannedRow { out_row: 0, extent: 1, offset_bytes: 0 });
}

#[test]
fn profiles_without_sense_join_only_neighbours() {
    for (iops, bandwidth_bytes_per_s) in [(0.0, 1e9), (f64::NAN, 1e9), (1e5, -1.0), (1e5, f64::NAN)]
    {
        assert_eq!(DeviceProfile { iops, bandwidth_bytes_per_s }.max_gap_pages(), 0);
    }
    let free = DeviceProfile { iops: 1e-300, bandwidth_bytes_per_s: 1e300 };
    let layout = SegmentLayout::new(1000, 4096).unwrap();
    let mut plan = ReadPlan::default();
    plan.build(&[RowIdx(0), RowIdx(999)], &layout, &free).unwrap();
    assert_eq!(plan.extents.len(), 2, "the limit of an extent holds even where gaps cost nothing");
}

#[test]
fn an_unknown_row_leaves_an_empty_plan() {
    let layout = SegmentLayout::new(10, 8).unwrap();
    let mut plan = ReadPlan::default();
    plan.build(&[RowIdx(1)], &layout, &DeviceProfile::default()).unwrap();
    let rows = [RowIdx(9), RowIdx(10), RowIdx(u32::MAX)];
    let refused = plan.build(&rows, &layout, &DeviceProfile::default());
    assert_eq!(refused, Err(PlanError::NoRow { row: RowIdx(10), position: 1, n_rows: 10 }));
    assert!(plan.extents.is_empty() && plan.rows.is_empty() && plan.out_rows() == 0);
    let empty = SegmentLayout::new(0, 8).unwrap();
    assert!(plan.build(&[RowIdx(0)], &empty, &DeviceProfile::default()).is_err());
    assert_eq!(plan.build(&[], &empty, &DeviceProfile::default()), Ok(()));
}

#[test]
fn scattered_rows_stay_within_the_output() {
    let layout = SegmentLayout::new(10, 8).unwrap();
    let mut plan = ReadPlan::default();
    let rows = [(RowIdx(4), 2), (RowIdx(3), 0)];
    plan.build_scattered(&rows, 3, &layout, &DeviceProfile::default()).unwrap();
    assert_eq!(plan.out_rows(), 3);
    assert_eq!(plan.rows[0], PlannedRow { out_row: 0, extent: 0, offset_bytes: 24 });
    let refused = plan.build_scattered(&rows, 2, &layout, &DeviceProfile::default());
    assert_eq!(refused, Err(PlanError::NoOutputRow { out_row: 2, out_rows: 2 }));
}
