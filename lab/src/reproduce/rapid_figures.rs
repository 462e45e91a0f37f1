//! RapidGNN's Figs. 3 and 5: how often rows are used again, and what a larger cache leaves to
//! fetch. Both are counted in the schedule.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use anyhow::Result;
use lodestore_client::keep::hot_set;
use lodestore_graph::NodeId;
use lodestore_graph::sampler::is_local;
use lodestore_graph::schedule::{AccessCounts, Schedule};
use lodestore_store::Graph;
use serde::Serialize;

use super::curves::{Curve, Curves, add_point};
use super::graphs::Made;

/// Rows of a hot set, of those that the smallest share of a worker lacks (Fig. 5).
const SHARES: [f64; 8] = [0.0, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0];

/// Counts for these figures.
#[derive(Default, Serialize)]
pub(super) struct RapidFigures {
    reuse: Vec<Reuse>,
    fetches: Vec<Fetches>,
}

/// Fig. 3: remote rows of the first worker by the number of batches of its first epoch that use
/// them.
#[derive(Serialize)]
struct Reuse {
    graph: String,
    batch: usize,
    /// Batches of an epoch.
    batches: u32,
    nodes: u64,
    nodes_once: u64,
    most: u32,
    /// Number of nodes by number of uses.
    histogram: BTreeMap<u32, u64>,
}

/// A point of Fig. 5: remote rows of all workers in a mean epoch.
#[derive(Serialize)]
struct Fetches {
    graph: String,
    batch: usize,
    /// Rows of one hot set.
    hot_rows: u32,
    /// Rows that batches lacked: the paper's count.
    missed: f64,
    /// Rows pulled for hot sets; those that stay from one epoch to the next are not pulled again.
    ahead: f64,
}

impl RapidFigures {
    /// Counts both figures of a graph and batch size in their schedule.
    pub(super) fn count(
        &mut self,
        graph: &str,
        batch: usize,
        made: &Made,
        schedule: &Schedule,
    ) -> Result<()> {
        let opened = Graph::open(&made.dir)?;
        let (book, spec) = (opened.book(), schedule.spec());
        let n_remote = f64::from(made.nodes) * (1.0 - 1.0 / f64::from(spec.workers));
        let mut sizes = SHARES.map(|share| (share * n_remote) as u32).to_vec();
        sizes.push(made.kept_rows / 2);
        sizes.sort_unstable();
        sizes.dedup();
        let mut sums = vec![[0u64; 2]; sizes.len()];
        for worker in 0..spec.workers {
            let is_remote = |node| !is_local(book, worker, spec.workers, node);
            let mut before: Vec<Vec<NodeId>> = vec![Vec::new(); sizes.len()];
            for epoch in 0..spec.epochs {
                let counts = AccessCounts::of(schedule, worker, epoch, &is_remote)?;
                if (worker, epoch) == (0, 0) {
                    self.reuse.push(Reuse::of(graph, batch, schedule, &counts));
                }
                for ((&size, sum), before) in sizes.iter().zip(&mut sums).zip(&mut before) {
                    let hot = hot_set(&counts, size as usize);
                    let served: u64 = hot.iter().map(|&node| u64::from(counts.of_node(node))).sum();
                    let is_new = |node: &&NodeId| before.binary_search(node).is_err();
                    let n_new = hot.iter().filter(is_new).count() as u64;
                    sum[0] += counts.stats().accesses - served;
                    sum[1] += n_new;
                    *before = hot;
                }
            }
        }
        let mean = |of: u64| of as f64 / f64::from(spec.epochs.max(1));
        let point = |(&hot_rows, &[missed, ahead]): (&u32, &[u64; 2])| Fetches {
            graph: graph.to_owned(),
            batch,
            hot_rows,
            missed: mean(missed),
            ahead: mean(ahead),
        };
        self.fetches.extend(sizes.iter().zip(&sums).map(point));
        Ok(())
    }

    /// Returns the charts, by the names of their files.
    pub(super) fn charts(&self) -> Result<Vec<(&'static str, String)>> {
        Ok(vec![("fig3.svg", self.reuse_curves().svg()?), ("fig5.svg", self.fetch_curves().svg()?)])
    }

    /// Returns the counts of the largest batches of each graph.
    fn reuse_curves(&self) -> Curves<'static> {
        let is_largest = |reuse: &&Reuse| {
            let same = self.reuse.iter().filter(|other| other.graph == reuse.graph);
            same.map(|other| other.batch).max() == Some(reuse.batch)
        };
        let share = |reuse: &Reuse| -> Vec<(f64, f64)> {
            let all = reuse.nodes.max(1) as f64;
            let point = |(&uses, &nodes): (&u32, &u64)| (f64::from(uses), nodes as f64 / all);
            reuse.histogram.iter().map(point).collect()
        };
        let curve = |reuse: &Reuse| Curve {
            label: format!("{}, batch {}", reuse.graph, reuse.batch),
            points: share(reuse),
        };
        Curves {
            title: "Fig. 3: remote rows of a worker by batches of an epoch that use them",
            x: "batches",
            y: "share of rows",
            is_log: true,
            curves: self.reuse.iter().filter(is_largest).map(curve).collect(),
        }
    }

    /// Returns the counts of each graph and batch, as shares of the fetches without a hot set.
    fn fetch_curves(&self) -> Curves<'static> {
        let mut curves = Vec::new();
        let most = |graph: &str| {
            let of_graph = self.fetches.iter().filter(|of| of.graph == graph);
            f64::from(of_graph.map(|of| of.hot_rows).max().unwrap_or(1).max(1))
        };
        for of in &self.fetches {
            let label = format!("{}, batch {}", of.graph, of.batch);
            let point = (f64::from(of.hot_rows) / most(&of.graph), self.share_of(of, of.missed));
            add_point(&mut curves, label, point);
        }
        Curves {
            title: "Fig. 5: remote rows that batches fetch in an epoch, beside those without a cache",
            x: "rows in a hot set, of those that a worker lacks",
            y: "share",
            is_log: false,
            curves,
        }
    }

    /// Returns `rows` over those fetched without a hot set.
    fn share_of(&self, of: &Fetches, rows: f64) -> f64 {
        let same = |other: &&Fetches| other.graph == of.graph && other.batch == of.batch;
        rows / self.fetches.iter().find(same).map_or(1.0, |none| none.missed.max(1.0))
    }

    /// Writes these figures to the report.
    pub(super) fn write(&self, text: &mut String) -> fmt::Result {
        writeln!(
            text,
            "\n## How often rows are used again (Fig. 3)\n\nRemote rows that the first worker uses in its \
             first epoch. In the paper 45.3 % of Products' are used by one batch, and the most used by 66.\n\n\
             | graph | batch | batches | rows | used by one batch | the most used: by |\n|---|---|---|---|---|---|"
        )?;
        for Reuse { graph, batch, batches, nodes, nodes_once, most, .. } in &self.reuse {
            let once = *nodes_once as f64 / (*nodes).max(1) as f64 * 100.0;
            writeln!(text, "| {graph} | {batch} | {batches} | {nodes} | {once:.1} % | {most} |")?;
        }
        writeln!(
            text,
            "\n![Fig. 3](fig3.svg)\n\n## Remote fetches against the size of the cache (Fig. 5)\n\nCounted in \
             the schedule, for all workers and a mean epoch, without joined batches. *Missed* is the paper's \
             count (Algorithm 1, line 16), *all* has what fills hot sets. The paper shows curves that drop \
             sharply and then flatten, and has no numbers.\n\n| graph | batch | rows in a hot set | missed, of \
             those without | all |\n|---|---|---|---|---|"
        )?;
        for of in &self.fetches {
            writeln!(
                text,
                "| {} | {} | {} | {:.0} % | {:.0} % |",
                of.graph,
                of.batch,
                of.hot_rows,
                self.share_of(of, of.missed) * 100.0,
                self.share_of(of, of.missed + of.ahead) * 100.0
            )?;
        }
        writeln!(text, "\n![Fig. 5](fig5.svg)")
    }
}

impl Reuse {
    fn of(graph: &str, batch: usize, schedule: &Schedule, counts: &AccessCounts) -> Self {
        let mut histogram = BTreeMap::new();
        for uses in (0..schedule.n_nodes()).map(|node| counts.of_node(NodeId(node))) {
            if uses > 0 {
                *histogram.entry(uses).or_default() += 1;
            }
        }
        let stats = counts.stats();
        let most = histogram.last_key_value().map_or(0, |(&uses, _)| uses);
        Self {
            graph: graph.to_owned(),
            batch,
            batches: schedule.n_batches(0),
            nodes: stats.nodes,
            nodes_once: stats.nodes_once,
            most,
            histogram,
        }
    }
}
