//! RapidGNN's Table 2 over its two other baselines: random partitions, and another model.

use std::fmt::{self, Write};

use anyhow::Result;
use serde::Serialize;

use super::graphs::{Partitioning, Size, make};
use super::groups::Group;
use super::papers::Published;
use super::runs::{Bench, Case, Cluster, Contestant, Run};

/// Steps of the other baselines over the slowest link of each batch size.
#[derive(Default, Serialize)]
#[serde(transparent)]
pub(super) struct Baselines(Vec<Beside>);

/// Baselines of one batch size.
#[derive(Serialize)]
struct Beside {
    graph: &'static str,
    batch: usize,
    link: String,
    published: Option<Published>,
    /// `ondemand` where each node's partition is that of its hash.
    random: Run,
    /// `ondemand` with GCN, which takes sums over neighbours and itself, on the partitions of all
    /// others.
    gcn: Run,
    /// Seconds of a step of `rapid`, and of it with the oracle.
    rapid_seconds: [f64; 2],
}

impl Baselines {
    /// Measures beside the groups of `of`'s graph, which `cluster` serves.
    pub(super) fn measure(
        &mut self,
        of: Bench<'_>,
        groups: &[Group],
        cluster: &Cluster<'_>,
    ) -> Result<()> {
        let dir = of.scratch.join("random");
        std::fs::create_dir(&dir)?;
        let cut_at_random =
            make(of.model, Size { cut: Partitioning::Random, ..of.size }, &dir, of.console)?;
        let at_random = Cluster::start(&cut_at_random, &dir, of.size.n_workers)?;
        let at_random = at_random.replaying(of.recording);
        for group in groups.iter().filter(|group| group.is_slowest(groups)) {
            let run = |cluster: &Cluster<'_>, contestant| {
                let case = Case::usual(contestant, group.batch, of.epochs);
                of.repeated(&|| cluster.run(case, Some(group.spec), of.console))
            };
            let [Some(rapid), Some(oracle)] =
                [Contestant::Rapid, Contestant::RapidOracle].map(|own| group.run(own))
            else {
                continue;
            };
            self.0.push(Beside {
                graph: of.model.name,
                batch: group.batch,
                link: group.link_name(),
                published: group.published,
                random: run(&at_random, Contestant::Ondemand)?,
                gcn: run(cluster, Contestant::Gcn)?,
                rapid_seconds: [rapid, oracle].map(|run| run.step_seconds),
            });
        }
        at_random.stop()?;
        Ok(std::fs::remove_dir_all(&dir)?)
    }

    pub(super) fn write(&self, text: &mut String) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        writeln!(
            text,
            "\n## The other baselines of Table 2\n\nOver the slowest link of each batch size: `ondemand` on \
             random partitions (DGL-Random) and with GCN (Dist GCN, which the paper says has larger \
             subgraphs, and not how large: here it samples as the others do). The paper's speed-ups in \
             brackets; its means are 2.26 and 3.00.\n\n| graph | batch | link | DGL-Random: ms a step | MB | \
             rapid over it | with the oracle | GCN: ms a step | MB | rapid over it | with the oracle \
             |\n|---|---|---|---|---|---|---|---|---|---|---|"
        )?;
        for Beside { graph, batch, link, published, random, gcn, rapid_seconds } in &self.0 {
            write!(text, "| {graph} | {batch} | {link} ")?;
            for (i, run) in [random, gcn].into_iter().enumerate() {
                let [rapid, oracle] = rapid_seconds.map(|seconds| run.step_seconds / seconds);
                let paper =
                    published.map_or_else(String::new, |of| format!(" ({:.2})", of.others[i]));
                let (ms, mb) = (run.step_seconds * 1e3, run.remote_bytes / 1e6);
                write!(text, "| {ms:.1} | {mb:.3} | {rapid:.2}{paper} | {oracle:.2} ")?;
            }
            writeln!(text, "|")?;
        }
        Ok(())
    }
}
