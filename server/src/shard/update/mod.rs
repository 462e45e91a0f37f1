//! Pushes, commits and compactions at a shard.

use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use glommio::sync::StaticPermit;
use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::{NodeId, PartId};
use lodestore_schema::limits::{COMMIT_AHEAD_MAX, ROWS_PER_PUSH_MAX};
use lodestore_schema::request::{CommitStep, PullKind, Push};
use lodestore_schema::{Failure, FailureCode};
use lodestore_store::update::Folding;
use lodestore_store::{CommitId, VersionId};
use tracing::warn;

use super::Shard;
use super::parts::to_its_end;
use crate::buffers::Buffers;
use crate::error::{failure, store_failure};
use crate::limits::{PUT_BYTES_PER_ROW, PUT_COPIES};
use crate::mesh::{Refresh, ShardRequest};
use crate::puts::{Next, PutKey};
use crate::rows::wrong_server;
use crate::stats::count;

/// Pause before a failed switch is retried.
pub(super) const SWITCH_PAUSE: Duration = Duration::from_millis(100);

impl Shard {
    /// Checks a push before its body is read. Reserves memory until the permit is dropped, and
    /// lends buffers within that.
    pub(crate) fn admit_push(
        &self,
        push: &Push,
        body_bytes: usize,
    ) -> Result<(StaticPermit, Buffers), Failure> {
        self.check_writable()?;
        let (n_rows, row_bytes) = (push.n_rows as usize, self.tensor(push.tensor)?.row_bytes);
        if n_rows == 0 {
            return Err(failure(FailureCode::Invalid, "a piece of a put has no rows"));
        }
        if n_rows > ROWS_PER_PUSH_MAX {
            let message = format!("{n_rows} rows in one push, the limit is {ROWS_PER_PUSH_MAX}");
            return Err(failure(FailureCode::TooLarge, message));
        }
        let expected = n_rows * (size_of::<NodeId>() + row_bytes);
        if body_bytes != expected {
            let message = format!(
                "{n_rows} ids and rows of {row_bytes} bytes take {expected} bytes, the body has \
                 {body_bytes}"
            );
            return Err(failure(FailureCode::Invalid, message));
        }
        let n_bytes = PUT_COPIES * body_bytes + PUT_BYTES_PER_ROW * n_rows;
        Ok((self.take_room(PullKind::Vector, n_bytes)?, self.buffers.lend(n_bytes)))
    }

    /// Stages a piece of a put. With the last piece, writes all rows as pending rows. Returns the
    /// version that will include them, or 0 after any other piece.
    pub(crate) async fn push(
        self: &Rc<Self>,
        push: Push,
        buffers: Buffers,
        room: StaticPermit,
    ) -> Result<u32, Failure> {
        let shard = Rc::clone(self);
        to_its_end(async move {
            // Held until the rows are written, even if the client no longer waits.
            let _room = room;
            shard.push_all(push, buffers).await
        })
        .await
    }

    /// Runs a step of the commit of `version`, unless the version is committed already. The first
    /// step returns the newest version that rows were put for before it, and the label that this
    /// server fixed for the commit. The second returns the newest version and the label of its
    /// commit. Runs to completion even if the client no longer waits.
    pub(crate) async fn commit(
        self: &Rc<Self>,
        version: u32,
        step: CommitStep,
        label: u128,
    ) -> Result<(u32, u128), Failure> {
        let shard = Rc::clone(self);
        to_its_end(async move { shard.commit_now(version, step, label).await }).await
    }

    /// Makes the version durable, then switches every shard to it, so that a pull that begins after
    /// the reply reads it.
    async fn commit_now(
        self: &Rc<Self>,
        version: u32,
        step: CommitStep,
        label: u128,
    ) -> Result<(u32, u128), Failure> {
        self.check_writable()?;
        let partitions = Arc::clone(&self.plan.partitions);
        let newest = partitions.live.version();
        if version > newest.saturating_add(COMMIT_AHEAD_MAX) {
            let message = format!(
                "version {version} is too far ahead of the committed version {newest}; ask \
                 `describe` and commit the one after"
            );
            return Err(failure(FailureCode::Invalid, message));
        }
        let runs = Arc::clone(&self.plan.runs);
        let asked = VersionId::new(version, CommitId::from_bytes(label.to_be_bytes()));
        let commit = move || {
            partitions.keep_newest();
            if step == CommitStep::Prepare {
                // Read first: later puts of other clients go into the version after.
                let pending = partitions.live.pending_version();
                let fixed = partitions.live.prepare(asked)?;
                return Ok(VersionId::new(pending.max(version), fixed));
            }
            let committed = partitions.live.commit_through(asked)?;
            if partitions.live.pays_to_fold() {
                runs.ask(Folding::WherePays);
            }
            Ok(committed)
        };
        let committed = self.plan.threads.writes.call(commit)?.await?;
        // A failed commit may have published on some partitions.
        let refreshed = self.refresh_everywhere(None).await;
        let committed = committed.map_err(store_failure)?;
        refreshed.map_err(|reason| {
            let message = format!(
                "the commit is durable, but a shard still serves the previous version ({reason}); \
                 ask again"
            );
            failure(FailureCode::Overloaded, message)
        })?;
        let label = u128::from_be_bytes(committed.commit.to_bytes());
        Ok((committed.number, label))
    }

    /// Switches all shards to the newest version of a partition, or of all. If a shard cannot open
    /// a partition's version, that partition stays at its previous version and the others switch. A
    /// failed switch is retried in the background.
    pub(super) async fn refresh_everywhere(
        self: &Rc<Self>,
        part: Option<PartId>,
    ) -> Result<(), Failure> {
        let refreshed = self.refresh_once(part).await;
        if let Err(reason) = &refreshed {
            warn!(shard = self.id, %reason, "shard still serves the previous version");
            self.refresh_later();
        }
        refreshed
    }

    /// Retries the switch of all shards in the background until it succeeds.
    fn refresh_later(self: &Rc<Self>) {
        if self.is_refreshing.replace(true) {
            return;
        }
        // Weak: the shard may end during the pause.
        let shard = Rc::downgrade(self);
        self.spawn_guarded("a switch to a version", async move {
            loop {
                glommio::timer::sleep(SWITCH_PAUSE).await;
                let Some(shard) = shard.upgrade().filter(|shard| !shard.is_ending()) else {
                    return;
                };
                // The first failure was logged; retries are not.
                drop(shard.refresh_once(None).await);
                if !shard.plan.partitions.is_behind() {
                    return shard.is_refreshing.set(false);
                }
            }
        });
    }

    async fn refresh_once(&self, part: Option<PartId>) -> Result<(), Failure> {
        let partitions = &self.plan.partitions;
        let mut seen = partitions.seen(part);
        let failed = Arc::new(Mutex::new(Vec::new()));
        let refresh = Refresh { part, failed: Arc::clone(&failed) };
        self.everywhere(|| ShardRequest::Refresh(refresh.clone())).await?;
        let failed = std::mem::take(&mut *failed.lock().ignore_poison());
        seen.retain(|(part, _)| failed.iter().all(|(other, _)| other != part));
        partitions.note_served(seen);
        failed.into_iter().next().map_or(Ok(()), |(_, refusal)| Err(refusal))
    }

    /// Switches this shard's tiers to the newest version of a partition, or of all open ones. That
    /// includes a partition that is open but not served yet. Returns the partitions that stay at
    /// their previous version.
    pub(super) async fn refresh(&self, part: Option<PartId>) -> Vec<(PartId, Failure)> {
        let (partitions, mut failed) = (&self.plan.partitions, Vec::new());
        for (part, _) in partitions.committed(part) {
            for tensor in &self.tensors {
                if let Err(refusal) = tensor.refresh(partitions, part).await {
                    failed.push((part, refusal));
                }
            }
        }
        failed
    }

    /// Requests a compaction, or joins one that has not started; returns its number.
    pub(crate) fn compact(&self) -> Result<u64, Failure> {
        self.check_writable()?;
        Ok(self.plan.runs.ask(Folding::All))
    }

    /// Stages a piece, or writes all pieces: durable then, but not visible before a commit.
    async fn push_all(&self, push: Push, mut buffers: Buffers) -> Result<u32, Failure> {
        let part = self.check_one_part(&buffers.ids)?;
        let key = PutKey { id: push.put, part };
        let puts = &self.plan.partitions.puts;
        let n_rows = buffers.ids.len();
        let next = puts.take(key, &push, &mut buffers, Instant::now());
        self.take_back(buffers);
        let version = match next? {
            Next::Wait => 0,
            Next::Finished(version) => return Ok(version),
            Next::Put(rows) => self.put_whole(key, push.tensor, rows).await?,
        };
        count(&self.counters().pushes, 1);
        count(&self.counters().pushed_rows, n_rows);
        Ok(version)
    }

    /// Writes all rows of a put at once.
    async fn put_whole(&self, key: PutKey, tensor: u16, rows: Buffers) -> Result<u32, Failure> {
        let puts = &self.plan.partitions.puts;
        let place = match self.plan.threads.writes.place() {
            Ok(place) => place,
            Err(refusal) => {
                puts.fail(key, Some(rows));
                return Err(refusal);
            }
        };
        let partitions = Arc::clone(&self.plan.partitions);
        let put = move || {
            let name = &partitions.tensors[usize::from(tensor)].description.name;
            // A put whose reply was lost when the server restarted is not written twice.
            let put = partitions.live.put_rows_once(key.id, name, &rows.ids, &rows.frame);
            (put, rows)
        };
        let called = match place.call(put) {
            Ok(call) => call.await,
            Err(refusal) => Err(refusal),
        };
        let (put, rows) = called.inspect_err(|_| puts.fail(key, None))?;
        let version = match put {
            Ok(version) => version,
            Err(error) => {
                let refusal = store_failure(error);
                let is_busy = refusal.code == FailureCode::Overloaded;
                puts.fail(key, is_busy.then_some(rows));
                return Err(refusal);
            }
        };
        puts.finish(key, version);
        self.take_back(rows);
        Ok(version)
    }

    /// Returns the partition of all ids; fails unless it is one partition, and served here. A put
    /// is atomic within a partition.
    fn check_one_part(&self, ids: &[NodeId]) -> Result<PartId, Failure> {
        let partitions = &*self.plan.partitions;
        let first = *ids.first().expect("a piece has rows");
        let part = partitions.book.part_of(first).filter(|part| partitions.parts().contains(part));
        let part = part.ok_or_else(|| wrong_server(partitions, first))?;
        let range = partitions.book.range(part);
        match ids.iter().find(|id| !range.contains(&id.0)) {
            None => Ok(part),
            Some(&id) if partitions.book.part_of(id).is_none() => Err(wrong_server(partitions, id)),
            Some(id) => {
                let message = format!(
                    "node {id} is not in partition {part} as node {first} is; a push holds rows of \
                     one partition"
                );
                Err(failure(FailureCode::Invalid, message))
            }
        }
    }

    pub(super) fn check_writable(&self) -> Result<(), Failure> {
        if self.plan.partitions.writable {
            return Ok(());
        }
        if let Some(writers) = &self.plan.partitions.follows {
            let message = format!("this server follows {writers}, which takes puts and commits");
            return Err(failure(FailureCode::ReadOnly, message));
        }
        let message = "the server is read-only; start it writable, or write to one that is";
        Err(failure(FailureCode::ReadOnly, message))
    }
}

#[cfg(test)]
mod tests;
