//! Adoption and release of partitions at run time; `docs/replication.md` has the steps.

use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_lite::FutureExt;
use futures_util::future::join_all;
use lodestore_graph::PartId;
use lodestore_schema::name::ServerAddress;
use lodestore_schema::{Failure, FailureCode};
use lodestore_store::transfer::Arrival;
use lodestore_store::update::PartCopy;
use lodestore_store::{GraphHandle, StoreError};
use tracing::{info, warn};

use super::Shard;
use super::update::SWITCH_PAUSE;
use crate::error::{failure, store_failure};
use crate::limits::LAST_READS_MAX;
use crate::mesh::ShardRequest;

/// Interval of the checks for the last read and for a free queue.
const LOOK: Duration = Duration::from_millis(2);

impl Shard {
    /// Serves a partition that a client has moved here; returns the version.
    pub(crate) async fn open_received(self: &Rc<Self>, part: PartId) -> Result<u32, Failure> {
        self.check_roams()?;
        self.open_arrived(part).await
    }

    /// Serves a partition whose folder has arrived; returns the version. Runs to completion even if
    /// its caller is cancelled.
    pub(crate) async fn open_arrived(self: &Rc<Self>, part: PartId) -> Result<u32, Failure> {
        let shard = Rc::clone(self);
        to_its_end(async move { shard.adopt_now(part).await }).await
    }

    /// Releases a partition for good, and runs to completion likewise. `to` is the address of the
    /// new owner, if known.
    pub(crate) async fn release(
        self: &Rc<Self>,
        copy: PartCopy,
        id: u64,
        to: Option<ServerAddress>,
    ) -> Result<(), Failure> {
        let shard = Rc::clone(self);
        to_its_end(async move { shard.release_now(copy, id, to).await }).await
    }

    /// Runs a blocking call of the store on a thread.
    pub(crate) async fn call_store<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Arc<GraphHandle>) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let live = Arc::clone(&self.plan.partitions.live);
        self.plan.threads.looks.call(move || call(&live))?.await
    }

    /// Like [`Self::call_store`], but waits while the queue is full: half of a move must not stay
    /// undone.
    async fn call_store_surely<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Arc<GraphHandle>) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let live = Arc::clone(&self.plan.partitions.live);
        let place = loop {
            match self.plan.threads.looks.place() {
                Ok(place) => break place,
                Err(_) => glommio::timer::sleep(LOOK).await,
            }
        };
        place.call(move || call(&live))?.await
    }

    /// Fails if this server never releases partitions.
    pub(crate) fn check_gives_up(&self) -> Result<(), Failure> {
        self.check_writable()?;
        self.check_roams()
    }

    /// Begins a copy of a partition; `None` if move `id` has released the partition already.
    ///
    /// Fails with `Overloaded` while a release of the partition is undecided.
    pub(crate) async fn begin_copy(
        &self,
        part: PartId,
        id: u64,
    ) -> Result<Option<PartCopy>, Failure> {
        if id != 0 {
            self.check_gives_up()?;
        }
        let partitions = Arc::clone(&self.plan.partitions);
        let begin = move |live: &Arc<GraphHandle>| {
            let was_given_up = || {
                let given_up = if id == 0 { Ok(false) } else { live.was_given_up(part, id) };
                given_up.map_err(store_failure)
            };
            if was_given_up()? {
                return Ok(None);
            }
            match live.begin_copy(part) {
                // This check precedes the next: a release that is no longer undecided has been
                // decided.
                Err(StoreError::NoPart { .. }) if partitions.is_leaving(part) => {
                    let message = format!("partition {part} is being released; ask again");
                    Err(failure(FailureCode::Overloaded, message))
                }
                Err(StoreError::NoPart { .. }) if was_given_up()? => Ok(None),
                begun => begun.map(Some).map_err(store_failure),
            }
        };
        self.call_store(begin).await?
    }

    /// Fails unless the copy of move `id` is in this server's folder.
    pub(crate) async fn check_arrives(&self, part: PartId, id: u64) -> Result<(), Failure> {
        self.check_roams()?;
        let partitions = Arc::clone(&self.plan.partitions);
        let look = move |live: &Arc<GraphHandle>| {
            partitions.look_for_arrivals()?;
            // Checked before any bytes are fetched: the source releases the partition before this
            // server adopts it.
            live.check_receivable(part)?;
            Ok(Arrival::missing_at(live.graph(), part, id))
        };
        let name = self.call_store(look).await?.map_err(store_failure)?;
        let Some(name) = name else { return Ok(()) };
        let message = format!("the server's folder has no {name}: the copy is in another folder");
        Err(failure(FailureCode::Invalid, message))
    }

    async fn adopt_now(self: &Rc<Self>, part: PartId) -> Result<u32, Failure> {
        let _moving = self.begin_move().await?;
        let adopted = self.call_store(move |live| live.open_received(part)).await?;
        let version = adopted.map_err(store_failure)?;
        self.serve_again(part).await?;
        // The adoption may have raised the versions of other partitions.
        self.refresh_everywhere(None).await?;
        self.note_moved(part, None).await;
        self.look_for_arrivals(part).await;
        info!(%part, version, "adopted partition");
        Ok(version)
    }

    /// Records where a partition moved, or that it is here. A failure affects only followers.
    async fn note_moved(&self, part: PartId, to: Option<ServerAddress>) {
        let partitions = Arc::clone(&self.plan.partitions);
        let note = move |_: &Arc<GraphHandle>| {
            partitions.note_moved(part, to.as_ref().map(ServerAddress::as_str));
        };
        if let Err(error) = self.call_store_surely(note).await {
            warn!(%part, %error, "cannot record where the partition moved");
        }
    }

    /// Updates the list of partitions in transit. A failure does not undo the move, and is logged.
    async fn look_for_arrivals(&self, part: PartId) {
        let partitions = Arc::clone(&self.plan.partitions);
        let looked = self.call_store(move |_| partitions.look_for_arrivals()).await;
        if let Err(error) = looked.and_then(|looked| looked.map_err(store_failure)) {
            warn!(%part, %error, "cannot list partitions in transit to clients");
        }
    }

    async fn release_now(
        &self,
        copy: PartCopy,
        id: u64,
        to: Option<ServerAddress>,
    ) -> Result<(), Failure> {
        self.check_gives_up()?;
        let _moving = self.begin_move().await?;
        let part = copy.part();
        // The release may still fail: clients wait until it is decided.
        self.plan.partitions.set_leaving(Some(part));
        let decided = self.decide(copy, id).await;
        if decided.is_ok() {
            // Recorded before the description lists the partition as gone.
            self.note_moved(part, to).await;
        }
        self.look_for_arrivals(part).await;
        self.plan.partitions.set_leaving(None);
        decided
    }

    /// Closes a partition and releases it; serves it again if that fails.
    async fn decide(&self, mut copy: PartCopy, id: u64) -> Result<(), Failure> {
        let part = copy.part();
        let (mut copy, given_up) = self
            .call_store(move |_| {
                let given_up = copy.give_up();
                (copy, given_up)
            })
            .await?;
        given_up.map_err(store_failure)?;
        self.plan.partitions.set_served(part, false);
        let end = Instant::now() + LAST_READS_MAX;
        let close = async {
            self.everywhere(|| ShardRequest::Close(part)).await?;
            while !copy.is_idle() {
                glommio::timer::sleep(LOOK).await;
            }
            Ok(())
        };
        let late = async {
            glommio::timer::sleep(end.saturating_duration_since(Instant::now())).await;
            let message = format!("partition {part} is not released: its reads did not end");
            Err(failure(FailureCode::Overloaded, message))
        };
        if let Err(refusal) = close.or(late).await {
            let back = self.call_store_surely(move |_| copy.put_back()).await?;
            back.map_err(store_failure)?;
            self.serve_again(part).await?;
            return Err(refusal);
        }
        match self.call_store_surely(move |_| copy.close(id)).await? {
            Ok(dir) => {
                info!(%part, dir = %dir.display(), "released partition");
                Ok(())
            }
            Err(error) => {
                warn!(%part, %error, "failed to release partition; serving it again");
                let adopted = self.call_store_surely(move |live| live.open_received(part)).await?;
                adopted.map_err(store_failure)?;
                self.serve_again(part).await?;
                Err(store_failure(error))
            }
        }
    }

    /// Opens a partition of the store on all shards, then serves it. A shard that fails for a
    /// moment is retried.
    async fn serve_again(&self, part: PartId) -> Result<(), Failure> {
        let seen = self.plan.partitions.seen(Some(part));
        let end = Instant::now() + LAST_READS_MAX;
        while let Err(refusal) = self.everywhere(|| ShardRequest::Open(part)).await {
            if Instant::now() >= end {
                return Err(refusal);
            }
            glommio::timer::sleep(SWITCH_PAUSE).await;
        }
        self.plan.partitions.note_served(seen);
        self.plan.partitions.set_served(part, true);
        Ok(())
    }

    /// Opens a partition on this shard.
    pub(super) async fn open_part(&self, part: PartId) -> Result<(), Failure> {
        for tensor in &self.tensors {
            let opened = tensor.open_part(&self.plan.partitions, part).await;
            opened.map_err(|reason| failure(FailureCode::Internal, reason))?;
        }
        Ok(())
    }

    /// Closes a partition on this shard once no read uses it.
    pub(super) async fn close_part(&self, part: PartId) -> Result<(), Failure> {
        join_all(self.tensors.iter().map(|tensor| tensor.close_part(part))).await;
        Ok(())
    }

    /// Sends a request to all shards, this one included.
    pub(super) async fn everywhere(
        &self,
        request: impl Fn() -> ShardRequest,
    ) -> Result<(), Failure> {
        let asks = (0..self.plan.counters.len()).map(|shard| {
            let request = request();
            async move {
                let done = match shard == self.id {
                    true => self.answer(request).await.0,
                    false => self.mesh.ask(shard, request).await,
                };
                done.map(drop)
            }
        });
        join_all(asks).await.into_iter().collect()
    }

    fn check_roams(&self) -> Result<(), Failure> {
        if self.plan.partitions.roams {
            return Ok(());
        }
        let message = "the server's partitions are fixed; start it with local partitions, so that \
                       a restart serves the partitions of its folder";
        Err(failure(FailureCode::Invalid, message))
    }

    /// Begins a move; waits while another one runs, because its seal or decision precedes this one.
    async fn begin_move(&self) -> Result<crate::partitions::Moving<'_>, Failure> {
        let end = Instant::now() + LAST_READS_MAX;
        loop {
            if let Some(moving) = self.plan.partitions.begin_move() {
                return Ok(moving);
            }
            if Instant::now() >= end {
                let message = "another partition is being moved; ask again";
                return Err(failure(FailureCode::Overloaded, message));
            }
            glommio::timer::sleep(LOOK).await;
        }
    }
}

/// Runs a task to completion even if its caller is cancelled: half of a move would leave the
/// partition without an owner.
pub(super) async fn to_its_end<T: 'static>(
    task: impl Future<Output = Result<T, Failure>> + 'static,
) -> Result<T, Failure> {
    // A panic that escapes a task would stop the whole executor.
    let task = AssertUnwindSafe(task).catch_unwind();
    let task = async {
        task.await.unwrap_or_else(|_| Err(failure(FailureCode::Internal, "a move panicked")))
    };
    let done = glommio::spawn_local(task).detach().await;
    done.unwrap_or_else(|| Err(failure(FailureCode::Stopping, "the shard has stopped")))
}
