//! Clients that put and pull during the run: some are kept, some come and go.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lodestore_client::{Client, ClientConfig, ClientError};
use lodestore_graph::NodeId;

use crate::error_counts::ErrorCounts;
use crate::monitor::Monitor;
use testing::Numbers;
use testing::workload::{EndOnDrop, Workload};

/// Pause after a call that failed: a client that retries must not spin.
const PAUSE: Duration = Duration::from_millis(5);

/// Rows of a pull: the most are enough for every server to send some by shared memory.
const N_ROWS: [usize; 4] = [1, 50, 700, 12_000];

/// State that all of them share.
pub(crate) struct Clients<'a> {
    pub(crate) load: &'a Workload,
    pub(crate) errors: &'a ErrorCounts,
    pub(crate) monitor: &'a Monitor,
    pub(crate) seed: u64,
    pub(crate) counts: CallCounts,
}

/// Clients that pull.
pub(crate) const N_READERS: usize = 3;

#[derive(Default)]
pub(crate) struct CallCounts {
    /// By reader: pulls that were answered.
    pub(crate) answered: [AtomicU64; N_READERS],
    pub(crate) connects: AtomicU64,
    pub(crate) connects_failed: AtomicU64,
    pub(crate) longest_ms: AtomicU64,
    /// The most by which a call outlasted its deadline.
    pub(crate) late_ms: AtomicU64,
}

/// Identity of a client, its connection, and its calls at most.
pub(crate) struct Habit {
    /// As [`Monitor`] counts.
    pub(crate) who: usize,
    pub(crate) map: String,
    pub(crate) deadline: Duration,
    pub(crate) calls_max: Option<u32>,
}

impl Habit {
    pub(crate) fn new(who: usize, map: &str, deadline: Duration, calls_max: Option<u32>) -> Self {
        Self { who, map: map.to_owned(), deadline, calls_max }
    }
}

impl Clients<'_> {
    /// Asserts that every client made progress, and that no call outlasted its deadline by more
    /// than this.
    pub(crate) fn check(&self, late_max: Duration) {
        let late = Duration::from_millis(self.counts.late_ms.load(Ordering::Relaxed));
        assert!(late <= late_max, "a call outlasted its deadline by {late:?}");
        let turns = self.load.finished();
        assert!(turns.iter().all(|turn| *turn > 0), "puts acknowledged, by writer: {turns:?}");
        let answered = self.counts.answered.each_ref().map(|count| count.load(Ordering::Relaxed));
        assert!(answered.iter().all(|n| *n > 0), "pulls answered, by reader: {answered:?}");
    }

    pub(crate) fn write(&self, writer: u32, habit: &Habit) {
        // A wrong row ends the run.
        let _end = EndOnDrop(self.load);
        let mut numbers = Numbers(self.seed ^ u64::from(writer));
        while !self.load.is_over() {
            let Some(client) = self.connect(habit) else { continue };
            let put = || self.put(&client, habit, writer);
            // With its first put it has found every holder.
            while !self.load.is_over() && !put() {}
            self.repeat(habit, &mut numbers, |_| {
                put();
            });
        }
    }

    pub(crate) fn read(&self, reader: usize, habit: &Habit) {
        let _end = EndOnDrop(self.load);
        let mut numbers = Numbers(self.seed ^ ((reader as u64) << 8));
        while !self.load.is_over() {
            let Some(client) = self.connect(habit) else { continue };
            self.repeat(habit, &mut numbers, |numbers| {
                let ids = self.load.some_ids(numbers, &N_ROWS);
                let is_answered = self.pull(&client, habit, &ids);
                self.counts.answered[reader].fetch_add(u64::from(is_answered), Ordering::Relaxed);
            });
        }
    }

    /// Repeats a call until the end, or for as many calls as a client of this habit is kept.
    fn repeat(&self, habit: &Habit, numbers: &mut Numbers, call: impl Fn(&mut Numbers)) {
        let n_calls = habit.calls_max.map_or(u32::MAX, |most| numbers.below(most));
        for _ in 0..n_calls {
            if self.load.is_over() {
                return;
            }
            call(numbers);
        }
    }

    pub(crate) fn connect(&self, habit: &Habit) -> Option<Client> {
        let config = ClientConfig { deadline: habit.deadline, ..ClientConfig::default() };
        let mut client = None;
        self.counts.connects.fetch_add(1, Ordering::Relaxed);
        let is_done = self.call(habit, || {
            client = Some(Client::connect(&[&habit.map], config)?);
            Ok(())
        });
        self.counts.connects_failed.fetch_add(u64::from(!is_done), Ordering::Relaxed);
        client
    }

    fn put(&self, client: &Client, habit: &Habit, writer: u32) -> bool {
        let put = self.load.next_put(writer);
        let is_done = self.call(habit, || put.send(client));
        if is_done {
            put.acknowledge();
        }
        is_done
    }

    /// Returns whether rows came, which then were as they must be.
    pub(crate) fn pull(&self, client: &Client, habit: &Habit, ids: &[NodeId]) -> bool {
        let mut pull = self.load.pull(ids);
        let is_answered = self.call(habit, || pull.ask(client));
        if is_answered {
            pull.compare();
        }
        is_answered
    }

    /// Times a call and notes its error; returns whether it succeeded.
    pub(crate) fn call(
        &self,
        habit: &Habit,
        call: impl FnOnce() -> Result<(), ClientError>,
    ) -> bool {
        let start = Instant::now();
        let result = self.monitor.during(habit.who, habit.deadline, call);
        let took = start.elapsed();
        let late = took.saturating_sub(habit.deadline);
        self.counts.longest_ms.fetch_max(took.as_millis() as u64, Ordering::Relaxed);
        self.counts.late_ms.fetch_max(late.as_millis() as u64, Ordering::Relaxed);
        if let Err(error) = &result {
            self.errors.note(error);
            thread::sleep(PAUSE);
        }
        result.is_ok()
    }
}
