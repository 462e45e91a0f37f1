//! Errors of training.

use std::{fmt, io, path::PathBuf};

use lodestore_client::{ClientError, source::TensorInfo};
use lodestore_comm::error::CollectiveError;
use lodestore_comm::group::GroupError;
use lodestore_graph::{NodeId, rapa::RapaError, schedule::ScheduleError, topology::TopologyError};
use lodestore_models::model_file::SavedModelError;
use thiserror::Error;

use crate::checkpoint_error::CheckpointError;
use crate::step::Place;

/// Reason for the end of training.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A source could not return rows.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The schedule could not be written or read.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A checkpoint could not be written or resumed from.
    #[error("checkpoint: {0}")]
    Checkpoint(#[from] CheckpointError),
    /// A trained model could not be written or used.
    #[error(transparent)]
    SavedModel(#[from] SavedModelError),
    /// A file could not store the rows of a layer.
    #[error(
        "cannot keep a layer's rows in {}: {source}; an evaluation keeps them in TMPDIR, unless it is \
         allowed more memory", folder.display()
    )]
    Spill {
        /// Folder of the file.
        folder: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The receiver of a model's rows failed.
    #[error("cannot write the model's rows: {0}")]
    Output(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A model's output row of a node is not finite.
    #[error(
        "the model's row of node {node} is not finite; look for NaN or infinities in the model's \
         parameters and in the features of the node and its neighbours"
    )]
    NotFinite {
        /// The node.
        node: NodeId,
    },
    /// The processes of the run no longer communicate.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The leader ended the run. Internal: no run returns it.
    #[error("the first process has ended the run")]
    Ended,
    /// Another process of the run has failed.
    #[error("process {rank} of the run: {message}")]
    Peer {
        /// Its rank.
        rank: u32,
        /// The message.
        message: String,
    },
    /// Another process of the run has other settings, another graph or other labels.
    #[error(
        "process {rank} of the run has other settings, another graph or other labels; start all of \
         them with the same command line and the same graph"
    )]
    OtherRun {
        /// Its rank.
        rank: u32,
    },
    /// Another process of the run reads another version of the rows.
    #[error(
        "process {rank} of the run reads {found} of the rows, the first one {expected}: a commit came \
         between, or their folders differ; start the run again"
    )]
    OtherVersion {
        /// Its rank.
        rank: u32,
        /// The versions of the first process.
        expected: String,
        /// The versions of that process.
        found: String,
    },
    /// Rows of two versions would meet in a batch.
    #[error(
        "workers' own rows are of {own}, all others of {remote}: rows of both would meet in a batch; open \
         both at one version"
    )]
    MixedVersions {
        /// The version of workers' own rows.
        own: String,
        /// The version of the others.
        remote: String,
    },
    /// This process cannot read the schedule that the first process wrote.
    #[error(
        "the schedule {path} of the first process {fault}; on several machines name one on a file \
         system that all of them have"
    )]
    ScheduleElsewhere {
        /// Path at the first process.
        path: String,
        /// Fault of the file at this process.
        fault: String,
    },
    /// The memory for rows is smaller than one batch.
    #[error(
        "{found} bytes for rows are less than the largest batch takes: {max_nodes} rows of {row_bytes} \
         bytes; allow {least} bytes or more, or train with smaller batches or fan-outs"
    )]
    Memory {
        /// The budget.
        found: u64,
        /// Smallest budget that works.
        least: u64,
        /// Input nodes of the largest batch.
        max_nodes: usize,
        /// Bytes of a row.
        row_bytes: usize,
    },
    /// Under `massive` a worker's remote source has no buffer.
    #[error(
        "strategy massive keeps rows in a buffer, and the remote source of worker {worker} is none: attach \
         one with `WorkerSources::with_buffer`"
    )]
    NoBuffer {
        /// The worker.
        worker: u32,
    },
    /// A schedule would replace that of another run.
    #[error("{path} is the schedule of another run: {differs}; name another file, or remove it")]
    OtherSchedule {
        /// The file.
        path: String,
        /// The setting that differs from this run's.
        differs: String,
    },
    /// The disk cannot hold the schedule.
    #[error(
        "the schedule of {epochs} epochs will take some {expected} bytes with what is worked out from it, \
         and there are {found} free where {path} is; train for fewer epochs, or name another place"
    )]
    ScheduleRoom {
        /// Path of the schedule.
        path: String,
        /// Estimated bytes, by its first batches.
        expected: u64,
        /// Free bytes.
        found: u64,
        /// Epochs of the run.
        epochs: u32,
    },
    /// The lists of a partition could not be made.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// `sdt` and `full`: a partition is larger than its memory, or has too many elements to number.
    #[error("{0}")]
    PartitionSize(String),
    /// `sdt`: a local model that cannot be averaged with others.
    #[error("the local model of partition {part} has {fault}")]
    LocalModel {
        /// The partition.
        part: u32,
        /// The fault, and the remedy.
        fault: String,
    },
    /// `full`: profiles of devices cannot be balanced.
    #[error(transparent)]
    Rapa(#[from] RapaError),
    /// Threads could not be started.
    #[error("cannot start compute threads: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
    /// A setting that cannot work.
    #[error("setting `{setting}` must be {expected}, found {found}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// The allowed value.
        expected: String,
        /// The value found.
        found: String,
    },
    /// Rows or topology are not those of the graph.
    #[error(
        "the {what} has {found} nodes in its partitions, the graph has {expected} in its own; \
         check that servers and folder hold the same graph"
    )]
    OtherGraph {
        /// What differs from the graph: rows or topology.
        what: &'static str,
        /// Nodes of the graph.
        expected: u32,
        /// Nodes found. Equal numbers in other partitions are an error too.
        found: u32,
    },
    /// A tensor that training cannot use.
    #[error("tensor `{tensor}` must be {expected}, found {found}")]
    Tensors {
        /// Name of the tensor.
        tensor: String,
        /// Dtype and width that training needs.
        expected: &'static str,
        /// Dtype and width found.
        found: String,
    },
    /// A node of a split has no usable label.
    #[error("{node} is in the {split} split but its label is {label}; expected 0..{limit}")]
    Label {
        /// The node.
        node: NamedNode,
        /// Split that it is in.
        split: &'static str,
        /// Label found.
        label: i64,
        /// Labels are below this.
        limit: i64,
    },
    /// A split value that names no set.
    #[error(
        "{node} has {found} in `{tensor}`; expected 0 for training, 1 for validation, 2 for test, \
         or 255 for none of them"
    )]
    Split {
        /// Name of the split tensor.
        tensor: String,
        /// The node.
        node: NamedNode,
        /// Value found.
        found: u8,
    },
    /// One of several labels of a node is neither 0 nor 1.
    #[error(
        "node {node} is in the {split} split but label {column} of it is {label}; expected 0 or 1"
    )]
    OneOfLabels {
        /// The node.
        node: NodeId,
        /// Split that it is in.
        split: &'static str,
        /// Position of the label, from 0.
        column: usize,
        /// Value found.
        label: f64,
    },
    /// A feature is not finite.
    #[error(
        "feature {column} of node {node} is {found} in {place}; replace it, or import \
         the features again (NaN is refused there unless it is allowed)"
    )]
    Feature {
        /// The node.
        node: NodeId,
        /// Element of its row, from 0.
        column: usize,
        /// The value found.
        found: f32,
        /// The step.
        place: Place,
    },
    /// No node to train on.
    #[error("tensor `{tensor}` marks no node for training; mark some with 0")]
    NothingToTrain {
        /// Name of the split tensor.
        tensor: String,
    },
    /// No node to measure a model on.
    #[error(
        "tensor `{tensor}` marks no node for validation or test; mark some with 1 or 2 to measure a model"
    )]
    NothingToMeasure {
        /// Name of the split tensor.
        tensor: String,
    },
    /// Patience without a node to measure on.
    #[error("patience needs validation nodes; tensor `{tensor}` marks none, mark some with 1")]
    NothingToValidate {
        /// Name of the split tensor.
        tensor: String,
    },
    /// The loss is not finite, though all features are.
    #[error(
        "loss is {loss} in {place}, where the model's row of node {node} is the \
         largest or no number; try a lower learning rate"
    )]
    Diverged {
        /// The root whose row it is.
        node: NodeId,
        /// The step.
        place: Place,
        /// The loss.
        loss: f64,
    },
    /// A gradient is not finite, though the loss is.
    #[error(
        "a gradient is {found} in {place}, at a loss of {loss}; try a lower learning \
         rate"
    )]
    Gradient {
        /// The step.
        place: Place,
        /// The first element that is not finite.
        found: f32,
        /// The loss of the step.
        loss: f64,
    },
    /// A worker's thread panicked.
    #[error("worker {worker} panicked; the cause is in the log above")]
    WorkerPanicked {
        /// The worker, from 0.
        worker: u32,
    },
}

impl TrainError {
    /// Returns the error of a tensor of another dtype or width than `expected`.
    pub(crate) fn tensor(info: &TensorInfo, expected: &'static str) -> Self {
        let found = format!("{} of width {}", info.dtype.name(), info.width);
        Self::Tensors { tensor: info.name.clone(), expected, found }
    }

    /// Returns whether all processes of the run find this error at the same point, so that no
    /// process has to send it.
    pub(crate) fn is_common(&self) -> bool {
        matches!(
            self,
            Self::Collective(_)
                | Self::Peer { .. }
                | Self::OtherRun { .. }
                | Self::OtherVersion { .. }
                | Self::Gradient { .. }
        )
    }
}

impl From<GroupError> for TrainError {
    fn from(error: GroupError) -> Self {
        match error {
            GroupError::Collective(error) => Self::Collective(error),
            GroupError::Ended => Self::Ended,
            GroupError::Peer { rank, message } => Self::Peer { rank, message },
        }
    }
}

/// Fails unless a setting `holds`.
pub(crate) fn check(
    holds: bool,
    setting: &'static str,
    expected: &str,
    found: impl fmt::Display,
) -> Result<(), TrainError> {
    if holds {
        return Ok(());
    }
    let (expected, found) = (expected.to_owned(), found.to_string());
    Err(TrainError::Setting { setting, expected, found })
}

/// A node with the id that users know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedNode {
    /// Its id in the graph.
    pub internal: NodeId,
    /// Its id in the imported files, if it is known.
    pub external: Option<i64>,
}

impl From<NodeId> for NamedNode {
    fn from(internal: NodeId) -> Self {
        Self { internal, external: None }
    }
}

impl fmt::Display for NamedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.external {
            Some(external) => {
                write!(f, "node {external} of the imported files ({} in the graph)", self.internal)
            }
            None => write!(f, "node {}", self.internal),
        }
    }
}
