//! Executes a plan on a queue of reads: the disk works while rows are checked and copied.

use std::io;

use crate::error::StoreError;
use crate::plan::{Extent, PlannedRow, ReadPlan};
use crate::ring::{Read, ReadFault, ReadQueue, Step};
use crate::segment::Segment;

/// Bytes of extents, one at least, whose rows are copied before the queue is looked at again. A
/// disk that completes several large reads together must not wait until all of them are copied.
const COPY_BYTES_PER_TURN: usize = 128 << 10;

/// Share of the reads in flight that are waited for together, as a divisor. It is low enough that
/// the disk does not run dry, and high enough that the thread is not woken for each read.
const WAIT_SHARE: usize = 8;

/// Reads a plan's extents through `queue`, many concurrently. Copies each planned row out of
/// checked pages to its place in `out`.
///
/// Returns when no read is in flight, also with an error, which is the first that came.
pub(super) fn execute(
    segment: &Segment,
    plan: &ReadPlan,
    out: &mut [u8],
    queue: &mut dyn ReadQueue,
) -> Result<(), StoreError> {
    let mut extents = plan.by_extent();
    let next = extents.next();
    let (ready, open) = (Vec::with_capacity(queue.depth()), Vec::with_capacity(2 * queue.depth()));
    let mut run = PlanRun { segment, queue, next, extents, open, free: Vec::new(), ready };
    let done = run.all(out);
    if done.is_err() {
        run.ready.drain(..).for_each(|read| run.queue.arena().give_back(read.into_region()));
        // The error that came first is the one to tell.
        let _ = run.queue.drain();
    }
    done
}

/// An extent with its rows.
type Job<'p> = (&'p Extent, &'p [PlannedRow]);

/// A plan under way.
struct PlanRun<'a, 'p, I> {
    segment: &'a Segment,
    queue: &'a mut dyn ReadQueue,
    /// The first extent that is not open yet.
    next: Option<Job<'p>>,
    extents: I,
    /// Extents whose reads are in flight or whose rows are to be copied; reads carry the position.
    open: Vec<Job<'p>>,
    /// Positions of `open` that are free.
    free: Vec<u32>,
    /// Reads whose rows are to be copied.
    ready: Vec<Read>,
}

impl<'p, I: Iterator<Item = Job<'p>>> PlanRun<'_, 'p, I> {
    /// Reads, checks and copies everything.
    fn all(&mut self, out: &mut [u8]) -> Result<(), StoreError> {
        loop {
            // What has come back leaves room for reads, which the disk is given before rows are
            // looked at.
            self.fill()?;
            let in_flight = self.queue.in_flight();
            if in_flight == 0 && self.ready.is_empty() {
                assert!(self.next.is_none(), "an empty queue has room for any read");
                return Ok(());
            }
            let want = if self.ready.is_empty() { in_flight.div_ceil(WAIT_SHARE) } else { 0 };
            self.queue.submit(want).map_err(|error| self.failed("wait for reads of", error))?;
            self.copy_some(out)?;
            self.take_finished()?;
        }
    }

    /// Copies the rows of some reads that are ready, so that the queue is not left alone for long.
    fn copy_some(&mut self, out: &mut [u8]) -> Result<(), StoreError> {
        let mut n_bytes = 0;
        while n_bytes < COPY_BYTES_PER_TURN {
            let Some(read) = self.ready.pop() else { break };
            n_bytes += read.region().len_bytes();
            let (extent, rows) = self.open[read.tag as usize];
            self.free.push(read.tag);
            let copied = self.segment.copy_rows(extent, rows, read.region().bytes(), out);
            self.queue.arena().give_back(read.into_region());
            copied?;
        }
        Ok(())
    }

    /// Pushes reads for as long as there is room for them.
    fn fill(&mut self) -> Result<(), StoreError> {
        while let Some(job) = self.next {
            if self.queue.in_flight() == self.queue.depth() {
                break;
            }
            let region = self.queue.arena().take(job.0.len_bytes());
            let Some(region) = region.map_err(|error| self.failed("get memory for", error))? else {
                break;
            };
            let tag = self.open_job(job);
            self.queue.push(Read::new(region, job.0.offset_bytes(), tag));
            self.next = self.extents.next();
        }
        Ok(())
    }

    fn open_job(&mut self, job: Job<'p>) -> u32 {
        match self.free.pop() {
            Some(tag) => {
                self.open[tag as usize] = job;
                tag
            }
            None => {
                self.open.push(job);
                (self.open.len() - 1) as u32
            }
        }
    }

    /// Takes what has come back: finished reads for their rows, unfinished ones to the queue.
    fn take_finished(&mut self) -> Result<(), StoreError> {
        while let Some((mut read, outcome)) = self.queue.pop() {
            match read.advance(outcome) {
                Step::Done => self.ready.push(read),
                Step::Again => self.queue.push(read),
                Step::Fail(fault) => {
                    let error = self.read_failed(&read, fault);
                    self.queue.arena().give_back(read.into_region());
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn read_failed(&self, read: &Read, fault: ReadFault) -> StoreError {
        StoreError::Read {
            file: self.segment.path().to_owned(),
            offset_bytes: read.missing_from_bytes(),
            source: fault.into(),
        }
    }

    fn failed(&self, action: &'static str, source: io::Error) -> StoreError {
        StoreError::Io { file: self.segment.path().to_owned(), action, source }
    }
}

#[cfg(test)]
mod tests;
