//! HopGNN: the roots of a global mini-batch are trained on where they are stored.
//!
//! Without migration each worker trains on all roots that it owns, in one step. With migration
//! models go by turns to the workers that own their roots. Either way the gradients, weighted by
//! roots, are those of the whole batch.

pub(crate) mod config;
mod iteration;
mod micrographs;
mod migration;
mod notes;
#[cfg(test)]
mod tests;

use lodestore_graph::{
    PartitionBook,
    sampler::{Deal, RootPlan},
};

use super::mini_batches::MiniBatchRun;
use super::ondemand::SampledFeed;
use super::rapid::ScheduledFeed;
use super::{StrategyConfig, StrategyRun, check_owned_roots};
use crate::checkpoint::Computation;
use crate::config::{Fetch, Sampling, TrainConfig};
use crate::error::TrainError;
use crate::replica::Replica;
use crate::report::TrainReport;
use crate::setup::Setup;
use config::{HopConfig, Migration};
pub use iteration::{Iteration, Iterations, TimeStep};
use migration::MigratingRun;
use notes::HopNotes;

impl StrategyConfig for HopConfig {
    fn validate(&self, config: &TrainConfig) -> Result<(), TrainError> {
        check_owned_roots(config)?;
        self.check()
    }

    fn computation(&self, config: &TrainConfig) -> Computation {
        let computation = Computation::new("Hop").with("workers", &config.workers);
        Computation { migration: self.migration, merge: self.merge, ..computation }
    }

    fn root_plan<'a>(&self, config: &TrainConfig, book: &'a PartitionBook) -> RootPlan<'a> {
        config.plan_of(Deal::Home, book)
    }

    fn report(&self, _config: &TrainConfig, report: &mut TrainReport) {
        report.hop = Some(*self);
    }

    fn run<'scope>(
        &'scope self,
        setup: &'scope Setup<'scope>,
        _replica: &Replica,
    ) -> Box<dyn StrategyRun<'scope> + 'scope> {
        if self.migration == Migration::Paper {
            return Box::new(MigratingRun::new(setup, self));
        }
        let run = if self.fetch == Fetch::Rapid {
            MiniBatchRun::new(setup, ScheduledFeed::new(setup))
        } else {
            let feed = SampledFeed { setup, sampling: Sampling::Seeded, ahead: 0 };
            MiniBatchRun::new(setup, feed)
        };
        Box::new(run.with_notes(HopNotes { n_workers: setup.config.workers }))
    }
}
