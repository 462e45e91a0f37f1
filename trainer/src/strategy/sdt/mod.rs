//! SDT-GNN: a local model for each partition, trained on that partition and its halo alone, and
//! averages of them (section III-D).
//!
//! [`lodestore_graph::region`] plans partitions and [`lodestore_client::parts`] loads them;
//! [`worker`] and [`team`] compute, [`average`] averages, and [`run`] makes the epochs.

mod average;
pub(crate) mod config;
mod run;
mod setup;
mod team;
mod worker;

use lodestore_graph::{
    PartitionBook,
    sampler::{Deal, RootPlan},
};

use super::{StrategyConfig, StrategyRun};
use crate::checkpoint::Computation;
use crate::config::TrainConfig;
use crate::error::TrainError;
use crate::replica::Replica;
use crate::setup::Setup;
use config::SdtConfig;
use run::SdtRun;

impl StrategyConfig for SdtConfig {
    fn name(&self) -> &'static str {
        "sdt"
    }

    fn validate(&self, config: &TrainConfig) -> Result<(), TrainError> {
        self.check(config)
    }

    /// Returns the settings without the number of workers: local models are those of partitions,
    /// whichever worker trains them.
    fn computation(&self, config: &TrainConfig) -> Computation {
        Computation::new("Sdt")
            .with("average_every", &self.average_every)
            .with("optimizer_state", &self.optimizer_state)
            .with("halo_hops", &self.halo_hops_of(config.fanouts.len()))
            .with("full_partition", &self.full_partition)
    }

    fn deal(&self) -> Deal {
        Deal::Owned
    }

    /// Returns a plan of batches for each partition, whichever worker it belongs to.
    fn root_plan<'a>(&self, config: &TrainConfig, book: &'a PartitionBook) -> RootPlan<'a> {
        let mut plan = config.plan_of(self.deal(), book);
        plan.workers = book.n_parts().into();
        if self.full_partition {
            plan.batch_size = book.n_nodes().max(1) as usize;
        }
        plan
    }

    fn trains_partitions(&self) -> bool {
        true
    }

    /// Returns the partitions.
    fn n_steps(&self, n_batches: &[u32]) -> u32 {
        n_batches.len() as u32
    }

    fn run<'scope>(
        &'scope self,
        setup: &'scope Setup<'scope>,
        replica: &Replica,
    ) -> Box<dyn StrategyRun<'scope> + 'scope> {
        Box::new(SdtRun::new(setup, self, replica))
    }
}
