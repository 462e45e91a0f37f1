//! All that there is to check, in the order of the report, opened as its turn comes.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lodestore_graph::PartId;
use lodestore_graph::check::FileKind;

use super::catalog::CatalogUnit;
use super::findings::{FileOrder, Findings, META_ORDER};
use super::lists::{Lists, ListsError};
use super::unit::{Unit, Work, units};
use crate::catalog::Catalog;
use crate::cause::Cause;
use crate::device::Device;
use crate::error::StoreError;
use crate::graph::{Graph, META_FILE, QUARANTINE_DIR, catalog_dir};
use crate::probe::{DEVICE_FILE, StoredProfile};
use crate::segment::Segment;

/// Hands out units.
pub(super) struct Walk<'a> {
    graph: &'a Graph,
    findings: &'a Findings,
    /// Topology and halos are looked at, too.
    with_lists: bool,
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
    /// A topology could not be opened, so that nobody knows how many edges there are.
    lost_edges: bool,
}

/// A file whose turn comes.
enum File {
    Lists(FileKind),
    Catalog(Arc<Catalog>, u32),
    Segment(Arc<Catalog>, usize),
}

impl<'a> Walk<'a> {
    pub(super) fn new(graph: &'a Graph, findings: &'a Findings, with_lists: bool) -> Self {
        let parts: VecDeque<PartId> = graph.book().parts().collect();
        let device = &**graph.device();
        let total_bytes = parts.iter().map(|&part| part_bytes(device, &graph.part_dir(part))).sum();
        let walk = Self {
            graph,
            findings,
            with_lists,
            total_bytes,
            state: Mutex::new(State { parts, last_order: META_ORDER, ..State::default() }),
        };
        walk.check_folder();
        walk
    }

    /// Bytes of all files that are going to be read.
    pub(super) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// The next unit, in the order of the files.
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
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (mut n_edges, mut all_sound) = (0u64, !state.lost_edges);
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
        }
        let expected = self.graph.meta().edges;
        if self.with_lists && all_sound && n_edges != expected {
            let reason = format!("edges = {expected}, but the topology holds {n_edges}");
            self.findings.add(META_ORDER, &self.graph.dir().join(META_FILE), None, reason);
        }
    }

    /// Looks at the graph's own folder: the profile, and what does not belong there.
    fn check_folder(&self) {
        let (device, dir) = (&**self.graph.device(), self.graph.dir());
        match StoredProfile::read(device, dir) {
            Err(error) if error.cause == Cause::System => {
                self.findings.add_error(META_ORDER, dir, None, error.into());
            }
            Err(error) => {
                self.findings.add(META_ORDER, &error.file.clone(), None, error.to_string());
            }
            Ok(_) => {}
        }
        let parts = self.graph.book().parts().map(|part| self.graph.part_dir(part));
        let mut known: BTreeSet<String> = parts.filter_map(|dir| name_of(&dir)).collect();
        known.extend([META_FILE, DEVICE_FILE, QUARANTINE_DIR].map(str::to_owned));
        self.list_unknown(META_ORDER, dir, &known);
    }

    fn open_part(&self, state: &mut State<'a>, part: PartId) {
        let (dir, order) = (self.graph.part_dir(part), state.order());
        if !self.graph.device().exists(&dir) {
            state.lost_edges = true;
            let reason = "the folder of the partition is missing".to_owned();
            return self.findings.add(order, &dir, None, reason);
        }
        if self.with_lists {
            let kinds = [FileKind::Topology, FileKind::Halo];
            state.files.extend(kinds.map(|kind| (part, File::Lists(kind))));
        }
        let opened = self.graph.catalog(part).and_then(|catalog| {
            let version = catalog.current_version()?;
            Ok((Arc::new(catalog), version))
        });
        match opened {
            Ok((catalog, version)) => {
                self.list_unknown_in_part(order, &dir, &catalog);
                state.files.push_back((part, File::Catalog(Arc::clone(&catalog), version)));
                let tensors = 0..self.graph.meta().tensors.len();
                let segments = tensors.map(|i| (part, File::Segment(Arc::clone(&catalog), i)));
                state.files.extend(segments);
            }
            Err(error) => self.findings.add_error(order, &dir, None, error),
        }
    }

    fn open_file(&self, state: &mut State<'a>, part: PartId, file: File) {
        let order = state.order();
        match file {
            File::Lists(kind) => self.open_lists(state, order, part, kind),
            File::Catalog(catalog, committed) => {
                let bytes = folder_bytes(&**self.graph.device(), catalog.dir());
                let unit = CatalogUnit { graph: self.graph, part, catalog, committed };
                state.units.push_back(Unit { order, bytes, work: Work::Catalog(unit) });
            }
            File::Segment(catalog, tensor) => match self.segment(part, &catalog, tensor) {
                Ok(segment) => {
                    let segment = Arc::new(segment);
                    let all_bytes = segment.layout().file_bytes();
                    let work = |pages| Work::Rows { segment: Arc::clone(&segment), pages };
                    state.units.extend(units(order, segment.layout().n_pages(), all_bytes, work));
                }
                Err(error) => {
                    self.findings.add_error(order, &self.graph.part_dir(part), None, error);
                }
            },
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

    fn list_unknown_in_part(&self, order: FileOrder, dir: &Path, catalog: &Catalog) {
        let topology = self.graph.topology_path(PartId(0));
        let halo = self.graph.halo_path(PartId(0));
        let paths = [&topology, &halo, &catalog_dir(dir)].map(|path| name_of(path));
        let mut known: BTreeSet<String> = paths.into_iter().flatten().collect();
        known.insert(QUARANTINE_DIR.to_owned());
        for tensor in &self.graph.meta().tensors {
            match catalog.segments(&tensor.name) {
                Ok(records) => known.extend(records.into_iter().map(|(_, record)| record.file)),
                // The segment's turn comes, and tells it.
                Err(_) => return,
            }
        }
        self.list_unknown(order, dir, &known);
    }

    fn list_unknown(&self, order: FileOrder, dir: &Path, known: &BTreeSet<String>) {
        match self.graph.device().list(dir).map_err(StoreError::io(dir, "list")) {
            Ok(entries) => {
                let unknown = entries.iter().filter(|entry| !known.contains(&entry.name));
                unknown.for_each(|entry| self.findings.add_unknown(&dir.join(&entry.name)));
            }
            Err(error) => self.findings.add_error(order, dir, None, error),
        }
    }

    /// State changes whole or, in a panic, ends the walk anyway.
    fn state(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State<'_> {
    fn order(&mut self) -> FileOrder {
        self.last_order += 1;
        self.last_order
    }
}

fn name_of(path: &Path) -> Option<String> {
    path.file_name().map(|name| name.to_string_lossy().into_owned())
}

/// Bytes of a partition's files, for the progress only: what cannot be read counts as nothing.
fn part_bytes(device: &dyn Device, dir: &Path) -> u64 {
    folder_bytes(device, dir) + folder_bytes(device, &catalog_dir(dir))
}

fn folder_bytes(device: &dyn Device, dir: &Path) -> u64 {
    let entries = device.list(dir).unwrap_or_default().into_iter().filter(|entry| !entry.is_dir);
    let bytes = |name: String| device.open(&dir.join(name)).and_then(|file| file.len_bytes());
    entries.map(|entry| bytes(entry.name).unwrap_or(0)).sum()
}
