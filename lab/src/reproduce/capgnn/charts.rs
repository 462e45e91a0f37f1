//! The figures, of all graphs, as SVG.

use anyhow::Result;

use super::halos::Moved;
use super::learning::CapLearning;
use super::{CapFigures, CapGraphFigures, REFINED};
use crate::reproduce::curves::{Curve, Curves, add_point};

/// Returns all charts, by the names of their files.
pub(super) fn charts(found: &CapFigures) -> Result<Vec<(String, String)>> {
    let mut charts = Vec::new();
    if found.has_halos() {
        charts.push(("fig4.svg".to_owned(), halos(&found.graphs).svg()?));
        charts.push(("bytes.svg".to_owned(), bytes(&found.graphs).svg()?));
    }
    for graph in found.graphs.iter().filter(|graph| !graph.learnt.is_empty()) {
        charts.push((format!("fig22-{}.svg", graph.name), accuracy(graph).svg()?));
    }
    Ok(charts)
}

fn halos(graphs: &[CapGraphFigures]) -> Curves<'static> {
    let mut curves = Vec::new();
    for graph in graphs {
        for of in graph.halos.iter().filter(|of| of.partitioner == REFINED) {
            let label = format!("{}, {} hops", graph.name, of.hops);
            let point = (f64::from(of.parts), of.per_node);
            add_point(&mut curves, label, point);
        }
    }
    let title = "Fig. 4: nodes in halos over all nodes";
    Curves { title, x: "partitions", y: "halo", is_log: true, curves }
}

fn bytes(graphs: &[CapGraphFigures]) -> Curves<'static> {
    let curve = |graph: &CapGraphFigures| {
        let share = |of: &Moved| of.exact_bytes as f64 / of.resent_bytes.max(1) as f64;
        let points = graph.moved.iter().map(|of| (f64::from(of.parts), share(of)));
        Curve { label: graph.name.clone(), points: points.collect() }
    };
    let title = "Bytes of an exact epoch, of those with all resent";
    let curves = graphs.iter().map(curve).collect();
    Curves { title, x: "partitions", y: "share", is_log: true, curves }
}

fn accuracy(graph: &CapGraphFigures) -> Curves<'static> {
    let splits = graph.learnt.first().map(|learnt| learnt.splits);
    let curve = |learnt: &CapLearning| Curve { label: learnt.way.label(), points: learnt.means() };
    let learnt = graph.learnt.iter().filter(|learnt| Some(learnt.splits) == splits);
    Curves {
        title: "Fig. 22: accuracy on test nodes, mean of seeds",
        x: "epoch",
        y: "accuracy",
        is_log: false,
        curves: learnt.map(curve).collect(),
    }
}
