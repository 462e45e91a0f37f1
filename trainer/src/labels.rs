//! Classes and splits of all nodes, read once before training.

use lodestore_client::{BatchLoader, RowBuffer};
use lodestore_graph::{NodeId, PartId, PartitionBook};
use lodestore_store::Dtype;

use crate::{TrainConfig, TrainError, WorkerSources};

/// More classes than any model here should get: a label past this is taken for damage.
const MAX_CLASSES: i64 = 1 << 16;

/// Nodes per pull.
const CHUNK_NODES: u32 = 1 << 16;

/// Classes of the nodes, and which nodes are for what.
///
/// Memory: 4 bytes per node of the graph, and 4 per node in a split.
#[derive(Debug)]
pub(crate) struct Labels {
    classes: Vec<u32>,
    pub(crate) n_classes: usize,
    pub(crate) train: Vec<NodeId>,
    pub(crate) validation: Vec<NodeId>,
    pub(crate) test: Vec<NodeId>,
}

impl Labels {
    /// Reads both tensors; every node of a split must have a class.
    pub(crate) fn read(
        sources: &WorkerSources,
        owned: &[PartId],
        book: &PartitionBook,
        config: &TrainConfig,
    ) -> Result<Self, TrainError> {
        let mut labels = Self {
            classes: Vec::with_capacity(book.n_nodes() as usize),
            n_classes: 0,
            train: Vec::new(),
            validation: Vec::new(),
            test: Vec::new(),
        };
        let mut classes =
            Column::open(sources, owned, &config.label_tensor, Dtype::I64, "i64 of width 1")?;
        let mut splits =
            Column::open(sources, owned, &config.split_tensor, Dtype::U8, "u8 of width 1")?;
        for start in (0..book.n_nodes()).step_by(CHUNK_NODES as usize) {
            let end = start.saturating_add(CHUNK_NODES).min(book.n_nodes());
            let ids: Vec<NodeId> = (start..end).map(NodeId).collect();
            labels.take(&ids, classes.read::<i64>(&ids)?, splits.read::<u8>(&ids)?)?;
        }
        if labels.train.is_empty() {
            return Err(TrainError::NothingToTrain { tensor: config.split_tensor.clone() });
        }
        Ok(labels)
    }

    /// The classes of `nodes`, all of which are in a split.
    pub(crate) fn classes_of(&self, nodes: &[NodeId]) -> Vec<u32> {
        nodes.iter().map(|node| self.classes[node.index()]).collect()
    }

    /// BLAKE3 of the classes and of all splits, in hex.
    pub(crate) fn digest(&self) -> String {
        let mut digest = blake3::Hasher::new();
        digest.update(bytemuck::cast_slice(&self.classes));
        for nodes in [&self.train, &self.validation, &self.test] {
            digest.update(&(nodes.len() as u64).to_le_bytes());
            digest.update(bytemuck::cast_slice(nodes));
        }
        digest.finalize().to_hex().to_string()
    }

    fn take(&mut self, ids: &[NodeId], classes: &[i64], splits: &[u8]) -> Result<(), TrainError> {
        for ((&node, &label), &split) in ids.iter().zip(classes).zip(splits) {
            let (split, nodes) = match split {
                0 => ("training", Some(&mut self.train)),
                1 => ("validation", Some(&mut self.validation)),
                2 => ("test", Some(&mut self.test)),
                _ => ("no", None),
            };
            // Labels of nodes in no split are never read.
            let class = if let Some(nodes) = nodes {
                nodes.push(node);
                let class = u32::try_from(label).ok().filter(|_| label < MAX_CLASSES);
                let limit = MAX_CLASSES;
                class.ok_or(TrainError::Label { node, split, label, limit })?
            } else {
                0
            };
            self.n_classes = self.n_classes.max(class as usize + 1);
            self.classes.push(class);
        }
        Ok(())
    }
}

/// A tensor of one element per node, read in chunks.
struct Column {
    loader: BatchLoader,
    buffer: RowBuffer,
}

impl Column {
    fn open(
        sources: &WorkerSources,
        owned: &[PartId],
        tensor: &str,
        dtype: Dtype,
        expected: &'static str,
    ) -> Result<Self, TrainError> {
        let info = sources.local.tensor(tensor)?;
        if info.dtype != dtype || info.width != 1 {
            let found = format!("{} of width {}", info.dtype.name(), info.width);
            return Err(TrainError::Tensors { tensor: tensor.to_owned(), expected, found });
        }
        let loader = sources.loader(tensor, owned)?;
        Ok(Self { loader, buffer: RowBuffer::default() })
    }

    fn read<T: bytemuck::Pod>(&mut self, ids: &[NodeId]) -> Result<&[T], TrainError> {
        self.buffer.resize(ids.len() * self.loader.row_bytes());
        self.loader.load(ids, self.buffer.bytes_mut())?;
        Ok(self.buffer.elements())
    }
}
