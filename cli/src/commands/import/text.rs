//! Reports of imports in text.

use lodestore_graph::order::RowOrder;
use lodestore_import::ImportReport;
use lodestore_import::add::AddReport;
use lodestore_import::order::OrderReport;

use crate::human;
use crate::local_parts::line_of;
use crate::table::Table;

/// Returns the report of an import.
pub(super) fn imported(report: &ImportReport) -> String {
    let mut parts = Table::new(["partition", "nodes", "halo", "size"]);
    for part in &report.parts {
        let (nodes, halo) = (human::count(part.nodes.into()), human::count(part.halo));
        parts.row([part.part.to_string(), nodes, halo, human::bytes(part.bytes)]);
    }
    let mut tensors = Table::new(["tensor", "dtype", "width", "size"]);
    for t in &report.tensors {
        let width = human::count(t.width.into());
        tensors.row([t.name.clone(), t.dtype.clone(), width, human::bytes(t.bytes)]);
    }
    format!(
        "{}: {} nodes, {} in-edges; {} cuts {} of the edges\n\n{tensors}\n\n{parts}\n\n{}\n  \
         self loops   {}\n  duplicates   {}\n  time         {}\n  peak memory  {}",
        report.graph,
        human::count(report.nodes.into()),
        human::count(report.edges),
        report.partitioner,
        human::percent(report.edge_cut),
        orders(&report.rows),
        with_fate(report.self_loops, report.self_loops_dropped),
        with_fate(report.duplicate_edges, report.duplicates_dropped),
        human::seconds(report.seconds),
        human::bytes(report.peak_anonymous_bytes),
    )
}

/// Returns a number of edges, and whether they are kept.
fn with_fate(n_edges: u64, dropped: bool) -> String {
    match (n_edges, dropped) {
        (0, _) => "none".to_owned(),
        (_, true) => format!("{}, dropped", human::count(n_edges)),
        (_, false) => format!("{}, kept", human::count(n_edges)),
    }
}

/// Returns one line on the order of the rows; after a table where orders were compared.
fn orders(report: &OrderReport) -> String {
    let order = report.order;
    let line = match figures(report, order) {
        None => format!("  order        {order}"),
        Some([batch, window, _]) => format!(
            "  order        {order}: {batch:.2} rows per page, {window:.2} in a window of 8 batches"
        ),
    };
    if report.rows_per_page.len() < 2 {
        return line;
    }
    let mut table = Table::new(["order", "rows per page", "window of 8", "seconds"]);
    for order in RowOrder::ALL.map(RowOrder::name) {
        let found = figures(report, order).into_iter().flatten().map(|x| format!("{x:.2}"));
        table.row(std::iter::once(order.to_owned()).chain(found));
    }
    format!("{table}\n\n{line}")
}

/// Returns rows per page, the same in a window, and seconds; none for an order not measured.
fn figures(report: &OrderReport, order: &str) -> Option<[f64; 3]> {
    let maps = [&report.rows_per_page, &report.rows_per_page_window, &report.order_seconds];
    let [batch, window, seconds] = maps.map(|map| map.get(order).copied());
    Some([batch?, window?, seconds?])
}

/// Returns the report of tensors added to a graph.
pub(super) fn added(report: &AddReport) -> String {
    let lines = report.tensors.iter().map(|tensor| {
        format!(
            "{}: {} x {}, {} in {}",
            tensor.name,
            tensor.dtype,
            tensor.width,
            human::bytes(tensor.bytes),
            human::seconds(tensor.seconds),
        )
    });
    let absent = line_of("not on this machine", &report.absent, "; import it there too");
    format!("{}\n{}{absent}", report.graph, lines.collect::<Vec<_>>().join("\n"))
}
