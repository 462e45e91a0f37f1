//! Progress of this server with the partitions that it follows, as reported by the threads that
//! fetch their versions.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lodestore_graph::PartId;
use lodestore_graph::lock::IgnorePoison;
use lodestore_schema::stats::FollowStats;

/// A version is usually fetched and installed within this time.
const FETCH_EXPECTED: Duration = Duration::from_secs(5);
/// A shorter failure is a restart, or a partition that is being moved.
const FAULT_EXPECTED: Duration = Duration::from_secs(2);
/// A poll usually ends within this time.
const LOOK_EXPECTED: Duration = Duration::from_secs(10);

/// Followed partitions, with the last report of each.
#[derive(Debug, Default)]
pub(crate) struct FollowingState(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Polling interval.
    interval: Duration,
    parts: BTreeMap<PartId, Looks>,
}

#[derive(Debug)]
struct Looks {
    source: String,
    newest: u32,
    /// Time of the last successful poll, or when the first one was due.
    looked: Instant,
    /// Since when the source has a later version.
    behind_since: Option<Instant>,
    fault: Option<Fault>,
}

#[derive(Debug)]
struct Fault {
    reason: String,
    since: Instant,
    is_refused: bool,
}

/// State of a followed partition at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowedPart {
    /// The partition.
    pub part: PartId,
    /// Source of its versions: the address of a writer, or the URL of a bucket.
    pub source: String,
    /// Newest version at the source at the last poll; 0 before the first.
    pub newest: u32,
    /// Served version; 0 if none is served yet.
    pub served: u32,
    /// Time since the last successful poll, or since the first one was due.
    pub look_age: Duration,
    /// How long the source has had a later version than the served one.
    pub behind_for: Option<Duration>,
    /// Why the partition cannot be fetched.
    pub fault: Option<FollowFault>,
    /// Polling interval.
    pub interval: Duration,
}

/// How a followed partition lags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lag {
    /// Polls or fetches fail.
    Stalled {
        /// Needs an operator.
        is_refused: bool,
    },
    /// A poll does not end: the source hangs.
    Unseen,
    /// The fetch of a version is slow.
    Slow,
}

/// Why a partition cannot be fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowFault {
    /// Error of the last poll.
    pub reason: String,
    /// Time since the first of the consecutive failures.
    pub lasts: Duration,
    /// Needs an operator: the source has another history, or the disk is full.
    pub is_refused: bool,
}

impl FollowedPart {
    /// Returns the number of versions that the source has beyond the served one, at the last poll.
    #[must_use]
    pub fn n_behind(&self) -> u32 {
        self.newest.saturating_sub(self.served)
    }

    /// Returns how the partition lags, or `None` if it follows.
    ///
    /// A fetch takes time, and a writer may restart or move the partition to another server: a
    /// condition that ends within seconds is not a lag.
    #[must_use]
    pub fn lag(&self) -> Option<Lag> {
        let is_stalled = |fault: &&FollowFault| fault.is_refused || fault.lasts >= FAULT_EXPECTED;
        if let Some(fault) = self.fault.as_ref().filter(is_stalled) {
            return Some(Lag::Stalled { is_refused: fault.is_refused });
        }
        if self.look_age >= LOOK_EXPECTED + 2 * self.interval {
            return Some(Lag::Unseen);
        }
        self.behind_for.filter(|lasts| *lasts >= FETCH_EXPECTED).map(|_| Lag::Slow)
    }

    /// Returns why the partition lags, or `None` if it follows.
    #[must_use]
    pub fn lag_reason(&self) -> Option<String> {
        match self.lag()? {
            Lag::Stalled { .. } => self.fault.as_ref().map(|fault| fault.reason.clone()),
            Lag::Unseen => Some("the source does not respond".to_owned()),
            Lag::Slow => Some("the fetch is slow".to_owned()),
        }
    }

    /// Returns how long the partition has lagged.
    #[must_use]
    pub fn lasts(&self) -> Duration {
        let fault = self.fault.as_ref().map(|fault| fault.lasts);
        let known = fault.max(self.behind_for);
        if self.lag() == Some(Lag::Unseen) { self.look_age } else { known.unwrap_or_default() }
    }
}

impl FollowingState {
    /// Begins to follow partitions of `source`, which is polled at this interval.
    pub(crate) fn begin(&self, parts: &[PartId], source: &str, interval: Duration, now: Instant) {
        let mut state = self.lock();
        state.interval = interval;
        for part in parts {
            let source = source.to_owned();
            let looks = Looks { source, newest: 0, looked: now, behind_since: None, fault: None };
            state.parts.insert(*part, looks);
        }
    }

    /// Records a successful poll, with the newest version at the source.
    pub(crate) fn looked(
        &self,
        part: PartId,
        source: &str,
        newest: u32,
        served: u32,
        now: Instant,
    ) {
        let mut state = self.lock();
        let Some(looks) = state.parts.get_mut(&part) else { return };
        if looks.source != source {
            looks.source = source.to_owned();
        }
        looks.newest = newest;
        looks.looked = now;
        looks.note_served(served, now);
    }

    /// Records the end of a poll: the newest version is served, or the error.
    pub(crate) fn ended(
        &self,
        part: PartId,
        failure: Option<(String, bool)>,
        served: u32,
        now: Instant,
    ) {
        let mut state = self.lock();
        let Some(looks) = state.parts.get_mut(&part) else { return };
        looks.note_served(served, now);
        let since = looks.fault.as_ref().map_or(now, |fault| fault.since);
        looks.fault = failure.map(|(reason, is_refused)| Fault { reason, since, is_refused });
    }

    /// Returns all partitions, ascending; `served` returns the served version of one.
    pub(crate) fn list(&self, served: &dyn Fn(PartId) -> u32, now: Instant) -> Vec<FollowedPart> {
        let state = self.lock();
        let part = |(&part, looks): (&PartId, &Looks)| {
            let served = served(part);
            let behind_since = looks.behind_since.filter(|_| looks.newest > served);
            let fault = looks.fault.as_ref().map(|fault| FollowFault {
                reason: fault.reason.clone(),
                lasts: now.saturating_duration_since(fault.since),
                is_refused: fault.is_refused,
            });
            FollowedPart {
                part,
                source: looks.source.clone(),
                newest: looks.newest,
                served,
                look_age: now.saturating_duration_since(looks.looked),
                behind_for: behind_since.map(|since| now.saturating_duration_since(since)),
                fault,
                interval: state.interval,
            }
        };
        state.parts.iter().map(part).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().ignore_poison()
    }
}

impl Looks {
    fn note_served(&mut self, served: u32, now: Instant) {
        if self.newest <= served {
            self.behind_since = None;
        } else {
            self.behind_since.get_or_insert(now);
        }
    }
}

/// Returns the state of all partitions together, for statistics; `None` without any.
pub(crate) fn summary(parts: &[FollowedPart]) -> Option<FollowStats> {
    let mut sources: Vec<&str> = parts.iter().map(|part| part.source.as_str()).collect();
    sources.sort_unstable();
    sources.dedup();
    let fault = parts.iter().find_map(|part| {
        let fault = part.fault.as_ref()?;
        Some(format!("partition {}: {}", part.part, fault.reason))
    });
    Some(FollowStats {
        from: sources.join(", "),
        n_behind: parts.iter().map(FollowedPart::n_behind).max()?,
        look_age: parts.iter().map(|part| part.look_age).max()?,
        fault: fault.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: PartId = PartId(3);

    fn begun(now: Instant) -> FollowingState {
        let state = FollowingState::default();
        state.begin(&[PART], "10.0.0.5:7171", Duration::from_millis(200), now);
        state
    }

    fn of(state: &FollowingState, served: u32, now: Instant) -> FollowedPart {
        state.list(&|_| served, now).remove(0)
    }

    fn after(now: Instant, seconds: u64) -> Instant {
        now + Duration::from_secs(seconds)
    }

    #[test]
    fn a_fetch_is_a_lag_only_once_it_is_slow() {
        let now = Instant::now();
        let state = begun(now);
        state.looked(PART, "10.0.0.5:7171", 5, 3, now);
        let part = of(&state, 3, after(now, 4));
        assert_eq!((part.n_behind(), part.behind_for), (2, Some(Duration::from_secs(4))));
        assert_eq!(part.lag_reason(), None);
        state.looked(PART, "10.0.0.5:7171", 6, 3, after(now, 4));
        let part = of(&state, 3, after(now, 5));
        assert_eq!((part.lag(), part.n_behind()), (Some(Lag::Slow), 3));
        // The version is served before the next poll.
        assert_eq!(of(&state, 6, after(now, 5)).lag_reason(), None);
        state.ended(PART, None, 6, after(now, 6));
        state.looked(PART, "10.0.0.5:7171", 7, 6, after(now, 7));
        let part = of(&state, 6, after(now, 8));
        assert_eq!(part.behind_for, Some(Duration::from_secs(1)), "counted anew");
    }

    #[test]
    fn a_failure_is_a_lag_once_it_lasts_or_needs_an_operator() {
        let now = Instant::now();
        let state = begun(now);
        state.ended(PART, Some(("refused".into(), false)), 3, now);
        assert_eq!(of(&state, 3, after(now, 1)).lag_reason(), None);
        state.ended(PART, Some(("timed out".into(), false)), 3, after(now, 2));
        assert_eq!(of(&state, 3, after(now, 2)).lag_reason().as_deref(), Some("timed out"));
        let lasts = of(&state, 3, after(now, 9)).fault.unwrap().lasts;
        assert_eq!(lasts, Duration::from_secs(9), "from the first failure on");
        state.ended(PART, None, 3, after(now, 9));
        assert_eq!(of(&state, 3, after(now, 9)).fault, None);
        state.ended(PART, Some(("another history".into(), true)), 3, after(now, 9));
        let lag = of(&state, 3, after(now, 9)).lag();
        assert_eq!(lag, Some(Lag::Stalled { is_refused: true }));
    }

    #[test]
    fn a_source_that_hangs_is_a_lag_before_any_poll_fails() {
        let now = Instant::now();
        let state = begun(now);
        assert_eq!(of(&state, 3, after(now, 10)).lag_reason(), None);
        let part = of(&state, 3, after(now, 11));
        assert_eq!((part.lag(), part.lasts()), (Some(Lag::Unseen), Duration::from_secs(11)));
        state.looked(PART, "10.0.0.6:7171", 3, 3, after(now, 11));
        let part = of(&state, 3, after(now, 12));
        assert_eq!((part.source.as_str(), part.lag_reason()), ("10.0.0.6:7171", None));
    }

    #[test]
    fn the_summary_has_the_worst_of_all_partitions_and_each_source_once() {
        let now = Instant::now();
        let state = FollowingState::default();
        assert_eq!(summary(&[]), None);
        state.begin(&[PartId(0), PartId(1), PartId(2)], "a:1", Duration::ZERO, now);
        state.looked(PartId(0), "b:1", 9, 3, after(now, 1));
        state.looked(PartId(1), "a:1", 4, 3, after(now, 2));
        state.ended(PartId(1), Some(("no room".into(), false)), 3, after(now, 2));
        let found = summary(&state.list(&|_| 3, after(now, 2))).unwrap();
        assert_eq!((found.from.as_str(), found.n_behind), ("a:1, b:1", 6));
        assert_eq!(found.look_age, Duration::from_secs(2));
        assert_eq!(found.fault, "partition 1: no room");
    }
}
