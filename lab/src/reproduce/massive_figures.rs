//! MassiveGNN's Figs. 10, 12 and 13: hit rates over a run, and what γ and Δ change.

use std::fmt::{self, Write};
use std::fs;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::Value;

use super::curves::{Curve, Curves};
use super::groups::check_equal;
use super::runs::{Bench, Case, Cluster, Contestant, Eviction, GAMMA, Run};
use crate::link_emulation::LinkSpec;

/// Graphs of Fig. 10: Products, where few rows stay, and Papers.
const FOLLOWED: [&str; 2] = ["products-like", "papers-like"];
/// Runs of Fig. 10 are this many times as long as the others; the paper's have 1000 epochs.
const LONGER: u32 = 5;
/// Batches between rounds in Fig. 10: runs here have hundreds of batches, not tens of thousands.
const FOLLOWED_DELTA: u32 = 16;
/// Points of a curve of Fig. 10 at most.
const MOST_POINTS: usize = 60;
/// The graph of Figs. 12 and 13, its γ and Δ.
const SWEPT: &str = "products-like";
const GAMMAS: [f64; 5] = [0.3, 0.9, 0.95, 0.995, 0.9995];
/// Batches between rounds, in those of `Made::delta`: runs here are too short for the paper's 16
/// to 1024.
const TIMES_DELTA: [f64; 4] = [0.25, 0.5, 1.0, 2.0];

/// Measurements for these figures.
#[derive(Default, Serialize)]
pub(super) struct MassiveFigures {
    progress: Vec<Followed>,
    /// `ondemand` and MassiveGNN's first fill as it stays, beside the sweep.
    beside: Vec<Run>,
    sweep: Vec<Swept>,
}

/// Fig. 10: the hit rate of a run as it continues.
#[derive(Serialize)]
struct Followed {
    graph: &'static str,
    evicts: bool,
    /// Share of the input nodes of batches that are remote.
    remote_share: f64,
    /// Steps so far, and the hit rate of those since the point before.
    points: Vec<(u32, f64)>,
}

/// A point of Figs. 12 and 13.
#[derive(Serialize)]
struct Swept {
    gamma: f64,
    delta: u32,
    hit_rate: f64,
    step_seconds: f64,
}

impl MassiveFigures {
    /// Measures Fig. 10, if the model is one of its; over the loopback as it is, since rows are
    /// counted.
    pub(super) fn follow(
        &mut self,
        of: Bench<'_>,
        batch: usize,
        cluster: &Cluster<'_>,
    ) -> Result<()> {
        if !FOLLOWED.contains(&of.model.name) {
            return Ok(());
        }
        for contestant in [Contestant::Massive, Contestant::MassiveKept] {
            let evicts = contestant == Contestant::Massive;
            let log = of.scratch.join(format!("{}-{evicts}.jsonl", of.model.name));
            let usual = Case::usual(contestant, batch, LONGER * of.epochs);
            let eviction = Some(Eviction { gamma: GAMMA, delta: FOLLOWED_DELTA });
            let case = Case { eviction, log: Some(&log), ..usual };
            cluster.run(case, None, of.console)?;
            self.progress.push(Followed::of(of.model.name, evicts, &fs::read_to_string(&log)?)?);
        }
        Ok(())
    }

    /// Measures Figs. 12 and 13, if the model is theirs, over links of `spec`.
    pub(super) fn sweep(
        &mut self,
        of: Bench<'_>,
        batch: usize,
        spec: LinkSpec,
        cluster: &Cluster<'_>,
    ) -> Result<()> {
        if of.model.name != SWEPT {
            return Ok(());
        }
        let case = |contestant| Case::usual(contestant, batch, of.epochs);
        for contestant in [Contestant::Ondemand, Contestant::MassiveKept] {
            self.beside.push(cluster.run(case(contestant), Some(spec), of.console)?);
        }
        let delta = f64::from(cluster.made.delta(of.epochs, batch));
        let mut deltas = TIMES_DELTA.map(|times| (delta * times).max(1.0) as u32).to_vec();
        deltas.dedup();
        for gamma in GAMMAS {
            for &delta in &deltas {
                let eviction = Some(Eviction { gamma, delta });
                let case = Case { eviction, ..case(Contestant::Massive) };
                let run = cluster.run(case, Some(spec), of.console)?;
                check_equal(&self.beside[0], &run, SWEPT)?;
                let (hit_rate, step_seconds) = (run.hit_rate, run.step_seconds);
                self.sweep.push(Swept { gamma, delta, hit_rate, step_seconds });
            }
        }
        Ok(())
    }

    /// Returns the charts, by the names of their files.
    pub(super) fn charts(&self) -> Result<Vec<(&'static str, String)>> {
        let mut charts = Vec::new();
        if !self.progress.is_empty() {
            charts.push(("fig10.svg", self.progress_curves().svg()?));
        }
        if !self.sweep.is_empty() {
            charts.push(("fig12.svg", self.interval_curves().svg()?));
            charts.push(("fig13.svg", self.decay_curves().svg()?));
        }
        Ok(charts)
    }

    fn progress_curves(&self) -> Curves<'static> {
        let curve = |followed: &Followed| Curve {
            label: format!(
                "{}{}",
                followed.graph,
                if followed.evicts { "" } else { ", no eviction" }
            ),
            points: followed.points.iter().map(|&(step, rate)| (f64::from(step), rate)).collect(),
        };
        Curves {
            title: "Fig. 10: hit rate of the buffer over a run",
            x: "batches of a worker",
            y: "hit rate",
            is_log: false,
            curves: self.progress.iter().map(curve).collect(),
        }
    }

    fn interval_curves(&self) -> Curves<'static> {
        let points = |gamma: f64| {
            let of_gamma = self.sweep.iter().filter(move |swept| swept.gamma == gamma);
            of_gamma.map(|swept| (f64::from(swept.delta), swept.hit_rate)).collect()
        };
        let curve = |gamma| Curve { label: format!("γ {gamma}"), points: points(gamma) };
        Curves {
            title: "Fig. 12: hit rate by the batches between rounds of eviction",
            x: "Δ",
            y: "hit rate",
            is_log: true,
            curves: GAMMAS.into_iter().map(curve).collect(),
        }
    }

    fn decay_curves(&self) -> Curves<'static> {
        let points = |delta: u32| {
            let of_delta = self.sweep.iter().filter(move |swept| swept.delta == delta);
            of_delta.map(|swept| (swept.gamma, swept.hit_rate)).collect()
        };
        let curve = |delta| Curve { label: format!("Δ {delta}"), points: points(delta) };
        Curves {
            title: "Fig. 13: hit rate by the decay of scores",
            x: "γ",
            y: "hit rate",
            is_log: false,
            curves: self.deltas().into_iter().map(curve).collect(),
        }
    }

    /// Returns the those of the sweep, rising.
    fn deltas(&self) -> Vec<u32> {
        let of_first = self.sweep.iter().take_while(|swept| swept.gamma == GAMMAS[0]);
        of_first.map(|swept| swept.delta).collect()
    }

    /// Writes these figures to the report.
    pub(super) fn write(&self, text: &mut String) -> fmt::Result {
        if self.progress.is_empty() {
            writeln!(text, "\nFig. 10 is of {}, which were not measured.", FOLLOWED.join(" and "))?;
        } else {
            self.write_progress(text)?;
        }
        match &self.beside[..] {
            [base, kept] => self.write_sweep(text, base, kept),
            _ => writeln!(text, "\nFigs. 12 and 13 are of {SWEPT}, which was not measured."),
        }
    }

    fn write_progress(&self, text: &mut String) -> fmt::Result {
        writeln!(
            text,
            "\n## Hit rates over a run (Fig. 10)\n\nRuns {LONGER} times as long, γ {GAMMA} and Δ \
             {FOLLOWED_DELTA}. In the paper, after 1000 epochs: 75 % on Products, where about 90 % of the \
             nodes of a batch are remote, and 95 % on Papers, with about 40 % of the halo.\n\n| graph | \
             eviction | remote nodes of a batch | hit rate at first | at last |\n|---|---|---|---|---|"
        )?;
        for Followed { graph, evicts, remote_share, points } in &self.progress {
            let at = |point: Option<&(u32, f64)>| point.map_or(0.0, |&(_, rate)| rate * 100.0);
            writeln!(
                text,
                "| {graph} | {} | {:.0} % | {:.1} % | {:.1} % |",
                if *evicts { "yes" } else { "no" },
                remote_share * 100.0,
                at(points.first()),
                at(points.last())
            )?;
        }
        writeln!(text, "\n![Fig. 10](fig10.svg)")
    }

    fn write_sweep(&self, text: &mut String, base: &Run, kept: &Run) -> fmt::Result {
        writeln!(
            text,
            "\n## γ and Δ (Figs. 12 and 13)\n\n{SWEPT} over slow links. The paper's hit rates spread most \
             over Δ where γ is 0.9 or more, and its best ones are there. Without eviction {:.1} % hit, and a \
             step takes {:.1} ms; with nothing kept {:.1} ms.\n\n| γ | Δ | hit rate | ms a step | less time \
             than ondemand |\n|---|---|---|---|---|",
            kept.hit_rate * 100.0,
            kept.step_seconds * 1e3,
            base.step_seconds * 1e3
        )?;
        for Swept { gamma, delta, hit_rate, step_seconds } in &self.sweep {
            let (rate, ms) = (hit_rate * 100.0, step_seconds * 1e3);
            let less = 100.0 * (1.0 - step_seconds / base.step_seconds);
            writeln!(text, "| {gamma} | {delta} | {rate:.1} % | {ms:.1} | {less:.0} % |")?;
        }
        if let Some(best) = self.sweep.iter().max_by(|a, b| a.hit_rate.total_cmp(&b.hit_rate)) {
            writeln!(
                text,
                "\nMost hits with γ {} and Δ {}: {:.1} %, {:+.1} points beside no eviction (the paper chooses \
                 its best for each graph, Table IV).",
                best.gamma,
                best.delta,
                best.hit_rate * 100.0,
                (best.hit_rate - kept.hit_rate) * 100.0
            )?;
        }
        writeln!(text, "\n![Fig. 12](fig12.svg)\n\n![Fig. 13](fig13.svg)")
    }
}

impl Followed {
    /// Reads the lines of a log of steps, whose steps follow each other.
    fn of(graph: &'static str, evicts: bool, log: &str) -> Result<Self> {
        // For each step: hits, and remote rows that batches needed.
        let (mut steps, mut at, mut n_nodes) = (Vec::<[u64; 2]>::new(), None, 0);
        for line in log.lines() {
            let line: Value = serde_json::from_str(line)?;
            let number = |of: &Value| of.as_u64().context("a log without numbers");
            let step = (number(&line["epoch"])?, number(&line["step"])?);
            if at != Some(step) {
                at = Some(step);
                steps.push([0, 0]);
            }
            let [hits, asked] = steps.last_mut().context("a step")?;
            let found = number(&line["rows"]["buffer"])?;
            *hits += found;
            *asked += found + number(&line["rows"]["remote"])?;
            n_nodes += number(&line["nodes"])?;
        }
        let n_remote: u64 = steps.iter().map(|[_, asked]| asked).sum();
        let n_each = steps.len().div_ceil(MOST_POINTS).max(1);
        let points = steps.chunks(n_each).enumerate().map(|(i, steps)| {
            let sum = |of: usize| steps.iter().map(|step| step[of]).sum::<u64>() as f64;
            ((i * n_each + steps.len()) as u32, sum(0) / sum(1).max(1.0))
        });
        let remote_share = n_remote as f64 / n_nodes.max(1) as f64;
        Ok(Self { graph, evicts, remote_share, points: points.collect() })
    }
}
