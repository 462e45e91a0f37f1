//! RapidGNN's Figs. 3, 5 and 9: how often rows are used again, what a larger cache leaves to fetch, and
//! what is learnt.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::path::Path;

use anyhow::Result;
use lodestore_graph::schedule::{AccessCounts, Schedule};
use lodestore_graph::{NodeId, PartId};
use lodestore_store::Graph;
use serde::Serialize;

use super::bench::Bench;
use super::curves::{Curve, Curves};
use super::graphs::Made;
use super::runs::{Case, Cluster, Contestant, Run};
use super::{Reproduction, SLOW, check_equal};

/// The graph of Figs. 3 and 5.
const FETCHED: &str = "products-like";
/// Shares of the rows that a worker does not own, in both hot sets together (Fig. 5).
const SHARES: [f64; 7] = [0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0];
/// What was measured for these figures.
#[derive(Default, Serialize)]
pub(super) struct RapidFigures {
    reuse: Option<Reuse>,
    fetches: Vec<Fetches>,
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
            let mut first: Option<Run> = None;
            for share in SHARES {
                let kept_rows = (share * n_remote) as u32;
                let usual = Case::usual(Contestant::Rapid, batch, of.epochs);
                let case = Case { kept_rows: Some(kept_rows), ..usual };
                let run = cluster.run(made, case, None, of.console)?;
                check_equal(first.get_or_insert_with(|| run.clone()), &run, FETCHED)?;
                let remote_rows_per_epoch = run.remote_rows_per_epoch;
                let hot_rows = kept_rows / 2;
                self.fetches.push(Fetches { batch, hot_rows, remote_rows_per_epoch });
            }
        }
        Ok(())
    }

    /// The charts, by the names of their files.
    pub(super) fn charts(&self, found: &Reproduction) -> Result<Vec<(&'static str, String)>> {
        let mut charts = Vec::new();
        if self.reuse.is_some() {
            charts.push(("fig3.svg", self.reuse_curves().svg()?));
            charts.push(("fig5.svg", self.fetch_curves().svg()?));
        }
        charts.push(("fig9.svg", accuracy_curves(found).svg()?));
        Ok(charts)
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

    /// These figures in the report.
    pub(super) fn write(&self, text: &mut String) -> fmt::Result {
        match &self.reuse {
            Some(reuse) => self.write_fetches(text, reuse)?,
            None => writeln!(text, "\nFigs. 3 and 5 are of {FETCHED}, which was not asked for.")?,
        }
        writeln!(
            text,
            "\n## What is learnt (Fig. 9)\n\nAccuracy of `rapid` on the nodes trained on, in each epoch; that of \
             `ondemand` is the same, bit for bit.\n\n![Fig. 9](fig9.svg)"
        )
    }

    fn write_fetches(&self, text: &mut String, reuse: &Reuse) -> fmt::Result {
        let percent = |n: u64| n as f64 / reuse.nodes.max(1) as f64 * 100.0;
        writeln!(
            text,
            "\n## How often rows are used again (Fig. 3)\n\nOf {} remote rows that one worker uses in an \
             epoch of {FETCHED}, batch {}, {:.1} % are used by one batch (45.3 % in the paper), and the most \
             used by {} of {} (66 of, it seems, 66: an epoch of three machines).\n\n![Fig. 3](fig3.svg)",
            reuse.nodes,
            reuse.batch,
            percent(reuse.nodes_once),
            reuse.most,
            reuse.batches
        )?;
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
        writeln!(text, "\n![Fig. 5](fig5.svg)")
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
