//! Start times of requests.

use std::time::{Duration, Instant};

use super::draw::Words;

/// The pace of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Closed loop: a request starts when the previous one of its slot has ended.
    Closed,
    /// Open loop: start times do not depend on replies. Latency counts from the start time even if
    /// the request is sent later.
    Open {
        /// Requests per second, over all connections.
        rate: f64,
        /// How the times are spaced.
        spacing: Spacing,
    },
}

/// How the starts of an open loop are spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spacing {
    /// Exponential gaps, as of many independent clients.
    Poisson,
    /// Equal gaps.
    Fixed,
}

/// The start times of one thread's requests in an open loop.
pub(super) struct Arrivals {
    gap: f64,
    spacing: Spacing,
    words: Words,
    start: Instant,
    /// Seconds after `start`.
    next: f64,
}

impl Arrivals {
    /// Returns the start times of one thread. They are `gap` seconds apart on average; with equal
    /// gaps the first one is `first` seconds after `start`.
    pub(super) fn new(
        spacing: Spacing,
        gap: f64,
        first: f64,
        words: Words,
        start: Instant,
    ) -> Self {
        let mut arrivals = Self { gap, spacing, words, start, next: first };
        if spacing == Spacing::Poisson {
            arrivals.next = 0.0;
            arrivals.advance();
        }
        arrivals
    }

    /// Returns the start time of the next request.
    pub(super) fn next(&self) -> Instant {
        self.start + Duration::from_secs_f64(self.next)
    }

    /// Advances to the request after that.
    pub(super) fn advance(&mut self) {
        self.next += match self.spacing {
            Spacing::Poisson => -(1.0 - self.words.fraction()).ln() * self.gap,
            Spacing::Fixed => self.gap,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(spacing: Spacing, thread: usize, n: usize) -> Vec<f64> {
        let start = Instant::now();
        let words = Words::new(3, thread as u64);
        let mut arrivals = Arrivals::new(spacing, 0.002, thread as f64 / 1000.0, words, start);
        let next = |_| {
            let at = arrivals.next().duration_since(start).as_secs_f64();
            arrivals.advance();
            at
        };
        (0..n).map(next).collect()
    }

    #[test]
    fn threads_take_turns_at_a_fixed_rate() {
        let near = |found: &[f64], expected: &[f64]| {
            found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6)
        };
        assert!(near(&starts(Spacing::Fixed, 0, 3), &[0.0, 0.002, 0.004]));
        assert!(near(&starts(Spacing::Fixed, 1, 3), &[0.001, 0.003, 0.005]));
    }

    #[test]
    fn poisson_gaps_have_the_rates_mean_and_spread() {
        let starts = starts(Spacing::Poisson, 0, 20_000);
        let gaps: Vec<f64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        assert!((mean - 0.002).abs() < 0.0001, "{mean}");
        let longer = gaps.iter().filter(|&&gap| gap > 0.002).count() as f64 / gaps.len() as f64;
        assert!((longer - (-1f64).exp()).abs() < 0.02, "{longer}");
    }
}
