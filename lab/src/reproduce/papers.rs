//! Figures of the papers, and the graphs that stand for theirs.

use serde::Serialize;

/// A graph that stands for one of a paper's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model {
    pub(super) name: &'static str,
    pub(super) stands_for: &'static str,
    /// At full scale; of OGBN-Papers a tenth.
    pub(super) nodes: u32,
    /// Mean, both directions counted.
    pub(super) degree: f32,
    pub(super) dim: u32,
    pub(super) classes: u32,
    /// Whether a class is one community, as a subreddit is, or many.
    pub(super) class_is_community: bool,
    /// Share of the nodes that train, by the data's own split.
    pub(super) train: f32,
    /// Figures of RapidGNN. Table 2 has the batch size, speed-up of steps and of the network over
    /// DGL-METIS, and of steps over DGL-Random and GCN. Fig. 4, as its text has it, has the MB per
    /// step of DGL-METIS and of RapidGNN.
    pub(super) rapidgnn: [Published; 3],
}

/// The paper's figures of one batch size.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Published {
    pub(super) batch: u32,
    pub(super) step: f64,
    pub(super) network: f64,
    /// Speedups of steps, over DGL-Random and GCN.
    pub(super) others: [f64; 2],
    pub(super) baseline_mb: f64,
    pub(super) rapid_mb: f64,
}

const fn published(
    batch: u32,
    [step, network]: [f64; 2],
    others: [f64; 2],
    [baseline_mb, rapid_mb]: [f64; 2],
) -> Published {
    Published { batch, step, network, others, baseline_mb, rapid_mb }
}

pub(super) const MODELS: [Model; 3] = [
    Model {
        name: "papers-like",
        stands_for: "OGBN-Papers",
        nodes: 11_105_996,
        degree: 29.0,
        dim: 128,
        classes: 172,
        class_is_community: false,
        train: 0.0108,
        rapidgnn: [
            published(1000, [1.44, 3.70], [1.26, 1.71], [4.3, 1.5]),
            published(2000, [1.53, 4.51], [1.36, 1.97], [8.3, 3.1]),
            published(3000, [1.65, 4.26], [1.48, 1.90], [12.0, 4.6]),
        ],
    },
    Model {
        name: "products-like",
        stands_for: "OGBN-Products",
        nodes: 2_449_029,
        degree: 50.5,
        dim: 100,
        classes: 47,
        class_is_community: false,
        train: 0.0803,
        rapidgnn: [
            published(1000, [1.42, 5.81], [1.52, 1.76], [4.8, 2.0]),
            published(2000, [1.32, 5.19], [1.34, 1.57], [8.8, 3.8]),
            published(3000, [1.34, 4.59], [1.46, 1.74], [12.1, 5.4]),
        ],
    },
    Model {
        name: "reddit-like",
        stands_for: "Reddit",
        nodes: 232_965,
        degree: 492.0,
        dim: 602,
        classes: 41,
        class_is_community: true,
        train: 0.66,
        rapidgnn: [
            published(1000, [3.97, 32.57], [3.41, 4.89], [6.8, 0.3]),
            published(2000, [4.85, 28.14], [4.24, 5.96], [10.0, 0.6]),
            published(3000, [4.60, 25.52], [4.31, 5.51], [14.0, 0.9]),
        ],
    },
];

impl Model {
    /// Returns the time of communication over that of computation in the paper's baseline, N / C. A
    /// step is taken to be computation and waiting alone. Table 2 has two equations: RapidGNN's
    /// steps are S = (C + N) / (C + N / k) times as fast, and its network time is k times shorter.
    /// S and k are means over the batch sizes.
    pub(super) fn ratio(&self) -> f64 {
        let mean = |of: fn(&Published) -> f64| self.rapidgnn.iter().map(of).sum::<f64>() / 3.0;
        let (step, network) = (mean(|of| of.step), mean(|of| of.network));
        (step - 1.0) / (1.0 - step / network)
    }

    /// Returns the batch sizes here, for graphs of `scale` times the nodes: as many times the
    /// paper's. The smallest graphs have the same for two of them.
    pub(super) fn batches(&self, scale: f64) -> [usize; 3] {
        self.rapidgnn.map(|figures| ((f64::from(figures.batch) * scale) as usize).max(4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_follow_from_the_speed_ups() {
        let ratios = MODELS.map(|model| (model.ratio() * 100.0).round());
        assert_eq!(ratios, [86.0, 49.0, 411.0]);
        assert_eq!(MODELS[0].batches(0.001), [4, 4, 4]);
        assert_eq!(MODELS[0].batches(0.1), [100, 200, 300]);
        // A step that waits as the paper's RapidGNN does has its speed-up.
        let [step, network] = [4.47, 28.74];
        let ratio = MODELS[2].ratio();
        assert!(((1.0 + ratio) / (1.0 + ratio / network) - step).abs() < 0.01);
    }
}
