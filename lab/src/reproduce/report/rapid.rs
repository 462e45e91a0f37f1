//! RapidGNN's tables.

use std::fmt::{self, Write};

use super::super::groups::{FAST, GraphRuns, Group, SLOW};
use super::super::runs::{Contestant, Run};
use super::super::{Paper, Reproduction};
use super::{groups, setting, title};

pub(super) fn write(text: &mut String, found: &Reproduction) -> fmt::Result {
    writeln!(text, "# RapidGNN here\n")?;
    setting(text, found)?;
    for link in [FAST, SLOW].into_iter().filter(|link| found.has_links(link)) {
        writeln!(text, "\n## {}\n", title(link))?;
        speed_ups(text, found, link)?;
        step_times(text, found, link)?;
        writeln!(text, "\n![{link}]({link}.svg)")?;
    }
    rows(text, found)?;
    writeln!(text, "\n![Fig. 4](fig4.svg)")?;
    whole_runs(text, found)?;
    found.rapid_figures.write(text)?;
    if found.has_figures {
        found.baselines.write(text)?;
        found.convergence.write(text)?;
        found.machines.write(text, found.paper)?;
    }
    energy(text, found)
}

/// Writes the speed-ups of all contestants, and what explains those of both together.
fn speed_ups(text: &mut String, found: &Reproduction, link: &str) -> fmt::Result {
    writeln!(
        text,
        "Times as fast a step as `ondemand`, the paper's (Table 2, over DGL-METIS) in brackets. *At most*: a \
         step that only computes. *Explained by*: the part alone that comes within {:.0} % of the step of \
         both. A row with † is disturbed: computing, which is the same for all, took `ondemand` over {:.0} % \
         longer than another.\n\n| graph | batch (paper's) | link | pull / rest of the step | at most | \
         prefetch only | cache only | both (paper) | oracle | explained by \
         |\n|---|---|---|---|---|---|---|---|---|---|",
        (Explained::NEAR - 1.0) * 100.0,
        (MOST_UNLIKE - 1.0) * 100.0
    )?;
    for (graph, group) in groups(found, link) {
        let base = &group.runs[0];
        write!(
            text,
            "| {}{} | {}{} | {} | {:.2} | {:.2} ",
            graph.name,
            if is_disturbed(group) { " †" } else { "" },
            group.batch,
            group.published.map_or_else(String::new, |of| format!(" ({})", of.batch)),
            group.link_name(),
            base.pull_seconds / base.rest_seconds(),
            base.step_seconds / base.compute_seconds.max(1e-9),
        )?;
        for run in &group.runs[1..] {
            let paper = group.published.filter(|_| run.contestant == Contestant::Rapid);
            let paper = paper.map_or_else(String::new, |of| format!(" ({:.2})", of.step));
            write!(text, "| {:.2}{paper} ", base.step_seconds / run.step_seconds)?;
        }
        writeln!(text, "| {} |", Explained::by(group))?;
    }
    averages(text, found, link)
}

/// Writes medians and ranges.
fn step_times(text: &mut String, found: &Reproduction, link: &str) -> fmt::Result {
    writeln!(
        text,
        "\nMilliseconds of a step{}:\n",
        if found.repeats > 1 { ", median and range" } else { "" }
    )?;
    let labels: Vec<&str> = Paper::Rapidgnn.contestants().iter().map(|of| of.label()).collect();
    writeln!(
        text,
        "| graph | batch | link | {} |\n|---|---|---|---|---|---|---|---|",
        labels.join(" | ")
    )?;
    for (graph, group) in groups(found, link) {
        write!(text, "| {} | {} | {} ", graph.name, group.batch, group.link_name())?;
        for run in &group.runs {
            let [least, most] = run.step_range.map(|seconds| seconds * 1e3);
            write!(text, "| {:.1}", run.step_seconds * 1e3)?;
            if found.repeats > 1 {
                write!(text, " ({least:.1} to {most:.1})")?;
            }
            text.push(' ');
        }
        writeln!(text, "|")?;
    }
    Ok(())
}

/// Writes the means of the rows of each link, and how many of them prefetching alone explains.
fn averages(text: &mut String, found: &Reproduction, link: &str) -> fmt::Result {
    let rates = if link == FAST { found.rates() } else { vec![0.0] };
    for rate in rates {
        let of_rate = |group: &&Group| link != FAST || group.spec.rate_bits == rate;
        let all: Vec<&Group> =
            groups(found, link).map(|(_, group)| group).filter(of_rate).collect();
        let calm: Vec<&Group> = all.iter().copied().filter(|group| !is_disturbed(group)).collect();
        let over = match all.first() {
            Some(group) if link == FAST => format!(" over {}", group.link_name()),
            _ => String::new(),
        };
        if calm.is_empty() {
            writeln!(
                text,
                "\nAll {} rows{over} are disturbed: their times say nothing.",
                all.len()
            )?;
            continue;
        }
        let mean = |contestant: Contestant| {
            let speed_up = |group: &&&Group| {
                group.run(contestant).map(|run| group.runs[0].step_seconds / run.step_seconds)
            };
            calm.iter().filter_map(|group| speed_up(&group)).sum::<f64>() / calm.len() as f64
        };
        let count =
            |wanted: Explained| calm.iter().filter(|group| Explained::by(group) == wanted).count();
        writeln!(
            text,
            "\nMeans of {} rows{over}{}: prefetch only {:.2}, cache only {:.2}, both {:.2} (2.46 is the mean of \
             the paper's nine), oracle {:.2}. The speed-up of both is explained by prefetching alone in {}, by \
             the cache alone in {}, by either alone in {}, by neither alone in {}; {} have none.",
            calm.len(),
            if calm.len() < all.len() { " that are not disturbed" } else { "" },
            mean(Contestant::RapidPrefetch),
            mean(Contestant::RapidCache),
            mean(Contestant::Rapid),
            mean(Contestant::RapidOracle),
            count(Explained::Prefetching),
            count(Explained::Cache),
            count(Explained::Either),
            count(Explained::Both),
            count(Explained::Nothing),
        )?;
    }
    Ok(())
}

/// Returns where rows came from, which links hardly change: over the first link of each batch size.
fn rows(text: &mut String, found: &Reproduction) -> fmt::Result {
    writeln!(
        text,
        "\n## Where remote rows came from, and bytes of a step (Fig. 4)\n\nRows of all workers' batches in a \
         mean epoch: *kept* in a hot set or the oracle's tier, *joined* with another batch of the window that \
         was loaded together with theirs (ours: the paper pulls each batch by itself), or pulled (*missed*); \
         *ahead* was pulled to be kept. MB are of one worker's step. The paper counts what batches miss \
         (Algorithm 1, line 16), and does not say whether its MB have the hot sets too: both are here. Every \
         loss of every step, and the last parameters, are the same bit for bit in all runs of a batch \
         size.\n\n| graph | batch | | kept | joined | missed | ahead | MB | times less (paper) | MB missed \
         (paper) | times less |\n|---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    for (graph, group) in first_links(found) {
        let base = &group.runs[0];
        for run in &group.runs {
            let paper = group.published;
            let paper_mb = match (run.contestant, paper) {
                (Contestant::Ondemand, Some(of)) => format!(" ({:.1})", of.baseline_mb),
                (Contestant::Rapid, Some(of)) => format!(" ({:.1})", of.rapid_mb),
                _ => String::new(),
            };
            let paper_less = paper.filter(|_| run.contestant == Contestant::Rapid);
            let paper_less = paper_less
                .map_or_else(String::new, |of| format!(" ({:.1})", of.baseline_mb / of.rapid_mb));
            writeln!(
                text,
                "| {} | {} | {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.3} | {}{paper_less} | {:.3}{paper_mb} | {} |",
                graph.name,
                group.batch,
                run.contestant.label(),
                run.rows.kept,
                run.rows.joined,
                run.rows.missed,
                run.rows.ahead,
                run.remote_bytes / 1e6,
                times_less(base.remote_bytes, run.remote_bytes),
                run.missed_bytes / 1e6,
                times_less(base.missed_bytes, run.missed_bytes),
            )?;
        }
    }
    Ok(())
}

/// Writes set-up and whole runs beside steps, over the slowest link of each batch size.
fn whole_runs(text: &mut String, found: &Reproduction) -> fmt::Result {
    writeln!(
        text,
        "\n## Whole runs: set-up, epochs and memory\n\nOver the slowest link of each batch size. Set-up is all \
         before the first step: the schedule, which is made once for all runs of the same seed and counted in \
         full here, and what is pulled to be kept. `ondemand` has none, and samples in each step. Rows held are \
         the paper's bound, 2·n_hot·d + Q·m_max·d, and two batches more.\n\n| graph | batch | link | | \
         schedule, s | rest of set-up, s | epoch 1, s | the others, s | whole run, s | times as fast | held, \
         MB | bound, MB |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    for (graph, group) in slowest_links(found) {
        for run in &group.runs {
            let warm_up = run.warm_up;
            writeln!(
                text,
                "| {} | {} | {} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1} | {:.1} |",
                graph.name,
                group.batch,
                group.link_name(),
                run.contestant.label(),
                run.schedule_seconds,
                warm_up.before_seconds,
                warm_up.first_seconds,
                warm_up.others_seconds,
                run.run_seconds,
                group.runs[0].run_seconds / run.run_seconds,
                run.memory_bytes as f64 / 1e6,
                run.memory_bound_bytes as f64 / 1e6,
            )?;
        }
    }
    Ok(())
}

/// Returns the paper measured three machines over 10 epochs of Products, batch 3000.
fn energy(text: &mut String, found: &Reproduction) -> fmt::Result {
    writeln!(text, "\n## Energy (Table 3)\n")?;
    if !found.energy_counters {
        return writeln!(
            text,
            "This machine has no energy counters that can be read, so that Table 3 cannot be set beside \
             anything."
        );
    }
    writeln!(
        text,
        "Of all processors of this machine, whatever else it did: the servers and the links are on it too. \
         The paper's: 2464.6 J with DGL-METIS, 1376.2 J with RapidGNN, 1.79 times less.\n\n| graph | batch \
         | link | ondemand, J | rapid | times less |\n|---|---|---|---|---|---|"
    )?;
    for (graph, group) in slowest_links(found) {
        let joules = |of: Option<&Run>| of.and_then(|run| run.energy_joules);
        let pair = (joules(group.runs.first()), joules(group.run(Contestant::Rapid)));
        let (Some(base), Some(rapid)) = pair else { continue };
        let (name, batch, link) = (&graph.name, group.batch, group.link_name());
        writeln!(
            text,
            "| {name} | {batch} | {link} | {base:.1} | {rapid:.1} | {:.2} |",
            base / rapid
        )?;
    }
    Ok(())
}

fn slowest_links(found: &Reproduction) -> impl Iterator<Item = (&GraphRuns, &Group)> {
    let is_slowest = |(graph, group): &(&GraphRuns, &Group)| group.is_slowest(&graph.groups);
    all_links(found).filter(is_slowest)
}

fn first_links(found: &Reproduction) -> impl Iterator<Item = (&GraphRuns, &Group)> {
    let is_first = |(graph, group): &(&GraphRuns, &Group)| {
        let mut same = graph.groups.iter().filter(|other| other.batch == group.batch);
        same.next().is_some_and(|first| first.spec == group.spec)
    };
    all_links(found).filter(is_first)
}

fn all_links(found: &Reproduction) -> impl Iterator<Item = (&GraphRuns, &Group)> {
    found.graphs.iter().flat_map(|graph| graph.groups.iter().map(move |group| (graph, group)))
}

/// Returns how many times less `of` is than `base`; next to nothing is not divided by.
fn times_less(base: f64, of: f64) -> String {
    if of * 1e3 < base { "nothing left".to_owned() } else { format!("{:.1}", base / of) }
}

/// Computing that differs by more than this is not that of the same surroundings.
const MOST_UNLIKE: f64 = 1.15;

/// Returns whether the baseline was slower at what all do alike, so that speed-ups would flatter.
fn is_disturbed(group: &Group) -> bool {
    let base = group.runs[0].compute_seconds;
    group.runs.iter().any(|run| base > run.compute_seconds * MOST_UNLIKE)
}

/// The part of `rapid` that explains its speed-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Explained {
    Prefetching,
    Cache,
    /// Each part alone does.
    Either,
    /// No part alone does.
    Both,
    /// There is no speed-up.
    Nothing,
}

impl Explained {
    /// Steps within this factor of each other are alike.
    const NEAR: f64 = 1.05;

    fn by(group: &Group) -> Self {
        use Contestant::{Ondemand, Rapid, RapidCache, RapidPrefetch};
        let steps = [Ondemand, RapidPrefetch, RapidCache, Rapid]
            .map(|contestant| group.run(contestant).map_or(f64::INFINITY, |run| run.step_seconds));
        Self::by_steps(steps)
    }

    /// Returns the part by seconds of a step with neither, prefetching, the cache, and both.
    fn by_steps([neither, prefetching, cache, both]: [f64; 4]) -> Self {
        let is_as_good = |alone: f64| alone <= both * Self::NEAR;
        match (is_as_good(prefetching), is_as_good(cache)) {
            _ if neither <= both * Self::NEAR => Self::Nothing,
            (true, true) => Self::Either,
            (true, false) => Self::Prefetching,
            (false, true) => Self::Cache,
            (false, false) => Self::Both,
        }
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prefetching => "prefetching alone",
            Self::Cache => "the cache alone",
            Self::Either => "either alone",
            Self::Both => "both",
            Self::Nothing => "no speed-up",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_explains_what_it_comes_near_alone() {
        let by = Explained::by_steps;
        assert_eq!(by([2.0, 1.04, 1.5, 1.0]), Explained::Prefetching);
        assert_eq!(by([2.0, 0.9, 1.5, 1.0]), Explained::Prefetching, "more than both");
        assert_eq!(by([2.0, 1.5, 1.05, 1.0]), Explained::Cache);
        assert_eq!(by([2.0, 1.0, 1.0, 1.0]), Explained::Either);
        assert_eq!(by([2.0, 1.1, 1.5, 1.0]), Explained::Both);
        assert_eq!(by([1.04, 1.0, 1.0, 1.0]), Explained::Nothing);
        assert_eq!(by([0.5, 1.0, 1.0, 1.0]), Explained::Nothing);
    }
}
