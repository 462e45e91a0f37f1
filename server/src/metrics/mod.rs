//! Metrics of a server. Each request gathers them from counters, so shards never wait for a reader
//! of metrics.

#[cfg(test)]
mod dashboard_tests;
mod disk;
mod figures;
mod prometheus;
mod table;

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::blocking::BlockingPools;
use crate::compactor::Runs;
use crate::config::ServerConfig;
use crate::limits::HEARTBEAT_OVERDUE;
use crate::partitions::Partitions;
use crate::preload::Preload;
use crate::stats::Counters;
use crate::volatile::Volatile;

pub use disk::DiskFigures;
use disk::DiskWatch;
pub use figures::{
    FollowFigures, KindFigures, LatencyFigures, ProcessFigures, ServerFigures, ShardFigures,
    UpdateFigures,
};
pub(crate) use prometheus::CONTENT_TYPE;

/// A server as metrics see it, from before its graph opens until its last thread has ended.
pub(crate) struct Observed {
    program: String,
    disk: DiskWatch,
    started: Instant,
    started_unix: Duration,
    phase: AtomicU8,
    /// Connections closed on arrival.
    dropped: AtomicU64,
    served: OnceLock<Served>,
}

/// State of a server whose graph is open.
pub(crate) struct Served {
    pub(crate) partitions: Arc<Partitions>,
    pub(crate) counters: Arc<[Counters]>,
    pub(crate) threads: Arc<BlockingPools>,
    pub(crate) runs: Arc<Runs>,
    pub(crate) preload: Arc<Preload>,
    pub(crate) volatile: Arc<Volatile>,
}

/// Phase of a server's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Opening the graph and starting shards.
    Opening,
    /// All partitions are open, and the server accepts requests.
    Serving,
    /// Accepting nothing new, and finishing requests in flight.
    Draining,
}

impl Phase {
    const ALL: [Self; 3] = [Self::Opening, Self::Serving, Self::Draining];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Serving => "serving",
            Self::Draining => "draining",
        }
    }
}

impl Observed {
    pub(crate) fn new(config: &ServerConfig) -> Self {
        let started_unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            program: config.program.clone(),
            disk: DiskWatch::start(config.graph.clone()),
            started: Instant::now(),
            started_unix,
            phase: AtomicU8::new(Phase::Opening as u8),
            dropped: AtomicU64::new(0),
            served: OnceLock::new(),
        }
    }

    /// Records that the graph is open; the shards are about to start.
    pub(crate) fn opened(&self, served: Served) {
        let is_first = self.served.set(served).is_ok();
        debug_assert!(is_first, "a server opens its graph once");
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    pub(crate) fn phase(&self) -> Phase {
        Phase::ALL[usize::from(self.phase.load(Ordering::Acquire))]
    }

    pub(crate) fn served(&self) -> Option<&Served> {
        self.served.get()
    }

    /// Returns the time since the start.
    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Counts a connection that was closed on arrival.
    pub(crate) fn dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Records the time of a shard's publication of gauges.
    pub(crate) fn heartbeat(&self, counters: &Counters) {
        let now_ms = u64::try_from(self.uptime().as_millis()).unwrap_or(u64::MAX).max(1);
        counters.gauges.at_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Returns the time since a shard last published its gauges, or since the start if it never
    /// did.
    fn beat_age(&self, counters: &Counters) -> Duration {
        let at = Duration::from_millis(counters.gauges.at_ms.load(Ordering::Relaxed));
        self.uptime().saturating_sub(at)
    }

    /// Returns the shard that has been silent longest, with that time, if it exceeds the limit.
    pub(crate) fn silent_shard(&self) -> Option<(usize, Duration)> {
        let shards = self.served().filter(|_| self.phase() == Phase::Serving)?.counters.iter();
        let ages = shards.map(|counters| self.beat_age(counters)).enumerate();
        ages.filter(|(_, age)| *age > HEARTBEAT_OVERDUE).max_by_key(|(_, age)| *age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_entered_phase_is_reported() {
        let observed = Observed::new(&ServerConfig::new("."));
        assert_eq!(observed.phase(), Phase::Opening);
        for phase in Phase::ALL {
            observed.enter(phase);
            assert_eq!(observed.phase(), phase);
        }
    }

    #[test]
    fn the_age_of_a_heartbeat_is_the_time_since_it() {
        let (observed, counters) = (Observed::new(&ServerConfig::new(".")), Counters::new(1));
        std::thread::sleep(Duration::from_millis(30));
        assert!(observed.beat_age(&counters) >= Duration::from_millis(30), "never published");
        let published = Instant::now();
        observed.heartbeat(&counters);
        let age = observed.beat_age(&counters);
        // Times are stored in whole milliseconds.
        assert!(age <= published.elapsed() + Duration::from_millis(1), "{age:?}");
    }
}
