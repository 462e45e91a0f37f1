//! MassiveGNN: remote rows pass through a buffer with eviction by score, which the sources of a
//! worker bring along. Batches are sampled as under `ondemand`, one ahead.

use lodestore_graph::sampler::Deal;

use super::mini_batches::MiniBatchRun;
use super::ondemand::SampledFeed;
use super::{StrategyConfig, StrategyRun};
use crate::checkpoint::Computation;
use crate::config::{Roots, Sampling, TrainConfig};
use crate::error::TrainError;
use crate::replica::Replica;
use crate::setup::Setup;
use crate::sources::WorkerSources;

/// Settings of batches whose rows pass through a buffer (MassiveGNN). The buffer is the worker's
/// source of remote rows, and its settings are those of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MassiveConfig {
    /// Which worker trains on which root.
    pub roots: Roots,
}

impl StrategyConfig for MassiveConfig {
    fn name(&self) -> &'static str {
        "massive"
    }

    fn computation(&self, config: &TrainConfig) -> Computation {
        Computation::mini_batches(config, self.roots)
    }

    fn deal(&self) -> Deal {
        self.roots.deal()
    }

    /// Fails if a worker has no buffer: it would be `ondemand` with a batch ahead.
    fn check_sources(&self, sources: &[WorkerSources], workers: &[u32]) -> Result<(), TrainError> {
        for (sources, &worker) in sources.iter().zip(workers) {
            if sources.buffer().is_none() {
                return Err(TrainError::NoBuffer { worker });
            }
        }
        Ok(())
    }

    fn run<'scope>(
        &'scope self,
        setup: &'scope Setup<'scope>,
        _replica: &Replica,
    ) -> Box<dyn StrategyRun<'scope> + 'scope> {
        // MassiveGNN, Eqs. 3 to 5: one batch is prepared while another is trained on.
        let feed = SampledFeed { setup, sampling: Sampling::Seeded, ahead: 1 };
        Box::new(MiniBatchRun::new(setup, feed))
    }
}
