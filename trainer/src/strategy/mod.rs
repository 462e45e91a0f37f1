//! Strategies: a folder each, with its settings, its checks, and the steps of its epochs.
//!
//! [`Strategy`] is a strategy with its settings. `StrategyConfig` is what these decide before a
//! run, `StrategyRun` the run itself. The rest of the trainer knows these two alone. A new strategy
//! is a folder that implements both, and a variant of [`Strategy`].

pub(crate) mod full;
pub mod hop;
pub(crate) mod massive;
mod mini_batches;
pub(crate) mod ondemand;
pub(crate) mod rapid;
pub(crate) mod sdt;

use std::{borrow::Cow, fmt, ops::ControlFlow, str::FromStr, thread::Scope};

use lodestore_graph::{
    NodeId, PartitionBook,
    sampler::{Deal, RootPlan, RootShare},
};
use lodestore_models::adam::ReplicaState;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::checkpoint::Computation;
use crate::config::{
    FullConfig, HopConfig, MassiveConfig, OndemandConfig, RapidConfig, ScheduleConfig, SdtConfig,
    TrainConfig,
};
use crate::error::{TrainError, check};
use crate::process_group::ProcessGroup;
use crate::replica::Replica;
use crate::report::{Progress, TrainReport};
use crate::run::Run;
use crate::setup::Setup;
use crate::sources::WorkerSources;
use crate::step_outcome::MemberStats;

/// A strategy with its settings.
#[derive(Clone, Debug, PartialEq)]
pub enum Strategy {
    /// Each batch is sampled and pulled when it is needed, as DGL does.
    Ondemand(OndemandConfig),
    /// RapidGNN: a schedule on disk, a steady cache and a prefetch window.
    Rapid(RapidConfig),
    /// MassiveGNN. Batches are sampled as they are needed, the next one while this one is trained
    /// on. Rows pass through a buffer with eviction by score: see
    /// [`crate::sources::WorkerSources::with_buffer`].
    Massive(MassiveConfig),
    /// HopGNN: each root of a global mini-batch is trained on by the worker that owns it.
    Hop(HopConfig),
    /// SDT-GNN: a local model for each partition, whose rows are loaded with those of its halo.
    Sdt(SdtConfig),
    /// CaPGNN: full-batch training over partitions that exchange rows of their halos.
    Full(FullConfig),
}

/// Observer of a run. It breaks to end the run.
pub(crate) type Observer<'a> = &'a mut dyn FnMut(&Progress<'_>) -> ControlFlow<()>;

/// What a strategy decides before a run. Defaults are those of mini-batches: each worker trains on
/// batches of its own, and gradients are averaged in each step.
pub(crate) trait StrategyConfig {
    /// Returns the name for users.
    fn name(&self) -> &'static str;

    /// Fails for settings that cannot work.
    fn validate(&self, _config: &TrainConfig) -> Result<(), TrainError> {
        Ok(())
    }

    /// Fails if `sources`, one entry for each of `workers`, do not fit the strategy.
    fn check_sources(
        &self,
        _sources: &[WorkerSources],
        _workers: &[u32],
    ) -> Result<(), TrainError> {
        Ok(())
    }

    /// Returns the settings that decide what the run computes.
    fn computation(&self, config: &TrainConfig) -> Computation;

    /// Returns settings that do not change the computation but must be equal in all processes of a
    /// run.
    fn agreed_settings(&self) -> String {
        String::new()
    }

    /// Returns the assignment of training nodes to workers.
    fn deal(&self) -> Deal;

    /// Returns the plan of batches.
    fn root_plan<'a>(&self, config: &TrainConfig, book: &'a PartitionBook) -> RootPlan<'a> {
        config.plan_of(self.deal(), book)
    }

    /// Returns whether workers compute on whole partitions. Then each worker needs a partition.
    fn trains_partitions(&self) -> bool {
        false
    }

    /// Returns the batches of an epoch of each share of the training nodes.
    fn n_batches(&self, config: &TrainConfig, book: &PartitionBook, train: &[NodeId]) -> Vec<u32> {
        let plan = self.root_plan(config, book);
        let mut n_batches = Vec::new();
        for worker in 0..plan.workers {
            let share = RootShare { worker, plan, train };
            n_batches.push(u32::try_from(share.batches(0).len()).unwrap_or(u32::MAX));
        }
        n_batches
    }

    /// Returns the steps of an epoch: the batches of the largest share.
    fn n_steps(&self, n_batches: &[u32]) -> u32 {
        n_batches.iter().copied().max().unwrap_or(0)
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
    /// Prepares the first step, for example writes a schedule. Breaks if `progress` did.
    fn prepare(
        &mut self,
        _group: &mut ProcessGroup<'_>,
        _progress: Observer<'_>,
    ) -> Result<ControlFlow<()>, TrainError> {
        Ok(ControlFlow::Continue(()))
    }

    /// Starts the workers of this process at the place of `run`.
    fn start<'env>(
        &mut self,
        scope: &'scope Scope<'scope, 'env>,
        run: &mut Run<'_>,
        group: &mut ProcessGroup<'_>,
    ) -> Result<(), TrainError>;

    /// Trains the rest of the present epoch, and closes its report. Ends after the step at which
    /// `progress` breaks, with [`Run::is_interrupted`] and a checkpoint.
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

    /// Drops states that only a checkpoint needs.
    fn forget_states(&mut self, _group: &ProcessGroup<'_>) {}

    /// Returns figures of all workers of the run up to `epoch`; none before the workers started.
    fn stats(&mut self, epoch: u32) -> &[MemberStats];

    /// Adds the strategy's figures to the report.
    fn report(&self, _report: &mut TrainReport) {}
}

impl Strategy {
    /// Returns every strategy with its default settings.
    fn all() -> [Self; 6] {
        [
            Self::Ondemand(OndemandConfig::default()),
            Self::Rapid(RapidConfig::default()),
            Self::Massive(MassiveConfig::default()),
            Self::Hop(HopConfig::default()),
            Self::Sdt(SdtConfig::default()),
            Self::Full(FullConfig::default()),
        ]
    }

    pub(crate) fn config(&self) -> &dyn StrategyConfig {
        match self {
            Self::Ondemand(config) => config,
            Self::Rapid(config) => config,
            Self::Massive(config) => config,
            Self::Hop(config) => config,
            Self::Sdt(config) => config,
            Self::Full(config) => config,
        }
    }

    /// Returns the name for users.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.config().name()
    }

    /// Returns the settings of the schedule, if the strategy has one.
    #[must_use]
    pub fn schedule(&self) -> Option<&ScheduleConfig> {
        match self {
            Self::Rapid(rapid) => Some(&rapid.schedule),
            Self::Hop(hop) => hop.schedule.as_ref(),
            _ => None,
        }
    }

    /// Returns the mutable settings of the schedule, if the strategy has one.
    pub fn schedule_mut(&mut self) -> Option<&mut ScheduleConfig> {
        match self {
            Self::Rapid(rapid) => Some(&mut rapid.schedule),
            Self::Hop(hop) => hop.schedule.as_mut(),
            _ => None,
        }
    }
}

impl Default for Strategy {
    fn default() -> Self {
        Self::Rapid(RapidConfig::default())
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Strategy {
    type Err = String;

    /// Returns the strategy of this name with its default settings.
    fn from_str(name: &str) -> Result<Self, String> {
        let names = Self::all().map(|strategy| strategy.name()).join(", ");
        let found = Self::all().into_iter().find(|strategy| strategy.name() == name);
        found.ok_or_else(|| format!("no strategy `{name}`; there are: {names}"))
    }
}

impl Serialize for Strategy {
    /// Writes the name, then the roots of mini-batches, or the settings of another strategy under
    /// its name. It omits how rows reach a mini-batch, which never changes what the run computes.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        fields.serialize_entry("strategy", self.name())?;
        match self {
            Self::Ondemand(OndemandConfig { roots, .. })
            | Self::Rapid(RapidConfig { roots, .. })
            | Self::Massive(MassiveConfig { roots }) => fields.serialize_entry("roots", roots)?,
            Self::Hop(hop) => fields.serialize_entry("hop", hop)?,
            Self::Sdt(sdt) => fields.serialize_entry("sdt", sdt)?,
            Self::Full(full) => fields.serialize_entry("full", full)?,
        }
        fields.end()
    }
}

/// Fails for more workers than partitions.
pub(crate) fn check_parts(config: &TrainConfig, book: &PartitionBook) -> Result<(), TrainError> {
    let n_parts = u32::from(book.n_parts());
    let most = format!("at most one for each of the {n_parts} partitions");
    check(config.workers <= n_parts, "workers", &most, config.workers)
}
