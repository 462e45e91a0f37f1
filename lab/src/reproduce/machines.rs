//! RapidGNN's and MassiveGNN's Fig. 6: what more machines bring.

use std::fmt::{self, Write};

use anyhow::Result;
use serde::Serialize;

use super::Paper;
use super::curves::{Curves, add_point};
use super::graphs::{Size, make};
use super::groups::check_equal;
use super::runs::{Bench, Case, Cluster, Contestant};
use crate::link_emulation::LinkSpec;

/// RapidGNN's speed-ups over two are in its text: 1.5 (Products) to 1.6 (Reddit) with three, 1.7 to
/// 2.1 (Reddit) with four. MassiveGNN has 4 to 64 nodes of four trainers.
const MACHINES: [u16; 3] = [2, 3, 4];

/// Measurements with each number of machines.
#[derive(Default, Serialize)]
#[serde(transparent)]
pub(super) struct Machines(Vec<Scaling>);

/// A graph on some machines.
#[derive(Serialize)]
struct Scaling {
    graph: &'static str,
    machines: u16,
    /// `ondemand`'s epoch.
    baseline_seconds: f64,
    /// Epoch of the paper's own strategy, and its time in forward and backward passes of a worker.
    own_seconds: f64,
    compute_seconds: f64,
    hit_rate: f64,
    /// Whether computing took none of the cores.
    is_replayed: bool,
}

impl Paper {
    fn own(self) -> Contestant {
        match self {
            Self::Rapidgnn => Contestant::Rapid,
            Self::Massivegnn => Contestant::Massive,
        }
    }
}

impl Machines {
    /// Returns whether nothing was measured.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Measures one graph over links of `spec`, with batches of `batch` for each worker.
    pub(super) fn measure(
        &mut self,
        paper: Paper,
        of: Bench<'_>,
        batch: usize,
        spec: LinkSpec,
    ) -> Result<()> {
        for machines in MACHINES {
            let size = Size { n_workers: machines, ..of.size };
            let dir = of.scratch.join(format!("machines-{machines}"));
            std::fs::create_dir(&dir)?;
            let made = make(of.model, size, &dir, of.console)?;
            let cluster = Cluster::start(&made, &dir, machines)?.replaying(of.recording);
            let run = |contestant| {
                let case = Case::usual(contestant, batch, of.epochs);
                of.repeated(&|| cluster.run(case, Some(spec), of.console))
            };
            let (baseline, own) = (run(Contestant::Ondemand)?, run(paper.own())?);
            check_equal(&baseline, &own, of.model.name)?;
            cluster.stop()?;
            std::fs::remove_dir_all(&dir)?;
            let n_steps = own.epoch_seconds / own.step_seconds;
            self.0.push(Scaling {
                graph: of.model.name,
                machines,
                baseline_seconds: baseline.epoch_seconds,
                own_seconds: own.epoch_seconds,
                compute_seconds: n_steps * own.compute_seconds,
                hit_rate: own.hit_rate,
                is_replayed: of.recording.is_some(),
            });
        }
        Ok(())
    }

    pub(super) fn curves(&self, paper: Paper) -> Curves<'static> {
        let mut curves = Vec::new();
        for scaling in &self.0 {
            let points = [
                ("", self.speed_up(scaling, Scaling::measured)),
                (", own cores", self.speed_up(scaling, Scaling::on_own_cores)),
            ];
            for (what, speed_up) in points {
                let label = format!("{}{what}", scaling.graph);
                let point = (f64::from(scaling.machines), speed_up);
                add_point(&mut curves, label, point);
            }
        }
        Curves {
            title: match paper {
                Paper::Rapidgnn => {
                    "Fig. 6: epochs of rapid, how much faster than with two machines"
                }
                Paper::Massivegnn => {
                    "Fig. 6: epochs of massive, how much faster than with two machines"
                }
            },
            x: "machines",
            y: "times as fast",
            is_log: false,
            curves,
        }
    }

    /// Returns the ratio over two machines, by seconds of an epoch as `seconds` returns them.
    fn speed_up(&self, scaling: &Scaling, seconds: fn(&Scaling) -> f64) -> f64 {
        let of_two =
            |other: &&Scaling| other.graph == scaling.graph && other.machines == MACHINES[0];
        self.0.iter().find(of_two).map_or(1.0, |two| seconds(two) / seconds(scaling))
    }

    pub(super) fn write(&self, text: &mut String, paper: Paper) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        let own = paper.own().label();
        writeln!(
            text,
            "\n## More machines (Fig. 6)\n\nEach machine is a worker and a server behind a slow link of its \
             own; all are on the {} cores of this one. A model that is computed does not get faster with their \
             number: what each would take with as much of the cores as one of two has is worked out from \
             the part of a step that computes, and is shown beside what was measured. {}\n\n| graph \
             | machines | ondemand, s an epoch | {own} | times as fast as two | with cores of their own | \
             {own} over ondemand | hit rate |\n|---|---|---|---|---|---|---|---|",
            cores(),
            match paper {
                Paper::Rapidgnn => {
                    "The paper over two machines: 1.5 (Products) to 1.6 (Reddit) with three, 1.7 to 2.1 \
                     (Reddit) with four."
                }
                Paper::Massivegnn => {
                    "The paper has 4 to 64 nodes of four trainers, and 15 to 40 % less time than DistDGL on \
                     them; its hit rates fall as trainers get more and their batches fewer."
                }
            }
        )?;
        for scaling in &self.0 {
            writeln!(
                text,
                "| {} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.0} % |",
                scaling.graph,
                scaling.machines,
                scaling.baseline_seconds,
                scaling.own_seconds,
                self.speed_up(scaling, Scaling::measured),
                self.speed_up(scaling, Scaling::on_own_cores),
                scaling.baseline_seconds / scaling.own_seconds,
                scaling.hit_rate * 100.0
            )?;
        }
        writeln!(text, "\n![Fig. 6](fig6.svg)")
    }
}

impl Scaling {
    fn measured(&self) -> f64 {
        self.own_seconds
    }

    /// Returns the time with as much of the cores for each machine as one of two has.
    fn on_own_cores(&self) -> f64 {
        let share = |machines: u16| (cores() as f64 / f64::from(machines)).min(1.0);
        let saved = 1.0 - share(self.machines) / share(MACHINES[0]);
        if self.is_replayed {
            self.own_seconds
        } else {
            self.own_seconds - saved * self.compute_seconds
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
