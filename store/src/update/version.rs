//! A tensor of a partition at one version: its layers, and where each row is.

use std::sync::Arc;

use crate::error::StoreError;
use crate::layers::{LayerIndex, LayerSize};
use crate::plan::{DiskProfile, ReadPlan};
use crate::reader::{self, ReaderKind, RowReader, gather_mapped};
use crate::row::RowIdx;
use crate::segment::Segment;

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
        let deltas = (1u32..).zip(layers[1..].iter().map(|it| it.segment().listed_rows()));
        let index = Arc::new(LayerIndex::new(n_rows, deltas));
        Self { version, layers: layers.into(), index }
    }

    /// Returns the same rows at a later version, with `delta` over them if it changed any.
    pub(super) fn at(&self, version: u32, delta: Option<Arc<Layer>>) -> Self {
        match delta {
            None => Self { version, ..self.clone() },
            Some(delta) => {
                let layers = self.layers.iter().cloned().chain([delta]).collect();
                Self::new(version, layers)
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
        Some(Self::new(version, self.layers[..n_kept].to_vec()))
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

    /// Returns the rows of each delta, oldest first.
    pub(crate) fn delta_sizes(&self) -> Vec<LayerSize> {
        let n_rows = |layer: &Arc<Layer>| layer.segment().identity().n_rows.into();
        self.layers[1..].iter().map(|layer| LayerSize { n_rows: n_rows(layer) }).collect()
    }

    /// Returns the memory of the index, in bytes.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.index.bytes()
    }
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
        segment: Segment,
        first: u32,
        kind: ReaderKind,
    ) -> Result<Arc<Self>, StoreError> {
        let segment = Arc::new(segment);
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

    /// Returns the reader of its rows.
    #[must_use]
    pub fn reader(&self) -> &dyn RowReader {
        &*self.reader
    }
}
