//! State of a run: evaluations, checkpoints, and the report.

use std::{borrow::Cow, mem::take};

use lodestore_comm::traffic::Traffic;
use lodestore_graph::process::{disk_read_bytes, peak_anonymous_bytes, watch_memory};
use lodestore_models::adam::ReplicaState;
use lodestore_models::model_file::{self, SavedModelError};

use crate::best_model::BestModel;
use crate::checkpoint::{Checkpoint, Checkpoints, Folder, Identity};
use crate::config::{Due, TrainConfig};
use crate::error::TrainError;
use crate::evaluate::Evaluator;
use crate::process_group::ProcessGroup;
use crate::record::Record;
use crate::replica::Replica;
use crate::report::{Progress, TrainReport};
use crate::run_model::settings_of;
use crate::setup::Setup;
use crate::step::Place;
use crate::step_outcome::MemberStats;
use crate::strategy::{Observer, StrategyRun};

/// State that changes from step to step.
pub(crate) struct Run<'a> {
    pub(crate) config: &'a TrainConfig,
    /// The next step.
    pub(crate) place: Place,
    /// Model that is measured and saved.
    pub(crate) replica: Replica,
    pub(crate) best: BestModel,
    pub(crate) record: Record,
    pub(crate) checkpoints: Option<Checkpoints>,
    /// Whether the graph has test nodes.
    pub(crate) has_test: bool,
    /// Bytes of a row of features.
    pub(crate) row_bytes: u64,
    /// Bytes that the process had read from disk before the run.
    read_before_bytes: Option<u64>,
    /// Place at which the run was resumed.
    pub(crate) resumed_at: Option<Place>,
    /// Whether the observer ended the run.
    pub(crate) is_interrupted: bool,
    /// Error of saving the model.
    pub(crate) save_error: Option<SavedModelError>,
}

impl<'a> Run<'a> {
    /// Returns a new run, or one resumed from the leader's checkpoint.
    pub(crate) fn new(
        setup: &Setup<'a>,
        replica: Replica,
        strategy: &mut dyn StrategyRun<'_>,
        group: &mut ProcessGroup<'_>,
    ) -> Result<Self, TrainError> {
        let config = setup.config;
        watch_memory();
        let mut run = Self {
            config,
            place: Place::default(),
            replica,
            best: BestModel::default(),
            record: Record::new(config.workers, setup.row_bytes as u64),
            checkpoints: None,
            has_test: !setup.labels.test.is_empty(),
            row_bytes: setup.row_bytes as u64,
            read_before_bytes: disk_read_bytes(),
            resumed_at: None,
            is_interrupted: false,
            save_error: None,
        };
        if let Some(path) = config.save_model.as_ref().filter(|_| group.leads()) {
            model_file::check_place(path)?;
        }
        if let Some(wanted) = config.checkpoint.as_ref().filter(|_| group.leads()) {
            let identity = Identity {
                graph_uuid: setup.graph.uuid,
                settings: setup.settings(),
                lengths: run.replica.adam.lengths(),
                n_replicas: strategy.n_replicas(),
                updates_each_step: strategy.updates_each_step(),
                epochs: config.epochs,
                n_steps: setup.n_steps(),
            };
            let folder = Folder::open(&wanted.dir, wanted.resume)?;
            let checkpoints = Checkpoints::new(folder, identity, wanted.every_steps);
            let loaded = checkpoints.load(setup.versions, config.mixed_versions)?;
            if let Some(checkpoint) = loaded {
                run.restore(checkpoint, strategy)?;
            }
            run.checkpoints = Some(checkpoints);
        }
        run.record.measured.versions = Some(setup.versions);
        run.open(setup, strategy, group)?;
        Ok(run)
    }

    /// Checks that all processes have the same run, and gets the leader's place and states.
    fn open(
        &mut self,
        setup: &Setup<'_>,
        strategy: &mut dyn StrategyRun<'_>,
        group: &mut ProcessGroup<'_>,
    ) -> Result<(), TrainError> {
        let opening = setup.opening();
        let resumed = self.resumed_at.filter(|_| group.leads());
        let resumed = resumed.map(|at| (at, strategy.states(&self.replica).into_owned()));
        let (filled, resumed) = group.open(self.replica.adam.lengths(), opening, resumed)?;
        self.record.filled = filled;
        if let Some((place, states)) = resumed.filter(|_| !group.leads()) {
            strategy.restore(states, &mut self.replica)?;
            (self.place, self.resumed_at) = (place, Some(place));
        }
        Ok(())
    }

    /// Returns whether training is over. It never is within an epoch, even if the run was resumed
    /// with less patience.
    pub(crate) fn is_over(&self) -> bool {
        let is_last = self.place.epoch >= self.config.epochs;
        self.place.step == 0 && (is_last || self.best.is_stale(self.config.patience))
    }

    /// Returns whether the last epoch is over and its evaluation is due only because it is the
    /// last.
    pub(crate) fn lacks_last_evaluation(&self) -> bool {
        let epochs = self.config.epochs;
        let is_over = self.place == (Place { epoch: epochs, step: 0 });
        is_over && self.config.evaluation_after(epochs, self.has_test) == Due::AsLast
    }

    /// Measures accuracy after `epoch` together with the other processes. The leader records it.
    pub(crate) fn evaluate(
        &mut self,
        epoch: u32,
        evaluator: &Evaluator<'_>,
        group: &mut ProcessGroup<'_>,
    ) -> Result<(), TrainError> {
        let accuracy = evaluator.accuracy(&self.replica.model, group)?;
        if group.leads() {
            self.record.evaluated(accuracy);
            self.best.evaluated(epoch, accuracy, || self.replica.adam.values());
        }
        Ok(())
    }

    /// Trains the rest of the present epoch, measures accuracy if due, and writes a checkpoint.
    /// Ends after the step or the epoch at which `progress` breaks.
    pub(crate) fn finish_epoch(
        &mut self,
        strategy: &mut dyn StrategyRun<'_>,
        group: &mut ProcessGroup<'_>,
        evaluator: &Evaluator<'_>,
        progress: Observer<'_>,
    ) -> Result<(), TrainError> {
        let epoch = self.place.epoch;
        strategy.epoch(self, group, &mut *progress)?;
        if self.is_interrupted {
            return Ok(());
        }
        if self.config.evaluation_after(epoch + 1, self.has_test) == Due::InAnyRun {
            self.evaluate(epoch, evaluator, group)?;
        }
        self.place = Place { epoch: epoch + 1, step: 0 };
        self.save_states(strategy)?;
        strategy.forget_states(group);
        if self.lacks_last_evaluation() {
            // No checkpoint has this evaluation: a run of more epochs does not make it.
            self.evaluate(epoch, evaluator, group)?;
        }
        if let Some(epoch) = self.record.measured.epochs.last() {
            self.is_interrupted |= progress(&Progress::Epoch(epoch)).is_break();
        }
        Ok(())
    }

    /// Saves the best parameters, or the last ones without an evaluation, if the settings ask for
    /// it. A failure is part of the report.
    pub(crate) fn save_model(&mut self, setup: &Setup<'_>, group: &ProcessGroup<'_>) {
        let Some(path) = self.config.save_model.as_ref().filter(|_| group.leads()) else {
            return;
        };
        let values = match &self.best.parameters {
            none if none.is_empty() => &self.replica.adam.values(),
            best => best,
        };
        self.save_error =
            model_file::save(path, &settings_of(self.config), &setup.spec(), values).err();
    }

    /// Writes a checkpoint, if the run has them.
    pub(crate) fn save_states(&mut self, strategy: &dyn StrategyRun<'_>) -> Result<(), TrainError> {
        if self.checkpoints.is_none() {
            return Ok(());
        }
        self.save(strategy.states(&self.replica))
    }

    /// Writes a checkpoint with these states of all replicas, if the run has them.
    pub(crate) fn save(&mut self, replicas: Cow<'_, [ReplicaState]>) -> Result<(), TrainError> {
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        checkpoints.save(&Checkpoint {
            place: self.place,
            replicas,
            best: self.best.clone(),
            measured: self.record.measured.clone(),
            step_losses: self.record.step_losses.clone(),
        })
    }

    fn restore(
        &mut self,
        checkpoint: Checkpoint<'_>,
        strategy: &mut dyn StrategyRun<'_>,
    ) -> Result<(), TrainError> {
        let Checkpoint { place, replicas, best, measured, step_losses } = checkpoint;
        strategy.restore(replicas.into_owned(), &mut self.replica)?;
        self.record = take(&mut self.record).resumed(measured, step_losses);
        (self.place, self.best, self.resumed_at) = (place, best, Some(place));
        Ok(())
    }

    pub(crate) fn checkpoint_seconds(&self) -> f64 {
        self.checkpoints.as_ref().map_or(0.0, |checkpoints| checkpoints.seconds)
    }

    /// Returns the report of the run. `stats` are each worker's figures since this process began.
    pub(crate) fn report(
        self,
        setup: &Setup<'_>,
        strategy: &dyn StrategyRun<'_>,
        stats: &[MemberStats],
    ) -> TrainReport {
        let save_error = self.save_error.as_ref().map(ToString::to_string);
        let (is_over, within_epoch) = (self.is_over(), self.place.step > 0);
        let read_before_bytes = self.read_before_bytes;
        let Self { config, replica, best, record, resumed_at, checkpoints, is_interrupted, .. } =
            self;
        let epochs = record.measured.epochs;
        let timed = || epochs.iter().filter(|epoch| epoch.timed_steps > 0);
        let seconds: f64 = timed().map(|epoch| epoch.seconds).sum();
        let n_steps: u64 = timed().map(|epoch| u64::from(epoch.timed_steps)).sum();
        let n_batches: u64 = epochs.iter().map(|epoch| epoch.batches).sum();
        let remote_rows: u64 = epochs.iter().map(|epoch| epoch.remote_rows).sum();
        let remote_bytes: u64 = epochs.iter().map(|epoch| epoch.remote_bytes).sum();
        let held = |stats: &MemberStats| {
            stats.steady.peak_bytes + stats.prefetch.peak_bytes + stats.buffer_bytes
        };
        let mut report = TrainReport {
            strategy: config.strategy.clone(),
            model: config.model,
            workers: config.workers,
            processes: setup.n_processes,
            sent_bytes: Traffic::default(),
            device: if config.replay.is_some() { "replayed" } else { "cpu" },
            rows_from: setup.graph.rows_from,
            versions: setup.versions,
            metric: config.metric,
            test_accuracy: best.accuracy.test,
            validation_accuracy: best.accuracy.validation,
            best_epoch: best.epoch,
            stopped_early: !within_epoch && best.is_stale(config.patience),
            interrupted: is_interrupted && !is_over,
            save_error,
            parameters_digest: digest(&replica.adam.values()),
            best_parameters_digest: digest(&best.parameters),
            mean_step_seconds: seconds / n_steps.max(1) as f64,
            remote_rows_per_step: remote_rows as f64 / n_batches.max(1) as f64,
            remote_bytes_per_step: remote_bytes as f64 / n_batches.max(1) as f64,
            resumed_at,
            checkpoints: checkpoints.as_ref().map_or(0, |checkpoints| checkpoints.written),
            checkpoint_seconds: checkpoints.map_or(0.0, |checkpoints| checkpoints.seconds),
            step: record.steps.shares(),
            setup_seconds: record.setup_seconds,
            schedule: None,
            memory_measured_bytes: stats.iter().map(held).max().unwrap_or(0),
            peak_anonymous_bytes: peak_anonymous_bytes(),
            disk_bytes: disk_read_bytes().zip(read_before_bytes).map(|(now, before)| now - before),
            epochs,
            step_losses: record.step_losses,
        };
        strategy.report(&mut report);
        report
    }
}

/// Returns the BLAKE3 of all parameters, in hex.
fn digest(parameters: &[Vec<f32>]) -> String {
    let mut digest = blake3::Hasher::new();
    parameters.iter().for_each(|values| {
        digest.update(bytemuck::cast_slice(values));
    });
    digest.finalize().to_hex().to_string()
}
