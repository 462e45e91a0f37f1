//! One partition of a tensor on one shard: its segment, open on this executor, and the look-up of
//! rows over it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use glommio::sync::{Semaphore, StaticPermit};
use lodestore_graph::PartId;
use lodestore_schema::{Failure, FailureCode};
use lodestore_store::{
    Base, DeviceProfile, LiveTensor, OverlayRow, ReadPlan, RowIdx, RowKeys, StoreError,
};

use crate::dma::{DmaReader, ReadList};
use crate::error::{failure, no_room, store_failure};
use crate::stats::{Counters, count};
use crate::store_threads::{Answer, StoreThreads};

/// Rows of one partition. Their keys in the tier start at `key_base`.
pub(super) struct PartRows {
    pub(super) key_base: u32,
    live: Arc<LiveTensor>,
    /// The newest segment that this shard has opened; gathers that still read from another hold it.
    reader: RefCell<Rc<DmaReader>>,
}

/// What reads of one gather share.
pub(super) struct Reading<'a> {
    pub(super) threads: &'a StoreThreads,
    pub(super) profile: &'a DeviceProfile,
    pub(super) room: &'a Rc<Semaphore>,
    pub(super) counters: &'a Counters,
    pub(super) row_bytes: usize,
}

/// A row that is not in the tier: where it is on disk, and its position in the batch.
#[derive(Clone, Copy)]
pub(super) struct MissedRow {
    pub(super) part: PartId,
    pub(super) row: RowIdx,
    pub(super) position: u32,
}

/// Rows over a segment that a thread looks up, within their room.
pub(super) struct StartedLookup(Answer<LookedUp>, StaticPermit);

/// Buffers of one read, kept for the next.
#[derive(Default)]
pub(super) struct PartScratch {
    /// Rows of one partition and their positions in the batch; once listed, those of the segment.
    rows: Vec<(RowIdx, u32)>,
    n_ids: u32,
    plan: ReadPlan,
    lookup: Box<Lookup>,
}

/// Rows over a segment that are looked up: goes to a thread of the store and comes back.
#[derive(Default)]
struct Lookup {
    rows: Vec<OverlayRow>,
    /// Where each row of `out` goes in the batch.
    positions: Vec<u32>,
    out: Vec<u8>,
    keys: RowKeys,
}

impl PartRows {
    pub(super) async fn open(live: Arc<LiveTensor>, key_base: u32) -> Result<Self, String> {
        let reader = DmaReader::open(live.base()).await?;
        Ok(Self { key_base, live, reader: RefCell::new(Rc::new(reader)) })
    }

    /// Adds the reads of the rows of `scratch` to `list`, and starts the look-up of those over the
    /// segment; returns the segment that was under them.
    pub(super) async fn list_reads(
        &self,
        reading: &Reading<'_>,
        scratch: &mut PartScratch,
        list: &mut ReadList,
    ) -> Result<(Arc<Base>, Option<StartedLookup>), Failure> {
        let base = self.live.split(&mut scratch.rows, &mut scratch.lookup.rows);
        // Looked up while the segment is read.
        let lookup = self.start_lookup(reading, &base, scratch)?;
        if !scratch.rows.is_empty() {
            let reader = self.reader_of(&base).await?;
            let layout = base.segment().layout();
            scratch
                .plan
                .build_scattered(&scratch.rows, scratch.n_ids, layout, reading.profile)
                .map_err(|error| failure(FailureCode::Internal, error.to_string()))?;
            list.push(&reader, &scratch.plan);
        }
        Ok((base, lookup))
    }

    /// Whether nothing lies over the segment and it is still `base`: then nothing has lain over it
    /// since `base` was read.
    pub(super) fn is_still_plain(&self, base: &Arc<Base>) -> bool {
        self.live.is_plain() && Arc::ptr_eq(&self.live.base(), base)
    }

    /// Positions of those rows of `scratch` that are still as they are in `base`.
    pub(super) fn unchanged<'a>(
        &self,
        base: &Arc<Base>,
        scratch: &'a mut PartScratch,
    ) -> impl Iterator<Item = u32> + 'a {
        let now = self.live.split(&mut scratch.rows, &mut scratch.lookup.rows);
        if !Arc::ptr_eq(&now, base) {
            scratch.rows.clear();
        }
        scratch.rows.iter().map(|&(_, position)| position)
    }

    /// Opens the segment of this moment, and lets go of another.
    pub(super) async fn rebase(&self) -> Result<(), Failure> {
        self.reader_of(&self.live.base()).await.map(drop)
    }

    /// Sends the rows over the segment to a thread, if there are any.
    fn start_lookup(
        &self,
        reading: &Reading<'_>,
        base: &Arc<Base>,
        scratch: &mut PartScratch,
    ) -> Result<Option<StartedLookup>, Failure> {
        scratch.lookup.positions.clear();
        if scratch.lookup.rows.is_empty() {
            return Ok(None);
        }
        let mut lookup = std::mem::take(&mut scratch.lookup);
        lookup.prepare(reading.row_bytes);
        let n_bytes = lookup.out.len();
        let room = reading.room.try_acquire_static_permit(n_bytes as u64);
        let room = room.map_err(|_| no_room(n_bytes))?;
        // With the base go the rows over it.
        let (live, base) = (Arc::clone(&self.live), Arc::clone(base));
        let answer = reading.threads.overlay.call(move || {
            let _base = base;
            live.read_overlaid(&mut lookup.rows, &mut lookup.out, &mut lookup.keys)?;
            Ok(lookup)
        })?;
        Ok(Some(StartedLookup(answer, room)))
    }

    /// The reader of `base`, opened if this shard has not seen it yet.
    async fn reader_of(&self, base: &Arc<Base>) -> Result<Rc<DmaReader>, Failure> {
        let known = Rc::clone(&self.reader.borrow());
        if Arc::ptr_eq(known.base(), base) {
            return Ok(known);
        }
        let opened = DmaReader::open(Arc::clone(base)).await;
        let opened = Rc::new(opened.map_err(|error| failure(FailureCode::Internal, error))?);
        // A compaction may have been faster.
        if Arc::ptr_eq(&self.live.base(), base) {
            self.reader.replace(Rc::clone(&opened));
        }
        Ok(opened)
    }

    pub(super) async fn close(self) {
        if let Ok(reader) = Rc::try_unwrap(self.reader.into_inner()) {
            reader.close().await;
        }
    }
}

/// A look-up that has come back.
type LookedUp = Result<Box<Lookup>, StoreError>;

impl PartScratch {
    /// Takes the rows of one partition, out of a batch of `n_ids`.
    pub(super) fn set_rows(&mut self, missed: &[MissedRow], n_ids: usize) {
        self.rows.clear();
        self.n_ids = u32::try_from(n_ids).unwrap_or(u32::MAX);
        self.rows.extend(missed.iter().map(|missed| (missed.row, missed.position)));
    }

    /// Waits for the rows of a look-up and copies them to their positions in `out`.
    pub(super) async fn finish_lookup(
        &mut self,
        StartedLookup(answer, _room): StartedLookup,
        reading: &Reading<'_>,
        out: &mut [u8],
    ) -> Result<(), Failure> {
        self.lookup = answer.wait().await?.map_err(|error| store_failure(&error))?;
        self.lookup.copy_to(reading.row_bytes, out);
        count(&reading.counters.overlay_rows, self.lookup.positions.len());
        Ok(())
    }

    /// Positions of the rows that the last read has found over the segment.
    pub(super) fn overlaid(&self) -> &[u32] {
        &self.lookup.positions
    }
}

impl Lookup {
    /// Makes room in `out`, row after row, and notes where each belongs.
    fn prepare(&mut self, row_bytes: usize) {
        for (row, to) in self.rows.iter_mut().zip(0u32..) {
            self.positions.push(std::mem::replace(&mut row.out_row, to));
        }
        self.out.resize(self.rows.len() * row_bytes, 0);
    }

    fn copy_to(&self, row_bytes: usize, out: &mut [u8]) {
        for (row, &position) in self.out.chunks_exact(row_bytes).zip(&self.positions) {
            out[position as usize * row_bytes..][..row_bytes].copy_from_slice(row);
        }
    }
}
