//! The class `Schedule`: all batches of a run, in a file.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;

use lodestore_graph::NodeId;
use lodestore_graph::schedule::{
    Schedule as ScheduleFile, ScheduleInput, ScheduleSpec, is_schedule_of, write_schedule,
};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error::Error;
use crate::open_graph::OpenGraph;
use crate::signals;

/// All batches of a run, sampled ahead, in a file; pickled as its path.
#[pyclass(frozen, module = "lodestore")]
pub(crate) struct Schedule {
    path: PathBuf,
    file: Arc<ScheduleFile>,
}

/// Opens the schedule at `path`. Raises StoreError, DamagedError.
#[pyfunction]
pub(crate) fn open_schedule(path: PathBuf) -> PyResult<Schedule> {
    let path = std::path::absolute(&path).unwrap_or(path);
    let file = Arc::new(ScheduleFile::open(&path).map_err(Error::from)?);
    Ok(Schedule { path, file })
}

impl Schedule {
    /// Writes the batches, unless the file has them.
    pub(crate) fn write(
        py: Python<'_>,
        opened: Arc<OpenGraph>,
        path: PathBuf,
        spec: ScheduleSpec,
        roots: Vec<NodeId>,
    ) -> Result<Self, Error> {
        spec.check()?;
        let path = std::path::absolute(&path).unwrap_or(path);
        let out = path.clone();
        let file = signals::run(py, move || {
            let topology = opened.topology()?;
            let book = opened.source().book();
            if !is_schedule_of(&spec, topology.n_nodes(), book, &roots, &out) {
                let n_threads = available_parallelism().map_or(1, NonZero::get);
                let mut progress = |_: u64, _: u64| ();
                write_schedule(
                    &ScheduleInput { topology, book, train_roots: &roots },
                    &spec,
                    &out,
                    n_threads,
                    &mut progress,
                )?;
            }
            Ok(ScheduleFile::open(&out)?)
        })?;
        Ok(Self { path, file: Arc::new(file) })
    }

    /// Returns the file.
    pub(crate) fn file(&self) -> &Arc<ScheduleFile> {
        &self.file
    }

    /// Returns the path of the file.
    pub(crate) fn file_path(&self) -> &Path {
        &self.path
    }
}

#[pymethods]
impl Schedule {
    /// Returns the path of the file (pathlib.Path).
    #[getter]
    fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of epochs (int).
    #[getter]
    fn epochs(&self) -> u32 {
        self.file.spec().epochs
    }

    /// Returns the number of workers (int).
    #[getter]
    fn workers(&self) -> u32 {
        self.file.spec().workers
    }

    /// Returns the most input nodes of a batch (int).
    #[getter]
    fn max_nodes(&self) -> u32 {
        self.file.max_ids()
    }

    /// Returns the digest of the content (str), equal for equal arguments on every machine.
    #[getter]
    fn digest(&self) -> String {
        self.file.digest_hex()
    }

    /// Returns the number of batches of a worker in an epoch (int).
    #[pyo3(signature = (worker=0))]
    fn batches(&self, worker: u32) -> u32 {
        self.file.n_batches(worker)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let open = py.import("lodestore._lodestore")?.getattr("open_schedule")?;
        (open, (&self.path,)).into_pyobject(py)
    }

    fn __repr__(&self) -> String {
        let spec = self.file.spec();
        let name = self.path.file_name().unwrap_or_default().display();
        let epochs = spec.epochs;
        let workers = spec.workers;
        let batches: u64 = (0..workers).map(|worker| u64::from(self.file.n_batches(worker))).sum();
        format!("Schedule('{name}', {epochs} epochs of {batches} batches, {workers} workers)")
    }
}
