//! What a follower says in its log: that it falls behind, why and how far, and that it caught up.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use lodestore_graph::lock::IgnorePoison;
use lodestore_server::installer::{FollowedPart, Installer, Lag};

use crate::advice::by_phrase;
use crate::human::joined;

/// Interval at which a look that does not end is noticed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Interval of lines about a lag that lasts.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// Partitions that a line names.
const NAMED_MAX: usize = 8;

/// The log of a follower, written by the threads that fetch and by one of its own.
#[derive(Clone)]
pub(super) struct FollowLog {
    installer: Installer,
    teller: Arc<Mutex<Teller>>,
}

impl FollowLog {
    /// Starts a thread that writes what the others cannot, since they wait for a source.
    pub(super) fn start(installer: Installer) -> Result<Self> {
        let this = Self { installer, teller: Arc::default() };
        let watching = this.clone();
        let watch = move || loop {
            thread::sleep(LOOK_EVERY);
            watching.write();
        };
        thread::Builder::new().name("lode-follow-log".into()).spawn(watch)?;
        Ok(this)
    }

    /// Writes what has changed since the last call.
    pub(super) fn write(&self) {
        let parts = self.installer.followed_parts();
        let line = self.teller.lock().ignore_poison().next(&parts, Instant::now());
        match line {
            None => {}
            Some(Line::Lags { text, is_refused: true }) => tracing::error!("{}", with_flag(text)),
            Some(Line::Lags { text, is_refused: false }) => tracing::warn!("{}", with_flag(text)),
            // As loud as what it ends.
            Some(Line::CaughtUp { text }) => tracing::warn!("{text}"),
        }
    }
}

/// Adds the flag that does what a line says, if one does.
fn with_flag(text: String) -> String {
    match by_phrase(&text) {
        Some(flag) => format!("{text} ({flag})"),
        None => text,
    }
}

/// Chooses the lines.
#[derive(Default)]
struct Teller {
    told: Option<Told>,
}

/// The lag that was logged last.
struct Told {
    /// When it began.
    since: Instant,
    /// When it was logged.
    at: Instant,
    lag: Lag,
    reason: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Line {
    Lags { text: String, is_refused: bool },
    CaughtUp { text: String },
}

impl Teller {
    /// Returns the line that this state is worth.
    fn next(&mut self, parts: &[FollowedPart], now: Instant) -> Option<Line> {
        let first = parts.iter().find(|part| part.lag().is_some());
        let Some(first) = first else { return self.caught_up(parts, now) };
        let (lag, reason) = (first.lag()?, first.lag_reason()?);
        let since = self.told.as_ref().map(|told| told.since);
        let since = since.unwrap_or_else(|| now.checked_sub(first.lasts()).unwrap_or(now));
        let is_told = self.told.as_ref().is_some_and(|told| {
            told.lag == lag && told.reason == reason && now - told.at < TELL_EVERY
        });
        if is_told {
            return None;
        }
        // Those that fail since a moment later are named too.
        let is_late = |part: &&FollowedPart| part.lag().is_some() || part.fault.is_some();
        let late: Vec<&FollowedPart> = parts.iter().filter(is_late).collect();
        let text = lag_line(first, &late, &reason, now - since);
        self.told = Some(Told { since, at: now, lag, reason });
        Some(Line::Lags { text, is_refused: lag == Lag::Stalled { is_refused: true } })
    }

    fn caught_up(&mut self, parts: &[FollowedPart], now: Instant) -> Option<Line> {
        // What is being fetched is not served yet.
        if parts.iter().any(|part| part.n_behind() > 0 || part.fault.is_some()) {
            return None;
        }
        let told = self.told.take()?;
        let version = parts.iter().map(|part| part.served).min()?;
        let seconds = (now - told.since).as_secs();
        Some(Line::CaughtUp { text: format!("caught up at version {version} after {seconds} s") })
    }
}

/// Returns the line about partitions that do not follow as they should, of which `first` gives the
/// reason.
fn lag_line(first: &FollowedPart, late: &[&FollowedPart], reason: &str, lasts: Duration) -> String {
    let named = joined(late.iter().take(NAMED_MAX).map(|part| part.part), ", ");
    let more = late.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let noun = if late.len() == 1 { "partition" } else { "partitions" };
    let how_far = match (first.newest, first.n_behind()) {
        (0, _) => format!("version {} is served, and its source was never seen", first.served),
        (_, 0) => format!("version {} is served, the newest when it was last seen", first.served),
        (newest, behind) => {
            format!("version {} is served, {behind} behind version {newest}", first.served)
        }
    };
    let seen = first.look_age.as_secs();
    format!(
        "behind in {noun} {named}{more} since {} s: {how_far} {seen} s ago; {reason}",
        lasts.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use lodestore_graph::PartId;
    use lodestore_server::installer::FollowFault;

    use super::*;

    fn part(part: u16, served: u32, newest: u32, fault: Option<(&str, u64)>) -> FollowedPart {
        let fault = fault.map(|(reason, seconds)| FollowFault {
            reason: reason.to_owned(),
            lasts: Duration::from_secs(seconds),
            is_refused: false,
        });
        FollowedPart {
            part: PartId(part),
            source: "10.0.0.5:7171".to_owned(),
            newest,
            served,
            look_age: Duration::from_secs(3),
            behind_for: None,
            fault,
            interval: Duration::from_millis(200),
        }
    }

    fn text(line: Option<Line>) -> String {
        match line {
            Some(Line::Lags { text, .. } | Line::CaughtUp { text }) => text,
            None => String::new(),
        }
    }

    #[test]
    fn a_lag_is_told_once_a_minute_with_its_reason_and_its_end() {
        let (mut teller, now) = (Teller::default(), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        let well = [part(0, 5, 5, None), part(1, 5, 5, None)];
        let late = |seconds| [part(0, 5, 5, None), part(1, 5, 7, Some(("no answer", seconds)))];
        assert_eq!(teller.next(&well, now), None);
        assert_eq!(teller.next(&late(1), now), None, "a restart takes a moment");
        let told = text(teller.next(&late(2), after(2)));
        let expected = "behind in partition 1 since 2 s: version 5 is served, 2 behind version 7 3 s \
                        ago; no answer";
        assert_eq!(told, expected);
        assert_eq!(teller.next(&late(9), after(9)), None);
        let other = [part(1, 5, 7, Some(("another reason", 10)))];
        assert!(text(teller.next(&other, after(10))).ends_with("; another reason"));
        assert_eq!(teller.next(&other, after(69)), None);
        assert!(text(teller.next(&other, after(70))).contains("since 70 s"));
        // The source is back, and what it has is being fetched.
        assert_eq!(teller.next(&[part(1, 5, 7, None)], after(71)), None);
        let caught_up = text(teller.next(&[part(0, 8, 8, None), part(1, 7, 7, None)], after(72)));
        assert_eq!(caught_up, "caught up at version 7 after 72 s");
        assert_eq!(teller.next(&well, after(73)), None, "once");
    }

    #[test]
    fn partitions_that_fail_a_moment_later_are_named_too_and_awaited() {
        let (mut teller, now) = (Teller::default(), Instant::now());
        let parts = [part(0, 5, 5, Some(("no answer", 2))), part(1, 5, 5, Some(("no answer", 1)))];
        let told = text(teller.next(&parts, now));
        assert!(told.starts_with("behind in partitions 0, 1 since 2 s"), "{told}");
        let one = [part(0, 5, 5, None), part(1, 5, 5, Some(("no answer", 1)))];
        assert_eq!(teller.next(&one, now), None);
        let both = [part(0, 5, 5, None), part(1, 5, 5, None)];
        assert!(text(teller.next(&both, now)).starts_with("caught up"));
    }

    #[test]
    fn many_partitions_make_one_line() {
        let late: Vec<FollowedPart> =
            (0..100).map(|at| part(at, 5, 0, Some(("no answer", 9)))).collect();
        let told = text(Teller::default().next(&late, Instant::now()));
        assert!(
            told.starts_with("behind in partitions 0, 1, 2, 3, 4, 5, 6, 7 and 92 more"),
            "{told}"
        );
        assert!(told.contains("its source was never seen"), "{told}");
    }
}
