//! The inputs of an import, and how each is stored.

use std::path::PathBuf;
use std::str::FromStr;

use lodestore_graph::edges::EdgeFiles;
use lodestore_graph::order::RowOrder;
use lodestore_graph::partition::{Algorithm, PartitionConfig, SpringParams};
use lodestore_graph::topology::{Direction, EdgePolicy, TopologyOptions};
use lodestore_store::Dtype;
use lodestore_store::codec::CodecChoice;
use lodestore_store::nan::NanPolicy;
use lodestore_store::source::{
    ConvertedSource, DenseSource, SourceError, TensorSource, open_source,
};

/// The tensor that says which nodes are for training, validation and test.
const SPLIT_TENSOR: &str = "split";

/// A graph to import.
#[derive(Clone, Debug)]
pub struct ImportConfig {
    /// Files of edges.
    pub edges: EdgeFiles,
    /// Which edges are kept.
    pub rules: EdgeRules,
    /// Tensors with one row per node.
    pub tensors: Vec<TensorFile>,
    /// Number of nodes; found from the first tensor or the edges unless given.
    pub nodes: Option<u32>,
    /// The partitioner; also whether edges stand for both directions.
    pub partition: PartitionConfig,
    /// Order of the rows within a partition.
    pub order: RowOrder,
    /// Whether all orders are measured.
    pub compare_orders: bool,
    /// Treatment of NaN in tensors.
    pub nan: NanPolicy,
    /// Bytes of the longest row that a server sends; tensors with longer ones are reported.
    pub max_served_row_bytes: Option<u64>,
    /// Folder of the graph, which must not exist.
    pub out: PathBuf,
}

/// Rules for the edges that an import keeps, and for their columns.
#[derive(Clone, Debug)]
pub struct EdgeRules {
    /// Edges from a node to itself.
    pub self_loops: EdgePolicy,
    /// Edges that repeat one of the input.
    pub duplicates: EdgePolicy,
    /// Keeps the position of each edge in the input, 8 bytes an edge.
    pub edge_ids: bool,
    /// An `.npy` file of shape (E,), f32: a weight of each edge.
    pub edge_weights: Option<PathBuf>,
}

/// A tensor's name, its file, and how its rows are stored.
#[derive(Clone, Debug)]
pub struct TensorFile {
    /// Name of the tensor.
    pub name: String,
    /// File of the rows; `FILE:MEMBER` names an array of an archive.
    pub file: PathBuf,
    /// Compression of the rows.
    pub codec: CodecChoice,
    /// Type of the stored elements, if not that of the file.
    pub dtype: Option<Dtype>,
    /// Layout of a file without a header.
    pub raw: Option<RowLayout>,
}

/// Type and width of packed rows, as `f32x128`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLayout {
    /// Type of an element.
    pub dtype: Dtype,
    /// Elements of a row, 1 or more.
    pub width: u32,
}

impl ImportConfig {
    /// Returns the import of a file of directed edges to the folder `out`, as `n_parts` partitions
    /// by SPRING, refined once. It has no tensors yet.
    pub fn new(edges: impl Into<PathBuf>, n_parts: u16, out: impl Into<PathBuf>) -> Self {
        let spring = Algorithm::Spring(SpringParams::default());
        Self {
            edges: EdgeFiles::from(edges.into()),
            rules: EdgeRules::default(),
            tensors: Vec::new(),
            nodes: None,
            partition: PartitionConfig {
                refine_rounds: 1,
                ..PartitionConfig::new(spring, n_parts)
            },
            order: RowOrder::default(),
            compare_orders: false,
            nan: NanPolicy::Refuse,
            max_served_row_bytes: None,
            out: out.into(),
        }
    }

    /// Adds a tensor that is stored as it is in `file`.
    #[must_use]
    pub fn with_tensor(mut self, name: &str, file: impl Into<PathBuf>) -> Self {
        self.tensors.push(TensorFile::new(name, file));
        self
    }
}

impl Default for EdgeRules {
    /// Keeps self loops, drops repeated edges, and keeps no columns.
    fn default() -> Self {
        let (self_loops, duplicates) = (EdgePolicy::Keep, EdgePolicy::Drop);
        Self { self_loops, duplicates, edge_ids: false, edge_weights: None }
    }
}

impl EdgeRules {
    pub(crate) fn options<'a>(
        &self,
        direction: Direction,
        weights: Option<&'a [f32]>,
    ) -> TopologyOptions<'a> {
        TopologyOptions {
            direction,
            self_loops: self.self_loops,
            duplicates: self.duplicates,
            edge_ids: self.edge_ids,
            weights,
            ..TopologyOptions::default()
        }
    }

    /// Returns the names of the columns kept.
    pub(crate) fn columns(&self) -> Vec<&'static str> {
        let columns = [("ids", self.edge_ids), ("weights", self.edge_weights.is_some())];
        columns.into_iter().filter(|(_, kept)| *kept).map(|(name, _)| name).collect()
    }
}

impl FromStr for RowLayout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (dtype, width) = text.split_once('x').ok_or("expected DTYPExWIDTH, such as f32x128")?;
        let dtype = dtype.parse::<Dtype>().map_err(|error| error.to_string())?;
        let width = width.parse().ok().filter(|&width| width > 0);
        let width = width.ok_or("expected a width of 1 or more after the `x`, such as f32x128")?;
        Ok(Self { dtype, width })
    }
}

impl TensorFile {
    /// Returns a tensor that is stored as it is in the file, compressed if that pays.
    #[must_use]
    pub fn new(name: &str, file: impl Into<PathBuf>) -> Self {
        let (name, file) = (name.to_owned(), file.into());
        Self { name, file, codec: CodecChoice::Auto, dtype: None, raw: None }
    }

    /// Opens the file; elements have the type in which they are stored.
    pub fn open(&self) -> Result<Box<dyn TensorSource>, SourceError> {
        let source: Box<dyn TensorSource> = match self.raw {
            Some(RowLayout { dtype, width }) => {
                Box::new(DenseSource::open_raw(&self.file, dtype, width)?)
            }
            None => open_source(&self.file)?,
        };
        if self.name == SPLIT_TENSOR && source.is_bool() {
            let reason = "booleans as a split, where 0 means training, 1 validation, 2 test and 255 \
                          none of them; make it of a mask by `numpy.where(train, 0, 255)`, as u8";
            let file = self.file.clone();
            return Err(SourceError::Content { file, reason: reason.to_owned() });
        }
        Ok(match self.dtype {
            Some(dtype) if dtype != source.dtype() => Box::new(ConvertedSource::new(source, dtype)),
            _ => source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_of_rows_are_checked() {
        let layout = "f32x3".parse::<RowLayout>().unwrap();
        assert_eq!(layout, RowLayout { dtype: Dtype::F32, width: 3 });
        for text in ["f32", "f32x", "f32x0", "x3", "f31x3", "f32x-1", "f32x99999999999"] {
            assert!(text.parse::<RowLayout>().is_err(), "{text}");
        }
    }
}
