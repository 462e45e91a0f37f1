//! A shard takes over the newest version of a partition: rows that it changed leave the tier, then
//! gathers read it.
//!
//! Until the last of these rows has left, gathers read the version before. Meanwhile no row that
//! differs between the two is admitted to the tier. So a gather that begins after the switch finds
//! no old row, and one that began before keeps none.

use std::sync::Arc;
use std::time::Duration;

use lodestore_graph::PartId;
use lodestore_schema::Failure;
use lodestore_store::RowIdx;
use lodestore_store::update::TensorVersion;

use super::ShardRows;
use super::part::PartRows;
use crate::partitions::Partitions;

/// Rows that are looked at before other tasks get the core.
const ROWS_PER_TURN: usize = 4096;
/// How often the end of another switch is looked for.
const LOOK: Duration = Duration::from_millis(1);

impl ShardRows {
    /// Has gathers of a partition read the newest version that is committed when this is called, or
    /// a later one.
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
        Ok(())
    }

    /// Takes the rows that `next` may have changed since `current` out of the tier.
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
            // Deltas were folded that this shard has not seen: any row may be another.
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

    /// Takes those of `changed` that are this shard's out of the tier, some at a time.
    async fn forget_rows(
        &self,
        part: PartId,
        rows: &PartRows,
        mut changed: impl Iterator<Item = RowIdx>,
    ) {
        let mut keys = Vec::new();
        loop {
            keys.clear();
            let mut n_seen = 0;
            for RowIdx(row) in changed.by_ref().take(ROWS_PER_TURN) {
                n_seen += 1;
                if self.stripes.shard_of(part.0, row) == self.shard {
                    keys.push(rows.key_base + self.stripes.key_of(row));
                }
            }
            self.tier.borrow_mut().remove(&keys);
            if n_seen < ROWS_PER_TURN {
                return;
            }
            glommio::yield_if_needed().await;
        }
    }
}
