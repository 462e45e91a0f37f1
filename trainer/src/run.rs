//! A run as it goes: steps, evaluations, checkpoints.

use std::{mem::take, ops::ControlFlow, thread::Scope, time::Instant};

use lodestore_graph::process::{disk_read_bytes, peak_anonymous_bytes, watch_memory};

use crate::adam::ReplicaState;
use crate::best_model::BestModel;
use crate::checkpoint::{Checkpoint, Checkpoints, Folder, Identity};
use crate::collective::Traffic;
use crate::config::{Due, Merge, Mode, Strategy, TrainConfig};
use crate::error::{SavedModelError, TrainError};
use crate::evaluate::Evaluator;
use crate::model_file;
use crate::process_group::ProcessGroup;
use crate::record::Record;
use crate::replica::Replica;
use crate::report::{EpochReport, Progress, TrainReport};
use crate::setup::Setup;
use crate::step::{HopTraffic, Place, StepSeconds, WorkerStep};
use crate::step_outcome::{MemberStats, StepOutcome, TeamStep};
use crate::strategy::full::FullTeam;
use crate::strategy::hop;
use crate::strategy::sdt::LocalModels;
use crate::workers::{Team, Teams};

/// All that changes from step to step.
pub(crate) struct Run<'a> {
    pub(crate) config: &'a TrainConfig,
    /// The next step.
    pub(crate) place: Place,
    /// The model; under `sdt` the average of local ones.
    pub(crate) replica: Replica,
    /// `sdt`: one for each partition.
    pub(crate) local: Option<LocalModels>,
    /// `full` with rows that may be old: the state with which those at hand were made.
    pub(crate) refreshed: Option<ReplicaState>,
    pub(crate) best: BestModel,
    pub(crate) record: Record,
    pub(crate) checkpoints: Option<Checkpoints>,
    /// Whether the graph has test nodes.
    pub(crate) has_test: bool,
    /// Bytes of a row of features.
    pub(crate) row_bytes: u64,
    /// Bytes that the process had read from disk before.
    read_before_bytes: Option<u64>,
    /// Where it continued, if it did not begin.
    pub(crate) resumed_at: Option<Place>,
    /// Whether the observer has ended the run.
    pub(crate) is_interrupted: bool,
    /// Why the model could not be saved.
    pub(crate) save_error: Option<SavedModelError>,
}

impl<'a> Run<'a> {
    /// Returns a run that begins, or one that continues from its checkpoint, which the leader of
    /// its processes has.
    pub(crate) fn new(setup: &Setup<'a>, group: &mut ProcessGroup<'_>) -> Result<Self, TrainError> {
        let config = setup.config;
        watch_memory();
        let replica = Replica::new(&setup.model, config, setup.n_steps())?;
        let is_local = config.strategy == Strategy::Sdt;
        let local = is_local.then(|| setup.local_models(replica.adam.state()));
        let n_replicas = match &local {
            Some(local) => local.states.len() as u32,
            None => 1 + u32::from(config.full.staleness > 0),
        };
        let mut run = Self {
            config,
            place: Place::default(),
            replica,
            local,
            refreshed: None,
            best: BestModel::default(),
            record: Record::new(config, setup.row_bytes as u64),
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
                n_replicas,
                updates_each_step: !is_local && n_replicas == 1,
                epochs: config.epochs,
                n_steps: setup.n_steps(),
            };
            let folder = Folder::open(&wanted.dir, wanted.resume)?;
            let checkpoints = Checkpoints::new(folder, identity, wanted.every_steps);
            let loaded = checkpoints.load(setup.versions, config.mixed_versions)?;
            if let Some(checkpoint) = loaded {
                run.restore(checkpoint)?;
            }
            run.checkpoints = Some(checkpoints);
        }
        run.record.measured.versions = Some(setup.versions);
        run.open(setup, group)?;
        Ok(run)
    }

    /// Agrees with the other processes on what is run, and from where on.
    fn open(&mut self, setup: &Setup<'_>, group: &mut ProcessGroup<'_>) -> Result<(), TrainError> {
        let opening = setup.opening();
        let resumed = self.resumed_at.filter(|_| group.leads()).map(|at| (at, self.states()));
        let (filled, resumed) = group.open(self.replica.adam.lengths(), opening, resumed)?;
        self.record.filled = filled;
        if let Some((place, states)) = resumed.filter(|_| !group.leads()) {
            self.restore_replicas(states)?;
            (self.place, self.resumed_at) = (place, Some(place));
        }
        Ok(())
    }

    /// Returns whether there is nothing left to train. This never happens within an epoch, though
    /// patience may be used up when the run continues with less of it.
    pub(crate) fn is_over(&self) -> bool {
        let is_last = self.place.epoch >= self.config.epochs;
        self.place.step == 0 && (is_last || self.best.is_stale(self.config.patience))
    }

    /// Returns whether the last epoch is over, and is measured only because it is the last.
    pub(crate) fn lacks_last_evaluation(&self) -> bool {
        let epochs = self.config.epochs;
        let is_over = self.place == (Place { epoch: epochs, step: 0 });
        is_over && self.config.evaluation_after(epochs, self.has_test) == Due::AsLast
    }

    /// Measures accuracy after `epoch`, the last that is over, together with the other processes,
    /// of which the leader records it.
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

    /// Trains for what is left of the present epoch, measures accuracy if that is due, and writes a
    /// checkpoint. Ends after the step or the epoch at which `progress` breaks.
    pub(crate) fn finish_epoch(
        &mut self,
        teams: &mut Teams<'_>,
        group: &mut ProcessGroup<'_>,
        evaluator: &Evaluator<'_>,
        progress: &mut dyn FnMut(&Progress<'_>) -> ControlFlow<()>,
    ) -> Result<(), TrainError> {
        let epoch = self.place.epoch;
        match teams {
            Teams::Steps(team) => self.train_epoch(team, group, progress)?,
            Teams::Partitions(team) => self.train_partitions(team, group, progress)?,
            Teams::Full(team) => self.train_full(team, group, progress)?,
        }
        if self.is_interrupted {
            return Ok(());
        }
        if self.config.evaluation_after(epoch + 1, self.has_test) == Due::InAnyRun {
            self.evaluate(epoch, evaluator, group)?;
        }
        self.place = Place { epoch: epoch + 1, step: 0 };
        self.save()?;
        self.forget_states(group);
        if self.lacks_last_evaluation() {
            // Not saved: a run of more epochs does not have it.
            self.evaluate(epoch, evaluator, group)?;
        }
        if let Some(epoch) = self.record.measured.epochs.last() {
            self.is_interrupted |= progress(&Progress::Epoch(epoch)).is_break();
        }
        Ok(())
    }

    /// Returns the steps that are left of the present epoch.
    fn train_epoch(
        &mut self,
        team: &mut Team<'_>,
        group: &mut ProcessGroup<'_>,
        progress: &mut dyn FnMut(&Progress<'_>) -> ControlFlow<()>,
    ) -> Result<(), TrainError> {
        let (start, saving) = (Instant::now(), self.checkpoint_seconds());
        let (epoch, total) = (self.place.epoch, team.n_steps);
        if self.config.hop.merge != Merge::None {
            let n_merges = hop::n_merges(&self.record.measured.epochs, self.config.workers);
            team.n_merges = group.of_leader(&n_merges)?;
        }
        while self.place.step < total {
            let (step, began) = (self.place.step, Instant::now());
            let mut outcome = team.step(self.place, &self.replica, group)?;
            let loss = outcome.loss;
            outcome.check_finite(self.place)?;
            let update = Instant::now();
            self.replica.update(&mut outcome.gradients)?;
            let update = update.elapsed().as_secs_f64() + outcome.average_seconds;
            let step_seconds = began.elapsed().as_secs_f64();
            let workers = self.worker_steps(&outcome, team.stats(epoch), [step_seconds, update]);
            self.record.stepped(&outcome, &workers);
            self.place.step += 1;
            let (done, workers) = (step + 1, &workers[..]);
            // Before the checkpoint: a run that is killed in between makes the step again.
            let flow = progress(&Progress::Step { epoch, done, total, loss, workers });
            self.is_interrupted = flow.is_break();
            let is_due = |c: &Checkpoints| c.is_due(self.replica.adam.n_steps);
            if self.is_interrupted || self.checkpoints.as_ref().is_some_and(is_due) {
                self.save()?;
            }
            if self.is_interrupted {
                return Ok(());
            }
        }
        let seconds = start.elapsed().as_secs_f64() - (self.checkpoint_seconds() - saving);
        let report = EpochReport { epoch, steps: total, seconds, ..EpochReport::default() };
        self.record.end_epoch(&report, team.stats(epoch));
        Ok(())
    }

    /// Returns what each worker did in the present step.
    fn worker_steps(
        &self,
        team: &TeamStep,
        stats: &[MemberStats],
        [step_seconds, update]: [f64; 2],
    ) -> Vec<WorkerStep> {
        let n_lines = team.outcomes.len().max(1) as u64;
        let gradient_bytes = team.gradient_bytes(self.config.workers);
        let share = |of: u64, line| of / n_lines + if line == 0 { of % n_lines } else { 0 };
        let of_worker = |(line, (worker, outcome)): (usize, &(u32, StepOutcome))| {
            let hop = (self.config.strategy == Strategy::Hop).then(|| HopTraffic {
                time_steps: team.n_time_steps,
                model_bytes: share(team.model_bytes, line),
                gradient_bytes: share(gradient_bytes, line),
            });
            WorkerStep {
                seconds: StepSeconds { step: step_seconds, update, ..outcome.seconds },
                late_swaps: stats[*worker as usize].steady.late,
                hop,
                ..outcome.worker_step(self.place, *worker, self.row_bytes)
            }
        };
        team.outcomes.iter().enumerate().map(of_worker).collect()
    }

    /// Writes the best parameters, or the last before any evaluation, if they are asked for. The
    /// run is reported even if that fails.
    pub(crate) fn save_model(&mut self, setup: &Setup<'_>, group: &ProcessGroup<'_>) {
        let Some(path) = self.config.save_model.as_ref().filter(|_| group.leads()) else {
            return;
        };
        let values = match &self.best.parameters {
            none if none.is_empty() => &self.replica.adam.values(),
            best => best,
        };
        self.save_error = model_file::save(path, self.config, &setup.spec(), values).err();
    }

    /// Writes a checkpoint, if there are to be any; under `sdt` all local models are here.
    pub(crate) fn save(&mut self) -> Result<(), TrainError> {
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        let replicas = match &mut self.local {
            Some(local) => take(&mut local.states),
            None => [self.replica.adam.state()].into_iter().chain(self.refreshed.clone()).collect(),
        };
        let checkpoint = Checkpoint {
            place: self.place,
            replicas,
            best: self.best.clone(),
            measured: self.record.measured.clone(),
            step_losses: self.record.step_losses.clone(),
        };
        let saved = checkpoints.save(&checkpoint);
        if let Some(local) = &mut self.local {
            local.states = checkpoint.replicas;
        }
        saved
    }

    fn restore(&mut self, checkpoint: Checkpoint) -> Result<(), TrainError> {
        let Checkpoint { place, replicas, best, measured, step_losses } = checkpoint;
        self.restore_replicas(replicas)?;
        self.record = take(&mut self.record).resumed(measured, step_losses);
        (self.place, self.best, self.resumed_at) = (place, best, Some(place));
        Ok(())
    }

    /// Returns the state of each replica.
    fn states(&self) -> Vec<ReplicaState> {
        match &self.local {
            Some(local) => local.states.clone(),
            None => [self.replica.adam.state()].into_iter().chain(self.refreshed.clone()).collect(),
        }
    }

    fn restore_replicas(&mut self, states: Vec<ReplicaState>) -> Result<(), TrainError> {
        if let Some(local) = &mut self.local {
            local.states = states;
            return self.replica.set_values(local.average_here()?);
        }
        let mut states = states.into_iter();
        if let Some(state) = states.next() {
            self.replica.adam.restore(state)?;
        }
        self.refreshed = states.next();
        Ok(())
    }

    pub(crate) fn checkpoint_seconds(&self) -> f64 {
        self.checkpoints.as_ref().map_or(0.0, |checkpoints| checkpoints.seconds)
    }
}

impl Run<'_> {
    /// Starts the workers of this process from where the run is.
    pub(crate) fn teams<'scope, 'env>(
        &mut self,
        setup: &'scope Setup<'_>,
        scope: &'scope Scope<'scope, 'env>,
        group: &mut ProcessGroup<'_>,
    ) -> Result<Teams<'scope>, TrainError> {
        if setup.config.strategy == Strategy::Sdt {
            let (team, plans) = setup.partition_team(scope, self.place, group)?;
            self.begin_partitions(&plans, group)?;
            return Ok(Teams::Partitions(team));
        }
        if setup.config.strategy == Strategy::Full {
            let mut team = Box::new(FullTeam::new(setup, group)?);
            self.recall_rows(&mut team, group)?;
            return Ok(Teams::Full(team));
        }
        let setups = setup.set_up_workers(scope, self.place)?;
        let size = [setup.config.workers, setup.n_steps()];
        let mut team = Team::start(scope, setups, group.n_local(), size)?;
        team.iterations = setup.iterations();
        Ok(Teams::Steps(team))
    }

    /// Returns the report of the whole run; `stats` are each worker's figures since this process
    /// began.
    pub(crate) fn report(self, setup: &Setup<'_>, stats: &[MemberStats]) -> TrainReport {
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
        let written = setup.written.as_ref();
        let held = |stats: &MemberStats| {
            stats.steady.peak_bytes + stats.prefetch.peak_bytes + stats.buffer_bytes
        };
        TrainReport {
            strategy: config.strategy,
            roots: (config.strategy.mode() == Mode::MiniBatch).then_some(config.roots),
            hop: (config.strategy == Strategy::Hop).then_some(config.hop),
            sdt: (config.strategy == Strategy::Sdt).then_some(config.sdt),
            full: (config.strategy == Strategy::Full).then(|| config.full.clone()),
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
            schedule_seconds: written.map_or(0.0, |written| written.seconds),
            schedule_stored: written.is_some_and(|written| written.is_stored),
            schedule_bytes: written.map_or(0, |written| written.schedule.n_bytes()),
            schedule_digest: written.map(|written| written.schedule.digest_hex()),
            memory_bound_bytes: written.map(|written| written.bound_bytes),
            hot_policy: written.map(|_| config.hot_policy),
            n_hot: written.map_or(0, |written| written.budget.n_hot as u64),
            window: written.map_or(0, |written| written.budget.window as u64),
            window_asked: written.map_or(0, |_| config.window as u64),
            memory_measured_bytes: stats.iter().map(held).max().unwrap_or(0),
            peak_anonymous_bytes: peak_anonymous_bytes(),
            disk_bytes: disk_read_bytes().zip(read_before_bytes).map(|(now, before)| now - before),
            epochs,
            step_losses: record.step_losses,
        }
    }
}

/// Returns the bLAKE3 of all parameters, in hex.
fn digest(parameters: &[Vec<f32>]) -> String {
    let mut digest = blake3::Hasher::new();
    parameters.iter().for_each(|values| {
        digest.update(bytemuck::cast_slice(values));
    });
    digest.finalize().to_hex().to_string()
}
