//! The class `Sampler`: neighbour sampling without a schedule.

use std::hint::black_box;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use lodestore_graph::fork::PerProcess;
use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::sampler::{Fanout, FrontierBatch, FrontierSampler};
use numpy::PyArray1;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error::Error;
use crate::graph::Graph;
use crate::ids::node_ids;
use crate::open_graph::OpenGraph;
use crate::signals;

/// Samples the neighbours of nodes, hop by hop: each node draws once, in the hop after its
/// discovery.
///
/// The neighbours that a node draws depend on the seed of the call, the hop and the node alone.
/// Threads, workers and the order of calls change nothing. Pickled as the graph's edges and the
/// fan-outs.
#[pyclass(frozen, module = "lodestore")]
pub(crate) struct Sampler {
    graph: Py<Graph>,
    fanout: Vec<i64>,
    fanouts: Vec<Fanout>,
    /// Samplers for reuse: one for each concurrent call.
    idle: PerProcess<Mutex<Vec<FrontierSampler>>>,
}

/// Converts neighbours for each hop, -1 for all.
pub(crate) fn fanouts(fanout: &[i64]) -> PyResult<Vec<Fanout>> {
    let fanouts = fanout.iter().map(|&number| Fanout::try_from(number)).collect::<Result<_, _>>();
    fanouts.map_err(|error| PyValueError::new_err(error.to_string()))
}

impl Sampler {
    pub(crate) fn new(graph: Py<Graph>, fanout: Vec<i64>) -> PyResult<Self> {
        let fanouts = fanouts(&fanout)?;
        Ok(Self { graph, fanout, fanouts, idle: PerProcess::new() })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<FrontierSampler>> {
        self.idle.get_or(|_| Mutex::default()).lock().ignore_poison()
    }
}

#[pymethods]
impl Sampler {
    /// Samples around `ids`: (node, row, col, edge, nodes_of_hop, edges_of_hop).
    ///
    /// - node: the discovered nodes, the distinct ids first.
    /// - row, col: source and destination of each edge, as positions in `node`.
    /// - edge: its position in the row array of `Graph.csc`.
    /// - nodes_of_hop: number of distinct ids, then of nodes that each hop discovered.
    /// - edges_of_hop: number of edges of each hop.
    ///
    /// The first four are int64 arrays, the others lists of int.
    #[pyo3(signature = (ids, seed=0))]
    fn sample<'py>(&self, ids: &Bound<'py, PyAny>, seed: u64) -> PyResult<Bound<'py, PyTuple>> {
        let py = ids.py();
        let opened = self.graph.get().opened(py)?;
        let ids = node_ids(ids, opened.n_nodes())?;
        open_topology(py, &opened)?;
        let sample = py.detach(|| -> Result<_, Error> {
            let topology = opened.topology()?;
            let idle = self.idle().pop();
            let new = || FrontierSampler::new(topology.n_nodes(), &self.fanouts);
            let mut sampler = idle.unwrap_or_else(new);
            let sample = sampler.sample(topology, &ids, seed, u32::MAX);
            self.idle().push(sampler);
            Ok(sample.map(arrays))
        })?;
        let sample = sample.map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        let [node, row, col, edge] = sample.arrays.map(|array| PyArray1::from_vec(py, array));
        (node, row, col, edge, sample.nodes_of_hop, sample.edges_of_hop).into_pyobject(py)
    }

    /// Returns the mean nanoseconds of `repeats` samples in Rust alone, for benches.
    fn _rust_sample_ns(&self, ids: &Bound<'_, PyAny>, seed: u64, repeats: u32) -> PyResult<f64> {
        let py = ids.py();
        let opened = self.graph.get().opened(py)?;
        let ids = node_ids(ids, opened.n_nodes())?;
        open_topology(py, &opened)?;
        let start = Instant::now();
        py.detach(|| -> Result<(), Error> {
            let topology = opened.topology()?;
            let mut sampler = FrontierSampler::new(topology.n_nodes(), &self.fanouts);
            for _ in 0..repeats {
                drop(black_box(sampler.sample(topology, &ids, seed, u32::MAX)));
            }
            Ok(())
        })?;
        Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(repeats.max(1)))
    }

    /// Returns the neighbours for each hop, -1 for all of them (list of int).
    #[getter]
    fn fanout(&self) -> Vec<i64> {
        self.fanout.clone()
    }

    /// Returns the graph.
    #[getter]
    fn graph(&self, py: Python<'_>) -> Py<Graph> {
        self.graph.clone_ref(py)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let sampler = py.get_type::<Graph>().getattr("sampler")?;
        let graph = Py::new(py, self.graph.get().of_edges())?;
        (sampler, (graph, &self.fanout)).into_pyobject(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let graph: String = self.graph.bind(py).repr()?.extract()?;
        Ok(format!("Sampler({:?} of {graph})", self.fanout))
    }
}

/// Opens the edges of a graph, unless they are open, and checks for signals meanwhile.
fn open_topology(py: Python<'_>, opened: &Arc<OpenGraph>) -> PyResult<()> {
    if !opened.has_topology() {
        let opened = Arc::clone(opened);
        signals::run(py, move || opened.topology().map(drop))?;
    }
    Ok(())
}

/// A sample as the arrays and lists that Python gets.
struct SampleArrays {
    arrays: [Vec<i64>; 4],
    nodes_of_hop: Vec<u32>,
    edges_of_hop: Vec<u32>,
}

fn arrays(batch: FrontierBatch) -> SampleArrays {
    let FrontierBatch { nodes, sources, destinations, edges, nodes_of_hop, edges_of_hop } = batch;
    let wide = |of: Vec<u32>| of.into_iter().map(i64::from).collect();
    let nodes = nodes.into_iter().map(|node| i64::from(node.0)).collect();
    let edges = edges.into_iter().map(u64::cast_signed).collect();
    let arrays = [nodes, wide(sources), wide(destinations), edges];
    SampleArrays { arrays, nodes_of_hop, edges_of_hop }
}
