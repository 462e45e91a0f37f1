//! One put: split by partition and holder, pushed frame by frame, tried again where it failed.
//!
//! A push is repeatable, since the same rows put twice are the same rows: so one whose outcome is
//! not known is sent again, within the attempts and the deadline; one that a server had no room for
//! until the deadline.

mod shares;

use std::sync::Arc;
use std::time::{Duration, Instant};

use lodestore_graph::{NodeId, PartId};
use lodestore_schema::limits::{PUSH_BODY_BYTES_MAX, ROWS_PER_PUSH_MAX};
use lodestore_schema::{Reply, Request, RequestBody};

use super::Client;
use super::fleet::Fleet;
use super::patience::{Patience, Remedy};
use super::pull::{Failed, worst};
use crate::connection::{Connection, time_left};
use crate::route::PartSet;
use crate::{Address, ClientError};
use shares::{Share, Taken, shares};

/// Pushes that one put has under way at once.
const PUSHES_AT_ONCE: usize = 8;

/// What a put moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutStats {
    /// Rows put.
    pub rows: u64,
    /// Bytes of these rows.
    pub bytes: u64,
    /// Pushes that it took: one or more for each holder of each partition.
    pub requests: u64,
    /// The version to commit to have all rows in one; 0 where there were none.
    pub version: u32,
}

/// What all pushes of one put share.
pub(super) struct Put<'a> {
    pub(super) tensor: u16,
    pub(super) ids: &'a [NodeId],
    pub(super) rows: &'a [u8],
    pub(super) row_bytes: usize,
    pub(super) deadline: Instant,
}

impl Put<'_> {
    fn rows_per_push(&self) -> usize {
        let fitting = PUSH_BODY_BYTES_MAX / (size_of::<NodeId>() + self.row_bytes);
        fitting.clamp(1, ROWS_PER_PUSH_MAX)
    }

    /// Positions by partition, each in the order of the put: the last row of a node stays last.
    fn by_part(&self, fleet: &Fleet) -> Result<Vec<(PartId, Vec<u32>)>, ClientError> {
        let book = &fleet.routes.book;
        let mut routed = Vec::with_capacity(self.ids.len());
        for (&node, position) in self.ids.iter().zip(0u32..) {
            let n_nodes = book.n_nodes();
            let part = book.part_of(node).ok_or(ClientError::UnknownNode { node, n_nodes })?;
            routed.push((part, position));
        }
        routed.sort_by_key(|&(part, _)| part);
        let parts = routed.chunk_by(|a, b| a.0 == b.0);
        Ok(parts.map(|rows| (rows[0].0, rows.iter().map(|&(_, at)| at).collect())).collect())
    }
}

impl Client {
    /// Pushes all rows to every holder; the first error that no retry helps ends it.
    pub(super) fn put_all(&self, put: &Put<'_>) -> Result<PutStats, ClientError> {
        let mut patience = Patience::new(&self.config, put.deadline);
        let mut fleet = self.whole_fleet(put.deadline, &mut patience)?;
        let by_part = put.by_part(&fleet)?;
        let (now, mut shares) = self.shares(fleet, &by_part, &[], put.deadline, &mut patience)?;
        fleet = now;
        let mut stats = PutStats {
            rows: put.ids.len() as u64,
            bytes: put.rows.len() as u64,
            ..PutStats::default()
        };
        loop {
            let before = stats.requests;
            let (at, failures) = try_round(&fleet, put, &mut shares, &mut stats);
            if stats.requests > before {
                patience.forgive();
            }
            if failures.is_empty() {
                if shares.iter().all(|share| share.done == share.positions.len()) {
                    return Ok(stats);
                }
                continue;
            }
            // Every holder must take its rows: no other helps. One that a live map names comes back,
            // at this address or another, or is taken out of the map: that is worth waiting for.
            let is_live = self.map.is_live();
            let remedies = failures.iter().map(|failed| match failed.remedy {
                remedy if remedy.is_final() => Remedy::None,
                Remedy::Again if is_live || fleet.is_on_its_way(failed) => {
                    Remedy::Later(Duration::ZERO)
                }
                remedy => remedy,
            });
            let Some(pause) = patience.pause(Remedy::deciding(remedies)) else {
                let fatal = failures.iter().position(|failed| failed.remedy.is_final());
                let at = at[fatal.unwrap_or(0)];
                return Err(told(&fleet, &shares, at, worst(failures)));
            };
            std::thread::sleep(pause);
            let known: Vec<Taken> = shares.iter().map(|share| share.taken(&fleet)).collect();
            fleet = self.after_failures(fleet, &failures, put.deadline)?;
            let deadline = put.deadline;
            (fleet, shares) = self.shares(fleet, &by_part, &known, deadline, &mut patience)?;
        }
    }

    /// What each holder of each partition must take, less what it has taken, and the fleet that
    /// these are of: where nobody has a partition, which is so for a moment while it moves, all
    /// servers are asked anew.
    fn shares<'a>(
        &self,
        mut fleet: Arc<Fleet>,
        by_part: &'a [(PartId, Vec<u32>)],
        known: &[Taken],
        deadline: Instant,
        patience: &mut Patience,
    ) -> Result<(Arc<Fleet>, Vec<Share<'a>>), ClientError> {
        loop {
            match shares(&fleet, by_part, known) {
                Ok(shares) => return Ok((fleet, shares)),
                Err(error) => fleet = self.after_gap(fleet, error, deadline, patience)?,
            }
        }
    }
}

/// The next push of some shares that are not done: all sent, then all answers taken. Gives what
/// failed, and of which share.
fn try_round(
    fleet: &Fleet,
    put: &Put<'_>,
    shares: &mut [Share<'_>],
    stats: &mut PutStats,
) -> (Vec<usize>, Vec<Failed>) {
    let mut failures: Vec<(usize, ClientError)> = Vec::new();
    let mut sent = Vec::new();
    let unfinished = shares.iter().enumerate().filter(|(_, s)| s.done < s.positions.len());
    for (at, share) in unfinished.take(PUSHES_AT_ONCE) {
        let left = &share.positions[share.done..];
        let positions = &left[..left.len().min(put.rows_per_push())];
        match push(fleet, put, share, positions) {
            Ok((endpoint, connection)) => sent.push((at, endpoint, connection, positions.len())),
            Err(error) => failures.push((at, error)),
        }
    }
    for (at, endpoint, mut connection, n_rows) in sent {
        let address = fleet.address(shares[at].server);
        match connection.receive(put.deadline) {
            Ok(Reply::Pushed { version }) => {
                shares[at].done += n_rows;
                stats.requests += 1;
                stats.version = stats.version.max(version);
                fleet.give_back(endpoint, connection);
            }
            Ok(_) => failures.push((at, ClientError::Confused { address: address.clone() })),
            Err(error) => {
                if error.leaves_connection() {
                    fleet.give_back(endpoint, connection);
                }
                failures.push((at, error));
            }
        }
    }
    let failed = |(at, error): (usize, ClientError)| {
        let mut parts = PartSet::default();
        parts.insert(shares[at].part);
        (at, Failed::new(shares[at].server, parts, error))
    };
    failures.into_iter().map(failed).unzip()
}

/// Sends one push to the shard that owns its first row; any would do.
fn push(
    fleet: &Fleet,
    put: &Put<'_>,
    share: &Share<'_>,
    positions: &[u32],
) -> Result<(usize, Connection), ClientError> {
    let first = put.ids[positions[0] as usize].0 - fleet.routes.book.range(share.part).start;
    let endpoint = fleet.routes.endpoint_at(share.server, put.tensor.into(), share.part, first);
    let mut connection = fleet.connection(endpoint, put.deadline)?;
    let left = Some(time_left(fleet.address(share.server), put.deadline)?);
    let n_rows = u32::try_from(positions.len()).expect("a push has at most ROWS_PER_PUSH_MAX rows");
    let change = fleet.routes.membership(share.part).change;
    let body = RequestBody::Push { tensor: put.tensor, n_rows, change };
    let request = Request { deadline: left, graph: fleet.graph, ..Request::new(body) };
    connection.send_push(&request, (put.ids, put.rows), positions, put.deadline)?;
    Ok((endpoint, connection))
}

/// The error of share `at`, with the holders that are ahead of it.
fn told(fleet: &Fleet, shares: &[Share<'_>], at: usize, error: ClientError) -> ClientError {
    let failed = &shares[at];
    let ahead: Vec<&Address> = shares
        .iter()
        .filter(|share| share.part == failed.part && share.done > failed.done)
        .map(|share| fleet.address(share.server))
        .collect();
    if ahead.is_empty() {
        return error;
    }
    let took: Vec<String> = ahead.iter().map(ToString::to_string).collect();
    ClientError::PutDiffers {
        part: failed.part,
        took: took.join(", "),
        address: fleet.address(failed.server).clone(),
        source: Box::new(error),
    }
}

#[cfg(test)]
mod tests {
    use lodestore_schema::Description;
    use proptest::prelude::*;

    use super::*;
    use crate::Security;

    proptest! {
        /// Sorts that are not stable are, for fewer than 21 rows.
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
            let fleet = Fleet::new(servers, Security::default(), Arc::default()).unwrap();
            let ids: Vec<NodeId> = ids.into_iter().map(NodeId).collect();
            let deadline = Instant::now();
            let put = Put { tensor: 0, ids: &ids, rows: &[], row_bytes: 0, deadline };
            let found = put.by_part(&fleet).unwrap();
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
