//! The uploads of a process, and the order in which partitions are published that are uploaded in
//! parallel.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Notify;

use crate::bucket::Bucket;
use crate::error::BucketError;
use crate::lease::UploadLease;

/// Partitions that are uploaded in parallel.
pub(crate) const N_PARTS: usize = 8;
/// Time after which a partition that waits for others looks whether its lease is to be renewed.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// The uploads of a process: one for each partition that is uploaded in parallel with others, so
/// that none relies on a lease that another has given up.
#[derive(Debug)]
pub(crate) struct Leases(Vec<Option<UploadLease>>);

/// The order of publications: that of the partitions, whatever is uploaded first.
///
/// Of two writers that publish the same partitions the one that loses the first of them ends before
/// it publishes another.
#[derive(Debug, Default)]
struct Order {
    /// Partitions before this one are published, or have ended otherwise.
    next: Cell<usize>,
    /// Those after it that have.
    ended: RefCell<BTreeSet<usize>>,
    /// The first partition that has failed: none after it is published.
    failed: Cell<Option<usize>>,
    changed: Notify,
}

/// The place of a partition in the order of publications.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    order: &'a Order,
    at: usize,
}

impl Default for Leases {
    fn default() -> Self {
        Self((0..N_PARTS).map(|_| None).collect())
    }
}

impl Leases {
    /// Calls `each` for all items, some in parallel, each with a lease of its own and its place in
    /// their order. Once a call breaks no further one begins, and none after it gets its turn.
    pub(crate) async fn share<T>(
        &mut self,
        items: Vec<T>,
        each: impl AsyncFn(T, &mut Option<UploadLease>, Place<'_>) -> ControlFlow<()>,
    ) {
        let order = Order::default();
        let left = RefCell::new(items.into_iter().enumerate());
        let take_items = async |lease: &mut Option<UploadLease>| {
            while order.failed.get().is_none() {
                let item = left.borrow_mut().next();
                let Some((at, item)) = item else { break };
                let ended = each(item, lease, Place { order: &order, at }).await;
                order.end(at, ended);
            }
        };
        join_all(self.0.iter_mut().map(take_items)).await;
    }

    /// Ends all uploads.
    pub(crate) async fn end(self, bucket: &Bucket) {
        for lease in self.0.into_iter().flatten() {
            bucket.end_upload(lease).await;
        }
    }
}

impl Order {
    /// Notes that an item has ended.
    fn end(&self, at: usize, how: ControlFlow<()>) {
        let mut ended = self.ended.borrow_mut();
        ended.insert(at);
        while ended.remove(&self.next.get()) {
            self.next.set(self.next.get() + 1);
        }
        if how.is_break() {
            let first = self.failed.get().map_or(at, |failed| failed.min(at));
            self.failed.set(Some(first));
        }
        self.changed.notify_waiters();
    }
}

impl Place<'_> {
    /// Waits until all partitions before this one have ended. Renews the lease meanwhile.
    ///
    /// Fails once one of them has failed.
    pub(crate) async fn wait_for_turn(
        self,
        bucket: &Bucket,
        lease: &mut Option<UploadLease>,
    ) -> Result<(), BucketError> {
        loop {
            if self.order.failed.get().is_some_and(|failed| failed < self.at) {
                let reason = "a partition before this one could not be published";
                return Err(bucket.refused(reason.to_owned()));
            }
            if self.order.next.get() == self.at {
                return Ok(());
            }
            let changed = tokio::time::timeout(WAIT_MAX, self.order.changed.notified()).await;
            if let (Err(_), Some(lease)) = (changed, lease.as_mut()) {
                bucket.renew(lease).await?;
            }
        }
    }
}
