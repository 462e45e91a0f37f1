//! Contestants measured in turns, so that whatever else the machine does hits all of them alike.

use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Work of one contestant in a round, on one of its threads.
pub type Contestant<'a> = (&'a str, Box<dyn Fn(usize) + Sync + 'a>);

/// Number of rounds, and of the threads that run them.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// Rounds that count; one more comes first and does not.
    pub n_rounds: usize,
    /// Threads that work at the same time, each with its number.
    pub n_threads: usize,
}

impl Rounds {
    /// Returns as many rounds as make figures, or one when the bench only has to run (`--test`).
    #[must_use]
    pub fn from_args(n_rounds: usize, n_threads: usize) -> Self {
        Self { n_rounds: if is_smoke() { 1 } else { n_rounds }, n_threads }
    }

    /// Runs all contestants in turns; returns the figures of each.
    #[must_use]
    pub fn run(&self, contestants: &[Contestant<'_>]) -> Vec<Figures> {
        let mut times: Vec<Vec<Duration>> = vec![Vec::new(); contestants.len()];
        for round in 0..=self.n_rounds {
            for ((_, work), times) in contestants.iter().zip(&mut times) {
                let time = self.one(work);
                if round > 0 {
                    times.push(time);
                }
            }
        }
        let first = times[0].clone();
        times.into_iter().map(|own| Figures::new(&first, own)).collect()
    }

    /// Returns the time of the slowest thread, all of them started together.
    fn one(&self, work: &(impl Fn(usize) + Sync + ?Sized)) -> Duration {
        let barrier = Barrier::new(self.n_threads);
        let timed = &|thread| {
            barrier.wait();
            let start = Instant::now();
            work(thread);
            start.elapsed()
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..self.n_threads).map(|thread| scope.spawn(move || timed(thread))).collect();
            let times = threads.into_iter().map(|thread| thread.join().expect("no panic"));
            times.max().unwrap_or_default()
        })
    }
}

/// Times of one contestant over all rounds.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// The median round.
    pub median: Duration,
    /// The fastest round: the one that was disturbed least.
    pub best: Duration,
    /// The median over the rounds of the first contestant's time divided by this one's.
    pub share: f64,
    /// The first contestant's fastest round divided by this one's.
    pub best_share: f64,
}

impl Figures {
    fn new(first: &[Duration], mut own: Vec<Duration>) -> Self {
        let ratio = |(a, b): (&Duration, &Duration)| a.as_secs_f64() / b.as_secs_f64();
        let mut shares: Vec<f64> = first.iter().zip(&own).map(ratio).collect();
        shares.sort_unstable_by(f64::total_cmp);
        own.sort_unstable();
        let best_of_first = first.iter().min().unwrap_or(&Duration::ZERO);
        Self {
            median: own[own.len() / 2],
            best: own[0],
            share: shares[shares.len() / 2],
            best_share: ratio((best_of_first, &own[0])),
        }
    }

    /// Formats the rate of a round that handles `n` of `unit`, and the first contestant's share.
    #[must_use]
    pub fn text(&self, n: f64, unit: &str) -> String {
        let rate = |time: Duration| n / time.as_secs_f64();
        let [share, best_share] = [self.share, self.best_share].map(|share| share * 100.0);
        let (median, best) = (rate(self.median), rate(self.best));
        format!(
            "median {median:.2} {unit}/s ({share:.0} % of the first), best {best:.2} ({best_share:.0} %)"
        )
    }
}

/// Returns whether the bench was asked to run small, only to see that it works.
#[must_use]
pub fn is_smoke() -> bool {
    std::env::args().any(|arg| arg == "--test")
}

/// Returns whether `name` is among the bench's arguments that are no flags, or there are none.
#[must_use]
pub fn is_asked_for(name: &str) -> bool {
    let mut names = parts_asked_for().peekable();
    names.peek().is_none() || names.any(|arg| arg == name)
}

/// Checks that the bench's arguments name parts of it.
///
/// # Panics
/// Panics for an argument that is no flag and not in `parts`.
pub fn check_parts(parts: &[&str]) {
    for name in parts_asked_for() {
        assert!(parts.contains(&&*name), "there is no part `{name}`, only: {}", parts.join(", "));
    }
}

fn parts_asked_for() -> impl Iterator<Item = String> {
    std::env::args().skip(1).filter(|arg| !arg.starts_with('-'))
}
