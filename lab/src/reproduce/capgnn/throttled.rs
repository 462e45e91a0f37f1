//! Claim C7: RAPA where one device really is half as fast, by a quota of its processor time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{available_parallelism, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lode_cli::program::lode_program;
use lodestore_store::Graph;
use lodestore_trainer::TrainConfig;
use lodestore_trainer::report::EpochReport;
use serde::{Deserialize, Serialize};

use super::ways::{CapWay, profiles};
use crate::link_emulation::throttle::{Means, Throttle};
use crate::reproduce::convergence::Spread;

/// Share of a processor that the slow worker has.
const SHARE: f64 = 0.5;
/// All workers are there within this time.
const START: Duration = Duration::from_secs(30);

/// Runs with one worker that is held to [`SHARE`] of a processor.
#[derive(Serialize)]
pub(super) struct Throttled {
    pub(super) means: Means,
    pub(super) workers: u16,
    pub(super) runs: Vec<ThrottledRun>,
}

/// A run in one way; means of the epochs after the first.
#[derive(Serialize)]
pub(super) struct ThrottledRun {
    pub(super) way: CapWay,
    pub(super) is_throttled: bool,
    pub(super) seconds: f64,
    /// Computing time of the slowest worker over the mean.
    pub(super) slowest_over_mean: f64,
    pub(super) kept_share: f64,
    pub(super) test_accuracy: Option<f64>,
}

/// Fields read from a report.
#[derive(Deserialize)]
struct Reported {
    epochs: Vec<EpochReport>,
}

/// Trains on the graph in `dir` with a process for each of its partitions: none throttled, then the
/// first, then that with RAPA. None where there is one partition, or no processor for each.
pub(super) fn throttled(dir: &Path, usual: &TrainConfig) -> Result<Option<Throttled>> {
    let workers = Graph::open(dir)?.book().n_parts();
    let n_cores = available_parallelism().map_or(1, usize::from);
    if workers < 2 || usize::from(workers) > n_cores {
        return Ok(None);
    }
    let folder = tempfile::tempdir()?;
    let devices = profiles(workers)?;
    let write = |(n, device)| -> Result<PathBuf> {
        let path = folder.path().join(format!("{n}.json"));
        fs::write(&path, serde_json::to_string(device)?)?;
        Ok(path)
    };
    let devices = devices.iter().enumerate().map(write).collect::<Result<Vec<PathBuf>>>()?;
    let (mut runs, mut means) = (Vec::new(), Means::Pauses);
    for (way, is_throttled) in [(CapWay::Exact, false), (CapWay::Exact, true), (CapWay::Rapa, true)]
    {
        let mut run = command(dir, usual, workers)?;
        if way == CapWay::Rapa {
            run.arg("--rapa").args(&devices);
        }
        let child = run.spawn().context("cannot start a run")?;
        let throttle = match is_throttled {
            true => Some(throttle(&child, workers)?),
            false => None,
        };
        let output = child.wait_with_output()?;
        if let Some(throttle) = throttle {
            means = throttle.means().clone();
        }
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "a run has failed: {text}");
        let Reported { epochs } = serde_json::from_str(&text)?;
        runs.push(ThrottledRun::of(way, is_throttled, &epochs));
    }
    Ok(Some(Throttled { means, workers, runs }))
}

/// Returns `lode train` with a process for each worker.
fn command(dir: &Path, usual: &TrainConfig, workers: u16) -> Result<Command> {
    let mut run = Command::new(lode_program()?);
    run.args(["train", "--strategy", "full", "--processes", "--json", "--evaluate-every", "0"]);
    run.arg("--graph").arg(dir);
    for (flag, value) in [
        ("--workers", workers.to_string()),
        ("--model", usual.model.to_string()),
        ("--layers", usual.fanouts.len().to_string()),
        ("--hidden", usual.hidden.to_string()),
        ("--epochs", usual.epochs.to_string()),
        ("--lr", usual.learning_rate.to_string()),
        ("--dropout", usual.dropout.to_string()),
        ("--metric", usual.metric.to_string()),
        ("--seed", "1".to_owned()),
    ] {
        run.args([flag, &value]);
    }
    if usual.normalize {
        run.arg("--normalize");
    }
    run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    Ok(run)
}

/// Throttles the first worker once the others have started, which would have its quota too.
fn throttle(first: &Child, workers: u16) -> Result<Throttle> {
    let start = Instant::now();
    while n_children(first.id()) + 1 < usize::from(workers) {
        if start.elapsed() > START {
            bail!("the {workers} workers of a run have not started within {START:?}");
        }
        sleep(Duration::from_millis(1));
    }
    Throttle::start(first.id(), SHARE)
}

fn n_children(pid: u32) -> usize {
    let is_child = |stat: &PathBuf| {
        let text = fs::read_to_string(stat).ok()?;
        // The name before may have spaces and parentheses.
        let parent = text.rsplit(')').next()?.split_whitespace().nth(1)?;
        parent.parse().ok().filter(|parent: &u32| *parent == pid)
    };
    let Ok(processes) = fs::read_dir("/proc") else { return 0 };
    let stats = processes.filter_map(|entry| Some(entry.ok()?.path().join("stat")));
    stats.filter_map(|stat| is_child(&stat)).count()
}

impl ThrottledRun {
    fn of(way: CapWay, is_throttled: bool, epochs: &[EpochReport]) -> Self {
        let later = epochs.get(1..).unwrap_or_default();
        let imbalance = Spread::of(later.iter().filter_map(|epoch| epoch.compute_imbalance)).mean;
        Self {
            way,
            is_throttled,
            seconds: Spread::of(later.iter().map(|epoch| epoch.seconds)).mean,
            slowest_over_mean: 1.0 + imbalance,
            kept_share: epochs.first().and_then(|epoch| epoch.kept_share).unwrap_or(1.0),
            test_accuracy: epochs.last().and_then(|epoch| epoch.test_accuracy),
        }
    }
}
