//! The paper's figures, of all graphs, as SVG.

use anyhow::Result;

use super::learning::{SdtLearning, SdtWay};
use super::{SdtFigures, SdtGraphFigures};
use crate::reproduce::bars::{Bar, BarGroup, Bars};
use crate::reproduce::curves::{Curve, Curves};

/// Returns all charts, by the names of their files.
pub(super) fn charts(found: &SdtFigures) -> Result<Vec<(String, String)>> {
    let mut charts = vec![
        ("fig6.svg".to_owned(), replication(&found.graphs).svg()?),
        ("fig7.svg".to_owned(), speed(&found.graphs).svg()?),
        ("fig9.svg".to_owned(), memory(&found.graphs).svg()?),
    ];
    for graph in found.graphs.iter().filter(|graph| !graph.learnt.is_empty()) {
        charts.push((format!("fig10-{}.svg", graph.name), accuracy(graph).svg()?));
    }
    Ok(charts)
}

/// Partitioners of the paper's figures.
const LEGEND: [&str; 5] = ["spring", "2ps-l", "dbh", "greedy", "hdrf"];

fn bars(
    graphs: &[SdtGraphFigures],
    title: &str,
    value: impl Fn(&super::Partitioned, &super::Partitioned) -> f64,
) -> Bars {
    let mut groups = Vec::new();
    for graph in graphs {
        let mut parts: Vec<u16> = graph.partitioners.iter().map(|of| of.parts).collect();
        parts.dedup();
        for n_parts in parts {
            let named = |name: &str| {
                graph.partitioners.iter().find(|of| of.parts == n_parts && of.name == name)
            };
            let Some(spring) = named("spring") else { continue };
            let bar = |(colour, name): (usize, &str)| {
                named(name).map(|of| Bar { colour, parts: vec![value(of, spring)] })
            };
            let name: String = graph.name.chars().take(7).collect();
            let bars = LEGEND.into_iter().enumerate().filter_map(bar).collect();
            groups.push(BarGroup { name: format!("{name} {n_parts}"), bars });
        }
    }
    Bars { title: title.to_owned(), legend: LEGEND.to_vec(), groups }
}

fn replication(graphs: &[SdtGraphFigures]) -> Bars {
    bars(graphs, "Fig. 6: replication factor", |of, _| of.replication_factor)
}

fn speed(graphs: &[SdtGraphFigures]) -> Bars {
    let title = "Fig. 7: time of other partitioners over SPRING's";
    bars(graphs, title, |of, spring| of.seconds / spring.seconds.max(1e-9))
}

fn memory(graphs: &[SdtGraphFigures]) -> Curves<'static> {
    let mut curves = Vec::new();
    for graph in graphs {
        let whole = graph.held.first().map_or(1, |held| held.bytes.max(1));
        for workers in [1u32, 2] {
            let of_workers =
                graph.held.iter().filter(|held| held.workers == workers || held.parts == 1);
            let point =
                |held: &super::Held| (f64::from(held.parts), held.bytes as f64 / whole as f64);
            let label = format!("{}, {workers} workers", graph.name);
            curves.push(Curve { label, points: of_workers.map(point).collect() });
        }
    }
    let title = "Fig. 9: memory of a worker's partitions, of the whole graph's";
    Curves { title, x: "partitions", y: "share", is_log: true, curves }
}

fn accuracy(graph: &SdtGraphFigures) -> Curves<'static> {
    let shown = [
        SdtWay::Whole,
        SdtWay::Gradients,
        SdtWay::Sdt,
        SdtWay::OneHop,
        SdtWay::Once,
        SdtWay::Alone,
    ];
    let curve = |learnt: &SdtLearning| {
        let means = learnt.means();
        let points = (1u32..).zip(means).map(|(epoch, of)| (f64::from(epoch), of)).collect();
        Curve { label: learnt.way.label().to_owned(), points }
    };
    let learnt = graph.learnt.iter().filter(|learnt| shown.contains(&learnt.way));
    Curves {
        title: "Figs. 8, 10: accuracy on test nodes, mean of seeds",
        x: "epoch",
        y: "accuracy",
        is_log: false,
        curves: learnt.map(curve).collect(),
    }
}
