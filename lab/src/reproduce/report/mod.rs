//! The report as Markdown: the paper's figures beside ours.

mod massive;
mod rapid;

use std::fmt::{self, Write};

use super::groups::{FAST, GraphRuns, Group};
use super::{Paper, Reproduction};

/// Writes the whole report.
pub(super) fn write(text: &mut String, found: &Reproduction) -> fmt::Result {
    match found.paper {
        Paper::Rapidgnn => rapid::write(text, found),
        Paper::Massivegnn => massive::write(text, found),
    }
}

/// Returns the machine, the graphs and the settings of all runs.
fn setting(text: &mut String, found: &Reproduction) -> fmt::Result {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    writeln!(
        text,
        "{} workers on {cores} cores, which they share with as many servers and the relays of the links; \
         {} epochs; {} of each cell{}; GraphSAGE of 2 layers, fan-out 25 and 10, {}. Each worker may keep \
         {:.0} % of {}: two hot sets of half of them, the oracle's tier, or MassiveGNN's buffer.\n",
        found.workers,
        found.epochs,
        if found.repeats == 1 { "one run".to_owned() } else { format!("{} runs", found.repeats) },
        if found.repeats == 1 { "" } else { ", in turns: medians, with the range" },
        match &found.recording {
            None => "computed on the processor".to_owned(),
            Some(of) => format!("**not computed: each step sleeps as recorded ({})**", of.source()),
        },
        found.keep * 100.0,
        match found.paper {
            Paper::Rapidgnn => "the rows that it does not own",
            Paper::Massivegnn => "the rows of its halo",
        },
    )?;
    if found.graphs.iter().any(|graph| graph.stands_for.is_some()) {
        writeln!(
            text,
            "Graphs that stand for a paper's are generated, with partitions by SPRING, refined. Their nodes \
             and roots of a batch are {} times the papers', but for OGBN-Papers, which has a tenth of the \
             nodes under the papers' batches. No node has more neighbours on average than a quarter of its \
             community has nodes, which bounds the degree of a small graph like Reddit.\n",
            found.scale
        )?;
    }
    writeln!(
        text,
        "| graph | for | nodes | edges | mean degree (full size) | bytes a row | edges cut | halo, of own \
         nodes | rows kept |\n|---|---|---|---|---|---|---|---|---|"
    )?;
    for graph in &found.graphs {
        let full_degree = graph.full_degree.map_or_else(String::new, |of| format!(" ({of:.1})"));
        writeln!(
            text,
            "| {} | {} | {} | {} | {:.1}{full_degree} | {} | {} | {:.2} | {} |",
            graph.name,
            graph.stands_for.unwrap_or("itself"),
            graph.nodes,
            graph.edges,
            2.0 * graph.edges as f64 / f64::from(graph.nodes.max(1)),
            graph.row_bytes,
            percent(graph.edge_cut),
            graph.halo_ratio,
            graph.kept_rows
        )?;
    }
    Ok(())
}

fn title(link: &str) -> &'static str {
    match link {
        FAST => "Links as asked for",
        _ => {
            "Links solved from RapidGNN's own speed-ups\n\nThe paper does not say how long its baseline \
             pulls, but Table 2 does: if a step is what is computed, C, and what is waited for, N, and \
             RapidGNN waits for N / k, k its network speed-up, its step speed-up is (C + N) / (C + N / k). \
             So N / C is 0.86 for Papers, 0.49 for Products and 4.11 for Reddit, and each link is as slow \
             as that asks for, beside all that a step of `ondemand` does here but for its pulls. **What \
             waits as the paper's RapidGNN does comes to its speed-ups by construction**; what hides all \
             pulls comes to 1.86, 1.49 and 5.11, 2.82 on average."
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

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
