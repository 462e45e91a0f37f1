//! Pushes, commits and compactions at a shard.

use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use futures_lite::FutureExt;
use futures_util::future::join_all;
use glommio::sync::StaticPermit;
use lodestore_graph::{NodeId, PartId};
use lodestore_schema::limits::{COMMIT_AHEAD_MAX, ROWS_PER_PUSH_MAX};
use lodestore_schema::{CommitStep, Failure, FailureCode, Push};

use super::Shard;
use crate::compactor::{Scope, pays};
use crate::connection::Buffers;
use crate::error::{failure, store_failure};
use crate::limits::{PUT_BYTES_PER_ROW, PUT_COPIES};
use crate::post::Question;
use crate::puts::{Next, PutKey, PutRows};
use crate::rows::not_here;
use crate::stats::count;

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
        Ok((self.take_room(n_bytes)?, self.buffers.lend(n_bytes)))
    }

    /// Keeps a piece of a put, or puts all of them with the last; returns the version that they are for,
    /// or 0 after a piece that is not the last.
    ///
    /// Runs to its end whether or not somebody waits for it: a row that is durable must leave the
    /// tiers.
    pub(crate) async fn push(
        self: &Rc<Self>,
        push: Push,
        buffers: Buffers,
        room: StaticPermit,
    ) -> Result<u32, Failure> {
        let shard = Rc::clone(self);
        let task = async move {
            let _room = room;
            // One panicking task would stop the whole executor.
            let pushed = AssertUnwindSafe(shard.push_all(push, buffers)).catch_unwind().await;
            pushed.unwrap_or_else(|_| Err(failure(FailureCode::Internal, "a push panicked")))
        };
        let pushed = glommio::spawn_local(task).detach().await;
        pushed.unwrap_or_else(|| Err(failure(FailureCode::Stopping, "the shard has stopped")))
    }

    /// Takes a step of making what was put version `version`, unless it is committed already; returns
    /// the newest.
    pub(crate) async fn commit(&self, version: u32, step: CommitStep) -> Result<u32, Failure> {
        self.check_writable()?;
        let holdings = Arc::clone(&self.plan.holdings);
        let newest = holdings.live.version();
        if version > newest.saturating_add(COMMIT_AHEAD_MAX) {
            let message = format!(
                "version {version} is too far ahead of the committed version {newest}; ask \
                 `describe` and commit the one after"
            );
            return Err(failure(FailureCode::Invalid, message));
        }
        let runs = Arc::clone(&self.plan.runs);
        let commit = move || {
            if step == CommitStep::Prepare {
                return Ok(holdings.live.version());
            }
            let committed = holdings.live.commit_through(version)?;
            if holdings.live_tensors().any(|(_, _, tensor)| pays(&tensor)) {
                runs.ask(Scope::WhereItPays);
            }
            Ok(committed)
        };
        let committed = self.plan.threads.writes.call(commit)?.wait().await?;
        committed.map_err(|error| store_failure(&error))
    }

    /// Starts a compaction, or joins one that waits to start; gives its number.
    pub(crate) fn compact(&self) -> Result<u64, Failure> {
        self.check_writable()?;
        Ok(self.plan.runs.ask(Scope::Everything))
    }

    /// Takes rows of this shard out of its tier for another shard.
    pub(super) fn forget_asked(&self, tensor: u16, ids: &[NodeId]) -> Result<(), Failure> {
        self.tensors[usize::from(tensor)].forget(&self.plan.holdings, ids)
    }

    /// Durable first, then out of every tier: the order that a pull after the answer relies on.
    async fn push_all(&self, push: Push, buffers: Buffers) -> Result<u32, Failure> {
        let part = self.check_one_part(&buffers.ids)?;
        let key = PutKey { id: push.put, part };
        let puts = &self.plan.holdings.puts;
        let Buffers { ids, frame: bytes } = buffers;
        let (n_rows, mut piece) = (ids.len(), PutRows { ids, bytes });
        let next = puts.take(key, &push, &mut piece, Instant::now());
        self.take_back(Buffers { ids: piece.ids, frame: piece.bytes });
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
    async fn put_whole(&self, key: PutKey, tensor: u16, rows: PutRows) -> Result<u32, Failure> {
        let holdings = Arc::clone(&self.plan.holdings);
        let put = move || {
            let name = &holdings.tensors[usize::from(tensor)].description.name;
            let put = holdings.live.put_rows(name, &rows.ids, &rows.bytes);
            (put, rows)
        };
        let puts = &self.plan.holdings.puts;
        let called = match self.plan.threads.writes.call(put) {
            Ok(call) => call.wait().await,
            Err(refusal) => Err(refusal),
        };
        let (put, rows) = called.inspect_err(|_| puts.fail(key, None))?;
        let version = match put {
            Ok(version) => version,
            Err(error) => {
                let refusal = store_failure(&error);
                let is_busy = refusal.code == FailureCode::Overloaded;
                puts.fail(key, is_busy.then_some(rows));
                return Err(refusal);
            }
        };
        self.forget(tensor, &rows.ids).await.inspect_err(|_| puts.fail(key, None))?;
        puts.finish(key, version);
        self.take_back(Buffers { ids: rows.ids, frame: rows.bytes });
        Ok(version)
    }

    /// Has the owners of rows that have changed take them out of their tiers.
    async fn forget(&self, tensor: u16, ids: &[NodeId]) -> Result<(), Failure> {
        if self.plan.counters.len() == 1 {
            return self.forget_asked(tensor, ids);
        }
        let shares = self.split(tensor, ids)?.into_iter().enumerate();
        let shares = shares.filter(|(_, (ids, _))| !ids.is_empty());
        let forget = shares.map(|(owner, (ids, _))| async move {
            if owner == self.id {
                return self.forget_asked(tensor, &ids);
            }
            self.post.ask(owner, Question::Forget, tensor, ids).await.map(drop)
        });
        // All of them, whatever becomes of one: the rows have changed.
        join_all(forget).await.into_iter().collect()
    }

    /// Fails unless all ids are of one partition, and that is here: what is put all or not at all.
    fn check_one_part(&self, ids: &[NodeId]) -> Result<PartId, Failure> {
        let holdings = &*self.plan.holdings;
        let first = *ids.first().expect("a piece has rows");
        let part = holdings.book.part_of(first).filter(|part| holdings.parts().contains(part));
        let part = part.ok_or_else(|| not_here(holdings, first))?;
        let range = holdings.book.range(part);
        match ids.iter().find(|id| !range.contains(&id.0)) {
            None => Ok(part),
            Some(&id) if holdings.book.part_of(id).is_none() => Err(not_here(holdings, id)),
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
        if self.plan.holdings.writable {
            return Ok(());
        }
        let message = "the server was started without --writable and takes no updates; start it \
                       with --writable, or write to another that was";
        Err(failure(FailureCode::ReadOnly, message))
    }
}
