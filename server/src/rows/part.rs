//! One partition of a tensor on one shard: the version that it serves, and the layers of that
//! version, open on this executor.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use lodestore_graph::PartId;
use lodestore_schema::{Failure, FailureCode};
use lodestore_store::RowIdx;
use lodestore_store::plan::ReadPlan;
use lodestore_store::update::{Layer, LayerRows, TensorHandle, TensorVersion};

use super::Gather;
use crate::dma::{DmaReader, LayerFiles, ReadList};
use crate::error::failure;
use crate::stats::count;

/// The rows of one partition. Their keys in the tier start at `key_base`.
pub(super) struct PartRows {
    pub(super) key_base: u32,
    pub(super) live: Arc<TensorHandle>,
    /// The version that gathers read, and the only one whose rows are in the tier.
    current: RefCell<Arc<TensorVersion>>,
    /// The version of a switch that is under way: rows that it changed are being removed from the
    /// tier.
    next: RefCell<Option<Arc<TensorVersion>>>,
    /// Open layers of the versions that this shard serves. A gather of another version holds its
    /// own readers.
    readers: RefCell<Vec<Rc<DmaReader>>>,
    /// Files that any shard has open.
    files: Arc<LayerFiles>,
}

/// A switch to another version. Until it ends, no row that the new version changed is admitted to
/// the tier. Dropping it before `finish` leaves the current version in place.
pub(super) struct Switch<'a> {
    rows: &'a PartRows,
    pub(super) next: Arc<TensorVersion>,
}

/// A row that is not in the tier: its partition and row number, and its position in the batch.
#[derive(Clone, Copy)]
pub(super) struct MissedRow {
    pub(super) part: PartId,
    pub(super) row: RowIdx,
    pub(super) position: u32,
}

/// Buffers of one read, reused by the next.
#[derive(Default)]
pub(super) struct PartScratch {
    /// Rows of one partition and their positions in the batch.
    rows: Vec<(RowIdx, u32)>,
    n_ids: u32,
    by_layer: LayerRows,
    plan: ReadPlan,
}

impl PartRows {
    /// Opens the newest version.
    pub(super) async fn open(
        live: Arc<TensorHandle>,
        key_base: u32,
        files: Arc<LayerFiles>,
    ) -> Result<Self, String> {
        let current = live.current();
        let mut readers = Vec::with_capacity(current.layers().len());
        for layer in current.layers() {
            readers.push(Rc::new(DmaReader::open(Arc::clone(layer), &files).await?));
        }
        let (current, readers) = (RefCell::new(current), RefCell::new(readers));
        let this = Self { key_base, live, current, next: RefCell::default(), readers, files };
        // A commit during the open could not switch this partition, which was not listed yet.
        while let Some(switch) = this.begin_switch().await.map_err(|refusal| refusal.message)? {
            switch.finish();
        }
        Ok(this)
    }

    /// Returns the version that gathers read.
    pub(super) fn current(&self) -> Arc<TensorVersion> {
        Arc::clone(&self.current.borrow())
    }

    /// Returns whether the tier has rows of this version.
    pub(super) fn reads(&self, version: &Arc<TensorVersion>) -> bool {
        Arc::ptr_eq(&self.current.borrow(), version)
    }

    /// Adds the reads for the rows of `scratch` to `list`, over all layers of `version`.
    pub(super) async fn list_reads(
        &self,
        gather: &Gather<'_>,
        version: &TensorVersion,
        scratch: &mut PartScratch,
        list: &mut ReadList,
    ) -> Result<(), Failure> {
        version.split(&scratch.rows, &mut scratch.by_layer);
        for (layer, rows) in scratch.by_layer.iter() {
            let layer_file = &version.layers()[layer];
            let reader = self.reader_of(layer_file).await?;
            let layout = layer_file.segment().layout();
            scratch
                .plan
                .build_scattered(rows, scratch.n_ids, layout, &gather.plan.partitions.profile)
                .map_err(|error| failure(FailureCode::Internal, error.to_string()))?;
            list.push(&reader, &scratch.plan);
            if layer > 0 {
                count(&gather.counters.delta_rows, rows.len());
            }
        }
        Ok(())
    }

    /// Returns whether rows that were read from `seen` may be admitted without a check.
    pub(super) fn is_still(&self, seen: &Arc<TensorVersion>) -> bool {
        Arc::ptr_eq(&self.current.borrow(), seen) && self.next.borrow().is_none()
    }

    /// Returns the positions of the rows of `scratch`, read from `seen`, that no later version has
    /// changed.
    pub(super) fn unchanged<'a>(
        &self,
        seen: &'a TensorVersion,
        scratch: &'a PartScratch,
    ) -> impl Iterator<Item = u32> + 'a {
        let (current, next) = (self.current(), self.next.borrow().clone());
        let is_same = move |now: &TensorVersion, row: RowIdx| {
            let layer =
                |version: &TensorVersion| Arc::as_ptr(&version.layers()[version.layer_of(row)]);
            layer(seen) == layer(now)
        };
        let stays = move |row: RowIdx| {
            is_same(&current, row) && next.as_ref().is_none_or(|next| is_same(next, row))
        };
        scratch.rows.iter().filter(move |(row, _)| stays(*row)).map(|&(_, position)| position)
    }

    /// Begins a switch to the newest version of the store and opens its layers here. Returns `None`
    /// if gathers read that version already.
    pub(super) async fn begin_switch(&self) -> Result<Option<Switch<'_>>, Failure> {
        let next = self.live.current();
        if Arc::ptr_eq(&next, &self.current.borrow()) {
            return Ok(None);
        }
        *self.next.borrow_mut() = Some(Arc::clone(&next));
        let switch = Switch { rows: self, next };
        for layer in switch.next.layers() {
            self.reader_of(layer).await?;
        }
        Ok(Some(switch))
    }

    /// Returns whether a switch is under way.
    pub(super) fn is_switching(&self) -> bool {
        self.next.borrow().is_some()
    }

    /// Returns the reader of a layer; opens it if this shard has not done so.
    async fn reader_of(&self, layer: &Arc<Layer>) -> Result<Rc<DmaReader>, Failure> {
        let known = |readers: &[Rc<DmaReader>]| {
            readers.iter().find(|reader| Arc::ptr_eq(&reader.layer, layer)).cloned()
        };
        if let Some(reader) = known(&self.readers.borrow()) {
            return Ok(reader);
        }
        let opened = DmaReader::open(Arc::clone(layer), &self.files).await;
        let opened = Rc::new(opened.map_err(|error| failure(FailureCode::Internal, error))?);
        let mut readers = self.readers.borrow_mut();
        if let Some(reader) = known(&readers) {
            return Ok(reader);
        }
        // A layer that only a pinned version has is open for this gather only.
        let has =
            |version: &TensorVersion| version.layers().iter().any(|it| Arc::ptr_eq(it, layer));
        let is_kept = has(&self.current.borrow()) || self.next.borrow().as_deref().is_some_and(has);
        if is_kept {
            readers.push(Rc::clone(&opened));
        }
        Ok(opened)
    }
}

impl Switch<'_> {
    /// Makes gathers read the new version, and closes layers that it does not have.
    pub(super) fn finish(self) {
        let is_of_next = |reader: &Rc<DmaReader>| {
            self.next.layers().iter().any(|layer| Arc::ptr_eq(layer, &reader.layer))
        };
        self.rows.readers.borrow_mut().retain(is_of_next);
        self.rows.current.replace(Arc::clone(&self.next));
    }
}

impl Drop for Switch<'_> {
    fn drop(&mut self) {
        *self.rows.next.borrow_mut() = None;
    }
}

impl PartScratch {
    /// Sets the rows of one partition, from a batch of `n_ids`.
    pub(super) fn set_rows(&mut self, missed: &[MissedRow], n_ids: usize) {
        self.rows.clear();
        self.n_ids = u32::try_from(n_ids).unwrap_or(u32::MAX);
        self.rows.extend(missed.iter().map(|missed| (missed.row, missed.position)));
    }
}
