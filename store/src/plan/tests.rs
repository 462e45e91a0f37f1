use std::collections::BTreeSet;
use std::ops::Range;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

/// Returns the physical limit of executing a plan: the sum of 1 / IOPS + bytes / bandwidth.
fn ideal_seconds(plan: &ReadPlan, profile: &DiskProfile) -> f64 {
    plan.extents().iter().map(|extent| profile.request_seconds(extent.len_bytes() as u64)).sum()
}

/// Returns a naive twin of coalescing: a set of pages per extent, grown by the definition alone.
fn naive(rows: &[RowIdx], layout: &SegmentLayout, profile: &DiskProfile) -> Vec<Extent> {
    let distinct: BTreeSet<RowIdx> = rows.iter().copied().collect();
    let mut extents: Vec<BTreeSet<u64>> = Vec::new();
    for row in distinct {
        let pages = layout.row_pages(row).unwrap();
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

/// Returns the least cost of reading `rows` in any way that cuts their ascending list into
/// requests.
fn least_seconds(rows: &[RowIdx], layout: &SegmentLayout, profile: &DiskProfile) -> f64 {
    let distinct: BTreeSet<RowIdx> = rows.iter().copied().collect();
    let pages: Vec<Range<u64>> =
        distinct.into_iter().map(|row| layout.row_pages(row).unwrap()).collect();
    let mut least = vec![0.0];
    for end in 1..=pages.len() {
        let from = |first: usize| {
            let n_pages = pages[end - 1].end - pages[first].start;
            // One row, or one group of rows, may be longer than the limit.
            let alone = pages[first] == pages[end - 1];
            let fits = n_pages <= MAX_EXTENT_PAGES || alone;
            let bytes = (n_pages * PAGE_BYTES) as f64;
            fits.then(|| least[first] + 1.0 / profile.iops + bytes / profile.bandwidth_bytes_per_s)
        };
        least.push((0..end).filter_map(from).fold(f64::INFINITY, f64::min));
    }
    least[pages.len()]
}

/// Checks everything that a plan promises, for any rows.
fn check(plan: &ReadPlan, rows: &[RowIdx], layout: &SegmentLayout) {
    let mut out_rows: Vec<u32> = plan.rows().iter().map(|planned| planned.out_row).collect();
    out_rows.sort_unstable();
    assert!(out_rows.iter().copied().eq(0..rows.len() as u32), "every output row once");
    assert!(plan.rows().iter().all(|planned| planned.row == rows[planned.out_row as usize]));
    assert!(plan.rows().is_sorted_by_key(|planned| planned.row));
    let by_extent: Vec<PlannedRow> = plan.by_extent().flat_map(|(_, rows)| rows).copied().collect();
    assert_eq!(by_extent, plan.rows());
    assert_eq!(plan.by_extent().len(), plan.extents().len());
    let mut longest_row = 0;
    for (extent, rows) in plan.by_extent() {
        let end = extent.first_page + u64::from(extent.n_pages);
        assert!(!rows.is_empty() && end <= layout.n_pages());
        for planned in rows {
            let pages = layout.row_pages(planned.row).unwrap();
            assert!(extent.first_page <= pages.start && pages.end <= end, "rows lie within");
            longest_row = longest_row.max(pages.end - pages.start);
        }
        assert_eq!(extent.first_page, layout.row_pages(rows[0].row).unwrap().start);
        assert!(u64::from(extent.n_pages) <= MAX_EXTENT_PAGES.max(longest_row));
    }
    for pair in plan.extents().windows(2) {
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

/// Returns the rows that lie packed, or in groups of which every one shrank to some share of its
/// bytes.
fn layouts() -> impl Strategy<Value = SegmentLayout> {
    let shares = prop::collection::vec(1u64..=100, 1..20);
    (1u32..5000, row_lengths(), 1u32..30, shares, any::<bool>()).prop_map(
        |(n_rows, row_bytes, group_rows, shares, packed)| {
            if packed {
                return SegmentLayout::new(n_rows, row_bytes).unwrap();
            }
            let group_rows = if row_bytes > 9000 { 1 } else { group_rows };
            let lengths = (0..n_rows.div_ceil(group_rows)).map(|group| {
                let n_rows = (n_rows - group * group_rows).min(group_rows);
                let raw_bytes = u64::from(n_rows) * row_bytes as u64;
                let share = shares[group as usize % shares.len()];
                (raw_bytes * share / 100).max(1) as u32
            });
            SegmentLayout::grouped(n_rows, row_bytes, group_rows, lengths).unwrap()
        },
    )
}

fn pick(picks: &[Index], layout: &SegmentLayout) -> Vec<RowIdx> {
    let n_rows = layout.n_rows() as usize;
    picks.iter().map(|pick| RowIdx(pick.index(n_rows) as u32)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn agrees_with_the_naive_twin(
        layout in layouts(),
        picks in prop::collection::vec(any::<Index>(), 0..300),
        iops in prop_oneof![Just(90_000.0), Just(1e9), Just(100.0)],
    ) {
        let profile = DiskProfile { iops, ..DiskProfile::default() };
        let rows = pick(&picks, &layout);
        let mut plan = ReadPlan::default();
        plan.build(&rows, &layout, &profile).unwrap();
        prop_assert_eq!(plan.extents(), &naive(&rows, &layout, &profile));
        check(&plan, &rows, &layout);
    }

    #[test]
    fn costs_no_more_than_any_other_way_to_cut_the_rows(
        layout in layouts(),
        picks in prop::collection::vec(any::<Index>(), 1..60),
        iops in prop_oneof![Just(90_000.0), Just(1e9), Just(1000.0)],
    ) {
        let profile = DiskProfile { iops, ..DiskProfile::default() };
        let rows = pick(&picks, &layout);
        let mut plan = ReadPlan::default();
        plan.build(&rows, &layout, &profile).unwrap();
        // Where the limit cuts a run, another place for the cut can save less than one request,
        // and the page that both sides share.
        let n_cuts = plan.extents().windows(2).filter(|pair| {
            let end = pair[0].first_page + u64::from(pair[0].n_pages);
            pair[1].first_page <= end + profile.max_gap_pages()
        });
        let cut_s = 1.0 / iops + PAGE_BYTES as f64 / profile.bandwidth_bytes_per_s;
        let allowed =
            least_seconds(&rows, &layout, &profile) + n_cuts.count() as f64 * cut_s;
        prop_assert!(ideal_seconds(&plan, &profile) <= allowed * 1.000_001);
    }

    #[test]
    fn a_window_reads_shared_rows_once_and_joins_neighbours(
        layout in layouts(),
        batches in prop::collection::vec(prop::collection::vec(any::<Index>(), 0..60), 0..9),
    ) {
        let profile = DiskProfile::default();
        let batches: Vec<Vec<RowIdx>> = batches.iter().map(|b| pick(b, &layout)).collect();
        let (mut window, mut alone) = (ReadPlan::default(), ReadPlan::default());
        let rows = batches.concat();
        window.build(&rows, &layout, &profile).unwrap();
        check(&window, &rows, &layout);
        prop_assert_eq!(window.extents(), &naive(&rows, &layout, &profile));
        let mut seconds = 0.0;
        let mut read_bytes = 0;
        for batch in &batches {
            alone.build(batch, &layout, &profile).unwrap();
            seconds += ideal_seconds(&alone, &profile);
            read_bytes += alone.read_bytes();
        }
        let n_cuts = window.read_bytes() / (MAX_EXTENT_BYTES / 2);
        let allowed = seconds + n_cuts as f64 / profile.iops;
        prop_assert!(ideal_seconds(&window, &profile) <= allowed * 1.000_001);
        if batches.len() < 2 {
            prop_assert_eq!(window.read_bytes(), read_bytes);
        }
    }
}

#[test]
fn gaps_join_up_to_the_price_of_a_request() {
    let layout = SegmentLayout::new(1000, 4096).unwrap();
    let mut plan = ReadPlan::default();
    // 1.8 GB/s and 90 000 requests: 20 000 bytes cost a request, so four pages join, five do not.
    let profile = DiskProfile { iops: 90_000.0, bandwidth_bytes_per_s: 1.8e9 };
    assert_eq!(profile.max_gap_pages(), 4);
    plan.build(&[RowIdx(5), RowIdx(0)], &layout, &profile).unwrap();
    assert_eq!(plan.extents(), [Extent { first_page: 0, n_pages: 6 }]);
    plan.build(&[RowIdx(6), RowIdx(0)], &layout, &profile).unwrap();
    assert_eq!(plan.extents().len(), 2);
    assert_eq!(plan.rows_of(1), [PlannedRow { row: RowIdx(6), out_row: 0 }]);
}

#[test]
fn profiles_without_sense_join_only_neighbours() {
    for (iops, bandwidth_bytes_per_s) in [(0.0, 1e9), (f64::NAN, 1e9), (1e5, -1.0), (1e5, f64::NAN)]
    {
        assert_eq!(DiskProfile { iops, bandwidth_bytes_per_s }.max_gap_pages(), 0);
    }
    let free = DiskProfile { iops: 1e-300, bandwidth_bytes_per_s: 1e300 };
    let layout = SegmentLayout::new(1000, 4096).unwrap();
    let mut plan = ReadPlan::default();
    plan.build(&[RowIdx(0), RowIdx(999)], &layout, &free).unwrap();
    assert_eq!(
        plan.extents().len(),
        2,
        "the limit of an extent holds even where gaps cost nothing"
    );
}

#[test]
fn an_unknown_row_leaves_an_empty_plan() {
    let layout = SegmentLayout::new(10, 8).unwrap();
    let mut plan = ReadPlan::default();
    plan.build(&[RowIdx(1)], &layout, &DiskProfile::default()).unwrap();
    let rows = [RowIdx(9), RowIdx(10), RowIdx(u32::MAX)];
    let refused = plan.build(&rows, &layout, &DiskProfile::default());
    assert_eq!(refused, Err(PlanError::NoRow { row: RowIdx(10), position: 1, n_rows: 10 }));
    assert!(plan.extents().is_empty() && plan.rows().is_empty() && plan.out_rows() == 0);
    assert_eq!(plan.by_extent().len(), 0);
    let rows = [RowIdx(0), RowIdx(1), RowIdx(12)];
    let refused = plan.build(&rows, &layout, &DiskProfile::default());
    assert_eq!(refused, Err(PlanError::NoRow { row: RowIdx(12), position: 2, n_rows: 10 }));
    let empty = SegmentLayout::new(0, 8).unwrap();
    assert!(plan.build(&[RowIdx(0)], &empty, &DiskProfile::default()).is_err());
    assert_eq!(plan.build(&[], &empty, &DiskProfile::default()), Ok(()));
}

#[test]
fn scattered_rows_stay_within_the_output() {
    let layout = SegmentLayout::new(10, 8).unwrap();
    let mut plan = ReadPlan::default();
    let rows = [(RowIdx(4), 2), (RowIdx(3), 0)];
    plan.build_scattered(&rows, 3, &layout, &DiskProfile::default()).unwrap();
    assert_eq!(plan.out_rows(), 3);
    assert_eq!(plan.rows()[0], PlannedRow { row: RowIdx(3), out_row: 0 });
    let refused = plan.build_scattered(&rows, 2, &layout, &DiskProfile::default());
    assert_eq!(refused, Err(PlanError::NoOutputRow { out_row: 2, out_rows: 2 }));
}

#[test]
fn every_row_has_a_read_of_its_own() {
    let layout = SegmentLayout::new(100, 400).unwrap();
    let rows = [RowIdx(99), RowIdx(10), RowIdx(11), RowIdx(10)];
    let mut plan = ReadPlan::default();
    plan.build_apart(&rows, &layout).unwrap();
    let reads: Vec<_> = plan.by_extent().map(|(extent, rows)| (*extent, rows.len())).collect();
    let expected = [10, 10, 11, 99].map(|row| {
        let pages = layout.row_pages(RowIdx(row)).unwrap();
        let n_pages = (pages.end - pages.start) as u32;
        (Extent { first_page: pages.start, n_pages }, 1)
    });
    assert_eq!(reads, expected);
    assert!(plan.build_apart(&[RowIdx(100)], &layout).is_err());
    assert_eq!(plan.out_rows(), 0);
}
