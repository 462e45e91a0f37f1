//! Everything that is before the first step.

mod schedule;

use std::{
    ops::ControlFlow,
    path::PathBuf,
    sync::Arc,
    thread::{self, Scope, ScopedJoinHandle},
    time::Instant,
};

use lodestore_client::Prefetcher;
use lodestore_client::load_stats::LoadStats;
use lodestore_client::prefetch::{BatchSource, Window};
use lodestore_graph::{
    NodeId, PartId, PartitionBook,
    sampler::{Deal, RootPlan, Sampler},
};
use tracing::warn;

use crate::checkpoint::Settings;
use crate::config::{Fetch, HopConfig, Migration, Sampling, Strategy, TrainConfig};
use crate::error::{TrainError, check};
use crate::evaluate::Evaluator;
use crate::features::FeatureRows;
use crate::labels::Labels;
use crate::layerwise::{LayerPass, Owners, PassLimits};
use crate::matrix::workspace::Workspace;
use crate::model::{Model, ModelSpec};
use crate::model_file::ModelFile;
use crate::process_group::{Opening, ProcessGroup};
use crate::report::Progress;
use crate::sources::{RowVersions, TrainGraph, WorkerSources};
use crate::step::Place;
use crate::strategy::hop::{Iterations, Micrographs};
use crate::strategy::{Ondemand, Planned, RandomBatches, Rapid, Share};
use crate::worker::{Batches, Learner, Worker};
use crate::workers::WorkerSetup;
use schedule::Written;

/// State of a run that never changes, but for the model's parameters.
pub(crate) struct Setup<'a> {
    pub(crate) config: &'a TrainConfig,
    pub(crate) graph: TrainGraph<'a>,
    /// Entries of the workers of this process, in the order of `workers`.
    sources: &'a [WorkerSources],
    pub(crate) workers: Vec<u32>,
    /// The versions of all rows.
    pub(crate) versions: RowVersions,
    pub(crate) labels: Labels,
    /// Batches in an epoch of each worker of the run; under `sdt` of each partition.
    n_batches: Vec<u32>,
    pub(crate) features: FeatureRows,
    pub(crate) row_bytes: usize,
    pub(crate) model: Model,
    pub(crate) written: Option<Written>,
    /// Processes of the run.
    pub(crate) n_processes: u32,
}

impl<'a> Setup<'a> {
    /// Reads labels and makes the model, one that fits `file` if there is one; `workers` are those
    /// of this process.
    pub(crate) fn new(
        config: &'a TrainConfig,
        graph: TrainGraph<'a>,
        sources: &'a [WorkerSources],
        workers: Vec<u32>,
        file: Option<&ModelFile<'_>>,
    ) -> Result<Self, TrainError> {
        config.validate()?;
        check_sources(graph, sources, &workers)?;
        check_buffers(config.fetch(), sources, &workers)?;
        let versions = RowVersions::of(sources, config.mixed_versions)?;
        let owned = owned_parts(config, graph, workers[0]);
        let known_classes = file.map(ModelFile::n_classes).transpose()?;
        let labels = Labels::read(&sources[0], &owned, graph.book, config, known_classes)?;
        if config.patience > 0 && labels.validation.is_empty() {
            return Err(TrainError::NothingToValidate { tensor: config.split_tensor.clone() });
        }
        let info = sources[0].local.tensor(&config.feature_tensor)?;
        let features = FeatureRows::new(&info, config.normalize)?;
        let n_parts = u32::from(graph.book.n_parts());
        let most = format!("at most one for each of the {n_parts} partitions");
        let is_whole = matches!(config.strategy, Strategy::Sdt | Strategy::Full);
        check(!is_whole || config.workers <= n_parts, "workers", &most, config.workers)?;
        let spec = ModelSpec::new(config, features.width, labels.n_classes);
        file.map_or(Ok(()), |file| file.check(&spec))?;
        spec.check_size()?;
        let model = Model::new(&spec, config.seed)?;
        let row_bytes = info.row_bytes();
        let n_batches = Self::n_batches_of(config, graph.book, &labels.train);
        let (written, n_processes) = (None, 1);
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
            written,
            n_processes,
        };
        config.replay.iter().try_for_each(|replay| replay.check(setup.n_steps()))?;
        Ok(setup)
    }

    /// Writes the schedule, if the strategy has one and it is not there; one process does so for
    /// all. Breaks if `progress` did.
    pub(crate) fn prepare(
        &mut self,
        group: &mut ProcessGroup<'_>,
        progress: &mut dyn FnMut(&Progress<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, TrainError> {
        if self.config.fetch() != Fetch::Rapid {
            return Ok(ControlFlow::Continue(()));
        }
        // Absolute, since processes may run in other folders.
        let path = std::path::absolute(&self.config.schedule_path);
        let path = path.unwrap_or_else(|_| self.config.schedule_path.clone());
        let text = path.to_str();
        let can_travel = text.is_some() || group.n_ranks() == 1;
        check(can_travel, "schedule_path", "UTF-8 with several processes", path.display())?;
        let (start, mut flow) = (Instant::now(), ControlFlow::Continue(()));
        let mut is_stored = false;
        if group.leads() {
            is_stored = self.write_schedule(&mut |done, total| {
                if progress(&Progress::Schedule { done, total }).is_break() {
                    flow = ControlFlow::Break(());
                }
            })?;
            if flow.is_break() {
                return Ok(flow);
            }
        }
        let of_leader = group.of_leader(&text.unwrap_or_default().to_owned())?;
        let seconds = start.elapsed().as_secs_f64();
        let path = if group.leads() { path } else { PathBuf::from(of_leader) };
        let written = self.open_schedule(path, is_stored, seconds)?;
        written.check_digest(&group.of_leader(&written.schedule.digest_hex())?)?;
        self.written = Some(written);
        Ok(flow)
    }

    /// Warns of workers that never compute: their partitions have no training node.
    pub(crate) fn warn_of_idle_workers(&self) {
        let (plan, train) = (self.root_plan(), &self.labels.train);
        // Under `sdt` a share is a partition's, not a worker's; under `full` all nodes are
        // computed.
        let is_of_parts = matches!(self.config.strategy, Strategy::Sdt | Strategy::Full);
        if plan.deal == Deal::Turns || is_of_parts {
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
             nothing and only serves rows; use fewer workers, import with another --partitioner, or \
             train with --roots global"
        );
    }

    /// Returns the message of this process at the start of the run.
    pub(crate) fn opening(&self) -> Opening {
        let mut filled = LoadStats::default();
        self.sources.iter().for_each(|of| filled += LoadStats::from_pull(of.filled));
        // Processes of a run that mixes versions need not have the same.
        let is_mixed = self.config.mixed_versions;
        let versions = if is_mixed { RowVersions::default() } else { self.versions };
        Opening { digest: self.digest(), versions, filled, resumed: None }
    }

    /// Returns the digest of all that must be the same in all processes of a run.
    fn digest(&self) -> [u32; 8] {
        let TrainConfig { strategy, hop, hot_policy, epochs, workers, .. } = self.config;
        let TrainConfig { evaluate_every, measure_test, evaluation_bytes, .. } = self.config;
        let mut digest = blake3::Hasher::new();
        digest.update(&self.graph.uuid);
        digest.update(self.settings().as_str().as_bytes());
        digest.update(format!("{strategy}, {hop:?}, {hot_policy}, {epochs} epochs").as_bytes());
        let evaluation = format!("{evaluate_every}, {measure_test}, {evaluation_bytes} bytes");
        digest.update(evaluation.as_bytes());
        digest.update(format!(", {workers} workers").as_bytes());
        let digest = *digest.finalize().as_bytes();
        std::array::from_fn(|i| u32::from_le_bytes(std::array::from_fn(|j| digest[4 * i + j])))
    }

    /// Returns the run's settings, as far as they decide what is computed.
    pub(crate) fn settings(&self) -> Settings {
        Settings::new(self.config, self.features.width, &self.labels.digest())
    }

    /// Returns what accuracy is measured with; it reads through the sources of all workers here.
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

    /// Returns the shape of the model.
    pub(crate) fn spec(&self) -> ModelSpec {
        ModelSpec::new(self.config, self.features.width, self.labels.n_classes)
    }

    /// Returns all workers of this process, with prefetchers that run from `place` on, which is
    /// before the end.
    pub(crate) fn set_up_workers<'scope, 'env>(
        &'scope self,
        scope: &'scope Scope<'scope, 'env>,
        place: Place,
    ) -> Result<Vec<WorkerSetup<'scope>>, TrainError> {
        let set_up = |worker| self.set_up_worker(scope, worker, place);
        if let [worker] = self.workers[..] {
            return Ok(vec![set_up(worker)?]);
        }
        // Concurrently: each reads its schedule, and pulls the rows that it keeps.
        thread::scope(|starting| {
            let start = |&worker| (worker, starting.spawn(move || set_up(worker)));
            let started: Vec<_> = self.workers.iter().map(start).collect();
            let join = |(worker, thread): (u32, ScopedJoinHandle<'_, _>)| {
                thread.join().unwrap_or(Err(TrainError::WorkerPanicked { worker }))
            };
            // All are awaited before the first error is reported.
            let setups: Vec<_> = started.into_iter().map(join).collect();
            setups.into_iter().collect()
        })
    }

    /// Returns the batches of an epoch of each worker of the run.
    fn n_batches_of(config: &TrainConfig, book: &PartitionBook, train: &[NodeId]) -> Vec<u32> {
        if config.strategy == Strategy::Full {
            return vec![1; config.workers as usize];
        }
        let share = |worker| Share { worker, plan: config.root_plan(book), train };
        let n_batches = |worker| u32::try_from(share(worker).batches(0).len()).unwrap_or(u32::MAX);
        (0..config.root_plan(book).workers).map(n_batches).collect()
    }

    /// Returns the steps of an epoch: the batches of the worker that has most; under `sdt` the
    /// partitions.
    pub(crate) fn n_steps(&self) -> u32 {
        if self.config.strategy == Strategy::Sdt {
            return self.n_batches.len() as u32;
        }
        self.n_batches.iter().copied().max().unwrap_or(0)
    }

    fn set_up_worker<'scope, 'env>(
        &'scope self,
        scope: &'scope Scope<'scope, 'env>,
        worker: u32,
        place: Place,
    ) -> Result<WorkerSetup<'scope>, TrainError> {
        let (config, topology) = (self.config, self.graph.topology);
        let (sources, share) = (self.sources_of(worker), self.share(worker));
        let owned = owned_parts(config, self.graph, worker);
        let loader = sources.loader(&config.feature_tensor, &owned)?;
        let n_batches = self.n_batches[worker as usize];
        let first = place.first_batch(n_batches);
        let mut rapid = None;
        let batches = if config.hop.migration == Migration::Paper {
            let sampler = Sampler::new(topology, &config.fanouts);
            Batches::Micrographs(Micrographs::new(worker, sampler, loader, config.hop.pregather))
        } else {
            let (source, window): (Arc<dyn BatchSource + 'scope>, _) = match &self.written {
                &Some(Written { ref schedule, ref path, budget, n_spare, .. }) => {
                    let (policy, n_hot) = (config.hot_policy, budget.n_hot);
                    let planned = Planned { schedule, path, place, policy, n_hot, n_spare };
                    let started = Arc::new(Rapid::start(scope, worker, planned, &loader)?);
                    rapid = Some(Arc::clone(&started));
                    let joined = Window::joined(budget.window);
                    // An epoch's batches are not loaded together with the next one's.
                    let together = config.together.unwrap_or(joined.together);
                    (started as _, Window { together: together.min(n_batches as usize), ..joined })
                }
                None => {
                    let source: Arc<dyn BatchSource + 'scope> = match config.sampling {
                        Sampling::Seeded => {
                            let sampler = Sampler::new(topology, &config.fanouts);
                            Arc::new(Ondemand::new(share, config.epochs, sampler))
                        }
                        Sampling::Ordinary => Arc::new(RandomBatches::new(share, config, topology)),
                    };
                    // MassiveGNN, Eqs. 3 to 5: one batch is prepared while another is trained on.
                    let ahead = usize::from(config.fetch() == Fetch::Massive);
                    (source, Window::one_by_one(ahead))
                }
            };
            Batches::Window(Prefetcher::start(scope, source, loader, window, first))
        };
        let worker = Worker {
            worker,
            plan: self.root_plan(),
            batches,
            learner: Learner {
                features: self.features.clone(),
                model: self.model.clone(),
                labels: &self.labels,
                workspace: Workspace::default(),
            },
            replay: config.replay.as_ref(),
            topology,
            config,
        };
        Ok(WorkerSetup { worker, n_batches, rapid, remote: Arc::clone(&sources.remote) })
    }

    pub(crate) fn sources_of(&self, worker: u32) -> &WorkerSources {
        let here = self.workers.iter().zip(self.sources).find(|(here, _)| **here == worker);
        let Some((_, sources)) = here else { unreachable!("a worker of this process") };
        sources
    }

    /// Returns how the training nodes become batches.
    pub(crate) fn root_plan(&self) -> RootPlan<'_> {
        self.config.root_plan(self.graph.book)
    }

    /// Returns the iterations of a run with migration.
    pub(crate) fn iterations(&self) -> Option<Iterations<'_>> {
        let HopConfig { migration, merge, .. } = self.config.hop;
        let iterations = || Iterations::new(self.root_plan(), &self.labels.train, merge);
        (migration == Migration::Paper).then(iterations)
    }

    fn share(&self, worker: u32) -> Share<'_> {
        Share { worker, plan: self.root_plan(), train: &self.labels.train }
    }
}

/// Returns the partitions of worker w: those that leave w when divided by the number of workers.
fn owned_parts(config: &TrainConfig, graph: TrainGraph<'_>, worker: u32) -> Vec<PartId> {
    graph.book.parts().filter(|part| u32::from(part.0) % config.workers == worker).collect()
}

/// Fails under `massive` if a worker has no buffer: it would be `ondemand` with a batch ahead.
fn check_buffers(
    fetch: Fetch,
    sources: &[WorkerSources],
    workers: &[u32],
) -> Result<(), TrainError> {
    let has_none = |of: &WorkerSources| of.remote.buffer_bytes().is_none();
    match sources.iter().position(has_none).filter(|_| fetch == Fetch::Massive) {
        Some(at) => Err(TrainError::NoBuffer { worker: workers[at] }),
        None => Ok(()),
    }
}

/// Returns one source per worker of this process, at least one, and all of the same graph.
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
