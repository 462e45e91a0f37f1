//! A small graph in memory: three communities, features that say little of one node alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use lodestore_cache::policy::{Candidate, DecaySpec, Replacement, Scoreboard};
use lodestore_cache::{PolicySpec, Tier};
use lodestore_client::halo_buffer::HaloBuffer;
use lodestore_client::source::memory::MemorySource;
use lodestore_client::source::{PullStats, TensorInfo, TierRows, VersionSpan};
use lodestore_client::{ClientError, PullKind, RowSource, VersionTag};
use lodestore_comm::collective::Collective;
use lodestore_comm::threads::ThreadCollective;
use lodestore_graph::topology::Direction;
use lodestore_graph::{
    NodeId, PartId, PartitionBook, edges::MemoryEdges, relabel::Relabelling, sampler::Fanout,
    topology::Topology,
};
use lodestore_store::Dtype;
use lodestore_trainer::config::{
    HopConfig, MassiveConfig, OndemandConfig, RapidConfig, Roots, ScheduleConfig, SdtConfig,
};
use lodestore_trainer::report::{RowsFrom, ScheduleReport};
use lodestore_trainer::{
    Progress, Strategy, TrainConfig, TrainError, TrainGraph, TrainReport, WorkerSources, train,
    train_together,
};

pub(crate) const N_NODES: u32 = 600;
pub(crate) const N_CLASSES: u32 = 3;
const WIDTH: u32 = 8;
pub(crate) const ROW_BYTES: u64 = 4 * WIDTH as u64;

/// The reported fill of each worker's sources.
pub(crate) const FILLED: PullStats = PullStats {
    rows: 5,
    bytes: 5 * ROW_BYTES,
    requests: 2,
    hedges: 0,
    versions: VersionSpan { lowest: 0, highest: 0 },
    ahead_rows: 0,
    found: TierRows { device: 0, host: 0, buffer: 0, together: 0 },
    lookup: Duration::ZERO,
    copy: Duration::ZERO,
};

pub(crate) struct Planted {
    pub(crate) topology: Topology,
    pub(crate) book: PartitionBook,
    pub(crate) rows: Arc<MemorySource>,
}

/// SplitMix64: enough for test data.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: u32) -> u32 {
        (self.next() % u64::from(n)) as u32
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 24) as f32
    }
}

/// Returns the graph in `n_parts` partitions; node i has class i mod 3. One of the last 20 nodes
/// has an edge to itself, the others none.
pub(crate) fn planted(n_parts: u16) -> Planted {
    let mut random = Random(1);
    let mut edges = Vec::new();
    for from in 0..N_NODES - 20 {
        for _ in 0..6 {
            let same = random.unit() < 0.8;
            let to = random.below((N_NODES - 20) / 3) * 3;
            let to = to + if same { from % 3 } else { random.below(3) };
            edges.push([from, to.min(N_NODES - 21)]);
        }
    }
    // A hub, so that some remote rows are hot.
    edges.extend((0..N_NODES / 2).map(|i| [i, 0]));
    // Edges name as many nodes as their largest id asks for.
    edges.push([N_NODES - 1, N_NODES - 1]);
    let assignment: Vec<PartId> =
        (0..N_NODES).map(|_| PartId(random.below(n_parts.into()) as u16)).collect();
    let relabelling = Relabelling::new(&assignment, n_parts).unwrap();
    let edges = MemoryEdges::new(edges).unwrap();
    let topology = Topology::from_edges(&edges, &relabelling, Direction::Undirected).unwrap();
    let book = relabelling.book.clone();
    let mut rows = MemorySource::new(book.clone());
    let class = |id: u32| relabelling.external_of[id as usize] % N_CLASSES;
    let features: Vec<f32> = (0..N_NODES)
        .flat_map(|id| (0..WIDTH).map(move |column| (id, column)))
        .map(|(id, column)| f32::from(column == class(id)) + 3.0 * (random.unit() - 0.5))
        .collect();
    let labels: Vec<i64> = (0..N_NODES).map(|id| class(id).into()).collect();
    let splits: Vec<u8> =
        (0..N_NODES).map(|_| [0, 0, 1, 2, 255][random.below(5) as usize]).collect();
    rows.add("feat", Dtype::F32, WIDTH, bytes_of(&features, f32::to_le_bytes)).unwrap();
    rows.add("label", Dtype::I64, 1, bytes_of(&labels, i64::to_le_bytes)).unwrap();
    rows.add("split", Dtype::U8, 1, splits).unwrap();
    Planted { topology, book, rows: Arc::new(rows) }
}

pub(crate) fn bytes_of<T: Copy, const N: usize>(values: &[T], bytes: fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| bytes(value)).collect()
}

pub(crate) fn ondemand() -> Strategy {
    Strategy::Ondemand(OndemandConfig::default())
}

pub(crate) fn rapid() -> Strategy {
    Strategy::Rapid(RapidConfig { schedule: schedule(), ..RapidConfig::default() })
}

pub(crate) fn massive() -> Strategy {
    Strategy::Massive(MassiveConfig::default())
}

pub(crate) fn hop() -> Strategy {
    Strategy::Hop(HopConfig::default())
}

pub(crate) fn sdt() -> Strategy {
    Strategy::Sdt(SdtConfig::default())
}

/// Returns the rows of all nodes in a tensor.
pub(crate) fn rows_of_all(graph: &Planted, tensor: &str) -> Vec<u8> {
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let row_bytes = graph.rows.tensor(tensor).unwrap().row_bytes();
    let mut rows = vec![0; ids.len() * row_bytes];
    graph.rows.pull(tensor, &ids, &mut rows, PullKind::Sync).unwrap();
    rows
}

/// Returns a strategy of mini-batches that deals the roots of one order to workers by turns.
pub(crate) fn global(mut strategy: Strategy) -> Strategy {
    let roots = match &mut strategy {
        Strategy::Ondemand(config) => &mut config.roots,
        Strategy::Rapid(config) => &mut config.roots,
        Strategy::Massive(config) => &mut config.roots,
        other => panic!("{other} deals roots to their owners"),
    };
    *roots = Roots::Global;
    strategy
}

/// Returns the settings of a schedule with a small hot set.
pub(crate) fn schedule() -> ScheduleConfig {
    ScheduleConfig { n_hot: 60, window: 2, replaces_other: true, ..ScheduleConfig::default() }
}

/// Returns `config` with other settings of its schedule; without one as it is.
pub(crate) fn scheduled(
    mut config: TrainConfig,
    change: impl FnOnce(&mut ScheduleConfig),
) -> TrainConfig {
    config.strategy.schedule_mut().map(change);
    config
}

/// Returns the schedule of a run.
pub(crate) fn schedule_of(report: &TrainReport) -> &ScheduleReport {
    report.schedule.as_ref().unwrap()
}

/// Returns the settings of two epochs of small batches, with the schedule in `dir`.
pub(crate) fn config(mut strategy: Strategy, workers: u32, dir: &Path) -> TrainConfig {
    let path = dir.join(format!("{strategy}-{workers}.schedule"));
    if let Some(schedule) = strategy.schedule_mut() {
        schedule.path = path;
    }
    TrainConfig {
        strategy,
        workers,
        fanouts: vec![Fanout::at_most(3).unwrap(), Fanout::at_most(5).unwrap()],
        hidden: 16,
        epochs: 3,
        batch_size: 32,
        seed: 7,
        ..TrainConfig::default()
    }
}

pub(crate) fn run(graph: &Planted, config: &TrainConfig) -> Result<TrainReport, TrainError> {
    run_with(graph, config, &(Arc::clone(&graph.rows) as Arc<dyn RowSource>))
}

pub(crate) fn run_with(
    graph: &Planted,
    config: &TrainConfig,
    remote: &Arc<dyn RowSource>,
) -> Result<TrainReport, TrainError> {
    run_from(graph, config, &(Arc::clone(&graph.rows) as Arc<dyn RowSource>), remote)
}

/// Runs with workers' own rows from `local`, and all others from `remote`.
pub(crate) fn run_from(
    graph: &Planted,
    config: &TrainConfig,
    local: &Arc<dyn RowSource>,
    remote: &Arc<dyn RowSource>,
) -> Result<TrainReport, TrainError> {
    run_telling(graph, config, [local, remote], &mut |_| ControlFlow::Continue(()))
}

/// Does as [`run_from`], and reports how far it is.
pub(crate) fn run_telling(
    graph: &Planted,
    config: &TrainConfig,
    [local, remote]: [&Arc<dyn RowSource>; 2],
    progress: &mut dyn FnMut(&Progress<'_>) -> ControlFlow<()>,
) -> Result<TrainReport, TrainError> {
    let sources = (0..config.workers).map(|worker| {
        let mut sources = WorkerSources::new(Arc::clone(local), Arc::clone(remote));
        if matches!(config.strategy, Strategy::Massive(_)) {
            let buffer = Arc::new(buffer(graph, config, worker, remote)?);
            sources = sources.with_buffer(buffer, FILLED);
        }
        sources.filled = FILLED;
        Ok(sources)
    });
    let sources = sources.collect::<Result<Vec<_>, ClientError>>()?;
    let (topology, book) = (&graph.topology, &graph.book);
    let graph = TrainGraph { topology, book, uuid: [3; 16], rows_from: RowsFrom::Embedded };
    train(config, &graph, &sources, progress)
}

/// Trains as `n_ranks` processes would, each of them a thread, and returns what each returned, by
/// rank.
pub(crate) fn run_in_ranks(
    graph: &Planted,
    config: &TrainConfig,
    n_ranks: u32,
) -> Vec<Result<Option<TrainReport>, TrainError>> {
    run_in_ranks_from(graph, config, n_ranks, &|_| Arc::clone(&graph.rows) as Arc<dyn RowSource>)
}

/// Does as [`run_in_ranks`], each with the rows that it gets from `rows_of`.
pub(crate) fn run_in_ranks_from(
    graph: &Planted,
    config: &TrainConfig,
    n_ranks: u32,
    rows_of: &(dyn Fn(u32) -> Arc<dyn RowSource> + Sync),
) -> Vec<Result<Option<TrainReport>, TrainError>> {
    let (topology, book) = (&graph.topology, &graph.book);
    let on = TrainGraph { topology, book, uuid: [3; 16], rows_from: RowsFrom::Embedded };
    let as_rank = |mut rank: ThreadCollective| {
        let rows = rows_of(rank.rank());
        let of_worker = |worker| {
            let mut sources = WorkerSources::new(Arc::clone(&rows), Arc::clone(&rows));
            if matches!(config.strategy, Strategy::Massive(_)) {
                let buffer = Arc::new(buffer(graph, config, worker, &rows).unwrap());
                sources = sources.with_buffer(buffer, FILLED);
            }
            sources.filled = FILLED;
            sources
        };
        let workers = (rank.rank()..config.workers).step_by(n_ranks as usize);
        let sources: Vec<_> = workers.map(of_worker).collect();
        let progress = &mut |_: &Progress<'_>| ControlFlow::Continue(());
        train_together(config, &on, &sources, &mut rank, progress)
    };
    let ranks = ThreadCollective::group(n_ranks, Duration::from_secs(60));
    thread::scope(|scope| {
        let as_rank = &as_rank;
        let start = |rank| scope.spawn(move || as_rank(rank));
        let threads: Vec<_> = ranks.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Returns a worker's buffer before `remote`, of a fifth of what it does not own.
fn buffer(
    graph: &Planted,
    config: &TrainConfig,
    worker: u32,
    remote: &Arc<dyn RowSource>,
) -> Result<HaloBuffer, ClientError> {
    let book = &graph.book;
    let others = book.parts().filter(|part| u32::from(part.0) % config.workers != worker);
    let candidates: Vec<Candidate> = others
        .flat_map(|part| book.range(part))
        .map(|id| Candidate { id, degree: graph.topology.in_degree(NodeId(id)), is_halo: true })
        .collect();
    let n_slots = candidates.len() as u32 / 5;
    let (gamma, interval, scoreboard) = (0.9, 3, Scoreboard::Dense);
    let (candidates, replacement) = (candidates.into(), Replacement::Missed);
    let spec = DecaySpec { candidates, gamma, interval, replacement, scoreboard };
    let row_bytes = remote.tensor("feat")?.row_bytes();
    let tier = Tier::of_slots(n_slots, row_bytes, book.n_nodes(), &PolicySpec::Decay(spec))?;
    HaloBuffer::new(Arc::clone(remote), "feat", tier).map(|(buffer, _)| buffer)
}

/// Returns a graph in which every node is every other's neighbour: each batch has all nodes, and so
/// the same length.
pub(crate) fn complete(n_parts: u16) -> Planted {
    const N: u32 = 60;
    let edges = (0..N).flat_map(|from| (0..from).map(move |to| [from, to])).collect();
    let assignment: Vec<PartId> =
        (0..N).map(|id| PartId((id % u32::from(n_parts)) as u16)).collect();
    let relabelling = Relabelling::new(&assignment, n_parts).unwrap();
    let edges = MemoryEdges::new(edges).unwrap();
    let topology = Topology::from_edges(&edges, &relabelling, Direction::Undirected).unwrap();
    let book = relabelling.book;
    let mut rows = MemorySource::new(book.clone());
    let features: Vec<f32> = (0..N * WIDTH).map(|i| (i % 7) as f32).collect();
    let labels: Vec<i64> = (0..N).map(|id| (id % N_CLASSES).into()).collect();
    rows.add("feat", Dtype::F32, WIDTH, bytes_of(&features, f32::to_le_bytes)).unwrap();
    rows.add("label", Dtype::I64, 1, bytes_of(&labels, i64::to_le_bytes)).unwrap();
    rows.add("split", Dtype::U8, 1, vec![0; N as usize]).unwrap();
    Planted { topology, book, rows: Arc::new(rows) }
}

/// A source that notes what memory rows of features are put into.
pub(crate) struct Noting {
    pub(crate) rows: Arc<MemorySource>,
    /// Where each begins, and bytes of it.
    pub(crate) memory: Mutex<BTreeMap<usize, usize>>,
}

impl RowSource for Noting {
    fn book(&self) -> &PartitionBook {
        self.rows.book()
    }

    fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError> {
        self.rows.tensor(name)
    }

    fn pinned_version(&self) -> Option<VersionTag> {
        self.rows.pinned_version()
    }

    fn pull_overlapped(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
        _work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        self.rows.pull(tensor, ids, out, kind)
    }

    fn pull_at(
        &self,
        tensor: &str,
        ids: &[NodeId],
        at: &[u32],
        out: &mut [u8],
        kind: PullKind,
        work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        self.memory.lock().unwrap().insert(out.as_ptr() as usize, out.len());
        self.rows.pull_at(tensor, ids, at, out, kind, work)
    }
}

/// A source that keeps to this version, or to none.
pub(crate) struct Pinned {
    pub(crate) rows: Arc<MemorySource>,
    pub(crate) version: Option<VersionTag>,
}

impl RowSource for Pinned {
    fn book(&self) -> &PartitionBook {
        self.rows.book()
    }

    fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError> {
        self.rows.tensor(name)
    }

    fn pinned_version(&self) -> Option<VersionTag> {
        self.version
    }

    fn pull_overlapped(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
        _work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        self.rows.pull(tensor, ids, out, kind)
    }
}

/// Pulls of features.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulled {
    /// SyncPulls, and rows of them.
    pub(crate) n_sync: u64,
    pub(crate) sync_rows: u64,
    /// Rows of VectorPulls.
    pub(crate) vector_rows: u64,
    pub(crate) ids: BTreeSet<u32>,
}

/// A source that does something before each pull, which may fail it.
struct Watched<F> {
    rows: Arc<MemorySource>,
    before: F,
}

impl<F> RowSource for Watched<F>
where
    F: Fn(&str, &[NodeId], PullKind) -> Result<(), ClientError> + Send + Sync,
{
    fn book(&self) -> &PartitionBook {
        self.rows.book()
    }

    fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError> {
        self.rows.tensor(name)
    }

    fn pinned_version(&self) -> Option<VersionTag> {
        self.rows.pinned_version()
    }

    fn pull_overlapped(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
        _work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        (self.before)(tensor, ids, kind)?;
        self.rows.pull(tensor, ids, out, kind)
    }
}

/// Returns a source that counts its pulls, and the counts.
pub(crate) fn counting(rows: &Arc<MemorySource>) -> (Arc<dyn RowSource>, Arc<Mutex<Pulled>>) {
    let pulled = Arc::new(Mutex::new(Pulled::default()));
    let counts = Arc::clone(&pulled);
    let before = move |tensor: &str, ids: &[NodeId], kind: PullKind| {
        if tensor == "feat" {
            let mut pulled = counts.lock().unwrap();
            match kind {
                PullKind::Sync => {
                    pulled.n_sync += 1;
                    pulled.sync_rows += ids.len() as u64;
                }
                PullKind::Vector => pulled.vector_rows += ids.len() as u64,
            }
            pulled.ids.extend(ids.iter().map(|id| id.0));
        }
        Ok(())
    };
    (Arc::new(Watched { rows: Arc::clone(rows), before }), pulled)
}

/// Returns a source whose pulls of features fail after `good_pulls` pulls.
pub(crate) fn failing(rows: &Arc<MemorySource>, good_pulls: u64) -> Arc<dyn RowSource> {
    let good_pulls = AtomicU64::new(good_pulls);
    let before = move |tensor: &str, _: &[NodeId], _: PullKind| {
        let less = |good: u64| good.checked_sub(1);
        let good = good_pulls.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok();
        if tensor == "feat" && !good {
            return Err(ClientError::UnknownNode { node: NodeId(0), n_nodes: 0 });
        }
        Ok(())
    };
    Arc::new(Watched { rows: Arc::clone(rows), before })
}

/// Returns a source whose pulls of features take `delay`.
pub(crate) fn slow(rows: &Arc<MemorySource>, delay: Duration) -> Arc<dyn RowSource> {
    let before = move |tensor: &str, _: &[NodeId], _: PullKind| {
        if tensor == "feat" {
            std::thread::sleep(delay);
        }
        Ok(())
    };
    Arc::new(Watched { rows: Arc::clone(rows), before })
}

/// Elements of a row of [`planted_sparse`].
pub(crate) const SPARSE_WIDTH: u32 = 700;

/// Returns the graph of [`planted`] with rows of which one element in a hundred is not zero. Row
/// and column of `spoilt` are NaN.
pub(crate) fn planted_sparse(n_parts: u16, spoilt: Option<(NodeId, u32)>) -> Planted {
    let mut graph = planted(n_parts);
    let mut random = Random(5);
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let mut labels = vec![0; 8 * ids.len()];
    graph.rows.pull("label", &ids, &mut labels, PullKind::Sync).unwrap();
    let mut features = vec![0f32; (N_NODES * SPARSE_WIDTH) as usize];
    let rows = features.chunks_exact_mut(SPARSE_WIDTH as usize);
    for (row, label) in rows.zip(labels.chunks_exact(8)) {
        for _ in 0..7 {
            row[random.below(SPARSE_WIDTH) as usize] = random.unit() + 0.1;
        }
        row[usize::from(label[0])] = 1.0;
    }
    if let Some((node, column)) = spoilt {
        features[(node.0 * SPARSE_WIDTH + column) as usize] = f32::NAN;
    }
    let bytes = bytes_of(&features, f32::to_le_bytes);
    let rows = Arc::get_mut(&mut graph.rows).unwrap();
    rows.add("feat", Dtype::F32, SPARSE_WIDTH, bytes).unwrap();
    graph
}
