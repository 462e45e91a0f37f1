//! Replay of recorded step times, instead of training a model.

use std::{
    collections::BTreeMap,
    thread::sleep,
    time::{Duration, Instant},
};

use lodestore_graph::splitmix64;

use crate::error::{TrainError, check};

/// Longest valid time of a step.
const MOST_SECONDS: f64 = 3600.0;

/// Recorded times of steps: the forward and backward pass of a batch on another device. The worker
/// sleeps meanwhile, so all cores can load rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    times: Times,
}

/// Rule for the time of a step.
#[derive(Clone, Debug, PartialEq)]
enum Times {
    /// Seconds by the step of an epoch; a single one stands for all.
    Steps(Vec<f64>),
    /// Roots of a batch and its seconds, ascending by roots.
    Roots(Vec<(u64, f64)>),
}

impl Replay {
    /// Returns the replay of steps that took `seconds`, in the order of an epoch; a single time is
    /// that of every step. Fails without a time, and for a time out of range.
    pub fn new(seconds: Vec<f64>) -> Result<Self, TrainError> {
        check_times(&seconds)?;
        Ok(Self { times: Times::Steps(seconds) })
    }

    /// Returns the replay of batches of any size, from the seconds of some sizes. Times between two
    /// sizes are interpolated linearly. Below the smallest size they are that one's, and above the
    /// largest they grow in proportion. Fails without any size, and for seconds out of range.
    pub fn by_roots(seconds: &BTreeMap<u64, f64>) -> Result<Self, TrainError> {
        check_times(&seconds.values().copied().collect::<Vec<_>>())?;
        Ok(Self { times: Times::Roots(seconds.iter().map(|(&n, &of)| (n, of)).collect()) })
    }

    /// Fails unless there is one step for all, or one for each of `n_steps`.
    pub(crate) fn check(&self, n_steps: u32) -> Result<(), TrainError> {
        let Times::Steps(seconds) = &self.times else { return Ok(()) };
        let (n, expected) =
            (seconds.len(), format!("a recording of 1 step or of the {n_steps} of an epoch"));
        let found = format_args!("{n} steps");
        check(n == 1 || n == n_steps as usize, "replay", &expected, found)
    }

    /// Sleeps for the rest of the recorded time of `step` of `n_roots`, which began at `start`.
    /// Returns a number in [0, 1) instead of a loss; it depends on every byte of `rows`.
    pub(crate) fn step(&self, step: u32, n_roots: u64, rows: &[u8], start: Instant) -> f64 {
        let (words, rest) = rows.as_chunks::<8>();
        let fold = |sum: u64, word: u64| sum.rotate_left(5) ^ word;
        let sum =
            words.iter().fold(rows.len() as u64, |sum, word| fold(sum, u64::from_le_bytes(*word)));
        let sum = rest.iter().fold(sum, |sum, &byte| fold(sum, byte.into()));
        let seconds = self.times.of(step, n_roots);
        sleep(Duration::from_secs_f64(seconds).saturating_sub(start.elapsed()));
        (splitmix64(sum) >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Times {
    /// Returns the seconds of `step`, which has `n_roots`.
    fn of(&self, step: u32, n_roots: u64) -> f64 {
        let sizes = match self {
            Self::Steps(seconds) => return *seconds.get(step as usize).unwrap_or(&seconds[0]),
            Self::Roots(sizes) => sizes,
        };
        let above = sizes.partition_point(|&(n, _)| n < n_roots);
        let Some(&(more, longer)) = sizes.get(above) else {
            let (most, longest) = sizes[sizes.len() - 1];
            return longest * n_roots as f64 / most.max(1) as f64;
        };
        let Some(&(fewer, shorter)) = above.checked_sub(1).map(|below| &sizes[below]) else {
            return longer;
        };
        shorter + (longer - shorter) * (n_roots - fewer) as f64 / (more - fewer) as f64
    }
}

/// Fails without a time, and for a time out of range.
fn check_times(seconds: &[f64]) -> Result<(), TrainError> {
    let is_time = |seconds: &f64| (0.0..=MOST_SECONDS).contains(seconds);
    let found = match seconds.iter().find(|seconds| !is_time(seconds)) {
        Some(found) => found.to_string(),
        None if seconds.is_empty() => "no step".to_owned(),
        None => return Ok(()),
    };
    let expected = format!("steps of 0 to {MOST_SECONDS} seconds");
    Err(TrainError::Setting { setting: "replay", expected, found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_has_times_and_one_for_each_step_or_for_all() {
        for seconds in [vec![], vec![0.1, -0.1], vec![f64::NAN], vec![1e9]] {
            let error = Replay::new(seconds).unwrap_err().to_string();
            assert!(error.contains("`replay` must be steps of 0 to 3600 seconds"), "{error}");
        }
        assert!(Replay::by_roots(&BTreeMap::new()).is_err());
        assert!(Replay::by_roots(&BTreeMap::from([(4, f64::INFINITY)])).is_err());
        let three = Replay::new(vec![0.0; 3]).unwrap();
        three.check(3).unwrap();
        Replay::new(vec![0.0]).unwrap().check(7).unwrap();
        let error = three.check(4).unwrap_err().to_string();
        assert!(error.contains("the 4 of an epoch, found 3 steps"), "{error}");
    }

    #[test]
    fn a_step_takes_its_time_and_its_number_is_that_of_the_rows() {
        let replay = Replay::new(vec![0.0, 0.02]).unwrap();
        let of = |step, rows: &[u8]| {
            let start = Instant::now();
            (replay.step(step, 1, rows, start), start.elapsed().as_secs_f64())
        };
        let rows: Vec<u8> = (0..83).collect();
        let (loss, _) = of(0, &rows);
        assert!((0.0..1.0).contains(&loss));
        let (again, seconds) = of(1, &rows);
        assert_eq!(again.to_bits(), loss.to_bits());
        assert!(seconds >= 0.02, "{seconds}");
        for at in [0, 40, 82] {
            let mut other = rows.clone();
            other[at] ^= 1;
            assert_ne!(of(0, &other).0, loss, "byte {at}");
        }
        let mut swapped = rows.clone();
        swapped.rotate_left(16);
        assert_ne!(of(0, &swapped).0, loss);
    }
    #[test]
    fn a_batch_takes_what_its_roots_took() {
        let sizes = BTreeMap::from([(10, 1.0), (20, 1.5), (40, 4.5)]);
        let replay = Replay::by_roots(&sizes).unwrap();
        replay.check(7).unwrap();
        for (n_roots, expected) in
            [(1, 1.0), (10, 1.0), (15, 1.25), (20, 1.5), (30, 3.0), (40, 4.5), (80, 9.0)]
        {
            assert_eq!(replay.times.of(3, n_roots), expected, "{n_roots}");
        }
    }
}
