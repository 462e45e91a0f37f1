//! Planning: nanoseconds per row, for batches and for a window of 8 batches of 15 000.
//!
//! Rows are drawn at random from 2.4 Mi, without locality: the case in which sorting is dearest. It
//! does not measure what the plan saves when it is executed.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use lodestore_benches::random_ids;
use lodestore_store::RowIdx;
use lodestore_store::layout::SegmentLayout;
use lodestore_store::plan::{DiskProfile, ReadPlan};

const N_ROWS: u32 = 2_449_029;
const BATCH_ROWS: [usize; 3] = [1_000, 15_000, 120_000];
const ROW_BYTES: [usize; 4] = [128, 400, 512, 2408];

fn plan(c: &mut Criterion) {
    let profile = DiskProfile::default();
    let mut group = c.benchmark_group("plan");
    for n in BATCH_ROWS {
        let rows: Vec<RowIdx> = random_ids(N_ROWS, n, 1).into_iter().map(RowIdx).collect();
        group.throughput(Throughput::Elements(n as u64));
        let mut layouts: Vec<(String, SegmentLayout)> = Vec::new();
        for row_bytes in ROW_BYTES {
            let layout = SegmentLayout::new(N_ROWS, row_bytes).expect("a short row");
            layouts.push((format!("raw_{row_bytes}"), layout));
        }
        let lengths = (0..N_ROWS.div_ceil(5)).map(|group| 100 + group % 100);
        let grouped = SegmentLayout::grouped(N_ROWS, 400, 5, lengths).expect("short groups");
        layouts.push(("zstd_400".to_owned(), grouped));
        for (name, layout) in &layouts {
            let mut plan = ReadPlan::default();
            group.bench_function(BenchmarkId::new(name, n), |b| {
                b.iter(|| plan.build(&rows, layout, &profile).expect("rows that exist"));
            });
            check(&plan, &rows, layout);
        }
    }
    group.finish();
}

/// Measures the planning of a window of the next batches of a schedule, as one plan.
fn window(c: &mut Criterion) {
    let profile = DiskProfile::default();
    let layout = SegmentLayout::new(N_ROWS, 400).expect("a short row");
    let rows: Vec<RowIdx> =
        (0..8).flat_map(|seed| random_ids(N_ROWS, 15_000, seed)).map(RowIdx).collect();
    let mut group = c.benchmark_group("plan");
    group.throughput(Throughput::Elements(120_000));
    let mut plan = ReadPlan::default();
    group.bench_function("window_of_8/120000", |b| {
        b.iter(|| plan.build(&rows, &layout, &profile).expect("rows that exist"));
    });
    check(&plan, &rows, &layout);
    group.finish();
}

fn check(plan: &ReadPlan, rows: &[RowIdx], layout: &SegmentLayout) {
    assert_eq!(plan.rows().len(), rows.len());
    for (extent, planned) in plan.by_extent() {
        for planned in planned {
            assert_eq!(planned.row, rows[planned.out_row as usize]);
            let pages = layout.row_pages(planned.row).expect("a row that exists");
            let end = extent.first_page + u64::from(extent.n_pages);
            assert!(extent.first_page <= pages.start && pages.end <= end);
        }
    }
}

criterion_group!(benches, plan, window);
criterion_main!(benches);
