//! MassiveGNN: remote rows pass through a buffer with eviction by score, which the sources of a
//! worker bring along. Batches are sampled as under `ondemand`, one ahead.

use lodestore_graph::PartitionBook;

use super::mini_batches::MiniBatchRun;
use super::ondemand::SampledFeed;
use super::{StrategyConfig, StrategyRun};
use crate::config::{Sampling, TrainConfig};
use crate::error::TrainError;
use crate::replica::Replica;
use crate::setup::Setup;
use crate::sources::WorkerSources;

/// Settings of `massive`.
pub(crate) struct MassiveConfig;

impl StrategyConfig for MassiveConfig {
    /// Fails if a worker has no buffer: it would be `ondemand` with a batch ahead.
    fn check_sources(
        &self,
        _config: &TrainConfig,
        _book: &PartitionBook,
        sources: &[WorkerSources],
        workers: &[u32],
    ) -> Result<(), TrainError> {
        for (sources, &worker) in sources.iter().zip(workers) {
            if sources.remote.buffer_bytes().is_none() {
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
