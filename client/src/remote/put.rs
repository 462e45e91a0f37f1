//! One put: splits the rows by partition, sends them piece by piece to the writer of each
//! partition, and retries failures.
//!
//! A server puts all rows of a partition by one write, once it has the last piece. A piece may be
//! resent: the server recognizes the put by its number. If pieces are lost because the server
//! restarted or the partition moved, the client resends all of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lodestore_graph::{NodeId, PartId};
use lodestore_schema::limits::{PUSH_BODY_BYTES_MAX, PUT_BYTES_MAX, ROWS_PER_PUSH_MAX};
use lodestore_schema::request::Push;
use lodestore_schema::{FailureCode, Reply, Request, RequestBody};
use uuid::Uuid;

use super::Client;
use super::cluster_view::ClusterView;
use super::pull::{FailedRequest, decisive_error};
use super::retry::{RetryAction, RetryBudget};
use crate::connection::{Connection, time_left};
use crate::error::ClientError;
use crate::route::PartSet;

/// Pieces that one put has in flight, each for another partition.
const PIECES_AT_ONCE: usize = 8;

/// Counters of one put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutStats {
    /// Rows put.
    pub rows: u64,
    /// Bytes of these rows.
    pub bytes: u64,
    /// Pieces acknowledged: one or more for each partition.
    pub requests: u64,
    /// The version to commit, so that one version has all rows; 0 if there were no rows.
    pub version: u32,
}

/// State shared by all pieces of one put.
pub(super) struct Put<'a> {
    pub(super) tensor: u16,
    pub(super) ids: &'a [NodeId],
    pub(super) rows: &'a [u8],
    pub(super) row_bytes: usize,
    pub(super) deadline: Instant,
}

/// The rows of one partition, and how many of them the writer has acknowledged.
struct Share {
    part: PartId,
    writer: usize,
    /// Indices of these rows in the put, ascending.
    positions: Vec<u32>,
    n_sent: usize,
    n_pieces: u32,
    /// Whether all rows are durable.
    is_done: bool,
}

/// A piece in flight.
struct Sent {
    endpoint: usize,
    connection: Connection,
    n_rows: usize,
}

impl Put<'_> {
    fn rows_per_piece(&self) -> usize {
        let fitting = PUSH_BODY_BYTES_MAX / (size_of::<NodeId>() + self.row_bytes);
        fitting.clamp(1, ROWS_PER_PUSH_MAX)
    }

    /// Splits the rows by partition. Each share keeps the order of the put, so that the last row of
    /// a node stays last.
    fn by_part(&self, view: &ClusterView) -> Result<Vec<Share>, ClientError> {
        let book = &view.routes.book;
        let mut routed = Vec::with_capacity(self.ids.len());
        for (&node, position) in self.ids.iter().zip(0u32..) {
            let n_nodes = book.n_nodes();
            let part = book.part_of(node).ok_or(ClientError::UnknownNode { node, n_nodes })?;
            routed.push((part, position));
        }
        routed.sort_by_key(|&(part, _)| part);
        let share = |rows: &[(PartId, u32)]| {
            let (part, n_bytes) = (rows[0].0, rows.len() as u64 * self.row_bytes as u64);
            if n_bytes > PUT_BYTES_MAX {
                return Err(ClientError::PutTooLarge { part, n_bytes });
            }
            let positions = rows.iter().map(|&(_, at)| at).collect();
            let (writer, n_sent, n_pieces, is_done) = (0, 0, 0, false);
            Ok(Share { part, writer, positions, n_sent, n_pieces, is_done })
        };
        routed.chunk_by(|a, b| a.0 == b.0).map(share).collect()
    }
}

impl Client {
    /// Sends all rows to the writers of their partitions. Fails with the first error that no retry
    /// helps.
    pub(super) fn put_all(&self, put: &Put<'_>) -> Result<PutStats, ClientError> {
        let mut retry = RetryBudget::new(&self.config, put.deadline);
        let mut view = self.current_view(put.deadline)?;
        // From the random source of the system: forked processes draw different ids.
        let (mut shares, id) = (put.by_part(&view)?, Uuid::new_v4().as_u128());
        view = self.find_writers(view, &mut shares, &mut retry)?;
        let mut stats = PutStats {
            rows: put.ids.len() as u64,
            bytes: put.rows.len() as u64,
            ..PutStats::default()
        };
        loop {
            let before = stats.requests;
            let failures = try_round(&view, put, id, &mut shares, &mut stats);
            if stats.requests > before {
                retry.reset();
            }
            if failures.is_empty() {
                if shares.iter().all(|share| share.is_done) {
                    return Ok(stats);
                }
                continue;
            }
            // No other server accepts these rows. The writer in a live map returns at this address
            // or another, so the put waits for it.
            let is_live = self.map.is_live();
            let actions = failures.iter().map(|failed| match failed.action.without_others() {
                RetryAction::Again if is_live || view.is_on_its_way(failed) => {
                    RetryAction::Later(Duration::ZERO)
                }
                action => action,
            });
            let Some(pause) = retry.pause(RetryAction::deciding(actions)) else {
                return Err(retry.report(decisive_error(failures), &view));
            };
            view.warn_of_outage(&failures, retry.time_left());
            std::thread::sleep(pause);
            let before = Arc::clone(&view);
            view = self.after_failures(view, &failures, put.deadline)?;
            view = self.find_writers(view, &mut shares, &mut retry)?;
            restart_elsewhere(&before, &view, &mut shares);
        }
    }

    /// Finds the writer of each unfinished share; returns the view that has these writers.
    fn find_writers(
        &self,
        view: Arc<ClusterView>,
        shares: &mut [Share],
        retry: &mut RetryBudget,
    ) -> Result<Arc<ClusterView>, ClientError> {
        let (view, ()) = self.plan_on(view, retry, |view| {
            for share in shares.iter_mut().filter(|share| !share.is_done) {
                share.writer = view.writer_of(share.part)?;
            }
            Ok(())
        })?;
        Ok(view)
    }
}

/// Restarts each share whose writer is another server now, or has restarted.
fn restart_elsewhere(before: &ClusterView, now: &ClusterView, shares: &mut [Share]) {
    for share in shares.iter_mut().filter(|share| !share.is_done) {
        let writer = now.describes(share.writer);
        let known = before.position(now.address(share.writer));
        if known.is_none_or(|at| !before.describes(at).is_same_server(writer)) {
            (share.n_sent, share.n_pieces) = (0, 0);
        }
    }
}

/// Sends the next piece of some unfinished shares, then receives all replies. Returns the failures.
fn try_round(
    view: &ClusterView,
    put: &Put<'_>,
    id: u128,
    shares: &mut [Share],
    stats: &mut PutStats,
) -> Vec<FailedRequest> {
    let mut failures: Vec<(usize, ClientError)> = Vec::new();
    let mut in_flight = Vec::new();
    let unfinished = shares.iter().enumerate().filter(|(_, share)| !share.is_done);
    for (at, share) in unfinished.take(PIECES_AT_ONCE) {
        match send_piece(view, put, id, share) {
            Ok(sent) => in_flight.push((at, sent)),
            Err(error) => failures.push((at, error)),
        }
    }
    for (at, Sent { endpoint, mut connection, n_rows }) in in_flight {
        let share = &mut shares[at];
        let error = match connection.receive(put.deadline) {
            Ok(Reply::Pushed { version }) => {
                share.n_sent += n_rows;
                share.n_pieces += 1;
                // A version before the last piece: an earlier attempt had put all rows.
                share.is_done = version > 0;
                stats.requests += 1;
                stats.version = stats.version.max(version);
                view.give_back(endpoint, connection);
                if version > 0 || share.n_sent < share.positions.len() {
                    continue;
                }
                ClientError::Confused { address: view.address(share.writer).clone() }
            }
            Ok(_) => ClientError::Confused { address: view.address(share.writer).clone() },
            Err(error) => {
                if is_lost(&error) {
                    (share.n_sent, share.n_pieces) = (0, 0);
                }
                if error.leaves_connection() {
                    view.give_back(endpoint, connection);
                }
                error
            }
        };
        failures.push((at, error));
    }
    let failed = |(at, error): (usize, ClientError)| {
        let mut parts = PartSet::default();
        parts.insert(shares[at].part);
        FailedRequest::new(shares[at].writer, parts, error)
    };
    failures.into_iter().map(failed).collect()
}

fn is_lost(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused { failure, .. } if failure.code == FailureCode::PutLost)
}

/// Sends the next piece of a share to the shard that owns its first row; any shard accepts it.
fn send_piece(
    view: &ClusterView,
    put: &Put<'_>,
    id: u128,
    share: &Share,
) -> Result<Sent, ClientError> {
    let left = &share.positions[share.n_sent..];
    let positions = &left[..left.len().min(put.rows_per_piece())];
    let first = put.ids[positions[0] as usize].0 - view.routes.book.range(share.part).start;
    let (writer, tensor) = (share.writer, usize::from(put.tensor));
    let endpoint = view.routes.endpoint_at(writer, tensor, share.part, first);
    let endpoint = endpoint.ok_or_else(|| view.routes.why_no_tensor(writer, tensor))?;
    let mut connection = view.connection(endpoint, put.deadline)?;
    let time = Some(time_left(view.address(share.writer), put.deadline)?);
    let count = |n: usize| u32::try_from(n).expect("positions of a put are 32-bit numbers");
    let push = Push {
        tensor: view.routes.position_at(endpoint, tensor),
        n_rows: count(positions.len()),
        put: id,
        piece: share.n_pieces,
        is_last: positions.len() == left.len(),
        total_rows: count(share.positions.len()),
    };
    let body = RequestBody::Push(push);
    let graph = view.tensor_tag(tensor, connection.version());
    let request = Request { deadline: time, graph, ..Request::new(body) };
    connection.send_rows(&request, put.ids, put.rows, positions, put.deadline)?;
    Ok(Sent { endpoint, connection, n_rows: positions.len() })
}

#[cfg(test)]
mod tests {
    use lodestore_schema::reply::Description;
    use proptest::prelude::*;

    use super::*;
    use crate::security::Security;

    proptest! {
        /// An unstable sort keeps the order of fewer than 21 rows.
        #[test]
        fn rows_of_a_partition_stay_in_the_order_of_the_put(
            ids in prop::collection::vec(0u32..12, 0..400),
        ) {
            let description = Description {
                graph: [7; 16],
                bounds: vec![0, 3, 3, 9, 12],
                parts: vec![0, 1, 2, 3],
                n_shards: 1,
                ..Description::default()
            };
            let servers = vec![("127.0.0.1:9".parse().unwrap(), description)];
            let (tensors, sharing) = (Arc::from([]), Arc::default());
            let view = ClusterView::new(servers, tensors, Security::default(), sharing).unwrap();
            let ids: Vec<NodeId> = ids.into_iter().map(NodeId).collect();
            let deadline = Instant::now();
            let put = Put { tensor: 0, ids: &ids, rows: &[], row_bytes: 0, deadline };
            let found = put.by_part(&view).unwrap().into_iter();
            let found: Vec<_> = found.map(|share| (share.part, share.positions)).collect();
            let of_part = |range: std::ops::Range<u32>| {
                let rows = (0u32..).zip(&ids).filter(|(_, id)| range.contains(&id.0));
                rows.map(|(at, _)| at).collect::<Vec<u32>>()
            };
            let naive = [(0, of_part(0..3)), (2, of_part(3..9)), (3, of_part(9..12))];
            let naive = naive.into_iter().map(|(part, rows)| (PartId(part), rows));
            let naive: Vec<_> = naive.filter(|(_, rows)| !rows.is_empty()).collect();
            prop_assert_eq!(found, naive);
        }
    }
}
