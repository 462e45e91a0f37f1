//! Messages between shards over the channel mesh: rows for clients that are not shard-aware, and
//! versions to read from now on.

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
    /// Do this, and answer.
    Request { ticket: u64, request: ShardRequest },
    /// Bytes of rows, in the order asked; none for other requests.
    Reply { ticket: u64, rows: Rows },
}

/// A request of one shard to another.
pub(crate) enum ShardRequest {
    /// Gather rows, as long as a pull waits for them, in the order of their pull.
    Gather(GatherRequest),
    /// Read the newest version of a partition, or of all, from now on.
    Refresh(Refresh),
    /// Serve a partition that has come.
    Open(PartId),
    /// Release a partition.
    Close(PartId),
}

/// Partitions whose newest version is to be read.
#[derive(Clone)]
pub(crate) struct Refresh {
    /// The partition; `None` for all that are open.
    pub(crate) part: Option<PartId>,
    /// Receives those whose version before is still read, with the reason.
    pub(crate) failed: Arc<Mutex<Vec<(PartId, Failure)>>>,
}

/// Rows that a pull asks of the shard that owns them, and whether their answer is still waited for.
pub(crate) struct GatherRequest {
    pub(crate) tensor: u16,
    pub(crate) ids: Vec<NodeId>,
    pub(crate) order: PullOrder,
    /// Rows of the pull that will be asked for after these.
    pub(crate) n_rows_after: usize,
    /// The versions of the rows.
    pub(crate) cut: Option<Arc<Cut>>,
    given_up: Arc<AtomicBool>,
}

/// Bytes of rows, or why there are none.
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

    /// Asks `shard` and waits for its answer.
    pub(crate) async fn ask(&self, shard: usize, request: ShardRequest) -> Rows {
        let ticket = self.next_ticket.get();
        self.next_ticket.set(ticket + 1);
        let (sender, receiver) = local_channel::new_bounded(1);
        self.waiting.borrow_mut().insert(ticket, sender);
        // Whatever ends this wait, a deadline included, takes the ticket with it.
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

    /// Sends rows back to the shard that asked.
    pub(crate) async fn answer(&self, shard: usize, ticket: u64, rows: Rows) {
        // The asker is gone only when the server stops.
        let _ = self.senders.send_to(shard, Message::Reply { ticket, rows }).await;
    }

    /// Hands arrived rows to the waiting request; late rows are dropped.
    pub(crate) fn deliver(&self, ticket: u64, rows: Rows) {
        if let Some(sender) = self.waiting.borrow_mut().remove(&ticket) {
            let _ = sender.try_send(rows);
        }
    }

    /// Ends the mesh: the other shards' receivers see it closed.
    pub(crate) fn close(&self) {
        self.senders.close();
    }
}

struct PendingReply<'a> {
    mesh: &'a Mesh,
    ticket: u64,
    /// Cancellation flag that the asked shard reads before it works.
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

    /// Returns whether no request waits any longer.
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
