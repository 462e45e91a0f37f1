//! Times of HopGNN's ways over links that behave like networks (Figs. 13, 15 and 17).

use std::path::Path;
use std::str::FromStr;

use anyhow::{Result, bail};
use lodestore_graph::sampler::Fanout;
use lodestore_trainer::config::{HopConfig, Merge, Migration, OndemandConfig, Roots};
use lodestore_trainer::replay::Replay;
use lodestore_trainer::report::EpochReport;
use lodestore_trainer::{Strategy, TrainConfig, TrainReport};
use serde::Serialize;

use super::cells::ModelShape;
use super::rows::HopWay;
use crate::link_emulation::{LinkSpec, ShapedRank, parse_delay, parse_rate};
use crate::reproduce::groups::link_name;
use crate::reproduce::runs::{DEADLINE, addresses, behind_links, start_servers, train_run};
use lode_cli::child_servers::ChildServers;
use lode_cli::commands::train::{TrainRun, train_over_links};
use lode_cli::console::Console;
use lode_cli::human;

/// The ways that are timed; the first is what the others are compared with.
const WAYS: [HopWay; 7] = [
    HopWay::ModelCentric,
    HopWay::Owned,
    HopWay::Micrographs,
    HopWay::Pregathered,
    HopWay::MergedMin,
    HopWay::MergedRandom,
    HopWay::Home,
];

/// A link as it is given: `1Gbit/100us`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LinkArg(pub(super) LinkSpec);

impl FromStr for LinkArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (rate, delay) = text.split_once('/').ok_or("expected RATE/DELAY, such as 1Gbit/1ms")?;
        let (rate_bits, delay) = (parse_rate(rate)?, parse_delay(delay)?);
        Ok(Self(LinkSpec { rate_bits, delay }))
    }
}

/// Links to train over, and the number of repetitions and epochs.
#[derive(Clone, Copy)]
pub(super) struct Timing<'a> {
    pub(super) links: &'a [LinkArg],
    pub(super) repeats: u32,
    pub(super) epochs: u32,
    /// The stand-in for the model.
    pub(super) replay: Option<&'a Replay>,
    pub(super) plan: TrainPlan<'a>,
}

/// The batches and the model of all ways.
#[derive(Clone, Copy)]
pub(super) struct TrainPlan<'a> {
    pub(super) fanouts: &'a [Fanout],
    pub(super) batch: usize,
    pub(super) model: ModelShape,
    pub(super) seed: u64,
}

/// All ways over one link.
#[derive(Debug, Serialize)]
pub(super) struct TimedLink {
    #[serde(flatten)]
    spec: LinkSpec,
    fanouts: Vec<Fanout>,
    batch: usize,
    pub(super) runs: Vec<TimedRun>,
}

/// The middle one of the repeats of a way, by the time of an iteration.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TimedRun {
    pub(super) way: HopWay,
    /// Mean of the epochs after the first that have as many time steps as the last.
    pub(super) iteration_seconds: f64,
    /// Least and most of all repeats.
    pub(super) range: [f64; 2],
    /// Mean iteration of all epochs for a mean worker: rows on their way.
    pub(super) gather_seconds: f64,
    /// The same: models that move, gradients that are reduced, the update.
    pub(super) move_seconds: f64,
    pub(super) compute_seconds: f64,
    pub(super) others_seconds: f64,
    pub(super) epochs: Vec<TimedEpoch>,
    #[serde(skip)]
    losses: Vec<f64>,
}

/// An epoch of it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TimedEpoch {
    /// Mean time of an iteration.
    pub(super) iteration_seconds: f64,
    /// Time steps of an iteration.
    pub(super) time_steps: u64,
    /// Bytes of remote rows of all workers, for each iteration.
    remote_bytes: f64,
}

impl Timing<'_> {
    /// Trains on `graph` over all links, with a server for each partition; logs go to `scratch`.
    pub(super) fn measure(
        &self,
        graph: &Path,
        n_parts: u16,
        scratch: &Path,
        console: &Console,
    ) -> Result<Vec<TimedLink>> {
        let servers = start_servers(graph, scratch, n_parts)?;
        let mut timed = Vec::new();
        for &LinkArg(spec) in self.links {
            timed.push(self.over(spec, graph, &servers, console)?);
        }
        servers.stop()?;
        Ok(timed)
    }

    /// Trains in all ways over links of `spec`, in turns.
    fn over(
        &self,
        spec: LinkSpec,
        graph: &Path,
        servers: &ChildServers,
        console: &Console,
    ) -> Result<TimedLink> {
        let mut repeats: Vec<Vec<TimedRun>> = vec![Vec::new(); WAYS.len()];
        for _ in 0..self.repeats {
            for (way, runs) in WAYS.into_iter().zip(&mut repeats) {
                let run = self.run(way, spec, graph, servers)?;
                console.line(&format!(
                    "  {:<21} {:<14} {:>9} an iteration",
                    link_name(spec),
                    way.label(),
                    human::seconds(run.iteration_seconds)
                ))?;
                console.check_reader()?;
                runs.push(run);
            }
        }
        Ok(TimedLink {
            spec,
            fanouts: self.plan.fanouts.to_vec(),
            batch: self.plan.batch,
            runs: repeats.into_iter().map(middle_of).collect::<Result<_>>()?,
        })
    }

    fn run(
        &self,
        way: HopWay,
        spec: LinkSpec,
        graph: &Path,
        servers: &ChildServers,
    ) -> Result<TimedRun> {
        let links = behind_links(servers, spec)?;
        let mut run = self.plan.run(graph, way, links.len() as u32);
        run.connect = addresses(&links);
        run.train.epochs = self.epochs;
        run.train.replay = self.replay.cloned();
        let report = train_over_links(&run, ShapedRank::group(&links, DEADLINE))?;
        Ok(TimedRun::of(way, report))
    }
}

impl TrainPlan<'_> {
    /// Returns a run of `way` with rows from the graph's files, which measures nothing.
    pub(super) fn run(&self, graph: &Path, way: HopWay, workers: u32) -> TrainRun {
        let ondemand =
            |roots| Strategy::Ondemand(OndemandConfig { roots, ..OndemandConfig::default() });
        let paper = HopConfig { migration: Migration::Paper, ..HopConfig::default() };
        let strategy = match way {
            HopWay::ModelCentric => ondemand(Roots::Global),
            HopWay::Owned => ondemand(Roots::Owned),
            HopWay::Home => Strategy::Hop(HopConfig::default()),
            HopWay::Micrographs => Strategy::Hop(HopConfig { pregather: false, ..paper }),
            HopWay::Pregathered => Strategy::Hop(paper),
            HopWay::MergedMin => Strategy::Hop(HopConfig { merge: Merge::Min, ..paper }),
            HopWay::MergedRandom => Strategy::Hop(HopConfig { merge: Merge::Random, ..paper }),
        };
        let train = TrainConfig {
            strategy,
            workers,
            model: self.model.kind,
            hidden: self.model.hidden,
            fanouts: self.fanouts.to_vec(),
            batch_size: self.batch,
            seed: self.seed,
            evaluate_every: 0,
            measure_test: false,
            ..TrainConfig::default()
        };
        train_run(graph, Vec::new(), train)
    }
}

impl TimedLink {
    pub(super) fn name(&self) -> String {
        link_name(self.spec)
    }

    /// Returns the batches of a model.
    pub(super) fn batch_name(&self) -> String {
        let fanouts = human::joined(&self.fanouts, ",");
        format!("{} roots a model, fan-out {fanouts}", self.batch)
    }

    pub(super) fn run(&self, way: HopWay) -> Option<&TimedRun> {
        self.runs.iter().find(|run| run.way == way)
    }
}

impl TimedRun {
    fn of(way: HopWay, report: TrainReport) -> Self {
        let epochs: Vec<TimedEpoch> = report.epochs.iter().map(TimedEpoch::of).collect();
        let last = epochs.last().map_or(1, |epoch| epoch.time_steps);
        let later = if epochs.len() > 1 { &epochs[1..] } else { &epochs[..] };
        let like: Vec<f64> = later
            .iter()
            .filter(|epoch| epoch.time_steps == last)
            .map(|epoch| epoch.iteration_seconds)
            .collect();
        let iteration_seconds = like.iter().sum::<f64>() / like.len().max(1) as f64;
        let mean = report.mean_step_seconds;
        let [gather, moved, compute, others] = report
            .step
            .map_or([0.0; 4], |step| [step.pull, step.update, step.compute, step.others])
            .map(|share| share * mean);
        Self {
            way,
            iteration_seconds,
            range: [iteration_seconds; 2],
            gather_seconds: gather,
            move_seconds: moved,
            compute_seconds: compute,
            others_seconds: others,
            epochs,
            losses: report.step_losses,
        }
    }

    /// Returns whether times decide what it computes.
    fn is_merged(&self) -> bool {
        [HopWay::MergedMin, HopWay::MergedRandom].contains(&self.way)
    }
}

impl TimedEpoch {
    fn of(epoch: &EpochReport) -> Self {
        let steps = u64::from(epoch.steps.max(1));
        Self {
            iteration_seconds: epoch.mean_step_seconds,
            time_steps: epoch.time_steps.map_or(1, |n| n / steps),
            remote_bytes: epoch.remote_bytes as f64 / steps as f64,
        }
    }
}

/// Returns the middle one of some repeats (of an even number the slower of two), with the range of
/// all. Fails where they computed something else, unless times decide that.
fn middle_of(mut repeats: Vec<TimedRun>) -> Result<TimedRun> {
    let bits = |run: &TimedRun| run.losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
    let expected = repeats.first().map(bits);
    if repeats.iter().any(|run| !run.is_merged() && Some(bits(run)) != expected) {
        bail!("two runs of {} computed different losses", repeats[0].way.label());
    }
    repeats.sort_by(|a, b| a.iteration_seconds.total_cmp(&b.iteration_seconds));
    let (Some(first), Some(last)) = (repeats.first(), repeats.last()) else {
        bail!("expected a run of each way, found none; give --repeats");
    };
    let range = [first.iteration_seconds, last.iteration_seconds];
    let middle = repeats.swap_remove(repeats.len() / 2);
    Ok(TimedRun { range, ..middle })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn run(way: HopWay, iteration_seconds: f64, losses: &[f64]) -> TimedRun {
        let epoch = |(seconds, steps, time_steps)| EpochReport {
            steps,
            time_steps: Some(time_steps),
            mean_step_seconds: seconds,
            ..EpochReport::default()
        };
        let epochs = [(9.0, 2, 8), (5.0, 2, 6), (iteration_seconds, 2, 4), (6.0, 2, 6)];
        let epochs: Vec<TimedEpoch> = epochs.map(epoch).iter().map(TimedEpoch::of).collect();
        let losses = losses.to_vec();
        let range = [iteration_seconds; 2];
        TimedRun {
            way,
            iteration_seconds,
            range,
            gather_seconds: 0.0,
            move_seconds: 0.0,
            compute_seconds: 0.0,
            others_seconds: 0.0,
            epochs,
            losses,
        }
    }

    #[test]
    fn the_middle_run_has_the_range_of_all_and_other_losses_are_refused() {
        let times = [3.0, 1.0, 2.0, 5.0, 4.0];
        let of = |way, losses: [f64; 5]| {
            middle_of(times.iter().zip(losses).map(|(&s, l)| run(way, s, &[l])).collect())
        };
        let found = of(HopWay::Home, [0.5; 5]).unwrap();
        assert_eq!((found.iteration_seconds, found.range), (3.0, [1.0, 5.0]));
        let steps: Vec<u64> = found.epochs.iter().map(|epoch| epoch.time_steps).collect();
        assert_eq!(steps, [4, 3, 2, 3]);
        let error = of(HopWay::Home, [0.5, 0.5, 0.4, 0.5, 0.5]).unwrap_err().to_string();
        assert!(error.contains("two runs of none"), "{error}");
        assert!(of(HopWay::MergedMin, [0.1, 0.2, 0.3, 0.4, 0.5]).is_ok());
        assert!(middle_of(Vec::new()).is_err());
    }

    #[test]
    fn links_are_a_rate_and_a_delay() {
        let LinkArg(spec) = "1Gbit/100us".parse().unwrap();
        assert_eq!((spec.rate_bits, spec.delay), (1e9, Duration::from_micros(100)));
        assert_eq!(link_name(spec), "1000 Mbit/s, 0.1 ms");
        for wrong in ["1Gbit", "1Gbit/", "/1ms", "1ms/1Gbit"] {
            assert!(wrong.parse::<LinkArg>().is_err(), "{wrong}");
        }
    }
}
