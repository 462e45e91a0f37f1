//! Messages between shards over the channel mesh: rows for clients that are not shard-aware, and
//! switches of versions.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use glommio::channels::channel_mesh::Senders;
use glommio::channels::local_channel::{self, LocalSender};
use lodestore_graph::{NodeId, PartId};
use lodestore_schema::{Failure, FailureCode};

use crate::cut::Cut;
use crate::error::failure;
use crate::reads::PullOrder;

/// A message between two shards.
pub(crate) enum Message {
    /// A request that expects a reply.
    Request { ticket: u64, request: ShardRequest },
    /// Bytes of rows, in the requested order; empty for other requests.
    Reply { ticket: u64, rows: Rows },
}

/// A request of one shard to another.
pub(crate) enum ShardRequest {
    /// Gather rows for a pull, in the order of pulls, unless it is cancelled.
    Gather(GatherRequest),
    /// Switch to the newest version of a partition, or of all.
    Refresh(Refresh),
    /// Open a partition that has arrived.
    Open(PartId),
    /// Close a partition.
    Close(PartId),
}

/// Switch of partitions to their newest version.
#[derive(Clone)]
pub(crate) struct Refresh {
    /// The partition; `None` for all that are open.
    pub(crate) part: Option<PartId>,
    /// Collects the partitions that stay at their previous version, with the reason.
    pub(crate) failed: Arc<Mutex<Vec<(PartId, Failure)>>>,
}

/// Rows that a pull requests from their owner shard, with a flag that cancels the request.
pub(crate) struct GatherRequest {
    pub(crate) tensor: u16,
    pub(crate) ids: Vec<NodeId>,
    pub(crate) order: PullOrder,
    /// Rows of the pull that will be requested after these.
    pub(crate) n_rows_after: usize,
    /// The versions to read.
    pub(crate) cut: Option<Arc<Cut>>,
    given_up: Arc<AtomicBool>,
}

/// Bytes of rows, or the failure.
pub(crate) type Rows = Result<Vec<u8>, Failure>;

/// One shard's end of the mesh.
pub(crate) struct Mesh {
    senders: Senders<Message>,
    next_ticket: Cell<u64>,
    waiting: RefCell<HashMap<u64, LocalSender<Rows>>>,
}

impl Mesh {
    pub(crate) fn new(senders: Senders<Message>) -> Self {
        Self { senders, next_ticket: Cell::new(0), waiting: RefCell::default() }
    }

    /// Sends a request to `shard` and waits for the reply.
    pub(crate) async fn ask(&self, shard: usize, request: ShardRequest) -> Rows {
        let ticket = self.next_ticket.get();
        self.next_ticket.set(ticket + 1);
        let (sender, receiver) = local_channel::new_bounded(1);
        self.waiting.borrow_mut().insert(ticket, sender);
        // Removes the ticket when this wait ends for any reason, such as a deadline.
        let given_up = match &request {
            ShardRequest::Gather(gather) => Some(Arc::clone(&gather.given_up)),
            ShardRequest::Refresh(_) | ShardRequest::Open(_) | ShardRequest::Close(_) => None,
        };
        let _ticket = PendingReply { mesh: self, ticket, given_up };
        let gone = || failure(FailureCode::Stopping, format!("shard {shard} has stopped"));
        let ask = Message::Request { ticket, request };
        self.senders.send_to(shard, ask).await.map_err(|_| gone())?;
        receiver.recv().await.ok_or_else(gone)?
    }

    /// Sends a reply to the shard that sent the request.
    pub(crate) async fn answer(&self, shard: usize, ticket: u64, rows: Rows) {
        // The receiver is gone only when the server stops.
        let _ = self.senders.send_to(shard, Message::Reply { ticket, rows }).await;
    }

    /// Hands received rows to the waiting request; late rows are dropped.
    pub(crate) fn deliver(&self, ticket: u64, rows: Rows) {
        if let Some(sender) = self.waiting.borrow_mut().remove(&ticket) {
            let _ = sender.try_send(rows);
        }
    }

    /// Closes the mesh: the receivers of other shards see its end.
    pub(crate) fn close(&self) {
        self.senders.close();
    }
}

struct PendingReply<'a> {
    mesh: &'a Mesh,
    ticket: u64,
    /// Cancellation flag that the owner shard checks before it gathers.
    given_up: Option<Arc<AtomicBool>>,
}

impl GatherRequest {
    pub(crate) fn new(
        tensor: u16,
        ids: Vec<NodeId>,
        order: PullOrder,
        n_rows_after: usize,
        cut: Option<Arc<Cut>>,
    ) -> Self {
        Self { tensor, ids, order, n_rows_after, cut, given_up: Arc::default() }
    }

    /// Returns whether the request was cancelled.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }
}

impl Drop for PendingReply<'_> {
    fn drop(&mut self) {
        self.mesh.waiting.borrow_mut().remove(&self.ticket);
        if let Some(given_up) = &self.given_up {
            given_up.store(true, Ordering::Relaxed);
        }
    }
}
