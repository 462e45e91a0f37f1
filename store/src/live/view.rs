//! What a gather of one tensor of one partition reads: the newest committed version, or one version.

use std::sync::Arc;

use super::{LiveTensor, TensorVersion};

/// Which rows a reader sees. Rows that were put and are not committed are seen by no reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// The newest committed version of each partition, looked up by each gather.
    #[default]
    Latest,
    /// A committed version, whatever is put, committed or compacted meanwhile.
    At(u32),
}

/// A view of one tensor of one partition.
#[derive(Clone, Debug)]
pub enum TensorView {
    /// The newest committed version of each moment.
    Latest(Arc<LiveTensor>),
    /// One version, whose files stay while the view lives.
    At(Arc<TensorVersion>),
}

impl TensorView {
    /// The version that a gather reads which begins now.
    #[must_use]
    pub fn version(&self) -> Arc<TensorVersion> {
        match self {
            Self::Latest(tensor) => tensor.current(),
            Self::At(version) => Arc::clone(version),
        }
    }
}
