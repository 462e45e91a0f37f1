use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use glommio::{LocalExecutorBuilder, Placement};
use lodestore_graph::PartId;
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::topology::Direction;
use lodestore_schema::request::PullKind;
use lodestore_store::codec::CodecChoice;
use lodestore_store::import::TensorOptions;
use lodestore_store::limits::PAGE_BYTES;
use lodestore_store::plan::DiskProfile;
use lodestore_store::source::{SourceError, TensorSource};
use lodestore_store::{Dtype, Graph, GraphHandle, Importer, OpenMode, RowIdx};

use super::*;
use crate::reads::{Progress, PullOrder};

fn admission() -> Rc<ReadAdmission> {
    let counters = Arc::from([Counters::default()]);
    Rc::new(ReadAdmission::new(DiskProfile::default(), counters, 0))
}

fn turn(admission: &Rc<ReadAdmission>) -> ReadTurn {
    let (now, progress) = (Instant::now(), Progress::New);
    let deadline = now + Duration::from_secs(60);
    admission.turn(&PullOrder { kind: PullKind::Sync, arrived: now, deadline, progress })
}

/// Value of output bytes that are not written yet.
const UNTOUCHED: u8 = 0xaa;

/// A graph with one partition and one tensor, whose rows are all known.
struct Known {
    n_rows: u32,
    row_bytes: usize,
    dir: tempfile::TempDir,
}

impl Known {
    fn new(n_rows: u32, row_bytes: usize, codec: CodecChoice) -> Self {
        let known = Self { n_rows, row_bytes, dir: tempfile::tempdir().unwrap() };
        let nodes = Relabelling::identity(n_rows);
        let mut importer = Importer::begin(&known.graph()).unwrap();
        let options = TensorOptions { codec, ..TensorOptions::default() };
        importer.add_tensor("feat", &known, options, &nodes, &mut |_, _| {}).unwrap();
        importer.commit(&nodes, 0, Direction::Directed).unwrap();
        known
    }

    fn graph(&self) -> PathBuf {
        self.dir.path().join("graph")
    }

    fn file(&self) -> PathBuf {
        self.graph().join("part-000/feat.v1.seg")
    }

    fn row(&self, i: u32) -> Vec<u8> {
        let byte = |k: usize| (i as usize * 31 + k * 7 + (i as usize >> 8) + (k >> 8)) as u8;
        (0..self.row_bytes).map(byte).collect()
    }

    fn base(&self) -> Arc<Layer> {
        let options = lodestore_store::OpenOptions::default();
        let graph = Graph::open(&self.graph()).unwrap();
        let live = GraphHandle::open(graph, None, OpenMode::Read, &options).unwrap();
        live.tensor(PartId(0), 0).unwrap().current().base().clone()
    }

    /// Reads `rows` after `change`, with a reader that was opened before.
    fn read_after(
        &self,
        change: impl FnOnce(&Path) + Send + 'static,
        rows: &[u32],
    ) -> (Result<(), Failure>, Vec<u8>, u64) {
        let (base, path) = (self.base(), self.file());
        let rows: Vec<RowIdx> = rows.iter().copied().map(RowIdx).collect();
        let mut out = vec![UNTOUCHED; rows.len() * self.row_bytes];
        let work = move || async move {
            let mut plan = ReadPlan::default();
            plan.build(&rows, base.segment().layout(), &DiskProfile::default()).unwrap();
            let reader = Rc::new(DmaReader::open(base, &LayerFiles::default()).await.unwrap());
            change(&path);
            let (admission, counters) = (admission(), Counters::default());
            let mut list = ReadList::default();
            list.push(&reader, &plan);
            let done = list.execute(&turn(&admission), &mut out, &counters).await;
            list.clear();
            drop(reader);
            (done, out, counters.snapshot().read_extents)
        };
        LocalExecutorBuilder::new(Placement::Unbound).spawn(work).unwrap().join().unwrap()
    }

    /// Checks that each row of a failed read's output is untouched or correct.
    fn check_no_wrong_row(&self, rows: &[u32], out: &[u8]) {
        for (&i, found) in rows.iter().zip(out.chunks_exact(self.row_bytes)) {
            let is_untouched = found.iter().all(|&byte| byte == UNTOUCHED);
            assert!(is_untouched || found == self.row(i), "row {i}");
        }
    }
}

impl TensorSource for Known {
    fn dtype(&self) -> Dtype {
        Dtype::U8
    }
    fn width(&self) -> u64 {
        self.row_bytes as u64
    }
    fn n_rows(&self) -> u64 {
        self.n_rows.into()
    }
    fn path(&self) -> &Path {
        Path::new("feat")
    }
    fn copy_rows(&self, rows: &[u32], out: &mut [u8]) -> Result<(), SourceError> {
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(self.row_bytes)) {
            out.copy_from_slice(&self.row(row));
        }
        Ok(())
    }
}

fn flip(path: &Path, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 4], offset).unwrap();
    file.sync_all().unwrap();
}

fn cut(path: &Path, n_bytes: u64) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(n_bytes).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn the_executor_returns_known_rows_in_any_order_or_none() {
    for (n_rows, row_bytes) in [(1, 1), (1000, 400), (70, 5000)] {
        for codec in [CodecChoice::Raw, CodecChoice::Zstd] {
            let known = Known::new(n_rows, row_bytes, codec);
            let orders: [Vec<u32>; 4] = [
                vec![],
                vec![n_rows - 1],
                (0..n_rows).rev().chain([0, 0, n_rows - 1]).collect(),
                (0..50).map(|i| i * 7919 % n_rows).collect(),
            ];
            for rows in orders {
                let (done, out, n_reads) = known.read_after(|_| {}, &rows);
                done.unwrap();
                let expected: Vec<u8> = rows.iter().flat_map(|&i| known.row(i)).collect();
                assert!(out == expected, "{n_rows} rows of {row_bytes} bytes, {codec:?}");
                assert_eq!(n_reads == 0, rows.is_empty());
            }
        }
    }
}

#[test]
fn a_file_that_was_cut_while_open_fails_only_the_missing_rows() {
    let known = Known::new(1000, 400, CodecChoice::Raw);
    let whole = fs::read(known.file()).unwrap();
    // Row 300 is on pages 29 and 30 of the rows.
    for n_bytes in [0, 4096, 29 * PAGE_BYTES + 100, 30 * PAGE_BYTES + 1, 30 * PAGE_BYTES + 4095] {
        let (done, out, _) = known.read_after(move |path| cut(path, n_bytes), &[300]);
        let failure = done.unwrap_err();
        assert_eq!(failure.code, FailureCode::Damaged, "{n_bytes}: {failure:?}");
        for part in ["feat.v1.seg", "expected", "was cut"] {
            assert!(failure.message.contains(part), "{n_bytes}: no `{part}` in {failure:?}");
        }
        known.check_no_wrong_row(&[300], &out);
        fs::write(known.file(), &whole).unwrap();
    }
    let (done, out, _) = known.read_after(|path| cut(path, 40 * PAGE_BYTES), &[300]);
    done.unwrap();
    assert!(out == known.row(300));
}

#[test]
fn a_damaged_page_fails_its_rows_and_is_named() {
    for (codec, page) in [(CodecChoice::Raw, 30), (CodecChoice::Zstd, 3)] {
        let known = Known::new(1000, 400, codec);
        let whole = fs::read(known.file()).unwrap();
        let all: Vec<u32> = (0..1000).collect();
        let offset = (1 + page) * PAGE_BYTES + 77;
        let (done, out, _) = known.read_after(move |path| flip(path, offset), &all);
        let failure = done.unwrap_err();
        assert_eq!(failure.code, FailureCode::Damaged, "{failure:?}");
        let page = format!("page {page}");
        assert!(failure.message.contains("feat.v1.seg") && failure.message.contains(&page));
        known.check_no_wrong_row(&all, &out);
        // A page at the place of another has a valid checksum of its own, and fails too.
        let swapped = [&whole[..4096], &whole[8192..12288], &whole[4096..8192], &whole[12288..]];
        let swapped = swapped.concat();
        let put = move |path: &Path| {
            let file = File::options().write(true).open(path).unwrap();
            file.write_all_at(&swapped, 0).unwrap();
            file.sync_all().unwrap();
        };
        let (done, out, _) = known.read_after(put, &all);
        assert_eq!(done.unwrap_err().code, FailureCode::Damaged);
        known.check_no_wrong_row(&all, &out);
    }
}

#[test]
fn rows_away_from_a_damaged_page_are_read() {
    // Even where the plan reads through the damaged page: only pages that hold rows are verified.
    let known = Known::new(1000, 400, CodecChoice::Raw);
    let away: Vec<u32> = (0..200).chain(500..1000).collect();
    let (done, out, n_reads) = known.read_after(|path| flip(path, 31 * PAGE_BYTES + 77), &away);
    let expected: Vec<u8> = away.iter().flat_map(|&i| known.row(i)).collect();
    done.unwrap();
    assert!(out == expected && n_reads > 0);
}

#[test]
fn a_file_that_is_gone_is_named() {
    let known = Known::new(10, 400, CodecChoice::Raw);
    let (base, path) = (known.base(), known.file());
    fs::remove_file(&path).unwrap();
    let open = move || async move { DmaReader::open(base, &LayerFiles::default()).await.map(drop) };
    let opened = LocalExecutorBuilder::new(Placement::Unbound).spawn(open).unwrap().join().unwrap();
    let error = opened.unwrap_err();
    assert!(error.contains("feat.v1.seg") && error.contains("cannot open"), "{error}");
}

#[test]
fn the_buffer_of_a_cancelled_read_counts_until_the_kernel_releases_it() {
    let known = Known::new(1000, 400, CodecChoice::Raw);
    let base = known.base();
    let work = move || async move {
        let (admission, counters) = (admission(), Counters::default());
        let mut plan = ReadPlan::default();
        let rows: Vec<RowIdx> = (0..1000).map(RowIdx).collect();
        plan.build(&rows, base.segment().layout(), &DiskProfile::default()).unwrap();
        let (reader, mut list) = (
            Rc::new(DmaReader::open(base, &LayerFiles::default()).await.unwrap()),
            ReadList::default(),
        );
        list.push(&reader, &plan);
        let (turn, mut out) = (turn(&admission), vec![0; 400_000]);
        {
            let mut gather = std::pin::pin!(list.execute(&turn, &mut out, &counters));
            assert!(futures_lite::future::poll_once(gather.as_mut()).await.is_none());
        }
        drop((turn, list));
        assert_eq!(admission.bytes_in_flight(), plan.read_bytes());
        glommio::spawn_local(Rc::clone(&admission).reap()).detach();
        let end = Instant::now() + Duration::from_secs(20);
        while admission.bytes_in_flight() > 0 {
            assert!(Instant::now() < end, "the read does not end");
            glommio::timer::sleep(Duration::from_millis(1)).await;
        }
        assert!(Rc::try_unwrap(reader).is_ok(), "the file is released");
    };
    LocalExecutorBuilder::new(Placement::Unbound).spawn(work).unwrap().join().unwrap();
}

#[test]
fn one_list_reads_several_files() {
    let all = [
        Known::new(1000, 400, CodecChoice::Raw),
        Known::new(70, 400, CodecChoice::Zstd),
        Known::new(3, 400, CodecChoice::Raw),
    ];
    let bases = all.each_ref().map(Known::base);
    let rows: Vec<(usize, u32)> = (0..300).map(|i| (i % 3, [997, 70, 3][i % 3] - 1)).collect();
    let rows: Vec<(usize, u32)> =
        rows.into_iter().zip(0..).map(|((file, last), i)| (file, i * 7919 % (last + 1))).collect();
    let expected: Vec<u8> = rows.iter().flat_map(|&(file, row)| all[file].row(row)).collect();
    let work = move || async move {
        let (admission, counters) = (admission(), Counters::default());
        let (mut list, mut plan) = (ReadList::default(), ReadPlan::default());
        for (file, base) in bases.into_iter().enumerate() {
            let of_file = rows.iter().zip(0u32..).filter(|((at, _), _)| *at == file);
            let of_file: Vec<_> = of_file.map(|(&(_, row), at)| (RowIdx(row), at)).collect();
            let profile = DiskProfile::default();
            plan.build_scattered(&of_file, 300, base.segment().layout(), &profile).unwrap();
            list.push(
                &Rc::new(DmaReader::open(base, &LayerFiles::default()).await.unwrap()),
                &plan,
            );
        }
        let mut out = vec![UNTOUCHED; 300 * 400];
        list.execute(&turn(&admission), &mut out, &counters).await.unwrap();
        assert_eq!(admission.bytes_in_flight(), 0, "all permits are returned");
        out
    };
    let out = LocalExecutorBuilder::new(Placement::Unbound).spawn(work).unwrap().join().unwrap();
    assert!(out == expected);
}

/// Returns how many descriptors of this process refer to a file.
fn n_open(path: &Path) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap();
    let targets = links.filter_map(|link| fs::read_link(link.ok()?.path()).ok());
    targets.filter(|target| target == path).count()
}

#[test]
fn shards_share_the_descriptor_of_a_file() {
    let known = Known::new(1000, 400, CodecChoice::Raw);
    let base = known.base();
    let path = known.file();
    let files = Arc::new(LayerFiles::default());
    let of_the_store = n_open(&path);
    let all_open = Arc::new(Barrier::new(4));
    let shards: Vec<_> = (0..3u32)
        .map(|shard| {
            let (base, files) = (Arc::clone(&base), Arc::clone(&files));
            let all_open = Arc::clone(&all_open);
            let work = move || async move {
                let mut plan = ReadPlan::default();
                let rows: Vec<RowIdx> = (shard..1000).step_by(3).map(RowIdx).collect();
                plan.build(&rows, base.segment().layout(), &DiskProfile::default()).unwrap();
                let reader = Rc::new(DmaReader::open(base, &files).await.unwrap());
                // Twice: before the test counts descriptors, and after.
                all_open.wait();
                all_open.wait();
                let (admission, counters) = (admission(), Counters::default());
                let mut list = ReadList::default();
                list.push(&reader, &plan);
                let mut out = vec![UNTOUCHED; rows.len() * 400];
                list.execute(&turn(&admission), &mut out, &counters).await.unwrap();
                list.clear();
                (rows, out)
            };
            LocalExecutorBuilder::new(Placement::Unbound).spawn(work).unwrap()
        })
        .collect();
    all_open.wait();
    let n_shared = n_open(&path) - of_the_store;
    all_open.wait();
    for shard in shards {
        let (rows, out) = shard.join().unwrap();
        let expected: Vec<u8> = rows.iter().flat_map(|row| known.row(row.0)).collect();
        assert!(out == expected);
    }
    assert_eq!(n_shared, 1);
    assert_eq!(n_open(&path), of_the_store);
    drop(base);
}
