//! All that there is to check, in the order of the report, opened as its turn comes.

mod unknown;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use lodestore_graph::PartId;
use lodestore_graph::file_check::FileKind;
use lodestore_graph::lock::IgnorePoison;

use super::catalog::CatalogUnit;
use super::findings::{FileOrder, Findings, META_ORDER};
use super::lists::{Lists, ListsError};
use super::unit::{Unit, Work, units};
use crate::catalog::{Catalog, DeltaRecord};
use crate::error::StoreError;
use crate::file_system::FileSystem;
use crate::graph::{Graph, META_FILE, catalog_dir};
use crate::segment::{Segment, SegmentIdentity, identity_of};

/// The files that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    All,
    /// Catalogs and segments.
    Rows,
    /// Topology and halos.
    Lists,
}

/// Hands out units.
pub(super) struct Walk<'a> {
    graph: &'a Graph,
    findings: &'a Findings,
    /// The partitions to look at were named: they must be here.
    named: bool,
    scope: Scope,
    total_bytes: u64,
    state: Mutex<State<'a>>,
}

#[derive(Default)]
struct State<'a> {
    parts: VecDeque<PartId>,
    /// Files of the partition in work.
    files: VecDeque<(PartId, File)>,
    /// Units of the file in work.
    units: VecDeque<Unit<'a>>,
    last_order: FileOrder,
    /// Files whose sums are looked at when all units are done.
    lists: Vec<(FileOrder, Arc<Lists>)>,
    /// A topology is not read, so the number of edges is unknown.
    lost_edges: bool,
}

/// A file whose turn comes.
enum File {
    Lists(FileKind),
    Catalog(Arc<Catalog>, u32),
    Segment(Arc<Catalog>, usize),
    /// A delta of the tensor at this position, committed or prepared.
    Delta(Box<DeltaRecord>, usize),
    /// A segment of a partition whose catalog cannot be read, as it says itself.
    Loose(PathBuf, Box<SegmentIdentity>),
}

impl<'a> Walk<'a> {
    /// Returns a walk through everything of `parts`, or of all partitions.
    pub(super) fn new(
        graph: &'a Graph,
        findings: &'a Findings,
        parts: Option<&[PartId]>,
        scope: Scope,
    ) -> Self {
        let is_asked_for = |part: &PartId| parts.is_none_or(|parts| parts.contains(part));
        let named = parts.is_some();
        let parts: VecDeque<PartId> = graph.book().parts().filter(is_asked_for).collect();
        let lost_edges = parts.len() < usize::from(graph.book().n_parts());
        let fs = &**graph.file_system();
        let total_bytes = parts.iter().map(|&part| part_bytes(fs, &graph.part_dir(part))).sum();
        let walk = Self {
            graph,
            findings,
            named,
            scope,
            total_bytes,
            state: Mutex::new(State {
                parts,
                last_order: META_ORDER,
                lost_edges,
                ..State::default()
            }),
        };
        walk.check_folder();
        walk
    }

    /// Returns the bytes of all files that are going to be read.
    pub(super) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Returns the next unit, in the order of the files.
    pub(super) fn next(&self) -> Option<Unit<'a>> {
        let mut state = self.state();
        loop {
            if let Some(unit) = state.units.pop_front() {
                return Some(unit);
            }
            if let Some((part, file)) = state.files.pop_front() {
                self.open_file(&mut state, part, file);
            } else {
                let part = state.parts.pop_front()?;
                self.open_part(&mut state, part);
            }
        }
    }

    /// Looks at what only all units together say, once they are done.
    pub(super) fn finish(self) {
        let state = self.state.into_inner().ignore_poison();
        let (mut n_edges, mut all_sound) = (0u64, !state.lost_edges);
        let mut columns = None;
        for (order, lists) in state.lists {
            // A piece that could not be read has been reported.
            let Some(sums) = lists.sums() else {
                all_sound = false;
                continue;
            };
            if let Err(fault) = lists.check().finish(sums) {
                let reason = format!("{}: {fault}", lists.path().display());
                self.findings.add(order, lists.path(), None, reason);
                all_sound = false;
            }
            n_edges = n_edges.saturating_add(lists.check().n_edges());
            if lists.check().kind() == FileKind::Topology {
                let found = lists.check().columns();
                let expected = *columns.get_or_insert(found);
                if found != expected {
                    let reason =
                        format!("holds {found} of its edges, the partitions before it {expected}");
                    self.findings.add(order, lists.path(), None, reason);
                }
            }
        }
        let expected = self.graph.meta().edges;
        if self.scope != Scope::Rows && all_sound && n_edges != expected {
            let reason = format!("edges = {expected}, but the topology holds {n_edges}");
            self.findings.add(META_ORDER, &self.graph.dir().join(META_FILE), None, reason);
        }
    }

    fn open_part(&self, state: &mut State<'a>, part: PartId) {
        let (dir, order) = (self.graph.part_dir(part), state.order());
        if !self.graph.file_system().exists(&dir) {
            state.lost_edges = true;
            if !self.named {
                return self.findings.add_absent(part);
            }
            let reason = "the folder of the partition is missing".to_owned();
            return self.findings.add(order, &dir, None, reason);
        }
        if self.scope != Scope::Rows {
            let kinds = [FileKind::Topology, FileKind::Halo];
            state.files.extend(kinds.map(|kind| (part, File::Lists(kind))));
        }
        if self.scope == Scope::Lists {
            return;
        }
        let opened = self.graph.catalog(part).and_then(|catalog| {
            let version = catalog.current_version()?;
            Ok((Arc::new(catalog), version))
        });
        match opened {
            Ok((catalog, version)) => {
                self.list_unknown_in_part(order, &dir, part, &catalog);
                state.files.push_back((part, File::Catalog(Arc::clone(&catalog), version)));
                let tensors = 0..self.graph.meta().tensors.len();
                for i in tensors {
                    state.files.push_back((part, File::Segment(Arc::clone(&catalog), i)));
                    match self.deltas(&catalog, i, version) {
                        Ok(deltas) => state.files.extend(
                            deltas.into_iter().map(|it| (part, File::Delta(Box::new(it), i))),
                        ),
                        Err(error) => self.findings.add_error(order, &dir, None, error),
                    }
                }
            }
            Err(error) => {
                self.findings.add_error(order, &dir, None, error);
                state.files.extend(self.loose_segments(part, &dir));
            }
        }
    }

    /// Returns the segments that say that they belong to a partition whose catalog cannot be read.
    fn loose_segments(&self, part: PartId, dir: &Path) -> Vec<(PartId, File)> {
        let fs = self.graph.file_system();
        let range = self.graph.book().range(part);
        let is_ours = |found: &SegmentIdentity| {
            (found.graph, found.part, found.n_rows)
                == (self.graph.uuid(), part, range.end - range.start)
                && self.graph.meta().tensor(&found.tensor.name) == Some(&found.tensor)
        };
        let names = fs.list(dir).unwrap_or_default().into_iter();
        let paths = names.filter(|e| e.name.ends_with(".seg")).map(|e| dir.join(e.name));
        let loose = paths.filter_map(|path| {
            let found = identity_of(&*fs.open(&path).ok()?).filter(is_ours)?;
            Some((part, File::Loose(path, Box::new(found))))
        });
        loose.collect()
    }

    fn open_file(&self, state: &mut State<'a>, part: PartId, file: File) {
        let order = state.order();
        match file {
            File::Lists(kind) => self.open_lists(state, order, part, kind),
            File::Catalog(catalog, committed) => {
                let bytes = folder_bytes(&**self.graph.file_system(), catalog.dir());
                let unit = CatalogUnit { graph: self.graph, part, catalog, committed };
                state.units.push_back(Unit { order, bytes, work: Work::Catalog(unit) });
            }
            File::Segment(catalog, tensor) => {
                let opened = self.segment(part, &catalog, tensor);
                self.open_segment(state, order, part, opened);
            }
            File::Delta(delta, tensor) => {
                let spec = &self.graph.meta().tensors[tensor];
                match self.graph.open_delta(part, spec, &delta) {
                    // A compaction has folded it since the catalog was opened, or it is missing.
                    Err(error) if error.is_gone() && !self.is_named(part, tensor, &delta) => {}
                    opened => self.open_segment(state, order, part, opened),
                }
            }
            File::Loose(path, identity) => {
                let opened = Segment::open(&**self.graph.file_system(), &path, &identity);
                self.open_segment(state, order, part, opened);
            }
        }
    }

    fn open_segment(
        &self,
        state: &mut State<'a>,
        order: FileOrder,
        part: PartId,
        opened: Result<Segment, StoreError>,
    ) {
        match opened {
            Ok(segment) => {
                let segment = Arc::new(segment);
                let all_bytes = segment.layout().file_bytes();
                let work = |pages| Work::Rows { segment: Arc::clone(&segment), pages };
                state.units.extend(units(order, segment.layout().n_pages(), all_bytes, work));
            }
            Err(error) => {
                self.findings.add_error(order, &self.graph.part_dir(part), None, error);
            }
        }
    }

    fn open_lists(&self, state: &mut State<'a>, order: FileOrder, part: PartId, kind: FileKind) {
        match Lists::open(self.graph, part, kind) {
            Ok(lists) => {
                let lists = Arc::new(lists);
                let work = |pieces| Work::Lists { lists: Arc::clone(&lists), pieces };
                state.units.extend(units(order, lists.n_pieces(), lists.file_bytes(), work));
                state.lists.push((order, lists));
            }
            Err(error) => {
                state.lost_edges |= kind == FileKind::Topology;
                let path = match kind {
                    FileKind::Topology => self.graph.topology_path(part),
                    FileKind::Halo => self.graph.halo_path(part),
                };
                match error {
                    ListsError::Store(error) => self.findings.add_error(order, &path, None, error),
                    error => self.findings.add(order, &path, None, error.to_string()),
                }
            }
        }
    }

    fn segment(
        &self,
        part: PartId,
        catalog: &Catalog,
        tensor: usize,
    ) -> Result<Segment, StoreError> {
        let tensor = &self.graph.meta().tensors[tensor];
        match self.graph.segment_of(catalog, part, tensor) {
            // A compaction has moved on since the catalog was opened, or the file is really gone.
            Err(error) if error.is_gone() => self.graph.segment(part, &tensor.name),
            opened => opened,
        }
    }

    /// Deltas of a tensor, and the one that is prepared.
    fn deltas(
        &self,
        catalog: &Catalog,
        tensor: usize,
        version: u32,
    ) -> Result<Vec<DeltaRecord>, StoreError> {
        let name = &self.graph.meta().tensors[tensor].name;
        let mut deltas = catalog.deltas(name)?;
        deltas.extend(catalog.prepared_delta(name, version.saturating_add(1))?);
        Ok(deltas)
    }

    /// Returns whether the catalog names the delta at this moment.
    fn is_named(&self, part: PartId, tensor: usize, delta: &DeltaRecord) -> bool {
        let catalog = self.graph.catalog(part);
        let deltas = catalog.and_then(|catalog| {
            let version = catalog.current_version()?;
            self.deltas(&catalog, tensor, version)
        });
        deltas.is_ok_and(|deltas| deltas.iter().any(|it| it.record == delta.record))
    }

    /// Locks the state. It changes whole or, in a panic, ends the walk anyway.
    fn state(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().ignore_poison()
    }
}

impl State<'_> {
    fn order(&mut self) -> FileOrder {
        self.last_order += 1;
        self.last_order
    }
}

/// Returns the bytes of a partition's files, for the progress only: what cannot be read counts as
/// nothing.
fn part_bytes(fs: &dyn FileSystem, dir: &Path) -> u64 {
    folder_bytes(fs, dir) + folder_bytes(fs, &catalog_dir(dir))
}

fn folder_bytes(fs: &dyn FileSystem, dir: &Path) -> u64 {
    let entries = fs.list(dir).unwrap_or_default().into_iter().filter(|entry| !entry.is_dir);
    let bytes = |name: String| fs.open(&dir.join(name)).and_then(|file| file.len_bytes());
    entries.map(|entry| bytes(entry.name).unwrap_or(0)).sum()
}
