//! The requests of a worker: started when they are due, over when every shard has answered.

use std::time::{Duration, Instant};

use lodestore_graph::NodeId;
use lodestore_schema::limits::IDS_PER_PULL_MAX;
use lodestore_schema::{Failure, PullKind as WireKind, Request, RequestBody};

use super::Worker;
use crate::load::LoadConfig;
use crate::load::tally::LoadError;
use crate::{ClientError, PullKind};

/// After a connection has failed its slots rest for this long.
const REST: Duration = Duration::from_millis(200);

/// A request that is running, over one or several shards.
pub(super) struct Running {
    pub(super) kind: PullKind,
    /// When it was to start.
    intended: Instant,
    n_rows: usize,
    /// Shards that have not answered.
    n_open: usize,
    pub(super) error: Option<LoadError>,
    retry_after: Duration,
}

impl Worker<'_> {
    /// Starts every request whose time has come and that has a slot.
    pub(super) fn start_due(&mut self, now: Instant) -> Result<(), ClientError> {
        let free = &mut self.free;
        self.resting.retain(|&(until, slot)| {
            if until <= now {
                free.push_back(slot);
            }
            until > now
        });
        while let Some(&slot) = self.free.front() {
            let intended = match &mut self.arrivals {
                None => Instant::now(),
                Some(arrivals) if arrivals.next() <= now => {
                    let intended = arrivals.next();
                    arrivals.advance();
                    self.tally.due(intended);
                    intended
                }
                Some(_) => break,
            };
            self.free.pop_front();
            self.start(slot, intended)?;
            if let Some(fleet) = self.reshaped.take() {
                self.reshape(fleet);
            }
        }
        for at in std::mem::take(&mut self.unsent) {
            self.flush(at)?;
        }
        Ok(())
    }

    /// Asks every shard that owns some of the rows.
    fn start(&mut self, slot: usize, intended: Instant) -> Result<(), ClientError> {
        let target = self.target;
        let LoadConfig { rows, deadline, window, .. } = target.config;
        let mut ids = std::mem::take(&mut self.ids);
        let mut buckets = std::mem::take(&mut self.buckets);
        self.drawer.next(*rows, &mut ids);
        let positions = 0..u32::try_from(ids.len()).unwrap_or(u32::MAX);
        self.fleet.routes.split(target.tensor.into(), &ids, positions, &mut buckets)?;
        let kind = self.draw_kind();
        // One more than there are shards, until all are asked.
        let (n_rows, n_open, retry_after) = (ids.len(), 1, Duration::ZERO);
        self.running[slot] =
            Some(Running { kind, intended, n_rows, n_open, error: None, retry_after });
        let wire_kind = match kind {
            PullKind::Sync => WireKind::Sync,
            PullKind::Vector => WireKind::Vector,
        };
        let body = RequestBody::Pull { tensor: target.tensor, kind: wire_kind };
        let (deadline, graph) = (Some(*deadline), self.fleet.graph);
        let request = Request { deadline, graph, ..Request::new(body) };
        let first_socket = slot / window * self.n_endpoints();
        for (endpoint, bucket) in buckets.iter().enumerate() {
            for ids in bucket.ids.chunks(IDS_PER_PULL_MAX) {
                self.ask(first_socket + endpoint, slot, &request, ids);
            }
        }
        self.tally.sent(intended, Instant::now());
        self.end_part(slot, Ok(()));
        (self.ids, self.buckets) = (ids, buckets);
        Ok(())
    }

    fn ask(&mut self, at: usize, slot: usize, request: &Request, ids: &[NodeId]) {
        if self.sockets[at].is_none() {
            self.reconnect(at);
        }
        let compare = self.target.truth.is_some();
        match (&mut self.sockets[at], &mut self.running[slot]) {
            (Some(socket), Some(running)) => {
                running.n_open += 1;
                socket.ask(slot, request, ids, compare);
                self.unsent.push(at);
            }
            (None, Some(running)) => running.error = Some(LoadError::Connect),
            (_, None) => unreachable!("a slot that starts a request runs it"),
        }
    }

    pub(super) fn draw_kind(&mut self) -> PullKind {
        match self.words.fraction() < self.target.config.vector_share {
            true => PullKind::Vector,
            false => PullKind::Sync,
        }
    }

    /// One shard has answered; with the last the request is over.
    pub(super) fn end_part(&mut self, slot: usize, answer: Result<(), Failure>) {
        let Some(running) = &mut self.running[slot] else { return };
        running.n_open -= 1;
        if let Err(failure) = answer {
            running.retry_after = failure.retry_after;
            running.error.get_or_insert(LoadError::Refused(failure.code));
        }
        if running.n_open > 0 {
            return;
        }
        let Some(done) = self.running[slot].take() else { return };
        let now = Instant::now();
        let rest = match done.error {
            None => {
                let (rows, bytes) = (done.n_rows, done.n_rows * self.target.row_bytes);
                let times = (done.intended, now);
                self.tally.answered(done.kind, times, (rows as u64, bytes as u64));
                Duration::ZERO
            }
            Some(error) => {
                self.tally.failed(done.kind, error, (done.intended, now));
                // Many are refused at once, and must not all come back at once.
                let spread = 1.0 + (slot % 16) as f64 / 16.0;
                if matches!(error, LoadError::Refused(_)) {
                    done.retry_after.mul_f64(spread)
                } else {
                    REST
                }
            }
        };
        if rest.is_zero() {
            self.free.push_back(slot);
        } else {
            self.resting.push((now + rest, slot));
        }
    }
}
