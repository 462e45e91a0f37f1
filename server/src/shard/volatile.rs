//! Volatile rows at a shard: memory that a request may use, and the limit on waiting pulls.

use std::cell::Cell;
use std::sync::Arc;

use glommio::sync::StaticPermit;
use lodestore_cache::volatile::VolatilePlace;
use lodestore_cache::volatile_store::VolatileTensor;
use lodestore_graph::NodeId;
use lodestore_schema::limits::{CHUNK_BYTES, CLAIM_RANGES_MAX, ROWS_PER_PUBLISH_MAX};
use lodestore_schema::request::{Publish, PullKind, PullVolatile};
use lodestore_schema::{Failure, FailureCode};

use super::Shard;
use super::gather::check_ids;
use crate::buffers::{Buffers, HEAD_ROOM};
use crate::error::failure;
use crate::limits::{WAITING_BYTES_PER_SHARD, WAITING_PULLS_PER_SHARD_MAX};

/// Bytes of a claimed range in a request: its first id and its end.
const RANGE_BYTES: usize = 2 * size_of::<u32>();

/// Pulls that wait for stamps.
#[derive(Default)]
pub(super) struct PullBacklog {
    n_pulls: Cell<usize>,
    n_bytes: Cell<usize>,
}

/// A waiting pull; leaves the backlog when it is dropped.
pub(crate) struct WaitingPull<'a> {
    of: &'a PullBacklog,
    n_bytes: usize,
}

impl PullBacklog {
    fn enter(&self, n_bytes: usize) -> Option<WaitingPull<'_>> {
        let (pulls, bytes) = (self.n_pulls.get() + 1, self.n_bytes.get() + n_bytes);
        // A single pull may exceed the limit on bytes.
        if pulls > WAITING_PULLS_PER_SHARD_MAX || (pulls > 1 && bytes > WAITING_BYTES_PER_SHARD) {
            return None;
        }
        self.n_pulls.set(pulls);
        self.n_bytes.set(bytes);
        Some(WaitingPull { of: self, n_bytes })
    }

    /// Returns the number of waiting pulls.
    pub(super) fn n_pulls(&self) -> usize {
        self.n_pulls.get()
    }
}

impl Drop for WaitingPull<'_> {
    fn drop(&mut self) {
        self.of.n_pulls.set(self.of.n_pulls.get() - 1);
        self.of.n_bytes.set(self.of.n_bytes.get() - self.n_bytes);
    }
}

impl Shard {
    /// Checks a claim before its body is read. Reserves memory until the permit is dropped.
    pub(crate) fn admit_claim(
        &self,
        name: &str,
        body_bytes: usize,
    ) -> Result<(Arc<VolatileTensor>, StaticPermit), Failure> {
        self.plan.volatile.check_writable()?;
        let tensor = self.plan.volatile.get(name)?;
        if body_bytes == 0 || !body_bytes.is_multiple_of(RANGE_BYTES) {
            let message =
                format!("ranges of ids take {RANGE_BYTES} bytes each, the body has {body_bytes}");
            return Err(failure(FailureCode::Invalid, message));
        }
        if body_bytes > CLAIM_RANGES_MAX * RANGE_BYTES {
            let n_ranges = body_bytes / RANGE_BYTES;
            let message =
                format!("{n_ranges} ranges in one claim, the limit is {CLAIM_RANGES_MAX}");
            return Err(failure(FailureCode::TooLarge, message));
        }
        Ok((tensor, self.take_room(PullKind::Vector, 4 * body_bytes)?))
    }

    /// Checks a publication before its body is read. Reserves memory until the permit is dropped,
    /// and lends buffers within that.
    pub(crate) fn admit_publish(
        &self,
        publish: &Publish,
        body_bytes: usize,
    ) -> Result<(Arc<VolatileTensor>, StaticPermit, Buffers), Failure> {
        self.plan.volatile.check_writable()?;
        let tensor = self.plan.volatile.get(publish.name.as_str())?;
        let (n_rows, row_bytes) = (publish.n_rows as usize, tensor.shape().row_bytes);
        if n_rows > ROWS_PER_PUBLISH_MAX {
            let message =
                format!("{n_rows} rows in one publication, the limit is {ROWS_PER_PUBLISH_MAX}");
            return Err(failure(FailureCode::TooLarge, message));
        }
        let expected = n_rows * (size_of::<NodeId>() + row_bytes);
        if n_rows == 0 || body_bytes != expected {
            let message = format!(
                "{n_rows} ids and rows of `{}` of {row_bytes} bytes take {expected} bytes, the \
                 body has {body_bytes}; publish at least one row, of the declared width",
                publish.name
            );
            return Err(failure(FailureCode::Invalid, message));
        }
        let n_bytes = n_rows * size_of::<NodeId>() + CHUNK_BYTES.max(row_bytes);
        let room =
            self.take_room(PullKind::Vector, n_bytes + n_rows * size_of::<VolatilePlace>())?;
        Ok((tensor, room, self.buffers.lend(n_bytes)))
    }

    /// Checks a pull of volatile rows before its ids are read. Reserves memory until the permit is
    /// dropped, and lends buffers within that.
    pub(crate) fn admit_volatile_pull(
        &self,
        pull: &PullVolatile,
        body_bytes: usize,
    ) -> Result<(Arc<VolatileTensor>, StaticPermit, Buffers), Failure> {
        let tensor = self.plan.volatile.get(pull.name.as_str())?;
        let n_ids = check_ids(body_bytes)?;
        // Ids, their stamps twice, a chunk of the reply, and the places of the rows.
        let lent = 2 * body_bytes + HEAD_ROOM + CHUNK_BYTES.max(tensor.shape().row_bytes);
        let places = n_ids * size_of::<VolatilePlace>();
        let room = self.take_room(PullKind::Sync, lent + body_bytes + places)?;
        Ok((tensor, room, self.buffers.lend(lent)))
    }

    /// Adds a pull with `n_bytes` of ids to the backlog until the value is dropped; fails if the
    /// backlog is full.
    pub(crate) fn wait_for_rows(&self, n_bytes: usize) -> Result<WaitingPull<'_>, Failure> {
        self.waiting.enter(n_bytes).ok_or_else(|| {
            let message = format!(
                "{} pulls wait for volatile rows, the limit; ask again later, or without a wait",
                self.waiting.n_pulls()
            );
            failure(FailureCode::Overloaded, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_pulls_are_bounded_in_number_and_in_bytes() {
        let waiting = PullBacklog::default();
        let large = waiting.enter(2 * WAITING_BYTES_PER_SHARD).unwrap();
        assert!(waiting.enter(4).is_none(), "no bytes are left for another pull");
        drop(large);
        let mut all = Vec::new();
        while let Some(one) = waiting.enter(4) {
            all.push(one);
        }
        assert_eq!((all.len(), waiting.n_pulls()), (WAITING_PULLS_PER_SHARD_MAX, all.len()));
        all.pop();
        assert!(waiting.enter(WAITING_BYTES_PER_SHARD).is_none());
        assert!(waiting.enter(4).is_some());
        drop(all);
        assert_eq!((waiting.n_pulls(), waiting.n_bytes.get()), (0, 0));
    }
}
