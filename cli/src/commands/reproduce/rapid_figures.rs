//! RapidGNN's Figs. 3, 5, 6 and 9: how often rows are used again, what a larger cache leaves to fetch,
//! what more machines bring, and what is learnt.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::path::Path;

use anyhow::Result;
use lodestore_graph::schedule::{AccessCounts, Schedule};
use lodestore_graph::{NodeId, PartId};
use lodestore_store::Graph;
use serde::Serialize;

use super::curves::{Curve, Curves};
use super::graphs::{Made, Size, make};
use super::papers::Model;
use super::runs::{Case, Cluster, Contestant};
use super::{Reproduction, SLOW};
use crate::console::Console;
use crate::shaping::LinkSpec;

/// The graph of Figs. 3 and 5.
const FETCHED: &str = "products-like";
/// Shares of the rows that a worker does not own, in both hot sets together (Fig. 5).
const SHARES: [f64; 7] = [0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0];
/// Machines of Fig. 6. The paper's speed-ups over two are in its text: 1.5 (Products) to 1.6 (Reddit)
/// with three, 1.7 to 2.1 (Reddit) with four.
const MACHINES: [u16; 3] = [2, 3, 4];

/// What was measured for these figures.
#[derive(Default, Serialize)]
pub(super) struct RapidFigures {
    reuse: Option<Reuse>,
    fetches: Vec<Fetches>,
    scaling: Vec<Scaling>,
}

/// Fig. 3: remote rows of one worker by the number of batches of an epoch that use them.
#[derive(Serialize)]
struct Reuse {
    batch: usize,
    /// Of an epoch.
    batches: u32,
    nodes: u64,
    nodes_once: u64,
    most: u32,
    /// Uses, and nodes of so many.
    histogram: BTreeMap<u32, u64>,
}

/// A point of Fig. 5.
#[derive(Serialize)]
struct Fetches {
    batch: usize,
    /// Of one hot set.
    hot_rows: u32,
    remote_rows_per_epoch: f64,
}

/// Points of Fig. 6.
#[derive(Serialize)]
struct Scaling {
    graph: &'static str,
    machines: u16,
    ondemand_seconds: f64,
    rapid_seconds: f64,
    /// Of `rapid_seconds`, those that forward and backward passes of one worker took.
    compute_seconds: f64,
}

/// Where a figure is measured.
#[derive(Clone, Copy)]
pub(super) struct Bench<'a> {
    pub(super) model: &'a Model,
    pub(super) size: Size,
    pub(super) epochs: u32,
    pub(super) scratch: &'a Path,
    pub(super) console: &'a Console,
}

impl RapidFigures {
    /// Figs. 3 and 5, if the model is theirs; over the loopback as it is, since rows are counted.
    pub(super) fn count(&mut self, of: Bench<'_>, made: &Made, cluster: &Cluster) -> Result<()> {
        if of.model.name != FETCHED {
            return Ok(());
        }
        let batches = of.model.batches(of.size.scale);
        let path = of.scratch.join("schedule");
        let usual = Case::usual(Contestant::Rapid, batches[0], of.epochs);
        cluster.run(made, Case { schedule: Some(&path), ..usual }, None, of.console)?;
        self.reuse = Some(Reuse::of(&Schedule::open(&path)?, &made.dir, batches[0])?);
        let n_remote = f64::from(made.kept_rows) / of.size.kept_share.max(1e-9);
        for batch in batches {
            for share in SHARES {
                let kept_rows = (share * n_remote) as u32;
                let usual = Case::usual(Contestant::Rapid, batch, of.epochs);
                let case = Case { kept_rows: Some(kept_rows), ..usual };
                let run = cluster.run(made, case, None, of.console)?;
                let remote_rows_per_epoch = run.remote_rows_per_epoch;
                let hot_rows = kept_rows / 2;
                self.fetches.push(Fetches { batch, hot_rows, remote_rows_per_epoch });
            }
        }
        Ok(())
    }

    /// Fig. 6 for one graph, over links of `spec`; the paper's middle batch size for each worker.
    pub(super) fn scale(&mut self, of: Bench<'_>, spec: LinkSpec) -> Result<()> {
        let batch = of.model.batches(of.size.scale)[1];
        for machines in MACHINES {
            let size = Size { n_workers: machines, ..of.size };
            let dir = of.scratch.join(format!("machines-{machines}"));
            std::fs::create_dir(&dir)?;
            let made = make(of.model, size, &dir, of.console)?;
            let cluster = Cluster::start(&made.dir, &dir, machines)?;
            let run = |contestant| {
                let case = Case::usual(contestant, batch, of.epochs);
                cluster.run(&made, case, Some(spec), of.console)
            };
            let (ondemand, rapid) = (run(Contestant::Ondemand)?, run(Contestant::Rapid)?);
            cluster.stop()?;
            std::fs::remove_dir_all(&dir)?;
            let n_steps = rapid.epoch_seconds / rapid.step_seconds;
            self.scaling.push(Scaling {
                graph: of.model.name,
                machines,
                ondemand_seconds: ondemand.epoch_seconds,
                rapid_seconds: rapid.epoch_seconds,
                compute_seconds: n_steps * rapid.compute_seconds,
            });
        }
        Ok(())
    }

    /// The charts, by the names of their files.
    pub(super) fn charts(&self, found: &Reproduction) -> Result<Vec<(&'static str, String)>> {
        Ok(vec![
            ("fig3.svg", self.reuse_curves().svg()?),
            ("fig5.svg", self.fetch_curves().svg()?),
            ("fig6.svg", self.scaling_curves().svg()?),
            ("fig9.svg", accuracy_curves(found).svg()?),
        ])
    }

    fn reuse_curves(&self) -> Curves<'static> {
        let histogram = self.reuse.iter().flat_map(|reuse| &reuse.histogram);
        let points = histogram.map(|(&uses, &nodes)| (f64::from(uses), nodes as f64)).collect();
        Curves {
            title: "Fig. 3: remote rows of a worker by batches of an epoch that use them",
            x: "batches",
            y: "rows",
            is_log: true,
            curves: vec![Curve { label: FETCHED.to_owned(), points }],
        }
    }

    fn fetch_curves(&self) -> Curves<'static> {
        let mut by_batch: BTreeMap<usize, Vec<(f64, f64)>> = BTreeMap::new();
        for Fetches { batch, hot_rows, remote_rows_per_epoch } in &self.fetches {
            let points = by_batch.entry(*batch).or_default();
            points.push((f64::from(*hot_rows), *remote_rows_per_epoch));
        }
        let curve = |(batch, points)| Curve { label: format!("batch {batch}"), points };
        Curves {
            title: "Fig. 5: remote rows fetched in an epoch, hot sets included",
            x: "rows in a hot set",
            y: "rows",
            is_log: false,
            curves: by_batch.into_iter().map(curve).collect(),
        }
    }

    fn scaling_curves(&self) -> Curves<'static> {
        let mut curves: Vec<Curve> = Vec::new();
        for scaling in &self.scaling {
            let points = [
                ("", self.speed_up(scaling, Scaling::measured)),
                (", own cores", self.speed_up(scaling, Scaling::on_own_cores)),
            ];
            for (what, speed_up) in points {
                let label = format!("{}{what}", scaling.graph);
                let point = (f64::from(scaling.machines), speed_up);
                match curves.iter_mut().find(|curve| curve.label == label) {
                    Some(curve) => curve.points.push(point),
                    None => curves.push(Curve { label, points: vec![point] }),
                }
            }
        }
        Curves {
            title: "Fig. 6: epochs of rapid, how much faster than with two machines",
            x: "machines",
            y: "times as fast",
            is_log: false,
            curves,
        }
    }

    /// Over two machines, by seconds of an epoch as `seconds` gives them.
    fn speed_up(&self, scaling: &Scaling, seconds: fn(&Scaling) -> f64) -> f64 {
        let of_two =
            |other: &&Scaling| other.graph == scaling.graph && other.machines == MACHINES[0];
        self.scaling.iter().find(of_two).map_or(1.0, |two| seconds(two) / seconds(scaling))
    }

    /// These figures in the report.
    pub(super) fn write(&self, text: &mut String) -> fmt::Result {
        if let Some(reuse) = &self.reuse {
            let percent = |n: u64| n as f64 / reuse.nodes.max(1) as f64 * 100.0;
            writeln!(
                text,
                "\n## How often rows are used again (Fig. 3)\n\nOf {} remote rows that one worker uses \
                 in an epoch of {FETCHED}, batch {}, {:.1} % are used by one batch (45.3 % in the paper), \
                 and the most used by {} of {} (66 of, it seems, 66: an epoch of three machines).\n\n![Fig. 3](fig3.svg)",
                reuse.nodes,
                reuse.batch,
                percent(reuse.nodes_once),
                reuse.most,
                reuse.batches
            )?;
        }
        writeln!(
            text,
            "\n## Remote fetches against the size of the cache (Fig. 5)\n\nThe paper shows a curve that \
             drops sharply and then flattens, and gives no numbers.\n\n| batch | rows in a hot set | remote \
             rows an epoch | of those without |\n|---|---|---|---|"
        )?;
        for fetches in &self.fetches {
            let none = self.fetches.iter().find(|other| other.batch == fetches.batch);
            let none = none.map_or(1.0, |none| none.remote_rows_per_epoch.max(1.0));
            writeln!(
                text,
                "| {} | {} | {:.0} | {:.0} % |",
                fetches.batch,
                fetches.hot_rows,
                fetches.remote_rows_per_epoch,
                fetches.remote_rows_per_epoch / none * 100.0
            )?;
        }
        writeln!(text, "\n![Fig. 5](fig5.svg)")?;
        self.write_scaling(text)?;
        writeln!(
            text,
            "\n## What is learnt (Fig. 9)\n\nAccuracy of `rapid` on the nodes trained on, in each epoch; that of \
             `ondemand` is the same, bit for bit.\n\n![Fig. 9](fig9.svg)"
        )
    }

    fn write_scaling(&self, text: &mut String) -> fmt::Result {
        writeln!(
            text,
            "\n## More machines (Fig. 6)\n\nEach machine is a worker and a server behind a slow link of its \
             own; all are on the {} cores of this one, so that computing does not get faster with their \
             number. What each would take with as much of the cores as one of two has is worked out from \
             the part of a step that computes, and stands beside what was measured. The paper over two \
             machines: 1.5 (Products) to 1.6 (Reddit) with three, 1.7 to 2.1 (Reddit) with four.\n\n| graph \
             | machines | ondemand, s an epoch | rapid | times as fast as two | with cores of their own | \
             rapid over ondemand |\n|---|---|---|---|---|---|---|",
            cores()
        )?;
        for scaling in &self.scaling {
            writeln!(
                text,
                "| {} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
                scaling.graph,
                scaling.machines,
                scaling.ondemand_seconds,
                scaling.rapid_seconds,
                self.speed_up(scaling, Scaling::measured),
                self.speed_up(scaling, Scaling::on_own_cores),
                scaling.ondemand_seconds / scaling.rapid_seconds
            )?;
        }
        writeln!(text, "\n![Fig. 6](fig6.svg)")
    }
}

impl Reuse {
    fn of(schedule: &Schedule, graph: &Path, batch: usize) -> Result<Self> {
        let graph = Graph::open(graph)?;
        let is_remote = |node: NodeId| graph.book().part_of(node) != Some(PartId(0));
        let counts = AccessCounts::of(schedule, 0, 0, &is_remote)?;
        let mut histogram = BTreeMap::new();
        for uses in (0..schedule.n_nodes()).map(|node| counts.of_node(NodeId(node))) {
            if uses > 0 {
                *histogram.entry(uses).or_default() += 1;
            }
        }
        let stats = counts.stats();
        let most = histogram.last_key_value().map_or(0, |(&uses, _)| uses);
        let batches = schedule.n_batches(0);
        Ok(Self {
            batch,
            batches,
            nodes: stats.nodes,
            nodes_once: stats.nodes_once,
            most,
            histogram,
        })
    }
}

impl Scaling {
    fn measured(&self) -> f64 {
        self.rapid_seconds
    }

    /// With as much of the cores for each as one of two has.
    fn on_own_cores(&self) -> f64 {
        let share = |machines: u16| (cores() as f64 / f64::from(machines)).min(1.0);
        let saved = 1.0 - share(self.machines) / share(MACHINES[0]);
        self.rapid_seconds - saved * self.compute_seconds
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Fig. 9, of `rapid` over the slow links, for the paper's two graphs and three batch sizes.
fn accuracy_curves(found: &Reproduction) -> Curves<'static> {
    let mut curves = Vec::new();
    for graph in found.graphs.iter().filter(|graph| graph.name != "papers-like") {
        for group in graph.groups.iter().filter(|group| group.link == SLOW) {
            let accuracies = group.runs.iter().find(|run| run.contestant == Contestant::Rapid);
            let accuracies = accuracies.map_or(&[][..], |run| &run.accuracies);
            let points = (1..).zip(accuracies).map(|(epoch, &a)| (f64::from(epoch), a)).collect();
            curves.push(Curve { label: format!("{}, batch {}", graph.name, group.batch), points });
        }
    }
    Curves {
        title: "Fig. 9: accuracy in training",
        x: "epoch",
        y: "accuracy",
        is_log: false,
        curves,
    }
}
