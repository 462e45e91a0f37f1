//! Switch of a shard to the newest version of a partition: changed rows are removed from the tier,
//! then gathers read the new version.
//!
//! Until the last changed row is removed, gathers read the previous version. Meanwhile no row that
//! differs between the two is admitted to the tier. So a gather that begins after the switch finds
//! no old row, and one that began before admits none.
//!
//! Partitions that are added or released are opened and closed here as well.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lodestore_graph::PartId;
use lodestore_schema::Failure;
use lodestore_store::RowIdx;
use lodestore_store::update::TensorVersion;

use super::part::PartRows;
use super::{Parts, ShardRows};
use crate::partitions::Partitions;

/// Keys to process before other tasks may run.
const KEYS_PER_TURN: usize = 4096;
/// Interval of the checks for the end of another switch, or of the last gather.
const LOOK: Duration = Duration::from_millis(1);

impl ShardRows {
    /// Switches gathers of a partition to the newest version that is committed at the time of the
    /// call, or to a later one.
    pub(crate) async fn refresh(
        &self,
        partitions: &Partitions,
        part: PartId,
    ) -> Result<(), Failure> {
        let parts = self.parts();
        let Some(rows) = parts.get(part) else { return Ok(()) };
        while rows.is_switching() {
            glommio::timer::sleep(LOOK).await;
        }
        let current = rows.current();
        let Some(switch) = rows.begin_switch().await? else { return Ok(()) };
        self.forget_changed(partitions, part, rows, &current, &switch.next).await;
        switch.finish();
        self.tier_cut.set(0);
        Ok(())
    }

    /// Removes from the tier the rows that `next` may have changed since `current`.
    async fn forget_changed(
        &self,
        partitions: &Partitions,
        part: PartId,
        rows: &PartRows,
        current: &TensorVersion,
        next: &TensorVersion,
    ) {
        let is_later = |version: u32| version > current.version();
        if is_later(next.base().version()) {
            // This shard has missed deltas that were folded: any row may have changed.
            let n_rows = partitions.book.range(part).len();
            let all = (0..u32::try_from(n_rows).unwrap_or(u32::MAX)).map(RowIdx);
            return self.forget_rows(part, rows, all).await;
        }
        for layer in &next.layers()[1..] {
            let is_known = current.layers().iter().any(|known| Arc::ptr_eq(known, layer));
            if is_later(layer.version()) && !is_known {
                let changed = layer.segment().listed_rows().iter().map(|&row| RowIdx(row));
                self.forget_rows(part, rows, changed).await;
            }
        }
    }

    /// Removes from the tier the rows of `changed` that this shard owns.
    async fn forget_rows(
        &self,
        part: PartId,
        rows: &PartRows,
        changed: impl Iterator<Item = RowIdx>,
    ) {
        let key = |RowIdx(row)| {
            let is_own = self.stripes.shard_of(part.0, row) == self.shard;
            is_own.then(|| rows.key_base + self.stripes.key_of(row))
        };
        self.forget(changed.map(key)).await;
    }

    /// Removes keys from the tier in batches; `None` is a row of another shard.
    async fn forget(&self, mut keys: impl Iterator<Item = Option<u32>>) {
        let mut own = Vec::new();
        loop {
            let (mut n_seen, turn) = (0, keys.by_ref().take(KEYS_PER_TURN));
            own.clear();
            own.extend(turn.inspect(|_| n_seen += 1).flatten());
            self.tier.borrow_mut().remove(&own);
            if n_seen < KEYS_PER_TURN {
                return;
            }
            glommio::yield_if_needed().await;
        }
    }

    /// Opens a partition that the store has open; does nothing if it is already open here.
    pub(crate) async fn open_part(
        &self,
        partitions: &Partitions,
        part: PartId,
    ) -> Result<(), String> {
        if self.parts().get(part).is_some() {
            return Ok(());
        }
        let Some(live) = partitions.live.tensor(part, self.position) else {
            return Err(format!("partition {part} is not open"));
        };
        let Some(key_base) = self.key_bases.get(part.index()).copied().flatten() else {
            return Err(format!("partition {part} has no keys on this shard"));
        };
        // The tier may still have rows of an earlier stay of this partition.
        let n_keys = partitions.keys_of(part, &partitions.tensors[self.position]);
        let key_end = key_base + u32::try_from(n_keys).unwrap_or(u32::MAX);
        self.forget((key_base..key_end).map(Some)).await;
        let rows = PartRows::open(live, key_base, Arc::clone(&partitions.files)).await?;
        self.replace(part, Some(Rc::new(rows)));
        Ok(())
    }

    /// Closes a partition once the running gathers have ended.
    pub(crate) async fn close_part(&self, part: PartId) {
        let Some(mut rows) = self.replace(part, None) else { return };
        loop {
            match Rc::try_unwrap(rows) {
                Ok(_) => return,
                Err(held) => rows = held,
            }
            glommio::timer::sleep(LOOK).await;
        }
    }

    /// Lists a partition, or removes it from the list; returns the previous entry.
    fn replace(&self, part: PartId, by: Option<Rc<PartRows>>) -> Option<Rc<PartRows>> {
        let mut parts = self.parts.borrow_mut();
        let mut changed = Parts::clone(&parts);
        let before = std::mem::replace(changed.by_index.get_mut(part.index())?, by);
        let all = (0u16..).zip(&changed.by_index);
        changed.open = all.filter(|(_, rows)| rows.is_some()).map(|(i, _)| PartId(i)).collect();
        *parts = Rc::new(changed);
        self.tier_cut.set(0);
        before
    }
}
