//! One pull: split by shard, ask all, receive all, try again what failed.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use lodestore_graph::NodeId;
use lodestore_schema::limits::IDS_PER_PULL_MAX;
use lodestore_schema::{FailureCode, PullKind, Request, RequestBody};
use tracing::debug;

use super::Client;
use super::fleet::Fleet;
use crate::ClientError;
use crate::connection::{Connection, time_left};
use crate::route::Bucket;

/// First pause before a retry; it doubles.
const BACKOFF: Duration = Duration::from_millis(10);

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
        let mut fleet = self.fleet();
        fleet.routes.split(pull.tensor.into(), ids, 0..row_count(ids), buckets)?;
        let (mut requests, mut attempt) = (0, 0);
        loop {
            let failed = try_all(&fleet, pull, out, buckets, &mut requests);
            let Some((endpoint, error)) = failed else { return Ok(requests) };
            attempt += 1;
            let address = &fleet.routes.endpoints[endpoint].address;
            debug!(%address, attempt, %error, "pull failed");
            let pause = self.pause_before_retry(&error, attempt).ok_or(error)?;
            std::thread::sleep(pause.min(time_left(address, pull.deadline)?));
            fleet = self.after_failure(fleet, endpoint, pull.deadline)?;
            let left: Vec<u32> = buckets.iter().flat_map(|b| b.positions.iter().copied()).collect();
            fleet.routes.split(pull.tensor.into(), ids, left.into_iter(), buckets)?;
        }
    }

    /// The fleet to try next: with the failed server as it is now, or with another asked instead.
    fn after_failure(
        &self,
        fleet: Arc<Fleet>,
        endpoint: usize,
        deadline: Instant,
    ) -> Result<Arc<Fleet>, ClientError> {
        let server = fleet.routes.endpoints[endpoint].server;
        match fleet.rediscover(server, deadline)? {
            Some(found) => {
                let mut current = self.fleet.write().unwrap_or_else(PoisonError::into_inner);
                *current = Arc::clone(&found);
                Ok(found)
            }
            None => {
                fleet.routes.avoid(server);
                Ok(fleet)
            }
        }
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

/// One attempt at every bucket. Those that succeed are emptied; of the others one error comes back,
/// with its endpoint.
fn try_all(
    fleet: &Fleet,
    pull: &Pull,
    out: &mut [u8],
    buckets: &mut [Bucket],
    requests: &mut u64,
) -> Option<(usize, ClientError)> {
    let mut failed = None;
    let mut asked = Vec::new();
    for (endpoint, bucket) in buckets.iter().enumerate().filter(|(_, b)| !b.ids.is_empty()) {
        match ask(fleet, endpoint, pull, bucket) {
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
                fleet.give_back(endpoint, connection);
            }
            Err(error) => failed = Some((endpoint, error)),
        }
    }
    if let Some((endpoint, _)) = failed {
        fleet.forget(endpoint);
    }
    failed
}

/// Sends the first request of a bucket.
fn ask(
    fleet: &Fleet,
    endpoint: usize,
    pull: &Pull,
    bucket: &Bucket,
) -> Result<Connection, ClientError> {
    let mut connection = fleet.connection(endpoint, pull.deadline)?;
    let n_ids = bucket.ids.len().min(IDS_PER_PULL_MAX);
    connection.send(&pull.request(), &bucket.ids[..n_ids], pull.deadline)?;
    Ok(connection)
}

/// Positions of a batch travel as 32 bits.
fn row_count(ids: &[NodeId]) -> u32 {
    u32::try_from(ids.len()).expect("a batch has fewer rows than 2^32")
}
