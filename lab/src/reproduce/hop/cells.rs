//! Counts of a graph, for each partitioner, number of servers, model and batch.

use lodestore_graph::sampler::{Deal, Fanout};
use lodestore_trainer::run_model::parameter_count;
use lodestore_trainer::{ModelKind, TrainConfig};
use serde::Serialize;

use super::accuracy::ModelAccuracies;
use super::balance::{Balance, balance};
use super::rows::{HopWay, Setting, WayCounts, count, plan};
use super::source::{InputGraph, ServerCut};
use super::timing::TimedLink;
use lode_cli::human::joined;

/// Bytes of a parameter.
const PARAMETER_BYTES: u64 = 4;

/// The model that trains.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct ModelShape {
    pub(super) kind: ModelKind,
    pub(super) hidden: usize,
}

/// All of a graph.
#[derive(Debug, Serialize)]
pub(super) struct GraphCells {
    pub(super) name: String,
    pub(super) nodes: u32,
    /// Whether edges count in both directions.
    pub(super) undirected: bool,
    /// In-edges of all nodes.
    pub(super) edges: u64,
    pub(super) training_nodes: usize,
    pub(super) row_bytes: u64,
    /// Partitions that it was imported in, which are those of training.
    #[serde(skip)]
    pub(super) own_parts: u16,
    /// By partitioner, servers, then fan-outs.
    pub(super) cells: Vec<Cell>,
    /// By batch, of the first partitioner and fan-outs (Fig. 22).
    pub(super) batches: Vec<Cell>,
    /// By link, in the graph's own partitions.
    pub(super) timed: Vec<TimedLink>,
    /// By model, in the graph's own partitions (Table 3).
    pub(super) learnt: Vec<ModelAccuracies>,
}

/// Means of some iterations.
#[derive(Debug, Serialize)]
pub(super) struct Cell {
    pub(super) partitioner: String,
    pub(super) edge_cut: f64,
    pub(super) servers: u16,
    pub(super) fanouts: Vec<Fanout>,
    /// Roots of each model.
    pub(super) batch: usize,
    pub(super) iterations: u32,
    /// Roots of all models.
    pub(super) roots: f64,
    pub(super) parameters: u64,
    /// Shares of the nodes that are at the home of a root, in its micrograph and its subgraph.
    pub(super) r_micro: f64,
    pub(super) r_sub: f64,
    pub(super) balance: Balance,
    pub(super) ways: Vec<WayCell>,
}

/// An iteration of all servers.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct WayCell {
    pub(super) way: HopWay,
    pub(super) time_steps: u32,
    pub(super) rows: f64,
    pub(super) remote_rows: f64,
    pub(super) miss_rate: f64,
    pub(super) requests: f64,
    pub(super) row_bytes: f64,
    pub(super) model_bytes: u64,
    pub(super) gradient_bytes: u64,
}

impl WayCell {
    /// Returns the means of `iterations`, of rows of `row_bytes`.
    fn new(
        WayCounts { way, time_steps, counts }: WayCounts,
        iterations: u32,
        row_bytes: u64,
        servers: u16,
        parameters: u64,
    ) -> Self {
        let mean = |n: u64| n as f64 / f64::from(iterations.max(1));
        let moved = match way {
            HopWay::ModelCentric | HopWay::Owned | HopWay::Home => 0,
            _ => model_bytes(servers, time_steps, parameters),
        };
        Self {
            way,
            time_steps,
            rows: mean(counts.wanted),
            remote_rows: mean(counts.remote),
            miss_rate: counts.remote as f64 / counts.wanted.max(1) as f64,
            requests: mean(counts.requests),
            row_bytes: mean(counts.remote) * row_bytes as f64,
            model_bytes: moved,
            gradient_bytes: gradient_bytes(servers, parameters),
        }
    }

    /// Returns all bytes that it moves.
    pub(super) fn bytes(&self) -> f64 {
        self.row_bytes + (self.model_bytes + self.gradient_bytes) as f64
    }
}

/// Returns the bytes of all models that move between time steps, each with its gradients.
fn model_bytes(servers: u16, time_steps: u32, parameters: u64) -> u64 {
    let moves = u64::from(time_steps.saturating_sub(1)) * u64::from(servers);
    moves * 2 * PARAMETER_BYTES * parameters
}

/// Returns the bytes of one reduction: a share of its gradients from each server to each other one,
/// then a share of the sum.
fn gradient_bytes(servers: u16, parameters: u64) -> u64 {
    2 * PARAMETER_BYTES * parameters * u64::from(servers.saturating_sub(1))
}

impl Cell {
    /// Counts the iterations of `setting`.
    pub(super) fn new(
        source: &InputGraph,
        partitioner: &str,
        cut: &ServerCut,
        setting: Setting<'_>,
        model: ModelShape,
    ) -> Self {
        let sums = count(cut, setting);
        let servers = cut.book.n_parts();
        let config = TrainConfig {
            fanouts: setting.fanouts.to_vec(),
            model: model.kind,
            hidden: model.hidden,
            ..TrainConfig::default()
        };
        let parameters = parameter_count(&config, source.width, source.n_classes);
        let of_way =
            |way| WayCell::new(way, sums.iterations, source.row_bytes, servers, parameters);
        Self {
            partitioner: partitioner.to_owned(),
            edge_cut: cut.edge_cut,
            servers,
            fanouts: setting.fanouts.to_vec(),
            batch: setting.batch,
            iterations: sums.iterations,
            roots: sums.roots as f64 / f64::from(sums.iterations.max(1)),
            parameters,
            r_micro: sums.locality.r_micro,
            r_sub: sums.locality.r_sub,
            balance: balance(plan(&cut.book, setting, Deal::Home), &cut.train),
            ways: sums.ways.into_iter().map(of_way).collect(),
        }
    }

    /// Returns the figures of `way`, of those with merged time steps the one with the most.
    pub(super) fn way(&self, way: HopWay) -> &WayCell {
        self.ways.iter().find(|cell| cell.way == way).unwrap_or(&self.ways[0])
    }

    /// Returns fan-outs as they are given.
    pub(super) fn fanout_name(&self) -> String {
        let n_layers = self.fanouts.len();
        match self.fanouts.first() {
            Some(first) if n_layers > 1 && self.fanouts.iter().all(|other| other == first) => {
                format!("{n_layers} x {first}")
            }
            _ => joined(&self.fanouts, ","),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::hop::rows::Counts;

    #[test]
    fn bytes_are_those_of_the_trainer() {
        // 4 servers move 4 models with gradients 3 times, 10 parameters each.
        let counts = Counts { wanted: 40, remote: 10, requests: 6 };
        let cell =
            |way, time_steps| WayCell::new(WayCounts { way, time_steps, counts }, 2, 100, 4, 10);
        let paper = cell(HopWay::Pregathered, 4);
        assert_eq!((paper.rows, paper.remote_rows, paper.requests), (20.0, 5.0, 3.0));
        assert_eq!((paper.model_bytes, paper.gradient_bytes), (3 * 4 * 80, 2 * 3 * 40));
        assert_eq!(paper.bytes(), 500.0 + 960.0 + 240.0);
        assert_eq!(paper.miss_rate, 0.25);
        assert_eq!(cell(HopWay::MergedMin, 1).model_bytes, 0);
        for stays in [HopWay::ModelCentric, HopWay::Owned, HopWay::Home] {
            assert_eq!(cell(stays, 1).bytes(), 740.0);
        }
    }
}
