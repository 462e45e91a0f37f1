//! Whether a failed operation is retried, and after which pause.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::time::{Duration, Instant};

use lodestore_graph::PartId;
use lodestore_schema::FailureCode;
use rustix::io::Errno;

use super::ClientConfig;
use super::cluster_view::ClusterView;
use crate::error::ClientError;

/// First pause before a retry. Pauses double.
const BACKOFF: Duration = Duration::from_millis(10);
/// Longest pause, unless the server asks for a longer one.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// How an error is handled. Every request may be repeated: a pull changes nothing, a push puts the
/// same rows, and a commit names its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryAction {
    /// Do not retry.
    None,
    /// Ask another server that holds the same rows; this server would fail again.
    AnotherServer,
    /// Retry, at this server or another.
    Again,
    /// No server listens at the address; it may be restarting. Retry until the deadline.
    Away,
    /// The server did nothing because it was overloaded or behind. Retry until the deadline, after
    /// this pause at least.
    Later(Duration),
}

impl RetryAction {
    pub(super) fn of(error: &ClientError) -> Self {
        match error {
            ClientError::Connect { source, .. } if is_away(source) => Self::Away,
            ClientError::Connect { .. } | ClientError::Unavailable { .. } => Self::Again,
            ClientError::Refused { failure, .. } => match failure.code {
                FailureCode::Overloaded | FailureCode::Behind => Self::Later(failure.retry_after),
                FailureCode::Stopping => Self::Away,
                FailureCode::Elsewhere | FailureCode::Deadline | FailureCode::PutLost => {
                    Self::Again
                }
                FailureCode::Damaged
                | FailureCode::Internal
                | FailureCode::OtherVersion
                | FailureCode::OtherHistory
                | FailureCode::Unauthenticated => Self::AnotherServer,
                _ => Self::None,
            },
            // The server breaks the protocol or has another history; another server may not.
            ClientError::Handshake { .. }
            | ClientError::Wire { .. }
            | ClientError::OtherHistory { .. } => Self::AnotherServer,
            _ => Self::None,
        }
    }

    /// Returns the action for several failed requests. Permanent errors decide, then failures, then
    /// the longest wait for an overloaded server.
    pub(super) fn deciding(all: impl Iterator<Item = Self>) -> Self {
        let rank = |action: &Self| match action {
            Self::Later(pause) => (0, *pause),
            Self::Away => (0, Duration::ZERO),
            Self::Again | Self::AnotherServer => (1, Duration::ZERO),
            Self::None => (2, Duration::ZERO),
        };
        all.max_by_key(rank).unwrap_or(Self::None)
    }

    /// Returns the action if no other server has the rows.
    pub(super) fn without_others(self) -> Self {
        if self.is_final() { Self::None } else { self }
    }

    /// Returns whether the same server would fail again.
    pub(super) fn is_final(self) -> bool {
        matches!(self, Self::None | Self::AnotherServer)
    }
}

/// Returns whether a connect error says that no server listens, which a restart ends. A timeout, a
/// missing permission, or a lack of descriptors in this process does not say so.
fn is_away(error: &io::Error) -> bool {
    let is_own = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::PermissionDenied => false,
        _ => !Errno::from_io_error(error).is_some_and(|errno| is_own.contains(&errno)),
    }
}

/// Retries of one operation so far, and its deadline.
pub(super) struct RetryBudget {
    attempts_max: u32,
    pub(super) deadline: Instant,
    attempts: u32,
    refusals: u32,
    /// Attempts since the last progress.
    tries: u32,
    /// When these attempts began.
    since: Instant,
    /// Partitions that had no server in the last round, while every server responded.
    missing: BTreeSet<PartId>,
    words: RandomState,
}

impl RetryBudget {
    pub(super) fn new(config: &ClientConfig, deadline: Instant) -> Self {
        let attempts_max = config.attempts;
        let words = RandomState::new();
        let (missing, since) = (BTreeSet::new(), Instant::now());
        Self { attempts_max, deadline, attempts: 0, refusals: 0, tries: 0, since, missing, words }
    }

    /// Returns the number of failures so far, apart from overload and refused connections.
    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Resets the budget after progress: the obstacle is gone.
    pub(super) fn reset(&mut self) {
        (self.attempts, self.refusals, self.tries) = (0, 0, 0);
        self.since = Instant::now();
    }

    /// Returns the error to report. An unreachable server is named as the caller named it, with the
    /// time and the number of attempts.
    pub(super) fn report(&self, error: ClientError, view: &ClusterView) -> ClientError {
        let ClientError::Connect { address, source } = error else { return error };
        let (server, shard) = view.name_of(&address).unwrap_or((address, None));
        let (tries, waited) = (self.tries.max(1), self.since.elapsed());
        ClientError::Away { server, shard, tries, waited, source }
    }

    pub(super) fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Records whether a partition is missing with nothing left to wait for; returns whether it was
    /// so in the last round too. A partition that moves between two replies of one round is found
    /// in the next.
    pub(super) fn confirm_missing(&mut self, part: PartId, is_so: bool) -> bool {
        if !is_so {
            self.missing.remove(&part);
            return false;
        }
        !self.missing.insert(part)
    }

    /// Returns the pause before the next attempt; `None` to give up.
    ///
    /// Pauses double. Each is random between half its length and all of it, so that many clients
    /// that were refused together do not retry together.
    pub(super) fn pause(&mut self, action: RetryAction) -> Option<Duration> {
        self.tries += 1;
        let (hint, n_before) = match action {
            RetryAction::None => return None,
            // A single attempt is configured.
            RetryAction::Away if self.attempts_max <= 1 => return None,
            RetryAction::Away => {
                self.refusals += 1;
                (Duration::ZERO, self.refusals - 1)
            }
            RetryAction::Later(hint) => {
                self.refusals += 1;
                (hint, self.refusals - 1)
            }
            RetryAction::AnotherServer | RetryAction::Again => {
                self.attempts += 1;
                if self.attempts >= self.attempts_max {
                    return None;
                }
                (Duration::ZERO, self.attempts - 1)
            }
        };
        let most = BACKOFF_MAX.min(BACKOFF * (1 << n_before.min(10))).max(hint);
        let pause = hint + most.mul_f64(0.5 + 0.5 * self.fraction());
        let left = self.time_left();
        (pause < left).then_some(pause)
    }

    /// Returns a random number from 0 to 1, another one for each pause.
    fn fraction(&self) -> f64 {
        let mut hasher = self.words.build_hasher();
        hasher.write_u32(self.attempts);
        hasher.write_u32(self.refusals);
        hasher.finish() as f64 / u64::MAX as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HINT: Duration = Duration::from_millis(20);

    fn retry(deadline: Duration) -> RetryBudget {
        RetryBudget::new(&ClientConfig::default(), Instant::now() + deadline)
    }

    #[test]
    fn a_server_without_room_is_asked_until_the_deadline_and_one_that_fails_a_few_times() {
        let mut one = retry(Duration::from_secs(3600));
        assert!((0..100).all(|_| one.pause(RetryAction::Later(HINT)).is_some()));
        let mut n_tries = 0;
        while one.pause(RetryAction::Again).is_some() {
            n_tries += 1;
        }
        assert_eq!(n_tries, ClientConfig::default().attempts - 1);
        one.reset();
        assert!(one.pause(RetryAction::Again).is_some());
        assert_eq!(one.pause(RetryAction::None), None);
        assert!((0..100).all(|_| one.pause(RetryAction::Away).is_some()), "it may start again");
        let once = ClientConfig { attempts: 1, ..ClientConfig::default() };
        let mut once = RetryBudget::new(&once, Instant::now() + Duration::from_secs(3600));
        assert_eq!(once.pause(RetryAction::Away), None);
        let mut hurried = retry(Duration::from_millis(5));
        assert_eq!(
            hurried.pause(RetryAction::Later(HINT)),
            None,
            "it would end after the deadline"
        );
    }

    #[test]
    fn final_errors_decide_then_failures_then_the_longest_wait() {
        use RetryAction::{Again, AnotherServer, Away, Later, None};
        let decided = |all: &[RetryAction]| RetryAction::deciding(all.iter().copied());
        assert_eq!(decided(&[Later(HINT), Again, None]), None);
        assert_eq!(decided(&[Again, Later(HINT)]), Again);
        assert_eq!(decided(&[Later(HINT), Later(2 * HINT), Later(HINT)]), Later(2 * HINT));
        assert_eq!(decided(&[Away, Again]), Again);
        assert_eq!(decided(&[Away, Later(HINT)]), Later(HINT));
        assert!(!Away.is_final());
        assert!(None.is_final() && AnotherServer.is_final() && !Again.is_final());
    }

    #[test]
    fn a_refused_connection_means_away_and_a_lack_of_descriptors_does_not() {
        let of = |source: io::Error| {
            let address = "127.0.0.1:9".parse().unwrap();
            RetryAction::of(&ClientError::Connect { address, source })
        };
        for errno in [Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::NOENT, Errno::CONNRESET] {
            assert_eq!(of(errno.into()), RetryAction::Away, "{errno}");
        }
        assert_eq!(of(io::Error::other("failed to lookup address")), RetryAction::Away);
        for errno in [Errno::MFILE, Errno::ACCESS, Errno::TIMEDOUT] {
            assert_eq!(of(errno.into()), RetryAction::Again, "{errno}");
        }
    }

    #[test]
    fn pauses_grow_to_a_bound_keep_to_hints_and_differ_between_clients() {
        let pauses = |hint| -> Vec<Duration> {
            let mut one = retry(Duration::from_secs(3600));
            (0..12).map(|_| one.pause(RetryAction::Later(hint)).unwrap()).collect()
        };
        let (all, others) = (pauses(HINT), pauses(HINT));
        assert!(all.iter().all(|&pause| pause >= HINT && pause <= HINT + BACKOFF_MAX), "{all:?}");
        assert!(all[11] > 4 * all[0], "{all:?}");
        assert_ne!(all, others);
        let long = Duration::from_secs(5);
        assert!(pauses(long).iter().all(|&pause| pause >= long));
    }
    #[test]
    fn a_partition_counts_as_missing_after_two_misses_in_a_row() {
        let mut one = retry(Duration::from_secs(1));
        let (a, b) = (PartId(1), PartId(2));
        assert!(!one.confirm_missing(a, true) && !one.confirm_missing(b, true));
        assert!(!one.confirm_missing(b, false) && !one.confirm_missing(b, true));
        assert!(one.confirm_missing(a, true) && one.confirm_missing(b, true));
    }
}
