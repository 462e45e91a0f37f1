//! One partition of a tensor on one shard: its segment, open on this executor, and the look-up of
//! rows over it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use glommio::sync::{Semaphore, StaticPermit};
use lodestore_graph::{NodeId, PartId, PartitionBook};
use lodestore_schema::{Failure, FailureCode};
use lodestore_store::{
    Base, DeviceProfile, LiveTensor, OverlayRow, ReadPlan, RowIdx, RowKeys, StoreError,
};

use crate::dma::DmaReader;
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

/// Buffers of one read, kept for the next.
#[derive(Default)]
pub(super) struct PartScratch {
    /// Rows of one partition and their positions in the batch; after a read those of the segment.
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

    /// Reads the rows of `scratch` to their positions in `out`; gives the segment that lay under
    /// them.
    pub(super) async fn read(
        &self,
        reading: &Reading<'_>,
        scratch: &mut PartScratch,
        out: &mut [u8],
    ) -> Result<Arc<Base>, Failure> {
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
            reader.execute(&scratch.plan, out, reading.counters).await?;
        }
        if let Some((answer, _room)) = lookup {
            scratch.lookup = answer.wait().await?.map_err(|error| store_failure(&error))?;
            scratch.lookup.copy_to(reading.row_bytes, out);
            count(&reading.counters.overlay_rows, scratch.lookup.positions.len());
        }
        Ok(base)
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
    ) -> Result<Option<(Answer<LookedUp>, StaticPermit)>, Failure> {
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
        Ok(Some((answer, room)))
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
    /// Takes the rows of `part` among the ids at `positions`.
    pub(super) fn take_rows(
        &mut self,
        book: &PartitionBook,
        part: PartId,
        ids: &[NodeId],
        positions: &[u32],
    ) {
        self.rows.clear();
        self.n_ids = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        let range = book.range(part);
        for &position in positions {
            let id = ids[position as usize].0;
            if range.contains(&id) {
                self.rows.push((RowIdx(id - range.start), position));
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
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
