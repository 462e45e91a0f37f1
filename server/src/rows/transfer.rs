//! Partitions that come and go at one tensor of one shard.

use std::rc::Rc;
use std::time::Duration;

use lodestore_graph::PartId;

use super::part::PartRows;
use super::{Parts, ShardRows};
use crate::partitions::Partitions;

/// Keys that are taken out of the tier at a time.
const KEYS_AT_ONCE: u32 = 4096;
/// How often the end of the last gather is looked for.
const LOOK: Duration = Duration::from_millis(1);

impl ShardRows {
    /// Opens a partition that the store has open; nothing happens if it is open here.
    pub(crate) async fn open_part(
        &self,
        partitions: &Partitions,
        position: usize,
        part: PartId,
    ) -> Result<(), String> {
        if self.parts().get(part).is_some() {
            return Ok(());
        }
        let Some(live) = partitions.live.tensor(part, position) else {
            return Err(format!("partition {part} is not open"));
        };
        let Some(key_base) = self.key_bases.get(part.index()).copied().flatten() else {
            return Err(format!("partition {part} has no place here"));
        };
        // It may have been here before, with other rows.
        let n_keys = partitions.keys_of(part, &partitions.tensors[position]);
        self.forget_keys(key_base, key_base + u32::try_from(n_keys).unwrap_or(u32::MAX)).await;
        let rows = PartRows::open(live, key_base).await?;
        self.replace(part, Some(Rc::new(rows)));
        Ok(())
    }

    /// Closes a partition once the gathers that have begun are over.
    pub(crate) async fn close_part(&self, part: PartId) {
        let Some(mut rows) = self.replace(part, None) else { return };
        loop {
            match Rc::try_unwrap(rows) {
                Ok(rows) => return rows.close().await,
                Err(held) => rows = held,
            }
            glommio::timer::sleep(LOOK).await;
        }
    }

    async fn forget_keys(&self, first: u32, end: u32) {
        let mut keys = Vec::new();
        for from in (first..end).step_by(KEYS_AT_ONCE as usize) {
            keys.clear();
            keys.extend(from..end.min(from.saturating_add(KEYS_AT_ONCE)));
            self.tier.borrow_mut().remove(&keys);
            glommio::yield_if_needed().await;
        }
    }

    /// Puts a partition in the list, or takes it out; returns what was in its place.
    fn replace(&self, part: PartId, by: Option<Rc<PartRows>>) -> Option<Rc<PartRows>> {
        let mut parts = self.parts.borrow_mut();
        let mut changed = Parts::clone(&parts);
        let before = std::mem::replace(changed.by_index.get_mut(part.index())?, by);
        let all = (0u16..).zip(&changed.by_index);
        changed.open = all.filter(|(_, rows)| rows.is_some()).map(|(i, _)| PartId(i)).collect();
        *parts = Rc::new(changed);
        before
    }
}
