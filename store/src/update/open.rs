//! Opening a graph: catalogs, versions, and the files of each tensor.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, RwLock};

use lodestore_graph::PartId;
use lodestore_graph::fork::Generation;
use uuid::Uuid;

use super::commit::CommitTurn;
use super::delta::DeltaPlace;
use super::garbage::{Garbage, remove_unpinned};
use super::history::{RecentCommits, roll_forward_to};
use super::keep::KeepRule;
use super::later::holds_only_pending;
use super::parallel::{for_each, for_each_owned};
use super::tensor::PendingRows;
use super::tensors::{set_unlisted_aside, settle};
use super::transfer::TransferState;
use super::{GraphHandle, Layer, OpenMode, PartHandle, TensorHandle, TensorVersion};
use crate::catalog::{Catalog, ChangedParts, DeltaRecord};
use crate::error::StoreError;
use crate::error_origin::ErrorOrigin;
use crate::graph::{Graph, TEMPORARY_SUFFIX, newest_version_of, tensor_of_file};
use crate::new_file::discard;
use crate::open_files::OpenFiles;
use crate::quarantine::quarantine;
use crate::reader::{OpenOptions, ReaderKind};
use crate::row::RowIdx;
use crate::segment::Segment;
use crate::tensor::TensorSpec;
use crate::version_id::{CommitId, VersionId};

impl GraphHandle {
    /// Opens all tensors of the given partitions of `graph`, or of all partitions.
    ///
    /// Opening for writing locks each partition, or fails with [`StoreError::Locked`]. It writes
    /// rows that an older release has committed into deltas. It completes an interrupted commit
    /// that reached only some partitions, and fails with [`StoreError::HistoriesDiffer`] if no
    /// crash explains the versions of the partitions. It removes files left by crashes and by
    /// pinned readers. Opening for reading takes no lock and writes nothing.
    pub fn open(
        graph: Graph,
        parts: Option<&[PartId]>,
        mode: OpenMode,
        options: &OpenOptions,
    ) -> Result<Self, StoreError> {
        Self::open_parts_of(graph, parts, mode, options, Histories::MustAgree)
    }

    /// Opens all partitions of `graph` that are on this machine for writing, and accepts their rows
    /// as they are: partitions of different versions or histories get one new common version, which
    /// is returned.
    pub fn align(graph: Graph, options: &OpenOptions) -> Result<(Self, VersionId), StoreError> {
        let parts = graph.local_parts();
        let mode = OpenMode::Write;
        let this = Self::open_parts_of(graph, Some(&parts), mode, options, Histories::AreAligned)?;
        let version = this.version_id()?;
        Ok((this, version))
    }

    fn open_parts_of(
        graph: Graph,
        parts: Option<&[PartId]>,
        mode: OpenMode,
        options: &OpenOptions,
        histories: Histories,
    ) -> Result<Self, StoreError> {
        let wanted: BTreeSet<PartId> = match parts {
            Some(parts) => parts.iter().copied().collect(),
            None => graph.book().parts().collect(),
        };
        check_file_limit(&graph, wanted.len())?;
        let opened = match mode {
            OpenMode::Write => {
                graph.check_owned()?;
                open_to_write(&graph, &wanted)?
            }
            OpenMode::Read | OpenMode::Follow => {
                let wanted = Vec::from_iter(wanted);
                let open = |&part: &PartId| OpenedPart::open_in(&graph, part, mode);
                let opened = for_each(&**graph.file_system(), &wanted, open);
                opened.into_iter().collect::<Result<_, _>>()?
            }
        };
        let highest = opened.iter().map(|part| part.version).max().unwrap_or(0);
        let forward = match (mode, histories) {
            (OpenMode::Write, Histories::MustAgree) => roll_forward_to(&graph, &opened)?,
            _ => VersionId::new(highest, CommitId::UNKNOWN),
        };
        let turn = CommitTurn::new(opened.iter().filter_map(|part| part.prepared));
        let lowest = opened.iter().map(|part| part.version).min().unwrap_or(0);
        // The choice of reader depends on the size of all segments together.
        let bytes = opened.iter().flat_map(OpenedPart::segments);
        let reader = options.reader.settle(bytes.map(|s| s.layout().file_bytes()).sum());
        let mut parts: Vec<Option<Arc<PartHandle>>> = vec![None; graph.book().n_parts().into()];
        for part in opened {
            let position = part.part.index();
            parts[position] = Some(Arc::new(part.live(reader)?));
        }
        let this = Self {
            graph,
            mode,
            process: Generation::now(),
            reader,
            parts: RwLock::new(parts.into()),
            version: AtomicU32::new(lowest),
            gate: RwLock::default(),
            commits: Mutex::new(turn),
            compactions: Mutex::default(),
            garbage: Mutex::new(Garbage::new()),
            keep_rule: RwLock::new(KeepRule::NEWEST),
            coming: Mutex::default(),
            cut_after: AtomicU32::new(u32::MAX),
        };
        if mode == OpenMode::Write {
            this.advance(&mut this.commits(), forward)?;
        }
        if histories == Histories::AreAligned {
            let next = highest.saturating_add(1);
            let version = VersionId::new(next, CommitId::draw());
            this.advance(&mut this.commits(), version)?;
        }
        Ok(this)
    }
}

/// What to do with partitions whose versions no crash explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Histories {
    /// Reject them.
    MustAgree,
    /// Give them one new common version.
    AreAligned,
}

/// Returns the versions that a tensor has pending rows for, ascending. Versions up to `base` are
/// left out, because the segment contains them.
///
/// Fails for a version that no put can have had.
fn pending_versions(
    catalog: &Catalog,
    spec: &TensorSpec,
    base: u32,
    committed: u32,
) -> Result<Vec<u32>, StoreError> {
    let (mut versions, mut after) = (Vec::new(), base);
    while let Some(version) = catalog.first_put_after(&spec.name, after)? {
        // A commit in progress closes `committed + 1`; puts may already go to the version after.
        let newest = committed.saturating_add(2);
        if version > newest {
            let (dir, tensor) = (catalog.dir().to_owned(), spec.name.clone());
            let reason = format!("expected rows of versions up to {newest}");
            return Err(StoreError::DamagedPending {
                dir,
                tensor,
                version,
                row: RowIdx(0),
                reason,
            });
        }
        versions.push(version);
        after = version;
    }
    Ok(versions)
}

/// Writes a delta for each version whose rows an older release has committed without one. Removes
/// pending rows that a segment contains. Returns whether deltas were written, which are not open
/// yet.
fn bring_forward(graph: &Graph, part: PartId, opened: &OpenedPart) -> Result<bool, StoreError> {
    let (catalog, committed) = (&opened.catalog, opened.version);
    let mut has_written = false;
    for OpenedTensor { spec, segment, pending_for, .. } in &opened.tensors {
        let base = segment.identity().version;
        if catalog.first_put_after(&spec.name, 0)?.is_some_and(|version| version <= base) {
            catalog.remove_rows(&spec.name, base)?;
        }
        let place = DeltaPlace { graph, part, spec };
        let old = PendingRows::unknown();
        for &version in pending_for.iter().filter(|version| **version <= committed) {
            let commit = VersionId::new(version, catalog.commit_id(version)?);
            let written = place.write_pending(catalog, commit, &old, segment.codec())?;
            if let Some((record, _)) = written {
                catalog.bring_forward(&spec.name, &record)?;
                has_written = true;
            }
        }
    }
    Ok(has_written)
}

/// A partition whose files are open, without readers.
pub(crate) struct OpenedPart {
    pub(super) part: PartId,
    /// Number of the committed version.
    pub(crate) version: u32,
    /// The commits that made this version and the previous one.
    pub(super) commit: CommitId,
    pub(super) commit_before: CommitId,
    /// The version that a commit has prepared, if any.
    pub(crate) prepared: Option<VersionId>,
    /// The partitions that had rows of the last commit, if known.
    pub(super) changed: Option<ChangedParts>,
    /// The version at which the partition was added to the folder; 0 if it was created there.
    pub(super) joined_at: u32,
    catalog: Catalog,
    /// In the order of the graph's description.
    pub(crate) tensors: Vec<OpenedTensor>,
}

/// The open files of a tensor, without readers.
pub(crate) struct OpenedTensor {
    pub(crate) spec: TensorSpec,
    /// Identity of the tensor.
    uuid: Uuid,
    /// The base segment, which has every row.
    pub(crate) segment: Arc<Segment>,
    /// Deltas over the base, oldest first, each with the first version that it has rows of.
    pub(crate) deltas: Vec<(u32, Arc<Segment>)>,
    /// Delta of a prepared commit.
    pub(crate) prepared: Option<Arc<Segment>>,
    /// Versions with pending rows, ascending.
    pub(crate) pending_for: Vec<u32>,
}

impl OpenedTensor {
    pub(crate) fn segments(&self) -> impl Iterator<Item = &Arc<Segment>> {
        let deltas = self.deltas.iter().map(|(_, delta)| delta);
        deltas.chain([&self.segment]).chain(&self.prepared)
    }
}

/// Fails if `n_parts` partitions need more files than this process may open, before any is opened.
fn check_file_limit(graph: &Graph, n_parts: usize) -> Result<(), StoreError> {
    let Some(limit) = graph.file_system().max_files() else { return Ok(()) };
    let n_tensors = graph.meta().tensors.len();
    // A segment of each tensor, and a table of the catalog.
    let needed = n_parts as u64 * (n_tensors as u64 + 1);
    if needed < limit {
        return Ok(());
    }
    let dir = graph.dir().to_owned();
    Err(StoreError::FileLimit { dir, n_parts, n_tensors, needed, limit })
}

/// Locks all partitions and removes files left by crashes; several partitions concurrently.
fn open_to_write(graph: &Graph, wanted: &BTreeSet<PartId>) -> Result<Vec<OpenedPart>, StoreError> {
    let here = graph.local_parts();
    let lock = |&part: &PartId| {
        if !here.contains(&part) {
            let opened: Vec<String> = here.iter().map(ToString::to_string).collect();
            return Err(StoreError::NoPart { part, opened: opened.join(", ") });
        }
        Ok((part, graph.catalog_for_writing(part)?))
    };
    let (fs, wanted) = (&**graph.file_system(), Vec::from_iter(wanted.iter().copied()));
    let catalogs = for_each(fs, &wanted, lock);
    let catalogs = catalogs.into_iter().collect::<Result<Vec<_>, StoreError>>()?;
    let open = |(part, catalog)| OpenedPart::to_write(graph, part, catalog);
    for_each_owned(fs, catalogs, open).into_iter().collect()
}

impl OpenedPart {
    /// Opens a partition for reading.
    ///
    /// Fails with [`StoreError::OldRows`] for committed rows in the form of an older release.
    pub(crate) fn to_read(graph: &Graph, part: PartId) -> Result<Self, StoreError> {
        let files = OpenFiles::default();
        graph.with_catalog(part, |catalog| {
            let opened = Self::open(graph, part, catalog, &files)?;
            let old = opened.tensors.iter().find_map(|tensor| {
                let old = tensor.pending_for.iter().find(|of| **of <= opened.version);
                old.map(|&version| (tensor.spec.name.clone(), version))
            });
            let dir = || graph.part_dir(part);
            old.map_or(Ok(opened), |(tensor, version)| {
                Err(StoreError::OldRows { dir: dir(), tensor, version })
            })
        })
    }

    /// Opens a partition for writing; `catalog` holds its lock. Writes rows that an older release
    /// has committed into deltas, and removes garbage.
    fn to_write(graph: &Graph, part: PartId, catalog: Catalog) -> Result<Self, StoreError> {
        let stored = settle(graph, part, &catalog)?;
        let files = OpenFiles::default();
        let opened = Self::open(graph, part, catalog, &files)?;
        // Removed first, so that leftovers of a crash do not collide with new files.
        opened.remove_orphans(graph, &stored)?;
        match bring_forward(graph, part, &opened)? {
            true => Self::open(graph, part, opened.catalog, &files),
            false => Ok(opened),
        }
    }

    /// Opens a partition at its own version, in the mode of its graph.
    pub(super) fn open_in(graph: &Graph, part: PartId, mode: OpenMode) -> Result<Self, StoreError> {
        match mode {
            OpenMode::Read => Self::to_read(graph, part),
            OpenMode::Write => Self::to_write(graph, part, graph.catalog_for_writing(part)?),
            // As it is, because an interrupted fetch is continued.
            OpenMode::Follow => {
                let catalog = graph.catalog_for_writing(part)?;
                Self::open(graph, part, catalog, &OpenFiles::default())
            }
        }
    }

    /// Opens the files of a partition at its version, and reuses those in `files`.
    fn open(
        graph: &Graph,
        part: PartId,
        catalog: Catalog,
        files: &OpenFiles,
    ) -> Result<Self, StoreError> {
        let version = catalog.current_version()?;
        let prepared = catalog.prepared_version()?;
        let next = version.saturating_add(1);
        if let Some(found) = prepared.filter(|prepared| prepared.number != next) {
            return Err(StoreError::Catalog {
                dir: catalog.dir().to_owned(),
                reason: format!(
                    "version {} is prepared over version {version}, expected {next}",
                    found.number
                ),
                origin: ErrorOrigin::Damage,
            });
        }
        let open = |spec: &TensorSpec| {
            let (base, record) = graph.segment_record(&catalog, part, spec, version)?;
            let open_base = || graph.open_base(part, spec, base, &record);
            let segment = files.get_or_open(&record, open_base)?;
            let open_delta = |delta: &DeltaRecord| {
                files.get_or_open(&delta.record, || graph.open_delta(part, spec, delta))
            };
            let mut deltas = Vec::new();
            for delta in catalog.deltas_at(&spec.name, version)? {
                deltas.push((delta.first, open_delta(&delta)?));
            }
            let delta = prepared.map(|of| catalog.prepared_delta(&spec.name, of.number));
            let delta = delta.transpose()?.flatten();
            let prepared = delta.map(|delta| open_delta(&delta)).transpose()?;
            let pending_for =
                pending_versions(&catalog, spec, segment.identity().version, version)?;
            let uuid = graph.meta().tensor_uuid(&spec.name);
            Ok(OpenedTensor { spec: spec.clone(), uuid, segment, deltas, prepared, pending_for })
        };
        let tensors = graph.meta().tensors.iter().map(open).collect::<Result<_, StoreError>>()?;
        Ok(Self {
            part,
            version,
            commit: catalog.commit_id(version)?,
            commit_before: catalog.commit_id(version.saturating_sub(1))?,
            prepared,
            changed: catalog.changed_parts()?,
            joined_at: catalog.joined_at()?,
            catalog,
            tensors,
        })
    }

    /// Reads and counts the pending rows of a tensor.
    pub(crate) fn n_pending(&self, tensor: &OpenedTensor) -> Result<u64, StoreError> {
        let mut n_rows = 0;
        for &version in &tensor.pending_for {
            self.catalog.scan_pending(&tensor.spec.name, version, RowIdx(0), |_, _| {
                n_rows += 1;
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(n_rows)
    }

    fn segments(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.tensors.iter().flat_map(OpenedTensor::segments)
    }

    pub(super) fn live(self, reader: ReaderKind) -> Result<PartHandle, StoreError> {
        let version = self.version;
        let commits = RecentCommits::new(&self.catalog.commits(version)?, self.version_id());
        let catalog = Arc::new(self.catalog);
        let closed = version.max(self.prepared.map_or(0, |prepared| prepared.number));
        let pending = self.tensors.iter().filter_map(|tensor| tensor.pending_for.last());
        let open = pending.copied().max().filter(|&newest| newest > closed);
        let puts_for = open.unwrap_or(closed.saturating_add(1));
        let live = |tensor: OpenedTensor| {
            let first = tensor.segment.identity().version;
            let mut layers = vec![Layer::open(tensor.segment, first, reader)?];
            for (first, delta) in tensor.deltas {
                layers.push(Layer::open(delta, first, reader)?);
            }
            let open_prepared = |delta: Arc<Segment>| {
                let version = delta.identity().version;
                Layer::open(delta, version, reader)
            };
            let prepared = tensor.prepared.map(open_prepared).transpose()?;
            let (current, catalog) = (TensorVersion::new(version, layers), Arc::clone(&catalog));
            let live = TensorHandle::new(tensor.spec, tensor.uuid, catalog, current);
            Ok(Arc::new(live.with_unpublished(prepared, &tensor.pending_for)))
        };
        let tensors = self.tensors.into_iter().map(live).collect::<Result<_, StoreError>>()?;
        let (part, transfer) = (self.part, TransferState::default());
        let (version, puts_for) = (AtomicU32::new(version), AtomicU32::new(puts_for));
        Ok(PartHandle {
            part,
            catalog,
            tensors,
            version,
            commits: Mutex::new(commits),
            joined_at: AtomicU32::new(self.joined_at),
            puts_for,
            transfer,
        })
    }

    /// Removes files of unfinished compactions, and segments that no record needs.
    ///
    /// A file of a later version than the partition's is removed only if all its rows are still
    /// pending. Otherwise this fails with [`StoreError::LaterFile`] and changes nothing: no crash
    /// leaves such a file, but a catalog that was restored from an old copy does, and the file may
    /// have the only copy of its rows. A file of a tensor that `stored` does not list is
    /// quarantined. So are all unused files while a repair is unfinished.
    fn remove_orphans(&self, graph: &Graph, stored: &Graph) -> Result<(), StoreError> {
        let (fs, dir, version) = (&**graph.file_system(), graph.part_dir(self.part), self.version);
        let is_repaired = !self.catalog.has_losses()?;
        for entry in fs.list(&dir).map_err(StoreError::io(&dir, "list"))? {
            let path = dir.join(&entry.name);
            let unfinished = entry.name.strip_suffix(TEMPORARY_SUFFIX);
            let name = unfinished.unwrap_or(&entry.name);
            let of = self.tensors.iter().find_map(|tensor| {
                Some((newest_version_of(name, &tensor.spec.name)?, &tensor.spec))
            });
            let Some((of, spec)) = of else {
                let tensor = tensor_of_file(name).filter(|it| stored.meta().tensor(it).is_none());
                match (tensor, unfinished) {
                    (None, _) => {}
                    (Some(_), Some(_)) => discard(fs, &path),
                    (Some(_), None) => set_unlisted_aside(fs, &path)?,
                }
                continue;
            };
            if unfinished.is_none() && self.segments().any(|segment| segment.path() == path) {
                continue;
            }
            if unfinished.is_some() {
                // No reader opens a temporary file. After an interrupted move it may be a second
                // name of a file that is in use.
                discard(fs, &path);
            } else if !is_repaired {
                let to = quarantine(fs, &path)?;
                let (path, to) = (path.display(), to.display());
                tracing::warn!("{path}: not used by the repair in progress; moved to {to}");
            } else if of > version
                && !holds_only_pending(graph, self.part, &self.catalog, spec, name, of)?
            {
                return Err(StoreError::LaterFile { file: path, version: of, committed: version });
            } else if !remove_unpinned(fs, &path) {
                tracing::debug!("{}: still in use; removal postponed", path.display());
            }
        }
        Ok(())
    }
}
