//! The requests of a worker. A request starts when it is due and ends when every shard has replied.

use std::time::{Duration, Instant};

use lodestore_graph::NodeId;
use lodestore_schema::limits::IDS_PER_PULL_MAX;
use lodestore_schema::{Failure, FailureCode, Request, RequestBody};

use super::Worker;
use crate::error::ClientError;
use crate::load::LoadConfig;
use crate::load::tally::LoadError;
use crate::route::Bucket;
use crate::source::PullKind;

/// Pause of a slot after its connection has failed.
const REST: Duration = Duration::from_millis(200);
/// Delay before a request for a moved partition is sent again.
const STRAY: Duration = Duration::from_millis(20);

/// A request in progress, at one or several shards.
pub(super) struct Running {
    pub(super) begun: Begun,
    n_rows: usize,
    /// Parts without a reply.
    n_open: usize,
    pub(super) error: Option<LoadError>,
    retry_after: Duration,
}

/// The properties of a request that stay the same when it is sent again.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    pub(super) kind: PullKind,
    /// Intended start.
    intended: Instant,
    /// Deadline.
    until: Instant,
}

/// A request to send again.
#[derive(Clone, Copy)]
pub(super) struct PutOff {
    slot: usize,
    begun: Begun,
}

impl Worker<'_> {
    /// Starts every request that is due, as long as there are free slots.
    pub(super) fn start_due(&mut self, now: Instant) -> Result<(), ClientError> {
        let free = &mut self.free;
        self.resting.retain(|&(until, slot)| {
            if until <= now {
                free.push_back(slot);
            }
            until > now
        });
        self.start_put_off(now)?;
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
        }
        self.flush_unsent()
    }

    /// Sends put-off requests again that are due.
    pub(super) fn start_put_off(&mut self, now: Instant) -> Result<(), ClientError> {
        let due: Vec<_> = self.put_off.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, PutOff { slot, begun }) in due {
            self.ask_shards(slot, begun)?;
        }
        self.flush_unsent()
    }

    fn flush_unsent(&mut self) -> Result<(), ClientError> {
        for at in std::mem::take(&mut self.unsent) {
            self.flush(at)?;
        }
        Ok(())
    }

    /// Draws a request and sends it.
    fn start(&mut self, slot: usize, intended: Instant) -> Result<(), ClientError> {
        let LoadConfig { rows, deadline, .. } = self.target.config;
        let mut ids = std::mem::take(&mut self.slot_ids[slot]);
        self.drawer.next(*rows, &mut ids);
        self.slot_ids[slot] = ids;
        let (kind, now) = (self.draw_kind(), Instant::now());
        self.tally.sent(intended, now);
        self.ask_shards(slot, Begun { kind, intended, until: now + *deadline })
    }

    /// Sends the request of a slot to every shard that owns some of its rows.
    fn ask_shards(&mut self, slot: usize, begun: Begun) -> Result<(), ClientError> {
        let target = self.target;
        let ids = std::mem::take(&mut self.slot_ids[slot]);
        let mut buckets = std::mem::take(&mut self.buckets);
        let positions = 0..u32::try_from(ids.len()).unwrap_or(u32::MAX);
        // Includes one for this function, so that the request cannot end before all parts are sent.
        let (n_rows, n_open, retry_after) = (ids.len(), 1, Duration::ZERO);
        let mut running = Running { begun, n_rows, n_open, error: None, retry_after };
        match self.view.routes.split(target.tensor.into(), &ids, positions, &mut buckets) {
            Ok(()) => {}
            Err(ClientError::NoReplica { .. }) => {
                running.error = Some(LoadError::Refused(FailureCode::Elsewhere));
                buckets.iter_mut().for_each(Bucket::clear);
            }
            Err(error) => return Err(error),
        }
        self.running[slot] = Some(running);
        let body = RequestBody::Pull { tensor: target.tensor, kind: begun.kind };
        let deadline = Some(begun.until.saturating_duration_since(Instant::now()));
        let request = Request { deadline, graph: self.view.graph, ..Request::new(body) };
        let first_socket = slot / target.config.window * self.n_endpoints();
        for (endpoint, bucket) in buckets.iter().enumerate() {
            for ids in bucket.ids.chunks(IDS_PER_PULL_MAX) {
                self.ask(first_socket + endpoint, slot, &request, ids);
            }
        }
        (self.slot_ids[slot], self.buckets) = (ids, buckets);
        self.end_part(slot, Ok(()));
        if let Some(view) = self.reshaped.take() {
            self.reshape(view)?;
        }
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
            (_, None) => unreachable!("`ask_shards` sets the running request"),
        }
    }

    pub(super) fn draw_kind(&mut self) -> PullKind {
        match self.words.fraction() < self.target.config.vector_share {
            true => PullKind::Vector,
            false => PullKind::Sync,
        }
    }

    /// Ends one part of a request; the request ends with its last part.
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
        let (now, Begun { kind, intended, until }) = (Instant::now(), done.begun);
        if done.error == Some(LoadError::Refused(FailureCode::Elsewhere)) {
            self.strayed = true;
            if now + STRAY < until {
                self.put_off.push((now + STRAY, PutOff { slot, begun: done.begun }));
                return;
            }
        }
        let rest = match done.error {
            None => {
                let (rows, bytes) = (done.n_rows, done.n_rows * self.target.row_bytes);
                self.tally.answered(kind, intended, now, rows as u64, bytes as u64);
                Duration::ZERO
            }
            Some(error) => {
                self.tally.failed(kind, error, intended, now);
                // Spread the retries of requests that were refused at the same time.
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
