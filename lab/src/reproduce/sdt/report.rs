//! The report as Markdown.

use std::fmt::{self, Write};

use super::learning::{SdtLearning, SdtWay};
use super::{SdtFigures, SdtGraphFigures};
use crate::reproduce::convergence::Spread;
use lode_cli::human;

/// Epoch from which on the paper has local models as accurate as gradients averaged.
const SETTLED: usize = 10;

/// Writes the whole report.
pub(super) fn write(text: &mut String, found: &SdtFigures) -> fmt::Result {
    writeln!(text, "# SDT-GNN\n")?;
    for graph in &found.graphs {
        writeln!(
            text,
            "## {}\n\n{} nodes, {} in-edges, rows of {}.\n",
            graph.name,
            human::count(graph.nodes.into()),
            human::count(graph.edges),
            human::bytes(graph.row_bytes)
        )?;
        write_partitioners(text, graph)?;
        write_memory(text, graph)?;
        if !graph.learnt.is_empty() {
            write_learnt(text, graph, found)?;
        }
        write_links(text, graph)?;
    }
    write!(text, "Charts: ![fig6](fig6.svg) ![fig7](fig7.svg) ![fig9](fig9.svg)")?;
    for graph in found.graphs.iter().filter(|graph| !graph.learnt.is_empty()) {
        write!(text, " ![fig10](fig10-{}.svg)", graph.name)?;
    }
    writeln!(text)
}

/// Writes Figs. 6 and 7, and Table II.
fn write_partitioners(text: &mut String, graph: &SdtGraphFigures) -> fmt::Result {
    writeln!(text, "### Partitioners (Figs. 6, 7, Table II)\n")?;
    writeln!(
        text,
        "| partitioner | parts | replication | edges cut | balance | time | clusters, merged |\n\
         |---|---|---|---|---|---|---|"
    )?;
    for of in &graph.partitioners {
        let clusters = of.clusters.map(|[found, merged]| {
            format!("{}, {}", human::count(found.into()), human::count(merged.into()))
        });
        let clusters = clusters.unwrap_or_default();
        writeln!(
            text,
            "| {} | {} | {:.3} | {} | {:.2} | {} | {clusters} |",
            of.name,
            of.parts,
            of.replication_factor,
            human::percent(of.edge_cut),
            of.node_balance,
            human::seconds(of.seconds)
        )?;
    }
    writeln!(text)
}

/// Writes Fig. 9.
fn write_memory(text: &mut String, graph: &SdtGraphFigures) -> fmt::Result {
    writeln!(
        text,
        "### Memory of a worker's partitions (Fig. 9)\n\nRows, lists and ids of the partitions that a \
         worker holds: the present one, and the next one where it has more. *By replication*: the whole \
         graph's, times the replication factor, times the partitions held, over all partitions.\n\n\
         | parts | workers | held | of the whole graph | by replication |\n|---|---|---|---|---|"
    )?;
    let whole = graph.held.first().map_or(1, |held| held.bytes.max(1)) as f64;
    for held in &graph.held {
        let n_held = u32::from(held.parts).div_ceil(held.workers).min(2);
        let expected = held.replication_factor * f64::from(n_held) / f64::from(held.parts);
        writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            held.parts,
            held.workers,
            human::bytes(held.bytes),
            human::percent(held.bytes as f64 / whole),
            human::percent(expected)
        )?;
    }
    writeln!(text)
}

/// Writes Figs. 8 and 10.
fn write_learnt(text: &mut String, graph: &SdtGraphFigures, found: &SdtFigures) -> fmt::Result {
    writeln!(
        text,
        "### What is learnt (Figs. 8, 10)\n\n{} partitions, {}, batches of {}; {} seeds, mean and range; \
         test nodes, measured by {}. *Gap*: the largest by which the mean is under that of gradients \
         averaged, from epoch {SETTLED} on. Bytes are those of an epoch; those of models and gradients are of a \
         worker for each partition.\n\n| way | last epoch | best mean | gap (points) | halo kept | rows | \
         models or gradients |\n|---|---|---|---|---|---|---|",
        found.trained_parts, found.model, found.batch, found.seeds, found.metric
    )?;
    let base = graph.learnt.iter().find(|learnt| learnt.way == SdtWay::Gradients);
    for learnt in &graph.learnt {
        let last = learnt.last().text(4);
        let best = learnt.means().into_iter().fold(0.0, f64::max);
        let gap = base.and_then(|base| learnt.gap(base)).map(|gap| format!("{:.2}", 100.0 * gap));
        let gap = gap.unwrap_or_default();
        let kept = learnt.kept_share.map(human::percent).unwrap_or_default();
        writeln!(
            text,
            "| {} | {last} | {best:.4} | {gap} | {kept} | {} | {} |",
            learnt.way.label(),
            human::bytes_f64(learnt.row_bytes),
            human::bytes_f64(learnt.synchronised_bytes)
        )?;
    }
    writeln!(text)
}

/// Writes Table IV.
fn write_links(text: &mut String, graph: &SdtGraphFigures) -> fmt::Result {
    if graph.links.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "### An epoch over links (Table IV)\n\nA server and a worker for each partition as imported.\n\n\
         | link | way | first epoch | later | rows, first | later |\n|---|---|---|---|---|---|"
    )?;
    for link in &graph.links {
        let name = link.rate_bits.map(|rate| format!("{} Mbit/s", rate / 1e6));
        let name = name.unwrap_or_else(|| "none".to_owned());
        for run in &link.runs {
            let [first, later] = run.row_bytes.map(human::bytes);
            writeln!(
                text,
                "| {name} | {} | {} | {} | {first} | {later} |",
                run.strategy,
                human::seconds(run.first_seconds),
                human::seconds(run.seconds)
            )?;
        }
    }
    writeln!(text)
}

impl SdtLearning {
    /// Returns the mean of the seeds after each epoch.
    pub(super) fn means(&self) -> Vec<f64> {
        let n_epochs = self.accuracies.first().map_or(0, Vec::len);
        let mean = |epoch: usize| Spread::of(self.accuracies.iter().map(|of| of[epoch])).mean;
        (0..n_epochs).map(mean).collect()
    }

    /// Returns the seeds after the last epoch.
    fn last(&self) -> Spread {
        Spread::of(self.accuracies.iter().filter_map(|of| of.last().copied()))
    }

    /// Returns the largest by which its mean is under that of `base`, once settled; none in shorter
    /// runs.
    fn gap(&self, base: &Self) -> Option<f64> {
        let settled = self.means().into_iter().zip(base.means()).skip(SETTLED - 1);
        settled.map(|(of, base)| base - of).reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learnt(way: SdtWay, accuracies: Vec<Vec<f64>>) -> SdtLearning {
        SdtLearning { way, accuracies, row_bytes: 0.0, synchronised_bytes: 0.0, kept_share: None }
    }

    #[test]
    fn the_gap_is_the_largest_once_settled() {
        let base = learnt(SdtWay::Gradients, vec![vec![0.5; 12], vec![0.7; 12]]);
        let mut late = vec![0.0; 9];
        late.extend([0.6, 0.55, 0.65]);
        let found = learnt(SdtWay::Sdt, vec![late]);
        assert!((found.gap(&base).unwrap() - 0.05).abs() < 1e-12);
        assert_eq!(base.last().text(1), "0.6 (0.5 to 0.7)");
        let short = learnt(SdtWay::Sdt, vec![vec![0.1; 9]]);
        assert_eq!(short.gap(&base), None);
    }
}
