//! Verification: everything of a graph is read and checked; every fault is reported, not only the
//! first.
//!
//! The unit of work is a stretch of some MiB of one file, so that one large segment keeps all
//! threads busy. Threads take stretches in the order of the files, which are opened when their turn
//! comes. So memory is bounded by the tables of the segments that are in work. The report and its
//! order do not depend on the number of threads.

mod catalog;
mod findings;
mod lists;
mod rows;
mod unit;
mod walk;

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use lodestore_graph::PartId;
use lodestore_graph::lock::IgnorePoison;
use serde::Serialize;

use crate::error::StoreError;
use crate::file_system::{Disk, FileSystem};
use crate::graph::{Graph, META_FILE};
use crate::repair::describe;
use crate::segment::{Segment, SegmentIdentity};
use findings::{Findings, META_ORDER};
use walk::{Scope, Walk};

/// More threads than cores: while one waits for the disk, another computes.
const THREADS_PER_CORE: usize = 2;
/// Pages of a segment that one thread takes in one piece: 4 MiB.
pub(crate) const STRETCH_PAGES: u64 = 1024;

/// Results of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Nothing is damaged, and everything is here that was to be looked at.
    pub ok: bool,
    /// Pages of rows that were read.
    pub pages: u64,
    /// Bytes of all files that were looked at.
    pub bytes: u64,
    /// Every fault; of a file with more than [`MAX_DAMAGES_PER_FILE`], the first ones and a count.
    pub damaged: Vec<Damage>,
    /// Partitions that have no folder here: another machine may hold them, and nothing is known of
    /// them. Empty where partitions were named: then one that is missing is damage.
    pub absent: Vec<u16>,
    /// Files and folders that nothing names. They are not damage.
    pub unknown: Vec<String>,
    /// Those of them that have rows of a later version than the partition's, which are not pending.
    /// While they are here the graph cannot be opened for writing: [`StoreError::LaterFile`].
    ///
    /// A follower that fetches a version has such files too, until it has all of it.
    pub later: Vec<String>,
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The file.
    pub file: String,
    /// The page of rows, counted from the first row; `null` when the fault is not in one.
    pub page: Option<u64>,
    /// Expected and found values.
    pub reason: String,
}

pub(crate) use catalog::CatalogCheck;
pub use findings::MAX_DAMAGES_PER_FILE;
pub(crate) use lists::head as read_head;

/// Reads all of the graph in `dir` with all cores. `progress` receives bytes done and bytes in all.
/// Partitions without a folder are reported as absent, not as damage.
///
/// Fails only when there is no `graph.toml` to start from, and when the system refuses to show a
/// file (too few descriptors, no permission). Damage is in the report.
pub fn verify(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<VerifyReport, StoreError> {
    verify_on(Arc::new(Disk), dir, n_threads(), progress)
}

/// Verifies these partitions, which must be here, and no others, as [`verify`] does.
pub fn verify_parts(
    dir: &Path,
    parts: &[PartId],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<VerifyReport, StoreError> {
    verify_some(Arc::new(Disk), dir, Some(parts), n_threads(), progress)
}

fn n_threads() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get) * THREADS_PER_CORE
}

/// Like [`verify`], on any file system and with as many threads as asked for, at least one.
pub fn verify_on(
    fs: Arc<dyn FileSystem>,
    dir: &Path,
    n_threads: usize,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<VerifyReport, StoreError> {
    verify_some(fs, dir, None, n_threads, progress)
}

fn verify_some(
    fs: Arc<dyn FileSystem>,
    dir: &Path,
    parts: Option<&[PartId]>,
    n_threads: usize,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<VerifyReport, StoreError> {
    let findings = Findings::default();
    let graph = match Graph::open_on(Arc::clone(&fs), dir) {
        Ok(graph) => Some(graph),
        Err(error @ StoreError::Io { .. }) => return Err(error),
        Err(error) => {
            let is_damaged = matches!(error, StoreError::Meta { .. });
            findings.add_error(META_ORDER, &dir.join(META_FILE), None, error);
            // The rest is looked at where copies in catalogs tell what it must be.
            if is_damaged { describe(fs, dir) } else { None }
        }
    };
    if let Some(graph) = graph {
        parts.unwrap_or_default().iter().try_for_each(|&part| graph.check_part(part))?;
        let walk = Walk::new(&graph, &findings, parts, Scope::All);
        check_all(&walk, &findings, n_threads, progress);
        walk.finish();
    }
    findings.into_result()
}

/// Reads the catalogs and segments of all partitions of an open graph, and no topology. A file that
/// the system refuses to show counts as damaged.
#[must_use]
pub fn verify_rows(graph: &Graph) -> VerifyReport {
    let findings = Findings::default();
    let walk = Walk::new(graph, &findings, None, Scope::Rows);
    check_all(&walk, &findings, 1, &mut |_, _| {});
    walk.finish();
    findings.into_report()
}

/// Reads the topology and the halo of a partition, which must be here, and no rows.
pub fn verify_lists(graph: &Graph, part: PartId) -> Result<VerifyReport, StoreError> {
    let findings = Findings::default();
    let walk = Walk::new(graph, &findings, Some(&[part]), Scope::Lists);
    check_all(&walk, &findings, n_threads(), &mut |_, _| {});
    walk.finish();
    findings.into_result()
}

/// Opens a segment that was written and synced, and checks all of it as the disk has it. Before,
/// the file is dropped from memory, as far as the file system drops it.
///
/// Costs one read of the file at the disk's rate; the file is in memory then.
pub(crate) fn read_back(
    fs: &dyn FileSystem,
    path: &Path,
    identity: &SegmentIdentity,
) -> Result<Segment, StoreError> {
    read_back_while(fs, path, identity, &mut || ControlFlow::Continue(()))
}

/// Reads back as [`read_back`]. Asks before each stretch of pages whether to continue, and else
/// ends with [`StoreError::Stopped`].
pub(crate) fn read_back_while(
    fs: &dyn FileSystem,
    path: &Path,
    identity: &SegmentIdentity,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Segment, StoreError> {
    let segment = open_from_disk(fs, path, identity)?;
    let (n_pages, mut buffer, mut fault) = (segment.layout().n_pages(), Vec::new(), None);
    for first in (0..n_pages).step_by(STRETCH_PAGES as usize) {
        if go_on().is_break() {
            return Err(StoreError::Stopped);
        }
        let pages = first..n_pages.min(first + STRETCH_PAGES);
        rows::check(&segment, pages, &mut buffer, &mut |_, error| {
            fault.get_or_insert(error);
        });
        fault.take().map_or(Ok(()), Err)?;
    }
    Ok(segment)
}

/// Reads back as [`read_back`], by several threads: a commit waits for it.
pub(crate) fn read_back_fast(
    fs: &dyn FileSystem,
    path: &Path,
    identity: &SegmentIdentity,
) -> Result<Segment, StoreError> {
    let segment = open_from_disk(fs, path, identity)?;
    let n_stretches = segment.layout().n_pages().div_ceil(STRETCH_PAGES);
    let n_threads = match n_stretches > 1 && fs.waits() {
        true => usize::try_from(n_stretches).unwrap_or(usize::MAX).min(n_threads()),
        false => 1,
    };
    let fault = Mutex::new(None);
    check_segment(&segment, n_threads, &|_, error| {
        fault.lock().ignore_poison().get_or_insert(error);
    });
    fault.into_inner().ignore_poison().map_or(Ok(segment), Err)
}

/// Opens a segment after what memory holds of its file was dropped.
fn open_from_disk(
    fs: &dyn FileSystem,
    path: &Path,
    identity: &SegmentIdentity,
) -> Result<Segment, StoreError> {
    let file = fs.open(path).map_err(StoreError::io(path, "open"))?;
    file.drop_cached().map_err(StoreError::io(path, "drop what memory holds of"))?;
    drop(file);
    Segment::open(fs, path, identity)
}

/// Checks all pages of a segment, and its row groups, with `n_threads` threads. In any order,
/// `fault` receives each page that is damaged, or on which a damaged group starts.
pub(crate) fn check_segment(
    segment: &Segment,
    n_threads: usize,
    fault: &(dyn Fn(u64, StoreError) + Sync),
) {
    for_each_stretch(segment.layout().n_pages(), n_threads, &|pages, buffer| {
        rows::check(segment, pages, buffer, &mut |page, error| fault(page, error));
    });
}

/// Lets `n_threads` threads, this one among them, work through stretches of `n_pages` pages. Each
/// thread keeps a buffer from stretch to stretch.
pub(crate) fn for_each_stretch(
    n_pages: u64,
    n_threads: usize,
    work: &(dyn Fn(Range<u64>, &mut Vec<u8>) + Sync),
) {
    let next = AtomicU64::new(0);
    let take = || {
        let mut buffer = Vec::new();
        loop {
            let first = next.fetch_add(STRETCH_PAGES, Ordering::Relaxed);
            if first >= n_pages {
                return;
            }
            work(first..n_pages.min(first + STRETCH_PAGES), &mut buffer);
        }
    };
    thread::scope(|scope| {
        // This thread does the work of those that cannot be started.
        for _ in 1..n_threads {
            if thread::Builder::new().spawn_scoped(scope, take).is_err() {
                break;
            }
        }
        take();
    });
}

/// Lets `n_threads` threads take units until there are none; this one reports how far they are.
fn check_all(
    walk: &Walk<'_>,
    findings: &Findings,
    n_threads: usize,
    progress: &mut dyn FnMut(u64, u64),
) {
    let total = walk.total_bytes();
    let mut done = 0;
    let mut tell = |bytes| {
        done += bytes;
        progress(done, total);
    };
    if n_threads <= 1 {
        return check_units(walk, findings, &mut tell);
    }
    thread::scope(|scope| {
        let (told, tells) = mpsc::channel();
        let n_spawned = (0..n_threads).take_while(|_| {
            let told = told.clone();
            // The receiver outlives the threads, so that telling it cannot fail.
            let mut tell = move |bytes| told.send(bytes).unwrap_or(());
            let check = move || check_units(walk, findings, &mut tell);
            thread::Builder::new().spawn_scoped(scope, check).is_ok()
        });
        // Where no thread is available, this one does it.
        if n_spawned.count() == 0 {
            return check_units(walk, findings, &mut tell);
        }
        drop(told);
        tells.into_iter().for_each(&mut tell);
    });
}

fn check_units(walk: &Walk<'_>, findings: &Findings, tell: &mut dyn FnMut(u64)) {
    let mut buffer = Vec::new();
    while let Some(unit) = walk.next() {
        unit.check(findings, &mut buffer);
        tell(unit.bytes);
    }
}

#[cfg(test)]
mod tests;
