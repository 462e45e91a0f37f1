//! A tensor of a partition at one version: its layers, where each row is, and the versions that a
//! reader sees.

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

/// A tensor of a partition at a committed version. Nothing changes it, and its files stay while it
/// lives.
#[derive(Clone, Debug)]
pub struct TensorVersion {
    version: u32,
    /// Oldest first: a segment that has every row, and the deltas over it.
    layers: Arc<[Arc<Layer>]>,
    index: Arc<LayerIndex>,
}

/// Rows of a gather by the layer that has them.
#[derive(Debug, Default)]
pub struct LayerRows {
    /// By position of the layer: rows of its file, each with its output row. The first list belongs
    /// to the segment that has every row.
    by_layer: Vec<Vec<(RowIdx, u32)>>,
    n_layers: usize,
}

/// Memory of a gather that the next one may use.
#[derive(Debug, Default)]
pub(crate) struct GatherScratch {
    by_layer: LayerRows,
    plan: ReadPlan,
}

impl TensorVersion {
    /// Builds the index of these layers, oldest first, of which the first one has every row.
    pub(super) fn new(version: u32, layers: Vec<Arc<Layer>>) -> Self {
        let n_rows = layers[0].segment().identity().n_rows;
        let index = Arc::new(LayerIndex::new(n_rows, &rows_of_deltas(&layers)));
        Self { version, layers: layers.into(), index }
    }

    /// Returns the tensor at a version with these layers. The index is shared where they are the
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

    /// Returns the same rows at a later version, with `delta` over them if it changed any.
    pub(super) fn at(&self, version: u32, delta: Option<Arc<Layer>>) -> Self {
        match delta {
            None => Self { version, ..self.clone() },
            Some(delta) => {
                let layers = self.layers.iter().cloned().chain([delta]).collect();
                self.with_layers(version, layers)
            }
        }
    }

    /// Returns the layers up to `version`; `None` where one of them has rows of later versions too.
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

    /// Returns the versions and rows of each layer, oldest first.
    pub(super) fn spans(&self) -> Vec<LayerSpan> {
        let span = |layer: &Arc<Layer>| LayerSpan {
            first: layer.first_version(),
            last: layer.version(),
            n_rows: layer.n_rows(),
        };
        self.layers.iter().map(span).collect()
    }

    /// Returns the oldest of these layers as a tensor of the version that they are of.
    pub(super) fn oldest_layers(&self, n_layers: usize) -> Self {
        if n_layers == self.layers.len() {
            return self.clone();
        }
        let layers = self.layers[..n_layers].to_vec();
        let version = layers[n_layers - 1].version();
        self.with_layers(version, layers)
    }

    /// Returns the version.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the layers, oldest first; the first one has every row.
    #[must_use]
    pub fn layers(&self) -> &[Arc<Layer>] {
        &self.layers
    }

    /// Returns the segment that has every row.
    #[must_use]
    pub fn base(&self) -> &Arc<Layer> {
        &self.layers[0]
    }

    /// Returns whether no delta is over the segment.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.layers.len() == 1
    }

    /// Returns the number of rows that deltas have, each counted once.
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

    /// Sorts rows, given with their output rows, by the layers that have them.
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

    /// Returns whether all rows are read through maps of memory.
    pub(crate) fn is_mapped(&self) -> bool {
        self.layers.iter().all(|layer| layer.reader().as_mapped().is_some())
    }
}

/// Returns the rows of each delta among these layers.
fn rows_of_deltas(layers: &[Arc<Layer>]) -> Vec<&[u32]> {
    layers[1..].iter().map(|layer| layer.segment().listed_rows()).collect()
}

impl LayerRows {
    fn clear(&mut self, n_layers: usize) {
        self.n_layers = n_layers;
        self.by_layer.resize_with(n_layers.max(self.by_layer.len()), Vec::new);
        self.by_layer.iter_mut().for_each(Vec::clear);
    }

    /// Returns the position of each layer that has rows, with these rows.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &[(RowIdx, u32)])> {
        let lists = self.by_layer[..self.n_layers].iter().map(Vec::as_slice).enumerate();
        lists.filter(|(_, rows)| !rows.is_empty())
    }
}

/// A file of a tensor and the reader of its rows.
///
/// Holding it is the pin: the file stays while any thread or process holds it.
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

    /// Returns the segment.
    #[must_use]
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Returns the oldest version that it has rows of; for a segment with every row, its own.
    #[must_use]
    pub fn first_version(&self) -> u32 {
        self.first
    }

    /// Returns the newest version that it has rows of.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.segment.identity().version
    }

    /// Returns the number of rows of its file.
    pub(super) fn n_rows(&self) -> u64 {
        self.segment.identity().n_rows.into()
    }

    /// Returns the reader of its rows.
    #[must_use]
    pub fn reader(&self) -> &dyn RowReader {
        &*self.reader
    }
}

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
    Latest(Arc<TensorHandle>),
    /// One version, whose files stay while the view lives.
    At(Arc<TensorVersion>),
}

impl TensorView {
    /// Returns the version that a gather reads which begins now.
    #[must_use]
    pub fn version(&self) -> Arc<TensorVersion> {
        match self {
            Self::Latest(tensor) => tensor.current(),
            Self::At(version) => Arc::clone(version),
        }
    }
}

/// All open partitions of a graph at one version, whose files stay while it lives.
#[derive(Debug)]
pub struct GraphVersion {
    version: VersionId,
    /// By partition and position of the tensor; no tensors for a partition that was not open.
    tensors: Vec<Vec<Arc<TensorVersion>>>,
}

impl GraphVersion {
    /// Returns its number.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version.number
    }

    /// Returns the version; its commit is unknown where the partitions have none in common.
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
    /// Opens a file that no record names yet, as [`Layer::open`] does; removes it where that fails.
    pub(super) fn open_written(
        &self,
        segment: Segment,
        first: u32,
    ) -> Result<Arc<Layer>, StoreError> {
        let path = segment.path().to_owned();
        Layer::open(segment, first, self.reader)
            .inspect_err(|_| discard(&**self.graph.device(), &path))
    }

    /// Pins a committed version of all open partitions.
    ///
    /// Fails with [`StoreError::NoVersion`] for a version that is not committed, and for one whose
    /// layers were folded into later ones. Fails with [`StoreError::HistoriesDiffer`] where two
    /// partitions have made it by different commits.
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
