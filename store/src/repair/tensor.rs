//! One tensor of a partition: which files the catalog is to name, and what must be done to them.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use lodestore_graph::PartId;
use lodestore_graph::lock::IgnorePoison;

use super::actions::RepairActions;
use super::as_damage;
use super::catalog::Contents;
use super::report::Lost;
use super::segment::{Placeholder, Recovered, recover};
use crate::catalog::{DeltaRecord, SegmentRecord, TensorDelta, TensorRecord};
use crate::error::StoreError;
use crate::graph::{Graph, version_of_file, versions_of_delta};
use crate::layout::SegmentLayout;
use crate::segment::{Segment, SegmentIdentity};
use crate::tensor::TensorSpec;
use crate::update::holds_only_pending;
use crate::verify::check_segment;

/// Next step for rows that are lost.
const RESTORE: &str = "bring the file back from a copy and repair again, move the partition's \
                       folder away and fetch the partition from a replica, or put the rows again";

/// Planned contents of the catalog for a tensor, planned work on its segment, and its losses.
pub(super) struct TensorPlan {
    pub(super) record: TensorRecord,
    /// Deltas over the segment, oldest first.
    pub(super) deltas: Vec<TensorDelta>,
    file: FileWork,
    /// Why the record is another, where it is.
    pub(super) note: Option<String>,
    pub(super) lost: Vec<Lost>,
    /// Files of the tensor that it does not name.
    pub(super) strays: Vec<PathBuf>,
    /// Damaged files of a later version, whose rows are pending: no writer can prove that.
    pub(super) unproven: Vec<PathBuf>,
}

/// Planned work for a segment's file.
enum FileWork {
    /// It stays as it is.
    Keep,
    /// It is put together again, for this reason.
    Mend(Box<Recovered>, String),
    /// A file in which no page passes takes its place: nothing in it is proven.
    Placeholder(Placeholder),
}

/// A tensor that is being looked at.
pub(super) struct TensorRepair<'a> {
    pub(super) actions: &'a RepairActions,
    pub(super) graph: &'a Graph,
    pub(super) part: PartId,
    pub(super) spec: &'a TensorSpec,
    pub(super) contents: &'a Contents,
}

impl TensorRepair<'_> {
    /// Decides which files the tensor has; `None` where neither a record nor a whole file describes
    /// its segment.
    pub(super) fn plan(&self) -> Result<Option<TensorPlan>, StoreError> {
        let recorded = self.contents.records.iter().find(|it| it.tensor == self.spec.name);
        let Some(record) = recorded else {
            return self.newest(0)?.map(|plan| self.with_deltas(plan)).transpose();
        };
        let plan = self.with_deltas(self.plan_recorded(record)?)?;
        if plan.lost.is_empty() && !self.contents.is_old {
            return Ok(Some(plan));
        }
        // A compaction checks what it writes, and all that it reads was committed.
        let Some(later) = self.newest(record.version)? else { return Ok(Some(plan)) };
        let (is_whole, later) = (later.lost.is_empty(), self.with_deltas(later)?);
        if plan.is_usable() && !(is_whole && later.version() >= plan.version()) {
            return Ok(Some(plan));
        }
        let old = record.version;
        let note = format!("it is of a later version than the recorded {old}, and takes its place");
        Ok(Some(TensorPlan { note: Some(note), ..later }))
    }

    /// Plans for the recorded segment.
    fn plan_recorded(&self, record: &TensorRecord) -> Result<TensorPlan, StoreError> {
        // A file that is brought back is believed if it is what was lost.
        if let Some(original) = record.lost.clone() {
            let plan =
                self.plan_segment(TensorRecord { record: original, lost: None, ..record.clone() })?;
            if plan.is_usable() {
                let note = format!("the lost rows of `{}` are back: recorded again", record.tensor);
                return Ok(TensorPlan { note: Some(note), ..plan });
            }
        }
        self.plan_segment(record.clone())
    }

    /// Plans for the segment of a record by what there is of it.
    fn plan_segment(&self, record: TensorRecord) -> Result<TensorPlan, StoreError> {
        let (part, version) = (self.part, record.version);
        let opened = self.graph.open_base(part, self.spec, version, &record.record);
        let reason = match opened.map_err(as_damage) {
            Ok(segment) => return Ok(self.usable(record, &segment)),
            Err(error) => error?.to_string(),
        };
        let path = self.contents.part_dir.join(&record.record.file);
        let file = match self.actions.fs.open(&path).map_err(StoreError::io(&path, "open")) {
            Ok(file) => file,
            Err(error) => return as_damage(error).and_then(|_| self.given_up(record, reason)),
        };
        let identity = self.graph.segment_identity(part, self.spec, version, record.record.segment);
        let recovered = recover(&*file, &identity, &record.record.digest, self.actions.n_threads);
        let Some(recovered) = recovered.map_err(StoreError::io(&path, "read"))? else {
            return self.given_up(record, format!("{reason}, and no digest proves any of it"));
        };
        let lost = self.lost_pages(&path, &recovered.layout, &recovered.lost_pages, &|row| row);
        let file = FileWork::Mend(Box::new(recovered), reason);
        Ok(TensorPlan::new(record, file, lost))
    }

    fn usable(&self, record: TensorRecord, segment: &Segment) -> TensorPlan {
        let pages = self.damaged_pages(segment);
        let mut lost = self.lost_pages(segment.path(), segment.layout(), &pages, &|row| row);
        if record.lost.is_some() {
            let reason = format!("given up by an earlier repair; {RESTORE}");
            lost.iter_mut().for_each(|lost| lost.reason.clone_from(&reason));
        }
        TensorPlan::new(record, FileWork::Keep, lost)
    }

    /// Plans for a segment all rows of which are given up.
    fn given_up(&self, record: TensorRecord, reason: String) -> Result<TensorPlan, StoreError> {
        let path = self.contents.part_dir.join(&record.record.file);
        let rows = 0..self.graph.book().range(self.part).len() as u32;
        let lost = self.lost_rows(&path, rows, format!("{reason}; {RESTORE}"));
        // It is the original's: that of a placeholder would grow with every repair.
        let original = record.lost.clone().unwrap_or_else(|| record.record.clone());
        let identity =
            self.graph.segment_identity(self.part, self.spec, record.version, original.segment);
        let unrepairable = || StoreError::Unrepairable { file: path, reason };
        let placeholder = Placeholder::of(&identity).ok_or_else(unrepairable)?;
        let (segment, digest) = (placeholder.identity.segment, placeholder.digest);
        let stub = SegmentRecord { segment, digest, ..original.clone() };
        let record = TensorRecord { record: stub, lost: Some(original), ..record };
        let file = FileWork::Placeholder(placeholder);
        Ok(TensorPlan::new(record, file, lost))
    }

    /// Plans for the newest whole segment above a version, as it describes itself.
    fn newest(&self, above: u32) -> Result<Option<TensorPlan>, StoreError> {
        let mut files = self.files()?;
        files.retain(|(file, _, version)| file.ends_with(".seg") && *version > above);
        files.sort_unstable_by_key(|(_, _, version)| Reverse(*version));
        for (file, _, version) in files {
            if let Some((record, segment)) = self.open_named(file, version)? {
                let tensor = self.spec.name.clone();
                let record = TensorRecord { tensor, version, record, lost: None };
                return Ok(Some(self.usable(record, &segment)));
            }
        }
        Ok(None)
    }

    /// Returns the deltas of the tensor that the catalog names. Where it is rebuilt, whole ones of
    /// the folder are among them; of later versions than its own if it is old.
    fn known_deltas(&self) -> Result<Vec<TensorDelta>, StoreError> {
        let Contents { is_old, version: committed, .. } = *self.contents;
        let named = self.contents.deltas.iter().filter(|it| it.tensor == self.spec.name);
        let mut found: Vec<TensorDelta> = named.cloned().collect();
        let files = if self.is_rebuilt() { self.files()? } else { Vec::new() };
        for (file, first, version) in files {
            let is_known = found.iter().any(|it| it.delta.record.file == file);
            let may_be_recorded = is_old || version <= committed;
            if is_known || !may_be_recorded || !file.ends_with(".delta") {
                continue;
            }
            if let Some((record, segment)) = self.open_named(file, version)? {
                // All parts of a fold that was cut off are named, and not damaged.
                if !is_old && !self.damaged_pages(&segment).is_empty() {
                    continue;
                }
                let delta = DeltaRecord { first, version, record };
                let tensor = self.spec.name.clone();
                found.push(TensorDelta { tensor, delta, is_prepared: false });
            }
        }
        Ok(found)
    }

    /// Adds the deltas over the segment of `plan` that can be used.
    fn with_deltas(&self, mut plan: TensorPlan) -> Result<TensorPlan, StoreError> {
        let mut found = self.known_deltas()?;
        // The widest of several that begin alike: it was folded from the others.
        found.sort_by_key(|it| (it.delta.first, Reverse(it.delta.version)));
        let mut newest = plan.record.version;
        for delta in found {
            let DeltaRecord { first, version, record } = &delta.delta;
            if *first <= newest {
                continue;
            }
            match self.graph.open_delta(self.part, self.spec, &delta.delta).map_err(as_damage) {
                Ok(segment) => {
                    let (layout, listed) = (segment.layout(), segment.listed_rows());
                    let pages = self.damaged_pages(&segment);
                    let row_of = |row: u32| listed[row as usize];
                    plan.lost.extend(self.lost_pages(segment.path(), layout, &pages, &row_of));
                    newest = *version;
                    plan.deltas.push(delta);
                }
                Err(error) => {
                    plan.lost.push(self.lost_file(&record.file, *version, &error?.to_string()));
                }
            }
        }
        Ok(plan)
    }

    /// Finds the files of the tensor that the catalog is not to name. Adds those to the losses that
    /// may have been part of a version.
    pub(super) fn find_strays(&self, plan: &mut TensorPlan) -> Result<(), StoreError> {
        for (file, first, last) in self.files()? {
            let is_of = |it: &TensorDelta| it.delta.record.file == file;
            if plan.record.record.file == file || plan.deltas.iter().any(is_of) {
                continue;
            }
            let path = self.contents.part_dir.join(&file);
            let is_told = plan.lost.iter().any(|lost| *lost.file == *path.display().to_string());
            let is_named = self.contents.deltas.iter().any(is_of);
            let may_be_lost = !is_told && (is_named || self.is_rebuilt());
            if may_be_lost && !self.is_spare(plan, first, last) {
                let reason = match self.open_named(file.clone(), last)? {
                    Some(_) => "it cannot be used with the other files",
                    None => "it is damaged, and no catalog proves it",
                };
                let mut lost = self.lost_file(&file, last, reason);
                if file.ends_with(".seg") {
                    let used = &plan.record.record.file;
                    lost.reason.push_str(&format!(
                        ", or put a whole copy of the file there, move `{used}` away and repair \
                         again"
                    ));
                }
                plan.lost.push(lost);
            }
            let is_later = last > self.contents.version && self.is_pending_for(last);
            if !is_later || !self.is_damaged(&file, last)? {
                plan.strays.push(path);
                continue;
            }
            if self.open_named(file.clone(), last)?.is_some() {
                let reason = "it has damaged pages, and rows of it may not be pending";
                plan.lost.push(self.lost_file(&file, last, reason));
            }
            plan.unproven.push(path);
        }
        Ok(())
    }

    /// Returns whether a file of these versions has no row that is not elsewhere: a file of `plan`
    /// has taken it in. Or the catalog is current and names all parts of it, or has its rows
    /// pending.
    fn is_spare(&self, plan: &TensorPlan, first: u32, last: u32) -> bool {
        let deltas = || plan.deltas.iter().map(|it| &it.delta);
        let is_folded =
            deltas().any(|it| it.first == first) && deltas().any(|it| it.version == last);
        let is_pending = self.is_pending_for(last);
        last <= plan.record.version
            || deltas().any(|it| it.first <= first && last <= it.version)
            || (!self.contents.is_old && (is_folded || is_pending))
    }

    /// Returns whether the catalog has rows of the tensor that are pending for `version`.
    fn is_pending_for(&self, version: u32) -> bool {
        self.contents.pending.contains(&(self.spec.name.clone(), version))
    }

    /// Returns whether a file of [`TensorRepair::files`] is not whole, or has damaged pages.
    fn is_damaged(&self, file: &str, version: u32) -> Result<bool, StoreError> {
        let opened = self.open_named(file.to_owned(), version)?;
        Ok(opened.is_none_or(|(_, segment)| !self.damaged_pages(&segment).is_empty()))
    }

    /// Returns whether the catalog is built again.
    fn is_rebuilt(&self) -> bool {
        self.contents.is_old || self.contents.broken.is_some()
    }

    /// Returns the loss of a file that was a layer of the tensor up to `version`.
    fn lost_file(&self, file: &str, version: u32, reason: &str) -> Lost {
        let reason = format!(
            "{reason}: rows of `{}` that it changed up to version {version} have the values of \
             earlier versions from now on; put them again",
            self.spec.name
        );
        Lost::file(&self.contents.part_dir.join(file), reason)
    }

    /// Returns the loss of the rows on damaged pages; `row_of` returns the partition's row of a row
    /// of the file.
    fn lost_pages(
        &self,
        path: &Path,
        layout: &SegmentLayout,
        pages: &[u64],
        row_of: &dyn Fn(u32) -> u32,
    ) -> Vec<Lost> {
        let rows = pages.iter().flat_map(|&page| layout.rows_on(&(page..page + 1)));
        let n = pages.len();
        let reason = format!("damaged pages: {n}; they stay, and fail when read; {RESTORE}");
        self.lost_rows(path, rows.map(row_of), reason)
    }

    /// Returns the loss of these rows of the partition, if there are any.
    fn lost_rows(&self, path: &Path, rows: impl Iterator<Item = u32>, reason: String) -> Vec<Lost> {
        let start = self.graph.book().range(self.part).start;
        let nodes = rows.map(|row| start + row..start + row + 1);
        let lost = Lost::rows(path, &self.spec.name, nodes, reason);
        if lost.rows > 0 { vec![lost] } else { Vec::new() }
    }

    /// Returns the files that are named as a segment or delta of the tensor, each with the first
    /// and the last version in its name.
    fn files(&self) -> Result<Vec<(String, u32, u32)>, StoreError> {
        let (dir, tensor) = (&self.contents.part_dir, &self.spec.name);
        let entries = self.actions.fs.list(dir).map_err(StoreError::io(dir, "list"))?;
        let named = entries.into_iter().filter(|entry| !entry.is_dir).filter_map(|entry| {
            let version = version_of_file(&entry.name, tensor).map(|version| (version, version));
            let (first, last) = version.or_else(|| versions_of_delta(&entry.name, tensor))?;
            Some((entry.name, first, last))
        });
        Ok(named.collect())
    }

    /// Opens a segment or delta of [`TensorRepair::files`] as it describes itself; `None` unless it
    /// is whole and belongs here.
    fn open_named(
        &self,
        file: String,
        version: u32,
    ) -> Result<Option<(SegmentRecord, Segment)>, StoreError> {
        let opened = self.graph.open_as_named(self.part, self.spec, &file, version);
        let Some(segment) = opened.or_else(|error| as_damage(error).map(|_| None))? else {
            return Ok(None);
        };
        let SegmentIdentity { segment: uuid, n_rows, .. } = *segment.identity();
        let (row_bytes, digest) = (self.spec.row_bytes() as u32, *segment.digest());
        Ok(Some((SegmentRecord { segment: uuid, n_rows, row_bytes, digest, file }, segment)))
    }

    /// Returns whether a file of a later version than the catalog's, which it does not name, holds
    /// anything that is not pending: the catalog is older than the file.
    pub(super) fn has_later_file(&self) -> Result<bool, StoreError> {
        let Some(catalog) = self.contents.catalog() else { return Ok(false) };
        for (file, _, last) in self.files()? {
            let is_named = self.contents.deltas.iter().any(|it| it.delta.record.file == file);
            if last <= self.contents.version || is_named {
                continue;
            }
            // What a commit that was cut off has left may be damaged as well.
            if self.is_pending_for(last) && self.is_damaged(&file, last)? {
                continue;
            }
            if !holds_only_pending(self.graph, self.part, catalog, self.spec, &file, last)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the pages of a segment that verification calls damaged, ascending.
    fn damaged_pages(&self, segment: &Segment) -> Vec<u64> {
        let pages = Mutex::new(Vec::new());
        check_segment(segment, self.actions.n_threads, &|page, _| {
            pages.lock().ignore_poison().push(page);
        });
        let mut pages = pages.into_inner().ignore_poison();
        pages.sort_unstable();
        pages.dedup();
        pages
    }
}

impl TensorPlan {
    /// Returns a plan without deltas.
    fn new(record: TensorRecord, file: FileWork, lost: Vec<Lost>) -> Self {
        Self {
            record,
            deltas: Vec::new(),
            file,
            note: None,
            lost,
            strays: Vec::new(),
            unproven: Vec::new(),
        }
    }

    /// Returns whether anything in the segment is proven.
    fn is_usable(&self) -> bool {
        !matches!(self.file, FileWork::Placeholder(_))
    }

    /// Returns the newest version that a file of it is of.
    fn version(&self) -> u32 {
        self.deltas.last().map_or(self.record.version, |it| it.delta.version)
    }

    /// Does what is to be done to the segment's file, in the folder of the partition.
    pub(super) fn publish(
        self,
        actions: &mut RepairActions,
        part_dir: &Path,
    ) -> Result<(), StoreError> {
        let path = part_dir.join(&self.record.record.file);
        match self.file {
            FileWork::Keep => Ok(()),
            FileWork::Placeholder(placeholder) => {
                let action = "replaced by a file that has no rows, so that all others are served";
                actions.publish(&path, action.to_owned(), &mut |out| out.append(&placeholder.bytes))
            }
            FileWork::Mend(recovered, reason) => {
                let file = actions.fs.open(&path).map_err(StoreError::io(&path, "open"))?;
                let action = format!("rebuilt, proven by the digest of its tables ({reason})");
                actions.publish(&path, action, &mut |out| recovered.write(&*file, out))
            }
        }
    }
}
