use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::*;
use crate::limits::PAGE_BYTES;

const PAGE: usize = PAGE_BYTES as usize;

/// Returns a file whose page `k` is full of bytes `k`.
fn file(dir: &Path, n_pages: u8) -> (PathBuf, Arc<ReadFile>) {
    let path = dir.join(format!("{n_pages}-pages"));
    fs::write(&path, (0..n_pages).flat_map(|k| [k; PAGE]).collect::<Vec<u8>>()).unwrap();
    let file = ReadFile::open(&path, &File::open(&path).unwrap()).unwrap();
    (path, Arc::new(file))
}

/// Reads pages through a queue, each by a read of its own.
fn read_pages(queue: &mut dyn ReadQueue, pages: &[u8]) {
    let mut left = pages.iter().rev();
    let mut n_read = 0;
    loop {
        while queue.in_flight() < queue.depth() {
            let Some(&page) = left.next() else { break };
            let region = queue.arena().take(PAGE).unwrap().unwrap();
            queue.push(Read::new(region, u64::from(page) * PAGE_BYTES, page.into()));
        }
        if queue.in_flight() == 0 {
            break;
        }
        queue.submit(1).unwrap();
        while let Some((mut read, outcome)) = queue.pop() {
            assert_eq!((outcome, read.advance(outcome)), (Ok(PAGE), Step::Done));
            let tag = read.tag as u8;
            assert!(read.region().bytes().iter().all(|&byte| byte == tag), "page {tag}");
            n_read += 1;
            queue.arena().give_back(read.into_region());
        }
    }
    assert_eq!(n_read, pages.len());
}

#[test]
fn a_ring_reads_one_file_after_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let files = [file(dir.path(), 7), file(dir.path(), 200)];
    let mut ring = ReadRing::new(8, Arena::new(16 * PAGE).unwrap()).unwrap();
    for _ in 0..3 {
        for ((_, file), n_pages) in files.iter().zip([7, 200]) {
            ring.attach(file);
            read_pages(&mut ring, &(0..n_pages).collect::<Vec<u8>>());
        }
    }
}

#[test]
fn what_the_kernel_does_not_know_ahead_is_read_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (_, file) = file(dir.path(), 50);
    let mut ring = ReadRing::new(8, Arena::new(16 * PAGE).unwrap()).unwrap();
    ring.attach(&file);
    ring.arena().set_registered(false);
    read_pages(&mut ring, &(0..50).collect::<Vec<u8>>());
    ring.forget(&file);
    read_pages(&mut ring, &(0..50).collect::<Vec<u8>>());
    ring.arena().set_registered(true);
    read_pages(&mut ring, &(0..50).collect::<Vec<u8>>());
}

#[test]
fn a_ring_that_is_dropped_waits_for_its_reads() {
    let dir = tempfile::tempdir().unwrap();
    let (_, file) = file(dir.path(), 100);
    for n_submitted in [0, 1, 60] {
        let mut ring = ReadRing::new(64, Arena::new(128 * PAGE).unwrap()).unwrap();
        ring.attach(&file);
        for page in 0..60u64 {
            let region = ring.arena().take(PAGE).unwrap().unwrap();
            ring.push(Read::new(region, page * PAGE_BYTES, 0));
            if page + 1 == n_submitted {
                ring.submit(0).unwrap();
            }
        }
        drop(ring);
    }
}

#[test]
fn idle_rings_do_not_keep_files_open() {
    let dir = tempfile::tempdir().unwrap();
    let (path, file) = file(dir.path(), 20);
    // A lock lasts until the last handle of this opening is closed, also that in a ring.
    flock(file.file(), FlockOperation::NonBlockingLockShared).unwrap();
    let is_closed = || {
        let again = File::open(&path).unwrap();
        flock(&again, FlockOperation::NonBlockingLockExclusive).is_ok()
    };
    lend_ring(&file, |ring| {
        read_pages(ring, &[3, 4, 5]);
        assert!(ring.knows(&file), "the kernel should know the file");
    })
    .unwrap();
    assert!(!is_closed());
    drop(file);
    // The kernel closes it when it gets to it.
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_closed() {
        assert!(Instant::now() < deadline, "the file is still open");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn threads_and_the_asking_thread_read_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (_, file) = file(dir.path(), 150);
    let pages: Vec<u8> = (0..150).rev().collect();
    lend_arena(|arena| read_pages(&mut WorkerQueue::new(Arc::clone(&file), arena), &pages))
        .unwrap();
    lend_arena(|arena| read_pages(&mut InlineQueue::new(file.file(), arena), &pages)).unwrap();
}

#[test]
fn another_file_in_the_place_of_the_open_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = file(dir.path(), 3);
    let open = File::open(&path).unwrap();
    fs::rename(&path, dir.path().join("old")).unwrap();
    fs::write(&path, [0; PAGE]).unwrap();
    let refused = ReadFile::open(&path, &open).unwrap_err();
    assert!(refused.to_string().contains("another file"), "{refused}");
}

#[test]
fn file_systems_in_memory_are_read_too() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    let (_, file) = file(dir.path(), 30);
    lend_ring(&file, |ring| read_pages(ring, &(0..30).collect::<Vec<u8>>())).unwrap();
}

/// Returns a byte at a time, and refuses each fifth call.
#[derive(Debug)]
struct Crumbs(File, std::sync::atomic::AtomicU32);

impl crate::file_system::FileReader for Crumbs {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed).is_multiple_of(5) {
            return Err(Errno::INTR.into());
        }
        let n = buffer.len().min(1500);
        FileExt::read_at(&self.0, &mut buffer[..n], offset)
    }

    fn as_file(&self) -> Option<&File> {
        None
    }

    fn pin(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_device_with_short_reads_is_read_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = file(dir.path(), 10);
    let device = Crumbs(File::open(path).unwrap(), 0.into());
    lend_arena(|arena| {
        let mut queue = InlineQueue::new(&device, arena);
        let region = queue.arena().take(10 * PAGE).unwrap().unwrap();
        queue.push(Read::new(region, 0, 0));
        let mut n_turns = 0;
        while let Some((mut read, outcome)) = queue.pop() {
            n_turns += 1;
            match read.advance(outcome) {
                Step::Again => queue.push(read),
                step => {
                    assert_eq!(step, Step::Done);
                    let right = (0..10u8).flat_map(|k| [k; PAGE]);
                    assert!(read.region().bytes().iter().copied().eq(right));
                    queue.arena().give_back(read.into_region());
                }
            }
        }
        assert!(n_turns > 1);
    })
    .unwrap();
}
