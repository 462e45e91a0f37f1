//! An epoch of all partitions, and the average of their local models.

use std::{mem::take, ops::ControlFlow, time::Instant};

use super::{average::Shares, plan::PartitionPlan, team::PartitionTeam, worker::PartitionFigures};
use crate::adam::ReplicaState;
use crate::checkpoint::Checkpoints;
use crate::collective::{Collective, Payload, ThreadCollective};
use crate::config::Due;
use crate::error::TrainError;
use crate::process_group::ProcessGroup;
use crate::report::{EpochReport, Progress};
use crate::run::Run;
use crate::step::{Place, StepSeconds, WorkerStep};
use crate::step_outcome::TeamStep;

/// The leader asks for nothing.
const NOTHING: u32 = 0;
/// The leader writes a checkpoint.
const SAVE: u32 = 1;
/// The run ends here.
const END: u32 = 2;

/// The local models of a run, one for each partition.
#[derive(Debug)]
pub(crate) struct LocalModels {
    /// By partition; those of other processes are empty but while a checkpoint is written.
    pub(crate) states: Vec<ReplicaState>,
    pub(super) shares: Shares,
    /// Share of the entries of whole neighbourhoods that partitions keep.
    pub(super) kept_share: f64,
    /// Whether there are checkpoints.
    pub(super) saves: bool,
}

impl LocalModels {
    /// Returns the parameters of the average of all local models, all of which are here. Where all
    /// have the same, as after an average, it is these: their weighted sum may differ in the last
    /// bit.
    pub(crate) fn average_here(&self) -> Result<Vec<Vec<f32>>, TrainError> {
        if self.states.windows(2).all(|pair| pair[0].values == pair[1].values) {
            return Ok(self.states[0].values.clone());
        }
        let terms = self.shares.terms((0..).zip(&self.states))?;
        let len = self.shares.len();
        let sum = ThreadCollective::alone().reduce_ordered(Payload::Parameters, terms, len)?;
        Ok(self.shares.lists(&sum))
    }

    /// Forgets the states of the partitions of other processes.
    fn keep_own(&mut self, group: &ProcessGroup<'_>, n_workers: u32) {
        let others = (0..).zip(&mut self.states);
        let others = others.filter(|(part, _)| !group.has_worker(part % n_workers));
        others.for_each(|(_, state)| *state = ReplicaState::default());
    }
}

impl Run<'_> {
    /// Takes note of what partitions keep, and agrees on whether there are checkpoints.
    pub(crate) fn begin_partitions(
        &mut self,
        plans: &[PartitionPlan],
        group: &mut ProcessGroup<'_>,
    ) -> Result<(), TrainError> {
        let saves = group.of_leader(&u32::from(self.checkpoints.is_some()))?;
        let Some(local) = &mut self.local else { return Ok(()) };
        local.saves = saves != 0;
        local.keep_own(group, self.config.workers);
        let sum = |of: fn(&PartitionPlan) -> f64| plans.iter().map(of).sum::<f64>();
        let all = sum(|plan| plan.all);
        local.kept_share = if all > 0.0 { sum(|plan| plan.kept) / all } else { 1.0 };
        Ok(())
    }

    /// Trains the local models of the partitions that are left of the present epoch, and averages
    /// them if that is due.
    pub(crate) fn train_partitions(
        &mut self,
        team: &mut PartitionTeam<'_>,
        group: &mut ProcessGroup<'_>,
        progress: &mut dyn FnMut(&Progress<'_>) -> ControlFlow<()>,
    ) -> Result<(), TrainError> {
        let (start, saving) = (Instant::now(), self.checkpoint_seconds());
        let (epoch, total) = (self.place.epoch, team.n_parts);
        let (mut halo_rows, mut halo_bytes) = (0, 0);
        while self.place.step < total {
            let (first, began) = (self.place.step, Instant::now());
            let figures = self.round(team, group)?;
            let seconds = began.elapsed().as_secs_f64();
            let workers: Vec<WorkerStep> =
                figures.iter().map(|of_part| self.worker_step(of_part, seconds)).collect();
            let mut loss = TeamStep::default();
            for (of_part, worker) in figures.iter().zip(&workers) {
                let step = TeamStep::new(vec![(worker.worker, of_part.outcome.clone())]);
                let step = TeamStep { n_batches: of_part.n_batches, ..step };
                self.record.stepped(&step, std::slice::from_ref(worker));
                loss.outcomes.extend(step.outcomes);
            }
            let loss = TeamStep::new(take(&mut loss.outcomes)).loss;
            halo_rows += figures.iter().map(|of_part| of_part.loaded.halo_rows).sum::<u64>();
            halo_bytes += figures.iter().map(|of_part| of_part.loaded.halo_bytes).sum::<u64>();
            self.place.step = first + figures.len() as u32;
            let (done, workers) = (self.place.step, &workers[..]);
            let is_ended =
                progress(&Progress::Step { epoch, done, total, loss, workers }).is_break();
            let is_due = |checkpoints: &Checkpoints| {
                let before = u64::from(epoch) * u64::from(total) + u64::from(first);
                checkpoints.is_passed(before, before + u64::from(done - first))
            };
            let is_saved = self.checkpoints.as_ref().is_some_and(is_due)
                || (is_ended && self.checkpoints.is_some());
            let wanted =
                if is_saved { SAVE } else { NOTHING } + if is_ended { END } else { NOTHING };
            let wanted = group.of_leader(&wanted)?;
            if wanted & SAVE != 0 {
                self.gather_states(group)?;
                self.save()?;
                self.forget_states(group);
            }
            if wanted & END != 0 {
                self.is_interrupted = true;
                return Ok(());
            }
        }
        let synchronised_bytes = self.average(epoch, group)?;
        let report = EpochReport {
            epoch,
            steps: total,
            seconds: start.elapsed().as_secs_f64() - (self.checkpoint_seconds() - saving),
            halo_rows: Some(halo_rows),
            halo_bytes: Some(halo_bytes),
            synchronised_bytes: Some(synchronised_bytes),
            kept_share: Some(self.local.as_ref().map_or(1.0, |local| local.kept_share)),
            ..EpochReport::default()
        };
        self.record.end_epoch(&report, &team.stats);
        if self.local.as_ref().is_some_and(|local| local.saves) {
            self.gather_states(group)?;
        }
        Ok(())
    }

    /// Trains one partition of each worker; returns the figures of all.
    fn round(
        &mut self,
        team: &mut PartitionTeam<'_>,
        group: &mut ProcessGroup<'_>,
    ) -> Result<Vec<PartitionFigures>, TrainError> {
        let Place { epoch, step } = self.place;
        let Some(local) = &mut self.local else { unreachable!("a run of partitions") };
        let own = team.train(epoch, step, &mut local.states)?;
        let mut figures: Vec<PartitionFigures> =
            group.exchange(&own)?.into_iter().flatten().collect();
        figures.sort_by_key(|of_part| of_part.part);
        team.note(&figures);
        Ok(figures)
    }

    /// Averages the local models, where that is due or the average is to be measured. Returns the
    /// bytes that workers send to synchronise them, each as a process of its own.
    fn average(&mut self, epoch: u32, group: &mut ProcessGroup<'_>) -> Result<u64, TrainError> {
        let sdt = self.config.sdt;
        let is_due = (epoch + 1).is_multiple_of(sdt.average_every);
        let is_last = epoch + 1 == self.config.epochs;
        let is_measured = self.config.evaluation_after(epoch + 1, self.has_test) != Due::No;
        if !is_due && !is_last && !is_measured {
            return Ok(0);
        }
        let Some(local) = &mut self.local else { return Ok(0) };
        let n_workers = self.config.workers;
        let is_own = |part: u32| group.has_worker(part % n_workers);
        let own = (0..).zip(&local.states).filter(|(part, _)| is_own(*part));
        let terms = local.shares.terms(own)?;
        let len = local.shares.len();
        let sum = group.sum_parameters(terms, len)?;
        self.replica.set_values(local.shares.lists(&sum))?;
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

    /// Brings the states of all local models to the leader.
    fn gather_states(&mut self, group: &mut ProcessGroup<'_>) -> Result<(), TrainError> {
        let Some(local) = &mut self.local else { return Ok(()) };
        group.gather_states(&mut local.states, self.config.workers)
    }

    /// Forgets the states of the partitions of other processes, which a checkpoint has.
    pub(crate) fn forget_states(&mut self, group: &ProcessGroup<'_>) {
        if let Some(local) = &mut self.local {
            local.keep_own(group, self.config.workers);
        }
    }

    /// Returns what the worker of a partition did in a round.
    fn worker_step(&self, of_part: &PartitionFigures, step_seconds: f64) -> WorkerStep {
        let PartitionFigures { part, loaded, ref outcome, .. } = *of_part;
        let place = Place { step: part, ..self.place };
        WorkerStep {
            seconds: StepSeconds { step: step_seconds, ..outcome.seconds },
            sdt: Some(loaded),
            ..outcome.worker_step(place, part % self.config.workers, self.row_bytes)
        }
    }
}
