//! The paper's figures, of all graphs, as SVG.

use anyhow::Result;

use super::HopFigures;
use super::cells::{Cell, GraphCells};
use super::rows::HopWay;
use super::timing::TimedRun;
use crate::reproduce::bars::{Bar, BarGroup, Bars};
use crate::reproduce::curves::{Curve, Curves};

/// Ways of the charts of times.
const TIMED: [HopWay; 5] = [
    HopWay::ModelCentric,
    HopWay::Micrographs,
    HopWay::Pregathered,
    HopWay::MergedMin,
    HopWay::Home,
];
const LEGEND: [HopWay; 4] =
    [HopWay::ModelCentric, HopWay::Micrographs, HopWay::Pregathered, HopWay::Owned];

/// Returns all charts, by the names of their files.
pub(super) fn charts(found: &HopFigures) -> Result<Vec<(String, String)>> {
    let graphs = &found.graphs[..];
    let all = [
        ("fig14", miss_rates(graphs).svg()?),
        ("rows", rows(graphs).svg()?),
        ("fig16", pregathering(graphs).svg()?),
        ("fig18", merging(graphs).svg()?),
        ("fig22", by_batch(graphs).svg()?),
        ("fig23", by_servers(graphs).svg()?),
    ];
    let mut all = all.to_vec();
    if found.is_timed() {
        all.push(("fig13", times(graphs).svg()?));
        all.push(("fig15", gathering(graphs).svg()?));
        all.push(("fig17", epochs(graphs).svg()?));
    }
    Ok(all.into_iter().map(|(name, svg)| (format!("{name}.svg"), svg)).collect())
}

/// Returns bars of each graph and link, one for each way, of model-centric's time of an iteration.
fn of_links(graphs: &[GraphCells], title: &str, seconds: impl Fn(&TimedRun) -> f64) -> Bars {
    let mut groups = Vec::new();
    for graph in graphs {
        for link in &graph.timed {
            let most = link.run(HopWay::ModelCentric).map_or(1.0, |run| seconds(run).max(1e-9));
            let bar = |(colour, run)| Bar { colour, parts: vec![seconds(run) / most] };
            let runs = TIMED.iter().enumerate();
            let runs = runs.filter_map(|(colour, &way)| Some((colour, link.run(way)?)));
            let name: String = graph.name.chars().take(8).collect();
            let name = format!("{name} {}", link.name());
            groups.push(BarGroup { name, bars: runs.map(bar).collect() });
        }
    }
    let legend = TIMED.map(HopWay::label).to_vec();
    Bars { title: title.to_owned(), legend, groups }
}

fn times(graphs: &[GraphCells]) -> Bars {
    let title = "Fig. 13: time of an iteration, of model-centric's";
    of_links(graphs, title, |run| run.iteration_seconds)
}

fn gathering(graphs: &[GraphCells]) -> Bars {
    let title = "Fig. 15: time of rows on their way, of model-centric's";
    of_links(graphs, title, |run| run.gather_seconds)
}

/// Returns Fig. 17: the time of an iteration in each epoch over the last link.
fn epochs(graphs: &[GraphCells]) -> Curves<'static> {
    let mut curves = Vec::new();
    for graph in graphs {
        let Some(link) = graph.timed.last() else { continue };
        let ways = [HopWay::Pregathered, HopWay::MergedMin, HopWay::MergedRandom, HopWay::Home];
        for run in ways.iter().filter_map(|&way| link.run(way)) {
            let times = (1..).zip(&run.epochs);
            let points = times.map(|(at, epoch)| (f64::from(at), epoch.iteration_seconds * 1e3));
            let label = format!("{} {}", graph.name, run.way.label());
            curves.push(Curve { label, points: points.collect() });
        }
    }
    let title = "Fig. 17: time of an iteration by epoch, over the last link";
    Curves { title, x: "epoch", y: "ms", is_log: false, curves }
}

/// Returns the cells of figures that show one number of servers.
fn middle(graph: &GraphCells) -> impl Iterator<Item = &Cell> {
    let like = graph.batches.first();
    graph.cells.iter().filter(move |cell| {
        like.is_some_and(|like| {
            (&like.partitioner, like.servers) == (&cell.partitioner, cell.servers)
        })
    })
}

/// Returns bars of the first fan-outs of each graph, one for each way.
fn of_ways(graphs: &[GraphCells], title: &str, bar: impl Fn(&Cell, HopWay) -> f64) -> Bars {
    let group = |graph: &GraphCells| {
        let cell = middle(graph).next();
        let bars = LEGEND.iter().enumerate().filter_map(|(colour, &way)| {
            cell.map(|cell| Bar { colour, parts: vec![bar(cell, way)] })
        });
        BarGroup { name: graph.name.clone(), bars: bars.collect() }
    };
    Bars {
        title: title.to_owned(),
        legend: LEGEND.map(HopWay::label).to_vec(),
        groups: graphs.iter().map(group).collect(),
    }
}

fn miss_rates(graphs: &[GraphCells]) -> Bars {
    let title = "Fig. 14: rows of other servers, of all that are gathered (%)";
    of_ways(graphs, title, |cell, way| cell.way(way).miss_rate * 100.0)
}

fn rows(graphs: &[GraphCells]) -> Bars {
    let title = "Rows of other servers in an iteration, of model-centric's (%)";
    of_ways(graphs, title, |cell, way| {
        let most = cell.way(HopWay::ModelCentric).remote_rows.max(1.0);
        cell.way(way).remote_rows / most * 100.0
    })
}

/// Returns Fig. 16: rows of other servers with and without, for each depth.
fn pregathering(graphs: &[GraphCells]) -> Bars {
    let mut groups = Vec::new();
    for graph in graphs {
        for cell in middle(graph) {
            let [apart, together] =
                [HopWay::Micrographs, HopWay::Pregathered].map(|way| cell.way(way).remote_rows);
            let parts = vec![apart / together.max(1.0)];
            let name: String = graph.name.chars().take(8).collect();
            let bars = vec![Bar { colour: cell.fanouts.len().min(4), parts }];
            groups.push(BarGroup { name: format!("{name} {}", cell.fanouts.len()), bars });
        }
    }
    let title = "Fig. 16: rows in each time step over rows pre-gathered, by layers".to_owned();
    Bars { title, legend: Vec::new(), groups }
}

/// Returns Figs. 17 and 18: rows by the time steps that are left, of model-centric's.
fn merging(graphs: &[GraphCells]) -> Curves<'static> {
    let mut curves = Vec::new();
    for graph in graphs {
        let Some(cell) = middle(graph).next() else { continue };
        let most = cell.way(HopWay::ModelCentric).remote_rows.max(1.0);
        for (way, label) in [(HopWay::MergedMin, "min"), (HopWay::MergedRandom, "random")] {
            let levels = cell.ways.iter().filter(|it| [way, HopWay::Pregathered].contains(&it.way));
            let mut points: Vec<(f64, f64)> =
                levels.map(|it| (it.time_steps.into(), it.remote_rows / most * 100.0)).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            curves.push(Curve { label: format!("{} {label}", graph.name), points });
        }
    }
    let title = "Figs. 17, 18: rows of other servers by time steps left, of model-centric's (%)";
    Curves { title, x: "time steps", y: "rows (%)", is_log: false, curves }
}

fn by_batch(graphs: &[GraphCells]) -> Curves<'static> {
    let curve = |graph: &GraphCells| {
        let point = |cell: &Cell| (cell.batch as f64, gain(cell));
        Curve { label: graph.name.clone(), points: graph.batches.iter().map(point).collect() }
    };
    Curves {
        title: "Fig. 22: rows of model-centric training over those of roots at home, by batch",
        x: "roots a model",
        y: "times",
        is_log: true,
        curves: graphs.iter().map(curve).collect(),
    }
}

fn by_servers(graphs: &[GraphCells]) -> Curves<'static> {
    let curve = |graph: &GraphCells| {
        let first = graph.cells.first();
        let like = graph.cells.iter().filter(|cell| {
            first.is_some_and(|first| {
                (&first.partitioner, &first.fanouts) == (&cell.partitioner, &cell.fanouts)
            })
        });
        let mut points: Vec<(f64, f64)> =
            like.map(|cell| (f64::from(cell.servers), gain(cell))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Curve { label: graph.name.clone(), points }
    };
    Curves {
        title: "Fig. 23: rows of model-centric training over those of roots at home, by servers",
        x: "servers",
        y: "times",
        is_log: true,
        curves: graphs.iter().map(curve).collect(),
    }
}

/// Returns how many times the rows of roots at home model-centric training moves.
fn gain(cell: &Cell) -> f64 {
    let [centric, home] = [HopWay::ModelCentric, HopWay::Home].map(|way| cell.way(way).remote_rows);
    centric / home.max(1.0)
}
