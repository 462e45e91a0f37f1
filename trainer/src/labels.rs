//! Labels and splits of all nodes, read once before training.

use lodestore_client::BatchLoader;
use lodestore_client::buffer::RowBuffer;
use lodestore_graph::{NodeId, PartId, PartitionBook};
use lodestore_models::loss::Targets;
use lodestore_store::Dtype;
use lodestore_store::import::EXTERNAL_ID_TENSOR;

use crate::config::TrainConfig;
use crate::error::TrainError;
use crate::options::Metric;
use crate::sources::WorkerSources;

/// Most classes of a model. A larger label is an error.
const MAX_CLASSES: i64 = 1 << 16;

/// Split value of training nodes.
const TRAIN: u8 = 0;
const NO_SPLIT: u8 = u8::MAX;

/// Nodes per pull.
const CHUNK_NODES: u32 = 1 << 16;

/// Labels of nodes, and the nodes of each split.
///
/// Memory: 4 bytes per node of the graph, or with several labels a node 1 byte per label; and 4 per
/// node in a split.
#[derive(Debug)]
pub(crate) struct Labels {
    of_nodes: Targets,
    /// Classes, or labels of a node.
    pub(crate) n_classes: usize,
    pub(crate) train: Vec<NodeId>,
    pub(crate) validation: Vec<NodeId>,
    pub(crate) test: Vec<NodeId>,
}

impl Labels {
    /// Reads both tensors. Every node of a used split must have a class. In training the largest
    /// label decides the number of classes. A measurement of a model of `known_classes` ignores
    /// training nodes and their labels.
    pub(crate) fn read(
        sources: &WorkerSources,
        owned: &[PartId],
        book: &PartitionBook,
        config: &TrainConfig,
        known_classes: Option<usize>,
    ) -> Result<Self, TrainError> {
        let info = sources.local.tensor(&config.label_tensor)?;
        let (dtype, width) = (info.dtype, info.width as usize);
        let of_nodes = match info.dtype {
            Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8 | Dtype::U8 if width == 1 => {
                Targets::Classes(Vec::new())
            }
            Dtype::U8 | Dtype::F32 if width > 1 => Targets::Several { width, labels: Vec::new() },
            _ => {
                let expected =
                    "integers of width 1, or u8 or f32 of more for several labels a node";
                return Err(TrainError::tensor(&info, expected));
            }
        };
        let (train, validation, test) = (Vec::new(), Vec::new(), Vec::new());
        let (n_classes, limit) = known_classes.map_or((0, MAX_CLASSES), |n| (n, n as i64));
        let mut labels = Self { of_nodes, n_classes, train, validation, test };
        let mut column = Column::open(sources, owned, &config.label_tensor)?;
        let info = sources.local.tensor(&config.split_tensor)?;
        if info.dtype != Dtype::U8 || info.width != 1 {
            return Err(TrainError::tensor(&info, "u8 of width 1"));
        }
        let mut splits = Column::open(sources, owned, &config.split_tensor)?;
        for start in (0..book.n_nodes()).step_by(CHUNK_NODES as usize) {
            let end = start.saturating_add(CHUNK_NODES).min(book.n_nodes());
            let ids: Vec<NodeId> = (start..end).map(NodeId).collect();
            let mut splits = splits.read::<u8>(&ids)?.to_vec();
            check_splits(&config.split_tensor, &ids, &splits)
                .map_err(|error| named_by_the_import(sources, owned, error))?;
            if known_classes.is_some() {
                splits.iter_mut().filter(|split| **split == TRAIN).for_each(|it| *it = NO_SPLIT);
            }
            match (&labels.of_nodes, dtype) {
                (Targets::Classes(_), _) => {
                    let classes = column.classes(&ids, dtype)?;
                    let taken = labels.take(&ids, &classes, &splits, limit);
                    taken.map_err(|error| named_by_the_import(sources, owned, error))?;
                }
                (_, Dtype::U8) => labels.take_several(&ids, column.read::<u8>(&ids)?, &splits)?,
                _ => labels.take_several(&ids, column.read::<f32>(&ids)?, &splits)?,
            }
        }
        let tensor = config.split_tensor.clone();
        if known_classes.is_none() && labels.train.is_empty() {
            return Err(TrainError::NothingToTrain { tensor });
        }
        if known_classes.is_some() && labels.validation.is_empty() && labels.test.is_empty() {
            return Err(TrainError::NothingToMeasure { tensor });
        }
        labels.check_metric(config)?;
        Ok(labels)
    }

    /// Returns the labels of `nodes`, all of which are in a split.
    pub(crate) fn targets_of(&self, nodes: &[NodeId]) -> Targets {
        match &self.of_nodes {
            Targets::Classes(classes) => {
                Targets::Classes(nodes.iter().map(|node| classes[node.index()]).collect())
            }
            Targets::Several { width, labels } => {
                let of_node = |node: &NodeId| &labels[node.index() * width..][..*width];
                let labels = nodes.iter().flat_map(of_node).copied().collect();
                Targets::Several { width: *width, labels }
            }
        }
    }

    /// Fails if the labels do not allow the metric.
    fn check_metric(&self, config: &TrainConfig) -> Result<(), TrainError> {
        let metric = config.metric;
        let test: &[NodeId] = if config.measure_test { &self.test } else { &[] };
        let is_measured = config.evaluate_every > 0 || !test.is_empty();
        let is_blind = |nodes: &[NodeId]| !nodes.is_empty() && !self.differ(nodes);
        let expected = match (metric, &self.of_nodes) {
            (Metric::Accuracy, Targets::Several { .. }) => {
                "f1-micro or roc-auc for several labels a node"
            }
            (Metric::RocAuc, Targets::Classes(_)) if self.n_classes != 2 => {
                "accuracy or f1-micro for other than two classes"
            }
            (Metric::RocAuc, _) if is_measured && is_blind(&self.validation) => {
                "other than roc-auc, as all validation nodes have the same labels"
            }
            (Metric::RocAuc, _) if is_measured && is_blind(test) => {
                "other than roc-auc, as all test nodes have the same labels"
            }
            _ => return Ok(()),
        };
        let (expected, found) = (expected.to_owned(), metric.to_string());
        Err(TrainError::Setting { setting: "metric", expected, found })
    }

    /// Returns whether there is a label that some of `nodes` have and others lack.
    fn differ(&self, nodes: &[NodeId]) -> bool {
        match self.targets_of(nodes) {
            Targets::Classes(classes) => classes.iter().any(|class| *class != classes[0]),
            Targets::Several { width, labels } => {
                labels.chunks_exact(width).any(|row| *row != labels[..width])
            }
        }
    }

    /// Returns the BLAKE3 of the labels and of all splits, in hex.
    pub(crate) fn digest(&self) -> String {
        let mut digest = blake3::Hasher::new();
        match &self.of_nodes {
            Targets::Classes(classes) => digest.update(bytemuck::cast_slice(classes)),
            Targets::Several { labels, .. } => digest.update(labels),
        };
        for nodes in [&self.train, &self.validation, &self.test] {
            digest.update(&(nodes.len() as u64).to_le_bytes());
            digest.update(bytemuck::cast_slice(nodes));
        }
        digest.finalize().to_hex().to_string()
    }

    /// Records the classes of nodes; those of nodes in a split must be below `limit`.
    fn take(
        &mut self,
        ids: &[NodeId],
        classes: &[i64],
        splits: &[u8],
        limit: i64,
    ) -> Result<(), TrainError> {
        for ((&node, &label), &split) in ids.iter().zip(classes).zip(splits) {
            // Labels of nodes in no split are never read.
            let mut class = 0;
            if let Some(split) = self.put(node, split) {
                let found = u32::try_from(label).ok().filter(|_| label < limit);
                class = found.ok_or_else(|| {
                    let node = node.into();
                    TrainError::Label { node, split, label, limit }
                })?;
            }
            self.n_classes = self.n_classes.max(class as usize + 1);
            if let Targets::Classes(classes) = &mut self.of_nodes {
                classes.push(class);
            }
        }
        Ok(())
    }

    /// Like `take`, for several labels a node.
    fn take_several<T: Copy + Into<f64>>(
        &mut self,
        ids: &[NodeId],
        rows: &[T],
        splits: &[u8],
    ) -> Result<(), TrainError> {
        self.n_classes = rows.len() / ids.len().max(1);
        for ((&node, row), &split) in ids.iter().zip(rows.chunks_exact(self.n_classes)).zip(splits)
        {
            let split = self.put(node, split);
            let Targets::Several { labels, .. } = &mut self.of_nodes else { continue };
            for (column, &label) in row.iter().enumerate() {
                let label: f64 = label.into();
                if let Some(split) = split.filter(|_| label != 0.0 && label != 1.0) {
                    return Err(TrainError::OneOfLabels { node, split, column, label });
                }
                labels.push(u8::from(label == 1.0));
            }
        }
        Ok(())
    }

    /// Adds a node to its split; returns the name of the split, if it is in one.
    fn put(&mut self, node: NodeId, split: u8) -> Option<&'static str> {
        let (name, nodes) = match split {
            TRAIN => ("training", &mut self.train),
            1 => ("validation", &mut self.validation),
            2 => ("test", &mut self.test),
            _ => return None,
        };
        nodes.push(node);
        Some(name)
    }
}

/// Fails for a value that no split has.
fn check_splits(tensor: &str, ids: &[NodeId], splits: &[u8]) -> Result<(), TrainError> {
    let mut marked = ids.iter().zip(splits);
    match marked.find(|(_, split)| !matches!(**split, TRAIN | 1 | 2 | NO_SPLIT)) {
        Some((&node, &found)) => {
            Err(TrainError::Split { tensor: tensor.to_owned(), node: node.into(), found })
        }
        None => Ok(()),
    }
}

/// Returns an error about a node with the id that the node has in the files of its import.
fn named_by_the_import(
    sources: &WorkerSources,
    owned: &[PartId],
    mut error: TrainError,
) -> TrainError {
    let (TrainError::Label { node, .. } | TrainError::Split { node, .. }) = &mut error else {
        return error;
    };
    // If the source has no imported ids, the message has the id in the graph.
    let read = || -> Result<Option<i64>, TrainError> {
        let mut column = Column::open(sources, owned, EXTERNAL_ID_TENSOR)?;
        Ok(column.read::<i64>(&[node.internal])?.first().copied())
    };
    node.external = read().ok().flatten();
    error
}

/// A tensor that is read in chunks.
struct Column {
    loader: BatchLoader,
    buffer: RowBuffer,
}

impl Column {
    fn open(sources: &WorkerSources, owned: &[PartId], tensor: &str) -> Result<Self, TrainError> {
        let loader = sources.loader(tensor, owned)?;
        Ok(Self { loader, buffer: RowBuffer::default() })
    }

    /// Returns integers of one type as those of the widest.
    fn classes(&mut self, ids: &[NodeId], dtype: Dtype) -> Result<Vec<i64>, TrainError> {
        Ok(match dtype {
            Dtype::U8 => self.read::<u8>(ids)?.iter().map(|&it| it.into()).collect(),
            Dtype::I8 => self.read::<i8>(ids)?.iter().map(|&it| it.into()).collect(),
            Dtype::I16 => self.read::<i16>(ids)?.iter().map(|&it| it.into()).collect(),
            Dtype::I32 => self.read::<i32>(ids)?.iter().map(|&it| it.into()).collect(),
            _ => self.read::<i64>(ids)?.to_vec(),
        })
    }

    fn read<T: bytemuck::Pod>(&mut self, ids: &[NodeId]) -> Result<&[T], TrainError> {
        self.buffer.resize(ids.len() * self.loader.row_bytes());
        self.loader.load(ids, self.buffer.bytes_mut())?;
        Ok(self.buffer.elements())
    }
}
