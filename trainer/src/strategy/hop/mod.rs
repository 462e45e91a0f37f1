//! HopGNN: workers train on the roots of a global mini-batch that they own.
//!
//! Without migration each worker trains on all of its roots in one step. With migration models move
//! in turn to the workers that own their roots. Either way the gradients, weighted by roots, are
//! those of the whole batch.

pub(crate) mod config;
mod iteration;
mod micrographs;
mod migration;
mod notes;
#[cfg(test)]
mod tests;

use lodestore_graph::sampler::Deal;

use super::mini_batches::MiniBatchRun;
use super::ondemand::SampledFeed;
use super::rapid::ScheduledFeed;
use super::{StrategyConfig, StrategyRun};
use crate::checkpoint::Computation;
use crate::config::{Sampling, TrainConfig};
use crate::error::TrainError;
use crate::replica::Replica;
use crate::setup::Setup;
use config::{HopConfig, Migration};
pub use iteration::{Iteration, Iterations, TimeStep};
use migration::MigratingRun;
use notes::HopNotes;

impl StrategyConfig for HopConfig {
    fn name(&self) -> &'static str {
        "hop"
    }

    fn validate(&self, _config: &TrainConfig) -> Result<(), TrainError> {
        self.check()
    }

    fn computation(&self, config: &TrainConfig) -> Computation {
        Computation::new("Hop")
            .with("migration", &self.migration)
            .with("merge", &self.merge)
            .with("workers", &config.workers)
    }

    fn agreed_settings(&self) -> String {
        let keep = self.schedule.as_ref().map(|schedule| schedule.keep);
        format!("{}, {keep:?}", self.pregather)
    }

    fn deal(&self) -> Deal {
        Deal::Home
    }

    fn run<'scope>(
        &'scope self,
        setup: &'scope Setup<'scope>,
        _replica: &Replica,
    ) -> Box<dyn StrategyRun<'scope> + 'scope> {
        if self.migration == Migration::Paper {
            return Box::new(MigratingRun::new(setup, self));
        }
        let run = if let Some(schedule) = &self.schedule {
            MiniBatchRun::new(setup, ScheduledFeed::new(setup, schedule))
        } else {
            let feed = SampledFeed { setup, sampling: Sampling::Seeded, ahead: 0 };
            MiniBatchRun::new(setup, feed)
        };
        Box::new(run.with_notes(HopNotes { n_workers: setup.config.workers }))
    }
}
