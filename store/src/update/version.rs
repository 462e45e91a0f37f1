//! A tensor of a partition at one version: its layers, the location of each row, and the versions
//! that readers see.

use std::sync::Arc;

use lodestore_graph::PartId;

use super::{GraphHandle, TensorHandle};
use crate::error::StoreError;
use crate::layers::{LayerIndex, LayerSpan};
use crate::new_file::discard;
use crate::plan::{DiskProfile, ReadPlan};
use crate::reader::{self, ReaderKind, RowReader, gather_mapped};
use crate::row::RowIdx;
use crate::segment::Segment;
use crate::version_id::VersionId;

/// A tensor of a partition at a committed version. It is immutable, and its files stay while it
/// lives.
#[derive(Clone, Debug)]
pub struct TensorVersion {
    version: u32,
    /// Oldest first: the base segment, which has every row, and the deltas over it.
    layers: Arc<[Arc<Layer>]>,
    index: Arc<LayerIndex>,
}

/// Rows of a gather, by layer.
#[derive(Debug, Default)]
pub struct LayerRows {
    /// By position of the layer: rows of its file, each with its output row. The first list is for
    /// the base segment.
    by_layer: Vec<Vec<(RowIdx, u32)>>,
    n_layers: usize,
}

/// Buffers of a gather, reused by the next.
#[derive(Debug, Default)]
pub(crate) struct GatherScratch {
    by_layer: LayerRows,
    plan: ReadPlan,
}

impl TensorVersion {
    /// Builds the index of these layers, oldest first; the first one has every row.
    pub(super) fn new(version: u32, layers: Vec<Arc<Layer>>) -> Self {
        let n_rows = layers[0].segment().identity().n_rows;
        let index = Arc::new(LayerIndex::new(n_rows, &rows_of_deltas(&layers)));
        Self { version, layers: layers.into(), index }
    }

    /// Returns the tensor at `version` with these layers. Reuses the index if the deltas are the
    /// same.
    pub(super) fn with_layers(&self, version: u32, layers: Vec<Arc<Layer>>) -> Self {
        let (from, to) = (&self.layers[1..], &layers[1..]);
        let n_same = from.iter().zip(to).take_while(|(from, to)| Arc::ptr_eq(from, to)).count();
        let index = if n_same == from.len() && n_same == to.len() {
            Arc::clone(&self.index)
        } else {
            let (from, to) = (rows_of_deltas(&self.layers), rows_of_deltas(&layers));
            Arc::new(self.index.switched(n_same, &from, &to))
        };
        Self { version, layers: layers.into(), index }
    }

    /// Returns this state at a later version, with `delta` on top if the version changed any row.
    pub(super) fn at(&self, version: u32, delta: Option<Arc<Layer>>) -> Self {
        match delta {
            None => Self { version, ..self.clone() },
            Some(delta) => {
                let layers = self.layers.iter().cloned().chain([delta]).collect();
                self.with_layers(version, layers)
            }
        }
    }

    /// Returns the layers up to `version`; `None` if a layer also has rows of later versions.
    pub(super) fn back_to(&self, version: u32) -> Option<Self> {
        if version >= self.version {
            return None;
        }
        let n_kept = self.layers.partition_point(|layer| layer.version() <= version);
        let splits = self.layers.get(n_kept).is_some_and(|it| it.first_version() <= version);
        if n_kept == 0 || splits {
            return None;
        }
        if n_kept == self.layers.len() {
            return Some(self.at(version, None));
        }
        Some(self.with_layers(version, self.layers[..n_kept].to_vec()))
    }

    /// Returns the versions and the row count of each layer, oldest first.
    pub(super) fn spans(&self) -> Vec<LayerSpan> {
        let span = |layer: &Arc<Layer>| LayerSpan {
            first: layer.first_version(),
            last: layer.version(),
            n_rows: layer.n_rows(),
        };
        self.layers.iter().map(span).collect()
    }

    /// Returns the `n_layers` oldest layers, at the version of the last of them.
    pub(super) fn oldest_layers(&self, n_layers: usize) -> Self {
        if n_layers == self.layers.len() {
            return self.clone();
        }
        let layers = self.layers[..n_layers].to_vec();
        let version = layers[n_layers - 1].version();
        self.with_layers(version, layers)
    }

    /// Returns the newest version whose rows it has.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the layers, oldest first; the first one has every row.
    #[must_use]
    pub fn layers(&self) -> &[Arc<Layer>] {
        &self.layers
    }

    /// Returns the base segment, which has every row.
    #[must_use]
    pub fn base(&self) -> &Arc<Layer> {
        &self.layers[0]
    }

    /// Returns whether there is no delta over the base segment.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.layers.len() == 1
    }

    /// Returns the number of distinct rows in deltas.
    #[must_use]
    pub fn n_changed(&self) -> u64 {
        self.index.n_rows()
    }

    /// Returns the position of the layer that has the newest value of `row`.
    #[must_use]
    #[inline]
    pub fn layer_of(&self, row: RowIdx) -> usize {
        self.index.place_of(row).map_or(0, |place| place.layer as usize)
    }

    /// Returns the newest version that may have changed `row`.
    #[must_use]
    pub fn changed_by(&self, row: RowIdx) -> u32 {
        self.layers[self.layer_of(row)].version()
    }

    /// Splits rows, given with their output rows, by the layers that have their newest values.
    pub fn split(&self, rows: &[(RowIdx, u32)], split: &mut LayerRows) {
        split.clear(self.layers.len());
        if self.is_plain() {
            split.by_layer[0].extend_from_slice(rows);
            return;
        }
        split.by_layer[0].reserve(rows.len());
        for &(row, out_row) in rows {
            match self.index.place_of(row) {
                None => split.by_layer[0].push((row, out_row)),
                Some(place) => split.by_layer[place.layer as usize].push((place.row, out_row)),
            }
        }
    }

    /// Copies rows, given with their output rows, into `out`, which has a whole number of rows.
    pub(crate) fn gather(
        &self,
        rows: &[(RowIdx, u32)],
        profile: &DiskProfile,
        scratch: &mut GatherScratch,
        out: &mut [u8],
    ) -> Result<(), StoreError> {
        let GatherScratch { by_layer, plan } = scratch;
        if self.is_plain() {
            return self.base().reader().gather(rows, profile, plan, out);
        }
        let mapped: Option<Vec<_>> = self.layers.iter().map(|it| it.reader().as_mapped()).collect();
        if let Some(mapped) = mapped
            && gather_mapped(&mapped, &*self.index, rows, out)?
        {
            return Ok(());
        }
        self.split(rows, by_layer);
        for (layer, rows) in by_layer.iter() {
            self.layers[layer].reader().gather(rows, profile, plan, out)?;
        }
        Ok(())
    }

    /// Returns whether all layers are read through memory maps.
    pub(crate) fn is_mapped(&self) -> bool {
        self.layers.iter().all(|layer| layer.reader().as_mapped().is_some())
    }
}

/// Returns the rows of each delta among the layers.
fn rows_of_deltas(layers: &[Arc<Layer>]) -> Vec<&[u32]> {
    layers[1..].iter().map(|layer| layer.segment().listed_rows()).collect()
}

impl LayerRows {
    fn clear(&mut self, n_layers: usize) {
        self.n_layers = n_layers;
        self.by_layer.resize_with(n_layers.max(self.by_layer.len()), Vec::new);
        self.by_layer.iter_mut().for_each(Vec::clear);
    }

    /// Yields the position of each layer that has rows, with its rows.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &[(RowIdx, u32)])> {
        let lists = self.by_layer[..self.n_layers].iter().map(Vec::as_slice).enumerate();
        lists.filter(|(_, rows)| !rows.is_empty())
    }
}

/// A file of a tensor, with a reader of its rows.
///
/// Holding a layer pins its file, for this process and others.
#[derive(Debug)]
pub struct Layer {
    first: u32,
    segment: Arc<Segment>,
    reader: Box<dyn RowReader>,
}

impl Layer {
    /// Opens the reader of a segment that has rows of the versions from `first` to its own.
    pub(super) fn open(
        segment: impl Into<Arc<Segment>>,
        first: u32,
        kind: ReaderKind,
    ) -> Result<Arc<Self>, StoreError> {
        let segment = segment.into();
        let reader = reader::open(Arc::clone(&segment), kind)?;
        Ok(Arc::new(Self { first, segment, reader }))
    }

    /// Returns the file.
    #[must_use]
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Returns the oldest version whose rows the file has; for a base segment, its own version.
    #[must_use]
    pub fn first_version(&self) -> u32 {
        self.first
    }

    /// Returns the newest version whose rows the file has.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.segment.identity().version
    }

    /// Returns the number of rows in the file.
    pub(super) fn n_rows(&self) -> u64 {
        self.segment.identity().n_rows.into()
    }

    /// Returns the reader of its rows.
    #[must_use]
    pub fn reader(&self) -> &dyn RowReader {
        &*self.reader
    }
}

/// Which rows a reader sees. No reader sees pending rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// The newest committed version of each partition, looked up by each gather.
    #[default]
    Latest,
    /// A committed version, unaffected by later puts, commits and compactions.
    At(u32),
}

/// A view of one tensor of one partition.
#[derive(Clone, Debug)]
pub enum TensorView {
    /// The newest committed version at each moment.
    Latest(Arc<TensorHandle>),
    /// One version, whose files stay while the view lives.
    At(Arc<TensorVersion>),
}

impl TensorView {
    /// Returns the version that a new gather reads.
    #[must_use]
    pub fn version(&self) -> Arc<TensorVersion> {
        match self {
            Self::Latest(tensor) => tensor.current(),
            Self::At(version) => Arc::clone(version),
        }
    }
}

/// All open partitions of a graph at one version; holding this keeps their files.
#[derive(Debug)]
pub struct GraphVersion {
    version: VersionId,
    /// By partition and position of the tensor; empty for a partition that was not open.
    tensors: Vec<Vec<Arc<TensorVersion>>>,
}

impl GraphVersion {
    /// Returns the version number.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version.number
    }

    /// Returns the version with its commit, which is unknown if the partitions have none in common.
    #[must_use]
    pub fn version_id(&self) -> VersionId {
        self.version
    }

    /// Returns the tensor at `position` of the graph's description in a partition that was open.
    #[must_use]
    pub fn tensor(&self, part: PartId, position: usize) -> Option<&Arc<TensorVersion>> {
        self.tensors.get(part.index())?.get(position)
    }
}

impl GraphHandle {
    /// Like [`Layer::open`], for a file that no record names yet, which is removed on failure.
    pub(super) fn open_written(
        &self,
        segment: Segment,
        first: u32,
    ) -> Result<Arc<Layer>, StoreError> {
        let path = segment.path().to_owned();
        Layer::open(segment, first, self.reader)
            .inspect_err(|_| discard(&**self.graph.file_system(), &path))
    }

    /// Pins a committed version of all open partitions.
    ///
    /// Fails with [`StoreError::NoVersion`] for a version that is not committed, or whose layers
    /// were folded into later ones. Fails with [`StoreError::HistoriesDiffer`] if two partitions
    /// made the version by different commits.
    pub fn pin(&self, version: u32) -> Result<GraphVersion, StoreError> {
        let parts = self.now();
        let mut tensors = vec![Vec::new(); parts.len()];
        for (pinned, part) in tensors.iter_mut().zip(parts.iter()) {
            for tensor in part.iter().flat_map(|part| part.tensors.iter()) {
                pinned.push(tensor.at(version).ok_or_else(|| self.no_version(version))?);
            }
        }
        let version = VersionId::new(version, self.common_commit(version)?);
        Ok(GraphVersion { version, tensors })
    }
}
