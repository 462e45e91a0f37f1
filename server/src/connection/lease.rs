//! Rows leased to a client of the same machine. The client maps the shard's tier for reading,
//! receives slot numbers, and copies the rows itself. No row is copied twice, and the shard serves
//! the next request meanwhile.
//!
//! While a lease lasts, no slot is reassigned (`lodestore_cache::Directory::lease`). The lease ends
//! when the client acknowledges the rows, sends another request, or disconnects. A silent client is
//! disconnected after twice the time for which a client trusts the rows that it copied.

use std::os::fd::AsFd;
use std::rc::Rc;

use lodestore_graph::NodeId;
use lodestore_schema::limits::{LENT_CHUNK_ROWS, LENT_FOR, LENT_PULL_BYTES_MIN};
use lodestore_schema::{Failure, FailureCode, Reply, Versions};

use super::{Connection, PendingPull, RequestError};
use crate::buffers::{HEAD_ROOM, body_room, to_u32};
use crate::cut::Cut;
use crate::deadline::with_deadline;
use crate::error::failure;
use crate::limits::WRITE_TIMEOUT;
use crate::shard::Shard;
use crate::stats::count;

const _: () = assert!(WRITE_TIMEOUT.as_secs() >= 2 * LENT_FOR.as_secs());

/// A lease on the rows of a tensor for a client.
pub(super) struct SlotLease {
    shard: Rc<Shard>,
    tensor: u16,
}

impl SlotLease {
    fn new(shard: &Rc<Shard>, tensor: u16) -> Result<Self, Failure> {
        shard.tensor(tensor)?.lease();
        Ok(Self { shard: Rc::clone(shard), tensor })
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        // At a stop the client can no longer acknowledge the rows, and may still be copying them.
        if !self.shard.is_ending()
            && let Ok(rows) = self.shard.tensor(self.tensor)
        {
            rows.end_lease();
        }
    }
}

impl Connection {
    /// Replies to a request for the memory of a tier.
    pub(super) async fn lease_memory(
        &mut self,
        shard: &Shard,
        tensor: u16,
    ) -> Result<(), RequestError> {
        let refuse = |message: &str| Err(failure(FailureCode::Invalid, message).into());
        let Some(shared) = &self.shared else {
            return refuse("leases need shared memory; request that first");
        };
        if shared.leased.contains(&tensor) {
            return refuse("this connection already maps the memory of this tensor");
        }
        // A tier without a file: rows are sent as to other clients.
        let Some((file, offset, n_bytes)) = shard.tensor(tensor)?.tier_file() else {
            return Ok(self.reply(&Reply::Lent { n_bytes: 0, offset: 0 }).await?);
        };
        self.send_memory(&Reply::Lent { n_bytes, offset }, file.as_fd())?;
        if let Some(shared) = &mut self.shared {
            shared.leased.push(tensor);
        }
        Ok(())
    }

    /// Sends the client the slots of rows, chunk after chunk, until the first chunk with a row that
    /// is not in memory. Returns the number of rows whose slots were sent.
    pub(super) async fn lease_rows(
        &mut self,
        shard: &Rc<Shard>,
        &PendingPull { tensor, sent, deadline, .. }: &PendingPull,
        cut: &Cut,
        ids: &[NodeId],
        frame: &mut Vec<u8>,
    ) -> Result<usize, RequestError> {
        let rows = shard.tensor(tensor)?;
        let row_bytes = rows.row_bytes;
        let may = |shared: &super::Shared| shared.n_untaken == 0 && shared.leased.contains(&tensor);
        if ids.len() * row_bytes < LENT_PULL_BYTES_MIN || !self.shared.as_ref().is_some_and(may) {
            return Ok(0);
        }
        let lease = SlotLease::new(shard, tensor)?;
        let mut n_told = 0;
        // The client also needs time to copy, before the lease is no longer trusted.
        for chunk in ids.chunks(LENT_CHUNK_ROWS).take_while(|_| sent.elapsed() < LENT_FOR / 2) {
            self.check_present(shard)?;
            let slots = body_room(frame, size_of_val(chunk));
            let find = async {
                // No await in between, so the rows in memory are of the version that the pull
                // reads.
                if rows.is_at(cut) { rows.slots_of(&shard.plan, chunk, slots) } else { Ok(false) }
            };
            if !with_deadline(deadline, find).await? {
                break;
            }
            let is_last = n_told + chunk.len() == ids.len();
            let versions = match is_last {
                true => cut.versions(&shard.plan.partitions.book, ids),
                false => Versions::default(),
            };
            let (first_row, n_rows) = (to_u32(n_told), to_u32(chunk.len()));
            let reply = Reply::LentRows { first_row, n_rows, versions };
            self.write_chunk(&reply, &mut frame[..HEAD_ROOM + size_of_val(chunk)]).await?;
            count(&shard.counters().shared_bytes, chunk.len() * row_bytes);
            count(&shard.counters().rows, chunk.len());
            count(shard.counters().tensor_rows.at(usize::from(tensor)), chunk.len());
            count(&shard.counters().bytes, chunk.len() * row_bytes);
            n_told += chunk.len();
            glommio::yield_if_needed().await;
        }
        if n_told > 0 {
            self.lease = Some(lease);
        }
        Ok(n_told)
    }
}
