//! One request for rows to one shard of one server.

use std::io;
use std::time::{Duration, Instant};

use lodestore_graph::NodeId;
use lodestore_schema::request::PullKind;
use lodestore_schema::{FailureCode, Request, RequestBody};

use super::call_versions::Wanted;
use super::cluster_view::ClusterView;
use super::pull::{FailedRequest, Pull};
use super::retry::RetryAction;
use crate::connection::{Connection, Progress};
use crate::error::ClientError;
use crate::route::PartSet;

/// Time limit of a new connection to a server with alternatives: this multiple of its usual
/// latency, and at least [`CONNECT_MIN`].
const CONNECT_FACTOR: u32 = 20;
const CONNECT_MIN: Duration = Duration::from_millis(50);
/// The multiple for a hedge: all other requests of the round wait meanwhile.
const CONNECT_FACTOR_HEDGE: u32 = 4;

/// The ids of a bucket that fit into one request.
#[derive(Clone, Copy)]
pub(super) struct SubRequest<'a> {
    /// The shard that owns the rows, by the routes.
    pub(super) endpoint: usize,
    pub(super) ids: &'a [NodeId],
    /// Places of the rows in the output.
    pub(super) places: &'a [u32],
    pub(super) parts: &'a PartSet,
    /// The versions that the request asks for.
    pub(super) wanted: &'a Wanted,
}

/// A request in flight, and the progress of its reply.
pub(super) struct InFlightRequest {
    pub(super) endpoint: usize,
    pub(super) server: usize,
    /// When all of the request had been sent; its latency counts from then.
    pub(super) sent: Instant,
    /// When to ask another server instead; without one, the deadline of the pull.
    pub(super) until: Instant,
    /// Longest silence before another server is asked; `None` without one.
    patience: Option<Duration>,
    pub(super) connection: Connection,
    pub(super) progress: Progress,
}

impl InFlightRequest {
    /// Sends a piece to its own shard, or to any shard of another server, which forwards it.
    pub(super) fn new(
        view: &ClusterView,
        pull: &Pull<'_>,
        endpoint: usize,
        piece: SubRequest<'_>,
        attempt: u32,
    ) -> Result<Self, Box<FailedRequest>> {
        let (server, begun) = (view.routes.endpoints[endpoint].server, Instant::now());
        let (mut until, mut connected_by) = (pull.deadline, pull.deadline);
        let health = view.routes.health(server);
        let mut patience = None;
        if view.routes.are_elsewhere(piece.parts, server) {
            // Servers that have just failed are no better, so this one gets more time.
            let are_well = view.routes.are_well_elsewhere(piece.parts, server, begun);
            let more = if are_well { 1 } else { 4 };
            let answer_limit = health.answer_limit(piece.ids.len() * pull.row_bytes, attempt);
            patience = Some(more * answer_limit);
            until = until.min(begun + more * answer_limit);
            connected_by = until;
            let is_hedge = endpoint != piece.endpoint;
            let factor = if is_hedge { CONNECT_FACTOR_HEDGE } else { CONNECT_FACTOR };
            let usual = health.usual().filter(|_| are_well);
            if let Some(usual) = usual.or(is_hedge.then_some(Duration::ZERO)) {
                connected_by = until.min(begun + (factor * usual).max(CONNECT_MIN));
            }
        }
        let to_endpoint = SubRequest { endpoint, ..piece };
        match Self::send(view, pull, to_endpoint, connected_by, until) {
            Ok(connection) => {
                let (sent, progress) = (Instant::now(), Progress::new());
                Ok(Self { endpoint, server, sent, until, patience, connection, progress })
            }
            Err(error) => Err(Box::new(failed(server, piece.parts, pull, error))),
        }
    }

    /// Sends the request for a piece to its endpoint.
    fn send(
        view: &ClusterView,
        pull: &Pull<'_>,
        piece: SubRequest<'_>,
        connected_by: Instant,
        until: Instant,
    ) -> Result<Connection, ClientError> {
        let Pull { tensor, kind, version, row_bytes, .. } = *pull;
        let SubRequest { ids, wanted, .. } = piece;
        let n_bytes = ids.len() * row_bytes;
        let position = view.routes.position_at(piece.endpoint, tensor.into());
        let mut connection =
            view.connection_for_rows(piece.endpoint, Some(position), n_bytes, connected_by)?;
        let left = until.saturating_duration_since(Instant::now());
        let body = RequestBody::Pull { tensor: position, kind };
        let graph = view.tensor_tag(tensor.into(), connection.version());
        let Wanted { versions: floors, exactly } = wanted.clone();
        let deadline = Some(left);
        let request = Request { deadline, graph, version, floors, exactly, ..Request::new(body) };
        connection.send(&request, ids, until)?;
        Ok(connection)
    }

    /// Returns the failure of this request by `error`.
    pub(super) fn failed(
        &self,
        piece: SubRequest<'_>,
        pull: &Pull<'_>,
        error: ClientError,
    ) -> FailedRequest {
        failed(self.server, piece.parts, pull, error)
    }

    /// Records that bytes have arrived: the time limit of the reply starts again.
    pub(super) fn has_come(&mut self, now: Instant, deadline: Instant) {
        if let Some(patience) = self.patience {
            self.until = self.until.max(now + patience).min(deadline);
        }
    }

    /// Returns the error of a late reply.
    pub(super) fn late(&self, view: &ClusterView) -> ClientError {
        let address = view.routes.endpoints[self.endpoint].address.clone();
        ClientError::Deadline { address }
    }
}

/// Reports silence as a broken connection while there is time to ask another server. Names the
/// server whose history a refusal contradicts.
fn failed(server: usize, parts: &PartSet, pull: &Pull<'_>, error: ClientError) -> FailedRequest {
    let error = match error {
        ClientError::Deadline { address } if Instant::now() < pull.deadline => {
            let source = io::Error::new(io::ErrorKind::TimedOut, "no reply in time");
            ClientError::Unavailable { address, source }
        }
        ClientError::Refused { address, failure } if failure.code == FailureCode::OtherHistory => {
            let other = pull.floors.source_of(parts);
            ClientError::OtherHistory { address, other, reason: failure.message }
        }
        error => error,
    };
    let lacks_version = matches!(&error, ClientError::Refused { failure, .. }
        if failure.code == FailureCode::OtherVersion);
    let failed = FailedRequest::new(server, parts.clone(), error);
    // An unpinned pull starts again at the latest version.
    match lacks_version && pull.version == 0 {
        true => FailedRequest { action: RetryAction::Again, ..failed },
        false => failed,
    }
}

/// Returns whether pulls of this kind may be hedged. Bulk pulls are not urgent, and a hedge would
/// double their bytes.
pub(super) fn may_be_hedged(kind: PullKind) -> bool {
    kind == PullKind::Sync
}
