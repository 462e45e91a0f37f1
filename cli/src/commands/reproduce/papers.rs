//! What the papers report, and the graphs that stand for theirs.

/// A graph that stands for one of a paper's: its features and its density, fewer nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model {
    pub(super) name: &'static str,
    pub(super) stands_for: &'static str,
    pub(super) nodes: u32,
    pub(super) degree: f32,
    pub(super) dim: u32,
    pub(super) classes: u32,
    pub(super) train: f32,
    /// RapidGNN, Table 2 (over DGL-METIS): batch size, speed-up of steps and of the network; and Fig. 4
    /// as its text has it: MB per step of the baseline and of RapidGNN.
    pub(super) rapidgnn: [Published; 3],
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Published {
    pub(super) batch: u32,
    pub(super) step: f64,
    pub(super) network: f64,
    pub(super) baseline_mb: f64,
    pub(super) rapid_mb: f64,
}

const fn published(batch: u32, step: f64, network: f64, mb: [f64; 2]) -> Published {
    Published { batch, step, network, baseline_mb: mb[0], rapid_mb: mb[1] }
}

pub(super) const MODELS: [Model; 3] = [
    Model {
        name: "papers-like",
        stands_for: "OGBN-Papers",
        nodes: 200_000,
        degree: 29.0,
        dim: 128,
        classes: 172,
        train: 0.04,
        rapidgnn: [
            published(1000, 1.44, 3.70, [4.3, 1.5]),
            published(2000, 1.53, 4.51, [8.3, 3.1]),
            published(3000, 1.65, 4.26, [12.0, 4.6]),
        ],
    },
    Model {
        name: "products-like",
        stands_for: "OGBN-Products",
        nodes: 120_000,
        degree: 50.0,
        dim: 100,
        classes: 47,
        train: 0.08,
        rapidgnn: [
            published(1000, 1.42, 5.81, [4.8, 2.0]),
            published(2000, 1.32, 5.19, [8.8, 3.8]),
            published(3000, 1.34, 4.59, [12.1, 5.4]),
        ],
    },
    Model {
        name: "reddit-like",
        stands_for: "Reddit",
        nodes: 30_000,
        degree: 100.0,
        dim: 602,
        classes: 41,
        train: 0.2,
        rapidgnn: [
            published(1000, 3.97, 32.57, [6.8, 0.3]),
            published(2000, 4.85, 28.14, [10.0, 0.6]),
            published(3000, 4.60, 25.52, [14.0, 0.9]),
        ],
    },
];

impl Model {
    /// Time of communication over that of computation in the paper's baseline, at least: a step of
    /// RapidGNN takes the computation or more, so that the baseline's communication took what it
    /// saved or more.
    pub(super) fn ratio(&self) -> f64 {
        self.rapidgnn.iter().map(|figures| figures.step).sum::<f64>() / 3.0 - 1.0
    }

    /// Batch sizes here, for a graph of `scale` times the usual nodes: a tenth of the paper's.
    pub(super) fn batches(&self, scale: f64) -> [usize; 3] {
        self.rapidgnn.map(|figures| ((f64::from(figures.batch) / 10.0 * scale) as usize).max(4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_follow_from_the_speed_ups() {
        let ratios = MODELS.map(|model| (model.ratio() * 100.0).round());
        assert_eq!(ratios, [54.0, 36.0, 347.0]);
        assert_eq!(MODELS[0].batches(0.01), [4, 4, 4]);
        assert_eq!(MODELS[0].batches(1.0), [100, 200, 300]);
    }
}
