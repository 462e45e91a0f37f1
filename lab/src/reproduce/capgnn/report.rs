//! The report as Markdown.

use std::fmt::{self, Write};

use super::learning::CapLearning;
use super::ways::CapWay;
use super::{CapFigures, CapGraphFigures};
use crate::link_emulation::throttle::Means;
use lode_cli::human;

/// Predictions of a simulation for METIS's partitions, three layers of 256: MB of an exact epoch,
/// by graph and partitions.
const PREDICTED: [(&str, u16, f64); 6] = [
    ("physics", 2, 16.4),
    ("physics", 3, 33.7),
    ("physics", 4, 41.0),
    ("physics", 5, 55.1),
    ("physics", 8, 71.6),
    ("tolokers", 4, 39.9),
];

/// First epochs, in which rounding has not grown into another course of the run.
const EARLY: usize = 10;

/// Writes the whole report.
pub(super) fn write(text: &mut String, found: &CapFigures) -> fmt::Result {
    writeln!(text, "# CaPGNN\n")?;
    for graph in &found.graphs {
        writeln!(
            text,
            "## {}\n\n{} nodes, {} in-edges, rows of {}; {}, {} layers, hidden rows of {}.\n",
            graph.name,
            human::count(graph.nodes.into()),
            human::count(graph.edges),
            human::bytes(graph.row_bytes),
            found.model,
            found.layers,
            found.hidden
        )?;
        write_halos(text, graph)?;
        write_moved(text, graph)?;
        write_cached(text, graph, found)?;
        write_learnt(text, graph, found)?;
        write_links(text, graph)?;
        write_throttled(text, graph, found)?;
    }
    write!(text, "Charts:")?;
    if found.has_halos() {
        write!(text, " ![fig4](fig4.svg) ![bytes](bytes.svg)")?;
    }
    for graph in found.graphs.iter().filter(|graph| !graph.learnt.is_empty()) {
        write!(text, " ![fig22](fig22-{}.svg)", graph.name)?;
    }
    writeln!(text)
}

/// Writes Figs. 4 and 6.
fn write_halos(text: &mut String, graph: &CapGraphFigures) -> fmt::Result {
    if graph.halos.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "### Halos (C6, Figs. 4, 6)\n\n*Halo*: nodes in halos over all nodes. *Shared*: of the nodes in \
         halos, those in several. *Overlap*: halos that such a node is in, mean.\n\n\
         | partitions by | parts | hops | halo | shared | overlap |\n|---|---|---|---|---|---|"
    )?;
    for of in &graph.halos {
        writeln!(
            text,
            "| {} | {} | {} | {:.2} | {} | {:.2} |",
            of.partitioner,
            of.parts,
            of.hops,
            of.per_node,
            human::percent(of.shared),
            of.overlap
        )?;
    }
    writeln!(text)
}

/// Writes claims C1 and C8.
fn write_moved(text: &mut String, graph: &CapGraphFigures) -> fmt::Result {
    if graph.moved.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "### Bytes of an epoch (C1, C8)\n\n*Resent* and *kept* are counted by widths: all that halos need each \
         epoch, and that without inputs, which never change. *Exact* was sent. In brackets the simulation's of \
         METIS's partitions.\n\n| parts | halo rows | resent | inputs kept | exact | of resent | inputs, once \
         |\n|---|---|---|---|---|---|---|"
    )?;
    for of in &graph.moved {
        let is_this =
            |(name, parts, _): &&(&str, u16, f64)| graph.name.contains(name) && *parts == of.parts;
        let predicted = PREDICTED.iter().find(is_this).map(|(.., mb)| format!(" ({mb} MB)"));
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            of.parts,
            human::count(of.halo_rows),
            human::bytes(of.resent_bytes),
            human::bytes(of.kept_bytes),
            human::bytes(of.exact_bytes) + &predicted.unwrap_or_default(),
            human::percent(of.exact_bytes as f64 / of.resent_bytes.max(1) as f64),
            human::bytes(of.input_bytes)
        )?;
    }
    writeln!(text)
}

/// Writes claims C4 and C5.
fn write_cached(text: &mut String, graph: &CapGraphFigures, found: &CapFigures) -> fmt::Result {
    if graph.cached.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "### A tier of halos' features (C4, C5, Figs. 14 to 19)\n\n{} partitions, one host tier for all workers; \
         capacity is of the {} nodes in halos. *Hits* are of the last epoch, of all rows that halos need; losses are those of \
         kept features, bit for bit.\n\n| policy | capacity | hits | pulled an epoch | epoch \
         |\n|---|---|---|---|---|",
        found.trained_parts,
        human::count(graph.cached.iter().map(|of| of.rows.into()).max().unwrap_or(0))
    )?;
    for of in &graph.cached {
        writeln!(
            text,
            "| {} | {} % | {} | {} | {} |",
            of.policy.unwrap_or("kept"),
            of.percent,
            human::percent(of.hit_rate),
            human::bytes(of.input_bytes),
            human::seconds(of.seconds)
        )?;
    }
    writeln!(text)
}

/// Writes claims C2, C3 and C7.
fn write_learnt(text: &mut String, graph: &CapGraphFigures, found: &CapFigures) -> fmt::Result {
    let mut splits: Vec<_> = graph.learnt.iter().map(|learnt| learnt.splits).collect();
    splits.dedup();
    for splits in splits {
        let name = format!("{splits:?}").to_lowercase();
        writeln!(
            text,
            "### What is learnt, split: {name} (C2, C3, C7, Tables 7, 8, Fig. 22)\n\n{} partitions, {} epochs; {} \
             seeds, mean and range; test nodes, measured by {}. *Gap*: points under one partition. *Losses*: the \
             largest relative difference from one partition's, of any seed: in the first {EARLY} epochs, in all.\n\n| way | at the end | gap \
             | losses | sent an epoch | oldest row | edges kept | error of narrowing \
             |\n|---|---|---|---|---|---|---|---|",
            found.trained_parts, found.epochs, found.seeds, found.metric
        )?;
        let of_split = || graph.learnt.iter().filter(|learnt| learnt.splits == splits);
        let whole = of_split().find(|learnt| learnt.way == CapWay::Whole);
        of_split().try_for_each(|learnt| write_way(text, learnt, whole))?;
        writeln!(text)?;
    }
    Ok(())
}

fn write_way(text: &mut String, learnt: &CapLearning, whole: Option<&CapLearning>) -> fmt::Result {
    let last = learnt.last();
    let gap = whole.map(|whole| format!("{:.2}", 100.0 * (whole.last().mean - last.mean)));
    let losses = whole.map(|whole| {
        let [early, all] = [EARLY, usize::MAX].map(|n| learnt.loss_difference(whole, n));
        format!("{early:.1e}, {all:.1e}")
    });
    let error = learnt.compression_error.filter(|error| *error > 0.0);
    writeln!(
        text,
        "| {} | {} | {} | {} | {} | {} | {} | {} |",
        learnt.way.label(),
        last.text(4),
        gap.unwrap_or_default(),
        losses.unwrap_or_default(),
        human::bytes_f64(learnt.halo_bytes),
        learnt.max_staleness,
        learnt.kept_share.map(human::percent).unwrap_or_default(),
        error.map(|error| format!("{error:.1e}")).unwrap_or_default()
    )
}

/// Writes tables 7 and 8 by seconds.
fn write_links(text: &mut String, graph: &CapGraphFigures) -> fmt::Result {
    if graph.links.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "### An epoch over links (Tables 7, 8)\n\nA server and a worker for each partition as imported; means of \
         the epochs after the first. Named are the rows of the paper's Table 8: *Vanilla* pulls features again in \
         each epoch; all of these ways use rows of the present epoch only.\n\n| link | way | Table 8 | epoch | exchange \
         | waited | sent | slowest worker over the mean |\n|---|---|---|---|---|---|---|---|"
    )?;
    for link in &graph.links {
        let (rate, delay) =
            (link.spec.rate_bits / 1e6, human::seconds(link.spec.delay.as_secs_f64()));
        for run in &link.runs {
            writeln!(
                text,
                "| {rate} Mbit/s, {delay} | {} | {} | {} | {} | {} | {} | {} |",
                run.way.label(),
                run.way.ablation(),
                human::seconds(run.seconds),
                human::seconds(run.exchange_seconds),
                human::seconds(run.wait_seconds),
                human::bytes_f64(run.halo_bytes),
                human::percent(run.imbalance)
            )?;
        }
    }
    writeln!(text)
}

/// Writes claim C7, with a device that is slow.
fn write_throttled(text: &mut String, graph: &CapGraphFigures, found: &CapFigures) -> fmt::Result {
    let Some(of) = &graph.throttled else { return Ok(()) };
    let by = match of.means {
        Means::Quota(_) => "a quota of a control group",
        Means::Pauses => "signals that stop it, as no control group may be made here",
    };
    writeln!(
        text,
        "### A slow worker (C7, Figs. 20, 21)\n\n{} processes, {} epochs, the graph's own split, one seed. The first \
         worker is held to half a processor by {by}; its profile says so. *Slowest*: computing time of the slowest \
         worker over the mean of all.\n\n| way | throttled | epoch | slowest | edges kept | {} \
         |\n|---|---|---|---|---|---|",
        of.workers, found.epochs, found.metric
    )?;
    for run in &of.runs {
        writeln!(
            text,
            "| {} | {} | {} | {:.2} | {} | {} |",
            run.way.label(),
            if run.is_throttled { "yes" } else { "no" },
            human::seconds(run.seconds),
            run.slowest_over_mean,
            human::percent(run.kept_share),
            run.test_accuracy.map(|accuracy| format!("{accuracy:.4}")).unwrap_or_default()
        )?;
    }
    writeln!(text)
}
