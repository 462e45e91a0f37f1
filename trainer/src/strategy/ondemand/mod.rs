//! The baseline: each batch is sampled and pulled when the trainer asks for it.

pub(crate) mod config;
mod ordinary;

use std::{sync::Arc, thread::Scope};

use lodestore_client::Prefetcher;
use lodestore_client::prefetch::{BatchSource, Window};
use lodestore_client::scheduled::SampledBatches;
use lodestore_graph::sampler::{Deal, Sampler};

use super::mini_batches::{BatchFeed, MiniBatchRun};
use super::{StrategyConfig, StrategyRun};
use crate::checkpoint::Computation;
use crate::config::TrainConfig;
use crate::error::TrainError;
use crate::replica::Replica;
use crate::setup::Setup;
use crate::step::Place;
use crate::worker::WindowBatches;
use crate::workers::Feed;
use config::{OndemandConfig, Sampling};
use ordinary::OrdinaryBatches;

/// Batches that are sampled as they are needed.
pub(crate) struct SampledFeed<'scope> {
    pub(crate) setup: &'scope Setup<'scope>,
    /// Origin of the random numbers.
    pub(crate) sampling: Sampling,
    /// Batches that are prepared while another is trained on.
    pub(crate) ahead: usize,
}

impl StrategyConfig for OndemandConfig {
    fn name(&self) -> &'static str {
        "ondemand"
    }

    fn validate(&self, config: &TrainConfig) -> Result<(), TrainError> {
        self.check(config)
    }

    fn computation(&self, config: &TrainConfig) -> Computation {
        Computation::mini_batches(config, self.roots)
    }

    fn deal(&self) -> Deal {
        self.roots.deal()
    }

    fn run<'scope>(
        &'scope self,
        setup: &'scope Setup<'scope>,
        _replica: &Replica,
    ) -> Box<dyn StrategyRun<'scope> + 'scope> {
        let feed = SampledFeed { setup, sampling: self.sampling, ahead: 0 };
        Box::new(MiniBatchRun::new(setup, feed))
    }
}

impl<'scope> BatchFeed<'scope> for SampledFeed<'scope> {
    fn start<'env>(
        &self,
        scope: &'scope Scope<'scope, 'env>,
        worker: u32,
        place: Place,
    ) -> Result<Feed<'scope, ()>, TrainError> {
        let setup = self.setup;
        let (config, topology) = (setup.config, setup.graph.topology);
        let share = setup.share(worker);
        let source: Arc<dyn BatchSource + 'scope> = match self.sampling {
            Sampling::Seeded => {
                let sampler = Sampler::new(topology, &config.fanouts);
                Arc::new(SampledBatches::new(share, config.epochs, sampler))
            }
            Sampling::Ordinary => Arc::new(OrdinaryBatches::new(share, config, topology)),
        };
        let loader = setup.loader_of(worker)?;
        let first = place.first_batch(setup.n_batches_of(worker));
        let window = Window::one_by_one(self.ahead);
        let prefetcher = Prefetcher::start(scope, source, loader, window, first);
        Ok(Feed { batches: Box::new(WindowBatches(prefetcher)), kept: None })
    }
}
