//! Readers past the page cache: best when the rows do not fit in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lodestore_graph::fork::PerProcess;

use super::queued::execute;
use super::{RowReader, check_output};
use crate::error::StoreError;
use crate::layout::SegmentLayout;
use crate::plan::ReadPlan;
use crate::ring::{InlineQueue, ReadFile, WorkerQueue, lend_arena, lend_ring};
use crate::segment::Segment;

/// A plan of at most this many extents is read by the calling thread: waking another one would take
/// longer.
const INLINE_EXTENTS: usize = 2;

/// A reader of a segment through an io_uring, past the page cache where the file system can. It
/// checks every page that holds a planned row each time it is read.
///
/// Shared between threads; each has a ring while it executes a plan, and at most eight stay with
/// the process. Four have 64 MiB of memory, others 16 MiB, or 3.75 MiB where the limit of locked
/// memory is low. Where the system refuses rings, threads read instead.
#[derive(Debug)]
pub struct DirectReader {
    segment: Arc<Segment>,
    file: Arc<ReadFile>,
}

impl DirectReader {
    /// Opens a segment's file once more, for direct reads.
    pub fn open(segment: impl Into<Arc<Segment>>) -> Result<Self, StoreError> {
        let segment = segment.into();
        let file = open_file(&segment)?;
        Ok(Self { segment, file })
    }
}

impl RowReader for DirectReader {
    fn layout(&self) -> &SegmentLayout {
        self.segment.layout()
    }

    fn execute(&self, plan: &ReadPlan, out: &mut [u8]) -> Result<(), StoreError> {
        check_output(plan.out_rows(), self.layout(), out)?;
        match lend_ring(&self.file, |ring| execute(&self.segment, plan, out, ring)) {
            Ok(done) => done,
            Err(error) => {
                // No `Once`: in a child of a fork in the midst of it, it would never end.
                static HAS_WARNED: AtomicBool = AtomicBool::new(false);
                if !HAS_WARNED.swap(true, Ordering::Relaxed) {
                    let raise = match error.raw_os_error() {
                        Some(libc::ENOMEM) => "; raise the limit of locked memory (ulimit -l)",
                        _ => "",
                    };
                    tracing::warn!("no io_uring ({error}{raise}): threads read instead, slower");
                }
                execute_by_threads(&self.segment, Some(&self.file), plan, out)
            }
        }
    }
}

/// A reader of a segment by positional reads of the process's threads, past the page cache where
/// the file system can. It checks every page that holds a planned row each time it is read.
///
/// Shared between threads; each has 64 MiB of memory while it executes a plan, 16 MiB when many do.
#[derive(Debug)]
pub struct PreadReader {
    segment: Arc<Segment>,
    /// That of direct reads, from the first read on.
    file: PerProcess<Arc<ReadFile>>,
}

impl PreadReader {
    /// Makes a reader of a segment. Its file is opened once more, for direct reads, with the first
    /// read.
    pub fn new(segment: impl Into<Arc<Segment>>) -> Self {
        Self { segment: segment.into(), file: PerProcess::new() }
    }

    /// Returns the file of direct reads. `None` on a device that is no disk, and where the file
    /// cannot be opened once more: the thread that asks reads what is open.
    fn file(&self) -> Option<&Arc<ReadFile>> {
        self.segment.file().as_file()?;
        match self.file.get_or_try(|_| open_file(&self.segment)) {
            Ok(file) => Some(file),
            Err(error) => {
                tracing::debug!("{error}; it is read through the page cache");
                None
            }
        }
    }
}

impl RowReader for PreadReader {
    fn layout(&self) -> &SegmentLayout {
        self.segment.layout()
    }

    fn execute(&self, plan: &ReadPlan, out: &mut [u8]) -> Result<(), StoreError> {
        check_output(plan.out_rows(), self.layout(), out)?;
        execute_by_threads(&self.segment, self.file(), plan, out)
    }
}

/// Opens a segment's file for direct reads.
fn open_file(segment: &Segment) -> Result<Arc<ReadFile>, StoreError> {
    let opened = match segment.file().as_file() {
        Some(same) => ReadFile::open(segment.path(), same),
        None => Err(std::io::Error::other("it is on no disk; use the pread reader")),
    };
    opened.map(Arc::new).map_err(StoreError::io(segment.path(), "open for direct reads"))
}

/// Executes a plan whose output was checked with positional reads of `file`; without one, the
/// calling thread reads.
fn execute_by_threads(
    segment: &Segment,
    file: Option<&Arc<ReadFile>>,
    plan: &ReadPlan,
    out: &mut [u8],
) -> Result<(), StoreError> {
    let is_tiny = plan.by_extent().nth(INLINE_EXTENTS).is_none();
    lend_arena(|arena| match file {
        None => execute(segment, plan, out, &mut InlineQueue::new(segment.file(), arena)),
        Some(file) if is_tiny => {
            execute(segment, plan, out, &mut InlineQueue::new(file.file(), arena))
        }
        Some(file) => execute(segment, plan, out, &mut WorkerQueue::new(Arc::clone(file), arena)),
    })
    .map_err(StoreError::io(segment.path(), "get memory for"))?
}
