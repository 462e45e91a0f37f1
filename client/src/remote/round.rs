//! One round of a pull. Every shard has at most one request, all are sent before the first answer
//! is read, and answers are taken in any order.
//!
//! A server that exceeds 95 of 100 of its latencies gets a hedge, if one server has all rows and a
//! token is left. The first to send a row is awaited. The other's connection is closed, which
//! cancels its request (Dean and Barroso, The Tail at Scale, 2013).

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

/// How long an answer may continue to come after its time: what is in the socket is taken.
const GRACE: Duration = Duration::from_millis(100);
/// An answer that was there after an unobserved time longer than this has no known latency.
const UNSEEN_MAX: Duration = Duration::from_millis(1);

/// A round, and its requests in flight.
pub(super) struct Round<'a> {
    view: &'a ClusterView,
    pull: &'a Pull<'a>,
    hedges: &'a Hedges,
    pieces: Vec<SubRequest<'a>>,
    in_flight: Vec<InFlight>,
    /// When the last request was sent, and when answers were looked for last.
    asked: Instant,
    looked: Option<Instant>,
    /// Requests that were answered.
    pub(super) n_answers: u64,
    /// Rivals that were asked.
    pub(super) n_hedges: u64,
    /// Pieces that were answered, with the versions of their rows.
    pub(super) answers: Vec<(SubRequest<'a>, Versions)>,
    /// Endpoints whose pieces have failed, and why.
    pub(super) failures: Vec<(usize, FailedRequest)>,
}

/// A request for a piece.
struct InFlight {
    piece: usize,
    asked: InFlightRequest,
    /// When a hedge is asked, if nothing has come and there is one.
    hedge_at: Option<Instant>,
    end: Option<End>,
}

/// The fate of the connection of a request that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It serves the next pull.
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

    /// Sends the requests for all pieces. Connections that must be opened are opened together: none
    /// waits until a server before it has said hello.
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

    /// Does something else while answers come. No server is late for the time that it took, and no
    /// hedge is asked for that. Longer than [`UNSEEN_MAX`] it hides how long the answers took.
    pub(super) fn wait_for(&mut self, work: &mut dyn FnMut()) {
        let start = Instant::now();
        work();
        let took = start.elapsed();
        for one in &mut self.in_flight {
            one.asked.until = (one.asked.until + took).min(self.pull.deadline);
            one.hedge_at = one.hedge_at.map(|at| at + took).filter(|&at| at < one.asked.until);
        }
    }

    /// Takes all answers, to the rows of `out` where they belong.
    pub(super) fn receive(&mut self, out: &mut [u8]) -> Result<(), ClientError> {
        self.asked = Instant::now();
        while !self.in_flight.is_empty() {
            let ready = self.wait()?;
            let now = Instant::now();
            for (at, is_ready) in ready.into_iter().enumerate() {
                if self.in_flight[at].end.is_some() {
                    // Its hedge has won just now.
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

    /// Returns when an answer is late though some of it has come. Answers that arrived while others
    /// were being asked are not late.
    fn late_from(&self, at: usize) -> Instant {
        (self.asked.max(self.in_flight[at].asked.until) + GRACE).min(self.pull.deadline)
    }

    /// Returns how long something may have lain there before it was looked for.
    fn unseen(&self, sent: Instant) -> Duration {
        self.asked.saturating_duration_since(self.looked.map_or(sent, |looked| looked.max(sent)))
    }

    /// Waits until something has arrived, or it is time to act on what is missing; returns for each
    /// request whether something has.
    fn wait(&self) -> Result<Vec<bool>, ClientError> {
        let until =
            |one: &InFlight| one.hedge_at.map_or(one.asked.until, |at| at.min(one.asked.until));
        let until = self.in_flight.iter().map(until).min().unwrap_or(self.pull.deadline);
        let is_here = |one: &InFlight| one.asked.connection.has_buffered(&one.asked.progress);
        let are_here = self.in_flight.iter().map(is_here).collect();
        let connections = self.in_flight.iter().map(|one| &one.asked.connection);
        wait_for_any(connections, are_here, until)
    }

    /// Takes the bytes that have arrived for a request.
    fn take(&mut self, at: usize, out: &mut [u8], now: Instant) {
        let is_seen = self.unseen(self.in_flight[at].asked.sent) <= UNSEEN_MAX;
        let Self { view, pull, pieces, in_flight, .. } = self;
        let InFlight { piece, asked, hedge_at, end } = &mut in_flight[at];
        let (piece, server, sent) = (*piece, asked.server, asked.sent);
        let (positions, row_bytes) = (pieces[piece].positions, pull.row_bytes);
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
        // Before version 6 the answer to a pinned pull tells versions that it is not of.
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

    /// Cancels the other requests for the piece of the one that has begun to answer.
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

    /// Asks a second server for the piece of a request that is slow.
    fn send_hedge(&mut self, at: usize) {
        let InFlight { piece, asked, hedge_at, .. } = &mut self.in_flight[at];
        *hedge_at = None;
        let (index, piece, tensor) = (*piece, self.pieces[*piece], self.pull.tensor.into());
        let hedge = self.view.routes.hedge(tensor, piece.ids, piece.parts, asked.server);
        let Some(endpoint) = hedge.filter(|_| self.hedges.spend()) else { return };
        debug!(address = %self.view.address(asked.server), "slow; another server is asked too");
        match InFlightRequest::new(self.view, self.pull, endpoint, piece, 0) {
            Ok(asked) => {
                self.n_hedges += 1;
                let hedge = InFlight { piece: index, asked, hedge_at: None, end: None };
                self.in_flight.push(hedge);
            }
            // The first is still in flight.
            Err(failed) => self.view.note(&failed),
        }
        self.asked = Instant::now();
    }

    /// Fails a request, and its piece, unless another server is asked for that.
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
