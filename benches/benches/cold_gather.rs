//! Cold gather: rows of neighbour-sampled batches from a disk whose pages are not cached.
//!
//! One thread; planning counts. The ideal is the time of the plans on the disk as random reads of
//! the same file probe it. It is the mean of two probes, right before and right after. A disk that
//! answers faster for a moment than for long does better in a probe. So 64 threads also read the
//! same extents and inspect nothing, before or after each gather in turn: plain reads.
//!
//! It does not measure what a cache beside the reader saves, nor several threads. Caches below the
//! kernel, such as that of a hypervisor, are part of the disk.
//!
//! By default it measures a small generated graph. `LODE_COLD_TABLE=F.npy LODE_COLD_TRACE=PREFIX
//! LODE_COLD_GRAPH=DIR` measures a table with a trace (`PREFIX.ids.u32`, `PREFIX.off.u64`),
//! imported to DIR once. `LODE_COLD_CASES` keeps the cases whose name contains it.
//! `LODE_COLD_SECONDS` bounds each case. The segment's pages are dropped from the page cache before
//! each case. Those of a mapped segment are dropped before each plan, since a map fills the cache.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lodestore_benches::{ColdSubject, check_parts, drop_cached, is_smoke, plain_reads, row_of};
use lodestore_graph::{NodeId, PartId};
use lodestore_store::plan::{DiskProfile, ReadPlan};
use lodestore_store::probe::{ProbeOptions, probe};
use lodestore_store::reader::{RowReader, open as open_reader};
use lodestore_store::source::{TensorSource, open_source};
use lodestore_store::{ReaderKind, RowIdx};

/// Batches that a plan of a window spans.
const WINDOW: usize = 8;

/// Rows of the last plan of a case that are compared with what they must be.
const CHECKED_ROWS: usize = 1000;

/// Plan of a case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Planning {
    /// Neighbours join, within this many batches.
    Joined(usize),
    /// One read for each row.
    Apart,
}

const CASES: [(&str, ReaderKind, Planning); 6] = [
    ("direct, window of 8 batches", ReaderKind::Direct, Planning::Joined(WINDOW)),
    ("direct, batch by batch", ReaderKind::Direct, Planning::Joined(1)),
    ("direct, one read per row", ReaderKind::Direct, Planning::Apart),
    ("pread, batch by batch", ReaderKind::Pread, Planning::Joined(1)),
    ("mapped, window of 8 batches", ReaderKind::Mapped, Planning::Joined(WINDOW)),
    ("mapped, batch by batch", ReaderKind::Mapped, Planning::Joined(1)),
];

/// Rows to gather, and the expected result.
struct Subject {
    cold: ColdSubject,
    /// The table that was imported; `None` for the generated one.
    table: Option<Box<dyn TensorSource>>,
}

/// Figures of a case.
#[derive(Default)]
struct Figures {
    n_gathers: usize,
    n_rows: usize,
    n_extents: usize,
    read_bytes: u64,
    seconds: f64,
    plain_seconds: f64,
    plan_seconds: f64,
    cpu_seconds: f64,
}

fn main() {
    check_parts(&[]);
    let cold = ColdSubject::open(2 * WINDOW as u32);
    let table = cold.table.as_ref().map(|table| open_source(table).expect("a table"));
    let subject = Subject { cold, table };
    let trace = &subject.cold.trace;
    println!(
        "cold_gather: {} batches of {} rows of {} B",
        trace.n_batches(),
        trace.rows(0..trace.n_batches()).len() / trace.n_batches(),
        subject.cold.row_bytes(),
    );
    let mut before = probed(&subject.segment());
    let wanted = std::env::var("LODE_COLD_CASES").unwrap_or_default();
    for (name, kind, planning) in CASES.into_iter().filter(|(name, ..)| name.contains(&wanted)) {
        let figures = subject.measure(kind, planning, &before);
        let after = probed(&subject.segment());
        figures.print(name, subject.cold.row_bytes(), &[before, after]);
        before = after;
    }
}

impl Subject {
    fn segment(&self) -> PathBuf {
        self.cold.graph.segment(PartId(0), "feat").expect("a segment").path().to_owned()
    }

    fn reader(&self, kind: ReaderKind) -> Box<dyn RowReader> {
        let segment = self.cold.graph.segment(PartId(0), "feat").expect("a segment");
        drop_cached(segment.path());
        open_reader(segment, kind).expect("a reader")
    }

    fn measure(&self, kind: ReaderKind, planning: Planning, profile: &DiskProfile) -> Figures {
        let mut reader = self.reader(kind);
        let n_batches = self.cold.trace.n_batches();
        let step = if let Planning::Joined(step) = planning { step.min(n_batches) } else { 1 };
        let windows =
            || (0..=n_batches - step).step_by(step).map(|at| self.cold.trace.rows(at..at + step));
        let longest = windows().map(<[RowIdx]>::len).max().unwrap_or(0);
        // Touched once, so that the system's making of pages is not part of a gather.
        let mut out = vec![1u8; longest * self.cold.row_bytes()];
        let (mut plan, mut figures) = (ReadPlan::default(), Figures::default());
        let segment = self.segment();
        for (i, rows) in windows().enumerate() {
            let out = &mut out[..rows.len() * self.cold.row_bytes()];
            if kind == ReaderKind::Mapped {
                // One after the other: pages that are mapped stay in the cache.
                drop(reader);
                reader = self.reader(kind);
            }
            if i % 2 == 1 {
                plan_rows(&mut plan, planning, rows, &*reader, profile);
                figures.plain_seconds += plain_reads(&segment, plan.extents()).as_secs_f64();
            }
            figures.gather(&*reader, planning, rows, profile, &mut plan, out);
            if i % 2 == 0 {
                figures.plain_seconds += plain_reads(&segment, plan.extents()).as_secs_f64();
            }
            if figures.seconds >= self.cold.budget.as_secs_f64() {
                break;
            }
        }
        if let Some(rows) = windows().nth(figures.n_gathers.saturating_sub(1)) {
            self.check(rows, &out[..rows.len() * self.cold.row_bytes()]);
        }
        figures
    }

    /// Compares some rows with what they must be.
    fn check(&self, rows: &[RowIdx], out: &[u8]) {
        let row_bytes = self.cold.row_bytes();
        let mut expected = vec![0; row_bytes];
        let every = (rows.len() / CHECKED_ROWS).max(1);
        for (row, found) in rows.iter().zip(out.chunks_exact(row_bytes)).step_by(every) {
            match &self.table {
                Some(table) => table.copy_rows(&[row.0], &mut expected).expect("a row"),
                None => expected = row_of(NodeId(row.0), row_bytes as u32 / 4),
            }
            assert!(found == expected, "row {row}");
        }
    }
}

impl Figures {
    /// Plans and gathers some rows.
    fn gather(
        &mut self,
        reader: &dyn RowReader,
        planning: Planning,
        rows: &[RowIdx],
        profile: &DiskProfile,
        plan: &mut ReadPlan,
        out: &mut [u8],
    ) {
        let (start, cpu) = (Instant::now(), cpu_seconds());
        plan_rows(plan, planning, rows, reader, profile);
        self.plan_seconds += start.elapsed().as_secs_f64();
        reader.execute(plan, out).expect("rows");
        self.seconds += start.elapsed().as_secs_f64();
        self.cpu_seconds += cpu_seconds() - cpu;
        self.n_gathers += 1;
        self.n_rows += rows.len();
        self.n_extents += plan.by_extent().count();
        self.read_bytes += plan.read_bytes();
    }

    fn print(&self, name: &str, row_bytes: usize, profiles: &[DiskProfile; 2]) {
        let per_row = |seconds: f64| seconds * 1e9 / self.n_rows as f64;
        let disk = |profile: &DiskProfile| {
            let (iops, bandwidth) = (profile.iops, profile.bandwidth_bytes_per_s);
            format!("{:.1} k/s, {:.2} GB/s", iops / 1e3, bandwidth / 1e9)
        };
        println!(
            "  {name:<28} {:>9.0} rows/s  {:>5.1} % of plain reads  {:>5.1} % of ideal  \
             {:>6.2} bytes read per byte used  {:>7.1} KiB per read  \
             {:>4.0} ns/row planning  {:>5.0} ns/row CPU  ({} rows, {:.2} s; \
             disk before: {}; after: {})",
            self.n_rows as f64 / self.seconds,
            100.0 * self.plain_seconds / self.seconds,
            100.0 * profiles.iter().map(|profile| self.ideal_seconds(profile)).sum::<f64>()
                / (profiles.len() as f64 * self.seconds),
            self.read_bytes as f64 / (self.n_rows * row_bytes) as f64,
            self.read_bytes as f64 / self.n_extents as f64 / 1024.0,
            per_row(self.plan_seconds),
            per_row(self.cpu_seconds),
            self.n_rows,
            self.seconds,
            disk(&profiles[0]),
            disk(&profiles[1]),
        );
    }

    /// Returns the physical limit of all plans together: the sum of 1 / IOPS + bytes / bandwidth.
    fn ideal_seconds(&self, profile: &DiskProfile) -> f64 {
        self.n_extents as f64 / profile.iops
            + self.read_bytes as f64 / profile.bandwidth_bytes_per_s
    }
}

fn plan_rows(
    plan: &mut ReadPlan,
    planning: Planning,
    rows: &[RowIdx],
    reader: &dyn RowReader,
    profile: &DiskProfile,
) {
    let planned = match planning {
        Planning::Joined(_) => plan.build(rows, reader.layout(), profile),
        Planning::Apart => plan.build_apart(rows, reader.layout()),
    };
    planned.expect("rows of the segment");
}

/// Returns the time that this thread has had a processor for, planning included; 0 where the system
/// does not report it. For the pread reader it is the rest that remains to the asking thread.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok());
    ns.unwrap_or(0.0) / 1e9
}

fn probed(segment: &Path) -> DiskProfile {
    let duration = Duration::from_millis(if is_smoke() { 300 } else { 8000 });
    let options = ProbeOptions { duration, ..ProbeOptions::default() };
    probe(segment, &options, &mut |_, _, _| {}).expect("a measurement").profile()
}
