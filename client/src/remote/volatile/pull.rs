//! A pull of volatile rows: one request per shard. All requests are sent before the first reply is
//! read, and replies are received as they arrive.

use std::time::{Duration, Instant};

use lodestore_cache::volatile::{NO_STAMP, Stamp};
use lodestore_graph::NodeId;
use lodestore_schema::limits::IDS_PER_PULL_MAX;
use lodestore_schema::name::Name;
use lodestore_schema::request::PullVolatile;
use lodestore_schema::{Request, RequestBody, Stripes};

use super::super::Client;
use super::super::cluster_view::ClusterView;
use super::super::pull::FailedRequest;
use super::super::retry::RetryBudget;
use super::wire_name;
use crate::connection::{Connection, Place, Progress, wait_for_any};
use crate::error::ClientError;
use crate::route::Bucket;
use crate::volatile::{StampWanted, VolatileInfo};

/// State shared by all requests of one pull.
struct VolatilePull<'a> {
    name: Name,
    info: &'a VolatileInfo,
    row_bytes: usize,
    min_stamp: Stamp,
    /// Until when servers wait for rows with `min_stamp`.
    until: Instant,
    deadline: Instant,
    ids: &'a [NodeId],
}

/// A request in flight, and the progress of its reply.
struct VolatileRequest<'a> {
    endpoint: usize,
    share: &'a Bucket,
    /// Positions of its rows in the output.
    positions: &'a [u32],
    connection: Connection,
    progress: Progress,
}

impl Client {
    /// Pulls rows into `out`, and returns the stamp of each.
    pub(super) fn pull_stamps(
        &self,
        info: &VolatileInfo,
        ids: &[NodeId],
        wanted: StampWanted,
        out: &mut [u8],
    ) -> Result<Vec<Stamp>, ClientError> {
        let (begun, time) = (Instant::now(), self.config.deadline);
        let deadline = begun + time;
        // The rest of the time is for the reply.
        let wait_max = time - (time / 10).min(Duration::from_secs(1));
        let pull = VolatilePull {
            name: wire_name(&info.tensor.name)?,
            info,
            row_bytes: info.tensor.row_bytes(),
            min_stamp: wanted.min_stamp,
            until: begun + wanted.wait.min(wait_max),
            deadline,
            ids,
        };
        let mut stamps = vec![NO_STAMP; ids.len()];
        // Positions in a batch have 32 bits.
        let n_ids = u32::try_from(ids.len());
        let n_ids = n_ids.map_err(|_| ClientError::TooManyRows { n_rows: ids.len() })?;
        let mut left: Vec<u32> = (0..n_ids).collect();
        let mut retry = RetryBudget::new(&self.config, deadline);
        let mut view = self.current_view(deadline)?;
        while !left.is_empty() {
            let shares;
            (view, shares) = self.plan_on(view, &mut retry, |view| split(view, &pull, &left))?;
            let failures = try_all(&view, &pull, &shares, out, &mut stamps)?;
            if failures.is_empty() {
                break;
            }
            left.clear();
            for (endpoint, _) in &failures {
                left.extend_from_slice(&shares[*endpoint].positions);
            }
            left.sort_unstable();
            left.dedup();
            let failures: Vec<_> = failures.into_iter().map(|(_, failed)| failed).collect();
            self.check_shape(info, &failures)?;
            view = self.retry_alone(view, failures, &mut retry)?;
        }
        Ok(stamps)
    }
}

/// Returns a share for each endpoint. Any shard has all rows of its server, so the rows are
/// distributed like those of a stored tensor of that width.
fn split(
    view: &ClusterView,
    pull: &VolatilePull<'_>,
    positions: &[u32],
) -> Result<Vec<Bucket>, ClientError> {
    let book = &view.routes.book;
    let mut shares = Vec::new();
    shares.resize_with(view.routes.endpoints.len(), Bucket::default);
    let mut servers: Vec<Option<(usize, Stripes)>> = vec![None; book.n_parts().into()];
    for &position in positions {
        let node = pull.ids[position as usize];
        let n_nodes = book.n_nodes();
        let (part, row) = book.locate(node).ok_or(ClientError::UnknownNode { node, n_nodes })?;
        let (server, stripes) = match servers[part.index()] {
            Some(known) => known,
            None => {
                let server = view.volatile_server(part)?;
                let n_shards = view.describes(server).n_shards.max(1);
                let row_bytes = u32::try_from(pull.row_bytes).unwrap_or(u32::MAX);
                let found = (server, Stripes::for_rows(n_shards, row_bytes));
                servers[part.index()] = Some(found);
                found
            }
        };
        let shard = stripes.shard_of(part.0, row);
        let share = &mut shares[view.routes.shard_endpoint(server, shard)];
        share.ids.push(node);
        share.positions.push(position);
        share.parts.insert(part);
    }
    Ok(shares)
}

/// Makes one attempt at every share, in rounds of one request each. Returns the failures by
/// endpoint.
fn try_all(
    view: &ClusterView,
    pull: &VolatilePull<'_>,
    shares: &[Bucket],
    out: &mut [u8],
    stamps: &mut [Stamp],
) -> Result<Vec<(usize, FailedRequest)>, ClientError> {
    let mut failures = Vec::new();
    let n_rounds = shares.iter().map(|share| share.ids.len().div_ceil(IDS_PER_PULL_MAX)).max();
    for round in 0..n_rounds.unwrap_or(0) {
        let mut in_flight = Vec::new();
        for (endpoint, share) in shares.iter().enumerate() {
            let first = round * IDS_PER_PULL_MAX;
            if first >= share.ids.len() {
                continue;
            }
            let end = share.ids.len().min(first + IDS_PER_PULL_MAX);
            match ask(view, pull, endpoint, &share.ids[first..end]) {
                Ok(connection) => in_flight.push(VolatileRequest {
                    endpoint,
                    share,
                    positions: &share.positions[first..end],
                    connection,
                    progress: Progress::new(),
                }),
                Err(error) => failures.push((endpoint, failed(view, endpoint, share, error))),
            }
        }
        failures.extend(receive(view, pull, in_flight, out, stamps)?);
    }
    Ok(failures)
}

fn failed(
    view: &ClusterView,
    endpoint: usize,
    share: &Bucket,
    error: ClientError,
) -> FailedRequest {
    FailedRequest::new(view.routes.endpoints[endpoint].server, share.parts.clone(), error)
}

fn ask(
    view: &ClusterView,
    pull: &VolatilePull<'_>,
    endpoint: usize,
    ids: &[NodeId],
) -> Result<Connection, ClientError> {
    let n_bytes = ids.len() * pull.row_bytes;
    let mut connection = view.connection_for_rows(endpoint, None, n_bytes, pull.deadline)?;
    let now = Instant::now();
    // The wire has whole milliseconds: round up.
    let wait = pull.until.saturating_duration_since(now).as_micros().div_ceil(1000);
    let wait = Duration::from_millis(u64::try_from(wait).unwrap_or(u64::MAX));
    let body = RequestBody::PullVolatile(PullVolatile {
        name: pull.name,
        min_stamp: pull.min_stamp,
        wait,
    });
    let left = Some(pull.deadline.saturating_duration_since(now).max(Duration::from_millis(1)));
    let graph = super::tag_of(view, pull.info, connection.version());
    let request = Request { deadline: left, graph, ..Request::new(body) };
    connection.send(&request, ids, pull.deadline)?;
    Ok(connection)
}

/// Receives all replies, each row at its position in `out`. Returns the failures by endpoint.
fn receive(
    view: &ClusterView,
    pull: &VolatilePull<'_>,
    mut in_flight: Vec<VolatileRequest<'_>>,
    out: &mut [u8],
    stamps: &mut [Stamp],
) -> Result<Vec<(usize, FailedRequest)>, ClientError> {
    let mut failures = Vec::new();
    while !in_flight.is_empty() {
        let is_here = |one: &VolatileRequest<'_>| one.connection.has_buffered(&one.progress);
        let are_here = in_flight.iter().map(is_here).collect();
        let connections = in_flight.iter().map(|one| &one.connection);
        let ready = wait_for_any(connections, are_here, pull.deadline)?;
        let is_late = Instant::now() >= pull.deadline;
        let mut ready = ready.into_iter();
        let mut left = Vec::with_capacity(in_flight.len());
        for mut one in in_flight {
            let taken = if ready.next().unwrap_or(false) {
                let mut place = Place {
                    positions: one.positions,
                    row_bytes: pull.row_bytes,
                    out: &mut *out,
                    stamps: Some(&mut *stamps),
                };
                one.connection.take_rows(&mut one.progress, &mut place, pull.deadline)
            } else if is_late {
                let address = view.routes.endpoints[one.endpoint].address.clone();
                Err(ClientError::Deadline { address })
            } else {
                Ok(false)
            };
            match taken {
                Ok(false) => left.push(one),
                Ok(true) => view.give_back(one.endpoint, one.connection),
                Err(error) => {
                    let failed = failed(view, one.endpoint, one.share, error);
                    if failed.error.leaves_connection() {
                        view.give_back(one.endpoint, one.connection);
                    }
                    failures.push((one.endpoint, failed));
                }
            }
        }
        in_flight = left;
    }
    Ok(failures)
}
