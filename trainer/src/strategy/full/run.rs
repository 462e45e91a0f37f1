//! An epoch of full-batch training: one pass of all partitions, one update.

use std::{borrow::Cow, thread::Scope, time::Instant};

use lodestore_client::load_stats::LoadStats;
use lodestore_graph::{NodeId, sampler::batch_seed};
use lodestore_models::adam::ReplicaState;

use super::config::FullConfig;
use super::team::{Fault, FullTeam, PartFigures, Passed};
use crate::config::{Due, TrainConfig};
use crate::error::TrainError;
use crate::process_group::ProcessGroup;
use crate::replica::Replica;
use crate::report::{EpochReport, Progress};
use crate::run::Run;
use crate::setup::Setup;
use crate::step::{FullTraffic, Place, StepSeconds, WorkerStep};
use crate::step_outcome::{MemberStats, StepOutcome, TeamStep};
use crate::strategy::{Observer, StrategyRun};
use crate::worker::DROPOUT_STREAM;

/// A run in which all partitions train one model together.
pub(super) struct FullRun<'scope> {
    setup: &'scope Setup<'scope>,
    config: &'scope FullConfig,
    /// With stale rows: the state that computed the rows of the halos.
    refreshed: Option<ReplicaState>,
    team: Option<FullTeam>,
}

impl<'scope> FullRun<'scope> {
    pub(super) fn new(setup: &'scope Setup<'scope>, config: &'scope FullConfig) -> Self {
        Self { setup, config, refreshed: None, team: None }
    }

    /// Restores the rows of halos that the next epoch may use, where these are of an earlier epoch.
    /// It repeats the pass of that epoch with its parameters.
    fn recall_rows(
        &self,
        team: &mut FullTeam,
        run: &mut Run<'_>,
        group: &mut ProcessGroup<'_>,
    ) -> Result<(), TrainError> {
        let next = run.place.epoch + run.place.step;
        let refreshed = next - next % (self.config.staleness + 1);
        let Some(state) = self.refreshed.clone().filter(|_| refreshed < next) else {
            return Ok(());
        };
        let present = run.replica.adam.values();
        run.replica.set_values(&state.values);
        team.pass(&run.replica.model, refreshed, seed_of(run.config, refreshed), group)?;
        run.replica.set_values(&present);
        Ok(())
    }
}

impl<'scope> StrategyRun<'scope> for FullRun<'scope> {
    fn start<'env>(
        &mut self,
        _scope: &'scope Scope<'scope, 'env>,
        run: &mut Run<'_>,
        group: &mut ProcessGroup<'_>,
    ) -> Result<(), TrainError> {
        let mut team = FullTeam::new(self.setup, self.config, group)?;
        self.recall_rows(&mut team, run, group)?;
        self.team = Some(team);
        Ok(())
    }

    /// Makes the update of the present epoch, unless a checkpoint has it.
    fn epoch(
        &mut self,
        run: &mut Run<'_>,
        group: &mut ProcessGroup<'_>,
        progress: Observer<'_>,
    ) -> Result<(), TrainError> {
        let Some(team) = &mut self.team else { unreachable!("workers start before an epoch") };
        let start = Instant::now();
        let saving = run.checkpoint_seconds();
        let epoch = run.place.epoch;
        let mut figures = Vec::new();
        if run.place.step == 0 {
            let staleness = self.config.staleness;
            if staleness > 0 && epoch.is_multiple_of(staleness + 1) {
                self.refreshed = Some(run.replica.adam.state());
            }
            let (mut step, of_parts) = train_step(run, team, group)?;
            let update = Instant::now();
            run.replica.update(&mut step.gradients);
            let update = update.elapsed().as_secs_f64() + step.average_seconds;
            let seconds = start.elapsed().as_secs_f64();
            let workers = worker_steps(run, &step, &of_parts, seconds, update);
            run.record.stepped(&step, &workers);
            figures = of_parts;
            run.place.step = 1;
            let loss = step.loss;
            let told = Progress::Step { epoch, done: 1, total: 1, loss, workers: &workers };
            run.is_interrupted = progress(&told).is_break();
            if run.is_interrupted {
                return run.save_states(self);
            }
        }
        let seconds = start.elapsed().as_secs_f64() - (run.checkpoint_seconds() - saving);
        let report = EpochReport { epoch, steps: 1, seconds, ..exchanged(run, &figures, team) };
        run.record.end_epoch(&report, &team.stats);
        if run.config.evaluation_after(epoch + 1, run.has_test) != Due::No {
            // An evaluation has memory of its own.
            team.clear();
        }
        Ok(())
    }

    /// Returns the number of replicas: with stale rows the model, and that of these rows.
    fn n_replicas(&self) -> u32 {
        1 + u32::from(self.config.staleness > 0)
    }

    fn updates_each_step(&self) -> bool {
        self.n_replicas() == 1
    }

    fn states(&self, replica: &Replica) -> Cow<'_, [ReplicaState]> {
        let mut states = vec![replica.adam.state()];
        states.extend(self.refreshed.clone());
        Cow::Owned(states)
    }

    fn restore(
        &mut self,
        states: Vec<ReplicaState>,
        replica: &mut Replica,
    ) -> Result<(), TrainError> {
        let mut states = states.into_iter();
        if let Some(state) = states.next() {
            replica.adam.restore(state);
        }
        self.refreshed = states.next();
        Ok(())
    }

    fn stats(&mut self, _epoch: u32) -> &[MemberStats] {
        self.team.as_ref().map_or(&[], |team| &team.stats)
    }
}

/// Returns the seed of an epoch's dropout: that of the first batch of a lone worker.
fn seed_of(config: &TrainConfig, epoch: u32) -> u64 {
    batch_seed(config.seed, 0, epoch, 0) ^ DROPOUT_STREAM
}

/// Makes a pass and sums its gradients.
fn train_step(
    run: &Run<'_>,
    team: &mut FullTeam,
    group: &mut ProcessGroup<'_>,
) -> Result<(TeamStep, Vec<PartFigures>), TrainError> {
    let epoch = run.place.epoch;
    let Passed { terms, mut figures } =
        team.pass(&run.replica.model, epoch, seed_of(run.config, epoch), group)?;
    for (figures, part) in figures.iter_mut().zip(&mut team.parts) {
        // A pass that only restores rows is not reported.
        figures.pulled = std::mem::take(&mut part.inputs.pulled);
    }
    let figures = group.exchange_figures(figures, team.n_parts)?;
    check_numbers(&figures, epoch)?;
    for (worker, stats) in (0..).zip(&mut team.stats) {
        let own = figures.iter().filter(|of| of.part % run.config.workers == worker);
        stats.prefetch.peak_bytes = own.map(|of| of.input_bytes).sum();
    }
    let reduce = Instant::now();
    let gradients = group.sum_gradients(terms)?;
    let mut step = joined(run.config, &figures);
    (step.gradients, step.average_seconds) = (gradients, reduce.elapsed().as_secs_f64());
    step.check_finite(Place { epoch, step: 0 })?;
    Ok((step, figures))
}

/// Joins the figures of all partitions: sums in their order, whichever worker has them.
fn joined(config: &TrainConfig, figures: &[PartFigures]) -> TeamStep {
    let n_roots: u64 = figures.iter().map(|of_part| of_part.n_roots).sum();
    let n_workers = config.workers;
    let (n_batches, n_time_steps) = (u64::from(n_workers), 1);
    let mut step = TeamStep { n_roots, n_batches, n_time_steps, ..TeamStep::default() };
    for of_part in figures {
        step.loss += step.share(of_part.n_roots) * of_part.loss;
        step.n_right += of_part.n_right;
        step.load += load_of(of_part, config.fanouts.len());
    }
    let outcome = |worker: u32| {
        let mut outcome = StepOutcome::default();
        for of_part in figures.iter().filter(|of| of.part % n_workers == worker) {
            outcome.add(&outcome_of(config, of_part));
        }
        (worker, outcome)
    };
    step.outcomes = (0..n_workers).map(outcome).collect();
    step
}

fn outcome_of(config: &TrainConfig, of_part: &PartFigures) -> StepOutcome {
    let load = load_of(of_part, config.fanouts.len());
    let seconds = StepSeconds {
        pull: of_part.exchange_seconds,
        wait: of_part.wait_seconds,
        compute: of_part.compute_seconds,
        ..StepSeconds::default()
    };
    StepOutcome {
        loss: of_part.loss,
        n_roots: of_part.n_roots,
        n_right: of_part.n_right,
        n_nodes: of_part.n_own + of_part.halo_rows,
        load,
        seconds,
        ..StepOutcome::default()
    }
}

/// Returns each worker's entry for the epoch.
fn worker_steps(
    run: &Run<'_>,
    step: &TeamStep,
    figures: &[PartFigures],
    step_seconds: f64,
    update: f64,
) -> Vec<WorkerStep> {
    let n_workers = run.config.workers;
    let of_worker = |(worker, outcome): &(u32, StepOutcome)| {
        let own = || figures.iter().filter(|of| of.part % n_workers == *worker);
        // Partitions of a process exchange together.
        let first = own().next();
        let wait = first.map_or(0.0, |of| of.wait_seconds);
        let pull = first.map_or(0.0, |of| of.exchange_seconds);
        let seconds = StepSeconds { step: step_seconds, update, wait, pull, ..outcome.seconds };
        WorkerStep {
            batch: "ready",
            seconds,
            full: Some(FullTraffic {
                halo_rows: own().map(|of| of.halo_rows).sum(),
                embedding_bytes: own().map(|of| of.embedding_bytes).sum(),
                gradient_bytes: own().map(|of| of.gradient_bytes).sum(),
            }),
            ..outcome.worker_step(run.place, *worker, run.row_bytes)
        }
    };
    step.outcomes.iter().map(of_worker).collect()
}

/// Returns what the partitions exchanged in an epoch, in which they have `figures`; none if the
/// run was resumed after its step.
fn exchanged(run: &Run<'_>, figures: &[PartFigures], team: &FullTeam) -> EpochReport {
    let sum = |of: fn(&PartFigures) -> u64| figures.iter().map(of).sum::<u64>();
    let most = |of: fn(&PartFigures) -> f64| figures.iter().map(of).fold(0.0, f64::max);
    let narrowing = |at: usize| figures.iter().map(|of| of.narrowing[at]).sum::<f64>();
    let (error, all) = (narrowing(0), narrowing(1));
    let n_workers = run.config.workers;
    let of_worker = |worker| {
        let own = figures.iter().filter(|of| of.part % n_workers == worker);
        own.map(|of| of.compute_seconds).sum::<f64>()
    };
    let computing: Vec<f64> = (0..n_workers).map(of_worker).collect();
    let mean = computing.iter().sum::<f64>() / f64::from(n_workers);
    let slowest = computing.into_iter().fold(0.0, f64::max);
    let n_elements: u64 = run.replica.adam.lengths().iter().map(|&n| n as u64).sum();
    let (p, q) = (u64::from(team.n_parts), u64::from(n_workers));
    // A share of each term to each worker, then a share of the sum to each, as processes.
    let synchronised_bytes = 4 * n_elements * (q - 1) * (p + q) / q;
    let input_bytes = sum(|of| of.pulled.remote_bytes);
    let embedding_bytes = sum(|of| of.embedding_bytes);
    let gradient_bytes = sum(|of| of.gradient_bytes);
    // A resumed epoch may pull rows twice, once to restore them.
    let (pulled, remote) = (sum(|of| of.pulled.remote_rows), sum(|of| of.remote_rows));
    EpochReport {
        halo_rows: Some(sum(|of| of.halo_rows)),
        halo_bytes: Some(input_bytes + embedding_bytes + gradient_bytes),
        input_bytes: Some(input_bytes),
        input_hit_rate: Some((1.0 - pulled as f64 / remote.max(1) as f64).max(0.0)),
        embedding_bytes: Some(embedding_bytes),
        gradient_bytes: Some(gradient_bytes),
        synchronised_bytes: Some(if figures.is_empty() { 0 } else { synchronised_bytes }),
        kept_share: Some(team.kept_share),
        max_staleness: Some(figures.iter().map(|of| of.staleness).max().unwrap_or(0)),
        compression_error: Some(if all > 0.0 { (error / all).sqrt() } else { 0.0 }),
        exchange_seconds: Some(most(|of| of.exchange_seconds)),
        exchange_wait_seconds: Some(most(|of| of.wait_seconds)),
        compute_imbalance: Some(if mean > 0.0 { slowest / mean - 1.0 } else { 0.0 }),
        ..EpochReport::default()
    }
}

/// Returns the rows of a partition in an epoch by source: own, kept, and received from other
/// workers.
fn load_of(of_part: &PartFigures, n_layers: usize) -> LoadStats {
    let came = of_part.pulled.remote_rows + of_part.embedding_rows;
    LoadStats {
        local_rows: of_part.n_own,
        hit_rows: (of_part.remote_rows * n_layers as u64).saturating_sub(came),
        remote_rows: came,
        remote_bytes: of_part.pulled.remote_bytes + of_part.embedding_bytes,
        found: of_part.pulled.found,
        pulls: of_part.pulled.pulls,
        ..LoadStats::default()
    }
}

/// Fails if the loss of a partition is not finite, in all processes alike. The error names a
/// feature that is not finite before a row.
fn check_numbers(figures: &[PartFigures], epoch: u32) -> Result<(), TrainError> {
    let faults = || figures.iter().filter_map(|of| of.fault.map(|fault| (fault, of.loss)));
    let of_feature = faults().find(|(fault, _)| matches!(fault, Fault::Feature { .. }));
    let place = Place { epoch, step: 0 };
    match of_feature.or_else(|| faults().next()) {
        None => Ok(()),
        Some((Fault::Feature { node, column, bits }, _)) => Err(TrainError::Feature {
            node: NodeId(node),
            column: column as usize,
            found: f32::from_bits(bits),
            place,
        }),
        Some((Fault::Row { node }, loss)) => {
            Err(TrainError::Diverged { node: NodeId(node), place, loss })
        }
    }
}
