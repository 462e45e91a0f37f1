//! A pull at a shard: admission, then rows from here and from the other owners.

use std::panic::AssertUnwindSafe;

use futures_lite::FutureExt;
use futures_util::future::join_all;
use glommio::sync::StaticPermit;
use lodestore_graph::NodeId;
use lodestore_schema::limits::CHUNK_BYTES;
use lodestore_schema::{Failure, FailureCode};

use super::Shard;
use crate::error::failure;
use crate::rows::not_here;
use crate::stats::count;

impl Shard {
    /// Bytes of a row of a tensor that [`Self::admit_pull`] has let through.
    pub(crate) fn row_bytes(&self, tensor: u16) -> usize {
        self.tensors[usize::from(tensor)].row_bytes
    }

    /// Checks a pull before its ids are read, and takes room for it until the permit is dropped.
    pub(crate) fn admit_pull(
        &self,
        tensor: u16,
        body_bytes: usize,
    ) -> Result<StaticPermit, Failure> {
        let Some(rows) = self.tensors.get(usize::from(tensor)) else {
            let message = format!("there is no tensor {tensor}, only 0 to {}", self.tensors.len());
            return Err(failure(FailureCode::NotFound, message));
        };
        if !body_bytes.is_multiple_of(size_of::<NodeId>()) {
            let message = format!("node ids take 4 bytes each, the body has {body_bytes} bytes");
            return Err(failure(FailureCode::Invalid, message));
        }
        // Ids, a chunk of the answer, and the same again for keys and positions.
        self.take_room(4 * body_bytes + CHUNK_BYTES.max(rows.row_bytes))
    }

    /// Rows of any shard: straight from here if all are ours, else split by owner and merged.
    pub(crate) async fn gather(
        &self,
        tensor: u16,
        ids: &[NodeId],
        out: &mut [u8],
    ) -> Result<(), Failure> {
        let holdings = &*self.plan.holdings;
        let rows = &self.tensors[usize::from(tensor)];
        if self.plan.counters.len() == 1 || self.owns_all(tensor, ids)? {
            return rows.gather(holdings, ids, out, self.counters()).await;
        }
        let mut by_shard = vec![(Vec::new(), Vec::new()); self.plan.counters.len()];
        for (position, &id) in ids.iter().enumerate() {
            let (shard_ids, positions) = &mut by_shard[self.owner(tensor, id)?];
            shard_ids.push(id);
            positions.push(position);
        }
        let asks = by_shard.into_iter().enumerate().filter(|(_, (ids, _))| !ids.is_empty()).map(
            |(owner, (ids, positions))| async move {
                let rows = if owner == self.id {
                    self.gather_owned(tensor, &ids).await
                } else {
                    count(&self.counters().forwarded_rows, ids.len());
                    self.post.ask(owner, tensor, ids).await
                };
                rows.map(|rows| (rows, positions))
            },
        );
        let row_bytes = rows.row_bytes;
        for answer in join_all(asks).await {
            let (rows, positions) = answer?;
            for (row, position) in rows.chunks_exact(row_bytes).zip(positions) {
                out[position * row_bytes..][..row_bytes].copy_from_slice(row);
            }
        }
        Ok(())
    }

    /// Rows of this shard for another, within this shard's own room.
    pub(super) async fn gather_asked(
        &self,
        tensor: u16,
        ids: &[NodeId],
    ) -> Result<Vec<u8>, Failure> {
        let n_bytes = size_of_val(ids) * 4 + ids.len() * self.row_bytes(tensor);
        let _room = self.take_room(n_bytes)?;
        // One panicking task would stop the whole executor.
        let gathered = AssertUnwindSafe(self.gather_owned(tensor, ids)).catch_unwind().await;
        gathered.unwrap_or_else(|_| Err(failure(FailureCode::Internal, "a gather panicked")))
    }

    /// Takes room for `n_bytes` until the permit is dropped.
    fn take_room(&self, n_bytes: usize) -> Result<StaticPermit, Failure> {
        self.room.try_acquire_static_permit(n_bytes as u64).map_err(|_| {
            let message = format!("shard {} has no room for {n_bytes} more bytes", self.id);
            failure(FailureCode::Overloaded, message)
        })
    }

    /// Rows of this shard in a buffer of their own.
    async fn gather_owned(&self, tensor: u16, ids: &[NodeId]) -> Result<Vec<u8>, Failure> {
        let rows = &self.tensors[usize::from(tensor)];
        let mut out = vec![0; ids.len() * rows.row_bytes];
        rows.gather(&self.plan.holdings, ids, &mut out, self.counters()).await?;
        Ok(out)
    }

    fn owns_all(&self, tensor: u16, ids: &[NodeId]) -> Result<bool, Failure> {
        for &id in ids {
            if self.owner(tensor, id)? != self.id {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn owner(&self, tensor: u16, id: NodeId) -> Result<usize, Failure> {
        let holdings = &*self.plan.holdings;
        let (part, row) = holdings.locate(id).ok_or_else(|| not_here(holdings, id))?;
        Ok(holdings.tensors[usize::from(tensor)].stripes.shard_of(part.0, row).into())
    }
}
