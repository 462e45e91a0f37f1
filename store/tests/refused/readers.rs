//! The direct reader where the system refuses something.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use lodestore_graph::PartId;
use lodestore_store::codec::SegmentCodec;
use lodestore_store::file_system::Disk;
use lodestore_store::plan::{DiskProfile, ReadPlan};
use lodestore_store::reader::{DirectReader, PreadReader, RowReader};
use lodestore_store::segment::{Segment, SegmentIdentity, SegmentWriter};
use lodestore_store::{Dtype, RowIdx, StoreError, TensorSpec};
use rustix::process::Resource;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use uuid::Uuid;

use testing::child::{check, child, limit, refuse, run, stderr};

const N_ROWS: u32 = 5000;
const ROW_BYTES: usize = 700;

#[test]
fn without_io_uring_threads_read_and_one_warning_says_so() {
    let dir = folder();
    for scenario in ["setup refused", "setup unknown"] {
        let output = child(scenario, dir.path());
        let warnings = stderr(&output).lines().filter(|line| line.contains("io_uring")).count();
        assert_eq!(warnings, 1, "{}", stderr(&output));
    }
}

#[test]
fn little_locked_memory_is_enough_and_none_is_no_fault() {
    let dir = folder();
    for scenario in ["little locked memory", "usual locked memory"] {
        // The kernel counts by user, and what an ended process had locked for a while longer.
        let is_silent = (0..20).any(|_| {
            let output = child(scenario, dir.path());
            let is_silent = !stderr(&output).contains("WARN");
            if !is_silent {
                std::thread::sleep(Duration::from_millis(250));
            }
            is_silent
        });
        assert!(is_silent, "{scenario}");
    }
    // Kernels differ in whether a ring without any is possible.
    child("no locked memory", dir.path());
}

#[test]
fn without_file_descriptors_an_open_reader_continues_and_another_says_why_it_cannot_open() {
    child("no descriptors", folder().path());
}

#[test]
fn without_new_threads_the_asking_thread_reads() {
    child("no threads", folder().path());
}

#[test]
fn a_ring_that_cannot_be_entered_is_an_error_and_no_hang() {
    child("enter refused", folder().path());
}

#[test]
fn a_read_only_mount_is_read() {
    let dir = folder();
    let script = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--", "sh", "-c", script]).arg(dir.path());
    let command = command.arg(std::env::current_exe().unwrap());
    let output = run(command, "read-only mount", dir.path());
    if !output.status.success() && stderr(&output).contains("ermitted") {
        println!("SKIPPED: only root can mount");
        return;
    }
    check(&output);
}

/// Runs the child processes of these tests; returns `false` in other processes.
pub(crate) fn act(scenario: &str, dir: &Path) -> bool {
    match scenario {
        "setup refused" => reads_without_rings(dir, libc::EPERM),
        "setup unknown" => reads_without_rings(dir, libc::ENOSYS),
        "usual locked memory" => reads_with_locked_memory(dir, 8 << 20, 6),
        "little locked memory" => reads_with_locked_memory(dir, 64 << 10, 1),
        "no locked memory" => reads_with_locked_memory(dir, 0, 3),
        "no descriptors" => reads_without_descriptors(dir),
        "no threads" => reads_without_threads(dir),
        "enter refused" => fails_without_entering(dir),
        "read-only mount" => {
            File::create(dir.join("new")).unwrap_err();
            reads_all(dir);
        }
        _ => return false,
    }
    true
}

fn reads_without_rings(dir: &Path, errno: i32) {
    refuse(&[libc::SYS_io_uring_setup], errno);
    reads_all(dir);
    // Again, and on several threads: one warning is enough.
    let reader = DirectReader::open(open(dir)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| gathers(&reader));
        }
    });
}

fn reads_with_locked_memory(dir: &Path, n_bytes: u64, n_threads: usize) {
    // Root may lock what it likes as long as it has this.
    let mut rights = capabilities(None).unwrap();
    rights.effective.remove(CapabilitySet::IPC_LOCK);
    rights.permitted.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, rights).unwrap();
    limit(Resource::Memlock, n_bytes);
    let reader = DirectReader::open(open(dir)).unwrap();
    let barrier = Barrier::new(n_threads);
    std::thread::scope(|scope| {
        for _ in 0..n_threads {
            scope.spawn(|| {
                barrier.wait();
                (0..3).for_each(|_| gathers(&reader));
            });
        }
    });
}

fn reads_without_descriptors(dir: &Path) {
    let (direct, pread) = (DirectReader::open(open(dir)).unwrap(), PreadReader::new(open(dir)));
    let segment = open(dir);
    let held: Vec<File> = (0..200).map(|_| File::open("/dev/null").unwrap()).collect();
    limit(Resource::Nofile, 64);
    gathers(&direct);
    gathers(&pread);
    match DirectReader::open(segment).unwrap_err() {
        StoreError::Io { file, source, .. } => {
            assert!(file.ends_with("rows.seg"));
            assert_eq!(source.raw_os_error(), Some(libc::EMFILE));
        }
        error => panic!("{error}"),
    }
    drop(held);
    gathers(&direct);
}

fn reads_without_threads(dir: &Path) {
    // New threads are refused, as they are past a limit of tasks.
    refuse(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN);
    gathers(&PreadReader::new(open(dir)));
    gathers(&DirectReader::open(open(dir)).unwrap());
}

fn fails_without_entering(dir: &Path) {
    let reader = DirectReader::open(open(dir)).unwrap();
    gathers(&reader);
    refuse(&[libc::SYS_io_uring_enter], libc::EPERM);
    let start = Instant::now();
    for _ in 0..3 {
        let error = gather(&reader, &[1, 4000]).unwrap_err();
        assert!(error.to_string().contains("rows.seg"), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(10));
    gathers(&PreadReader::new(open(dir)));
}

/// Reads rows with both readers past the page cache.
fn reads_all(dir: &Path) {
    gathers(&DirectReader::open(open(dir)).unwrap());
    gathers(&PreadReader::new(open(dir)));
}

/// Gathers rows in several orders, few and many, and checks them.
fn gathers(reader: &dyn RowReader) {
    let orders: [Vec<u32>; 4] = [
        vec![17],
        (0..N_ROWS).rev().collect(),
        (0..N_ROWS).step_by(97).collect(),
        (0..3000).map(|i| i * 7919 % N_ROWS).collect(),
    ];
    for rows in orders {
        let out = gather(reader, &rows).unwrap();
        let right: Vec<u8> = rows.iter().flat_map(|&i| row(i)).collect();
        assert!(out == right, "wrong rows");
    }
}

fn gather(reader: &dyn RowReader, rows: &[u32]) -> Result<Vec<u8>, StoreError> {
    let rows: Vec<RowIdx> = rows.iter().copied().map(RowIdx).collect();
    let mut plan = ReadPlan::default();
    plan.build(&rows, reader.layout(), &DiskProfile::default()).unwrap();
    let mut out = vec![0xaa; rows.len() * ROW_BYTES];
    reader.execute(&plan, &mut out).map(|()| out)
}

fn row(i: u32) -> Vec<u8> {
    (0..ROW_BYTES).map(|k| (i as usize * 31 + k * 7 + (i as usize >> 8)) as u8).collect()
}

fn identity() -> SegmentIdentity {
    SegmentIdentity {
        graph: Uuid::from_u128(1),
        segment: Uuid::from_u128(2),
        part: PartId(0),
        version: 1,
        tensor: TensorSpec::new("feat", Dtype::U8, ROW_BYTES as u32).unwrap(),
        n_rows: N_ROWS,
        delta_of: None,
    }
}

/// Returns a folder with a segment in it.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.seg");
    let mut writer = SegmentWriter::create(&Disk, &path, &identity(), SegmentCodec::Raw).unwrap();
    (0..N_ROWS).for_each(|i| writer.write_rows(&row(i)).unwrap());
    writer.finish().unwrap();
    dir
}

fn open(dir: &Path) -> Segment {
    Segment::open(&Disk, &dir.join("rows.seg"), &identity()).unwrap()
}
