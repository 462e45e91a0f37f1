//! The functions that open a graph: from its folder, its servers or a pickle.

use std::path::PathBuf;
use std::time::Duration;

use lodestore_store::ReaderKind;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::error::Error;
use crate::graph::Graph;
use crate::spec::{Cluster, Folder, Spec};

/// Opens the graph in the folder `path`, for reading unless `writable`.
///
/// - version: the committed version to read (int); None: the newest one now.
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
    version: Option<u32>,
    parts: Option<Vec<u16>>,
    writable: bool,
    reader: &str,
) -> PyResult<Graph> {
    let reader: ReaderKind =
        reader.parse().map_err(|error| PyValueError::new_err(format!("reader: {error}")))?;
    if writable && version.is_some() {
        let words = "a version is read only; open without version= to write";
        return Err(Error::ReadOnly(words.to_owned()).into());
    }
    let path = std::path::absolute(&path).unwrap_or(path);
    Graph::open(py, Spec::Folder(Folder { path, version, parts, writable, reader }))
}

/// Connects to the servers of a graph: "HOST:PORT", "unix:PATH", or a map of servers.
///
/// - token_file, tls_ca, tls_cert, tls_key: paths, as for `lode`.
/// - deadline: seconds for each call (float).
/// - pin: reads the version that is committed now, whatever is committed later.
/// - topology: a folder of the same graph, for operations that need edges.
///
/// Raises ServerError, DeadlineError, VersionError.
#[pyfunction]
#[pyo3(signature = (*addresses, token_file=None, tls_ca=None, tls_cert=None, tls_key=None,
                    deadline=30.0, pin=false, topology=None))]
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
    topology: Option<PathBuf>,
) -> PyResult<Graph> {
    let deadline = seconds(deadline)?;
    let cluster = Cluster {
        addresses,
        token_file,
        tls_ca,
        tls_cert,
        tls_key,
        deadline,
        pin,
        version: None,
        topology,
    };
    Graph::open(py, Spec::Servers(Box::new(cluster)))
}

/// Makes a graph of the result of `Graph.__reduce__`; it is opened by its first use.
#[pyfunction]
#[pyo3(name = "_restore")]
pub(crate) fn restore(spec: &Bound<'_, PyDict>) -> PyResult<Graph> {
    let get = |key: &str| -> PyResult<Bound<'_, PyAny>> {
        spec.get_item(key)?.ok_or_else(|| PyValueError::new_err(format!("no {key} was pickled")))
    };
    let uuid = get("uuid")?.extract()?;
    let spec = if spec.contains("path")? {
        let reader: String = get("reader")?.extract()?;
        Spec::Folder(Folder {
            path: get("path")?.extract()?,
            version: get("version")?.extract()?,
            parts: get("parts")?.extract()?,
            writable: get("writable")?.extract()?,
            reader: reader.parse().map_err(|_| PyValueError::new_err("unknown reader"))?,
        })
    } else {
        Spec::Servers(Box::new(Cluster {
            addresses: get("addresses")?.extract()?,
            token_file: get("token_file")?.extract()?,
            tls_ca: get("tls_ca")?.extract()?,
            tls_cert: get("tls_cert")?.extract()?,
            tls_key: get("tls_key")?.extract()?,
            deadline: seconds(get("deadline")?.extract()?)?,
            pin: get("pin")?.extract()?,
            version: get("version")?.extract()?,
            topology: get("topology")?.extract()?,
        }))
    };
    Ok(Graph::new(spec, uuid))
}

fn seconds(seconds: f64) -> PyResult<Duration> {
    let duration = Duration::try_from_secs_f64(seconds).ok().filter(|it| !it.is_zero());
    let bad = || format!("deadline must be a number of seconds above 0, found {seconds}");
    duration.ok_or_else(|| PyValueError::new_err(bad()))
}

/// Returns the argument of [`restore`].
pub(crate) fn pickled<'py>(
    py: Python<'py>,
    spec: &Spec,
    uuid: Option<[u8; 16]>,
) -> PyResult<Bound<'py, PyAny>> {
    let dict = PyDict::new(py);
    dict.set_item("uuid", uuid)?;
    match spec {
        Spec::Folder(Folder { path, version, parts, writable, reader }) => {
            dict.set_item("path", path)?;
            dict.set_item("version", version)?;
            dict.set_item(
                "parts",
                parts.as_ref().map(|parts| PyList::new(py, parts)).transpose()?,
            )?;
            dict.set_item("writable", writable)?;
            dict.set_item("reader", reader.to_string())?;
        }
        Spec::Servers(cluster) => {
            dict.set_item("addresses", &cluster.addresses)?;
            dict.set_item("token_file", &cluster.token_file)?;
            dict.set_item("tls_ca", &cluster.tls_ca)?;
            dict.set_item("tls_cert", &cluster.tls_cert)?;
            dict.set_item("tls_key", &cluster.tls_key)?;
            dict.set_item("deadline", cluster.deadline.as_secs_f64())?;
            dict.set_item("pin", cluster.pin)?;
            dict.set_item("version", cluster.version)?;
            dict.set_item("topology", &cluster.topology)?;
        }
    }
    Ok(dict.into_any())
}
