//! A reader of positional reads: works on every system, and on devices that are none.

use std::sync::Arc;

use super::direct::open_file;
use super::queued::execute;
use super::{RowReader, check_output};
use crate::error::StoreError;
use crate::layout::SegmentLayout;
use crate::plan::ReadPlan;
use crate::ring::{InlineQueue, ReadFile, WorkerQueue, lend_arena};
use crate::segment::Segment;

/// A plan of at most this many extents is read by the calling thread: waking another one would take
/// longer.
const INLINE_EXTENTS: usize = 2;

/// A reader of a segment by positional reads of the process's threads, past the page cache where
/// the file system can. It checks every page that holds a planned row each time it is read.
///
/// Shared between threads; each has 64 MiB of memory while it executes a plan, 16 MiB when many do.
#[derive(Debug)]
pub struct PreadReader {
    segment: Arc<Segment>,
    /// None on a device that is no disk: the thread that asks reads there.
    file: Option<Arc<ReadFile>>,
}

impl PreadReader {
    /// Opens a segment's file once more, for direct reads, if it has one.
    pub fn open(segment: impl Into<Arc<Segment>>) -> Result<Self, StoreError> {
        let segment = segment.into();
        let has_file = segment.file().as_file().is_some();
        let file = if has_file { Some(open_file(&segment)?) } else { None };
        Ok(Self { segment, file })
    }

    /// Returns the segment that is read.
    #[must_use]
    pub fn segment(&self) -> &Segment {
        &self.segment
    }
}

impl RowReader for PreadReader {
    fn layout(&self) -> &SegmentLayout {
        self.segment.layout()
    }

    fn execute(&self, plan: &ReadPlan, out: &mut [u8]) -> Result<(), StoreError> {
        check_output(plan.out_rows(), self.layout(), out)?;
        match &self.file {
            Some(file) => execute_by_threads(&self.segment, file, plan, out),
            None => lend_arena(|arena| {
                let mut queue = InlineQueue::new(self.segment.file(), arena);
                execute(&self.segment, plan, out, &mut queue)
            })
            .map_err(StoreError::io(self.segment.path(), "get memory for"))?,
        }
    }
}

/// Executes a plan whose output was checked with positional reads of `file`.
pub(super) fn execute_by_threads(
    segment: &Segment,
    file: &Arc<ReadFile>,
    plan: &ReadPlan,
    out: &mut [u8],
) -> Result<(), StoreError> {
    let is_tiny = plan.by_extent().nth(INLINE_EXTENTS).is_none();
    lend_arena(|arena| {
        if is_tiny {
            execute(segment, plan, out, &mut InlineQueue::new(file.file(), arena))
        } else {
            execute(segment, plan, out, &mut WorkerQueue::new(Arc::clone(file), arena))
        }
    })
    .map_err(StoreError::io(segment.path(), "get memory for"))?
}
