//! The report as Markdown: the paper's figures beside ours.

use std::fmt::{self, Write};

use super::papers::{MODELS, Published};
use super::runs::{Contestant, Run};
use super::{FAST, GraphRuns, Group, Paper, Reproduction, SLOW};

/// The whole report.
pub(super) fn markdown(found: &Reproduction) -> String {
    let mut text = String::new();
    let written = match found.paper {
        Paper::Rapidgnn => rapidgnn(&mut text, found),
        Paper::Massivegnn => massivegnn(&mut text, found),
    };
    // Memory takes whatever is written to it.
    written.map_or_else(|error| error.to_string(), |()| text)
}

fn rapidgnn(text: &mut String, found: &Reproduction) -> fmt::Result {
    writeln!(text, "# RapidGNN here\n")?;
    setting(text, found)?;
    for link in [FAST, SLOW] {
        writeln!(text, "\n## {}\n", title(link))?;
        writeln!(
            text,
            "Speed-ups over `ondemand`, the paper's (Table 2, over DGL-METIS) in brackets. A row with † is \
             disturbed: a speed-up in it is above 1 + pull / rest of `ondemand`'s step, which but for the \
             sampling that a schedule saves nobody reaches in the same surroundings.\n"
        )?;
        writeln!(
            text,
            "| graph | batch | link, Mbit/s | pull / rest of the step | ondemand, ms a step | rapid | with \
             the oracle | pulls of batches | MB a step: ondemand | rapid | of it missed by batches | oracle | \
             times less: rapid, all | missed | oracle |"
        )?;
        writeln!(text, "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")?;
        for (graph, group) in groups(found, link) {
            rapid_row(text, graph, group)?;
        }
        medians(text, found, link)?;
        writeln!(text, "\n![{link}]({link}.svg)")?;
    }
    memory(text, found)?;
    if found.has_figures {
        found.rapid_figures.write(text)?;
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
         | ondemand, J | rapid | times less |\n|---|---|---|---|---|"
    )?;
    for (graph, group) in groups(found, SLOW) {
        let [Some(base), Some(rapid)] = [0, 1].map(|run: usize| group.runs[run].energy_joules)
        else {
            continue;
        };
        let (name, batch) = (graph.name, group.batch);
        writeln!(text, "| {name} | {batch} | {base:.1} | {rapid:.1} | {:.2} |", base / rapid)?;
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
        "| {}{} | {} ({}) | {:.0} | {:.2} | {:.1} | {:.2} ({:.2}) | {:.2} | {} ({:.1}) | {:.3} ({:.1}) | \
         {:.3} | {:.3} ({:.1}) | {:.3} | {} | {} ({:.1}) | {} |",
        graph.name,
        if is_disturbed(group) { " †" } else { "" },
        group.batch,
        group.published_batch,
        group.rate_bits / 1e6,
        base.pull_seconds / base.rest_seconds(),
        base.step_seconds * 1e3,
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

/// Whether a run of the group is faster than no pulls at all would make it.
fn is_disturbed(group: &Group) -> bool {
    let rest_seconds = group.runs[0].rest_seconds();
    group.runs.iter().any(|run| run.step_seconds < rest_seconds)
}

/// The middle one, or the mean of the middle two; none of none.
fn median(mut of: Vec<f64>) -> Option<f64> {
    of.sort_by(f64::total_cmp);
    let middle = of.len() / 2;
    match of.len() {
        0 => None,
        n if n % 2 == 1 => Some(of[middle]),
        _ => Some(of[middle - 1..=middle].iter().sum::<f64>() / 2.0),
    }
}

/// Medians of what was not disturbed. The paper's averages over DGL-METIS are 2.46 and 12.70.
fn medians(text: &mut String, found: &Reproduction, link: &str) -> fmt::Result {
    let all: Vec<&Group> = groups(found, link).map(|(_, group)| group).collect();
    let calm: Vec<&Group> = all.iter().copied().filter(|group| !is_disturbed(group)).collect();
    let speed_up = |run: usize| {
        let of = |group: &&Group| group.runs[0].step_seconds / group.runs[run].step_seconds;
        median(calm.iter().map(of).collect())
    };
    let (n_calm, n_all) = (calm.len(), all.len());
    match (speed_up(1), speed_up(2)) {
        (Some(rapid), Some(oracle)) => writeln!(
            text,
            "\nOf {n_all} rows {n_calm} are not disturbed; the median of their speed-ups is {rapid:.2}, with \
             the oracle {oracle:.2} (2.46 is the mean of all of the paper's)."
        )?,
        _ => writeln!(text, "\nAll {n_all} rows are disturbed: their times say nothing.")?,
    }
    writeln!(
        text,
        "The paper counts what batches miss (Algorithm 1, line 16), and does not say whether its MB a step \
         have the hot sets too: both are here. Hot sets are pulled between epochs and are in no pull's \
         time, nor is the set-up below. Every loss of every step, and the last parameters, are the same bit \
         for bit in all runs of a batch size (Fig. 9). One run each."
    )
}

fn memory(text: &mut String, found: &Reproduction) -> fmt::Result {
    writeln!(
        text,
        "\n## Memory of rows, and the first epoch\n\nOver slow links. Under `rapid` the first hot set is \
         pulled before the first step; the oracle has none, and what fills it comes in the first epoch: \
         how long the link takes for that stands beside it.\n\n| graph | batch | | held, MB | bound, MB | \
         before the first step, s | epoch 1, s | the others | filling by the link's rate, s |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|---|---|")?;
    for (graph, group) in groups(found, SLOW) {
        for run in &group.runs {
            if !matches!(run.contestant, Contestant::Rapid | Contestant::RapidOracle) {
                continue;
            }
            let warm_up = run.warm_up;
            writeln!(
                text,
                "| {} | {} | {} | {:.1} | {:.1} | {:.2} | {:.2} | {:.2} | {:.2} |",
                graph.name,
                group.batch,
                run.contestant.label(),
                run.memory_bytes as f64 / 1e6,
                run.memory_bound_bytes as f64 / 1e6,
                warm_up.before_seconds,
                warm_up.first_seconds,
                warm_up.others_seconds,
                warm_up.filled_bytes.max(0.0) * 8.0 / group.rate_bits,
            )?;
        }
    }
    Ok(())
}

fn massivegnn(text: &mut String, found: &Reproduction) -> fmt::Result {
    writeln!(text, "# MassiveGNN here\n")?;
    setting(text, found)?;
    writeln!(
        text,
        "\nThe paper's (Fig. 6): 15 to 40 % less time than DistDGL; 23 % fewer remote rows on papers, 15 % \
         on products (Fig. 11); an overlap efficiency of 100 % on processors, 60 to 70 % on GPUs (Fig. 9)."
    )?;
    for link in [FAST, SLOW] {
        writeln!(text, "\n## {}\n", title(link))?;
        writeln!(
            text,
            "Times of steps leave out what is pulled before the first one (a buffer's first fill, the first \
             hot set) and between epochs; the whole run, set-up included, has all of it.\n\n| graph | batch \
             | pull / rest of the step | contestant | ms a step | less time | whole run, s | hit rate | fewer \
             remote bytes: all | without first fills and hot sets | rows held, MB | overlap |"
        )?;
        writeln!(text, "|---|---|---|---|---|---|---|---|---|---|---|---|")?;
        for (graph, group) in groups(found, link) {
            for run in &group.runs {
                massive_row(text, graph, group, run)?;
            }
        }
        writeln!(text, "\n![{link}]({link}.svg)")?;
    }
    if found.has_figures {
        found.massive_figures.write(text)?;
    }
    Ok(())
}

fn massive_row(text: &mut String, graph: &GraphRuns, group: &Group, run: &Run) -> fmt::Result {
    let base = &group.runs[0];
    let overlap = run.overlap_efficiency.map_or_else(String::new, percent);
    let held_mb = format!("{:.1}", run.memory_bytes as f64 / 1e6);
    writeln!(
        text,
        "| {} | {} | {:.2} | {} | {:.1} | {} | {:.2} | {} | {} | {} | {} | {overlap} |",
        graph.name,
        group.batch,
        base.pull_seconds / base.rest_seconds(),
        run.contestant.label(),
        run.step_seconds * 1e3,
        percent(1.0 - run.step_seconds / base.step_seconds),
        run.run_seconds,
        percent(run.hit_rate),
        percent(1.0 - run.remote_bytes / base.remote_bytes),
        percent(1.0 - run.missed_bytes / base.remote_bytes),
        held_mb,
    )
}

/// What was run on what.
fn setting(text: &mut String, found: &Reproduction) -> fmt::Result {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    writeln!(
        text,
        "{} workers on {cores} cores, which they share with as many servers and the relays of the links; \
         {} epochs; GraphSAGE of 2 layers, fan-out 25 and 10, computed on the processor. Partitions by \
         SPRING, refined. Each worker may keep {:.0} % of {}: two hot sets of half of them, the oracle's tier, or MassiveGNN's buffer. Nodes and roots of a batch are {} times the \
         papers', but for OGBN-Papers, whose batches shrink so and whose nodes ten times more: a batch is \
         there ten times as large a part of the graph as in the paper. No node has more neighbours on \
         average than a quarter of its community has nodes, which bounds the degree of a small graph like \
         Reddit. The links' speeds of the slow links follow RapidGNN's Table 2.\n",
        found.workers,
        found.epochs,
        found.keep * 100.0,
        match found.paper {
            Paper::Rapidgnn => "the rows that it does not own",
            Paper::Massivegnn => "the rows of its halo",
        },
        found.scale
    )?;
    writeln!(
        text,
        "| graph | for | nodes | edges | mean degree (full size) | bytes a row | edges cut | halo, of own nodes | rows kept |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|---|---|")?;
    for graph in &found.graphs {
        writeln!(
            text,
            "| {} | {} | {} | {} | {:.1} ({:.1}) | {} | {:.1} % | {:.2} | {} |",
            graph.name,
            graph.stands_for,
            graph.nodes,
            graph.edges,
            2.0 * graph.edges as f64 / f64::from(graph.nodes.max(1)),
            graph.full_degree,
            graph.row_bytes,
            graph.edge_cut * 100.0,
            graph.halo_ratio,
            graph.kept_rows
        )?;
    }
    Ok(())
}

fn title(link: &str) -> &'static str {
    match link {
        FAST => "The link as asked for",
        _ => {
            "Slow links\n\nThe paper does not say how long its baseline pulls, but Table 2 does: if a step is \
             what is computed, C, and what is waited for, N, and RapidGNN waits for N / k, k its network \
             speed-up, its step speed-up is (C + N) / (C + N / k). So N / C is 0.86 for Papers, 0.49 for \
             Products and 4.11 for Reddit, and here each link is as slow as that asks for, beside all that a \
             step of `ondemand` does on this machine but for its pulls. Who waits as the paper's RapidGNN \
             does comes to its speed-ups; who hides all pulls to 1.86, 1.49 and 5.11, 2.82 on average."
        }
    }
}

fn groups<'a>(
    found: &'a Reproduction,
    link: &str,
) -> impl Iterator<Item = (&'a GraphRuns, &'a Group)> {
    let link = link.to_owned();
    let all = found.graphs.iter().flat_map(|graph| graph.groups.iter().map(move |g| (graph, g)));
    all.filter(move |(_, group)| group.link == link)
}

fn published(graph: &GraphRuns, group: &Group) -> Option<Published> {
    let model = MODELS.iter().find(|model| model.name == graph.name)?;
    model.rapidgnn.into_iter().find(|published| published.batch == group.published_batch)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_one() {
        assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![9.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
    }
}
