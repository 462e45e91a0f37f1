//! Epochs with migration: models move between the time steps of an iteration (HopGNN, section 5.1).

use std::{
    sync::Arc,
    thread::Scope,
    time::{Duration, Instant},
};

use lodestore_graph::sampler::Sampler;

use super::config::{HopConfig, Merge};
use super::iteration::{Iterations, n_merges};
use super::micrographs::{MicrographOrder, Micrographs};
use super::notes::HopNotes;
use crate::error::TrainError;
use crate::process_group::ProcessGroup;
use crate::replica::Replica;
use crate::run::Run;
use crate::setup::Setup;
use crate::step::Place;
use crate::step_outcome::{GradientTerm, MemberStats, MovingModel, StepOutcome, TeamStep};
use crate::strategy::mini_batches::{Steps, train_epoch};
use crate::strategy::{Observer, StrategyRun};
use crate::worker::StepOrder;
use crate::workers::{Feed, Team};

/// A run whose models move to the owners of their roots.
pub(super) struct MigratingRun<'scope> {
    setup: &'scope Setup<'scope>,
    config: &'scope HopConfig,
    steps: Option<MigratingSteps<'scope>>,
}

/// Workers that train models in turn.
pub(super) struct MigratingSteps<'scope> {
    team: Team<'scope, MicrographOrder>,
    n_workers: u32,
    iterations: Iterations<'scope>,
    /// Time steps of each iteration that are merged into the others.
    pub(super) n_merges: u32,
}

impl<'scope> MigratingRun<'scope> {
    pub(super) fn new(setup: &'scope Setup<'scope>, config: &'scope HopConfig) -> Self {
        Self { setup, config, steps: None }
    }
}

impl<'scope> MigratingSteps<'scope> {
    /// Starts the workers of this process.
    pub(super) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        setup: &'scope Setup<'scope>,
        config: &HopConfig,
        group: &ProcessGroup<'_>,
    ) -> Result<Self, TrainError> {
        let feed = |worker| {
            let sampler = Sampler::new(setup.graph.topology, &setup.config.fanouts);
            let loader = setup.loader_of(worker)?;
            let micrographs = Micrographs::new(worker, sampler, loader, config.pregather);
            Ok(Feed { batches: Box::new(micrographs), kept: None })
        };
        Ok(Self {
            team: Team::start(scope, setup, group, &feed)?,
            n_workers: setup.config.workers,
            iterations: Iterations::new(setup.root_plan(), &setup.labels.train, config.merge),
            n_merges: 0,
        })
    }
}

impl<'scope> StrategyRun<'scope> for MigratingRun<'scope> {
    fn start<'env>(
        &mut self,
        scope: &'scope Scope<'scope, 'env>,
        _run: &mut Run<'_>,
        group: &mut ProcessGroup<'_>,
    ) -> Result<(), TrainError> {
        self.steps = Some(MigratingSteps::start(scope, self.setup, self.config, group)?);
        Ok(())
    }

    fn epoch(
        &mut self,
        run: &mut Run<'_>,
        group: &mut ProcessGroup<'_>,
        progress: Observer<'_>,
    ) -> Result<(), TrainError> {
        let Some(steps) = &mut self.steps else { unreachable!("workers start before an epoch") };
        if self.config.merge != Merge::None {
            let n_merges = n_merges(&run.record.measured.epochs, steps.n_workers);
            steps.n_merges = group.of_leader(&n_merges)?;
        }
        let notes = HopNotes { n_workers: steps.n_workers };
        train_epoch(run, steps, &notes, self.setup.n_steps(), group, progress)
    }

    fn stats(&mut self, epoch: u32) -> &[MemberStats] {
        self.steps.as_mut().map_or(&[], |steps| steps.team.stats(epoch))
    }
}

impl Steps for MigratingSteps<'_> {
    /// Trains the models of an iteration, which move between its time steps.
    fn step(
        &mut self,
        Place { epoch, step }: Place,
        replica: &Replica,
        group: &mut ProcessGroup<'_>,
    ) -> Result<TeamStep, TrainError> {
        let iteration = self.iterations.get(epoch, step, self.n_merges);
        let n_workers = self.n_workers;
        let parameters = replica.adam.values().concat();
        let of_models = iteration.roots_of_models();
        // All models are equal at the start of an iteration, so each starts at its first worker.
        let start = |worker| MovingModel { worker, sum: vec![0.0; parameters.len()] };
        let mut models: Vec<MovingModel> = self.team.workers().map(start).collect();
        let mut totals = vec![StepOutcome::default(); models.len()];
        let mut model_bytes = 0;
        let mut moving = Duration::ZERO;
        for (at, time_step) in iteration.steps().iter().enumerate() {
            if let Some(before) = at.checked_sub(1).map(|before| &iteration.steps()[before]) {
                let start = Instant::now();
                let by = time_step.offset - before.offset;
                models = group.migrate(models, by, n_workers, &parameters)?;
                moving += start.elapsed();
                model_bytes += u64::from(n_workers) * 2 * size_of_val(&parameters[..]) as u64;
            }
            let part = MicrographOrder { iteration: Arc::clone(&iteration), at };
            let order = StepOrder { epoch, batch: step, part, ends_epoch: false };
            let outcomes = self.team.train(&order)?;
            for (((worker, mut outcome), model), total) in
                outcomes.into_iter().zip(&mut models).zip(&mut totals)
            {
                let of_model = of_models[time_step.model_at(worker) as usize];
                let share = (outcome.n_roots as f64 / of_model.max(1) as f64) as f32;
                let gradient = outcome.take_gradient(worker).values;
                for (sum, value) in model.sum.iter_mut().zip(gradient) {
                    *sum += share * value;
                }
                total.add(&outcome);
            }
        }
        let last = &iteration.steps()[iteration.steps().len() - 1];
        let term = |MovingModel { worker, sum: values }| {
            let order = last.model_at(worker);
            GradientTerm { order, n_roots: of_models[order as usize], values }
        };
        let gradients = models.into_iter().map(term).filter(|term| term.n_roots > 0).collect();
        let outcomes = self.team.workers().zip(totals);
        let outcomes = outcomes.filter(|(_, total)| total.n_roots > 0).collect();
        let step = group.step(outcomes, gradients, self.team.stats(epoch))?;
        Ok(TeamStep {
            n_time_steps: iteration.steps().len() as u32,
            model_bytes,
            average_seconds: step.average_seconds + moving.as_secs_f64(),
            ..step
        })
    }

    fn stats(&mut self, epoch: u32) -> &[MemberStats] {
        self.team.stats(epoch)
    }
}
