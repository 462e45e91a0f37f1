//! Imports: files become a graph.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lodestore_graph::edges::{EdgeFile, EdgeFiles};
use lodestore_graph::order::RowOrder;
use lodestore_graph::partition::{Algorithm, PartitionConfig};
use lodestore_import::dataset::Layout;
use lodestore_import::{Dataset, EdgeRules, ImportConfig, Observer, TensorFile, import};
use lodestore_store::Dtype;
use lodestore_store::codec::CodecChoice;
use lodestore_store::nan::NanPolicy;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::Error;
use crate::signals;

/// Imports a graph from files to the folder `out`; returns warnings.
///
/// `lodestore.import_graph` takes arrays too. `progress` is called with a stage, the rows done and
/// those in all; an exception of it ends the import.
#[pyfunction]
#[pyo3(signature = (out, *, edges, tensors, dtypes, dataset=None, nodes=None, undirected=false, parts=1,
                    partitioner="spring", refine=None, order="greedy", codec="auto",
                     keep_nan=false, edge_ids=false, edge_weights=None,
                    progress=None))]
#[expect(clippy::too_many_arguments, reason = "keywords of a function in Python")]
pub(crate) fn import_files(
    py: Python<'_>,
    out: PathBuf,
    edges: Vec<PathBuf>,
    tensors: Vec<(String, PathBuf)>,
    dtypes: Vec<(String, String)>,
    dataset: Option<(String, PathBuf)>,
    nodes: Option<u32>,
    undirected: bool,
    parts: u16,
    partitioner: &str,
    refine: Option<u32>,
    order: &str,
    codec: &str,
    keep_nan: bool,
    edge_ids: bool,
    edge_weights: Option<PathBuf>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Vec<String>> {
    let algorithm: Algorithm = parsed("partitioner", partitioner)?;
    let refine_rounds = refine.unwrap_or(matches!(algorithm, Algorithm::Spring(_)).into());
    let mut partition = PartitionConfig::new(algorithm, parts);
    (partition.direction, partition.refine_rounds) = (undirected.into(), refine_rounds);
    let layout = dataset.map(|(layout, dir)| Ok::<_, PyErr>((parsed("dataset", &layout)?, dir)));
    let codec: CodecChoice = parsed("codec", codec)?;
    let dtypes = dtypes.into_iter().map(|(name, dtype)| Ok((name, parsed("dtypes", &dtype)?)));
    let request = Request {
        dataset: layout.transpose()?,
        codec,
        dtypes: dtypes.collect::<PyResult<_>>()?,
        config: ImportConfig {
            edges: EdgeFiles { files: edges.into_iter().map(EdgeFile::at).collect() },
            rules: EdgeRules { edge_ids, edge_weights, ..EdgeRules::default() },
            tensors: tensors.into_iter().map(|(name, file)| TensorFile::new(&name, file)).collect(),
            nodes,
            partition,
            order: parsed::<RowOrder>("order", order)?,
            compare_orders: false,
            nan: if keep_nan { NanPolicy::Keep } else { NanPolicy::Refuse },
            max_served_row_bytes: None,
            out: std::path::absolute(&out).unwrap_or(out),
        },
    };
    let cancelled = Arc::new(AtomicBool::new(false));
    let observer =
        Calling { progress, raised: None, cancelled: Arc::clone(&cancelled), warnings: Vec::new() };
    let result = signals::run(py, move || request.run(observer));
    // A call that a signal ended leaves the import to end before its next stage.
    cancelled.store(result.is_err(), Ordering::Relaxed);
    Ok(result?)
}

fn parsed<T: FromStr<Err: std::fmt::Display>>(name: &str, text: &str) -> PyResult<T> {
    text.parse().map_err(|error: T::Err| PyValueError::new_err(format!("{name}: {error}")))
}

/// The arguments of an import, checked as far as they can be without a file.
struct Request {
    dataset: Option<(Layout, PathBuf)>,
    codec: CodecChoice,
    dtypes: Vec<(String, Dtype)>,
    config: ImportConfig,
}

impl Request {
    fn run(self, mut observer: Calling) -> Result<Vec<String>, Error> {
        let Self { dataset, codec, dtypes, mut config } = self;
        let mut dataset = match dataset {
            Some((layout, dir)) => Some(Dataset::open(layout, &dir, &config.out)?),
            None => None,
        };
        if let Some(dataset) = &mut dataset {
            observer.warnings.append(&mut dataset.warnings);
            config.edges = dataset.edges.clone();
            config.nodes = config.nodes.or(Some(dataset.nodes));
            // Undirected where either says so.
            config.partition.direction = config.partition.direction.max(dataset.direction);
            config.tensors.splice(..0, std::mem::take(&mut dataset.tensors));
        }
        for tensor in &mut config.tensors {
            tensor.codec = codec;
            let dtype = dtypes.iter().find(|(name, _)| *name == tensor.name);
            tensor.dtype = dtype.map(|(_, dtype)| *dtype);
        }
        let missing = dtypes
            .iter()
            .find(|(name, _)| !config.tensors.iter().any(|tensor| tensor.name == *name));
        if let Some((name, _)) = missing {
            return Err(
                PyValueError::new_err(format!("dtypes: there is no tensor {name:?}")).into()
            );
        }
        let result = import(&config, &mut observer);
        match (observer.raised, result) {
            (Some(error), _) => Err(error.into()),
            (None, Ok(_)) => Ok(observer.warnings),
            (None, Err(error)) => Err(error.into()),
        }
    }
}

/// An import's progress, passed on to a function of Python.
struct Calling {
    progress: Option<Py<PyAny>>,
    /// The exception of that function.
    raised: Option<PyErr>,
    cancelled: Arc<AtomicBool>,
    warnings: Vec<String>,
}

impl Observer for Calling {
    fn stage(&mut self, name: &str) {
        self.progress(name, 0, 0);
    }

    fn progress(&mut self, stage: &str, done: u64, total: u64) {
        if let (Some(progress), None) = (&self.progress, &self.raised) {
            let called = Python::attach(|py| progress.call1(py, (stage, done, total)).map(drop));
            self.raised = called.err();
        }
    }

    fn is_cancelled(&self) -> bool {
        self.raised.is_some() || self.cancelled.load(Ordering::Relaxed)
    }

    fn warn(&mut self, message: &str) {
        self.warnings.push(message.to_owned());
    }
}
