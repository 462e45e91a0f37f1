//! How far this server is with the partitions that it follows, as the threads that fetch their
//! versions have said.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lodestore_graph::PartId;
use lodestore_graph::lock::IgnorePoison;
use lodestore_schema::stats::FollowStats;

/// A version is usually fetched and installed within this time.
const FETCH_EXPECTED: Duration = Duration::from_secs(5);
/// A failure that ends within this time is a restart, or a partition on its way.
const FAULT_EXPECTED: Duration = Duration::from_secs(2);
/// A look usually ends within this time.
const LOOK_EXPECTED: Duration = Duration::from_secs(10);

/// The partitions that are followed, with what was last said about each.
#[derive(Debug, Default)]
pub(crate) struct FollowingState(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Interval of looks.
    interval: Duration,
    parts: BTreeMap<PartId, Looks>,
}

#[derive(Debug)]
struct Looks {
    source: String,
    newest: u32,
    /// The last look that found the source, or when the first one was due.
    looked: Instant,
    /// Since when a later version is at the source.
    behind_since: Option<Instant>,
    fault: Option<Fault>,
}

#[derive(Debug)]
struct Fault {
    reason: String,
    since: Instant,
    is_refused: bool,
}

/// A partition that is followed, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowedPart {
    /// The partition.
    pub part: PartId,
    /// Where its versions come from: the address of a writer, or the URL of a bucket.
    pub source: String,
    /// The newest version there, as last seen; 0 before the first look.
    pub newest: u32,
    /// The version that is served here; 0 where none is yet.
    pub served: u32,
    /// Time since the source was last seen, or since the first look was due.
    pub look_age: Duration,
    /// How long the source has had a later version than is served here.
    pub behind_for: Option<Duration>,
    /// Why the partition cannot be fetched.
    pub fault: Option<FollowFault>,
    /// Interval of looks.
    pub interval: Duration,
}

/// The way in which a partition does not follow as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lag {
    /// Looks or fetches fail.
    Stalled {
        /// A person has to help.
        is_refused: bool,
    },
    /// A look does not end: the source hangs.
    Unseen,
    /// A version is being fetched, for long.
    Slow,
}

/// Why a partition cannot be fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowFault {
    /// The failure of the last look.
    pub reason: String,
    /// Time since the first of these failures.
    pub lasts: Duration,
    /// A person has to help: the source has another history, or there is no room.
    pub is_refused: bool,
}

impl FollowedPart {
    /// Returns the number of versions that the source has beyond the one that is served here, as
    /// last seen.
    #[must_use]
    pub fn n_behind(&self) -> u32 {
        self.newest.saturating_sub(self.served)
    }

    /// Returns in which way the partition does not follow as it should, or `None` if it does.
    ///
    /// A fetch takes a while, and a writer may restart or give the partition up to another one: what
    /// ends within seconds is no lag.
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

    /// Returns why the partition does not follow as it should, or `None` if it does.
    #[must_use]
    pub fn lag_reason(&self) -> Option<String> {
        match self.lag()? {
            Lag::Stalled { .. } => self.fault.as_ref().map(|fault| fault.reason.clone()),
            Lag::Unseen => Some("its source does not answer".to_owned()),
            Lag::Slow => Some("a fetch takes long".to_owned()),
        }
    }

    /// Returns how long it has not followed as it should.
    #[must_use]
    pub fn lasts(&self) -> Duration {
        let fault = self.fault.as_ref().map(|fault| fault.lasts);
        let known = fault.max(self.behind_for);
        if self.lag() == Some(Lag::Unseen) { self.look_age } else { known.unwrap_or_default() }
    }
}

impl FollowingState {
    /// Begins with partitions that come from `source`, which is looked at in this interval.
    pub(crate) fn begin(&self, parts: &[PartId], source: &str, interval: Duration, now: Instant) {
        let mut state = self.lock();
        state.interval = interval;
        for part in parts {
            let source = source.to_owned();
            let looks = Looks { source, newest: 0, looked: now, behind_since: None, fault: None };
            state.parts.insert(*part, looks);
        }
    }

    /// Notes that a source was seen, with the newest version there.
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

    /// Notes how a look ended: the newest version is served, or a failure.
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

    /// Returns all partitions, ascending; `served` returns the version that is served here.
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

/// Returns the state of all partitions together, as statistics have it; `None` without any.
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
    fn a_version_that_is_being_fetched_is_no_lag_until_it_takes_long() {
        let now = Instant::now();
        let state = begun(now);
        state.looked(PART, "10.0.0.5:7171", 5, 3, now);
        let part = of(&state, 3, after(now, 4));
        assert_eq!((part.n_behind(), part.behind_for), (2, Some(Duration::from_secs(4))));
        assert_eq!(part.lag_reason(), None);
        state.looked(PART, "10.0.0.5:7171", 6, 3, after(now, 4));
        let part = of(&state, 3, after(now, 5));
        assert_eq!((part.lag(), part.n_behind()), (Some(Lag::Slow), 3));
        // It is served before the next look.
        assert_eq!(of(&state, 6, after(now, 5)).lag_reason(), None);
        state.ended(PART, None, 6, after(now, 6));
        state.looked(PART, "10.0.0.5:7171", 7, 6, after(now, 7));
        let part = of(&state, 6, after(now, 8));
        assert_eq!(part.behind_for, Some(Duration::from_secs(1)), "counted anew");
    }

    #[test]
    fn a_failure_is_a_lag_once_it_lasts_and_one_for_a_person_immediately() {
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
    fn a_source_that_hangs_is_a_lag_though_no_look_has_failed() {
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
