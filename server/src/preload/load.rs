//! Preloading: a few workers on each shard, at lower priority than all requests.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use glommio::TaskQueueHandle;
use lodestore_graph::{NodeId, PartId};
use lodestore_schema::request::PullKind;
use lodestore_schema::{Failure, FailureCode};
use tracing::info;

use super::PreloadRule;
use super::work::{Portion, PreloadWork, Rows};
use crate::limits::{
    PRELOAD_BYTES, PRELOAD_PAUSE_MAX, PRELOAD_PAUSES, PRELOAD_ROWS, PRELOAD_WORKERS, RETRY_AFTER,
};
use crate::shard::Shard;

/// Longest time that a piece may wait for its reads before it fails.
const PIECE_MAX: Duration = Duration::from_secs(10);

impl Shard {
    /// Decides which rows this shard preloads, and publishes their bytes.
    pub(crate) fn plan_preload(&self) -> PreloadWork {
        let (mut work, mut n_bytes) = (PreloadWork::default(), 0);
        for tensor in 0..self.tensors.len() {
            n_bytes += self.plan_tensor(tensor, &mut work);
        }
        let plan = &self.plan;
        plan.preload.has_planned(plan.counters.len());
        self.counters().preload_bytes.store(n_bytes, Ordering::Relaxed);
        work
    }

    /// Adds the portions of a tensor to `work`; returns their bytes.
    fn plan_tensor(&self, tensor: usize, work: &mut PreloadWork) -> u64 {
        let (plan, rows) = (&self.plan, &self.tensors[tensor]);
        let (preload, n_slots) = (&plan.preload, rows.n_slots());
        let wanted = preload.wanted[tensor];
        if wanted == PreloadRule::No || n_slots == 0 {
            return 0;
        }
        let whole = self.portions(tensor, |_, n_rows| Some(Rows::Range(0, n_rows)));
        let n_owned: u64 = whole.iter().map(Portion::n_rows).sum();
        let portions = if n_slots >= n_owned {
            whole
        } else if wanted == PreloadRule::Whole {
            return 0;
        } else {
            let name = &plan.partitions.tensors[tensor].description.name;
            let stripes = plan.partitions.tensors[tensor].stripes;
            let hot = self.portions(tensor, |part, _| {
                let is_own = |row| stripes.shard_of(part.0, row) == self.number();
                Some(Rows::Listed(preload.remembered(part, name, is_own)?, 0))
            });
            match (hot.is_empty(), wanted) {
                (true, PreloadRule::WhatFits) => whole,
                (true, _) => return 0,
                (false, _) => hottest(hot, n_slots),
            }
        };
        let n_rows: u64 = portions.iter().map(Portion::n_rows).sum();
        portions.into_iter().for_each(|portion| work.push(portion));
        n_rows.min(n_slots) * rows.row_bytes as u64
    }

    /// Returns a portion per partition, with the rows that `rows` selects from the partition and
    /// its number of rows.
    fn portions(&self, tensor: usize, rows: impl Fn(PartId, u32) -> Option<Rows>) -> Vec<Portion> {
        let partitions = &self.plan.partitions;
        let piece_rows = (PRELOAD_BYTES / self.tensors[tensor].row_bytes).clamp(1, PRELOAD_ROWS);
        let portion = |&part: &PartId| {
            let range = partitions.book.range(part);
            Some(Portion {
                tensor,
                part,
                first_node: range.start,
                stripes: partitions.tensors[tensor].stripes,
                shard: self.number(),
                piece_rows,
                rows: rows(part, range.end - range.start)?,
            })
        };
        partitions.parts().iter().filter_map(portion).collect()
    }

    /// Starts the workers. They end when all rows are loaded or the shard ends.
    pub(crate) fn start_preload(self: &Rc<Self>, work: PreloadWork, queue: TaskQueueHandle) {
        if self.counters().preload_bytes.load(Ordering::Relaxed) == 0 {
            return;
        }
        let work = Rc::new(RefCell::new(work));
        for _ in 0..PRELOAD_WORKERS {
            let worker = Worker {
                shard: Rc::downgrade(self),
                work: Rc::clone(&work),
                ids: Vec::new(),
                out: Vec::new(),
            };
            self.spawn_guarded_into(queue, "a preload worker", worker.run());
        }
    }

    /// Loads rows of this shard into its tier; returns whether free slots remain.
    async fn load_ahead(
        &self,
        tensor: usize,
        ids: &[NodeId],
        out: &mut Vec<u8>,
    ) -> Result<bool, Failure> {
        let rows = &self.tensors[tensor];
        let n_bytes = ids.len() * rows.row_bytes;
        // Ids, rows, and the lists of keys and places.
        let _room = self.take_room(PullKind::Vector, n_bytes + 4 * size_of_val(ids))?;
        out.resize(n_bytes, 0);
        let turn = self.read_turn(PullKind::Vector, Instant::now() + PIECE_MAX);
        rows.load_ahead(&self.plan, &turn, ids, out).await
    }

    /// Reports the resident rows of tiers that are smaller than their tables, to be saved.
    pub(crate) fn remember_rows(&self) {
        let plan = &self.plan;
        let counters = self.counters();
        let is_loaded = counters.preloaded_bytes.load(Ordering::Relaxed)
            >= counters.preload_bytes.load(Ordering::Relaxed);
        // A partial preload would replace the saved list by a worse one.
        if !plan.preload.remembers() || !is_loaded {
            return;
        }
        let mut all = Vec::new();
        for (tensor, rows) in self.tensors.iter().enumerate() {
            let whole = self.portions(tensor, |_, n_rows| Some(Rows::Range(0, n_rows)));
            let n_owned: u64 = whole.iter().map(Portion::n_rows).sum();
            if plan.preload.wanted[tensor].remembers() && rows.n_slots() < n_owned {
                let name = &plan.partitions.tensors[tensor].description.name;
                let hot = rows.hottest(&plan.partitions).into_iter();
                all.extend(hot.map(|(part, rows)| (part, name.clone(), rows)));
            }
        }
        plan.preload.add_resident(all);
    }
}

/// Truncates lists of rows, hottest first, to about as many rows as there are slots. Sorts each
/// list, so that neighbouring rows are read together.
fn hottest(mut portions: Vec<Portion>, n_slots: u64) -> Vec<Portion> {
    let n_rows: u64 = portions.iter().map(Portion::n_rows).sum();
    for portion in &mut portions {
        let Rows::Listed(rows, _) = &mut portion.rows else { continue };
        if n_rows > n_slots {
            let kept = u128::from(n_slots) * rows.len() as u128 / u128::from(n_rows);
            rows.truncate(usize::try_from(kept).unwrap_or(usize::MAX));
        }
        rows.sort_unstable();
        rows.dedup();
    }
    portions
}

/// Loads one piece after the other.
struct Worker {
    /// Weak, and not held between pieces, so that the shard can end.
    shard: Weak<Shard>,
    work: Rc<RefCell<PreloadWork>>,
    ids: Vec<NodeId>,
    out: Vec<u8>,
}

impl Worker {
    async fn run(mut self) {
        loop {
            let begun = Instant::now();
            let Some(tensor) = self.work.borrow_mut().next(&mut self.ids) else { break };
            let Some(is_contended) = self.load(tensor).await else { return };
            if is_contended {
                // Leaves the disk to waiting pulls most of the time.
                let pause = (begun.elapsed() * PRELOAD_PAUSES).min(PRELOAD_PAUSE_MAX);
                glommio::timer::sleep(pause).await;
            } else {
                glommio::yield_if_needed().await;
            }
        }
        // True for the last worker of the shard.
        if Rc::strong_count(&self.work) == 1
            && let Some(shard) = self.shard.upgrade()
        {
            let counters = shard.counters();
            let n_bytes = counters.preload_bytes.load(Ordering::Relaxed);
            counters.preloaded_bytes.store(n_bytes, Ordering::Relaxed);
            info!(shard = shard.number(), n_bytes, "preloaded rows");
        }
    }

    /// Loads a piece; retries while the shard is overloaded. Returns whether pulls read from disk
    /// meanwhile, or `None` when the shard ends.
    async fn load(&mut self, tensor: usize) -> Option<bool> {
        loop {
            let shard = self.shard.upgrade().filter(|shard| !shard.is_ending())?;
            let misses = || shard.counters().tier_misses.load(Ordering::Relaxed);
            let before = misses();
            let loading = shard.begin_loading();
            let has_room = match shard.load_ahead(tensor, &self.ids, &mut self.out).await {
                Ok(has_room) => has_room,
                Err(refusal) if refusal.code == FailureCode::Overloaded => {
                    drop(loading);
                    drop(shard);
                    glommio::timer::sleep(RETRY_AFTER).await;
                    continue;
                }
                // The partition was moved to another server.
                Err(refusal) if refusal.code == FailureCode::Elsewhere => true,
                Err(refusal) => {
                    shard.plan.preload.note_fault(&refusal.message);
                    true
                }
            };
            drop(loading);
            if !has_room {
                self.work.borrow_mut().drop_tensor(tensor);
            }
            let (counters, row_bytes) = (shard.counters(), shard.tensors[tensor].row_bytes);
            let total = counters.preload_bytes.load(Ordering::Relaxed);
            let done = counters.preloaded_bytes.load(Ordering::Relaxed);
            let done = done.saturating_add((self.ids.len() * row_bytes) as u64);
            // Only the last worker reports the preload as complete.
            counters.preloaded_bytes.store(done.min(total.saturating_sub(1)), Ordering::Relaxed);
            return Some(misses() != before);
        }
    }
}

#[cfg(test)]
mod tests {
    use lodestore_schema::Stripes;

    use super::*;

    fn listed(part: u16, rows: &[u32]) -> Portion {
        let stripes = Stripes::new(1, 4).unwrap();
        let rows = Rows::Listed(rows.to_vec(), 0);
        let (part, first_node, shard, piece_rows) = (PartId(part), 0, 0, 9);
        Portion { tensor: 0, part, first_node, stripes, shard, piece_rows, rows }
    }

    #[test]
    fn the_hottest_rows_that_fit_are_loaded_in_disk_order() {
        let chosen = |n_slots| {
            let lists = vec![listed(0, &[9, 3, 7, 1]), listed(1, &[8, 2])];
            let lists = hottest(lists, n_slots).into_iter().map(|portion| match portion.rows {
                Rows::Listed(rows, 0) => rows,
                other => panic!("{other:?}"),
            });
            lists.collect::<Vec<_>>()
        };
        assert_eq!(chosen(6), [vec![1, 3, 7, 9], vec![2, 8]]);
        assert_eq!(chosen(3), [vec![3, 9], vec![8]]);
        assert_eq!(chosen(100), chosen(6));
    }
}
