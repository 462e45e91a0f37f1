//! An epoch of all partitions, and the average of their local models.

use std::{borrow::Cow, mem::take, thread::Scope, time::Instant};

use lodestore_comm::collective::Collective;
use lodestore_comm::tag::Payload;
use lodestore_comm::threads::ThreadCollective;
use lodestore_graph::region::PartitionPlan;
use lodestore_models::adam::ReplicaState;

use super::{
    average::Shares,
    config::SdtConfig,
    setup::{initial_models, partition_team},
    team::PartitionTeam,
    worker::PartitionFigures,
};
use crate::checkpoint::Checkpoints;
use crate::config::Due;
use crate::error::TrainError;
use crate::process_group::ProcessGroup;
use crate::replica::Replica;
use crate::report::{EpochReport, Progress};
use crate::run::Run;
use crate::setup::Setup;
use crate::step::{Place, StepSeconds, WorkerStep};
use crate::step_outcome::{MemberStats, TeamStep};
use crate::strategy::{Observer, StrategyRun};

/// The run continues.
const NOTHING: u32 = 0;
/// The leader writes a checkpoint.
const SAVE: u32 = 1;
/// The run ends here.
const END: u32 = 2;

/// A run of local models; the model of the run is their average.
pub(super) struct SdtRun<'scope> {
    setup: &'scope Setup<'scope>,
    config: &'scope SdtConfig,
    local: LocalModels,
    team: Option<PartitionTeam<'scope>>,
}

/// The local models of a run, one for each partition.
#[derive(Debug)]
pub(super) struct LocalModels {
    /// By partition; states of other processes are empty, except while a checkpoint is written.
    pub(super) states: Vec<ReplicaState>,
    pub(super) shares: Shares,
    /// Share of the entries of whole neighbourhoods that partitions keep.
    pub(super) kept_share: f64,
    /// Whether the run has checkpoints.
    pub(super) saves: bool,
}

impl LocalModels {
    /// Returns the parameters of the average of all local models, which must be in this process. If
    /// all are equal, as after an average, returns them: a weighted sum may differ in the last bit.
    fn average_here(&self) -> Result<Vec<Vec<f32>>, TrainError> {
        if self.states.windows(2).all(|pair| pair[0].values == pair[1].values) {
            return Ok(self.states[0].values.clone());
        }
        let terms = self.shares.terms((0..).zip(&self.states))?;
        let len = self.shares.len();
        let sum = ThreadCollective::alone().reduce_ordered(Payload::Parameters, terms, len)?;
        Ok(self.shares.lists(&sum))
    }

    /// Drops the states of other processes' partitions.
    fn keep_own(&mut self, group: &ProcessGroup<'_>, n_workers: u32) {
        let others = (0..).zip(&mut self.states);
        let others = others.filter(|(part, _)| !group.has_worker(part % n_workers));
        others.for_each(|(_, state)| *state = ReplicaState::default());
    }
}

impl<'scope> SdtRun<'scope> {
    /// Returns a run whose local models all equal `replica`.
    pub(super) fn new(
        setup: &'scope Setup<'scope>,
        config: &'scope SdtConfig,
        replica: &Replica,
    ) -> Self {
        let local = initial_models(setup, config, replica.adam.state());
        Self { setup, config, local, team: None }
    }

    /// Records the kept share, and learns from the leader whether the run has checkpoints.
    fn begin(
        &mut self,
        run: &Run<'_>,
        plans: &[PartitionPlan],
        group: &mut ProcessGroup<'_>,
    ) -> Result<(), TrainError> {
        let saves = group.of_leader(&u32::from(run.checkpoints.is_some()))?;
        self.local.saves = saves != 0;
        self.local.keep_own(group, run.config.workers);
        let sum = |of: fn(&PartitionPlan) -> f64| plans.iter().map(of).sum::<f64>();
        let all = sum(|plan| plan.all);
        self.local.kept_share = if all > 0.0 { sum(|plan| plan.kept) / all } else { 1.0 };
        Ok(())
    }

    /// Returns the started workers of this process.
    fn team(&mut self) -> &mut PartitionTeam<'scope> {
        let Some(team) = &mut self.team else { unreachable!("workers start before an epoch") };
        team
    }

    /// Trains one partition of each worker; returns the figures of all.
    fn round(
        &mut self,
        run: &Run<'_>,
        group: &mut ProcessGroup<'_>,
    ) -> Result<Vec<PartitionFigures>, TrainError> {
        let Place { epoch, step } = run.place;
        let Some(team) = &mut self.team else { unreachable!("workers start before an epoch") };
        let own = team.train(epoch, step, &mut self.local.states)?;
        let mut figures: Vec<PartitionFigures> =
            group.exchange(&own)?.into_iter().flatten().collect();
        figures.sort_by_key(|of_part| of_part.part);
        team.note(&figures);
        Ok(figures)
    }

    /// Averages the local models if an average or its evaluation is due. Returns the bytes that
    /// workers send for it, each counted as a process of its own.
    fn average(
        &mut self,
        run: &mut Run<'_>,
        epoch: u32,
        group: &mut ProcessGroup<'_>,
    ) -> Result<u64, TrainError> {
        let is_due = (epoch + 1).is_multiple_of(self.config.average_every);
        let is_last = epoch + 1 == run.config.epochs;
        let is_measured = run.config.evaluation_after(epoch + 1, run.has_test) != Due::No;
        if !is_due && !is_last && !is_measured {
            return Ok(0);
        }
        let local = &mut self.local;
        let n_workers = run.config.workers;
        let is_own = |part: u32| group.has_worker(part % n_workers);
        let own = (0..).zip(&local.states).filter(|(part, _)| is_own(*part));
        let terms = local.shares.terms(own)?;
        let len = local.shares.len();
        let sum = group.sum_parameters(terms, len)?;
        run.replica.set_values(&local.shares.lists(&sum));
        if !is_due {
            return Ok(0);
        }
        let own =
            (0..).zip(&mut local.states).filter(|(part, _)| group.has_worker(part % n_workers));
        local.shares.adopt(&sum, own.map(|(_, state)| state));
        // A share of each term to each worker, then a share of the sum to each, as processes.
        let (n_bytes, p, q) = (4 * len as u64, local.states.len() as u64, u64::from(n_workers));
        Ok(n_bytes * (q - 1) * (p + q) / q)
    }

    /// Sends the states of all local models to the leader.
    fn gather_states(
        &mut self,
        run: &Run<'_>,
        group: &mut ProcessGroup<'_>,
    ) -> Result<(), TrainError> {
        group.gather_states(&mut self.local.states, run.config.workers)
    }
}

impl<'scope> StrategyRun<'scope> for SdtRun<'scope> {
    fn start<'env>(
        &mut self,
        scope: &'scope Scope<'scope, 'env>,
        run: &mut Run<'_>,
        group: &mut ProcessGroup<'_>,
    ) -> Result<(), TrainError> {
        let (team, plans) = partition_team(self.setup, self.config, scope, run.place, group)?;
        self.team = Some(team);
        self.begin(run, &plans, group)
    }

    /// Trains the remaining partitions of the present epoch, and averages the local models if an
    /// average is due.
    fn epoch(
        &mut self,
        run: &mut Run<'_>,
        group: &mut ProcessGroup<'_>,
        progress: Observer<'_>,
    ) -> Result<(), TrainError> {
        let start = Instant::now();
        let saving = run.checkpoint_seconds();
        let epoch = run.place.epoch;
        let total = self.team().n_parts;
        let (mut halo_rows, mut halo_bytes) = (0, 0);
        while run.place.step < total {
            let (first, began) = (run.place.step, Instant::now());
            let figures = self.round(run, group)?;
            let seconds = began.elapsed().as_secs_f64();
            let workers: Vec<WorkerStep> =
                figures.iter().map(|of_part| worker_step(run, of_part, seconds)).collect();
            let mut loss = TeamStep::default();
            for (of_part, worker) in figures.iter().zip(&workers) {
                let step = TeamStep::new(vec![(worker.worker, of_part.outcome.clone())]);
                let step = TeamStep { n_batches: of_part.n_batches, ..step };
                run.record.stepped(&step, std::slice::from_ref(worker));
                loss.outcomes.extend(step.outcomes);
            }
            let loss = TeamStep::new(take(&mut loss.outcomes)).loss;
            halo_rows += figures.iter().map(|of_part| of_part.loaded.halo_rows).sum::<u64>();
            halo_bytes += figures.iter().map(|of_part| of_part.loaded.halo_bytes).sum::<u64>();
            run.place.step = first + figures.len() as u32;
            let (done, workers) = (run.place.step, &workers[..]);
            let is_ended =
                progress(&Progress::Step { epoch, done, total, loss, workers }).is_break();
            let is_due = |checkpoints: &Checkpoints| {
                let before = u64::from(epoch) * u64::from(total) + u64::from(first);
                checkpoints.is_passed(before, before + u64::from(done - first))
            };
            let is_saved = run.checkpoints.as_ref().is_some_and(is_due)
                || (is_ended && run.checkpoints.is_some());
            let wanted =
                if is_saved { SAVE } else { NOTHING } + if is_ended { END } else { NOTHING };
            let wanted = group.of_leader(&wanted)?;
            if wanted & SAVE != 0 {
                self.gather_states(run, group)?;
                run.save_states(self)?;
                self.forget_states(group);
            }
            if wanted & END != 0 {
                run.is_interrupted = true;
                return Ok(());
            }
        }
        let synchronised_bytes = self.average(run, epoch, group)?;
        let report = EpochReport {
            epoch,
            steps: total,
            seconds: start.elapsed().as_secs_f64() - (run.checkpoint_seconds() - saving),
            halo_rows: Some(halo_rows),
            halo_bytes: Some(halo_bytes),
            synchronised_bytes: Some(synchronised_bytes),
            kept_share: Some(self.local.kept_share),
            ..EpochReport::default()
        };
        run.record.end_epoch(&report, &self.team().stats);
        if self.local.saves {
            self.gather_states(run, group)?;
        }
        Ok(())
    }

    /// Returns one replica for each partition.
    fn n_replicas(&self) -> u32 {
        self.local.states.len() as u32
    }

    fn updates_each_step(&self) -> bool {
        false
    }

    fn states(&self, _replica: &Replica) -> Cow<'_, [ReplicaState]> {
        Cow::Borrowed(&self.local.states)
    }

    fn restore(
        &mut self,
        states: Vec<ReplicaState>,
        replica: &mut Replica,
    ) -> Result<(), TrainError> {
        self.local.states = states;
        replica.set_values(&self.local.average_here()?);
        Ok(())
    }

    /// Drops the states of other processes' partitions; the checkpoint has them.
    fn forget_states(&mut self, group: &ProcessGroup<'_>) {
        self.local.keep_own(group, self.setup.config.workers);
    }

    fn stats(&mut self, _epoch: u32) -> &[MemberStats] {
        self.team.as_ref().map_or(&[], |team| &team.stats)
    }
}

/// Returns the step of a partition's worker in a round.
fn worker_step(run: &Run<'_>, of_part: &PartitionFigures, step_seconds: f64) -> WorkerStep {
    let PartitionFigures { part, loaded, ref outcome, .. } = *of_part;
    let place = Place { step: part, ..run.place };
    WorkerStep {
        seconds: StepSeconds { step: step_seconds, ..outcome.seconds },
        sdt: Some(loaded),
        ..outcome.worker_step(place, part % run.config.workers, run.row_bytes)
    }
}
