//! The functions that open a graph: from its folder, its servers or a pickle.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::Error;
use crate::graph::Graph;
use crate::spec::{Cluster, Folder, Spec, wanted_version};

/// Opens the graph in the folder `path`, for reading unless `writable`.
///
/// - version: the committed version to read: its number (int), or with its commit (str), as
///   `Graph.version_id` returns it; None: the newest one now.
/// - parts: the partitions to open (list of int); None: all on this machine.
/// - writable: takes the graph's lock, so that `put`, `commit` and `new_tensor` work.
/// - reader: how files are read: "auto", "mapped", "direct" or "pread".
///
/// Raises StoreError for a folder without a graph, DamagedError, VersionError, LockedError.
#[pyfunction]
#[pyo3(signature = (path, *, version=None, parts=None, writable=false, reader="auto"))]
pub(crate) fn open(
    py: Python<'_>,
    path: PathBuf,
    version: Option<&Bound<'_, PyAny>>,
    parts: Option<Vec<u16>>,
    writable: bool,
    reader: &str,
) -> PyResult<Graph> {
    if writable && version.is_some() {
        let words = "a version is read only; open without version= to write";
        return Err(Error::ReadOnly(words.to_owned()).into());
    }
    let path = std::path::absolute(&path).unwrap_or(path);
    let reader = reader.to_owned();
    let folder = Folder { path, version: None, commit: 0, parts, writable, reader };
    open_at(py, Spec::Folder(folder), version)
}

/// Connects to the servers of a graph: "HOST:PORT", "unix:PATH", or a map of servers.
///
/// - token_file, tls_ca, tls_cert, tls_key: paths, as for `lode`.
/// - deadline: seconds for each call (float).
/// - pin: reads the version that is committed now, whatever is committed later. Processes that get
///   this graph read the same. Servers keep it for 10 minutes after the last pull.
/// - version: pins this version, given as for `open`.
/// - topology: a folder of the same graph, for operations that need edges.
///
/// Raises ServerError, DeadlineError, VersionError.
#[pyfunction]
#[pyo3(signature = (*addresses, token_file=None, tls_ca=None, tls_cert=None, tls_key=None,
                    deadline=30.0, pin=false, version=None, topology=None))]
#[expect(clippy::too_many_arguments, reason = "keywords of a function in Python")]
pub(crate) fn connect(
    py: Python<'_>,
    addresses: Vec<String>,
    token_file: Option<PathBuf>,
    tls_ca: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    deadline: f64,
    pin: bool,
    version: Option<&Bound<'_, PyAny>>,
    topology: Option<PathBuf>,
) -> PyResult<Graph> {
    let cluster = Cluster {
        addresses,
        token_file,
        tls_ca,
        tls_cert,
        tls_key,
        deadline,
        pin,
        version: None,
        commit: 0,
        topology,
    };
    open_at(py, Spec::Servers(Box::new(cluster)), version)
}

fn open_at(py: Python<'_>, spec: Spec, version: Option<&Bound<'_, PyAny>>) -> PyResult<Graph> {
    match version {
        Some(version) => Graph::open(py, spec.at(wanted_version(version)?)),
        None => Graph::open(py, spec),
    }
}

/// Makes a graph of the result of `Graph.__reduce__`; it is opened by its first use.
#[pyfunction]
#[pyo3(name = "_restore")]
pub(crate) fn restore(spec: &Bound<'_, PyDict>) -> PyResult<Graph> {
    let uuid = spec.as_any().get_item("uuid")?.extract()?;
    Ok(Graph::new(Spec::of_dict(spec)?, uuid))
}
