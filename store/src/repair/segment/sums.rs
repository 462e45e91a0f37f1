//! Sums of a file's pages, independent of its header.

use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::checksum::PageChecksum;
use crate::file_system::FileReader;
use crate::layout::DATA_OFFSET;
use crate::limits::PAGE_BYTES;

/// Pages that are read together; they stay in a core's cache until they are summed.
pub(super) const PAGES_PER_READ: u64 = 64;

/// Returns the checksum of each of `n_pages` pages; what is gone or cannot be read of a page counts
/// as zeros.
///
/// Memory: 4 bytes per page, and 256 KiB per thread.
pub(super) fn page_sums(
    file: &dyn FileReader,
    checksum: &PageChecksum,
    n_pages: u64,
    n_threads: usize,
) -> Vec<u32> {
    let mut sums = vec![0u32; n_pages as usize];
    let reads = sums.chunks_mut(PAGES_PER_READ as usize);
    let reads = Mutex::new((0..).step_by(PAGES_PER_READ as usize).zip(reads));
    let work = || {
        let mut buffer = vec![0; (PAGES_PER_READ * PAGE_BYTES) as usize];
        loop {
            let read = reads.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((first, sums)) = read else { return };
            let bytes = &mut buffer[..sums.len() * PAGE_BYTES as usize];
            read_pages(file, first, bytes);
            let pages = (first..).zip(bytes.chunks_exact(PAGE_BYTES as usize));
            for (sum, (page, bytes)) in sums.iter_mut().zip(pages) {
                *sum = checksum.of(page, bytes);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..n_threads {
            // The others do the work of a thread that cannot be started.
            if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    sums
}

/// Fills `bytes`, whole pages, from page `first` on; with zeros where nothing can be read.
pub(super) fn read_pages(file: &dyn FileReader, first: u64, bytes: &mut [u8]) {
    if file.read_exact_at(bytes, DATA_OFFSET + first * PAGE_BYTES).is_ok() {
        return;
    }
    for (page, bytes) in (first..).zip(bytes.chunks_exact_mut(PAGE_BYTES as usize)) {
        read_some(file, DATA_OFFSET + page * PAGE_BYTES, bytes);
    }
}

/// Fills `bytes` from `offset` on as far as the file reaches and can be read, then with zeros;
/// returns how much was read.
pub(super) fn read_some(file: &dyn FileReader, offset: u64, bytes: &mut [u8]) -> usize {
    let mut n_read = 0;
    while n_read < bytes.len() {
        match file.read_at(&mut bytes[n_read..], offset + n_read as u64) {
            Ok(n) if n > 0 => n_read += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    bytes[n_read..].fill(0);
    n_read
}
