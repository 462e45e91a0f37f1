//! One round of a pull. Every shard has at most one request, all are sent before the first answer
//! is read, and answers are taken in any order.
//!
//! A server that exceeds 95 of 100 of its latencies gets a rival, where one server has all of the
//! rows and a token is left. The first to send a row is awaited. The other's connection is closed,
//! which cancels its request (Dean and Barroso, The Tail at Scale, 2013).

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use tracing::debug;

use super::ask::{Asked, Piece, may_be_hedged};
use super::at_once::at_once;
use super::fleet::Fleet;
use super::hedges::Hedges;
use super::pull::{Failed, Pull};
use crate::ClientError;
use crate::connection::Place;
use crate::socket::timespec;

/// How long an answer may continue to come after its time: what is in the socket is taken.
const GRACE: Duration = Duration::from_millis(100);
/// An answer that was there after an unobserved time longer than this has no known latency.
const UNSEEN_MAX: Duration = Duration::from_millis(1);

/// A round, and the requests of it that are under way.
pub(super) struct Round<'a> {
    fleet: &'a Fleet,
    pull: &'a Pull,
    hedges: &'a Hedges,
    pieces: Vec<Piece<'a>>,
    under_way: Vec<UnderWay>,
    /// When the last request was sent, and when answers were looked for last.
    asked: Instant,
    looked: Option<Instant>,
    /// Requests that were answered.
    pub(super) n_answers: u64,
    /// Rivals that were asked.
    pub(super) n_rivals: u64,
    /// Endpoints whose pieces have failed, and why.
    pub(super) failures: Vec<(usize, Failed)>,
}

/// A request for a piece.
struct UnderWay {
    piece: usize,
    asked: Asked,
    /// When a rival is asked, if nothing has come and there is one.
    rival_at: Option<Instant>,
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
    pub(super) fn new(fleet: &'a Fleet, pull: &'a Pull, hedges: &'a Hedges) -> Self {
        let (pieces, under_way, failures) = (Vec::new(), Vec::new(), Vec::new());
        let (asked, looked, n_answers, n_rivals) = (Instant::now(), None, 0, 0);
        Self {
            fleet,
            pull,
            hedges,
            pieces,
            under_way,
            asked,
            looked,
            n_answers,
            n_rivals,
            failures,
        }
    }

    /// Sends the requests for all pieces. Connections that must be opened are opened together: none
    /// waits until a server before it has said hello.
    pub(super) fn ask(&mut self, pieces: &[Piece<'a>], attempt: u32) {
        let ask =
            |&piece: &Piece<'a>| Asked::new(self.fleet, self.pull, piece.endpoint, piece, attempt);
        let is_new = |piece: &&Piece<'a>| !self.fleet.has_connection(piece.endpoint);
        let asked: Vec<_> = match pieces.iter().filter(is_new).count() {
            0 | 1 => pieces.iter().map(ask).collect(),
            _ => at_once(pieces, ask),
        };
        for (&piece, asked) in pieces.iter().zip(asked) {
            self.note_asked(piece, asked);
        }
    }

    fn note_asked(&mut self, piece: Piece<'a>, asked: Result<Asked, Box<Failed>>) {
        match asked {
            Ok(asked) => {
                let rival_at = self.rival_at(&asked);
                self.hedges.earn();
                let piece_at = self.pieces.len();
                self.pieces.push(piece);
                let piece = piece_at;
                self.under_way.push(UnderWay { piece, asked, rival_at, end: None });
            }
            Err(failed) => self.failures.push((piece.endpoint, *failed)),
        }
    }

    fn rival_at(&self, asked: &Asked) -> Option<Instant> {
        if !may_be_hedged(self.pull.kind) {
            return None;
        }
        let patience = self.hedges.patience(self.fleet.routes.health(asked.server))?;
        Some(asked.sent + patience).filter(|&at| at < asked.until)
    }

    /// Does something else while answers come. No server is late for the time that it took, and no
    /// rival is asked for that. Longer than [`UNSEEN_MAX`] it hides how long the answers took.
    pub(super) fn wait_for(&mut self, meanwhile: &mut dyn FnMut()) {
        let start = Instant::now();
        meanwhile();
        let took = start.elapsed();
        for one in &mut self.under_way {
            one.asked.until = (one.asked.until + took).min(self.pull.deadline);
            one.rival_at = one.rival_at.map(|at| at + took).filter(|&at| at < one.asked.until);
        }
    }

    /// Takes all answers, to the rows of `out` where they belong.
    pub(super) fn receive(&mut self, out: &mut [u8]) -> Result<(), ClientError> {
        self.asked = Instant::now();
        while !self.under_way.is_empty() {
            let ready = self.wait()?;
            let now = Instant::now();
            for (at, is_ready) in ready.into_iter().enumerate() {
                if self.under_way[at].end.is_some() {
                    // Its rival has won just now.
                } else if is_ready && now < self.late_from(at) {
                    self.take(at, out, now);
                } else if now >= self.under_way[at].asked.until {
                    let late = self.under_way[at].asked.late(self.fleet);
                    self.fail(at, late);
                } else if self.under_way[at].rival_at.is_some_and(|rival_at| now >= rival_at) {
                    self.ask_rival(at);
                }
            }
            self.looked = Some(now);
            for over in self.under_way.extract_if(.., |one| one.end.is_some()) {
                if over.end == Some(End::Keep) {
                    self.fleet.give_back(over.asked.endpoint, over.asked.connection);
                }
            }
        }
        Ok(())
    }

    /// Returns when an answer is late though some of it has come. Answers that arrived while others
    /// were being asked are not late.
    fn late_from(&self, at: usize) -> Instant {
        (self.asked.max(self.under_way[at].asked.until) + GRACE).min(self.pull.deadline)
    }

    /// Returns how long something may have lain there before it was looked for.
    fn unseen(&self, sent: Instant) -> Duration {
        self.asked.saturating_duration_since(self.looked.map_or(sent, |looked| looked.max(sent)))
    }

    /// Waits until something has arrived, or it is time to act on what is missing; returns for each
    /// request whether something has.
    fn wait(&self) -> Result<Vec<bool>, ClientError> {
        let until =
            |one: &UnderWay| one.rival_at.map_or(one.asked.until, |at| at.min(one.asked.until));
        let until = self.under_way.iter().map(until).min().unwrap_or(self.pull.deadline);
        let is_here = |one: &UnderWay| one.asked.connection.has_buffered(&one.asked.progress);
        let mut left = until.saturating_duration_since(Instant::now());
        if self.under_way.iter().any(is_here) {
            left = Duration::ZERO;
        }
        let connections = self.under_way.iter().map(|one| &one.asked.connection);
        let mut fds: Vec<PollFd<'_>> =
            connections.map(|connection| PollFd::new(connection, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&timespec(left))) {
            Ok(_) => {
                let ready = fds.iter().map(|fd| !fd.revents().is_empty());
                Ok(ready.zip(&self.under_way).map(|(ready, one)| ready || is_here(one)).collect())
            }
            Err(rustix::io::Errno::INTR) => Ok(vec![false; fds.len()]),
            Err(error) => Err(ClientError::Poll { source: error.into() }),
        }
    }

    /// Takes what has come for a request.
    fn take(&mut self, at: usize, out: &mut [u8], now: Instant) {
        let is_seen = self.unseen(self.under_way[at].asked.sent) <= UNSEEN_MAX;
        let Self { fleet, pull, pieces, under_way, .. } = self;
        let UnderWay { piece, asked, rival_at, end } = &mut under_way[at];
        let (piece, server, sent) = (*piece, asked.server, asked.sent);
        let (positions, row_bytes) = (pieces[piece].positions, pull.row_bytes);
        let had_begun = asked.progress.has_begun();
        let mut place = Place { positions, row_bytes, out };
        let taken = asked.connection.take_rows(&mut asked.progress, &mut place, asked.until);
        let health = fleet.routes.health(server);
        if !had_begun && asked.progress.has_begun() {
            *rival_at = None;
            if is_seen && may_be_hedged(pull.kind) {
                health.began(now.saturating_duration_since(sent));
            }
        }
        match taken {
            Ok(is_whole) => {
                let begins = asked.progress.has_begun() && !had_begun;
                if is_whole {
                    if pull.version == 0 {
                        pull.floors.see(pieces[piece].parts, asked.progress.versions());
                    }
                    *end = Some(End::Keep);
                    if is_seen {
                        health.answered(now.saturating_duration_since(sent), now);
                    } else {
                        health.is_well();
                    }
                    self.n_answers += 1;
                }
                if begins {
                    self.drop_rivals(at, now);
                }
            }
            Err(error) => self.fail(at, error),
        }
    }

    /// Returns up who is asked for the same as the one that has begun to answer.
    fn drop_rivals(&mut self, winner: usize, now: Instant) {
        let piece = self.under_way[winner].piece;
        for (at, one) in self.under_way.iter_mut().enumerate() {
            if at != winner && one.piece == piece && one.end.is_none() {
                one.end = Some(End::Close);
                let after = now.saturating_duration_since(one.asked.sent);
                self.fleet.routes.health(one.asked.server).was_outrun(after, now);
            }
        }
    }

    /// Asks a second server for the piece of a request that is slow.
    fn ask_rival(&mut self, at: usize) {
        let UnderWay { piece, asked, rival_at, .. } = &mut self.under_way[at];
        *rival_at = None;
        let (index, piece, tensor) = (*piece, self.pieces[*piece], self.pull.tensor.into());
        let rival = self.fleet.routes.rival(tensor, (piece.ids, piece.parts), asked.server);
        let Some(endpoint) = rival.filter(|_| self.hedges.spend()) else { return };
        debug!(address = %self.fleet.address(asked.server), "slow; another server is asked too");
        match Asked::new(self.fleet, self.pull, endpoint, piece, 0) {
            Ok(asked) => {
                self.n_rivals += 1;
                let rival = UnderWay { piece: index, asked, rival_at: None, end: None };
                self.under_way.push(rival);
            }
            // The first is still under way.
            Err(failed) => self.fleet.note(&failed),
        }
        self.asked = Instant::now();
    }

    /// A request has failed; so has the piece, unless another server is asked for it.
    fn fail(&mut self, at: usize, error: ClientError) {
        let (fleet, pull) = (self.fleet, self.pull);
        let one = &mut self.under_way[at];
        one.end = Some(if error.leaves_connection() { End::Keep } else { End::Close });
        let (index, piece) = (one.piece, self.pieces[one.piece]);
        let failed = one.asked.failed(piece, pull, error);
        let goes_on = |other: &UnderWay| other.piece == index && other.end.is_none();
        if self.under_way.iter().any(goes_on) {
            fleet.note(&failed);
        } else {
            self.failures.push((piece.endpoint, failed));
        }
    }
}
