//! RapidGNN's tables.

use std::fmt::{self, Write};

use super::super::papers::{MODELS, Published};
use super::super::runs::Run;
use super::super::{FAST, GraphRuns, Group, Reproduction, SLOW};
use super::{groups, setting, title};

pub(super) fn write(text: &mut String, found: &Reproduction) -> fmt::Result {
    writeln!(text, "# RapidGNN here\n")?;
    setting(text, found)?;
    for link in [FAST, SLOW] {
        writeln!(text, "\n## {}\n", title(link))?;
        writeln!(
            text,
            "Speed-ups over `ondemand`, the paper's (Table 2, over DGL-METIS) in brackets; *at most*: that \
             of whoever does nothing in a step but compute, for pulls can be hidden and a schedule has \
             sampled before. A row with † is disturbed: everybody computes the same there, but `ondemand` \
             took over {:.0} % longer for it than another.\n",
            (MOST_UNLIKE - 1.0) * 100.0
        )?;
        writeln!(
            text,
            "| graph | batch | link, Mbit/s | pull / rest of the step | ondemand, ms a step | at most | rapid | with \
             the oracle | pulls of batches | MB a step: ondemand | rapid | of it missed by batches | oracle | \
             times less: rapid, all | missed | oracle |"
        )?;
        writeln!(text, "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")?;
        for (graph, group) in groups(found, link) {
            rapid_row(text, graph, group)?;
        }
        averages(text, found, link)?;
        writeln!(text, "\n![{link}]({link}.svg)")?;
    }
    writeln!(text, "\n## Bytes of a step (Fig. 4)\n\n![Fig. 4](fig4.svg)")?;
    memory(text, found)?;
    if found.has_figures {
        found.baselines.write(text)?;
        found.rapid_figures.write(text)?;
        found.machines.write(text, found.paper)?;
    }
    energy(text, found)
}

/// The paper measured three machines over 10 epochs of Products, batch 3000.
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
         | ondemand, J | rapid | times less | with the oracle | times less |\n|---|---|---|---|---|---|---|"
    )?;
    for (graph, group) in groups(found, SLOW) {
        let joules = [0, 1, 2].map(|run: usize| group.runs[run].energy_joules);
        let [Some(base), Some(rapid), Some(oracle)] = joules else {
            continue;
        };
        let (name, batch) = (graph.name, group.batch);
        writeln!(
            text,
            "| {name} | {batch} | {base:.1} | {rapid:.1} | {:.2} | {oracle:.1} | {:.2} |",
            base / rapid,
            base / oracle
        )?;
    }
    Ok(())
}

fn rapid_row(text: &mut String, graph: &GraphRuns, group: &Group) -> fmt::Result {
    let Some(paper) = published(graph, group) else { return Ok(()) };
    let [base, rapid, oracle] = &group.runs[..] else { return Ok(()) };
    let [all_mb, missed_mb] =
        [|run: &Run| run.remote_bytes / 1e6, |run: &Run| run.missed_bytes / 1e6];
    writeln!(
        text,
        "| {}{} | {} ({}) | {:.0} | {:.2} | {:.1} | {:.2} | {:.2} ({:.2}) | {:.2} | {} ({:.1}) | {:.3} ({:.1}) | \
         {:.3} | {:.3} ({:.1}) | {:.3} | {} | {} ({:.1}) | {} |",
        graph.name,
        if is_disturbed(group) { " †" } else { "" },
        group.batch,
        group.published_batch,
        group.rate_bits / 1e6,
        base.pull_seconds / base.rest_seconds(),
        base.step_seconds * 1e3,
        base.step_seconds / base.compute_seconds.max(1e-9),
        base.step_seconds / rapid.step_seconds,
        paper.step,
        base.step_seconds / oracle.step_seconds,
        times_less(base.pull_seconds, rapid.pull_seconds),
        paper.network,
        all_mb(base),
        paper.baseline_mb,
        all_mb(rapid),
        missed_mb(rapid),
        paper.rapid_mb,
        all_mb(oracle),
        times_less(all_mb(base), all_mb(rapid)),
        times_less(missed_mb(base), missed_mb(rapid)),
        paper.baseline_mb / paper.rapid_mb,
        times_less(all_mb(base), all_mb(oracle)),
    )
}

/// How many times less `of` is than `base`; next to nothing is not divided by.
fn times_less(base: f64, of: f64) -> String {
    if of * 1e3 < base { "nothing left".to_owned() } else { format!("{:.1}", base / of) }
}

/// Computing that differs by more than this is not that of the same surroundings.
const MOST_UNLIKE: f64 = 1.15;

/// Whether the baseline was slower at what all do alike, so that speed-ups would flatter.
fn is_disturbed(group: &Group) -> bool {
    let base = group.runs[0].compute_seconds;
    group.runs.iter().any(|run| base > run.compute_seconds * MOST_UNLIKE)
}

/// The middle one, or the mean of the middle two; none of none.
fn median(of: &[f64]) -> Option<f64> {
    let mut of = of.to_vec();
    of.sort_by(f64::total_cmp);
    let middle = of.len() / 2;
    match of.len() {
        0 => None,
        n if n % 2 == 1 => Some(of[middle]),
        _ => Some(of[middle - 1..=middle].iter().sum::<f64>() / 2.0),
    }
}

/// Means and medians of what was not disturbed. The paper's averages over DGL-METIS are 2.46 and 12.70.
fn averages(text: &mut String, found: &Reproduction, link: &str) -> fmt::Result {
    let all: Vec<&Group> = groups(found, link).map(|(_, group)| group).collect();
    let calm: Vec<&Group> = all.iter().copied().filter(|group| !is_disturbed(group)).collect();
    let speed_ups = |run: usize| -> Vec<f64> {
        calm.iter().map(|group| group.runs[0].step_seconds / group.runs[run].step_seconds).collect()
    };
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let (n_calm, n_all) = (calm.len(), all.len());
    let [rapid, oracle] = [1, 2].map(speed_ups);
    match (median(&rapid), median(&oracle)) {
        (Some(of_rapid), Some(of_oracle)) => writeln!(
            text,
            "\nOf {n_all} rows {n_calm} are not disturbed; the mean of their speed-ups is {:.2}, with the \
             oracle {:.2} (2.46 is the mean of the paper's nine), the median {of_rapid:.2} and \
             {of_oracle:.2}.",
            mean(&rapid),
            mean(&oracle),
        )?,
        _ => writeln!(text, "\nAll {n_all} rows are disturbed: their times say nothing.")?,
    }
    writeln!(
        text,
        "The paper counts what batches miss (Algorithm 1, line 16), and does not say whether its MB a step \
         have the hot sets too: both are here. Hot sets and what fills the oracle's tier are pulled between epochs and are in no pull's \
         time, nor is the set-up below. Every loss of every step, and the last parameters, are the same bit \
         for bit in all runs of a batch size (Fig. 9). One run each."
    )
}

fn memory(text: &mut String, found: &Reproduction) -> fmt::Result {
    writeln!(
        text,
        "\n## Memory of rows, and the first epoch\n\nOver slow links. `rapid` pulls its first hot set \
         before the first step, or what its first batches use into the oracle's tier: how long the link \
         takes for that stands beside it. A schedule is made once and used by all runs \
         with the same seed; `ondemand` has none, and samples in each step.\n\n| graph | batch | | held, MB | \
         bound, MB | schedule, s | pulled before the first step, s | by the link's rate, s | epoch \
         1, s | the others | whole run, s |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|---|---|---|---|")?;
    for (graph, group) in groups(found, SLOW) {
        for run in &group.runs {
            let warm_up = run.warm_up;
            writeln!(
                text,
                "| {} | {} | {} | {:.1} | {:.1} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
                graph.name,
                group.batch,
                run.contestant.label(),
                run.memory_bytes as f64 / 1e6,
                run.memory_bound_bytes as f64 / 1e6,
                run.schedule_seconds,
                warm_up.before_seconds,
                warm_up.filled_bytes * 8.0 / group.rate_bits,
                warm_up.first_seconds,
                warm_up.others_seconds,
                run.run_seconds,
            )?;
        }
    }
    Ok(())
}

fn published(graph: &GraphRuns, group: &Group) -> Option<Published> {
    let model = MODELS.iter().find(|model| model.name == graph.name)?;
    model.rapidgnn.into_iter().find(|published| published.batch == group.published_batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_one() {
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[9.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }
}
