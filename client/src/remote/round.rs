//! One round of a pull. Every shard has at most one request, all requests are sent before the first
//! reply is read, and replies are received in any order.
//!
//! A request that exceeds the p95 latency of its server gets a hedge, if one other server has all
//! its rows and a token is left. The first server to send a row wins. The connection of the loser
//! is closed, which cancels its request (Dean and Barroso, The Tail at Scale, 2013).

use std::time::{Duration, Instant};

use lodestore_schema::Versions;
use lodestore_schema::limits::WIRE_VERSION_IDENTITY;
use tracing::debug;

use super::cluster_view::ClusterView;
use super::hedges::Hedges;
use super::parallel::parallel_map;
use super::pull::{FailedRequest, Pull};
use super::request::{InFlightRequest, SubRequest, may_be_hedged};
use crate::connection::{Place, wait_for_any};
use crate::error::ClientError;

/// How long a reply may continue after its time limit: bytes that are in the socket are still read.
const GRACE: Duration = Duration::from_millis(100);
/// If the client has not polled for longer than this, the latency of a reply is unknown.
const UNSEEN_MAX: Duration = Duration::from_millis(1);

/// A round, and its requests in flight.
pub(super) struct Round<'a> {
    view: &'a ClusterView,
    pull: &'a Pull<'a>,
    hedges: &'a Hedges,
    pieces: Vec<SubRequest<'a>>,
    in_flight: Vec<InFlight>,
    /// When the last request was sent.
    asked: Instant,
    /// When replies were polled last.
    looked: Option<Instant>,
    /// Replies received.
    pub(super) n_answers: u64,
    /// Hedges sent.
    pub(super) n_hedges: u64,
    /// Completed pieces, with the versions of their rows.
    pub(super) answers: Vec<(SubRequest<'a>, Versions)>,
    /// Endpoints whose pieces failed, and why.
    pub(super) failures: Vec<(usize, FailedRequest)>,
}

/// A request for a piece.
struct InFlight {
    piece: usize,
    asked: InFlightRequest,
    /// When to send a hedge, unless a row arrives first.
    hedge_at: Option<Instant>,
    end: Option<End>,
}

/// What happens to the connection of a finished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It is kept for the next pull.
    Keep,
    /// It is closed.
    Close,
}

impl<'a> Round<'a> {
    pub(super) fn new(view: &'a ClusterView, pull: &'a Pull<'a>, hedges: &'a Hedges) -> Self {
        Self {
            view,
            pull,
            hedges,
            pieces: Vec::new(),
            in_flight: Vec::new(),
            asked: Instant::now(),
            looked: None,
            n_answers: 0,
            n_hedges: 0,
            answers: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Sends the requests for all pieces. New connections are opened concurrently: none waits for
    /// the hello of another server.
    pub(super) fn ask(&mut self, pieces: &[SubRequest<'a>], attempt: u32) {
        let ask = |&piece: &SubRequest<'a>| {
            InFlightRequest::new(self.view, self.pull, piece.endpoint, piece, attempt)
        };
        let is_new = |piece: &&SubRequest<'a>| !self.view.has_connection(piece.endpoint);
        let asked: Vec<_> = match pieces.iter().filter(is_new).count() {
            0 | 1 => pieces.iter().map(ask).collect(),
            _ => parallel_map(pieces, ask),
        };
        for (&piece, asked) in pieces.iter().zip(asked) {
            self.note_asked(piece, asked);
        }
    }

    fn note_asked(
        &mut self,
        piece: SubRequest<'a>,
        asked: Result<InFlightRequest, Box<FailedRequest>>,
    ) {
        match asked {
            Ok(asked) => {
                let hedge_at = self.hedge_at(&asked);
                self.hedges.earn();
                let piece_at = self.pieces.len();
                self.pieces.push(piece);
                let piece = piece_at;
                self.in_flight.push(InFlight { piece, asked, hedge_at, end: None });
            }
            Err(failed) => self.failures.push((piece.endpoint, *failed)),
        }
    }

    fn hedge_at(&self, asked: &InFlightRequest) -> Option<Instant> {
        if !may_be_hedged(self.pull.kind) {
            return None;
        }
        let hedge_delay = self.hedges.hedge_delay(self.view.routes.health(asked.server))?;
        Some(asked.sent + hedge_delay).filter(|&at| at < asked.until)
    }

    /// Runs `work` while replies arrive. The time that it takes counts against no server, and
    /// triggers no hedge. If it takes longer than [`UNSEEN_MAX`], the latencies of the replies are
    /// unknown.
    pub(super) fn wait_for(&mut self, work: &mut dyn FnMut()) {
        let start = Instant::now();
        work();
        let took = start.elapsed();
        for one in &mut self.in_flight {
            one.asked.until = (one.asked.until + took).min(self.pull.deadline);
            one.hedge_at = one.hedge_at.map(|at| at + took).filter(|&at| at < one.asked.until);
        }
    }

    /// Receives all replies, each row at its position in `out`.
    pub(super) fn receive(&mut self, out: &mut [u8]) -> Result<(), ClientError> {
        self.asked = Instant::now();
        while !self.in_flight.is_empty() {
            let ready = self.wait()?;
            let now = Instant::now();
            for (at, is_ready) in ready.into_iter().enumerate() {
                if self.in_flight[at].end.is_some() {
                    // Its hedge has just won.
                } else if is_ready && now < self.late_from(at) {
                    self.take(at, out, now);
                } else if now >= self.in_flight[at].asked.until {
                    let late = self.in_flight[at].asked.late(self.view);
                    self.fail(at, late);
                } else if self.in_flight[at].hedge_at.is_some_and(|hedge_at| now >= hedge_at) {
                    self.send_hedge(at);
                }
            }
            self.looked = Some(now);
            for over in self.in_flight.extract_if(.., |one| one.end.is_some()) {
                if over.end == Some(End::Keep) {
                    self.view.give_back(over.asked.endpoint, over.asked.connection);
                }
            }
        }
        Ok(())
    }

    /// Returns when a reply is late even if parts of it have arrived. Replies that arrived while
    /// other servers were being asked are not late.
    fn late_from(&self, at: usize) -> Instant {
        (self.asked.max(self.in_flight[at].asked.until) + GRACE).min(self.pull.deadline)
    }

    /// Returns the time since the last poll, up to the last request.
    fn unseen(&self, sent: Instant) -> Duration {
        self.asked.saturating_duration_since(self.looked.map_or(sent, |looked| looked.max(sent)))
    }

    /// Waits until bytes arrive, or until a time limit or a hedge is due. Returns for each request
    /// whether bytes have arrived.
    fn wait(&self) -> Result<Vec<bool>, ClientError> {
        let until =
            |one: &InFlight| one.hedge_at.map_or(one.asked.until, |at| at.min(one.asked.until));
        let until = self.in_flight.iter().map(until).min().unwrap_or(self.pull.deadline);
        let is_here = |one: &InFlight| one.asked.connection.has_buffered(&one.asked.progress);
        let are_here = self.in_flight.iter().map(is_here).collect();
        let connections = self.in_flight.iter().map(|one| &one.asked.connection);
        wait_for_any(connections, are_here, until)
    }

    /// Reads the bytes that have arrived for a request.
    fn take(&mut self, at: usize, out: &mut [u8], now: Instant) {
        let is_seen = self.unseen(self.in_flight[at].asked.sent) <= UNSEEN_MAX;
        let Self { view, pull, pieces, in_flight, .. } = self;
        let InFlight { piece, asked, hedge_at, end } = &mut in_flight[at];
        let (piece, server, sent) = (*piece, asked.server, asked.sent);
        let (positions, row_bytes) = (pieces[piece].places, pull.row_bytes);
        let had_begun = asked.progress.has_begun();
        let mut place = Place { positions, row_bytes, out, stamps: None };
        let taken = asked.connection.take_rows(&mut asked.progress, &mut place, asked.until);
        asked.has_come(now, pull.deadline);
        let health = view.routes.health(server);
        if !had_begun && asked.progress.has_begun() {
            *hedge_at = None;
            if is_seen && may_be_hedged(pull.kind) {
                health.began(now.saturating_duration_since(sent));
            }
        }
        // Before wire version 6, the reply to a pinned pull names versions that its rows are not
        // of.
        let tells = pull.version == 0 || asked.connection.version() >= WIRE_VERSION_IDENTITY;
        let address = &view.routes.endpoints[asked.endpoint].address;
        let seen = match &taken {
            Ok(true) if tells => {
                pull.floors.see(pieces[piece].parts, asked.progress.versions(), address)
            }
            _ => Ok(()),
        };
        match seen.and(taken) {
            Ok(is_whole) => {
                let begins = asked.progress.has_begun() && !had_begun;
                if is_whole {
                    *end = Some(End::Keep);
                    if is_seen {
                        health.answered(now.saturating_duration_since(sent), now);
                    } else {
                        health.is_well();
                    }
                    self.n_answers += 1;
                    if asked.connection.version() >= WIRE_VERSION_IDENTITY {
                        self.answers.push((pieces[piece], asked.progress.versions().clone()));
                    }
                }
                if begins {
                    self.cancel_losers(at, now);
                }
            }
            Err(error) => self.fail(at, error),
        }
    }

    /// Cancels the other requests for the piece of the winner, which has begun to reply.
    fn cancel_losers(&mut self, winner: usize, now: Instant) {
        let piece = self.in_flight[winner].piece;
        for (at, one) in self.in_flight.iter_mut().enumerate() {
            if at != winner && one.piece == piece && one.end.is_none() {
                one.end = Some(End::Close);
                let after = now.saturating_duration_since(one.asked.sent);
                self.view.routes.health(one.asked.server).lost_hedge(after, now);
            }
        }
    }

    /// Asks a second server for the piece of a slow request.
    fn send_hedge(&mut self, at: usize) {
        let InFlight { piece, asked, hedge_at, .. } = &mut self.in_flight[at];
        *hedge_at = None;
        let (index, piece, tensor) = (*piece, self.pieces[*piece], self.pull.tensor.into());
        let hedge = self.view.routes.hedge(tensor, piece.ids, piece.parts, asked.server);
        let Some(endpoint) = hedge.filter(|_| self.hedges.spend()) else { return };
        debug!(
            address = %self.view.address(asked.server),
            "server is slow, sending a hedge to another server"
        );
        match InFlightRequest::new(self.view, self.pull, endpoint, piece, 0) {
            Ok(asked) => {
                self.n_hedges += 1;
                let hedge = InFlight { piece: index, asked, hedge_at: None, end: None };
                self.in_flight.push(hedge);
            }
            // The first request is still in flight.
            Err(failed) => self.view.note(&failed),
        }
        self.asked = Instant::now();
    }

    /// Fails a request, and also its piece unless another request for it is in flight.
    fn fail(&mut self, at: usize, error: ClientError) {
        let (view, pull) = (self.view, self.pull);
        let one = &mut self.in_flight[at];
        one.end = Some(if error.leaves_connection() { End::Keep } else { End::Close });
        let (index, piece) = (one.piece, self.pieces[one.piece]);
        let failed = one.asked.failed(piece, pull, error);
        let goes_on = |other: &InFlight| other.piece == index && other.end.is_none();
        if self.in_flight.iter().any(goes_on) {
            view.note(&failed);
        } else {
            self.failures.push((piece.endpoint, failed));
        }
    }
}
