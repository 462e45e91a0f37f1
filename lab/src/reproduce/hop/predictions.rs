//! Predictions of an independent simulation for some graphs, with METIS or hashed partitions.
//!
//! It does not name its batches, training nodes and parameters. With those used here, model-centric
//! training moves the rows and bytes that it predicts. All edges count in both directions.

use lodestore_trainer::ModelKind;

use super::cells::{Cell, GraphCells, ModelShape};
use super::rows::HopWay;

/// A figure of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Figure {
    RMicro,
    RSub,
    Rows(HopWay),
    /// Rows of +MG over those of +PG.
    Pregathering,
    /// Megabytes in all.
    Megabytes(HopWay),
}

#[derive(Clone, Copy)]
struct Prediction {
    claim: &'static str,
    graph: Graph,
    servers: u16,
    layers: usize,
    is_hashed: bool,
    figure: Figure,
    value: f64,
}

/// A claim of the paper, and the figure that shows it.
#[derive(Clone, Copy)]
struct Claim {
    claim: &'static str,
    figure: Figure,
}

/// A graph, and how it was sampled.
#[derive(Clone, Copy)]
struct Graph {
    /// Part of its name.
    name: &'static str,
    /// Nodes that train.
    training_nodes: usize,
    /// Roots of a model.
    batch: usize,
    /// Width of hidden rows.
    hidden: usize,
}

/// A prediction beside what came out.
pub(super) struct Outcome {
    pub(super) claim: &'static str,
    pub(super) setting: String,
    pub(super) figure: String,
    pub(super) predicted: f64,
    pub(super) found: f64,
}

const fn of(
    Claim { claim, figure }: Claim,
    graph: Graph,
    servers: u16,
    layers: usize,
    value: f64,
) -> Prediction {
    Prediction { claim, graph, servers, layers, is_hashed: false, figure, value }
}

const fn hashed(prediction: Prediction) -> Prediction {
    Prediction { is_hashed: true, ..prediction }
}

const R_MICRO: Claim = Claim { claim: "H1", figure: Figure::RMicro };
const R_SUB: Claim = Claim { claim: "H1", figure: Figure::RSub };
const CENTRIC: Claim = Claim { claim: "H2", figure: Figure::Rows(HopWay::ModelCentric) };
const MG: Claim = Claim { claim: "H2", figure: Figure::Rows(HopWay::Micrographs) };
const PG: Claim = Claim { claim: "H2", figure: Figure::Rows(HopWay::Pregathered) };
const LO: Claim = Claim { claim: "H2", figure: Figure::Rows(HopWay::Owned) };
const GATHERING: Claim = Claim { claim: "H3", figure: Figure::Pregathering };
const MB_CENTRIC: Claim = Claim { claim: "H7", figure: Figure::Megabytes(HopWay::ModelCentric) };
const MB_PAPER: Claim = Claim { claim: "H7", figure: Figure::Megabytes(HopWay::Pregathered) };
const MB_HOME: Claim = Claim { claim: "H7", figure: Figure::Megabytes(HopWay::Home) };
const PHYSICS: Graph = Graph { name: "physics", training_nodes: 20_695, batch: 256, hidden: 128 };
const DBLP: Graph = Graph { name: "dblp-2010", training_nodes: 326_186, batch: 1024, hidden: 128 };
const CNR: Graph = Graph { name: "cnr-2000", training_nodes: 325_557, batch: 1024, hidden: 128 };
const CORA: Graph = Graph { name: "cora", training_nodes: 2_708, batch: 64, hidden: 64 };

const PREDICTIONS: [Prediction; 37] = [
    of(R_MICRO, PHYSICS, 2, 2, 0.92),
    of(R_MICRO, PHYSICS, 4, 2, 0.80),
    of(R_MICRO, PHYSICS, 8, 2, 0.72),
    of(R_MICRO, PHYSICS, 16, 2, 0.60),
    of(R_SUB, PHYSICS, 2, 2, 0.49),
    of(R_SUB, PHYSICS, 4, 2, 0.25),
    of(R_SUB, PHYSICS, 8, 2, 0.12),
    of(R_SUB, PHYSICS, 16, 2, 0.06),
    of(R_MICRO, DBLP, 2, 2, 0.95),
    of(R_MICRO, DBLP, 4, 2, 0.90),
    of(R_MICRO, DBLP, 8, 2, 0.88),
    of(R_MICRO, DBLP, 16, 2, 0.86),
    of(CENTRIC, PHYSICS, 4, 2, 31_593.0),
    of(MG, PHYSICS, 4, 2, 10_130.0),
    of(PG, PHYSICS, 4, 2, 8_432.0),
    of(LO, PHYSICS, 4, 2, 8_373.0),
    of(CENTRIC, DBLP, 4, 2, 51_589.0),
    of(MG, DBLP, 4, 2, 9_958.0),
    of(PG, DBLP, 4, 2, 9_288.0),
    of(CENTRIC, CNR, 4, 2, 69_554.0),
    of(MG, CNR, 4, 2, 559.0),
    of(PG, CNR, 4, 2, 519.0),
    of(CENTRIC, PHYSICS, 8, 3, 178_364.0),
    of(MG, PHYSICS, 8, 3, 217_156.0),
    of(PG, PHYSICS, 8, 3, 93_398.0),
    hashed(of(CENTRIC, CNR, 4, 3, 176_881.0)),
    hashed(of(MG, CNR, 4, 3, 275_498.0)),
    hashed(of(PG, CNR, 4, 3, 215_968.0)),
    of(GATHERING, PHYSICS, 4, 2, 1.20),
    of(GATHERING, PHYSICS, 4, 3, 1.73),
    of(GATHERING, DBLP, 4, 10, 3.35),
    of(MB_CENTRIC, PHYSICS, 4, 2, 1_115.0),
    of(MB_PAPER, PHYSICS, 4, 2, 542.0),
    of(MB_HOME, PHYSICS, 4, 2, 336.0),
    of(MB_CENTRIC, CORA, 4, 2, 18.5),
    of(MB_PAPER, CORA, 4, 2, 24.8),
    of(MB_HOME, CORA, 4, 2, 7.1),
];

/// Returns the predictions for `graph`, each beside the cells of its setting.
pub(super) fn outcomes(graph: &GraphCells, model: ModelShape) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for prediction in PREDICTIONS.iter().filter(|it| it.is_for(graph, model)) {
        for cell in graph.cells.iter().filter(|cell| prediction.is_of(cell)) {
            outcomes.push(Outcome {
                claim: prediction.claim,
                setting: format!(
                    "{}, {}, p = {}",
                    cell.partitioner,
                    cell.fanout_name(),
                    cell.servers
                ),
                figure: prediction.figure.name(),
                predicted: prediction.value,
                found: prediction.figure.of(cell),
            });
        }
    }
    outcomes
}

impl Prediction {
    fn is_for(&self, graph: &GraphCells, model: ModelShape) -> bool {
        let Graph { name, training_nodes, hidden, .. } = self.graph;
        let is_model = (model.kind, model.hidden) == (ModelKind::Sage, hidden);
        graph.undirected
            && graph.name.contains(name)
            && graph.training_nodes == training_nodes
            && (is_model || !matches!(self.figure, Figure::Megabytes(_)))
    }

    fn is_of(&self, cell: &Cell) -> bool {
        (self.servers, self.layers) == (cell.servers, cell.fanouts.len())
            && cell.batch == self.graph.batch
            && self.is_hashed == (cell.partitioner == "hash")
    }
}

impl Figure {
    fn of(self, cell: &Cell) -> f64 {
        match self {
            Self::RMicro => cell.r_micro,
            Self::RSub => cell.r_sub,
            Self::Rows(way) => cell.way(way).remote_rows,
            Self::Pregathering => {
                let [apart, together] =
                    [HopWay::Micrographs, HopWay::Pregathered].map(|way| cell.way(way).remote_rows);
                apart / together.max(1.0)
            }
            Self::Megabytes(way) => cell.way(way).bytes() / 1e6,
        }
    }

    fn name(self) -> String {
        match self {
            Self::RMicro => "R_micro".to_owned(),
            Self::RSub => "R_sub".to_owned(),
            Self::Rows(way) => format!("rows, {}", way.label()),
            Self::Pregathering => "rows +MG / +PG".to_owned(),
            Self::Megabytes(way) => format!("MB, {}", way.label()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_prediction_occurs_once() {
        let settings = PREDICTIONS.map(|it| {
            let figure = it.figure.name();
            (it.graph.name, it.servers, it.layers, it.is_hashed, figure)
        });
        for (at, setting) in settings.iter().enumerate() {
            assert!(!settings[..at].contains(setting), "{setting:?}");
        }
        let hashed = PREDICTIONS.iter().filter(|it| it.is_hashed).count();
        assert_eq!(hashed, 3, "those of the random partition");
    }
}
