use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use proptest::prelude::*;
use rustix::io::Errno;

use super::*;
use crate::codec::SegmentCodec;
use crate::file_system::Disk;
use crate::fixture::{identity, row, segment, write_segment};
use crate::limits::PAGE_BYTES;
use crate::plan::DiskProfile;
use crate::reader::RowReader;
use crate::ring::{Arena, InlineQueue, Outcome, ReadFile, WorkerQueue, lend_arena, lend_ring};
use crate::row::RowIdx;

const N_ROWS: u32 = 4000;
const ROW_BYTES: usize = 1500;
const PAGE: usize = PAGE_BYTES as usize;

/// Change of a read on its way back.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// Only this share of the bytes came, and what is behind them is garbage.
    Short(f64),
    Errno(Errno),
    Panic,
}

/// A queue whose reads come back with the given faults, one each, and then without.
struct Faulty<'a> {
    inner: &'a mut dyn ReadQueue,
    faults: std::slice::Iter<'a, Fault>,
}

impl ReadQueue for Faulty<'_> {
    fn arena(&mut self) -> &mut Arena {
        self.inner.arena()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn push(&mut self, read: Read) {
        self.inner.push(read);
    }

    fn submit(&mut self, want: usize) -> io::Result<()> {
        self.inner.submit(want)
    }

    fn pop(&mut self) -> Option<(Read, Outcome)> {
        let (mut read, outcome) = self.inner.pop()?;
        let fault = self.faults.next().copied().unwrap_or(Fault::None);
        let range = read.rest().1;
        let n_good = match (fault, outcome) {
            (Fault::None, outcome) => return Some((read, outcome)),
            (Fault::Panic, _) => panic!("a fault of ours"),
            (Fault::Short(share), Ok(n)) => (n as f64 * share) as usize,
            _ => 0,
        };
        // A caller that trusts bytes that were not read finds garbage.
        read.region_mut().bytes_mut()[range][n_good..].fill(0xee);
        let outcome = match fault {
            Fault::Errno(errno) => Err(errno),
            _ => outcome.map(|_| n_good),
        };
        Some((read, outcome))
    }
}

/// A segment, open for direct reads, and a plan over it.
struct Setup {
    _dir: tempfile::TempDir,
    segment: Segment,
    file: Arc<ReadFile>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ring,
    Threads,
    Inline,
}

const KINDS: [Kind; 3] = [Kind::Ring, Kind::Threads, Kind::Inline];

impl Setup {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let segment = segment(dir.path(), N_ROWS, ROW_BYTES as u32, SegmentCodec::Raw);
        let file = ReadFile::open(segment.path(), segment.file().as_file().unwrap()).unwrap();
        Self { _dir: dir, segment, file: Arc::new(file) }
    }

    /// Gathers rows over a queue with faults; checks that the queue is empty afterwards.
    fn gather(&self, kind: Kind, rows: &[u32], faults: &[Fault]) -> Result<Vec<u8>, StoreError> {
        match kind {
            Kind::Ring => lend_ring(&self.file, |ring| self.gather_on(ring, rows, faults)).unwrap(),
            Kind::Threads => lend_arena(|arena| {
                let mut queue = WorkerQueue::new(Arc::clone(&self.file), arena);
                self.gather_on(&mut queue, rows, faults)
            })
            .unwrap(),
            Kind::Inline => lend_arena(|arena| {
                self.gather_on(&mut InlineQueue::new(self.file.file(), arena), rows, faults)
            })
            .unwrap(),
        }
    }

    fn gather_on(
        &self,
        inner: &mut dyn ReadQueue,
        rows: &[u32],
        faults: &[Fault],
    ) -> Result<Vec<u8>, StoreError> {
        let rows: Vec<RowIdx> = rows.iter().copied().map(RowIdx).collect();
        let mut plan = ReadPlan::default();
        plan.build(&rows, self.segment.layout(), &DiskProfile::default()).unwrap();
        let mut out = vec![0xaa; rows.len() * ROW_BYTES];
        let mut queue = Faulty { inner, faults: faults.iter() };
        let done = execute(&self.segment, &plan, &mut out, &mut queue);
        assert_eq!(queue.in_flight(), 0, "reads outlive the plan");
        assert!(queue.arena().is_whole(), "memory is lost");
        done.map(|()| out)
    }
}

fn expected(rows: &[u32]) -> Vec<u8> {
    rows.iter().flat_map(|&i| row(i, ROW_BYTES)).collect()
}

fn faults() -> impl Strategy<Value = Vec<Fault>> {
    let errno = prop::sample::select(vec![
        Errno::AGAIN,
        Errno::INTR,
        Errno::BUSY,
        Errno::CANCELED,
        Errno::IO,
        Errno::NOMEM,
    ]);
    let fault = prop_oneof![
        60 => Just(Fault::None),
        12 => (0.0..1.0f64).prop_map(Fault::Short),
        1 => errno.prop_map(Fault::Errno),
    ];
    prop::collection::vec(fault, 0..200)
}

#[test]
fn whatever_comes_back_rows_are_right_or_there_is_an_error() {
    let setup = Setup::new();
    let mut runner = prop::test_runner::TestRunner::new(ProptestConfig::with_cases(200));
    let rows = prop::collection::vec(0..N_ROWS, 0..600);
    let (n_right, n_failed) = (Cell::new(0), Cell::new(0));
    runner
        .run(&(rows, faults()), |(rows, faults)| {
            for kind in KINDS {
                match setup.gather(kind, &rows, &faults) {
                    Ok(out) => {
                        n_right.set(n_right.get() + 1);
                        prop_assert!(out == expected(&rows), "{kind:?} gave wrong rows");
                    }
                    Err(StoreError::Read { .. }) => n_failed.set(n_failed.get() + 1),
                    Err(error) => prop_assert!(false, "{error}"),
                }
            }
            Ok(())
        })
        .unwrap();
    let (n_right, n_failed) = (n_right.get(), n_failed.get());
    assert!(n_right > 20 && n_failed > 20, "{n_right} right, {n_failed} failed: tests nothing");
}

#[test]
fn what_is_put_off_or_comes_short_is_read_to_the_end() {
    let setup = Setup::new();
    let rows: Vec<u32> = (0..N_ROWS).rev().step_by(7).collect();
    let put_off = [Errno::AGAIN, Errno::INTR, Errno::BUSY, Errno::CANCELED];
    for kind in KINDS {
        for errno in put_off {
            let faults = [Fault::Errno(errno); 16];
            assert!(setup.gather(kind, &rows, &faults).unwrap() == expected(&rows));
        }
        // One device error each is forgiven.
        let once = [Fault::Errno(Errno::IO)];
        assert!(setup.gather(kind, &rows, &once).unwrap() == expected(&rows));
        // These extents have 256 pages each: half of a rest has whole pages a few times.
        let rows: Vec<u32> = (0..N_ROWS).collect();
        let faults = [Fault::Short(0.5); 6];
        assert!(setup.gather(kind, &rows, &faults).unwrap() == expected(&rows));
    }
}

#[test]
fn errors_name_file_and_place() {
    let setup = Setup::new();
    let path = setup.segment.path().to_owned();
    for kind in KINDS {
        let failed = |faults: &[Fault]| match setup.gather(kind, &[0, 3999], faults).unwrap_err() {
            StoreError::Read { file, offset_bytes, source } => {
                assert_eq!(file, path);
                assert!(offset_bytes.is_multiple_of(PAGE_BYTES), "{offset_bytes}");
                source
            }
            error => panic!("{error}"),
        };
        let twice = failed(&[Fault::Errno(Errno::IO); 4]);
        assert_eq!(twice.raw_os_error(), Some(Errno::IO.raw_os_error()));
        let refused = failed(&[Fault::Errno(Errno::NOMEM)]);
        assert_eq!(refused.raw_os_error(), Some(Errno::NOMEM.raw_os_error()));
        let cut = failed(&[Fault::Short(0.1)]);
        assert!(cut.to_string().contains("cut"), "{cut}");
    }
}

#[test]
fn a_panic_leaves_no_read_behind_and_no_ring_behind_it() {
    let setup = Setup::new();
    let rows: Vec<u32> = (0..N_ROWS).step_by(20).collect();
    for kind in KINDS {
        for n_before in [0, 1, 17] {
            let mut faults = vec![Fault::None; n_before];
            faults.push(Fault::Panic);
            let result = catch_unwind(AssertUnwindSafe(|| setup.gather(kind, &rows, &faults)));
            assert!(result.is_err());
            assert!(setup.gather(kind, &rows, &[]).unwrap() == expected(&rows));
        }
    }
}

#[test]
fn a_file_that_is_cut_while_open_is_an_error_for_the_rows_behind_the_cut() {
    let setup = Setup::new();
    let file = std::fs::OpenOptions::new().write(true).open(setup.segment.path()).unwrap();
    // In the midst of page 10 of the rows.
    file.set_len(11 * PAGE_BYTES + 100).unwrap();
    for kind in KINDS {
        assert!(setup.gather(kind, &[0, 1, 20], &[]).unwrap() == expected(&[0, 1, 20]));
        for rows in [vec![27], vec![0, 28], vec![N_ROWS - 1]] {
            let error = setup.gather(kind, &rows, &[]).unwrap_err();
            assert!(matches!(error, StoreError::Read { .. }), "{error}");
            assert!(error.to_string().contains("cut"), "{error}");
        }
    }
}

#[test]
fn rows_longer_than_a_read_and_than_the_memory_come_whole() {
    let dir = tempfile::tempdir().unwrap();
    for row_bytes in [PAGE as u32, 1 << 20, (1 << 20) + 1, 5 << 20] {
        let open = || segment_of(&dir, row_bytes);
        let readers: [Box<dyn RowReader>; 2] = [
            Box::new(crate::reader::DirectReader::open(open()).unwrap()),
            Box::new(crate::reader::PreadReader::new(open())),
        ];
        for reader in readers {
            let rows: Vec<RowIdx> = [5, 0, 9, 5, 7, 1, 2].map(RowIdx).to_vec();
            let mut plan = ReadPlan::default();
            plan.build(&rows, reader.layout(), &DiskProfile::default()).unwrap();
            let mut out = vec![0; rows.len() * row_bytes as usize];
            reader.execute(&plan, &mut out).unwrap();
            for (found, asked) in out.chunks_exact(row_bytes as usize).zip(&rows) {
                assert!(found == row(asked.0, row_bytes as usize), "row {asked}");
            }
        }
    }
}

fn segment_of(dir: &tempfile::TempDir, row_bytes: u32) -> Segment {
    let identity = identity(10, row_bytes);
    let path = dir.path().join(format!("10x{row_bytes}.seg"));
    if !path.exists() {
        write_segment(&path, &identity);
    }
    Segment::open(&Disk, &path, &identity).unwrap()
}

#[test]
fn many_threads_share_one_reader() {
    let dir = tempfile::tempdir().unwrap();
    let path = segment(dir.path(), N_ROWS, 400, SegmentCodec::Raw).path().to_owned();
    let open = || Segment::open(&Disk, &path, &identity(N_ROWS, 400)).unwrap();
    let readers: [Box<dyn RowReader>; 2] = [
        Box::new(crate::reader::DirectReader::open(open()).unwrap()),
        Box::new(crate::reader::PreadReader::new(open())),
    ];
    for reader in &readers {
        std::thread::scope(|scope| {
            for thread in 0..12u32 {
                scope.spawn(move || {
                    for step in 1..20u32 {
                        let rows = (0..step * 10).map(|i| (i * 977 + thread * 131 + step) % N_ROWS);
                        let rows: Vec<RowIdx> = rows.map(RowIdx).collect();
                        let mut plan = ReadPlan::default();
                        plan.build(&rows, reader.layout(), &DiskProfile::default()).unwrap();
                        let mut out = vec![0; rows.len() * 400];
                        reader.execute(&plan, &mut out).unwrap();
                        let right: Vec<u8> = rows.iter().flat_map(|r| row(r.0, 400)).collect();
                        assert!(out == right, "thread {thread}, step {step}");
                    }
                });
            }
        });
    }
}
