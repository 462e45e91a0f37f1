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

/// Pause before a switch that has failed is tried again.
pub(super) const SWITCH_PAUSE: Duration = Duration::from_millis(100);

impl Shard {
    /// Checks a push before its body is read, and takes room for it until the permit is dropped;
    /// lends buffers within that.
    pub(crate) fn admit_push(
        &self,
        push: &Push,
        body_bytes: usize,
    ) -> Result<(StaticPermit, Buffers), Failure> {
        self.check_writable()?;
        let (n_rows, row_bytes) = (push.n_rows as usize, self.tensor(push.tensor)?.row_bytes);
        if n_rows == 0 {
            return Err(failure(FailureCode::Invalid, "a piece of a put without rows"));
        }
        if n_rows > ROWS_PER_PUSH_MAX {
            let message = format!("{n_rows} rows in one push; send {ROWS_PER_PUSH_MAX} at most");
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

    /// Keeps a piece of a put; with the last piece, puts all of them. Returns the version that they
    /// are for, or 0 after a piece that is not the last.
    pub(crate) async fn push(
        self: &Rc<Self>,
        push: Push,
        buffers: Buffers,
        room: StaticPermit,
    ) -> Result<u32, Failure> {
        let shard = Rc::clone(self);
        to_its_end(async move {
            // Until the rows are written, whether or not the client waits for that.
            let _room = room;
            shard.push_all(push, buffers).await
        })
        .await
    }

    /// Takes a step of the commit of version `version`, unless it is committed already. Returns the
    /// newest version, or after the first step the newest that rows were put for before, and the
    /// label of the commit: after the first step that which this server has fixed. It runs to its
    /// end whether or not the client waits for it.
    pub(crate) async fn commit(
        self: &Rc<Self>,
        version: u32,
        step: CommitStep,
        label: u128,
    ) -> Result<(u32, u128), Failure> {
        let shard = Rc::clone(self);
        to_its_end(async move { shard.commit_now(version, step, label).await }).await
    }

    /// Makes the version durable, then has every shard read it: a pull that begins after the answer
    /// sees it.
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
                // First: puts of other clients continue, for the version after.
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
        // What has failed may have reached some partitions.
        let refreshed = self.refresh_everywhere(None).await;
        let committed = committed.map_err(store_failure)?;
        refreshed.map_err(|reason| {
            let message = format!(
                "the commit is durable, and a shard reads the version before ({reason}); ask again"
            );
            failure(FailureCode::Overloaded, message)
        })?;
        let label = u128::from_be_bytes(committed.commit.to_bytes());
        Ok((committed.number, label))
    }

    /// Has all pulls read the newest version of a partition, or of all, from now on. A partition
    /// whose version a shard cannot open is read at the version before; others are not kept from
    /// theirs. After a failure that is tried again in the background.
    pub(super) async fn refresh_everywhere(
        self: &Rc<Self>,
        part: Option<PartId>,
    ) -> Result<(), Failure> {
        let refreshed = self.refresh_once(part).await;
        if let Err(reason) = &refreshed {
            warn!(shard = self.id, %reason, "a shard reads the version before");
            self.refresh_later();
        }
        refreshed
    }

    /// Has all shards read what is committed as soon as they can.
    fn refresh_later(self: &Rc<Self>) {
        if self.is_refreshing.replace(true) {
            return;
        }
        // Weak: the shard may end meanwhile.
        let shard = Rc::downgrade(self);
        self.spawn_guarded("a switch to a version", async move {
            loop {
                glommio::timer::sleep(SWITCH_PAUSE).await;
                let Some(shard) = shard.upgrade().filter(|shard| !shard.is_ending()) else {
                    return;
                };
                // The reason was reported.
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

    /// Has this shard keep the newest version of a partition, or of all that are open, in its
    /// tiers. A partition that comes back takes commits before it is served. Returns the partitions
    /// whose version before is still kept.
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

    /// Starts a compaction, or joins one that waits to start; returns its number.
    pub(crate) fn compact(&self) -> Result<u64, Failure> {
        self.check_writable()?;
        Ok(self.plan.runs.ask(Folding::All))
    }

    /// Keeps a piece, or puts all of them: durable then, and seen by no pull until a commit.
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

    /// Puts all rows of a put by one write.
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
            // A put whose answer was lost with an earlier server is not done again.
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

    /// Fails unless all ids are of one partition, and that is here: what is put all or not at all.
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
        let message = "the server takes no updates; start it writable, or write to one that is";
        Err(failure(FailureCode::ReadOnly, message))
    }
}

#[cfg(test)]
mod tests;
