//! The report as Markdown.

use std::fmt::{self, Write};

use super::cells::{Cell, GraphCells, ModelShape};
use super::predictions::outcomes;
use super::rows::HopWay;
use super::timing::{TimedLink, TimedRun};
use super::{HopFigures, accuracy};
use lode_cli::human;

/// Ways of the table of rows, in its order.
const WAYS: [HopWay; 5] =
    [HopWay::ModelCentric, HopWay::Micrographs, HopWay::Pregathered, HopWay::Owned, HopWay::Home];

/// Writes the whole report.
pub(super) fn write(text: &mut String, found: &HopFigures) -> fmt::Result {
    writeln!(text, "# HopGNN\n")?;
    writeln!(
        text,
        "Sampled and counted, not trained: seed {}, {} roots a model and iteration unless stated, \
         parameters of {} with hidden rows of {}. All figures are of an iteration of all servers. **Bold**: \
         more than model-centric.\n",
        found.seed, found.batch, found.model.kind, found.model.hidden
    )?;
    for graph in &found.graphs {
        writeln!(
            text,
            "## {}\n\n{} nodes, {} in-edges, {} training nodes, rows of {}.\n",
            graph.name,
            human::count(graph.nodes.into()),
            human::count(graph.edges),
            human::count(graph.training_nodes as u64),
            human::bytes(graph.row_bytes)
        )?;
        write_predictions(text, graph, found.model)?;
        write_rows(text, graph)?;
        write_bytes(text, graph)?;
        write_locality(text, graph)?;
        write_merging(text, graph)?;
        write_batches(text, graph)?;
        write_times(text, found, graph)?;
        accuracy::write(text, &graph.learnt)?;
    }
    write!(
        text,
        "Charts: ![miss rates](fig14.svg) ![rows](rows.svg) ![pre-gathering](fig16.svg) \
         ![merging](fig18.svg) ![batches](fig22.svg) ![servers](fig23.svg)"
    )?;
    if found.is_timed() {
        write!(text, " ![times](fig13.svg) ![gathering](fig15.svg) ![merging's times](fig17.svg)")?;
    }
    writeln!(text)
}

/// Writes H5: Figs. 13, 15 and 17.
fn write_times(text: &mut String, found: &HopFigures, graph: &GraphCells) -> fmt::Result {
    let Some(first) = graph.timed.first() else { return Ok(()) };
    let n_workers = graph.own_parts;
    writeln!(
        text,
        "### Times over links: the graph's own {n_workers} partitions, {}\n\n\
         A server and a worker for each partition, as machines with a link each, that rows, models and \
         gradients share; {}. An iteration of the epochs after the first that have as many time steps as the \
         last; {} of each cell, in turns: median and range. The parts are of a mean iteration of all epochs \
         and a mean worker; rows may be on their way while it does something else. **Bold**: slower than \
         model-centric.\n",
        first.batch_name(),
        match &found.recording {
            None => "computed on the processor, whose cores all share".to_owned(),
            Some(of) => format!("**not computed: batches sleep as recorded ({})**", of.source()),
        },
        human::counted(found.repeats.into(), "run"),
    )?;
    writeln!(
        text,
        "| link | way | time steps | ms an iteration | times as fast as model-centric | rows on their way | \
         models, gradients, update | computing | waiting for others |\n|---|---|---|---|---|---|---|---|---|"
    )?;
    for link in &graph.timed {
        let centric = link.run(HopWay::ModelCentric).map_or(0.0, |run| run.iteration_seconds);
        for run in &link.runs {
            let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
            let [least, most] = run.range.map(ms);
            let figure = format!("{} ({least} to {most})", ms(run.iteration_seconds));
            let parts = [run.gather_seconds, run.move_seconds, run.compute_seconds];
            writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} |",
                link.name(),
                run.way.label(),
                run.epochs.last().map_or(1, |epoch| epoch.time_steps),
                marked(&figure, run.iteration_seconds > centric),
                ratio(centric, run.iteration_seconds),
                parts.map(ms).join(" | "),
                ms(run.others_seconds)
            )?;
        }
    }
    writeln!(text, "\nEach epoch of the median run (Fig. 17): ms an iteration (time steps).\n")?;
    graph.timed.iter().try_for_each(|link| write_epochs(text, link))?;
    writeln!(text)
}

fn write_epochs(text: &mut String, link: &TimedLink) -> fmt::Result {
    let ways = [HopWay::Pregathered, HopWay::MergedMin, HopWay::MergedRandom, HopWay::Home];
    for run in ways.iter().filter_map(|&way| link.run(way)) {
        let TimedRun { way, epochs, .. } = run;
        let epochs: Vec<String> = epochs
            .iter()
            .map(|epoch| format!("{:.1} ({})", epoch.iteration_seconds * 1e3, epoch.time_steps))
            .collect();
        writeln!(text, "- {}, {}: {}", link.name(), way.label(), epochs.join(", "))?;
    }
    Ok(())
}

fn write_predictions(text: &mut String, graph: &GraphCells, model: ModelShape) -> fmt::Result {
    let outcomes = outcomes(graph, model);
    if outcomes.is_empty() {
        return Ok(());
    }
    writeln!(text, "### Predicted by a simulation with METIS, and found\n")?;
    writeln!(text, "| claim | setting | figure | predicted | found |\n|---|---|---|---|---|")?;
    for it in outcomes {
        let (predicted, found) = (number(it.predicted), number(it.found));
        let (claim, setting, figure) = (it.claim, it.setting, it.figure);
        writeln!(text, "| {claim} | {setting} | {figure} | {predicted} | {found} |")?;
    }
    writeln!(text)
}

/// Writes H2 and H3: Figs. 14 and 16.
fn write_rows(text: &mut String, graph: &GraphCells) -> fmt::Result {
    writeln!(text, "### Rows from other servers (miss rate)\n")?;
    write!(text, "| partitioner | servers | layers x fan-out |")?;
    WAYS.iter().try_for_each(|way| write!(text, " {} |", way.label()))?;
    writeln!(text, " +MG / +PG | requests +MG, +PG |\n|---|---|---|---|---|---|---|---|---|---|")?;
    for cell in &graph.cells {
        write!(text, "| {} | {} | {} |", cell.partitioner, cell.servers, cell.fanout_name())?;
        let most = cell.way(HopWay::ModelCentric).remote_rows;
        for way in WAYS.map(|way| cell.way(way)) {
            let figure = format!("{} ({})", number(way.remote_rows), share(way.miss_rate));
            write!(text, " {} |", marked(&figure, way.remote_rows > most))?;
        }
        let [apart, together] = [HopWay::Micrographs, HopWay::Pregathered].map(|way| cell.way(way));
        writeln!(
            text,
            " {} | {}, {} |",
            ratio(apart.remote_rows, together.remote_rows),
            number(apart.requests),
            number(together.requests)
        )?;
    }
    writeln!(text)
}

/// Writes H7: Fig. 5.
fn write_bytes(text: &mut String, graph: &GraphCells) -> fmt::Result {
    writeln!(text, "### Bytes: rows + models + gradients\n")?;
    writeln!(
        text,
        "| partitioner | servers | layers x fan-out | a model | model-centric | paper | none | models, of \
         the paper's | model-centric / none |\n|---|---|---|---|---|---|---|---|---|"
    )?;
    for cell in &graph.cells {
        let ways =
            [HopWay::ModelCentric, HopWay::Pregathered, HopWay::Home].map(|way| cell.way(way));
        let [centric, paper, home] = ways;
        write!(
            text,
            "| {} | {} | {} | {} |",
            cell.partitioner,
            cell.servers,
            cell.fanout_name(),
            human::bytes(4 * cell.parameters)
        )?;
        for way in ways {
            let figure = human::bytes_f64(way.bytes());
            write!(text, " {} |", marked(&figure, way.bytes() > centric.bytes()))?;
        }
        let moved = paper.model_bytes as f64 / paper.bytes().max(1.0);
        writeln!(text, " {} | {} |", share(moved), ratio(centric.bytes(), home.bytes()))?;
    }
    writeln!(text)
}

/// Writes H1 and H6: Table 1 and the balance of section 5.1.
fn write_locality(text: &mut String, graph: &GraphCells) -> fmt::Result {
    writeln!(text, "### Locality (Table 1) and roots of servers\n")?;
    writeln!(
        text,
        "| partitioner | servers | layers x fan-out | edges cut | R_micro | R_sub | iterations with roots \
         within 10 % | most roots over mean | largest difference |\n|---|---|---|---|---|---|---|---|---|"
    )?;
    for cell in &graph.cells {
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {:.2} | {} |",
            cell.partitioner,
            cell.servers,
            cell.fanout_name(),
            share(cell.edge_cut),
            share(cell.r_micro),
            share(cell.r_sub),
            share(cell.balance.even),
            cell.balance.imbalance + 1.0,
            share(cell.balance.worst)
        )?;
    }
    writeln!(text)
}

/// Writes Figs. 17 and 18, in rows: what fewer time steps cost.
fn write_merging(text: &mut String, graph: &GraphCells) -> fmt::Result {
    let merged = |cell: &&Cell| cell.servers > 1;
    if !graph.cells.iter().any(|cell| merged(&cell)) {
        return Ok(());
    }
    writeln!(text, "### Merging: rows, and all bytes, by time steps left (min; random)\n")?;
    writeln!(text, "| partitioner | servers | layers x fan-out | model-centric | time steps |")?;
    writeln!(text, "|---|---|---|---|---|")?;
    for cell in graph.cells.iter().filter(merged) {
        let centric = cell.way(HopWay::ModelCentric);
        write!(
            text,
            "| {} | {} | {} | {}, {} |",
            cell.partitioner,
            cell.servers,
            cell.fanout_name(),
            number(centric.remote_rows),
            human::bytes_f64(centric.bytes())
        )?;
        let of = |way: HopWay| cell.ways.iter().filter(move |it| it.way == way);
        for (min, random) in of(HopWay::MergedMin).zip(of(HopWay::MergedRandom)) {
            let figure = format!("{}, {}", number(min.remote_rows), human::bytes_f64(min.bytes()));
            write!(text, " **{}**: {}; {}.", min.time_steps, figure, number(random.remote_rows))?;
        }
        writeln!(text, " |")?;
    }
    writeln!(text)
}

/// Writes H8: Fig. 22.
fn write_batches(text: &mut String, graph: &GraphCells) -> fmt::Result {
    let Some(first) = graph.batches.first() else { return Ok(()) };
    writeln!(
        text,
        "### By batch: {}, {} servers, {}\n",
        first.partitioner,
        first.servers,
        first.fanout_name()
    )?;
    writeln!(
        text,
        "| roots a model | model-centric | +MG | +PG, none | rows, model-centric / none | bytes, \
         model-centric / none |\n|---|---|---|---|---|---|"
    )?;
    for cell in &graph.batches {
        let ways =
            [HopWay::ModelCentric, HopWay::Micrographs, HopWay::Home].map(|way| cell.way(way));
        let [centric, apart, home] = ways;
        let rows = [centric, apart, home].map(|way| number(way.remote_rows)).join(" | ");
        writeln!(
            text,
            "| {} | {rows} | {} | {} |",
            cell.batch,
            ratio(centric.remote_rows, home.remote_rows),
            ratio(centric.bytes(), home.bytes())
        )?;
    }
    writeln!(text)
}

fn marked(figure: &str, is_marked: bool) -> String {
    if is_marked { format!("**{figure}**") } else { figure.to_owned() }
}

fn share(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Returns how many times one is the other, or a dash.
fn ratio(a: f64, b: f64) -> String {
    if b > 0.0 { format!("{:.2}", a / b) } else { "-".to_owned() }
}

fn number(x: f64) -> String {
    if x >= 100.0 { human::count(x.round() as u64) } else { format!("{x:.2}") }
}
