//! Admission of a shard's disk reads: a pull acquires memory and read slots before a read starts,
//! in the order in which pulls arrived.
//!
//! Each pull has a turn. For each chunk of rows the turn acquires list memory, then a slot per
//! read, which is released with the read's buffer. No pull waits for anything else while it holds
//! slots, so reads in flight always complete. Latency-bound pulls pass bulk. A pull that would miss
//! its deadline is refused before its first read. Its later reads are never refused, so a pull that
//! has begun is finished.

mod forecast;
mod gate;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lodestore_schema::request::PullKind;
use lodestore_schema::{Failure, FailureCode};
use lodestore_store::plan::DiskProfile;

use crate::error::failure;
use crate::limits::{
    PLANNED_ROWS_PER_SHARD, READ_BYTES_PER_SHARD, READS_PER_SHARD, RETRY_AFTER, RETRY_AFTER_MAX,
};
use crate::stats::Counters;
use forecast::Forecast;
use gate::{Amount, Gate, Ticket};

/// Disk reads of one shard.
pub(crate) struct ReadAdmission {
    state: RefCell<State>,
    profile: DiskProfile,
    counters: Arc<[Counters]>,
    shard: usize,
    /// Reads of cancelled pulls; the kernel owns their buffers until the reads end.
    orphans: RefCell<Vec<Orphan>>,
    reaper: Cell<Option<Waker>>,
}

/// A read that no pull waits for; it holds its permit.
pub(crate) type Orphan = Pin<Box<dyn Future<Output = ()>>>;

struct State {
    /// Rows of gathers that hold read lists.
    lists: Gate<Rc<Slot>>,
    reads: Gate<Rc<Slot>>,
    forecast: Forecast,
    next_number: u64,
}

/// The two budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    Lists,
    Reads,
}

/// Where a waiting pull receives its permit.
#[derive(Default)]
struct Slot {
    is_granted: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

/// Properties of a pull by which shards schedule it.
#[derive(Clone, Debug)]
pub(crate) struct PullOrder {
    pub(crate) kind: PullKind,
    /// Arrival at the server: earlier pulls are served first.
    pub(crate) arrived: Instant,
    pub(crate) deadline: Instant,
    /// Whether any shard has read rows for the pull.
    pub(crate) progress: Progress,
}

/// Whether a pull that would be late is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing was read for the pull; it may be refused.
    New,
    /// Rows were read for the pull; it is finished.
    Begun,
}

/// The turn of one pull among the readers of this shard, from its first to its last chunk.
pub(crate) struct ReadTurn {
    pub(crate) admission: Rc<ReadAdmission>,
    ticket: Ticket,
    deadline: Instant,
    progress: Cell<Progress>,
    /// Rows of the pull after those that are being gathered.
    pub(crate) n_rows_after: Cell<usize>,
    /// Expected cost of the pull that has not started.
    expected: Cell<u64>,
    slot: Rc<Slot>,
}

/// A part of a budget, returned when it is dropped.
pub(crate) struct Permit {
    pub(crate) admission: Rc<ReadAdmission>,
    resource: Resource,
    class: PullKind,
    amount: Amount,
    /// Cost of a read that has started.
    cost: u64,
}

/// A turn that waits; dropping it cancels the wait.
struct Waiting<'a> {
    turn: &'a ReadTurn,
    resource: Resource,
    amount: Amount,
}

impl ReadAdmission {
    pub(crate) fn new(profile: DiskProfile, counters: Arc<[Counters]>, shard: usize) -> Self {
        let reads = Amount { n: READS_PER_SHARD, bytes: READ_BYTES_PER_SHARD };
        let state = State {
            lists: Gate::new(Amount { n: PLANNED_ROWS_PER_SHARD, bytes: 0 }),
            reads: Gate::new(reads),
            forecast: Forecast::default(),
            next_number: 0,
        };
        let (state, orphans) = (RefCell::new(state), RefCell::default());
        Self { state, profile, counters, shard, orphans, reaper: Cell::default() }
    }

    /// Returns the turn of a new pull.
    pub(crate) fn turn(self: &Rc<Self>, order: &PullOrder) -> ReadTurn {
        let mut state = self.state.borrow_mut();
        let number = state.next_number;
        state.next_number += 1;
        ReadTurn {
            admission: Rc::clone(self),
            ticket: Ticket { class: order.kind, arrived: order.arrived, number },
            deadline: order.deadline,
            progress: Cell::new(order.progress),
            n_rows_after: Cell::new(0),
            expected: Cell::new(0),
            slot: Rc::default(),
        }
    }

    /// Returns the cost of a read for the disk, in nanoseconds of its cost model.
    pub(crate) fn cost_of(&self, n_bytes: usize) -> u64 {
        (self.profile.request_seconds(n_bytes as u64) * 1e9) as u64
    }

    /// Returns the retry hint for a request that finds no memory: the time in which a part of the
    /// disk's backlog completes.
    pub(crate) fn retry_after(&self) -> Duration {
        (self.state.borrow().forecast.backlog() / 4).clamp(RETRY_AFTER, RETRY_AFTER_MAX)
    }

    /// Returns the number of pulls that wait for lists or reads.
    pub(crate) fn n_waiting(&self) -> usize {
        self.state.borrow().n_waiting()
    }

    /// Returns the bytes of buffers of reads in flight.
    pub(crate) fn bytes_in_flight(&self) -> u64 {
        self.state.borrow().reads.taken.bytes
    }

    /// Keeps a read of a cancelled pull until it ends.
    pub(crate) fn adopt(&self, read: Orphan) {
        self.orphans.borrow_mut().push(read);
        if let Some(reaper) = self.reaper.take() {
            reaper.wake();
        }
    }

    /// Polls adopted reads for as long as the shard lives.
    pub(crate) async fn reap(self: Rc<Self>) {
        let mut reads = FuturesUnordered::new();
        poll_fn(|context| {
            self.reaper.set(Some(context.waker().clone()));
            reads.extend(self.orphans.take());
            while let Poll::Ready(Some(())) = reads.poll_next_unpin(context) {}
            Poll::<()>::Pending
        })
        .await;
    }

    /// Returns a permit to its budget, and grants waiting turns.
    fn give_back(&self, permit: &Permit) {
        {
            let mut state = self.state.borrow_mut();
            state.gate(permit.resource).give_back(permit.amount);
            if permit.resource == Resource::Reads {
                state.forecast.end(permit.class, permit.cost, Instant::now());
            }
        }
        self.grant(permit.resource);
    }

    /// Grants waiting turns in order, as far as the budget allows.
    fn grant(&self, resource: Resource) {
        loop {
            // The borrow ends before another task is woken.
            let granted = self.state.borrow_mut().gate(resource).grant_next();
            let Some(slot) = granted else { break };
            slot.is_granted.set(true);
            if let Some(waker) = slot.waker.take() {
                waker.wake();
            }
        }
        let mut state = self.state.borrow_mut();
        if state.n_waiting() == 0 {
            state.forecast.end_queue(Instant::now());
        }
        let n_reads = state.reads.taken.n;
        self.counters[self.shard].reads_in_flight.store(n_reads, Ordering::Relaxed);
    }
}

impl State {
    fn gate(&mut self, resource: Resource) -> &mut Gate<Rc<Slot>> {
        match resource {
            Resource::Lists => &mut self.lists,
            Resource::Reads => &mut self.reads,
        }
    }

    fn n_waiting(&self) -> usize {
        self.lists.n_waiting() + self.reads.n_waiting()
    }
}

impl ReadTurn {
    /// Returns the order for other shards that read rows of the same pull.
    pub(crate) fn order(&self) -> PullOrder {
        let Ticket { class: kind, arrived, .. } = self.ticket;
        PullOrder { kind, arrived, deadline: self.deadline, progress: self.progress.get() }
    }

    /// Records that rows of the pull were read, here or by another shard.
    pub(crate) fn set_begun(&self) {
        self.progress.set(Progress::Begun);
    }

    /// Acquires list memory for `n_missed` of `n_rows` rows, each of which costs about `row_cost`.
    /// Refuses a new pull that would miss its deadline.
    pub(crate) async fn take_lists(
        &self,
        n_missed: usize,
        n_rows: usize,
        row_cost: u64,
    ) -> Result<Permit, Failure> {
        let cost = self.with_rows_after(row_cost.saturating_mul(n_missed as u64), n_rows);
        let class = self.ticket.class;
        self.check_new(|forecast, left| forecast.check_behind(class, cost, left))?;
        self.expect(cost);
        let amount = Amount { n: n_missed as u64, bytes: 0 };
        Ok(self.take(Resource::Lists, amount).await)
    }

    /// Replaces the expected cost of the pull once the cost of a chunk of `n_rows` is known.
    pub(crate) fn set_cost(&self, cost: u64, n_rows: usize) {
        self.expect(self.with_rows_after(cost, n_rows));
    }

    /// Records that a chunk was read. Expects no further cost until the next chunk, because the
    /// client may be slow.
    pub(crate) fn end_chunk(&self) {
        self.expect(0);
    }

    /// Acquires a read slot and memory for a read of `n_bytes`. Refuses a new pull that would miss
    /// its deadline.
    pub(crate) async fn take_read(&self, n_bytes: usize) -> Result<Permit, Failure> {
        let cost = self.admission.cost_of(n_bytes);
        let amount = Amount { n: 1, bytes: n_bytes as u64 };
        let mut permit = self.take(Resource::Reads, amount).await;
        // The wait may have been longer than forecast.
        let (class, expected) = (self.ticket.class, self.expected.get());
        self.check_new(|forecast, left| forecast.check_next(class, expected, left))?;
        self.set_begun();
        self.expect(self.expected.get().saturating_sub(cost));
        self.admission.state.borrow_mut().forecast.start(cost, Instant::now());
        permit.cost = cost;
        Ok(permit)
    }

    async fn take(&self, resource: Resource, amount: Amount) -> Permit {
        let has_taken = {
            let mut state = self.admission.state.borrow_mut();
            let gate = state.gate(resource);
            let has_taken = gate.try_take(self.ticket, amount);
            if !has_taken {
                self.slot.is_granted.set(false);
                gate.wait(self.ticket, amount, Rc::clone(&self.slot));
                state.forecast.begin_queue(Instant::now());
            }
            has_taken
        };
        if !has_taken {
            let waiting = Waiting { turn: self, resource, amount };
            poll_fn(|context| {
                if self.slot.is_granted.get() {
                    return Poll::Ready(());
                }
                self.slot.waker.set(Some(context.waker().clone()));
                Poll::Pending
            })
            .await;
            std::mem::forget(waiting);
        }
        if resource == Resource::Reads {
            let n_reads = self.admission.state.borrow().reads.taken.n;
            let counters = &self.admission.counters[self.admission.shard];
            counters.reads_in_flight.store(n_reads, Ordering::Relaxed);
        }
        let (admission, class) = (Rc::clone(&self.admission), self.ticket.class);
        Permit { admission, resource, class, amount, cost: 0 }
    }

    fn expect(&self, cost: u64) {
        let before = self.expected.replace(cost);
        let mut state = self.admission.state.borrow_mut();
        state.forecast.expect(self.ticket.class, before, cost);
    }

    /// Returns the cost of a chunk of `n_rows` plus that of the rows after it.
    fn with_rows_after(&self, cost: u64, n_rows: usize) -> u64 {
        let after = self.n_rows_after.get() as f64 / n_rows.max(1) as f64;
        cost.saturating_add((cost as f64 * after) as u64)
    }

    /// Refuses a new pull that cannot complete before its deadline.
    fn check_new(
        &self,
        check: impl FnOnce(&Forecast, Duration) -> Result<(), Duration>,
    ) -> Result<(), Failure> {
        if self.progress.get() == Progress::Begun {
            return Ok(());
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        check(&self.admission.state.borrow().forecast, left).map_err(|retry_after| {
            let message = format!(
                "earlier disk reads leave too little of the {} ms to the deadline; retry after the \
                 hint, or with fewer rows or a later deadline",
                left.as_millis()
            );
            Failure { retry_after, ..failure(FailureCode::Overloaded, message) }
        })
    }
}

impl Drop for ReadTurn {
    fn drop(&mut self) {
        self.expect(0);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission.give_back(self);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let (turn, admission) = (self.turn, &self.turn.admission);
        turn.slot.waker.take();
        let mut state = admission.state.borrow_mut();
        let gate = state.gate(self.resource);
        if turn.slot.is_granted.get() {
            gate.give_back(self.amount);
        } else {
            gate.withdraw(turn.ticket);
        }
        drop(state);
        // Other turns may have waited behind this one.
        admission.grant(self.resource);
    }
}

#[cfg(test)]
mod tests;
