//! Strategies: a folder each, with its settings, its checks, and the steps of its epochs.
//!
//! `StrategyConfig` is what a strategy decides before a run, `StrategyRun` the run itself. The rest
//! of the trainer knows these two alone. A new strategy is a folder that implements both, and a line
//! in `Strategy::config`.

pub(crate) mod full;
pub mod hop;
mod massive;
mod mini_batches;
mod ondemand;
mod rapid;
pub(crate) mod sdt;

use std::{borrow::Cow, ops::ControlFlow, thread::Scope};

use lodestore_graph::{
    NodeId, PartitionBook,
    sampler::{Deal, RootPlan, epoch_order},
};
use lodestore_models::adam::ReplicaState;

use crate::checkpoint::Computation;
use crate::config::{Roots, Strategy, TrainConfig};
use crate::error::{TrainError, check};
use crate::process_group::ProcessGroup;
use crate::replica::Replica;
use crate::report::{Progress, TrainReport};
use crate::run::Run;
use crate::setup::Setup;
use crate::sources::WorkerSources;
use crate::step_outcome::MemberStats;

/// Observer of a run, which ends it by breaking.
pub(crate) type Observer<'a> = &'a mut dyn FnMut(&Progress<'_>) -> ControlFlow<()>;

/// What a strategy decides before a run. Defaults are those of mini-batches: each worker trains on
/// batches of its own, and gradients are averaged in each step.
pub(crate) trait StrategyConfig {
    /// Fails for settings that cannot work.
    fn validate(&self, _config: &TrainConfig) -> Result<(), TrainError> {
        Ok(())
    }

    /// Fails where `sources`, one entry for each of `workers`, or the partitions do not fit.
    fn check_sources(
        &self,
        _config: &TrainConfig,
        _book: &PartitionBook,
        _sources: &[WorkerSources],
        _workers: &[u32],
    ) -> Result<(), TrainError> {
        Ok(())
    }

    /// Returns the settings that decide what is computed.
    fn computation(&self, config: &TrainConfig) -> Computation {
        Computation::mini_batches(config)
    }

    /// Returns how the training nodes become batches.
    fn root_plan<'a>(&self, config: &TrainConfig, book: &'a PartitionBook) -> RootPlan<'a> {
        let deal = match config.roots {
            Roots::Owned => Deal::Owned,
            Roots::Global => Deal::Turns,
        };
        config.plan_of(deal, book)
    }

    /// Returns whether a worker without training nodes has nothing to compute.
    fn idles_without_roots(&self) -> bool {
        true
    }

    /// Returns the batches of an epoch of each share of the training nodes.
    fn n_batches(&self, config: &TrainConfig, book: &PartitionBook, train: &[NodeId]) -> Vec<u32> {
        let plan = self.root_plan(config, book);
        let mut n_batches = Vec::new();
        for worker in 0..plan.workers {
            let share = Share { worker, plan, train };
            n_batches.push(u32::try_from(share.batches(0).len()).unwrap_or(u32::MAX));
        }
        n_batches
    }

    /// Returns the steps of an epoch: the batches of the share that has most.
    fn n_steps(&self, n_batches: &[u32]) -> u32 {
        n_batches.iter().copied().max().unwrap_or(0)
    }

    /// Adds the strategy's settings to the report of a run.
    fn report(&self, config: &TrainConfig, report: &mut TrainReport) {
        report.roots = Some(config.roots);
    }

    /// Returns a run of the strategy, in which `replica` is the model before the first step.
    fn run<'scope>(
        &'scope self,
        setup: &'scope Setup<'scope>,
        replica: &Replica,
    ) -> Box<dyn StrategyRun<'scope> + 'scope>;
}

/// A run of a strategy: its workers, and the states of its replicas.
pub(crate) trait StrategyRun<'scope> {
    /// Makes what the first step needs, such as a schedule. Breaks if `progress` did.
    fn prepare(
        &mut self,
        _group: &mut ProcessGroup<'_>,
        _progress: Observer<'_>,
    ) -> Result<ControlFlow<()>, TrainError> {
        Ok(ControlFlow::Continue(()))
    }

    /// Starts the workers of this process from where `run` is.
    fn start<'env>(
        &mut self,
        scope: &'scope Scope<'scope, 'env>,
        run: &mut Run<'_>,
        group: &mut ProcessGroup<'_>,
    ) -> Result<(), TrainError>;

    /// Trains for what is left of the present epoch, and closes its report. Ends after the step at
    /// which `progress` breaks, with [`Run::is_interrupted`] and a checkpoint.
    fn epoch(
        &mut self,
        run: &mut Run<'_>,
        group: &mut ProcessGroup<'_>,
        progress: Observer<'_>,
    ) -> Result<(), TrainError>;

    /// Returns the number of replicas whose states a checkpoint has.
    fn n_replicas(&self) -> u32 {
        1
    }

    /// Returns whether each replica is updated once in each step of the run.
    fn updates_each_step(&self) -> bool {
        true
    }

    /// Returns the state of each replica.
    fn states(&self, replica: &Replica) -> Cow<'_, [ReplicaState]> {
        Cow::Owned(vec![replica.adam.state()])
    }

    /// Restores the states of all replicas.
    fn restore(
        &mut self,
        states: Vec<ReplicaState>,
        replica: &mut Replica,
    ) -> Result<(), TrainError> {
        for state in states {
            replica.adam.restore(state);
        }
        Ok(())
    }

    /// Forgets the states that only a checkpoint needs.
    fn forget_states(&mut self, _group: &ProcessGroup<'_>) {}

    /// Returns figures of all workers of the run up to `epoch`; none before the workers started.
    fn stats(&mut self, epoch: u32) -> &[MemberStats];

    /// Adds what the run made to its report.
    fn report(&self, _report: &mut TrainReport) {}
}

impl Strategy {
    /// Returns what the strategy decides. The one place that tells strategies apart.
    pub(crate) fn config(self, config: &TrainConfig) -> &dyn StrategyConfig {
        match self {
            Self::Ondemand => &ondemand::OndemandConfig,
            Self::Rapid => &rapid::RapidConfig,
            Self::Massive => &massive::MassiveConfig,
            Self::Hop => &config.hop,
            Self::Sdt => &config.sdt,
            Self::Full => &config.full,
        }
    }
}

/// Fails unless each worker trains on roots of its own partitions.
fn check_owned_roots(config: &TrainConfig) -> Result<(), TrainError> {
    let expected = format!("owned under the strategy {}", config.strategy);
    check(config.roots == Roots::Owned, "roots", &expected, config.roots)
}

/// Fails where there are more workers than partitions.
fn check_parts(config: &TrainConfig, book: &PartitionBook) -> Result<(), TrainError> {
    let n_parts = u32::from(book.n_parts());
    let most = format!("at most one for each of the {n_parts} partitions");
    check(config.workers <= n_parts, "workers", &most, config.workers)
}

/// One worker's share of the training nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share<'a> {
    pub(crate) worker: u32,
    pub(crate) plan: RootPlan<'a>,
    pub(crate) train: &'a [NodeId],
}

impl Share<'_> {
    /// Returns the roots of each batch of an epoch, of which any may be none.
    pub(crate) fn batches(&self, epoch: u32) -> Vec<Vec<NodeId>> {
        self.plan.batches(&epoch_order(self.plan.seed, epoch, self.train), self.worker)
    }
}
