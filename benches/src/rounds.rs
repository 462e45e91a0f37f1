//! Contestants measured in turns, so that whatever else the machine does hits all of them alike.

use std::sync::Barrier;
use std::time::{Duration, Instant};

/// What one contestant does in a round, on one of its threads.
pub type Contestant<'a> = (&'a str, Box<dyn Fn(usize) + Sync + 'a>);

/// How often everything runs, and on how many threads.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// Rounds that count; one more comes first and does not.
    pub n_rounds: usize,
    /// Threads that work at the same time, each told its number.
    pub n_threads: usize,
}

impl Rounds {
    /// As many rounds as make figures, or one when the bench only has to run (`--test`).
    #[must_use]
    pub fn from_args(n_rounds: usize, n_threads: usize) -> Self {
        Self { n_rounds: if is_smoke() { 1 } else { n_rounds }, n_threads }
    }

    /// Runs all contestants in turns; gives for each the median time, and the median over the
    /// rounds of the first one's time divided by its own.
    #[must_use]
    pub fn run(&self, contestants: &[Contestant<'_>]) -> Vec<(Duration, f64)> {
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
        let figures = times.into_iter().map(|times| {
            let shares = first.iter().zip(&times);
            let shares = shares.map(|(first, own)| first.as_secs_f64() / own.as_secs_f64());
            (median(times.clone()), median_of(shares.collect()))
        });
        figures.collect()
    }

    fn one(&self, work: &(impl Fn(usize) + Sync + ?Sized)) -> Duration {
        let barrier = Barrier::new(self.n_threads + 1);
        std::thread::scope(|scope| {
            for thread in 0..self.n_threads {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    work(thread);
                    barrier.wait();
                });
            }
            barrier.wait();
            let start = Instant::now();
            barrier.wait();
            start.elapsed()
        })
    }
}

/// Whether the bench was asked to run small, only to see that it works.
#[must_use]
pub fn is_smoke() -> bool {
    std::env::args().any(|arg| arg == "--test")
}

/// Whether `name` is among the bench's arguments that are no flags, or there are none.
#[must_use]
pub fn is_asked_for(name: &str) -> bool {
    let mut names = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).peekable();
    names.peek().is_none() || names.any(|arg| arg == name)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn median_of(mut shares: Vec<f64>) -> f64 {
    shares.sort_unstable_by(f64::total_cmp);
    shares[shares.len() / 2]
}
