//! CaPGNN: full-batch training over partitions, whose halos exchange rows of each layer (sections
//! 4.1 and 4.2).
//!
//! A partition computes the rows of its own nodes from all of their in-neighbours. In-neighbours
//! that other partitions own are its halo. The features of the halo never change, so they are
//! pulled once and kept. In each epoch the owners send the halo's rows of later layers, and get
//! their gradients back. The result equals that of one partition with the whole graph, except for
//! the order of sums.
//!
//! [`graph`], [`plan`], [`operator`] and [`compress`] decide; [`part`] and [`back`] compute;
//! [`exchange`] and [`team`] move rows; [`run`] makes epochs of passes.

mod back;
mod compress;
pub(crate) mod config;
mod exchange;
mod inputs;
mod operator;
mod part;
mod plan;
mod run;
mod setup;
mod team;

pub(crate) use exchange::Messages;
pub(crate) use team::PartFigures;

#[cfg(test)]
mod tests;

use lodestore_graph::sampler::Deal;
use lodestore_graph::{NodeId, PartitionBook};

use super::{StrategyConfig, StrategyRun};
use crate::checkpoint::Computation;
use crate::config::TrainConfig;
use crate::error::TrainError;
use crate::replica::Replica;
use crate::setup::Setup;
use config::FullConfig;
use run::FullRun;

impl StrategyConfig for FullConfig {
    fn name(&self) -> &'static str {
        "full"
    }

    fn validate(&self, config: &TrainConfig) -> Result<(), TrainError> {
        self.check(config)
    }

    fn computation(&self, config: &TrainConfig) -> Computation {
        let computation = Computation::new("Full")
            .with("halo", &self.halo)
            .with("staleness", &self.staleness)
            .with("compress", &self.compress);
        if self.devices.is_empty() {
            return computation;
        }
        // A worker's device decides which replicas its partitions drop.
        computation.with("workers", &config.workers).with("devices", &self.devices)
    }

    fn deal(&self) -> Deal {
        Deal::Owned
    }

    fn trains_partitions(&self) -> bool {
        true
    }

    /// Returns one batch for each worker: all nodes of its partitions.
    fn n_batches(
        &self,
        config: &TrainConfig,
        _book: &PartitionBook,
        _train: &[NodeId],
    ) -> Vec<u32> {
        vec![1; config.workers as usize]
    }

    fn run<'scope>(
        &'scope self,
        setup: &'scope Setup<'scope>,
        _replica: &Replica,
    ) -> Box<dyn StrategyRun<'scope> + 'scope> {
        Box::new(FullRun::new(setup, self))
    }
}
