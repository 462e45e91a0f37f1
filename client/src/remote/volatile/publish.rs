//! A publisher on servers: one connection per server, which owns the claims. Pieces of rows are
//! sent without waiting for the replies to earlier pieces.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::Instant;

use lodestore_cache::volatile::Stamp;
use lodestore_graph::{NodeId, PartId};
use lodestore_schema::limits::{CLAIM_RANGES_MAX, PUSH_BODY_BYTES_MAX, ROWS_PER_PUBLISH_MAX};
use lodestore_schema::name::Name;
use lodestore_schema::request::Publish;
use lodestore_schema::{Reply, Request, RequestBody};

use super::super::Client;
use super::super::cluster_view::ClusterView;
use super::super::pull::FailedRequest;
use super::super::retry::{RetryAction, RetryBudget};
use super::wire_name;
use crate::address::Address;
use crate::connection::{Connection, time_left};
use crate::error::ClientError;
use crate::route::PartSet;
use crate::volatile::{VolatileInfo, VolatilePublisher, VolatileSource};

/// Bytes of a piece, few enough that a server publishes one piece while the next is in transit.
const PIECE_BYTES: usize = 1 << 20;
/// Pieces in flight to one server.
const PIECES_AT_ONCE: usize = 4;

const _: () = assert!(PIECE_BYTES <= PUSH_BODY_BYTES_MAX);

/// A publisher with its claims on servers.
pub(super) struct RemotePublisher<'a> {
    client: &'a Client,
    links: Vec<PublishLink>,
    /// By tensor: claimed ids, ascending, and the link that holds the claim.
    claims: HashMap<String, Vec<(Range<u32>, usize)>>,
}

/// The connection to one server.
struct PublishLink {
    address: Address,
    /// `None` once the connection has failed, which ended its claims.
    connection: Option<Connection>,
}

/// Data shared by all pieces of one publication.
struct Publication<'a> {
    name: Name,
    ids: &'a [NodeId],
    rows: &'a [u8],
    row_bytes: usize,
    stamp: Stamp,
    graph: u64,
    deadline: Instant,
}

/// The rows for one link, and how many are published.
struct Sending {
    link: usize,
    positions: Vec<u32>,
    /// Rows that were sent.
    n_sent: usize,
    /// Rows of each piece in flight, oldest first.
    unanswered: VecDeque<usize>,
    /// Rows that the server has acknowledged.
    n_done: usize,
    /// The first refusal since the last resend.
    refusal: Option<ClientError>,
}

impl<'a> RemotePublisher<'a> {
    pub(super) fn new(client: &'a Client) -> Self {
        Self { client, links: Vec::new(), claims: HashMap::new() }
    }

    /// Splits ids by partition.
    fn by_part(&self, ids: &[Range<u32>]) -> Result<Vec<(PartId, Range<u32>)>, ClientError> {
        let (book, mut parts) = (&self.client.book, Vec::new());
        for ids in ids {
            let mut start = ids.start;
            while start < ids.end || ids.is_empty() {
                let (node, n_nodes) = (NodeId(start), book.n_nodes());
                let part = book.part_of(node).ok_or(ClientError::UnknownNode { node, n_nodes })?;
                let end = ids.end.min(book.range(part).end);
                parts.push((part, start..end));
                start = end;
                if ids.is_empty() {
                    break;
                }
            }
        }
        Ok(parts)
    }

    /// Returns the link to a server, after opening its connection if it has none.
    fn link_to(
        &mut self,
        view: &ClusterView,
        server: usize,
        deadline: Instant,
    ) -> Result<usize, ClientError> {
        let address = view.address(server);
        let known = self.links.iter().position(|link| link.address == *address);
        let at = known.unwrap_or(self.links.len());
        if known.is_none() {
            self.links.push(PublishLink { address: address.clone(), connection: None });
        }
        if self.links[at].connection.is_none() {
            // Claims over the previous connection ended with it.
            for claims in self.claims.values_mut() {
                claims.retain(|(_, link)| *link != at);
            }
            let endpoint = view.routes.shard_endpoint(server, 0);
            self.links[at].connection = Some(view.connection(endpoint, deadline)?);
        }
        Ok(at)
    }

    /// Claims ids over a link, and records the claims.
    fn claim_at(
        &mut self,
        link: usize,
        view: &ClusterView,
        info: &VolatileInfo,
        ids: &[Range<u32>],
        deadline: Instant,
    ) -> Result<u64, ClientError> {
        let tensor = &info.tensor.name;
        let (name, all) = (wire_name(tensor)?, ids);
        let PublishLink { address, connection } = &mut self.links[link];
        let Some(open) = connection else { return Err(lost(address)) };
        let mut n_rows = 0;
        for ids in ids.chunks(CLAIM_RANGES_MAX) {
            let bounds: Vec<NodeId> =
                ids.iter().flat_map(|ids| [NodeId(ids.start), NodeId(ids.end)]).collect();
            let left = Some(time_left(address, deadline)?);
            let body = RequestBody::Claim { tensor: name };
            let graph = super::tag_of(view, info, open.version());
            let request = Request { deadline: left, graph, ..Request::new(body) };
            let sent = open.send(&request, &bounds, deadline);
            match sent.and_then(|()| open.receive(deadline)) {
                Ok(Reply::Claimed { n_rows: claimed }) => n_rows += claimed,
                Ok(_) => {
                    *connection = None;
                    return Err(ClientError::Confused { address: address.clone() });
                }
                Err(error) => {
                    if !error.leaves_connection() {
                        *connection = None;
                    }
                    return Err(error);
                }
            }
        }
        let claims = self.claims.entry(tensor.clone()).or_default();
        claims.extend(all.iter().map(|ids| (ids.clone(), link)));
        claims.sort_unstable_by_key(|(ids, link)| (ids.start, ids.end, *link));
        claims.dedup();
        Ok(n_rows)
    }

    /// Splits the rows by the link that holds their claim.
    fn split(&self, tensor: &str, ids: &[NodeId]) -> Result<Vec<Sending>, ClientError> {
        let claims = self.claims.get(tensor).map_or(&[][..], Vec::as_slice);
        let mut sendings: Vec<Sending> = Vec::new();
        for (&node, position) in ids.iter().zip(0u32..) {
            let after = claims.partition_point(|(ids, _)| ids.end <= node.0);
            let claim = claims.get(after).filter(|(ids, _)| ids.contains(&node.0));
            let Some(&(_, link)) = claim else {
                let tensor = tensor.to_owned();
                return Err(ClientError::NotClaimed { tensor, node });
            };
            let at = sendings.iter().position(|sending| sending.link == link);
            let at = at.unwrap_or_else(|| {
                sendings.push(Sending::new(link));
                sendings.len() - 1
            });
            sendings[at].positions.push(position);
        }
        Ok(sendings)
    }
}

impl VolatilePublisher for RemotePublisher<'_> {
    fn claim(&mut self, tensor: &str, ids: &[Range<u32>]) -> Result<u64, ClientError> {
        let deadline = Instant::now() + self.client.config.deadline;
        let mut retry = RetryBudget::new(&self.client.config, deadline);
        let (mut left, mut n_rows) = (self.by_part(ids)?, 0);
        let info = self.client.volatile(tensor)?;
        let mut view = self.client.current_view(deadline)?;
        loop {
            let first;
            (view, first) =
                self.client.plan_on(view, &mut retry, |view| first_server(view, &left))?;
            let Some((server, ids)) = first else { return Ok(n_rows) };
            let claimed = self
                .link_to(&view, server, deadline)
                .and_then(|link| self.claim_at(link, &view, &info, &ids, deadline));
            match claimed {
                Ok(claimed) => {
                    n_rows += claimed;
                    left.retain(|(_, it)| !ids.contains(it));
                }
                Err(error) => {
                    let failed = vec![FailedRequest::new(server, PartSet::default(), error)];
                    self.client.check_shape(&info, &failed)?;
                    view = self.client.retry_alone(view, failed, &mut retry)?;
                }
            }
        }
    }

    fn publish(
        &mut self,
        tensor: &str,
        ids: &[NodeId],
        rows: &[u8],
        stamp: Stamp,
    ) -> Result<(), ClientError> {
        let row_bytes = self.client.volatile(tensor)?.tensor.row_bytes();
        ClientError::check_buffer(tensor, ids.len(), row_bytes, rows.len())?;
        let graph = self.client.view().graph;
        let deadline = Instant::now() + self.client.config.deadline;
        let name = wire_name(tensor)?;
        let publication = Publication { name, ids, rows, row_bytes, stamp, graph, deadline };
        let mut retry = RetryBudget::new(&self.client.config, deadline);
        let mut sendings = self.split(tensor, ids)?;
        let mut worst = None;
        while !sendings.is_empty() {
            for sending in &mut sendings {
                let link = &mut self.links[sending.link];
                if let Err(error) = sending.step(link, &publication, &mut retry) {
                    if !error.leaves_connection() {
                        link.connection = None;
                    }
                    sending.n_done = sending.positions.len();
                    worst = worst.or(Some(error));
                }
            }
            sendings.retain(|sending| sending.n_done < sending.positions.len());
        }
        worst.map_or(Ok(()), Err)
    }
}

impl Publication<'_> {
    fn rows_per_piece(&self) -> usize {
        let fitting = PIECE_BYTES / (size_of::<NodeId>() + self.row_bytes);
        fitting.clamp(1, ROWS_PER_PUBLISH_MAX)
    }
}

impl Sending {
    fn new(link: usize) -> Self {
        let (positions, unanswered) = (Vec::new(), VecDeque::new());
        Self { link, positions, n_sent: 0, unanswered, n_done: 0, refusal: None }
    }

    /// Sends the next piece, or receives the oldest reply if enough pieces are in flight.
    fn step(
        &mut self,
        link: &mut PublishLink,
        publication: &Publication<'_>,
        retry: &mut RetryBudget,
    ) -> Result<(), ClientError> {
        let PublishLink { address, connection } = link;
        let Some(connection) = connection else { return Err(lost(address)) };
        let has_more = self.n_sent < self.positions.len() && self.refusal.is_none();
        if has_more && self.unanswered.len() < PIECES_AT_ONCE {
            return self.send(connection, address, publication);
        }
        if let Some(n_rows) = self.unanswered.pop_front() {
            let found = connection.receive(publication.deadline);
            return self.take_answer(found, n_rows, address);
        }
        match self.refusal.take() {
            Some(refusal) => self.resend(refusal, retry),
            None => Ok(()),
        }
    }

    /// Pauses after a refusal for overload, then resends the rows that were not published. Other
    /// refusals are errors.
    fn resend(&mut self, refusal: ClientError, retry: &mut RetryBudget) -> Result<(), ClientError> {
        let action = match RetryAction::of(&refusal) {
            later @ RetryAction::Later(_) => later,
            _ => return Err(refusal),
        };
        let Some(pause) = retry.pause(action) else { return Err(refusal) };
        std::thread::sleep(pause);
        self.n_sent = self.n_done;
        Ok(())
    }

    fn send(
        &mut self,
        connection: &mut Connection,
        address: &Address,
        publication: &Publication<'_>,
    ) -> Result<(), ClientError> {
        let Publication { name, ids, rows, stamp, graph, deadline, .. } = *publication;
        let left = &self.positions[self.n_sent..];
        let positions = &left[..left.len().min(publication.rows_per_piece())];
        let n_rows = u32::try_from(positions.len()).unwrap_or(u32::MAX);
        let body = RequestBody::Publish(Publish { name, n_rows, stamp });
        let time = Some(time_left(address, deadline)?);
        let request = Request { deadline: time, graph, ..Request::new(body) };
        connection.send_rows(&request, ids, rows, positions, deadline)?;
        self.n_sent += positions.len();
        self.unanswered.push_back(positions.len());
        Ok(())
    }

    /// Records the reply to the oldest piece. After a refusal, later pieces do not count as
    /// published.
    fn take_answer(
        &mut self,
        found: Result<Reply, ClientError>,
        n_rows: usize,
        address: &Address,
    ) -> Result<(), ClientError> {
        match found {
            Ok(Reply::Published { n_rows: found }) if found as usize == n_rows => {
                if self.refusal.is_none() {
                    self.n_done += n_rows;
                }
                Ok(())
            }
            Ok(_) => Err(ClientError::Confused { address: address.clone() }),
            Err(error) if error.leaves_connection() => {
                self.refusal.get_or_insert(error);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// A server, and the claimed ids that it holds.
type ServerShare = (usize, Vec<Range<u32>>);

/// Returns the server that holds the first of these ids, with all ids that it holds; `None` without
/// ids.
fn first_server(
    view: &ClusterView,
    parts: &[(PartId, Range<u32>)],
) -> Result<Option<ServerShare>, ClientError> {
    let mut first: Option<ServerShare> = None;
    for (part, ids) in parts {
        let server = view.volatile_server(*part)?;
        let (of, all) = first.get_or_insert_with(|| (server, Vec::new()));
        if *of == server {
            all.push(ids.clone());
        }
    }
    Ok(first)
}

/// Returns the error for claims whose connection has failed.
fn lost(address: &Address) -> ClientError {
    ClientError::ClaimsLost { address: address.clone() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lodestore_schema::{Failure, FailureCode};

    use super::*;
    use crate::remote::ClientConfig;

    fn address() -> Address {
        "127.0.0.1:1".parse().unwrap()
    }

    fn refusal(code: FailureCode) -> ClientError {
        let (message, retry_after) = (String::new(), Duration::from_millis(1));
        ClientError::Refused { address: address(), failure: Failure { code, message, retry_after } }
    }

    #[test]
    fn rows_from_a_refused_piece_on_are_sent_again() {
        let address = address();
        let mut retry =
            RetryBudget::new(&ClientConfig::default(), Instant::now() + Duration::from_secs(5));
        let mut sending = Sending { positions: (0..12).collect(), n_sent: 12, ..Sending::new(0) };
        // Pieces of 3, 4 and 5 rows: the server refuses the second, and publishes the third.
        sending.take_answer(Ok(Reply::Published { n_rows: 3 }), 3, &address).unwrap();
        sending.take_answer(Err(refusal(FailureCode::Overloaded)), 4, &address).unwrap();
        sending.take_answer(Ok(Reply::Published { n_rows: 5 }), 5, &address).unwrap();
        assert_eq!((sending.n_done, sending.n_sent), (3, 12));
        let refused = sending.refusal.take().unwrap();
        sending.resend(refused, &mut retry).unwrap();
        assert_eq!((sending.n_done, sending.n_sent), (3, 3), "from the refused piece on");

        let error = sending.resend(refusal(FailureCode::Invalid), &mut retry).unwrap_err();
        assert!(matches!(error, ClientError::Refused { .. }), "{error}");
        assert_eq!(sending.n_sent, 3);
        let confused = sending.take_answer(Ok(Reply::Published { n_rows: 2 }), 3, &address);
        assert!(matches!(confused, Err(ClientError::Confused { .. })), "another count of rows");
    }
}
