//! Steps that take as long as recorded ones did, in place of a model's.

use std::{thread::sleep, time::Duration, time::Instant};

use lodestore_graph::mix;
use serde::Serialize;

use crate::TrainError;

/// The longest step that is taken for one.
const MOST_SECONDS: f64 = 3600.0;

/// Times of recorded steps: the forward and the backward pass of a batch on another device. The worker
/// sleeps meanwhile, so that the cores are free for all that moves rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Replay {
    seconds: Vec<f64>,
}

impl Replay {
    /// Returns the replay of steps that took `seconds`, in the order of an epoch; a single one stands
    /// for all steps. Fails for none, and for a time that is no time.
    pub fn new(seconds: Vec<f64>) -> Result<Self, TrainError> {
        let is_time = |seconds: &f64| (0.0..=MOST_SECONDS).contains(seconds);
        let found = match seconds.iter().find(|seconds| !is_time(seconds)) {
            Some(found) => found.to_string(),
            None if seconds.is_empty() => "no step".to_owned(),
            None => return Ok(Self { seconds }),
        };
        let expected = format!("steps of 0 to {MOST_SECONDS} seconds");
        Err(TrainError::Setting { setting: "replay", expected, found })
    }

    /// Fails unless there is one step for all, or one for each of `n_steps`.
    pub(crate) fn check(&self, n_steps: u32) -> Result<(), TrainError> {
        let found = self.seconds.len();
        if found == 1 || found == n_steps as usize {
            return Ok(());
        }
        let expected = format!("a recording of 1 step or of the {n_steps} of an epoch");
        let found = format!("{found} steps");
        Err(TrainError::Setting { setting: "replay", expected, found })
    }

    /// Sleeps for what is left of the recorded time of `step`, which began at `start`. Returns a number
    /// in [0, 1) that depends on every byte of `rows`: it stands for the loss.
    pub(crate) fn step(&self, step: u32, rows: &[u8], start: Instant) -> f64 {
        let (words, rest) = rows.as_chunks::<8>();
        let fold = |sum: u64, word: u64| sum.rotate_left(5) ^ word;
        let sum =
            words.iter().fold(rows.len() as u64, |sum, word| fold(sum, u64::from_le_bytes(*word)));
        let sum = rest.iter().fold(sum, |sum, &byte| fold(sum, byte.into()));
        let seconds = self.seconds.get(step as usize).unwrap_or(&self.seconds[0]);
        sleep(Duration::from_secs_f64(*seconds).saturating_sub(start.elapsed()));
        (mix(sum) >> 11) as f64 / (1u64 << 53) as f64
    }
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
            (replay.step(step, rows, start), start.elapsed().as_secs_f64())
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
}
