//! Steps recorded elsewhere, which stand for the computing of a model.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result};
use lodestore_trainer::replay::Replay;
use serde::{Deserialize, Serialize};

use lode_cli::human::joined;
use lode_cli::small_file::read_small_file;
use lode_cli::usage::UsageError;

/// Computation of the batches.
#[derive(Clone, Debug)]
pub(super) enum Compute {
    /// The model, on the processor.
    Model,
    /// Nothing: each step sleeps what the recording in this file took.
    Replay(String),
}

impl FromStr for Compute {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "model" => Ok(Self::Model),
            Some(("replay", file)) if !file.is_empty() => Ok(Self::Replay(file.to_owned())),
            _ => Err("expected `model` or `replay:FILE`".to_owned()),
        }
    }
}

/// Seconds of recorded steps, forward and backward pass of one worker, by roots of a batch.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Recording {
    /// Where, when and of what they were recorded.
    source: String,
    /// One step for all, or one for each of an epoch.
    seconds: BTreeMap<usize, Vec<f64>>,
}

impl Compute {
    /// Returns the recording, if there is to be one.
    pub(super) fn recording(&self) -> Result<Option<Recording>> {
        let Self::Replay(file) = self else { return Ok(None) };
        let text = read_small_file(Path::new(file))?;
        let recording = serde_json::from_str(&text).with_context(|| {
            format!(
                "{file} is no recording of steps; expected {{\"source\": \"where it is from\", \
                 \"seconds\": {{\"1000\": [0.17]}}}}, by roots of a batch"
            )
        });
        Ok(Some(recording?))
    }
}

impl Recording {
    /// Returns the steps of batches of `n_roots`; fails if none were recorded, or no times.
    pub(super) fn of(&self, n_roots: usize) -> Result<Replay> {
        let Some(seconds) = self.seconds.get(&n_roots) else {
            let there = joined(self.seconds.keys(), ", ");
            return Err(UsageError::new(format!(
                "--compute: the recording has steps of batches of {there} roots, and this run has \
                 batches of {n_roots}; record these, or name recorded ones by --batches"
            ))
            .into());
        };
        Ok(Replay::new(seconds.clone())?)
    }

    /// Fails if batches of `n_roots` have a time for each step of an epoch. The figures of other
    /// cuts and other numbers of machines have epochs of other steps.
    pub(super) fn check_figures(&self, n_roots: usize) -> Result<(), UsageError> {
        match self.seconds.get(&n_roots) {
            Some(seconds) if seconds.len() > 1 => Err(UsageError::new(format!(
                "--compute: the recording has {} steps of batches of {n_roots} roots, and the figures need \
                 one that stands for all; record one, or leave the figures out by --no-figures",
                seconds.len()
            ))),
            _ => Ok(()),
        }
    }

    /// Returns steps of batches of any size, in between those that were recorded.
    pub(super) fn by_roots(&self) -> Result<Replay> {
        // Without a step it is no time, which is refused.
        let mean = |steps: &Vec<f64>| steps.iter().sum::<f64>() / steps.len() as f64;
        let seconds = self.seconds.iter().map(|(&n_roots, steps)| (n_roots as u64, mean(steps)));
        Ok(Replay::by_roots(&seconds.collect())?)
    }

    /// Returns where it is from.
    pub(super) fn source(&self) -> &str {
        &self.source
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_has_the_batches_of_its_run() {
        let text = r#"{"source": "a GPU", "seconds": {"1000": [0.057], "3000": [0.1, 0.2]}}"#;
        let recording: Recording = serde_json::from_str(text).unwrap();
        assert_eq!(recording.of(3000).unwrap(), Replay::new(vec![0.1, 0.2]).unwrap());
        let means = BTreeMap::from([(1000, 0.057), (3000, (0.1 + 0.2) / 2.0)]);
        assert_eq!(recording.by_roots().unwrap(), Replay::by_roots(&means).unwrap());
        let empty = Recording { seconds: BTreeMap::from([(1, Vec::new())]), ..recording.clone() };
        assert!(empty.by_roots().is_err());
        let error = recording.of(2000).unwrap_err().to_string();
        assert!(error.contains("batches of 1000, 3000 roots, and this run has batches of 2000"));
        assert!("replay:".parse::<Compute>().is_err() && "gpu".parse::<Compute>().is_err());
    }

    #[test]
    fn the_recordings_here_can_be_read() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/recordings");
        let mut n_files = 0;
        for file in std::fs::read_dir(dir).unwrap() {
            let compute = Compute::Replay(file.unwrap().path().display().to_string());
            let recording = compute.recording().unwrap().unwrap();
            assert!(recording.seconds.keys().all(|&n_roots| recording.of(n_roots).is_ok()));
            n_files += 1;
        }
        assert!(n_files > 0);
    }
}
