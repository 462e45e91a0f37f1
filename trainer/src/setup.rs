//! Set-up of a run before its first step, common to all strategies.

use lodestore_client::load_stats::LoadStats;
use lodestore_client::{BatchLoader, ClientError};
use lodestore_graph::{
    PartId,
    sampler::{Deal, RootPlan, RootShare},
};
use lodestore_models::matrix::workspace::Workspace;
use lodestore_models::model::{Model, ModelSpec};
use lodestore_models::model_file::ModelFile;
use tracing::warn;

use crate::checkpoint::Settings;
use crate::config::TrainConfig;
use crate::error::{TrainError, check};
use crate::evaluate::Evaluator;
use crate::features::FeatureRows;
use crate::labels::Labels;
use crate::layerwise::{LayerPass, Owners, PassLimits};
use crate::process_group::Opening;
use crate::run_model;
use crate::sources::{RowVersions, TrainGraph, WorkerSources};
use crate::strategy::{StrategyConfig, check_parts};
use crate::worker::Learner;

/// State of a run that never changes, except for the model's parameters.
pub(crate) struct Setup<'a> {
    pub(crate) config: &'a TrainConfig,
    pub(crate) graph: TrainGraph<'a>,
    /// Sources of this process's workers, in the order of `workers`.
    sources: &'a [WorkerSources],
    pub(crate) workers: Vec<u32>,
    /// The versions of all rows.
    pub(crate) versions: RowVersions,
    pub(crate) labels: Labels,
    /// Batches in an epoch of each share of the training nodes.
    n_batches: Vec<u32>,
    pub(crate) features: FeatureRows,
    pub(crate) row_bytes: usize,
    pub(crate) model: Model,
    /// Processes of the run.
    pub(crate) n_processes: u32,
}

impl<'a> Setup<'a> {
    /// Reads labels and makes the model, with the classes of `file` if there is one. `workers` are
    /// those of this process.
    pub(crate) fn new(
        config: &'a TrainConfig,
        graph: TrainGraph<'a>,
        sources: &'a [WorkerSources],
        workers: Vec<u32>,
        file: Option<&ModelFile<'_>>,
    ) -> Result<Self, TrainError> {
        config.validate()?;
        check_sources(graph, sources, &workers)?;
        let strategy = config.strategy.config();
        if strategy.trains_partitions() {
            check_parts(config, graph.book)?;
        }
        strategy.check_sources(sources, &workers)?;
        let versions = RowVersions::of(sources, config.mixed_versions)?;
        let owned = owned_parts(config, graph, workers[0]);
        let known_classes = file.map(ModelFile::n_classes).transpose()?;
        let labels = Labels::read(&sources[0], &owned, graph.book, config, known_classes)?;
        if config.patience > 0 && labels.validation.is_empty() {
            return Err(TrainError::NothingToValidate { tensor: config.split_tensor.clone() });
        }
        let info = sources[0].local.tensor(&config.feature_tensor)?;
        let features = FeatureRows::new(&info, config.normalize)?;
        let spec = run_model::spec_of(config, features.width, labels.n_classes);
        file.map_or(Ok(()), |file| file.check(&spec))?;
        run_model::check_size(&spec)?;
        let model = Model::new(&spec, config.seed);
        let row_bytes = info.row_bytes();
        let n_batches = strategy.n_batches(config, graph.book, &labels.train);
        let setup = Self {
            config,
            graph,
            sources,
            workers,
            versions,
            labels,
            n_batches,
            features,
            row_bytes,
            model,
            n_processes: 1,
        };
        config.replay.iter().try_for_each(|replay| replay.check(setup.n_steps()))?;
        Ok(setup)
    }

    /// Warns of workers without a training node in their partitions.
    pub(crate) fn warn_of_idle_workers(&self) {
        let (plan, train) = (self.root_plan(), &self.labels.train);
        if plan.deal == Deal::Turns || self.strategy().trains_partitions() {
            return;
        }
        let mut is_idle = vec![true; plan.workers as usize];
        let owners = train.iter().filter_map(|&node| plan.owner_of(node));
        owners.for_each(|owner| is_idle[owner as usize] = false);
        let idle: Vec<String> = (0..plan.workers)
            .filter(|&worker| is_idle[worker as usize])
            .map(|worker| worker.to_string())
            .collect();
        if idle.is_empty() {
            return;
        }
        let (workers, found) = (idle.join(", "), train.len());
        warn!(
            "no training node of {found} is in the partitions of worker {workers}, which computes \
             nothing and only serves rows; use fewer workers, another partitioner, or global roots"
        );
    }

    /// Returns the message of this process at the start of the run.
    pub(crate) fn opening(&self) -> Opening {
        let mut filled = LoadStats::default();
        self.sources.iter().for_each(|of| filled += LoadStats::from_pull(of.filled));
        // Processes of a run that mixes versions may have different ones.
        let is_mixed = self.config.mixed_versions;
        let versions = if is_mixed { RowVersions::default() } else { self.versions };
        Opening { digest: self.digest(), versions, filled, resumed: None }
    }

    /// Returns the digest of everything that must be equal in all processes of a run.
    fn digest(&self) -> [u32; 8] {
        let TrainConfig { strategy, epochs, workers, .. } = self.config;
        let TrainConfig { evaluate_every, measure_test, evaluation_bytes, .. } = self.config;
        let mut digest = blake3::Hasher::new();
        digest.update(&self.graph.uuid);
        digest.update(self.settings().as_str().as_bytes());
        let agreed = self.strategy().agreed_settings();
        digest.update(format!("{strategy}, {agreed}, {epochs} epochs").as_bytes());
        let evaluation = format!("{evaluate_every}, {measure_test}, {evaluation_bytes} bytes");
        digest.update(evaluation.as_bytes());
        digest.update(format!(", {workers} workers").as_bytes());
        let digest = *digest.finalize().as_bytes();
        std::array::from_fn(|i| u32::from_le_bytes(std::array::from_fn(|j| digest[4 * i + j])))
    }

    /// Returns the settings that decide what the run computes.
    pub(crate) fn settings(&self) -> Settings {
        Settings::new(self.config, self.features.width, &self.labels.digest())
    }

    /// Returns an evaluator over the sources of this process's workers.
    pub(crate) fn evaluator(&self) -> Result<Evaluator<'_>, TrainError> {
        let loader = |(&worker, sources): (&u32, &WorkerSources)| {
            let owned = owned_parts(self.config, self.graph, worker);
            sources.untiered_loader(&self.config.feature_tensor, &owned)
        };
        let loaders =
            self.workers.iter().zip(self.sources).map(loader).collect::<Result<_, _>>()?;
        let pass = LayerPass {
            topology: self.graph.topology,
            owners: Owners { book: self.graph.book, n_workers: self.config.workers },
            features: self.features.clone(),
            loaders,
            limits: PassLimits::within(self.config.evaluation_bytes),
        };
        let TrainConfig { metric, measure_test, .. } = *self.config;
        Ok(Evaluator { pass, labels: &self.labels, metric, measure_test })
    }

    pub(crate) fn spec(&self) -> ModelSpec {
        run_model::spec_of(self.config, self.features.width, self.labels.n_classes)
    }

    pub(crate) fn strategy(&self) -> &'a dyn StrategyConfig {
        self.config.strategy.config()
    }

    /// Returns the batches in an epoch of share `worker` of the training nodes.
    pub(crate) fn n_batches_of(&self, worker: u32) -> u32 {
        self.n_batches[worker as usize]
    }

    pub(crate) fn n_steps(&self) -> u32 {
        self.strategy().n_steps(&self.n_batches)
    }

    /// Returns a loader of the features of a worker of this process.
    pub(crate) fn loader_of(&self, worker: u32) -> Result<BatchLoader, ClientError> {
        let owned = owned_parts(self.config, self.graph, worker);
        self.sources_of(worker).loader(&self.config.feature_tensor, &owned)
    }

    /// Returns `model` with labels and degrees of the graph.
    pub(crate) fn learner(&self, model: Model) -> Learner<'_> {
        Learner {
            features: self.features.clone(),
            model,
            labels: &self.labels,
            workspace: Workspace::default(),
        }
    }

    pub(crate) fn sources_of(&self, worker: u32) -> &WorkerSources {
        let here = self.workers.iter().zip(self.sources).find(|(here, _)| **here == worker);
        let Some((_, sources)) = here else { unreachable!("a worker of this process") };
        sources
    }

    /// Returns how the training nodes become batches.
    pub(crate) fn root_plan(&self) -> RootPlan<'_> {
        self.strategy().root_plan(self.config, self.graph.book)
    }

    /// Returns a worker's share of the training nodes.
    pub(crate) fn share(&self, worker: u32) -> RootShare<'_> {
        RootShare { worker, plan: self.root_plan(), train: &self.labels.train }
    }
}

/// Returns the partitions of a worker: partition p belongs to worker p mod workers.
pub(crate) fn owned_parts(config: &TrainConfig, graph: TrainGraph<'_>, worker: u32) -> Vec<PartId> {
    graph.book.parts().filter(|part| u32::from(part.0) % config.workers == worker).collect()
}

/// Checks that each worker of this process has sources, and that all are of the same graph.
fn check_sources(
    graph: TrainGraph<'_>,
    sources: &[WorkerSources],
    workers: &[u32],
) -> Result<(), TrainError> {
    let has_sources = !workers.is_empty() && sources.len() == workers.len();
    let most = format!("at least one per process, with sources for {}", sources.len());
    check(has_sources, "workers", &most, workers.len())?;
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
