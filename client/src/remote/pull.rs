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
pub(super) const BACKOFF: Duration = Duration::from_millis(10);

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
            let failures = try_all(&fleet, pull, out, buckets, &mut requests);
            let server_of = |endpoint: usize| fleet.routes.endpoints[endpoint].server;
            let failed: Vec<usize> = failures.iter().map(|&(at, _)| server_of(at)).collect();
            let Some((endpoint, error)) = worst(failures) else { return Ok(requests) };
            attempt += 1;
            let address = &fleet.routes.endpoints[endpoint].address;
            debug!(%address, attempt, %error, "pull failed");
            let pause = self.pause_before_retry(&error, attempt).ok_or(error)?;
            std::thread::sleep(pause.min(time_left(address, pull.deadline)?));
            fleet = self.after_failures(fleet, failed, pull.deadline)?;
            // Buckets keep the order of positions, which receiving relies on.
            let mut left: Vec<u32> =
                buckets.iter().flat_map(|bucket| bucket.positions.iter().copied()).collect();
            left.sort_unstable();
            fleet.routes.split(pull.tensor.into(), ids, left.into_iter(), buckets)?;
        }
    }

    /// The fleet to try next: each failed server as it is now, or another asked instead.
    pub(super) fn after_failures(
        &self,
        mut fleet: Arc<Fleet>,
        mut servers: Vec<usize>,
        deadline: Instant,
    ) -> Result<Arc<Fleet>, ClientError> {
        servers.sort_unstable();
        servers.dedup();
        for server in servers {
            fleet.forget(server);
            match fleet.rediscover(server, deadline)? {
                Some(found) => {
                    let mut current = self.fleet.write().unwrap_or_else(PoisonError::into_inner);
                    *current = Arc::clone(&found);
                    fleet = found;
                }
                None => fleet.routes.avoid(server),
            }
        }
        Ok(fleet)
    }

    pub(super) fn pause_before_retry(&self, error: &ClientError, attempt: u32) -> Option<Duration> {
        if attempt >= self.config.attempts {
            return None;
        }
        Some(retry_after(error)?.max(BACKOFF * (1 << (attempt - 1).min(6))))
    }
}

/// How long to wait before what failed so is worth another try; `None`: it never is.
pub(super) fn retry_after(error: &ClientError) -> Option<Duration> {
    match error {
        ClientError::Connect { .. } | ClientError::Unavailable { .. } => Some(Duration::ZERO),
        ClientError::Refused { failure, .. } => match failure.code {
            FailureCode::Overloaded | FailureCode::Stopping => Some(failure.retry_after),
            _ => None,
        },
        _ => None,
    }
}

/// An error that no retry helps, if there is one; else the first.
pub(super) fn worst(mut failures: Vec<(usize, ClientError)>) -> Option<(usize, ClientError)> {
    let fatal = failures.iter().position(|(_, error)| retry_after(error).is_none());
    (!failures.is_empty()).then(|| failures.swap_remove(fatal.unwrap_or(0)))
}

/// One attempt at every bucket, in rounds of one request each, so that no shard waits long for its
/// answer to be taken. Buckets that succeed are emptied; of the others the errors come back, with
/// their endpoints in order.
fn try_all(
    fleet: &Fleet,
    pull: &Pull,
    out: &mut [u8],
    buckets: &mut [Bucket],
    requests: &mut u64,
) -> Vec<(usize, ClientError)> {
    let mut failures: Vec<(usize, ClientError)> = Vec::new();
    let n_rounds = buckets.iter().map(|b| b.ids.len().div_ceil(IDS_PER_PULL_MAX)).max();
    for round in 0..n_rounds.unwrap_or(0) {
        let mut asked = Vec::new();
        for (endpoint, bucket) in buckets.iter().enumerate() {
            let Some(ids) = bucket.ids.chunks(IDS_PER_PULL_MAX).nth(round) else { continue };
            if failures.iter().any(|(failed, _)| *failed == endpoint) {
                continue;
            }
            match ask(fleet, endpoint, pull, ids) {
                Ok(connection) => asked.push((endpoint, connection)),
                Err(error) => failures.push((endpoint, error)),
            }
        }
        for (endpoint, mut connection) in asked {
            let positions = buckets[endpoint].positions.chunks(IDS_PER_PULL_MAX).nth(round);
            let positions = positions.unwrap_or_default();
            match connection.receive_rows(positions, pull.row_bytes, out, pull.deadline) {
                Ok(()) => {
                    *requests += 1;
                    fleet.give_back(endpoint, connection);
                }
                Err(error) => failures.push((endpoint, error)),
            }
        }
    }
    failures.sort_unstable_by_key(|(endpoint, _)| *endpoint);
    for (endpoint, bucket) in buckets.iter_mut().enumerate() {
        if failures.iter().all(|(failed, _)| *failed != endpoint) {
            bucket.ids.clear();
            bucket.positions.clear();
        }
    }
    failures
}

/// Sends one request of a bucket.
fn ask(
    fleet: &Fleet,
    endpoint: usize,
    pull: &Pull,
    ids: &[NodeId],
) -> Result<Connection, ClientError> {
    let mut connection = fleet.connection(endpoint, pull.deadline)?;
    connection.send(&pull.request(), ids, pull.deadline)?;
    Ok(connection)
}

/// Positions of a batch travel as 32 bits.
fn row_count(ids: &[NodeId]) -> u32 {
    u32::try_from(ids.len()).expect("a batch has fewer rows than 2^32")
}
