//! One pull: splits the ids by shard, asks all shards, receives their rows, and retries failures.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::{NodeId, PartId};
use lodestore_schema::limits::IDS_PER_PULL_MAX;
use lodestore_schema::request::PullKind;
use lodestore_schema::{Failure, FailureCode, Versions};
use tracing::{debug, warn};

use super::Client;
use super::call_versions::{CallVersions, Wanted};
use super::cluster_view::ClusterView;
use super::floors::Floors;
use super::hedges::Hedges;
use super::request::SubRequest;
use super::retry::{RetryAction, RetryBudget};
use super::round::Round;
use crate::error::ClientError;
use crate::route::{Bucket, PartSet};
use crate::source::VersionSpan;

/// A server that lacks a version rests for this many pauses, and other servers are asked first.
/// Pauses double.
const BEHIND_PAUSES: u32 = 8;

/// State shared by all requests of one pull.
pub(super) struct Pull<'a> {
    /// The nodes whose rows are pulled.
    pub(super) ids: &'a [NodeId],
    /// Rows of the output, ascending; in the order of `ids` unless given.
    pub(super) at: Option<&'a [u32]>,
    pub(super) tensor: u16,
    pub(super) row_bytes: usize,
    pub(super) kind: PullKind,
    /// Pinned version, or 0 for the latest.
    pub(super) version: u32,
    /// Unpinned: the lowest version to accept of each partition. Pinned: that version, with the
    /// commit of each partition.
    pub(super) floors: &'a Floors,
    pub(super) deadline: Instant,
}

impl Pull<'_> {
    /// Sorts the ids at `positions` into buckets, with the places of their rows.
    fn split(
        &self,
        view: &ClusterView,
        positions: impl Iterator<Item = u32>,
        buckets: &mut Vec<Bucket>,
    ) -> Result<(), ClientError> {
        view.routes.split(self.tensor.into(), self.ids, positions, buckets)?;
        if let Some(at) = self.at {
            for Bucket { positions, places, .. } in buckets {
                places.extend(positions.iter().map(|&position| at[position as usize]));
            }
        }
        Ok(())
    }
}

impl Client {
    /// Pulls all buckets, with retries. Runs `work` once the first requests are sent.
    pub(super) fn pull_all(
        &self,
        pull: &Pull<'_>,
        out: &mut [u8],
        buckets: &mut Vec<Bucket>,
        work: &mut dyn FnMut(),
    ) -> Result<AttemptStats, ClientError> {
        let mut view = self.current_view(pull.deadline)?;
        view.routes.choose(Instant::now());
        let mut retry = RetryBudget::new(&self.config, pull.deadline);
        let (mut stats, mut left) = (AttemptStats::default(), Vec::<u32>::new());
        let mut work = Some(work);
        let (mut answers, mut call) = (ServerAnswers::default(), CallVersions::default());
        let all = 0..row_count(pull.ids);
        (view, ()) =
            self.plan_on(view, &mut retry, |view| pull.split(view, all.clone(), buckets))?;
        loop {
            let number = retry.attempts();
            let attempt = Attempt { view: &view, pull, hedges: &self.hedges, number };
            let failures = attempt.try_all(out, buckets, &mut work, &mut call, &mut stats)?;
            if failures.is_empty() {
                stats.versions = call.span();
                return Ok(stats);
            }
            let pause = view.plan_retry(&failures, &mut retry);
            let Some(pause) = pause else {
                return Err(retry.report(answers.or(decisive_error(failures)), &view));
            };
            view.warn_of_outage(&failures, retry.time_left());
            std::thread::sleep(pause.min(pull.deadline.saturating_duration_since(Instant::now())));
            view = self.after_failures(view, &failures, pull.deadline)?;
            // Rows were already read at a version that a server no longer has: pull all rows again.
            let begins_again =
                pull.version == 0 && failures.iter().any(FailedRequest::lacks_version);
            answers.note(failures);
            // `receive` relies on ascending positions in a bucket.
            left.clear();
            if begins_again {
                call.clear();
                left.extend(all.clone());
            } else {
                left.extend(buckets.iter().flat_map(|bucket| bucket.positions.iter().copied()));
                left.sort_unstable();
            }
            (view, ()) = self.plan_on(view, &mut retry, |view| {
                pull.split(view, left.iter().copied(), buckets)
            })?;
        }
    }

    /// Returns the view for the next attempt: failed servers are described again, and the server of
    /// each partition is chosen again.
    pub(super) fn after_failures(
        &self,
        mut view: Arc<ClusterView>,
        failures: &[FailedRequest],
        deadline: Instant,
    ) -> Result<Arc<ClusterView>, ClientError> {
        // Failures name servers by their index in `view`.
        let current = self.view();
        if !current.addresses().eq(view.addresses()) {
            current.routes.choose(Instant::now());
            return Ok(current);
        }
        let lost = failures.iter().filter(|failed| failed.is_loss());
        let mut lost: Vec<usize> = lost.map(|failed| failed.server).collect();
        lost.sort_unstable();
        lost.dedup();
        for server in lost {
            view.forget(server);
            // Another thread may have asked the server already.
            let current = self.view();
            if current.describes_otherwise(server, &view) {
                view = current;
                continue;
            }
            if let Some(found) = view.ask_again(server, deadline)? {
                // Keeps what other threads have found about other servers.
                let mut current = self.view.write().ignore_poison();
                view = current.with(server, found)?;
                *current = Arc::clone(&view);
            }
        }
        // The partition may have moved to another server, a lost server may listen at another
        // address, and a server that was down at connect time may be up by now.
        let looks_for_more = self.map.is_live() || !self.has_heard_all.load(Ordering::Acquire);
        let may_be_elsewhere =
            |failed: &FailedRequest| failed.is_elsewhere() || (looks_for_more && failed.is_loss());
        if failures.iter().any(may_be_elsewhere) {
            view = self.refresh(view, deadline)?;
        }
        view.routes.choose(Instant::now());
        Ok(view)
    }
}

impl ClusterView {
    /// Records that a server failed or is overloaded.
    pub(super) fn note(&self, failed: &FailedRequest) {
        let (health, now) = (self.routes.health(failed.server), Instant::now());
        match failed.action {
            RetryAction::Later(time) => health.rest(time, now),
            _ => health.failed(now),
        }
        debug!(address = %self.address(failed.server), error = %failed.error, "request failed");
    }

    /// Warns, once per outage, of unreachable servers that alone hold their rows.
    pub(super) fn warn_of_outage(&self, failures: &[FailedRequest], left: Duration) {
        let is_alone = |failed: &&FailedRequest| {
            failed.action == RetryAction::Away
                && !self.routes.are_elsewhere(&failed.parts, failed.server)
        };
        for failed in failures.iter().filter(is_alone) {
            if self.routes.health(failed.server).is_first_refusal() {
                let address = self.address(failed.server);
                let seconds = left.as_secs();
                let error = &failed.error;
                warn!(%address, %error, "server away, waiting up to {seconds} s");
            }
        }
    }

    /// Returns whether the request failed because its partition is moving. However long the move
    /// takes, the partition has a server at its end.
    pub(super) fn is_on_its_way(&self, failed: &FailedRequest) -> bool {
        failed.is_elsewhere() && self.roams()
    }

    /// Records the failures, and returns the pause before the next attempt; `None` to give up.
    pub(super) fn plan_retry(
        &self,
        failures: &[FailedRequest],
        retry: &mut RetryBudget,
    ) -> Option<Duration> {
        let now = Instant::now();
        failures.iter().for_each(|failed| self.note(failed));
        let action = |failed: &FailedRequest| match failed.action {
            RetryAction::AnotherServer
                if !self.routes.are_elsewhere(&failed.parts, failed.server) =>
            {
                RetryAction::None
            }
            // Another server may have room, so the pause is short.
            RetryAction::Later(_)
                if self.routes.are_well_elsewhere(&failed.parts, failed.server, now) =>
            {
                RetryAction::Later(Duration::ZERO)
            }
            RetryAction::Again if self.is_on_its_way(failed) => RetryAction::Later(Duration::ZERO),
            action => action,
        };
        let pause = retry.pause(RetryAction::deciding(failures.iter().map(action)))?;
        for failed in failures.iter().filter(|failed| failed.is_behind()) {
            self.routes.health(failed.server).rest(BEHIND_PAUSES * pause, now);
        }
        Some(pause)
    }
}

/// A failed request, and the server that it was sent to.
#[derive(Debug)]
pub(super) struct FailedRequest {
    pub(super) server: usize,
    /// Partitions of the requested rows.
    pub(super) parts: PartSet,
    pub(super) action: RetryAction,
    pub(super) error: ClientError,
}

impl FailedRequest {
    pub(super) fn new(server: usize, parts: PartSet, error: ClientError) -> Self {
        Self { server, parts, action: RetryAction::of(&error), error }
    }

    /// Returns whether the server replied that the rows are elsewhere.
    pub(super) fn is_elsewhere(&self) -> bool {
        matches!(&self.error, ClientError::Refused { failure, .. }
            if failure.code == FailureCode::Elsewhere)
    }

    /// Returns whether the server replied that it is behind the wanted version.
    fn is_behind(&self) -> bool {
        matches!(&self.error, ClientError::Refused { failure, .. }
            if failure.code == FailureCode::Behind)
    }

    /// Returns whether the server replied that it cannot read the wanted version.
    fn lacks_version(&self) -> bool {
        matches!(&self.error, ClientError::Refused { failure, .. }
            if failure.code == FailureCode::OtherVersion)
    }

    /// Returns whether the server may be down or have moved. A server that replies has not, unless
    /// it says that it is stopping or that the rows are elsewhere; nor has one that is merely
    /// silent.
    fn is_loss(&self) -> bool {
        match &self.error {
            ClientError::Unavailable { source, .. } => source.kind() != io::ErrorKind::TimedOut,
            ClientError::Connect { source, .. } => source.kind() != io::ErrorKind::TimedOut,
            ClientError::Refused { failure, .. } => {
                matches!(failure.code, FailureCode::Stopping | FailureCode::Elsewhere)
            }
            _ => false,
        }
    }
}

/// Refusals that a pull has received so far.
#[derive(Default)]
struct ServerAnswers {
    /// The latest reply of a server that is behind the wanted version.
    behind: Option<ClientError>,
    /// The latest reply that no retry would change.
    refused: Option<ClientError>,
}

impl ServerAnswers {
    fn note(&mut self, failures: Vec<FailedRequest>) {
        for failed in failures {
            if failed.is_behind() {
                self.behind = Some(failed.error);
            } else if failed.action.is_final() {
                self.refused = Some(failed.error);
            }
        }
    }

    /// Returns the error to report: a refusal says more than an unreachable server or an expired
    /// deadline.
    fn or(self, error: ClientError) -> ClientError {
        match error {
            ClientError::Connect { .. } | ClientError::Unavailable { .. } => {
                self.refused.unwrap_or(error)
            }
            ClientError::Deadline { .. } => self.refused.or(self.behind).unwrap_or(error),
            error => error,
        }
    }
}

/// Returns the first error that no retry helps, or else the first error.
pub(super) fn decisive_error(mut failures: Vec<FailedRequest>) -> ClientError {
    let at = failures.iter().position(|failed| failed.action.is_final()).unwrap_or(0);
    failures.swap_remove(at).error
}

/// One attempt at all remaining buckets.
struct Attempt<'a> {
    view: &'a ClusterView,
    pull: &'a Pull<'a>,
    hedges: &'a Hedges,
    /// Failed attempts before this one.
    number: u32,
}

/// Counters of all attempts of a pull.
#[derive(Default)]
pub(super) struct AttemptStats {
    /// Replies received.
    pub(super) n_answers: u64,
    /// Hedges sent.
    pub(super) n_hedges: u64,
    /// Versions of the rows.
    pub(super) versions: VersionSpan,
}

impl Attempt<'_> {
    /// Sends every bucket in rounds of one request each, so that no shard waits long for the client
    /// to read its reply. Clears the buckets that succeed; returns the errors of the others.
    fn try_all(
        &self,
        out: &mut [u8],
        buckets: &mut [Bucket],
        work: &mut Option<&mut dyn FnMut()>,
        call: &mut CallVersions,
        stats: &mut AttemptStats,
    ) -> Result<Vec<FailedRequest>, ClientError> {
        let mut failures: Vec<(usize, FailedRequest)> = Vec::new();
        let n_rounds = buckets.iter().map(|b| b.ids.len().div_ceil(IDS_PER_PULL_MAX)).max();
        for number in 0..n_rounds.unwrap_or(0) {
            let first = number * IDS_PER_PULL_MAX;
            let has_failed = |at| failures.iter().any(|(failed, _)| *failed == at);
            let mut left: Vec<usize> = (0..buckets.len())
                .filter(|&at| first < buckets[at].ids.len() && !has_failed(at))
                .collect();
            let mut is_repeated = false;
            while !left.is_empty() {
                let wanted = left.iter().map(|&at| self.wanted(call, &buckets[at].parts));
                let Some(wanted) = wanted.collect::<Option<Vec<Wanted>>>() else {
                    let failed = left.iter().map(|&at| (at, self.no_room(at, &buckets[at].parts)));
                    failures.extend(failed);
                    break;
                };
                let pieces: Vec<SubRequest<'_>> = left
                    .iter()
                    .zip(&wanted)
                    .map(|(&endpoint, wanted)| {
                        let Bucket { ids, positions, places, parts } = &buckets[endpoint];
                        let places = if self.pull.at.is_some() { places } else { positions };
                        let end = ids.len().min(first + IDS_PER_PULL_MAX);
                        let (ids, places) = (&ids[first..end], &places[first..end]);
                        SubRequest { endpoint, ids, places, parts, wanted }
                    })
                    .collect();
                let mut round = Round::new(self.view, self.pull, self.hedges);
                round.ask(&pieces, self.number);
                if let Some(work) = work.take() {
                    round.wait_for(work);
                }
                round.receive(out)?;
                stats.n_answers += round.n_answers;
                stats.n_hedges += round.n_hedges;
                failures.append(&mut round.failures);
                // A commit may fall between two replies: the buckets after it are asked again for
                // the version of the first reply.
                left.clear();
                for (piece, versions) in &round.answers {
                    if self.is_behind(piece, versions) {
                        failures.push((piece.endpoint, self.behind(piece.endpoint, piece.parts)));
                    } else if call.agree(piece.parts, versions) {
                        // Its rows are in place.
                    } else if is_repeated {
                        failures.push((piece.endpoint, self.confused(piece.endpoint, piece.parts)));
                    } else {
                        left.push(piece.endpoint);
                    }
                }
                is_repeated = true;
            }
        }
        for (endpoint, bucket) in buckets.iter_mut().enumerate() {
            if failures.iter().all(|(failed, _)| *failed != endpoint) {
                bucket.clear();
            }
        }
        failures.sort_by_key(|&(endpoint, _)| endpoint);
        Ok(failures.into_iter().map(|(_, failed)| failed).collect())
    }

    /// Returns the versions that a request for these partitions asks for; `None` if they do not fit
    /// into one request.
    fn wanted(&self, call: &CallVersions, parts: &PartSet) -> Option<Wanted> {
        if self.pull.version != 0 {
            // A pinned pull: the floors hold the pinned version, with its commits.
            return Some(Wanted { versions: self.pull.floors.wanted(parts), exactly: false });
        }
        call.wanted(parts, self.pull.floors)
    }

    /// Returns whether a reply has an earlier version than this client has seen, of a partition for
    /// which the request named no version.
    fn is_behind(&self, piece: &SubRequest<'_>, versions: &Versions) -> bool {
        let (wanted, floors) = (&piece.wanted.versions, self.pull.floors);
        let is_lower = |part: PartId| {
            wanted.of(part.0).number == 0 && versions.of(part.0).number < floors.of(part).number
        };
        piece.wanted.exactly && piece.parts.iter().any(is_lower)
    }

    fn behind(&self, endpoint: usize, parts: &PartSet) -> FailedRequest {
        let message = "the server has an earlier version than this client has seen".to_owned();
        self.refused(endpoint, parts, FailureCode::Behind, message)
    }

    fn refused(
        &self,
        endpoint: usize,
        parts: &PartSet,
        code: FailureCode,
        message: String,
    ) -> FailedRequest {
        let failure = Failure { code, message, retry_after: Duration::ZERO };
        let endpoint = &self.view.routes.endpoints[endpoint];
        let error = ClientError::Refused { address: endpoint.address.clone(), failure };
        FailedRequest::new(endpoint.server, parts.clone(), error)
    }

    /// Returns the failure of a pull whose versions do not fit into one request; the pull starts
    /// again.
    fn no_room(&self, endpoint: usize, parts: &PartSet) -> FailedRequest {
        let message =
            "the rows pulled so far have more versions than one request can name".to_owned();
        let failed = self.refused(endpoint, parts, FailureCode::OtherVersion, message);
        FailedRequest { action: RetryAction::Again, ..failed }
    }

    /// Returns the failure of a server that sent rows of other versions than requested.
    fn confused(&self, endpoint: usize, parts: &PartSet) -> FailedRequest {
        let endpoint = &self.view.routes.endpoints[endpoint];
        let error = ClientError::Confused { address: endpoint.address.clone() };
        FailedRequest::new(endpoint.server, parts.clone(), error)
    }
}

/// Returns the number of rows. Positions in a batch have 32 bits.
fn row_count(ids: &[NodeId]) -> u32 {
    u32::try_from(ids.len()).expect("a batch has fewer rows than 2^32")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(error: ClientError) -> FailedRequest {
        FailedRequest::new(0, PartSet::default(), error)
    }

    fn refused(code: FailureCode) -> ClientError {
        let failure = Failure { code, message: format!("{code:?}"), retry_after: Duration::ZERO };
        ClientError::Refused { address: "127.0.0.1:9".parse().unwrap(), failure }
    }

    fn away() -> ClientError {
        let source = io::ErrorKind::ConnectionRefused.into();
        ClientError::Connect { address: "127.0.0.1:10".parse().unwrap(), source }
    }

    #[test]
    fn a_refusal_is_reported_before_an_unreachable_server_or_an_expired_deadline() {
        let late = || ClientError::Deadline { address: "127.0.0.1:10".parse().unwrap() };
        let told = |before: &[FailureCode], error: ClientError| {
            let mut answers = ServerAnswers::default();
            before
                .iter()
                .for_each(|&code| answers.note(vec![failed(away()), failed(refused(code))]));
            answers.or(error).to_string()
        };
        use FailureCode::{Behind, Damaged, OtherVersion, Overloaded};
        for error in [away, late] {
            assert!(told(&[OtherVersion], error()).contains("OtherVersion"));
            assert!(told(&[Behind, Damaged, Overloaded], error()).contains("Damaged"));
            assert_eq!(told(&[Overloaded], error()), error().to_string());
        }
        // A server that was behind and is unreachable now may have caught up.
        assert_eq!(told(&[Behind], away()), away().to_string());
        assert!(told(&[Behind], late()).contains("Behind"));
        assert!(told(&[OtherVersion], refused(Damaged)).contains("Damaged"));
    }
}
