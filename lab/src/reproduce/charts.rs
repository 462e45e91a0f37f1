//! The charts that show all contestants: times of steps, and the papers' figures that are bars.

use anyhow::Result;

use super::bars::{Bar, BarGroup, Bars};
use super::groups::{FAST, SLOW};
use super::runs::Run;
use super::{Paper, Reproduction};

/// Returns all charts, by the names of their files.
pub(super) fn charts(found: &Reproduction) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for link in [FAST, SLOW] {
        let bars = step_times(found, link);
        if !bars.groups.is_empty() {
            all.push((format!("{link}.svg"), bars));
        }
    }
    match found.paper {
        Paper::Rapidgnn => all.push(("fig4.svg".to_owned(), bytes_of_steps(found))),
        Paper::Massivegnn => {
            all.push(("fig9.svg".to_owned(), preparation(found)));
            all.push(("fig11.svg".to_owned(), remote_rows(found)));
        }
    }
    all.into_iter().map(|(name, bars)| Ok((name, bars.svg()?))).collect()
}

/// Returns MassiveGNN's Fig. 6 and RapidGNN's Table 2.
fn step_times(found: &Reproduction, link: &str) -> Bars {
    of_runs(found, link, "ms a step: computing (dark), other workers, rows (light)", |run| {
        let busy = run.compute_seconds + run.others_seconds;
        let rest = (run.step_seconds - busy).max(0.0);
        vec![[run.compute_seconds, run.others_seconds, rest].map(|seconds| seconds * 1e3).to_vec()]
    })
}

/// Returns RapidGNN's Fig. 4.
fn bytes_of_steps(found: &Reproduction) -> Bars {
    let title =
        "Fig. 4: MB a step that come from other machines: for batches (dark), hot sets (light)";
    of_runs(found, found.figure_link(), title, |run| {
        let ahead = run.remote_bytes - run.missed_bytes;
        vec![[run.missed_bytes, ahead].map(|bytes| bytes / 1e6).to_vec()]
    })
}

/// Returns MassiveGNN's Fig. 9: a step's training, and beside it what prepares the next batch
/// meanwhile.
fn preparation(found: &Reproduction) -> Bars {
    let title = "Fig. 9: ms a step: training (computing, other workers), then preparation (sampling, \
                 lookup, pull, copy), from dark to light";
    of_runs(found, found.figure_link(), title, |run| {
        let training = vec![run.compute_seconds, run.others_seconds];
        let preparing =
            vec![run.sample_seconds, run.lookup_seconds, run.pull_seconds, run.copy_seconds];
        let ms = |parts: Vec<f64>| parts.into_iter().map(|seconds| seconds * 1e3).collect();
        vec![ms(training), ms(preparing)]
    })
}

/// Returns MassiveGNN's Fig. 11.
fn remote_rows(found: &Reproduction) -> Bars {
    let title = "Fig. 11: remote rows fetched in an epoch by all workers: for batches (dark), ahead of \
                 them (light)";
    of_runs(found, found.figure_link(), title, |run| {
        let missed = run.remote_rows_per_epoch * run.missed_bytes / run.remote_bytes.max(1.0);
        vec![vec![missed, run.remote_rows_per_epoch - missed]]
    })
}

/// Returns a group of bars for each batch size, with those that `bars` makes of each run.
fn of_runs(
    found: &Reproduction,
    link: &str,
    title: &str,
    bars: impl Fn(&Run) -> Vec<Vec<f64>>,
) -> Bars {
    let mut groups = Vec::new();
    let has_rates = link == FAST && found.rates().len() > 1;
    for graph in &found.graphs {
        for group in graph.groups.iter().filter(|group| group.link == link) {
            let mbit = has_rates.then(|| format!(" {:.0}M", group.spec.rate_bits / 1e6));
            let of_run = |(colour, run)| {
                let bar = move |parts| Bar { colour, parts };
                bars(run).into_iter().map(bar).collect::<Vec<_>>()
            };
            groups.push(BarGroup {
                name: format!("{} {}{}", graph.name, group.batch, mbit.unwrap_or_default()),
                bars: group.runs.iter().enumerate().flat_map(of_run).collect(),
            });
        }
    }
    let legend = found.paper.contestants().iter().map(|contestant| contestant.label()).collect();
    Bars { title: title.to_owned(), legend, groups }
}
