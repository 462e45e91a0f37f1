mod stored;

use super::*;

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use lodestore_client::source::memory::MemorySource;
use lodestore_client::source::{PullStats, TensorInfo};
use lodestore_client::{ClientError, PullKind, RowSource, VersionTag};
use lodestore_comm::threads::ThreadCollective;
use lodestore_graph::{
    PartId, PartitionBook,
    edges::MemoryEdges,
    relabel::Relabelling,
    sampler::{Fanout, Sampler},
};
use lodestore_models::conv::{Input, LayerDropout};
use lodestore_models::model::{Hops, Model, ModelSpec};
use lodestore_models::random::CounterRandom;
use lodestore_store::Dtype;

use crate::options::{LayerOptions, ModelKind, Norm};
use crate::sources::WorkerSources;
use lodestore_graph::topology::Direction;

pub(crate) const N_NODES: u32 = 40;
pub(crate) const WIDTH: usize = 3;

pub(crate) fn topology() -> Topology {
    let random = CounterRandom::new(1, 0);
    let edge = |i: u64| [random.bits(2 * i) as u32 % N_NODES, random.bits(2 * i + 1) as u32 % 30];
    let mut edges: Vec<[u32; 2]> = (0..90).map(edge).collect();
    edges.push([N_NODES - 1, 0]);
    let edges = MemoryEdges::new(edges).unwrap();
    Topology::from_edges(&edges, &Relabelling::identity(N_NODES), Direction::Undirected).unwrap()
}

pub(crate) fn rows() -> Vec<f32> {
    let random = CounterRandom::new(2, 0);
    (0..u64::from(N_NODES) * WIDTH as u64).map(|i| random.unit(i) - 0.5).collect()
}

/// The fixture's rows, which counts those that are read, or fails.
struct Counting {
    rows: Arc<dyn RowSource>,
    book: PartitionBook,
    n_rows: AtomicU64,
    fails: bool,
}

impl Counting {
    fn new(book: &PartitionBook) -> Self {
        let (rows, book) = (sources().local, book.clone());
        Self { rows, book, n_rows: AtomicU64::new(0), fails: false }
    }
}

impl RowSource for Counting {
    fn book(&self) -> &PartitionBook {
        &self.book
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
        let tensor = if self.fails { "absent" } else { tensor };
        self.n_rows.fetch_add(ids.len() as u64, Ordering::Relaxed);
        self.rows.pull(tensor, ids, out, kind)
    }
}

pub(crate) fn sources() -> WorkerSources {
    let book = PartitionBook::from_counts(&[N_NODES]).unwrap();
    let mut source = MemorySource::new(book);
    let bytes = bytemuck::cast_slice(&rows()).to_vec();
    source.add("feat", Dtype::F32, WIDTH as u32, bytes).unwrap();
    let labels: Vec<i64> = (0..i64::from(N_NODES)).map(|i| i % 4).collect();
    source.add("label", Dtype::I64, 1, bytemuck::cast_slice(&labels).to_vec()).unwrap();
    let splits = (0..N_NODES).map(|i| [0, 1, 2, 2, 255][i as usize % 5]).collect();
    source.add("split", Dtype::U8, 1, splits).unwrap();
    let source: Arc<dyn RowSource> = Arc::new(source);
    WorkerSources::new(Arc::clone(&source), source)
}

/// Returns a model of three layers over the fixture's rows.
pub(crate) fn model(kind: ModelKind, hidden: [usize; 2], n_classes: usize) -> Model {
    model_with(kind, hidden, n_classes, LayerOptions::default())
}

/// Returns a model of the first `n_layers` layers.
pub(crate) fn first(model: &Model, n_layers: usize) -> Model {
    Model { layers: model.layers[..n_layers].to_vec(), dropout: model.dropout }
}

/// Does as [`model`], with options of its layers.
pub(crate) fn model_with(
    kind: ModelKind,
    hidden: [usize; 2],
    n_classes: usize,
    layer: LayerOptions,
) -> Model {
    let widths = vec![WIDTH, hidden[0], hidden[1], n_classes];
    let spec = ModelSpec { kind, widths, n_heads: 2, n_output_heads: 3, dropout: 0.0, layer };
    let model = Model::new(&spec, 3);
    // A bias that is not zero.
    for vector in model.parameters().iter().filter(|of| of.shape().len() == 1) {
        let values: Vec<f32> = vector.read().iter().map(|value| value + 0.1).collect();
        vector.set(&values);
    }
    model
}

pub(crate) fn pass(topology: &Topology, limits: PassLimits) -> LayerPass<'_> {
    let sources = sources();
    let info = sources.local.tensor("feat").unwrap();
    let features = FeatureRows::new(&info, false).unwrap();
    let loader = sources.loader("feat", &[PartId(0)]).unwrap();
    LayerPass { topology, owners: single(), features, loaders: vec![loader], limits }
}

/// Returns all nodes in one partition of one worker.
fn single() -> Owners<'static> {
    static BOOK: LazyLock<PartitionBook> = LazyLock::new(|| PartitionBook::single(N_NODES));
    Owners { book: &BOOK, n_workers: 1 }
}

/// Computes each layer's rows of `nodes` as training does: with the whole neighbourhood of several
/// hops together.
pub(crate) fn naive(model: &Model, topology: &Topology, nodes: &[NodeId]) -> Matrix {
    let n_layers = model.layers.len();
    let batch = Sampler::new(topology, &vec![Fanout::All; n_layers]).sample(nodes, 0);
    let blocks: Vec<_> = batch.blocks.into_iter().map(Arc::new).collect();
    let degree = |node| topology.in_degree(node);
    let hops = Hops { blocks: &blocks, nodes: &batch.nodes, degree: &degree };
    let all = rows();
    let row = |node: &NodeId| all[node.index() * WIDTH..][..WIDTH].to_vec();
    let x: Vec<f32> = batch.nodes.iter().flat_map(row).collect();
    let features = Input::Features { x: &x, width: WIDTH };
    model.forward(hops, features, 0, &Workspace::default()).logits().clone()
}

/// Returns all results of a pass: nodes, rows, and the last progress.
fn run(
    pass: &LayerPass<'_>,
    layers: &[Layer],
    wanted: NodeSet,
) -> (Vec<NodeId>, Vec<f32>, (u64, u64)) {
    let mut alone = ThreadCollective::alone();
    run_in(pass, layers, wanted, &mut ProcessGroup::new(&mut alone))
}

/// Returns the same as one of several processes.
fn run_in(
    pass: &LayerPass<'_>,
    layers: &[Layer],
    wanted: NodeSet,
    group: &mut ProcessGroup<'_>,
) -> (Vec<NodeId>, Vec<f32>, (u64, u64)) {
    let (mut nodes, mut rows, mut last) = (Vec::new(), Vec::new(), (0, 0));
    let mut sink = |chunk: &[NodeId], out: &mut Matrix| {
        assert_eq!(chunk.len(), out.n_rows());
        nodes.extend_from_slice(chunk);
        rows.extend_from_slice(out.values());
        Ok(())
    };
    let progress = &mut |done, total| last = (done, total);
    let output = PassOutput { sink: &mut sink, progress, work: None };
    let end = pass.run(layers, wanted, group, output).unwrap();
    assert!(end.is_none());
    (nodes, rows, last)
}

/// Returns the bits of the last layer's rows by node, and the number of rows that each worker has
/// read. Each of the processes has its share of the workers.
fn in_processes(
    model: &Model,
    n_workers: u32,
    n_ranks: u32,
    limits: PassLimits,
) -> (Vec<(NodeId, Vec<u32>)>, Vec<u64>) {
    let topology = topology();
    let book = PartitionBook::from_counts(&[9, 0, 14, 3, N_NODES - 26]).unwrap();
    let counting = |worker| (worker, Arc::new(Counting::new(&book)));
    let all: Vec<(u32, Arc<Counting>)> = (0..n_workers).map(counting).collect();
    let as_rank = |mut rank: ThreadCollective| {
        let mut group = ProcessGroup::new(&mut rank);
        let here: Vec<u32> = group.local_workers(n_workers).collect();
        let loader = |worker: &u32| {
            let parts = book.parts().filter(|part| u32::from(part.0) % n_workers == *worker);
            let (parts, source) = (parts.collect::<Vec<_>>(), &all[*worker as usize].1);
            let remote = Arc::clone(source) as Arc<dyn RowSource>;
            BatchLoader::new(Arc::clone(&remote), remote, "feat", &parts).unwrap()
        };
        let info = all[0].1.tensor("feat").unwrap();
        let pass = LayerPass {
            topology: &topology,
            owners: Owners { book: &book, n_workers },
            features: FeatureRows::new(&info, false).unwrap(),
            loaders: here.iter().map(loader).collect(),
            limits,
        };
        let wanted = NodeSet::new(N_NODES, (0..N_NODES).filter(|id| id % 7 != 3).map(NodeId));
        let (nodes, rows, (done, total)) = run_in(&pass, &model.layers, wanted, &mut group);
        assert_eq!(done, total);
        let bits = rows
            .chunks((rows.len() / nodes.len().max(1)).max(1))
            .map(|row| row.iter().map(|value| value.to_bits()).collect());
        let mut rows: Vec<(NodeId, Vec<u32>)> = nodes.into_iter().zip(bits).collect();
        rows.sort();
        assert_eq!(rows.is_empty(), !group.leads());
        rows
    };
    let ranks = ThreadCollective::group(n_ranks, Duration::from_secs(60));
    let mut found: Vec<_> = thread::scope(|scope| {
        let as_rank = &as_rank;
        let start = |rank| scope.spawn(move || as_rank(rank));
        let threads: Vec<_> = ranks.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let read = |(_, source): &(u32, Arc<Counting>)| source.n_rows.load(Ordering::Relaxed);
    (found.swap_remove(0), all.iter().map(read).collect())
}

#[test]
fn layer_by_layer_results_in_the_rows_of_whole_neighbourhoods() {
    let topology = topology();
    let some = [0, 7, 39, 12, 3].map(NodeId);
    // Rows that are transformed before they are aggregated, and after.
    for hidden in [[6, 4], [2, 8], [20, 2]] {
        for kind in [ModelKind::Sage, ModelKind::Gcn, ModelKind::Gat] {
            let model = model(kind, hidden, 4);
            let all: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
            for wanted in [&all[..], &some] {
                let mut rising = wanted.to_vec();
                rising.sort_unstable();
                let expected = naive(&model, &topology, &rising);
                let mut before = None;
                for (chunk_bytes, stored_bytes) in
                    [(1 << 20, 1 << 20), (1 << 20, 0), (300, 1 << 20), (300, 1000), (1, 0)]
                {
                    let pass = pass(&topology, PassLimits { chunk_bytes, stored_bytes });
                    let wanted = NodeSet::new(N_NODES, wanted.iter().copied());
                    let (nodes, rows, (done, total)) = run(&pass, &model.layers, wanted);
                    assert_eq!(nodes, rising);
                    assert_eq!((done, total > 0), (total, true));
                    assert_eq!(rows.len(), expected.values().len());
                    for (found, expected) in rows.iter().zip(expected.values()) {
                        let difference = (found - expected).abs();
                        assert!(difference < 1e-4, "{kind} {hidden:?}: {found} {expected}");
                    }
                    // Wherever rows were kept.
                    if chunk_bytes == 300 {
                        assert!(before.get_or_insert_with(|| rows.clone()) == &rows);
                    }
                }
            }
        }
    }
}

/// Returns the last layer's rows of all nodes: convolutions as training has them, normalisation
/// and residuals.
fn naive_evaluation(model: &Model, topology: &Topology) -> Vec<f32> {
    let all: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let batch = Sampler::new(topology, &[Fanout::All]).sample(&all, 0);
    assert_eq!(batch.nodes, all);
    let block = Arc::new(batch.blocks.into_iter().next().unwrap());
    let degree = |node| topology.in_degree(node);
    let hop = Hop { block: &block, nodes: &all, degree: &degree };
    let mut before: Option<Matrix> = None;
    let (dropout, workspace) = (LayerDropout::default(), Workspace::default());
    for layer in &model.layers {
        let x = rows();
        let input = match &before {
            Some(hidden) => Input::Hidden(hidden),
            None => Input::Features { x: &x, width: WIDTH },
        };
        let convolution = Layer { norm: None, is_residual: false, ..layer.clone() };
        let (mut out, _) = convolution.forward(hop, input, dropout, &workspace);
        if let Some(norm) = &layer.norm {
            out = norm.evaluate(out);
        }
        if let (true, Some(hidden)) = (layer.is_residual, &before) {
            let active = hidden.values().iter().map(|x| x.max(0.0));
            out.values_mut().iter_mut().zip(active).for_each(|(out, x)| *out += x);
        }
        before = Some(out);
    }
    before.unwrap().into_values()
}

#[test]
fn layers_of_any_options_are_evaluated_as_the_formulas_say() {
    let topology = topology();
    for kind in [ModelKind::Sage, ModelKind::Gcn] {
        for norm in [Norm::None, Norm::Layer] {
            // Wider rows than those before, and narrower ones; residuals between equal ones.
            for (hidden, residual) in [([6, 4], false), ([2, 8], false), ([5, 5], true)] {
                let options = LayerOptions { norm, residual };
                let model = model_with(kind, hidden, 4, options);
                let expected = naive_evaluation(&model, &topology);
                for limit in [1 << 20, 300] {
                    let limits = PassLimits { chunk_bytes: limit, stored_bytes: limit };
                    let pass = pass(&topology, limits);
                    let all = NodeSet::all(N_NODES);
                    let (_, rows, _) = run(&pass, &model.layers, all);
                    assert_eq!(rows.len(), expected.len());
                    for (found, expected) in rows.iter().zip(&expected) {
                        let is_near = (found - expected).abs() < 1e-3 * expected.abs().max(1.0);
                        assert!(is_near, "{kind} {options:?}: {found} {expected}");
                    }
                }
            }
        }
    }
}

#[test]
fn fewer_layers_give_hidden_rows() {
    let topology = topology();
    let all: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    for kind in [ModelKind::Sage, ModelKind::Gcn, ModelKind::Gat] {
        let model = model(kind, [6, 4], 4);
        let expected = naive(&first(&model, 2), &topology, &all);
        let pass = pass(&topology, PassLimits::within(1 << 20));
        let (_, rows, _) = run(&pass, &model.layers[..2], NodeSet::all(N_NODES));
        assert_eq!(rows.len(), 4 * N_NODES as usize);
        for (found, expected) in rows.iter().zip(expected.values()) {
            assert!((found - expected).abs() < 1e-4, "{kind}: {found} {expected}");
        }
    }
}

#[test]
fn rows_have_the_same_bits_for_any_number_of_workers_and_processes() {
    for kind in [ModelKind::Sage, ModelKind::Gcn, ModelKind::Gat] {
        for hidden in [[6, 4], [2, 20]] {
            let model = model(kind, hidden, 4);
            for n_bytes in [1 << 20, 3000] {
                let limits = PassLimits::within(n_bytes);
                let (expected, of_one) = in_processes(&model, 1, 1, limits);
                assert_eq!(expected.len(), (N_NODES - 6) as usize);
                for (n_workers, n_ranks) in [(3, 1), (2, 2), (3, 2), (4, 3), (5, 5), (7, 3)] {
                    let (found, of_workers) = in_processes(&model, n_workers, n_ranks, limits);
                    assert_eq!(found, expected, "{kind} {n_workers} {n_ranks} {n_bytes}");
                    // Each row of features is read once, by the worker that owns it.
                    assert_eq!(of_workers.iter().sum::<u64>(), of_one[0]);
                    let parts = [9, 0, 14, 3, N_NODES - 26];
                    for (worker, n_read) in (0..n_workers as usize).zip(of_workers) {
                        let own = parts.iter().skip(worker).step_by(n_workers as usize);
                        assert!(n_read <= own.sum::<u32>().into(), "{worker}: {n_read}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_pass_ends_with_the_error_of_the_process_that_fails() {
    let topology = topology();
    let book = PartitionBook::from_counts(&[20, N_NODES - 20]).unwrap();
    let model = model(ModelKind::Sage, [6, 4], 4);
    for failing in [0, 1] {
        let as_rank = |mut rank: ThreadCollective| {
            let mut group = ProcessGroup::new(&mut rank);
            let source =
                Arc::new(Counting { fails: group.rank() == failing, ..Counting::new(&book) });
            let info = source.tensor("feat").unwrap();
            let part = [PartId(group.rank() as u16)];
            let loader = BatchLoader::new(source.clone(), source, "feat", &part).unwrap();
            let pass = LayerPass {
                topology: &topology,
                owners: Owners { book: &book, n_workers: 2 },
                features: FeatureRows::new(&info, false).unwrap(),
                loaders: vec![loader],
                limits: PassLimits::within(1000),
            };
            let (sink, progress) = (&mut |_: &[NodeId], _: &mut Matrix| Ok(()), &mut |_, _| ());
            let output = PassOutput { sink, progress, work: None };
            let all = NodeSet::all(N_NODES);
            let error = pass.run(&model.layers, all, &mut group, output).unwrap_err();
            group.fail(&error);
            error.to_string()
        };
        let ranks = ThreadCollective::group(2, Duration::from_secs(60));
        let found: Vec<String> = thread::scope(|scope| {
            let as_rank = &as_rank;
            let start = |rank| scope.spawn(move || as_rank(rank));
            let threads: Vec<_> = ranks.into_iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let other = format!("process {failing} of the run: {}", found[failing as usize]);
        assert_eq!(found[1 - failing as usize], other);
        assert!(other.contains("absent"), "{other}");
    }
}
