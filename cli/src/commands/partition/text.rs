//! Reports of partitioners as people read them.

use lodestore_graph::partition::{PartitionReport, StreamOrder, Workload};

use super::{AllReport, OneReport, PlanReport};
use crate::human;
use crate::table::Table;

/// Returns the text of one partitioner: its partitions, its steps, and the figures of the whole.
pub(super) fn one(report: &OneReport) -> String {
    let OneReport { report, workload } = report;
    let mut parts = Table::new(["partition", "nodes", "in-edges", "halo", "overlap"]);
    for part in 0..usize::from(report.parts) {
        let figures = [report.part_nodes[part], report.part_edges[part], report.part_halo[part]];
        let overlap = format!("{:.2}", report.part_overlap[part]);
        let cells = figures.map(human::count).into_iter().chain([overlap]);
        parts.row(std::iter::once(part.to_string()).chain(cells));
    }
    let mut steps = Table::new(["step", "time", "passes", "edges/s"]);
    for step in &report.steps {
        let rate = step.edges_per_s.map_or_else(|| "-".to_owned(), rate);
        let time = human::seconds(step.seconds);
        steps.row([step.step.clone(), time, step.passes.to_string(), rate]);
    }
    let copies = report.vertex_cut.as_ref().map_or_else(String::new, |copies| {
        format!(
            "\n  of copies alone     {:.3}; edges placed with balance {:.3}",
            copies.replication_factor, copies.edge_balance
        )
    });
    let clusters = report.clusters.map_or_else(String::new, |clusters| {
        let [found, merged] = [clusters.found, clusters.merged].map(|n| human::count(n.into()));
        format!("\n  clusters            {found}, merged to {merged}")
    });
    format!(
        "{}{}: {} nodes, {} edges in {}\n\n{parts}\n\n{steps}\n\n  \
         edge cut            {}\n  replication factor  {:.3}{copies}\n  node balance        {:.3}\n  \
         edge balance        {:.3}\n  time                {}\n  peak memory         {}, {} above the \
         start\n  stream order        {}{clusters}",
        workload_line(workload.as_ref()),
        name(report),
        human::count(report.nodes.into()),
        human::count(report.edges),
        human::counted(report.parts.into(), "partition"),
        human::percent(report.edge_cut),
        report.replication_factor,
        report.node_balance,
        report.edge_balance,
        human::seconds(report.seconds),
        human::bytes(report.peak_anonymous_bytes),
        human::bytes(report.peak_growth_bytes),
        stream_order(&report.stream_order, report.edges),
    )
}

/// Returns the text of all partitioners, a row each.
pub(super) fn all(report: &AllReport) -> String {
    let AllReport { results, workload } = report;
    let mut table = Table::new([
        "algorithm",
        "replication",
        "of copies",
        "edge cut",
        "node balance",
        "edge balance",
        "overlap",
        "time",
        "memory",
    ]);
    for report in results {
        let copies = report.vertex_cut.as_ref();
        let halo: u64 = report.part_halo.iter().sum();
        let overlaps = report.part_overlap.iter().zip(&report.part_halo);
        let overlap: f64 = overlaps.map(|(overlap, &halo)| overlap * halo as f64).sum();
        table.row([
            name(report),
            format!("{:.3}", report.replication_factor),
            copies.map_or_else(|| "-".to_owned(), |c| format!("{:.3}", c.replication_factor)),
            human::percent(report.edge_cut),
            format!("{:.3}", report.node_balance),
            format!("{:.3}", report.edge_balance),
            format!("{:.2}", overlap / halo.max(1) as f64),
            human::seconds(report.seconds),
            human::bytes(report.peak_growth_bytes),
        ]);
    }
    let of = results.first().map_or_else(String::new, |first| {
        format!(
            "{} nodes, {} edges in {}; {}",
            human::count(first.nodes.into()),
            human::count(first.edges),
            human::counted(first.parts.into(), "partition"),
            stream_order(&first.stream_order, first.edges),
        )
    });
    format!(
        "{}{of}\n\n{table}\n\n  replication: partitions that own a node or need it, on average; of \
         copies: before neighbour lists\n  are completed; overlap: halos that a halo node is in; \
         memory: peak above the start",
        workload_line(workload.as_ref())
    )
}

/// Returns the text of the memory that partitioners need, phase by phase.
pub(super) fn plan(report: &PlanReport) -> String {
    let mut text = workload_line(report.workload.as_ref());
    for (i, planned) in report.plans.iter().enumerate() {
        let mut phases = Table::new(["phase", "bytes", "at most"]);
        for phase in &planned.plan.phases {
            let bytes = human::bytes(phase.bytes);
            phases.row([phase.phase.clone(), phase.arithmetic.clone(), bytes]);
        }
        text.push_str(&format!(
            "{}{}: {} nodes, {} edges: {} above the start\n\n{phases}",
            if i > 0 { "\n\n" } else { "" },
            planned.algorithm,
            human::count(planned.plan.nodes.into()),
            human::count(planned.plan.edges),
            human::bytes(planned.plan.peak_bytes),
        ));
    }
    text
}

fn name(report: &PartitionReport) -> String {
    match report.refine_rounds {
        0 => report.algorithm.clone(),
        rounds => format!("{}, refined {rounds}x", report.algorithm),
    }
}

fn rate(per_s: f64) -> String {
    format!("{:.1} M", per_s / 1e6)
}

fn workload_line(workload: Option<&Workload>) -> String {
    workload.map_or_else(String::new, |found| format!("{found}\n\n"))
}

fn stream_order(order: &StreamOrder, n_edges: u64) -> String {
    let StreamOrder { ascending, same_source, mean_jump } = *order;
    if n_edges == 0 {
        return "no edges".to_owned();
    }
    let kind = match ascending {
        a if a >= 1.0 => "sorted by source",
        a if a > 0.9 => "mostly ascending",
        a if a < 0.1 => "mostly descending",
        _ => "not sorted",
    };
    format!(
        "{kind}: {} ascend, {} share the source before, mean jump {} of the ids",
        human::percent(ascending),
        human::percent(same_source),
        human::percent(mean_jump),
    )
}
