//! Pushes, commits and compactions at a shard.

use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;

use futures_lite::FutureExt;
use futures_util::future::join_all;
use glommio::sync::StaticPermit;
use lodestore_graph::NodeId;
use lodestore_schema::limits::{COMMIT_AHEAD_MAX, ROWS_PER_PUSH_MAX};
use lodestore_schema::{Failure, FailureCode};
use lodestore_store::Holders;

use super::Shard;
use crate::compactor::{Scope, pays};
use crate::connection::Buffers;
use crate::error::{failure, store_failure};
use crate::limits::{PUT_BYTES_PER_ROW, PUT_COPIES};
use crate::post::Question;
use crate::rows::not_here;
use crate::stats::count;

impl Shard {
    /// Checks a push before its body is read, and takes room for it until the permit is dropped;
    /// lends buffers within that.
    pub(crate) fn admit_push(
        &self,
        tensor: u16,
        n_rows: u32,
        body_bytes: usize,
    ) -> Result<(StaticPermit, Buffers), Failure> {
        self.check_writable()?;
        let (n_rows, row_bytes) = (n_rows as usize, self.tensor(tensor)?.row_bytes);
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

    /// Puts the rows of a push, which go to all holders by a `change`; gives the version that they are for.
    ///
    /// Runs to its end whether or not somebody waits for it: a row that is durable must leave the
    /// tiers.
    pub(crate) async fn push(
        self: &Rc<Self>,
        (tensor, change): (u16, u64),
        buffers: Buffers,
        room: StaticPermit,
    ) -> Result<u32, Failure> {
        let shard = Rc::clone(self);
        let task = async move {
            let _room = room;
            // One panicking task would stop the whole executor.
            let pushed =
                AssertUnwindSafe(shard.push_all((tensor, change), buffers)).catch_unwind().await;
            pushed.unwrap_or_else(|_| Err(failure(FailureCode::Internal, "a push panicked")))
        };
        let pushed = glommio::spawn_local(task).detach().await;
        pushed.unwrap_or_else(|| Err(failure(FailureCode::Stopping, "the shard has stopped")))
    }

    /// Makes what was put version `version`, unless it is committed already; gives the newest.
    pub(crate) async fn commit(&self, version: u32) -> Result<u32, Failure> {
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
    async fn push_all(
        &self,
        (tensor, change): (u16, u64),
        buffers: Buffers,
    ) -> Result<u32, Failure> {
        self.check_one_part(&buffers.ids)?;
        let holdings = Arc::clone(&self.plan.holdings);
        let put = move || {
            let name = &holdings.tensors[usize::from(tensor)].description.name;
            let holders = Holders::Change(change);
            let put = holdings.live.put_rows_for(holders, name, &buffers.ids, &buffers.frame);
            (put, buffers)
        };
        let (put, buffers) = self.plan.threads.writes.call(put)?.wait().await?;
        let version = put.map_err(|error| store_failure(&error))?;
        self.forget(tensor, &buffers.ids).await?;
        count(&self.counters().pushes, 1);
        count(&self.counters().pushed_rows, buffers.ids.len());
        self.take_back(buffers);
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
    fn check_one_part(&self, ids: &[NodeId]) -> Result<(), Failure> {
        let holdings = &*self.plan.holdings;
        let Some(&first) = ids.first() else { return Ok(()) };
        let part = holdings.book.part_of(first).filter(|part| holdings.parts().contains(part));
        let part = part.ok_or_else(|| not_here(holdings, first))?;
        let range = holdings.book.range(part);
        match ids.iter().find(|id| !range.contains(&id.0)) {
            None => Ok(()),
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
