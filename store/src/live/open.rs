//! Opening: catalogs, versions, segments, and which rows lie over them.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, RwLock};

use lodestore_graph::PartId;

use super::garbage::{Garbage, remove_unpinned};
use super::hand_over::HandOver;
use super::{Base, LiveGraph, LiveMode, LivePart, LiveTensor};
use crate::catalog::Catalog;
use crate::error::StoreError;
use crate::graph::{Graph, TEMPORARY_SUFFIX, version_of_file};
use crate::overlay::{LoadedOverlay, load};
use crate::quarantine::quarantine;
use crate::reader::{OpenOptions, ReaderKind};
use crate::segment::Segment;
use crate::tensor::TensorSpec;

impl LiveGraph {
    /// Opens all tensors of the given partitions of `graph`, or of all.
    ///
    /// For writing it takes the lock of each partition, or fails with [`StoreError::Locked`];
    /// brings all to the highest version among them; and removes what crashes and pinned readers
    /// have left. For reading it takes no lock and writes nothing.
    pub fn open(
        graph: Graph,
        parts: Option<&[PartId]>,
        mode: LiveMode,
        options: &OpenOptions,
    ) -> Result<Self, StoreError> {
        let wanted: BTreeSet<PartId> = match parts {
            Some(parts) => parts.iter().copied().collect(),
            None => graph.book().parts().collect(),
        };
        let (version, opened) = match mode {
            LiveMode::Read => open_to_read(&graph, &wanted)?,
            LiveMode::Write => open_to_write(&graph, &wanted)?,
        };
        // Which reader is best depends on all segments together.
        let bytes = opened.iter().flat_map(OpenedPart::segments);
        let reader = options.reader.settle(bytes.map(|s| s.layout().file_bytes()).sum());
        let mut parts: Vec<Option<Arc<LivePart>>> = vec![None; graph.book().n_parts().into()];
        for part in opened {
            let position = part.part.index();
            parts[position] = Some(Arc::new(part.live(reader)?));
        }
        Ok(Self {
            graph,
            mode,
            reader,
            parts: RwLock::new(parts.into()),
            version: AtomicU32::new(version),
            gate: RwLock::default(),
            unfinished_commit: AtomicU32::new(0),
            garbage: Mutex::new(Garbage::new()),
        })
    }
}

/// A partition without readers.
pub(crate) struct OpenedPart {
    part: PartId,
    /// Its committed version.
    pub(crate) version: u32,
    catalog: Catalog,
    /// As in the graph's description.
    pub(crate) tensors: Vec<(TensorSpec, Segment, LoadedOverlay)>,
}

/// Opens partitions as they are; gives the lowest version too.
fn open_to_read(
    graph: &Graph,
    wanted: &BTreeSet<PartId>,
) -> Result<(u32, Vec<OpenedPart>), StoreError> {
    let open = |&part: &PartId| OpenedPart::to_read(graph, part);
    let parts = wanted.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    Ok((parts.iter().map(|part| part.version).min().unwrap_or(0), parts))
}

/// Locks all partitions, rolls them forward to the highest version, which it gives too, and removes
/// garbage.
///
/// A commit has reached some partitions and not others when it was cut off. Where all were open no put
/// came in between, since commits keep them out: what the others have pending is what that commit was
/// to freeze. Where some were not open, whoever committed left them out knowingly, and what they have
/// pending becomes part of the version that the others have.
fn open_to_write(
    graph: &Graph,
    wanted: &BTreeSet<PartId>,
) -> Result<(u32, Vec<OpenedPart>), StoreError> {
    let lock = |&part: &PartId| Ok((part, graph.catalog_for_writing(part)?));
    let catalogs = wanted.iter().map(lock).collect::<Result<Vec<_>, StoreError>>()?;
    let versions = catalogs.iter().map(|(_, catalog)| catalog.current_version());
    let versions = versions.collect::<Result<Vec<u32>, _>>()?;
    let highest = versions.iter().copied().max().unwrap_or(0);
    let mut parts = Vec::with_capacity(catalogs.len());
    for ((part, catalog), version) in catalogs.into_iter().zip(versions) {
        if version < highest {
            catalog.set_version(highest)?;
        }
        parts.push(OpenedPart::to_write(graph, part, catalog, highest)?);
    }
    Ok((highest, parts))
}

impl OpenedPart {
    /// Opens a partition as it is.
    pub(crate) fn to_read(graph: &Graph, part: PartId) -> Result<Self, StoreError> {
        graph.with_catalog(part, |catalog| {
            let version = catalog.current_version()?;
            Self::open(graph, part, catalog, version)
        })
    }

    /// Opens a partition whose lock `catalog` has at its `version`, and removes garbage.
    fn to_write(
        graph: &Graph,
        part: PartId,
        catalog: Catalog,
        version: u32,
    ) -> Result<Self, StoreError> {
        let opened = Self::open(graph, part, catalog, version)?;
        for (spec, _, overlay) in &opened.tensors {
            if let Some((newest, n_bytes)) = overlay.folded {
                opened.catalog.remove_rows(&spec.name, 0..=newest, n_bytes)?;
            }
        }
        opened.remove_orphans(graph, version)?;
        Ok(opened)
    }

    /// Opens one more partition of an open graph, at its own version.
    pub(super) fn late(graph: &Graph, part: PartId, mode: LiveMode) -> Result<Self, StoreError> {
        if mode == LiveMode::Read {
            return Self::to_read(graph, part);
        }
        let catalog = graph.catalog_for_writing(part)?;
        let version = catalog.current_version()?;
        Self::to_write(graph, part, catalog, version)
    }

    /// Opens the segments of a partition at `version` and indexes what lies over them.
    fn open(
        graph: &Graph,
        part: PartId,
        catalog: Catalog,
        version: u32,
    ) -> Result<Self, StoreError> {
        let open = |spec: &TensorSpec| {
            let segment = graph.segment_at(&catalog, part, spec, version)?;
            let (n_rows, base) = (segment.identity().n_rows, segment.identity().version);
            let overlay = load(&catalog, spec, n_rows, base, version)?;
            Ok((spec.clone(), segment, overlay))
        };
        let tensors = graph.meta().tensors.iter().map(open).collect::<Result<_, StoreError>>()?;
        Ok(Self { part, version, catalog, tensors })
    }

    fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.tensors.iter().map(|(_, segment, _)| segment)
    }

    pub(super) fn live(self, reader: ReaderKind) -> Result<LivePart, StoreError> {
        let membership = Mutex::new(self.catalog.membership()?);
        let catalog = Arc::new(self.catalog);
        let live = |(spec, segment, overlay)| {
            let (base, catalog) = (Base::open(segment, reader)?, Arc::clone(&catalog));
            let LoadedOverlay { frozen, pending, .. } = overlay;
            Ok(Arc::new(LiveTensor::new(spec, catalog, base, frozen, pending)))
        };
        let tensors = self.tensors.into_iter().map(live).collect::<Result<_, StoreError>>()?;
        let (part, hand_over) = (self.part, HandOver::default());
        Ok(LivePart { part, catalog, tensors, hand_over, membership })
    }

    /// Removes files that a compaction did not finish, and segments that none needs any more.
    ///
    /// A segment of a later version than the partition's goes to quarantine: no crash leaves one,
    /// but a catalog that was put back from an old copy does, and nothing else may have its rows.
    fn remove_orphans(&self, graph: &Graph, version: u32) -> Result<(), StoreError> {
        let (device, dir) = (&**graph.device(), graph.part_dir(self.part));
        for entry in device.list(&dir).map_err(StoreError::io(&dir, "list"))? {
            let path = dir.join(&entry.name);
            let unfinished = entry.name.strip_suffix(TEMPORARY_SUFFIX);
            let of = self.tensors.iter().find_map(|(spec, ..)| {
                version_of_file(unfinished.unwrap_or(&entry.name), &spec.name)
            });
            let Some(of) = of else { continue };
            if unfinished.is_none() && self.segments().any(|segment| segment.path() == path) {
                continue;
            }
            if unfinished.is_none() && of > version {
                let to = quarantine(device, &path)?;
                tracing::warn!(
                    "{}: of a later version than the catalog's {version}; is the catalog an old \
                     copy? moved to {}",
                    path.display(),
                    to.display()
                );
            } else if !remove_unpinned(device, &path) {
                tracing::debug!("{}: still read from; left for later", path.display());
            }
        }
        Ok(())
    }
}
