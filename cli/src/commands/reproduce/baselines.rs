//! RapidGNN's Table 2 over its two other baselines: random partitions, and another model.

use std::fmt::{self, Write};

use anyhow::Result;
use serde::Serialize;

use super::bench::Bench;
use super::graphs::{Cut, Made, Size, make};
use super::papers::Published;
use super::runs::{Case, Cluster, Contestant, Run};
use super::{Group, SLOW};

/// Steps of the other baselines over the slow links.
#[derive(Default, Serialize)]
#[serde(transparent)]
pub(super) struct Baselines(Vec<Beside>);

/// Those of one batch size.
#[derive(Serialize)]
struct Beside {
    graph: &'static str,
    batch: usize,
    /// The paper's speed-ups over them.
    published: [f64; 2],
    /// `ondemand` where each node's partition is that of its hash.
    random: Run,
    /// `ondemand` with GCN, which takes sums over neighbours and itself, on the partitions of all others.
    gcn: Run,
    /// Of `rapid` and of it with the oracle.
    rapid_seconds: [f64; 2],
}

impl Baselines {
    /// Beside the groups of `of`'s graph, which was made as `made` and is served by `cluster`.
    pub(super) fn measure(
        &mut self,
        of: Bench<'_>,
        groups: &[Group],
        made: &Made,
        cluster: &Cluster,
    ) -> Result<()> {
        let dir = of.scratch.join("random");
        std::fs::create_dir(&dir)?;
        let cut_at_random = make(of.model, Size { cut: Cut::Random, ..of.size }, &dir, of.console)?;
        let at_random = Cluster::start(&cut_at_random.dir, &dir, of.size.n_workers)?;
        for group in groups.iter().filter(|group| group.link == SLOW) {
            let run = |cluster: &Cluster, made: &Made, contestant| {
                let case = Case::usual(contestant, group.batch, of.epochs);
                cluster.run(made, case, Some(group.spec()), of.console)
            };
            let of_batch = |of: &&Published| of.batch == group.published_batch;
            let published = of.model.rapidgnn.iter().find(of_batch).map(|of| of.others);
            self.0.push(Beside {
                graph: of.model.name,
                batch: group.batch,
                published: published.unwrap_or_default(),
                random: run(&at_random, &cut_at_random, Contestant::Ondemand)?,
                gcn: run(cluster, made, Contestant::Gcn)?,
                rapid_seconds: [1, 2].map(|run: usize| group.runs[run].step_seconds),
            });
        }
        at_random.stop()?;
        Ok(std::fs::remove_dir_all(&dir)?)
    }

    pub(super) fn write(&self, text: &mut String) -> fmt::Result {
        writeln!(
            text,
            "\n## The other baselines of Table 2\n\nOver the slow links: `ondemand` on random partitions \
             (DGL-Random) and with GCN (Dist GCN, which the paper says has larger subgraphs, and not how large: \
             here it samples as the others do). The paper's speed-ups in brackets; its means are 2.26 and \
             3.00.\n\n| graph | batch | DGL-Random: ms a step | MB | rapid over it | with the oracle | GCN: ms \
             a step | MB | rapid over it | with the oracle |\n|---|---|---|---|---|---|---|---|---|---|"
        )?;
        for Beside { graph, batch, published, random, gcn, rapid_seconds } in &self.0 {
            write!(text, "| {graph} | {batch} ")?;
            for (run, published) in [random, gcn].into_iter().zip(published) {
                let [rapid, oracle] = rapid_seconds.map(|seconds| run.step_seconds / seconds);
                let (ms, mb) = (run.step_seconds * 1e3, run.remote_bytes / 1e6);
                write!(text, "| {ms:.1} | {mb:.3} | {rapid:.2} ({published:.2}) | {oracle:.2} ")?;
            }
            writeln!(text, "|")?;
        }
        Ok(())
    }
}
