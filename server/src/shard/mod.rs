//! A shard: an executor on its own thread with its rows, connections and mailboxes.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_lite::FutureExt;
use futures_util::future::AbortHandle;
use glommio::channels::channel_mesh::{FullMesh, Receivers};
use glommio::channels::shared_channel::{self, ConnectedReceiver};
use glommio::sync::{Semaphore, StaticPermit};
use glommio::{Latency, Shares, TaskQueueHandle};
use lodestore_graph::lock::IgnorePoison;
use lodestore_schema::request::PullKind;
use lodestore_schema::stats::ServerStats;
use lodestore_schema::{FailureCode, Reply};
use rustix::process::{Resource, getrlimit};
use tracing::{error, warn};

use crate::buffers::{BufferPool, Buffers};
use crate::error::failure;
use crate::limits::{
    CONNECTIONS_PER_SHARD_MAX, DRAIN_TIMEOUT, IN_FLIGHT_BYTES_PER_SHARD, MAILBOX_LEN,
    POOLED_BYTES_PER_SHARD, PRELOAD_SHARES, START_TIMEOUT, TURN, connections_per_shard,
};
use crate::log_limit::LogLimiter;
use crate::mailbox::{Event, Mailbox};
use crate::mesh::{Mesh, Message, Refresh, Rows, ShardRequest};
use crate::reads::ReadAdmission;
use crate::rows::ShardRows;
use crate::stats::Counters;
use crate::tls_scheduler::TlsScheduler;

mod accept;
mod admission;
mod connections;
#[deny(let_underscore_drop, reason = "an unbound permit is released at once")]
mod gather;
mod heartbeat;
mod parts;
pub(crate) mod plan;
#[deny(let_underscore_drop, reason = "the same")]
mod update;
mod volatile;

use self::volatile::PullBacklog;
use admission::HandshakeQueue;
use connections::ConnectionTable;
pub(crate) use connections::IdleClock;
pub(crate) use gather::Asked;
use plan::ShardPlan;
pub(crate) use plan::{Started, Step};

/// A running shard, shared by the tasks of its executor.
pub(crate) struct Shard {
    id: usize,
    pub(crate) plan: ShardPlan,
    /// Rows by tensor.
    pub(crate) tensors: Vec<ShardRows>,
    mesh: Mesh,
    room: Rc<Semaphore>,
    reads: Rc<ReadAdmission>,
    /// Bytes of shared memory that are free.
    shared_room: Rc<Semaphore>,
    bulk: TaskQueueHandle,
    /// Order of TLS handshakes on this core.
    handshakes: TlsScheduler,
    buffers: BufferPool,
    open: RefCell<HashMap<u64, Rc<OwnedFd>>>,
    /// Connections in the handshake.
    entering: RefCell<HandshakeQueue<AbortHandle>>,
    /// Admitted connections. Connections in the handshake use no slot of theirs.
    admitted: ConnectionTable,
    next_connection: Cell<u64>,
    is_ending: Cell<bool>,
    /// Whether a background task retries a switch to a version.
    is_refreshing: Cell<bool>,
    /// Pieces that are being preloaded.
    n_loading: Cell<usize>,
    /// Pulls that wait for volatile rows.
    waiting: PullBacklog,
    /// The last [`crate::partitions::Partitions::described`], and the frame that answers `describe`
    /// at that time.
    description: RefCell<([u64; 2], Rc<[u8]>)>,
    log_limit: LogLimiter,
}

/// Runs a shard from its start to its end.
pub(crate) async fn run(
    plan: ShardPlan,
    mesh: FullMesh<Message>,
    started: Started,
) -> Result<(), String> {
    // A peer whose executor failed to start would block the join for ever.
    let late = async {
        glommio::timer::sleep(START_TIMEOUT).await;
        Err("the other shards did not start".to_owned())
    };
    let join = async { mesh.join().await.map_err(|error| error.to_string()) };
    let (senders, receivers) = join.or(late).await?;
    let id = senders.peer_id();
    let (mailbox_sender, mailbox) = shared_channel::new_bounded(MAILBOX_LEN);
    let (sender, mailbox) =
        futures_lite::future::zip(mailbox_sender.connect(), mailbox.connect()).await;
    let room = Rc::new(Semaphore::new(IN_FLIGHT_BYTES_PER_SHARD));
    let shared_room = Rc::new(Semaphore::new(plan.shared_bytes));
    let tensors = match open_tensors(&plan, id).await {
        Ok(tensors) => tensors,
        Err(reason) => {
            // The receiver outlives the start of every shard.
            let _ = started.send(Step::Failed(reason.clone()));
            return Err(reason);
        }
    };
    let (profile, counters) = (plan.partitions.profile, Arc::clone(&plan.counters));
    let reads = Rc::new(ReadAdmission::new(profile, counters, id));
    let tier_bytes: u64 = tensors.iter().map(ShardRows::tier_bytes).sum();
    plan.counters[id].tier_bytes.store(tier_bytes, Ordering::Relaxed);
    let max_files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most_connections = connections_per_shard(max_files, plan.counters.len());
    if id == 0 && most_connections < CONNECTIONS_PER_SHARD_MAX {
        warn!(
            max_files,
            "a shard admits {most_connections} connections instead of {CONNECTIONS_PER_SHARD_MAX}: \
             the limit on open files is too low; raise it (`ulimit -n`)"
        );
    }
    let bulk = queue("vector-pull", 100, Latency::NotImportant);
    let sync = queue("sync-pull", 1000, Latency::Matters(TURN));
    let shard = Rc::new(Shard {
        id,
        plan,
        tensors,
        mesh: Mesh::new(senders),
        room,
        reads: Rc::clone(&reads),
        shared_room,
        bulk,
        handshakes: TlsScheduler::default(),
        buffers: BufferPool::new(POOLED_BYTES_PER_SHARD),
        open: RefCell::default(),
        entering: RefCell::new(HandshakeQueue::new(RandomState::new().hash_one(id))),
        admitted: ConnectionTable::new(most_connections),
        next_connection: Cell::new(0),
        is_ending: Cell::new(false),
        is_refreshing: Cell::new(false),
        n_loading: Cell::new(0),
        waiting: PullBacklog::default(),
        description: RefCell::new(([0; 2], Rc::from([]))),
        log_limit: LogLimiter::default(),
    });
    shard.start_heartbeat();
    shard.spawn_guarded("the reaper of cancelled reads", reads.reap());
    shard.read_messages(receivers, sync);
    let ahead = shard.plan_preload();
    let _ = started.send(Step::Up(id, Mailbox::new(sender.into_foreign())));
    drop(started);
    shard.start_preload(ahead, queue("preload", PRELOAD_SHARES, Latency::NotImportant));
    shard.serve(&mailbox, sync).await;
    shard.end().await;
    Ok(())
}

/// Opens every tensor on this executor.
async fn open_tensors(plan: &ShardPlan, id: usize) -> Result<Vec<ShardRows>, String> {
    let shard = u16::try_from(id).map_err(|_| format!("shard {id} is out of range"))?;
    let mut tensors = Vec::with_capacity(plan.tier_bytes.len());
    for position in 0..plan.tier_bytes.len() {
        tensors.push(ShardRows::open(plan, position, shard).await?);
    }
    Ok(tensors)
}

/// Creates a task queue that gets a fraction of the core in proportion to its shares. An arrival
/// for a latency-bound queue ends the turn of the others and runs first.
fn queue(name: &str, shares: usize, latency: Latency) -> TaskQueueHandle {
    glommio::executor().create_task_queue(Shares::Static(shares), latency, name)
}

/// Spawns a detached task. Does nothing if its queue is gone, because then the executor is ending.
fn spawn_into(queue: TaskQueueHandle, task: impl Future<Output = ()> + 'static) {
    if let Ok(task) = glommio::spawn_local_into(task, queue) {
        task.detach();
    }
}

/// A piece that is being preloaded.
pub(crate) struct Loading<'a>(&'a Cell<usize>);

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Shard {
    /// Handles events until the shard is stopped.
    async fn serve(self: &Rc<Self>, mailbox: &ConnectedReceiver<Event>, sync: TaskQueueHandle) {
        while let Some(event) = mailbox.recv().await {
            match event {
                Event::Stop => return,
                #[cfg(test)]
                Event::Die => panic!("requested to die"),
                Event::Connection(arrival) => {
                    self.accept(arrival, sync);
                    // Yields so evicted connections close during bursts.
                    glommio::yield_if_needed().await;
                }
                Event::Installed(part, done) => {
                    let shard = Rc::clone(self);
                    self.spawn_guarded("a switch to a version", async move {
                        let failed = shard.refresh(Some(part)).await.into_iter().next();
                        // The receiver may be gone.
                        let _ = done.send(failed.map_or(Ok(()), |(_, refusal)| Err(refusal)));
                    });
                }
                Event::Adopt(part, done) => {
                    let shard = Rc::clone(self);
                    self.spawn_guarded("the adoption of a partition", async move {
                        // The receiver may be gone.
                        let _ = done.send(shard.open_arrived(part).await);
                    });
                }
                Event::Folded(part) => {
                    let shard = Rc::clone(self);
                    self.spawn_guarded("a switch to folded layers", async move {
                        if let Err(reason) = shard.refresh_everywhere(Some(part)).await {
                            warn!(shard = shard.id, %reason, "folded layers stay open");
                        }
                    });
                }
            }
        }
    }

    /// Ends every connection after its current request, then the files and the mesh.
    async fn end(self: Rc<Self>) {
        self.is_ending.set(true);
        for fd in self.open.borrow().values() {
            // Wakes a connection that waits for its next request; replies are still sent.
            let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Read);
        }
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        let in_time = || Instant::now() < deadline;
        while !self.open.borrow().is_empty() && in_time() {
            glommio::timer::sleep(Duration::from_millis(2)).await;
        }
        // Until the last connection of the last shard has ended, other shards may send requests to
        // this one.
        self.plan.busy.fetch_sub(1, Ordering::Relaxed);
        let are_busy = || self.plan.busy.load(Ordering::Relaxed) > 0 || self.n_loading.get() > 0;
        while are_busy() && in_time() {
            glommio::timer::sleep(Duration::from_millis(2)).await;
        }
        self.remember_rows();
        self.mesh.close();
    }

    /// Starts a task per peer that handles the peer's messages.
    fn read_messages(self: &Rc<Self>, mut receivers: Receivers<Message>, sync: TaskQueueHandle) {
        for (peer, receiver) in receivers.streams() {
            // Weak: these tasks outlive the shard, until the peers close the mesh.
            let shard = Rc::downgrade(self);
            let read = async move {
                while let Some(message) = receiver.recv().await {
                    let Some(shard) = shard.upgrade() else { return };
                    match message {
                        Message::Reply { ticket, rows } => shard.mesh.deliver(ticket, rows),
                        Message::Request { ticket, request } => {
                            // The queue of the client's pull, whichever shard the client is
                            // connected to.
                            let queue = match request {
                                ShardRequest::Gather(ref wanted)
                                    if wanted.order.kind == PullKind::Vector =>
                                {
                                    shard.bulk
                                }
                                _ => sync,
                            };
                            let task = async move {
                                // A panic that escapes a task would stop the whole executor.
                                let answer = shard.answer(request);
                                let answer = AssertUnwindSafe(answer).catch_unwind().await;
                                let panicked = |_| {
                                    let what = "another shard panicked as it handled the request";
                                    (Err(failure(FailureCode::Internal, what)), None)
                                };
                                // The permit is held until the rows are sent.
                                let (rows, _room) = answer.unwrap_or_else(panicked);
                                shard.mesh.answer(peer, ticket, rows).await;
                            };
                            spawn_into(queue, task);
                        }
                    }
                }
            };
            spawn_into(sync, read);
        }
    }

    /// Handles a request of another shard.
    async fn answer(&self, request: ShardRequest) -> (Rows, Option<StaticPermit>) {
        match request {
            ShardRequest::Gather(wanted) => match self.gather_asked(&wanted).await {
                Ok((rows, room)) => (Ok(rows), Some(room)),
                Err(refusal) => (Err(refusal), None),
            },
            ShardRequest::Refresh(Refresh { part, failed }) => {
                let not_read = self.refresh(part).await;
                failed.lock().ignore_poison().extend(not_read);
                (Ok(Vec::new()), None)
            }
            ShardRequest::Open(part) => (self.open_part(part).await.map(|()| Vec::new()), None),
            ShardRequest::Close(part) => (self.close_part(part).await.map(|()| Vec::new()), None),
        }
    }

    /// Spawns a detached task that logs a panic.
    fn spawn_guarded(&self, what: &'static str, task: impl Future<Output = ()> + 'static) {
        glommio::spawn_local(self.guarded(what, task)).detach();
    }

    /// Spawns a detached task in `queue` that logs a panic.
    pub(crate) fn spawn_guarded_into(
        &self,
        queue: TaskQueueHandle,
        what: &'static str,
        task: impl Future<Output = ()> + 'static,
    ) {
        spawn_into(queue, self.guarded(what, task));
    }

    fn guarded(
        &self,
        what: &'static str,
        task: impl Future<Output = ()> + 'static,
    ) -> impl Future<Output = ()> + 'static {
        let shard = self.id;
        async move {
            // A panic that escapes a task would stop the whole executor.
            if AssertUnwindSafe(task).catch_unwind().await.is_err() {
                error!(shard, "{what} panicked");
            }
        }
    }

    /// Counts a preloaded piece until the value is dropped; the shard waits for it before it ends.
    pub(crate) fn begin_loading(&self) -> Loading<'_> {
        self.n_loading.set(self.n_loading.get() + 1);
        Loading(&self.n_loading)
    }

    /// Returns the number of this shard among the server's.
    pub(crate) fn number(&self) -> u16 {
        u16::try_from(self.id).unwrap_or(u16::MAX)
    }

    /// Runs bulk work at low priority.
    pub(crate) async fn spawn_bulk<T: 'static>(
        &self,
        work: impl Future<Output = T> + 'static,
    ) -> T {
        match glommio::spawn_local_into(work, self.bulk) {
            Ok(task) => task.await,
            Err(error) => unreachable!("the bulk queue lives as long as its shard: {error}"),
        }
    }

    /// Returns whether the shard finishes running work and accepts none.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.get()
    }

    /// Returns buffers to the pool, which keeps or frees them.
    pub(crate) fn take_back(&self, buffers: Buffers) {
        self.buffers.take_back(buffers);
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.plan.counters[self.id]
    }

    /// Returns the counters of the whole server.
    pub(crate) fn stats(&self) -> ServerStats {
        let shards = self.plan.counters.iter().map(Counters::snapshot).collect();
        let mut updates = self.plan.partitions.updates();
        self.plan.runs.tell(&mut updates);
        ServerStats { shards, updates, volatile: self.plan.volatile.stats() }
    }

    /// Returns the frame that answers `describe`. It is built once for each version and list of
    /// partitions.
    pub(crate) fn description(&self) -> Rc<[u8]> {
        let partitions = &self.plan.partitions;
        // Read before the description: a change in between rebuilds the frame at the next call.
        let described = partitions.described();
        let mut known = self.description.borrow_mut();
        if known.1.is_empty() || known.0 != described {
            let (n_shards, mut frame) = (self.plan.counters.len(), Vec::new());
            let n_shards = u16::try_from(n_shards).unwrap_or(u16::MAX);
            let description = self.plan.partitions.describe(n_shards, &self.plan.shard_ports);
            Reply::Description(description).append_to(0, &mut frame);
            *known = (described, frame.into());
        }
        Rc::clone(&known.1)
    }
}
