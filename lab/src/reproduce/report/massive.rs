//! MassiveGNN's tables.

use std::fmt::{self, Write};

use super::super::Reproduction;
use super::super::groups::{FAST, GraphRuns, Group, SLOW};
use super::super::runs::Run;
use super::{groups, percent, setting, title};

pub(super) fn write(text: &mut String, found: &Reproduction) -> fmt::Result {
    writeln!(text, "# MassiveGNN here\n")?;
    setting(text, found)?;
    writeln!(
        text,
        "\nThe paper's (Fig. 6): 15 to 40 % less time than DistDGL; 23 % fewer remote rows on papers, 15 % \
         on products (Fig. 11); an overlap efficiency of 100 % on processors, 60 to 70 % on GPUs (Fig. 9)."
    )?;
    for link in [FAST, SLOW].into_iter().filter(|link| found.has_links(link)) {
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
    writeln!(
        text,
        "\n## Preparation beside training (Fig. 9), and remote rows (Fig. 11)\n\nOver {}. A step of \
         `ondemand` is both bars of Fig. 9, one after the other; a trainer that prepares ahead takes as long as the \
         higher one, where they overlap wholly.\n\n![Fig. 9](fig9.svg)\n\n![Fig. 11](fig11.svg)",
        match found.figure_link() {
            SLOW => "the slow links",
            _ => "the links that were asked for",
        }
    )?;
    if found.has_figures {
        found.massive_figures.write(text)?;
        found.machines.write(text, found.paper)?;
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
