//! An open graph of one process: its rows, its edges and its maps of ids.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use lodestore_client::gather_queue::QueueBounds;
use lodestore_client::source::{TensorInfo, VersionTag};
use lodestore_client::{Client, ClientError, EmbeddedSource, GatherQueue, PullKind, RowSource};
use lodestore_graph::NodeId;
use lodestore_graph::fork::PerProcess;
use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::topology::Topology;
use lodestore_store::import::EXTERNAL_ID_TENSOR;
use lodestore_store::{Dtype, EmbeddedStore, Graph, GraphHandle, StoreError};
use numpy::{Element, PyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error::Error;
use crate::queue::RunningQueue;
use crate::signals;
use crate::spec::Cluster;

/// Bytes of rows that a scan of all nodes reads at a time.
const CHUNK_BYTES: usize = 16 << 20;

/// The internal id of a node that is not on this machine.
const NO_NODE: NodeId = NodeId(u32::MAX);

/// An open graph.
pub(crate) struct OpenGraph {
    backend: Backend,
    /// The same rows behind the common trait.
    source: Arc<dyn RowSource>,
    tensors: Vec<TensorInfo>,
    topology: OnceLock<Arc<Topology>>,
    internal_ids: OnceLock<Arc<[NodeId]>>,
    /// The queue of background gathers.
    queue: PerProcess<GatherQueue>,
    /// Queues with bounds of their own.
    queues: PerProcess<Mutex<Vec<Arc<RunningQueue>>>>,
}

/// The source of a graph's rows.
pub(crate) enum Backend {
    /// In files that this process reads.
    Files(Files),
    /// Behind servers.
    Servers(Servers),
}

/// Files that this process reads.
pub(crate) struct Files {
    pub(crate) store: EmbeddedStore,
    pub(crate) live: Arc<GraphHandle>,
    /// The version that is read; without one the newest at each moment.
    pub(crate) version: Option<VersionTag>,
}

/// Servers of the graph.
pub(crate) struct Servers {
    pub(crate) client: Arc<Client>,
    /// How they were connected to.
    pub(crate) cluster: Cluster,
}

/// Rows of one version, whatever is committed meanwhile.
#[derive(Clone)]
pub(crate) struct PinnedRows {
    pub(crate) source: Arc<dyn RowSource>,
    pub(crate) version: VersionTag,
}

impl OpenGraph {
    pub(crate) fn new(
        backend: Backend,
        source: Arc<dyn RowSource>,
        tensors: Vec<TensorInfo>,
    ) -> Self {
        let topology = OnceLock::new();
        let internal_ids = OnceLock::new();
        let (queue, queues) = (PerProcess::new(), PerProcess::new());
        Self { backend, source, tensors, topology, internal_ids, queue, queues }
    }

    /// Returns the source of the rows.
    pub(crate) fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Returns the rows behind the common trait.
    pub(crate) fn source(&self) -> &Arc<dyn RowSource> {
        &self.source
    }

    /// Returns the queue of background gathers; the first call starts its threads.
    pub(crate) fn queue(&self) -> Result<&GatherQueue, Error> {
        let start = || GatherQueue::start(Arc::clone(&self.source), QueueBounds::default());
        Ok(self.queue.get_or_try(|_| start())?)
    }

    /// Keeps a queue as long as the graph is open, in place of the last one of the same class.
    pub(crate) fn keep_queue(&self, next: &Arc<RunningQueue>, last: Option<&Arc<RunningQueue>>) {
        if let Some(last) = last {
            self.forget_queue(last);
        }
        self.queues.get_or(|_| Mutex::default()).lock().ignore_poison().push(Arc::clone(next));
    }

    /// Ends a queue, as soon as its requests are complete.
    pub(crate) fn forget_queue(&self, queue: &Arc<RunningQueue>) {
        if let Some(queues) = self.queues.get() {
            queues.lock().ignore_poison().retain(|other| !Arc::ptr_eq(other, queue));
        }
    }

    /// Returns the number of nodes.
    pub(crate) fn n_nodes(&self) -> u32 {
        self.source.book().n_nodes()
    }

    /// Returns the number of edges.
    pub(crate) fn n_edges(&self) -> u64 {
        match &self.backend {
            Backend::Files(files) => files.live.graph().meta().edges,
            Backend::Servers(servers) => servers.client.n_edges(),
        }
    }

    /// Returns the identity of the graph.
    pub(crate) fn uuid(&self) -> [u8; 16] {
        match &self.backend {
            Backend::Files(files) => *files.live.graph().uuid().as_bytes(),
            Backend::Servers(servers) => servers.client.graph(),
        }
    }

    /// Returns the version that gathers read now; without a pin it is requested from the servers.
    pub(crate) fn version(&self) -> Result<VersionTag, Error> {
        match &self.backend {
            Backend::Files(files) => files.version_now(),
            Backend::Servers(servers) => Ok(servers.client.version_id()?),
        }
    }

    /// Returns the rows of the version of this moment, for those who keep rows.
    pub(crate) fn pinned(&self) -> Result<PinnedRows, Error> {
        if let Some(version) = self.source.pinned_version() {
            return Ok(PinnedRows { source: Arc::clone(&self.source), version });
        }
        match &self.backend {
            Backend::Files(files) => {
                let source = files.pinned()?;
                let version = source.pinned_version().ok_or(Error::Panicked)?;
                Ok(PinnedRows { source: Arc::new(source), version })
            }
            Backend::Servers(servers) => {
                // At least what this client has committed or seen.
                let newest = servers.client.version_id()?;
                let client = servers.cluster.pinned(newest).connect()?;
                let version = client.pinned_version().ok_or(Error::Panicked)?;
                Ok(PinnedRows { source: Arc::new(client), version })
            }
        }
    }

    /// Returns the tensors, in the order of the graph's description.
    pub(crate) fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Returns the tensor called `name`.
    pub(crate) fn tensor(&self, name: &str) -> Result<&TensorInfo, Error> {
        self.tensors.iter().find(|info| info.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.tensors.iter().map(|info| &*info.name).collect();
            let tensor = name.to_owned();
            let known = known.join(", ");
            Error::Client(ClientError::UnknownTensor { name: tensor, known })
        })
    }

    /// Gathers rows in one call of the store or of the client.
    fn gather(&self, tensor: &str, ids: &[NodeId], out: &mut [u8]) -> Result<(), Error> {
        match &self.backend {
            Backend::Files(files) => files.store.gather(tensor, ids, out)?,
            Backend::Servers(_) => drop(self.source.pull(tensor, ids, out, PullKind::Sync)?),
        }
        Ok(())
    }

    /// Returns the mean nanoseconds of `repeats` gathers.
    pub(crate) fn mean_gather_ns(
        &self,
        tensor: &str,
        ids: &[NodeId],
        repeats: u32,
    ) -> Result<f64, Error> {
        let mut rows = vec![0; ids.len() * self.tensor(tensor)?.row_bytes()];
        let start = Instant::now();
        for _ in 0..repeats {
            self.gather(tensor, ids, &mut rows)?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(repeats.max(1)))
    }

    /// Returns whether the edges are loaded.
    pub(crate) fn has_topology(&self) -> bool {
        self.topology.get().is_some()
    }

    /// Returns the edges; the first call opens and checks their files.
    pub(crate) fn topology(&self) -> Result<&Arc<Topology>, Error> {
        if let Some(topology) = self.topology.get() {
            return Ok(topology);
        }
        let opened = match &self.backend {
            Backend::Files(files) => files.live.graph().open_topology()?,
            Backend::Servers(servers) => servers.open_topology()?,
        };
        Ok(self.topology.get_or_init(|| Arc::new(opened)))
    }

    /// Returns the internal id of each id of the imported files.
    pub(crate) fn internal_ids(&self) -> Result<&Arc<[NodeId]>, Error> {
        if let Some(ids) = self.internal_ids.get() {
            return Ok(ids);
        }
        let mut ids = vec![NO_NODE; self.n_nodes() as usize];
        self.for_all_rows::<i64>(EXTERNAL_ID_TENSOR, &mut |first, rows| {
            for (internal, &external) in (first..).zip(rows) {
                // A damaged file can hold an id past the last node; `lode verify` reports it.
                let slot = usize::try_from(external).ok().and_then(|at| ids.get_mut(at));
                if let Some(slot) = slot {
                    *slot = NodeId(internal);
                }
            }
        })?;
        Ok(self.internal_ids.get_or_init(|| ids.into()))
    }

    /// Returns the internal ids of `external` ones, each below the number of nodes.
    pub(crate) fn to_internal(&self, external: &[NodeId]) -> Result<Vec<i64>, Error> {
        let internal = self.internal_ids()?;
        let translate = |(position, id): (usize, &NodeId)| match internal[id.index()] {
            NO_NODE => Err(Error::External { id: id.0.into(), position }),
            internal => Ok(i64::from(internal.0)),
        };
        external.iter().enumerate().map(translate).collect()
    }

    /// Returns the nodes whose row of tensor `split` is `number`, ascending.
    fn split(&self, number: u8) -> Result<Vec<NodeId>, Error> {
        let info = self.tensor("split")?;
        if (info.dtype, info.width) != (Dtype::U8, 1) {
            let dtype = info.dtype;
            let width = info.width;
            let words = format!(
                "tensor `split` must be u8 of width 1, found {dtype} of {width}; \
                 import it with dtypes={{\"split\": \"u8\"}}"
            );
            return Err(Error::Dtype(words));
        }
        let mut nodes = Vec::new();
        self.for_all_rows::<u8>("split", &mut |first, rows| {
            let of_split = (first..).zip(rows).filter(|(_, split)| **split == number);
            nodes.extend(of_split.map(|(node, _)| NodeId(node)));
        })?;
        Ok(nodes)
    }

    /// Formats the size and the tensors of the graph.
    pub(crate) fn described(&self, name: &str, is_writer: bool) -> String {
        let tensors = self.tensors.iter().filter(|info| info.name != EXTERNAL_ID_TENSOR);
        let tensors: Vec<String> = tensors.map(crate::tensor::described).collect();
        let version = match &self.backend {
            // Without a pin it would take a request.
            Backend::Servers(servers) => servers.client.pinned_version(),
            Backend::Files(_) => self.version().ok(),
        };
        let version = version.map(|it| format!(", version {}", it.number)).unwrap_or_default();
        let writable = if is_writer { ", writable" } else { "" };
        let nodes = grouped(self.n_nodes().into());
        let tensors = tensors.join(", ");
        format!("Graph('{name}', {nodes} nodes{version}{writable}: {tensors})")
    }

    /// Passes the one-element rows of all nodes on this machine, piece by piece.
    fn for_all_rows<T: bytemuck::Pod>(
        &self,
        tensor: &str,
        each: &mut dyn FnMut(u32, &[T]),
    ) -> Result<(), Error> {
        let here = match &self.backend {
            Backend::Files(files) => files.live.parts().collect(),
            Backend::Servers(_) => self.source.book().parts().collect::<Vec<_>>(),
        };
        let chunk_rows = CHUNK_BYTES / size_of::<T>();
        for part in here {
            let range = self.source.book().range(part);
            for first in range.clone().step_by(chunk_rows) {
                let end = range.end.min(first.saturating_add(chunk_rows as u32));
                let ids: Vec<NodeId> = (first..end).map(NodeId).collect();
                let mut rows = vec![T::zeroed(); ids.len()];
                let bytes = bytemuck::cast_slice_mut(&mut rows);
                self.source.pull(tensor, &ids, bytes, PullKind::Vector)?;
                each(first, &rows);
            }
        }
        Ok(())
    }
}

impl Files {
    /// Returns the version that a gather reads which begins now.
    fn version_now(&self) -> Result<VersionTag, Error> {
        match self.version {
            Some(version) => Ok(version),
            None => Ok(EmbeddedSource::version_of(&self.live, self.live.version())?),
        }
    }

    /// Returns the rows of the version of this moment.
    pub(crate) fn pinned(&self) -> Result<EmbeddedSource, Error> {
        loop {
            let number = self.live.version();
            match EmbeddedSource::at(Arc::clone(&self.live), number) {
                // Meanwhile a later one was committed, and this one folded into it.
                Err(ClientError::Store(StoreError::NoVersion { .. }))
                    if number != self.live.version() => {}
                source => return Ok(source?),
            }
        }
    }
}

impl Servers {
    fn open_topology(&self) -> Result<Topology, Error> {
        let Some(path) = &self.cluster.topology else {
            return Err(Error::Unsupported(
                "servers send no edges; connect with topology=, a folder of the same graph"
                    .to_owned(),
            ));
        };
        let graph = Graph::open(path)?;
        if *graph.uuid().as_bytes() != self.client.graph() {
            let path = path.display();
            return Err(Error::Unsupported(format!(
                "{path}: another graph than that of the servers; name a folder of theirs"
            )));
        }
        Ok(graph.open_topology()?)
    }
}

/// Returns the nodes of a split by its name, ascending.
pub(crate) fn nodes_of_split(
    py: Python<'_>,
    opened: &Arc<OpenGraph>,
    name: &str,
) -> Result<Vec<NodeId>, Error> {
    let number = match name {
        "train" => 0,
        "val" | "valid" => 1,
        "test" => 2,
        _ => {
            let words = format!("a split is \"train\", \"val\" or \"test\", found {name:?}");
            return Err(PyValueError::new_err(words).into());
        }
    };
    let opened = Arc::clone(opened);
    signals::run(py, move || opened.split(number))
}

/// Returns the edges as arrays of Python: (colptr, row), where row has the type `dtype`.
pub(crate) fn csc_arrays<'py>(
    py: Python<'py>,
    opened: Arc<OpenGraph>,
    dtype: &str,
) -> PyResult<Bound<'py, PyTuple>> {
    match dtype {
        "int64" => csc::<i64>(py, opened),
        "int32" => csc::<i32>(py, opened),
        other => {
            let words = format!("dtype must be \"int64\" or \"int32\", found {other:?}");
            Err(Error::Dtype(words).into())
        }
    }
}

/// Returns where the edges into each node start, and the source of each edge.
fn csc<T: TryFrom<u32> + Element + 'static>(
    py: Python<'_>,
    opened: Arc<OpenGraph>,
) -> PyResult<Bound<'_, PyTuple>> {
    let (colptr, row) = signals::run(py, move || {
        let topology = opened.topology()?;
        let mut colptr = vec![0_i64];
        let mut row = Vec::with_capacity(topology.n_edges() as usize);
        for node in (0..topology.n_nodes()).map(NodeId) {
            for &source in topology.in_neighbours(node) {
                row.push(T::try_from(source).map_err(|_| {
                    Error::Dtype(format!("node {source} does not fit int32; take int64"))
                })?);
            }
            colptr.push(row.len() as i64);
        }
        Ok((colptr, row))
    })?;
    (PyArray1::from_vec(py, colptr), PyArray1::from_vec(py, row)).into_pyobject(py)
}

/// Formats a number with thousands separators.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).unwrap_or_default())
        .collect();
    groups.join(",")
}
