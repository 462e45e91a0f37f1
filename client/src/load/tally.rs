//! Measurements of a load.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lodestore_graph::NodeId;
use lodestore_schema::FailureCode;

use crate::source::PullKind;

/// Longest distinguishable latency; longer ones count as this.
const LONGEST_NS: u64 = 600_000_000_000;
/// Shortest distinguishable latency.
const SHORTEST_NS: u64 = 100;
/// Significant decimal digits of a recorded latency.
const DIGITS: u8 = 3;

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoadError {
    /// A server could not be reached.
    Connect,
    /// A connection broke.
    Broken,
    /// A server violated the wire protocol.
    Wire,
    /// No reply within the deadline.
    Late,
    /// The server replied with a failure.
    Refused(FailureCode),
}

impl LoadError {
    /// Returns the name of the error in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Broken => "broken",
            Self::Wire => "wire",
            Self::Late => "late",
            Self::Refused(code) => code.name(),
        }
    }

    /// Returns whether the failed request cost waiting time, unlike an immediate refusal.
    fn has_waited(self) -> bool {
        match self {
            Self::Connect | Self::Broken | Self::Wire | Self::Late => true,
            Self::Refused(code) => code == FailureCode::Deadline,
        }
    }
}

/// Counts of one kind of request.
#[derive(Clone, Debug)]
pub struct KindTally {
    /// Latency from the intended start to the last byte, in nanoseconds, of requests whose intended
    /// start is in the measured time. A failed request counts with the time to its failure, an
    /// unsent one with the time to the end of the measured time. A refusal before the deadline does
    /// not count: immediate refusals do not make a server fast.
    pub latency_ns: Histogram<u64>,
    /// Requests answered within the measured time.
    pub requests: u64,
    /// Rows of these requests.
    pub rows: u64,
    /// Bytes of these rows.
    pub bytes: u64,
}

/// Counts over the measured time.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Counts of SyncPulls.
    pub sync: KindTally,
    /// Counts of VectorPulls.
    pub vector: KindTally,
    /// Time from the intended start to the send. This is the generator's own delay, or the wait for
    /// a free slot.
    pub send_delay_ns: Histogram<u64>,
    /// Number of failed requests by error, ordered by error. Counts every request that ran at some
    /// moment of the measured time, even if its failure became known later.
    pub errors: Vec<(LoadError, u64)>,
    /// Requests of an open loop whose intended start is in the measured time, sent or unsent.
    pub due: u64,
    /// Due requests that were never sent.
    pub unsent: u64,
    /// Rows compared with the truth.
    pub verified_rows: u64,
    /// Compared rows that differed.
    pub wrong_rows: u64,
    /// A node whose row differed.
    pub first_wrong: Option<NodeId>,
    /// Processor time of the generator.
    pub cpu: Duration,
    /// Start and end of the measured time.
    window: (Instant, Instant),
}

impl Tally {
    pub(super) fn new(window: (Instant, Instant)) -> Self {
        let kind = || KindTally { latency_ns: histogram(), requests: 0, rows: 0, bytes: 0 };
        Self {
            sync: kind(),
            vector: kind(),
            send_delay_ns: histogram(),
            errors: Vec::new(),
            due: 0,
            unsent: 0,
            verified_rows: 0,
            wrong_rows: 0,
            first_wrong: None,
            cpu: Duration::ZERO,
            window,
        }
    }

    fn is_measured(&self, at: Instant) -> bool {
        self.window.0 <= at && at < self.window.1
    }

    /// Returns the measured time in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.window.1.duration_since(self.window.0).as_secs_f64()
    }

    /// Returns the tally of one kind.
    #[must_use]
    pub fn of(&self, kind: PullKind) -> &KindTally {
        match kind {
            PullKind::Sync => &self.sync,
            PullKind::Vector => &self.vector,
        }
    }

    fn of_mut(&mut self, kind: PullKind) -> &mut KindTally {
        match kind {
            PullKind::Sync => &mut self.sync,
            PullKind::Vector => &mut self.vector,
        }
    }

    pub(super) fn due(&mut self, intended: Instant) {
        self.due += u64::from(self.is_measured(intended));
    }

    pub(super) fn sent(&mut self, intended: Instant, now: Instant) {
        if self.is_measured(intended) {
            record(&mut self.send_delay_ns, now.duration_since(intended));
        }
    }

    pub(super) fn answered(
        &mut self,
        kind: PullKind,
        intended: Instant,
        now: Instant,
        rows: u64,
        bytes: u64,
    ) {
        let (starts_in, ends_in) = (self.is_measured(intended), self.is_measured(now));
        let tally = self.of_mut(kind);
        if starts_in {
            record(&mut tally.latency_ns, now.duration_since(intended));
        }
        if ends_in {
            tally.requests += 1;
            tally.rows += rows;
            tally.bytes += bytes;
        }
    }

    /// Counts a failed request, whether or not it could be sent.
    pub(super) fn failed(
        &mut self,
        kind: PullKind,
        error: LoadError,
        intended: Instant,
        now: Instant,
    ) {
        if intended >= self.window.1 || now < self.window.0 {
            return;
        }
        self.count_error(error, 1);
        if error.has_waited() && self.is_measured(intended) {
            record(&mut self.of_mut(kind).latency_ns, now.duration_since(intended));
        }
    }

    fn count_error(&mut self, error: LoadError, n: u64) {
        match self.errors.binary_search_by_key(&error, |&(known, _)| known) {
            Ok(at) => self.errors[at].1 += n,
            Err(at) => self.errors.insert(at, (error, n)),
        }
    }

    /// Counts a request of an open loop that was due and is unsent at the end, with its waiting
    /// time up to then.
    pub(super) fn never_sent(&mut self, kind: PullKind, intended: Instant) {
        if self.is_measured(intended) {
            let waited = self.window.1.duration_since(intended);
            record(&mut self.of_mut(kind).latency_ns, waited);
            self.unsent += 1;
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        for kind in [PullKind::Sync, PullKind::Vector] {
            let (tally, other) = (self.of_mut(kind), other.of(kind));
            add(&mut tally.latency_ns, &other.latency_ns);
            tally.requests += other.requests;
            tally.rows += other.rows;
            tally.bytes += other.bytes;
        }
        add(&mut self.send_delay_ns, &other.send_delay_ns);
        other.errors.iter().for_each(|&(error, n)| self.count_error(error, n));
        self.due += other.due;
        self.unsent += other.unsent;
        self.verified_rows += other.verified_rows;
        self.wrong_rows += other.wrong_rows;
        self.first_wrong = self.first_wrong.or(other.first_wrong);
        self.cpu += other.cpu;
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(SHORTEST_NS, LONGEST_NS, DIGITS).expect("constants that fit")
}

fn record(histogram: &mut Histogram<u64>, latency: Duration) {
    histogram.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
}

fn add(histogram: &mut Histogram<u64>, other: &Histogram<u64>) {
    histogram.add(other).expect("all have the same bounds");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn latencies_count_by_their_start_and_rows_by_their_end() {
        let start = Instant::now();
        let mut tally = Tally::new((start + ms(100), start + ms(200)));
        for (from, to) in [(0, 50), (50, 150), (150, 190), (190, 250)] {
            tally.answered(PullKind::Sync, start + ms(from), start + ms(to), 10, 40);
        }
        assert_eq!((tally.sync.requests, tally.sync.rows, tally.sync.bytes), (2, 20, 80));
        assert_eq!(tally.sync.latency_ns.len(), 2);
        let longest = tally.sync.latency_ns.max();
        assert!((59_000_000..61_000_000).contains(&longest), "{longest}");
        assert_eq!(tally.vector.latency_ns.len(), 0);
    }

    #[test]
    fn unsent_requests_count_with_their_waiting_time() {
        let start = Instant::now();
        let mut tally = Tally::new((start, start + ms(1000)));
        tally.never_sent(PullKind::Vector, start + ms(400));
        tally.never_sent(PullKind::Vector, start + ms(1001));
        assert_eq!((tally.unsent, tally.vector.latency_ns.len()), (1, 1));
        let longest = tally.vector.latency_ns.max();
        assert!((599_000_000..601_000_000).contains(&longest), "{longest}");
    }

    #[test]
    fn a_failure_counts_if_its_request_ran_in_the_measured_time() {
        let start = Instant::now();
        let mut tally = Tally::new((start + ms(100), start + ms(200)));
        // It ends before the measured time, spans its start, spans all of it, or ends after it.
        for (from, to) in [(0, 90), (50, 150), (60, 300), (150, 9150)] {
            let (intended, now) = (start + ms(from), start + ms(to));
            tally.failed(PullKind::Sync, LoadError::Late, intended, now);
        }
        assert_eq!(tally.errors, [(LoadError::Late, 3)]);
        assert_eq!(tally.sync.latency_ns.len(), 1, "only the last one starts in it");
        let longest = tally.sync.latency_ns.max();
        assert!((8_990_000_000..9_010_000_000).contains(&longest), "{longest}");
        assert_eq!(tally.sync.requests, 0);
    }

    #[test]
    fn immediate_refusals_do_not_count_as_latencies() {
        let start = Instant::now();
        let mut tally = Tally::new((start, start + ms(1000)));
        let refused = [FailureCode::Overloaded, FailureCode::Deadline].map(LoadError::Refused);
        for error in refused {
            tally.failed(PullKind::Sync, error, start, start + ms(500));
        }
        assert_eq!(tally.errors, refused.map(|error| (error, 1)));
        assert_eq!(tally.sync.latency_ns.len(), 1, "only the request that reached its deadline");
    }

    #[test]
    fn errors_of_threads_add_up_by_kind() {
        let start = Instant::now();
        let window = (start, start + ms(10));
        let (mut a, mut b) = (Tally::new(window), Tally::new(window));
        a.failed(PullKind::Sync, LoadError::Late, start, start);
        b.failed(PullKind::Sync, LoadError::Connect, start, start);
        b.failed(PullKind::Vector, LoadError::Late, start, start);
        a.add(&b);
        assert_eq!(a.errors, [(LoadError::Connect, 1), (LoadError::Late, 2)]);
    }
}
