//! Everything that stands before the first step.

use std::{
    ops::ControlFlow,
    sync::Arc,
    thread::{Scope, available_parallelism},
    time::Instant,
};

use lodestore_client::{BatchLoader, BatchSource, LoadStats, Prefetcher, RowBudget, Window};
use lodestore_graph::{
    PartId,
    sampler::{Fanout, Sampler},
    schedule::{Schedule, ScheduleSpec, ScheduleSummary, write_schedule},
};

use crate::{
    Place, Progress, Strategy, TrainConfig, TrainError, TrainGraph, WorkerSources,
    checkpoint::Settings,
    evaluate::{EvaluationLimits, Evaluator},
    features::FeatureRows,
    labels::Labels,
    model::{Model, ModelSpec},
    strategy::{Ondemand, Planned, Rapid, Share},
    team::Recruit,
    worker::Worker,
};

/// What a run needs and never changes, but for the model's parameters.
pub(crate) struct Setup<'a> {
    pub(crate) config: &'a TrainConfig,
    pub(crate) graph: TrainGraph<'a>,
    sources: &'a [WorkerSources],
    labels: Labels,
    features: FeatureRows,
    pub(crate) row_bytes: usize,
    pub(crate) model: Model,
    pub(crate) written: Option<Written>,
}

/// A schedule on disk.
pub(crate) struct Written {
    schedule: Schedule,
    pub(crate) summary: ScheduleSummary,
    pub(crate) seconds: f64,
    /// Sizes of hot sets and window as they fit into the memory budget.
    pub(crate) budget: RowBudget,
    pub(crate) bound_bytes: u64,
}

impl<'a> Setup<'a> {
    /// Reads labels and makes the model.
    pub(crate) fn new(
        config: &'a TrainConfig,
        graph: TrainGraph<'a>,
        sources: &'a [WorkerSources],
    ) -> Result<Self, TrainError> {
        config.validate()?;
        check_sources(config, graph, sources)?;
        let labels = Labels::read(&sources[0], &owned_parts(config, graph, 0), graph.book, config)?;
        if config.patience > 0 && labels.validation.is_empty() {
            return Err(TrainError::NothingToValidate { tensor: config.split_tensor.clone() });
        }
        let info = sources[0].local.tensor(&config.feature_tensor)?;
        let features = FeatureRows::new(&info, config.normalize)?;
        let mut widths = vec![config.hidden; config.fanouts.len() + 1];
        widths[0] = features.width();
        widths[config.fanouts.len()] = labels.n_classes;
        let (kind, n_heads, dropout) = (config.model, config.n_heads, config.dropout);
        let model = Model::new(&ModelSpec { kind, widths, n_heads, dropout }, config.seed)?;
        let row_bytes = info.row_bytes();
        let written = None;
        Ok(Self { config, graph, sources, labels, features, row_bytes, model, written })
    }

    /// Writes the schedule, if the strategy has one; breaks if `progress` did.
    pub(crate) fn prepare(
        &mut self,
        progress: &mut dyn FnMut(&Progress<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, TrainError> {
        let mut flow = ControlFlow::Continue(());
        if self.config.strategy == Strategy::Rapid {
            self.written = Some(self.write_schedule(&mut |done, total| {
                if progress(&Progress::Schedule { done, total }).is_break() {
                    flow = ControlFlow::Break(());
                }
            })?);
        }
        Ok(flow)
    }

    /// What filled all workers' sources.
    pub(crate) fn filled(&self) -> LoadStats {
        let mut filled = LoadStats::default();
        self.sources.iter().for_each(|of| filled += LoadStats::from_pull(of.filled));
        filled
    }

    /// The run's settings, as far as they decide what is computed.
    pub(crate) fn settings(&self) -> Settings {
        Settings::new(self.config, self.features.width(), &self.labels.digest())
    }

    /// What accuracy is measured with; reads through worker 0's sources.
    pub(crate) fn evaluator(&self) -> Result<Evaluator<'_>, TrainError> {
        let all = vec![Fanout::All; self.config.fanouts.len()];
        let owned = owned_parts(self.config, self.graph, 0);
        let loader = self.sources[0].untiered_loader(&self.config.feature_tensor, &owned)?;
        Evaluator::new(
            &self.labels,
            self.graph.topology,
            Sampler::new(self.graph.topology, &all),
            self.features.clone(),
            loader,
            EvaluationLimits::default(),
        )
    }

    /// All workers, their prefetchers running from `place` on, which is before the end.
    pub(crate) fn recruits<'scope, 'env>(
        &'scope self,
        scope: &'scope Scope<'scope, 'env>,
        place: Place,
    ) -> Result<Vec<Recruit<'scope>>, TrainError> {
        (0..self.config.workers).map(|worker| self.recruit(scope, worker, place)).collect()
    }

    fn recruit<'scope, 'env>(
        &'scope self,
        scope: &'scope Scope<'scope, 'env>,
        worker: u32,
        place: Place,
    ) -> Result<Recruit<'scope>, TrainError> {
        let (config, topology) = (self.config, self.graph.topology);
        let (loader, share) = (self.loader(worker)?, self.share(worker));
        let n_batches = u32::try_from(share.batches(0).len()).unwrap_or(u32::MAX);
        let first = place.first_batch(n_batches);
        let (source, rapid, window): (Arc<dyn BatchSource + 'scope>, _, _) = match &self.written {
            Some(Written { schedule, budget, .. }) => {
                let planned = Planned { schedule, path: &config.schedule_path, place };
                let kept = (config.hot_policy, budget.n_hot);
                let rapid = Arc::new(Rapid::start(scope, worker, planned, &loader, kept)?);
                let joined = Window::joined(budget.window);
                let together = config.together.unwrap_or(joined.together);
                (Arc::clone(&rapid) as _, Some(rapid), Window { together, ..joined })
            }
            None => {
                let sampler = Sampler::new(topology, &config.fanouts);
                let source = Ondemand::new(share, sampler);
                // MassiveGNN, Eqs. 3 to 5: one batch is prepared while another is trained on.
                let ahead = usize::from(config.strategy == Strategy::Massive);
                (Arc::new(source), None, Window::one_by_one(ahead))
            }
        };
        let worker = Worker {
            worker,
            seed: config.seed,
            prefetcher: Prefetcher::start(scope, source, loader, window, first),
            features: self.features.clone(),
            model: &self.model,
            parameters: self.model.parameters(),
            topology,
            labels: &self.labels,
        };
        Ok(Recruit { worker, n_batches, rapid })
    }

    fn loader(&self, worker: u32) -> Result<BatchLoader, TrainError> {
        let owned = owned_parts(self.config, self.graph, worker);
        Ok(self.sources[worker as usize].loader(&self.config.feature_tensor, &owned)?)
    }

    fn share(&self, worker: u32) -> Share<'_> {
        let (config, book, train) = (self.config, self.graph.book, &*self.labels.train);
        Share { worker, config, book, train }
    }

    fn write_schedule(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Written, TrainError> {
        let (start, config) = (Instant::now(), self.config);
        let spec = ScheduleSpec {
            graph_uuid: self.graph.uuid,
            seed: config.seed,
            fanouts: config.fanouts.clone(),
            batch_size: config.batch_size,
            epochs: config.epochs,
            workers: config.workers,
        };
        let summary = write_schedule(
            self.graph.topology,
            self.graph.book,
            &self.labels.train,
            &spec,
            &config.schedule_path,
            progress,
            available_parallelism().map_or(1, usize::from),
        )?;
        let schedule = Schedule::open(&config.schedule_path)?;
        schedule.expect_graph(self.graph.uuid, self.graph.topology.n_nodes())?;
        let seconds = start.elapsed().as_secs_f64();
        let (max_nodes, row_bytes) = (schedule.max_ids() as usize, self.row_bytes);
        let mut budget = RowBudget { n_hot: config.n_hot, window: config.window };
        if let Some(budget_bytes) = config.memory_budget_bytes {
            budget = budget.fit(budget_bytes, max_nodes, row_bytes);
        }
        let bound_bytes = budget.bound_bytes(max_nodes, row_bytes);
        Ok(Written { schedule, summary, seconds, budget, bound_bytes })
    }
}

/// The partitions of worker w: those that leave w when divided by the number of workers.
fn owned_parts(config: &TrainConfig, graph: TrainGraph<'_>, worker: u32) -> Vec<PartId> {
    graph.book.parts().filter(|part| u32::from(part.0) % config.workers == worker).collect()
}

/// One source per worker, and all of the same graph.
fn check_sources(
    config: &TrainConfig,
    graph: TrainGraph<'_>,
    sources: &[WorkerSources],
) -> Result<(), TrainError> {
    if sources.len() != config.workers as usize {
        return Err(TrainError::Setting {
            setting: "workers",
            expected: format!("the number of sources ({})", sources.len()),
            found: config.workers.to_string(),
        });
    }
    let expected = graph.book.n_nodes();
    let found = graph.topology.n_nodes();
    if found != expected {
        return Err(TrainError::OtherGraph { what: "topology", expected, found });
    }
    let rows = sources.iter().flat_map(|of| [&of.local, &of.remote, &of.untiered]);
    match rows.map(|source| source.book()).find(|book| *book != graph.book) {
        None => Ok(()),
        Some(book) => {
            let found = book.n_nodes();
            Err(TrainError::OtherGraph { what: "source of rows", expected, found })
        }
    }
}
