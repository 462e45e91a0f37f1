//! One pull: split by shard, ask all, receive all, try again what failed.

use std::time::{Duration, Instant};

use lodestore_graph::NodeId;
use lodestore_schema::limits::IDS_PER_PULL_MAX;
use lodestore_schema::{FailureCode, PullKind, Request, RequestBody};
use tracing::debug;

use super::{Client, lock};
use crate::ClientError;
use crate::connection::{Connection, time_left};
use crate::route::Bucket;

/// First pause before a retry; it doubles.
const BACKOFF: Duration = Duration::from_millis(10);
/// Idle connections kept per shard.
const IDLE_MAX: usize = 16;

/// What all requests of one pull share.
pub(super) struct Pull {
    pub(super) tensor: u16,
    pub(super) row_bytes: usize,
    pub(super) kind: PullKind,
    pub(super) deadline: Instant,
}

impl Pull {
    fn request(&self) -> Request {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let body = RequestBody::Pull { tensor: self.tensor, kind: self.kind };
        Request { deadline: Some(left), body }
    }
}

/// Receives a bucket's rows; ids past the first request are asked for as they are reached.
fn receive(
    connection: &mut Connection,
    pull: &Pull,
    bucket: &Bucket,
    out: &mut [u8],
) -> Result<u64, ClientError> {
    let mut requests = 0;
    let ids = bucket.ids.chunks(IDS_PER_PULL_MAX);
    for (ids, positions) in ids.zip(bucket.positions.chunks(IDS_PER_PULL_MAX)) {
        if requests > 0 {
            connection.send(&pull.request(), ids, pull.deadline)?;
        }
        connection.receive_rows(positions, pull.row_bytes, out, pull.deadline)?;
        requests += 1;
    }
    Ok(requests)
}

impl Client {
    /// Tries all buckets until none is left; returns the number of requests.
    pub(super) fn pull_all(
        &self,
        pull: &Pull,
        ids: &[NodeId],
        out: &mut [u8],
        buckets: &mut Vec<Bucket>,
    ) -> Result<u64, ClientError> {
        self.routes.split(pull.tensor.into(), ids, 0..row_count(ids), buckets)?;
        let (mut requests, mut attempt) = (0, 0);
        loop {
            let Some((endpoint, error)) = self.try_all(pull, out, buckets, &mut requests) else {
                return Ok(requests);
            };
            attempt += 1;
            let pause = self.pause_before_retry(&error, attempt).ok_or(error)?;
            let endpoint = &self.routes.endpoints[endpoint];
            time_left(&endpoint.address, pull.deadline)?;
            debug!(address = %endpoint.address, attempt, "pull failed; trying again");
            std::thread::sleep(pause);
            self.routes.avoid(endpoint.server);
            let left: Vec<u32> = buckets.iter().flat_map(|b| b.positions.iter().copied()).collect();
            self.routes.split(pull.tensor.into(), ids, left.into_iter(), buckets)?;
        }
    }

    /// One attempt at every bucket. Those that succeed are emptied; of the others one error comes
    /// back, with its endpoint.
    fn try_all(
        &self,
        pull: &Pull,
        out: &mut [u8],
        buckets: &mut [Bucket],
        requests: &mut u64,
    ) -> Option<(usize, ClientError)> {
        let mut failed = None;
        let mut asked = Vec::new();
        for (endpoint, bucket) in buckets.iter().enumerate().filter(|(_, b)| !b.ids.is_empty()) {
            match self.ask(endpoint, pull, bucket) {
                Ok(connection) => asked.push((endpoint, connection)),
                Err(error) => failed = Some((endpoint, error)),
            }
        }
        for (endpoint, mut connection) in asked {
            let bucket = &mut buckets[endpoint];
            match receive(&mut connection, pull, bucket, out) {
                Ok(n) => {
                    *requests += n;
                    bucket.ids.clear();
                    bucket.positions.clear();
                    let mut idle = lock(&self.idle[endpoint]);
                    if idle.len() < IDLE_MAX {
                        idle.push(connection);
                    }
                }
                Err(error) => {
                    // Its neighbours in the pool are of the same age.
                    lock(&self.idle[endpoint]).clear();
                    failed = Some((endpoint, error));
                }
            }
        }
        failed
    }

    /// Sends the first request of a bucket.
    fn ask(
        &self,
        endpoint: usize,
        pull: &Pull,
        bucket: &Bucket,
    ) -> Result<Connection, ClientError> {
        let pooled = lock(&self.idle[endpoint]).pop();
        let mut connection = match pooled {
            Some(connection) => connection,
            None => Connection::open(&self.routes.endpoints[endpoint].address, pull.deadline)?,
        };
        let n_ids = bucket.ids.len().min(IDS_PER_PULL_MAX);
        let sent = connection.send(&pull.request(), &bucket.ids[..n_ids], pull.deadline);
        if sent.is_err() {
            lock(&self.idle[endpoint]).clear();
        }
        sent.map(|()| connection)
    }

    fn pause_before_retry(&self, error: &ClientError, attempt: u32) -> Option<Duration> {
        if attempt >= self.config.attempts {
            return None;
        }
        let least = match error {
            ClientError::Connect { .. } | ClientError::Unavailable { .. } => Duration::ZERO,
            ClientError::Refused { failure, .. } => match failure.code {
                FailureCode::Overloaded | FailureCode::Stopping => failure.retry_after,
                _ => return None,
            },
            _ => return None,
        };
        Some(least.max(BACKOFF * (1 << (attempt - 1).min(6))))
    }
}

/// Positions of a batch travel as 32 bits.
fn row_count(ids: &[NodeId]) -> u32 {
    u32::try_from(ids.len()).expect("a batch has fewer rows than 2^32")
}
