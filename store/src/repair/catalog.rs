//! One partition: what its catalog holds, and the catalog that names what was found.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use lodestore_graph::PartId;

use super::actions::RepairActions;
use super::as_damage;
use super::partitions::{Partition, refuse_newer_catalog};
use super::report::Lost;
use super::tensor::{TensorPlan, TensorRepair};
use crate::catalog::{Catalog, Pair, TensorDelta, TensorRecord};
use crate::error::StoreError;
use crate::error_origin::ErrorOrigin;
use crate::file_system::Access;
use crate::graph::{Graph, catalog_dir};
use crate::verify::CatalogCheck;
use crate::version_id::{CommitId, SegmentMask, VersionId};

/// Repairs catalog and segments of a partition.
///
/// The catalog comes first: it says which tables the segments must have before they have them. A
/// crash in between leaves segments that cannot be opened, as they were before, and whose tables
/// the catalog now proves.
pub(super) fn restore(
    actions: &mut RepairActions,
    graph: &Graph,
    partition: Partition,
) -> Result<(), StoreError> {
    let part = partition.part;
    let mut contents = Contents::read(actions, graph, partition)?;
    let Some(mut plans) = plan_all(actions, graph, part, &mut contents)? else { return Ok(()) };
    for (spec, plan) in graph.meta().tensors.iter().zip(&mut plans) {
        if let Some(note) = plan.note.take() {
            actions.note(&contents.part_dir.join(&plan.record.record.file), note);
        }
        TensorRepair { actions, graph, part, spec, contents: &contents }.find_strays(plan)?;
    }
    let strays = note_losses(actions, &mut contents, &mut plans);
    let part_dir = contents.part_dir.clone();
    let plan = CatalogPlan::new(graph, part, contents, &plans);
    let (adopted, version) = (plan.adopted.clone(), plan.version.saturating_add(1));
    plan.publish(actions, &strays)?;
    for file in adopted {
        let action = format!(
            "recorded as prepared: nothing shows that its version, {version}, was committed; the \
             next commit makes its rows visible"
        );
        actions.note(&part_dir.join(file), action);
    }
    plans.into_iter().try_for_each(|plan| plan.publish(actions, &part_dir))
}

/// Plans for all tensors; `None`, with a loss, where nothing describes the rows of one.
fn plan_all(
    actions: &mut RepairActions,
    graph: &Graph,
    part: PartId,
    contents: &mut Contents,
) -> Result<Option<Vec<TensorPlan>>, StoreError> {
    if !contents.is_old {
        for spec in &graph.meta().tensors {
            let is_later =
                TensorRepair { actions, graph, part, spec, contents }.has_later_file()?;
            contents.is_old |= is_later;
        }
    }
    let mut plans = Vec::new();
    for spec in &graph.meta().tensors {
        let Some(plan) = (TensorRepair { actions, graph, part, spec, contents }).plan()? else {
            let reason = format!(
                "{}; and no whole file of this graph describes the rows of `{}`: nothing here is \
                 changed; move the partition's folder away and fetch the partition from a \
                 replica, or bring the files back from a copy and repair again; if \
                 `graph.toml` is of another graph, move it away first",
                contents.broken.as_deref().unwrap_or_default(),
                spec.name
            );
            actions.note_lost(Lost::file(&catalog_dir(&contents.part_dir), reason));
            return Ok(None);
        };
        plans.push(plan);
    }
    // A segment of a version that the catalog does not know: the catalog is an old copy.
    if !contents.is_old && plans.iter().any(|plan| plan.record.version > contents.version) {
        contents.is_old = true;
        return plan_all(actions, graph, part, contents);
    }
    Ok(Some(plans))
}

/// Reports the losses of a partition. Returns the files that go to quarantine: those that the next
/// writer would remove, where something is lost and they may hold the only copy of it, and damaged
/// ones that would keep it from opening the graph.
///
/// Rows that are lost are found again by a repair that follows one that was cut off. That a file is
/// lost is not, once the file is gone: the catalog keeps it.
fn note_losses(
    actions: &mut RepairActions,
    contents: &mut Contents,
    plans: &mut [TensorPlan],
) -> Vec<PathBuf> {
    let (mut rows, mut strays) = (Vec::new(), Vec::new());
    for plan in &mut *plans {
        let (of_rows, of_files) = plan.lost.drain(..).partition::<Vec<_>, _>(Lost::is_of_rows);
        contents.losses.extend(of_files.iter().map(Lost::to_line));
        if !of_rows.is_empty() {
            strays.append(&mut plan.strays);
        }
        rows.extend(of_rows);
    }
    if !contents.losses.is_empty() {
        strays.extend(plans.iter_mut().flat_map(|plan| plan.strays.drain(..)));
        actions.with_losses.push(catalog_dir(&contents.part_dir));
    }
    strays.extend(plans.iter_mut().flat_map(|plan| plan.unproven.drain(..)));
    let kept = contents.losses.iter().map(|line| Lost::from_line(&contents.part_dir, line));
    actions.report.lost.extend(kept.chain(rows));
    strays
}

/// A catalog, read through.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Folder of the partition.
    pub(super) part_dir: PathBuf,
    /// The open catalog, where it can be read through; its pending rows can be had.
    catalog: Option<Catalog>,
    /// The committed version; 0 if it is unknown.
    pub(super) version: u32,
    /// Records of segments that make sense; at most one of a tensor.
    pub(super) records: Vec<TensorRecord>,
    /// Tensors, with versions that rows of them are pending for, ascending.
    pub(super) pending: Vec<(String, u32)>,
    /// Records of deltas that make sense, prepared ones too.
    pub(super) deltas: Vec<TensorDelta>,
    /// Reason why the catalog must be built again; `None` if it may stay.
    pub(super) broken: Option<String>,
    /// It is gone or an old copy, or its log is damaged and this is an earlier state: files may
    /// have moved on.
    pub(super) is_old: bool,
    /// Losses that are not found again, of this repair and of one that was cut off.
    losses: Vec<String>,
}

impl Contents {
    /// Reads a catalog through.
    ///
    /// Fails when it is of a later format, and when system or medium refuse to return it.
    fn read(
        actions: &RepairActions,
        graph: &Graph,
        partition: Partition,
    ) -> Result<Self, StoreError> {
        let Partition { part, dir: part_dir, catalog } = partition;
        let dir = catalog_dir(&part_dir);
        let reason = match catalog.and_then(|catalog| Self::of(graph, part, catalog)) {
            Ok(contents) => return Ok(Self { part_dir, ..contents }),
            Err(error) => damage(error)?,
        };
        // Its log may be all that is damaged.
        let earlier = Catalog::open_unchecked(&*actions.fs, &dir, Access::Salvage);
        let mut contents = match earlier.and_then(|catalog| Self::of(graph, part, catalog)) {
            Ok(mut earlier) => {
                earlier.losses.push(format!(
                    "{reason}: what was put after the state before the damage is lost, but for \
                     what segments hold of it; put it again"
                ));
                earlier
            }
            Err(error) => {
                damage(error)?;
                let loss = format!(
                    "{reason}: rows that were put and not committed are lost, if there were any, \
                     and so are versions after that of the newest file; put them again"
                );
                Self { losses: vec![loss], ..Self::default() }
            }
        };
        contents.broken = Some(reason);
        Ok(Self { part_dir, is_old: true, ..contents })
    }

    fn of(graph: &Graph, part: PartId, catalog: Catalog) -> Result<Self, StoreError> {
        refuse_newer_catalog(&catalog)?;
        catalog.check_identity(graph.uuid(), part)?;
        let version = catalog.current_version()?;
        let check = CatalogCheck::new(graph, part, &catalog, version);
        let mut contents = Self { version, ..Self::default() };
        let (mut faults, mut bad_rows) = (Vec::new(), BTreeMap::<String, u64>::new());
        catalog.scan_all(&mut |key, pair| {
            match (fault(&check, key, &pair), pair) {
                (None, pair) => contents.add(pair),
                (Some(_), Pair::Row { tensor, .. }) => {
                    *bad_rows.entry(tensor.to_owned()).or_default() += 1;
                }
                (Some(reason), _) => faults.push(reason),
            }
            ControlFlow::Continue(())
        })?;
        for (tensor, n) in bad_rows {
            faults.push(format!("rows of `{tensor}` that cannot be"));
            contents.losses.push(format!(
                "{n} rows of `{tensor}` that no put can have written; put what is missed again"
            ));
        }
        for spec in &graph.meta().tensors {
            if contents.records.iter().all(|record| record.tensor != spec.name) {
                faults.push(format!("no usable record of `{}`", spec.name));
            }
        }
        for record in &mut contents.records {
            record.lost = match catalog.lost_segment(&record.tensor, record.version) {
                Err(error) => damage(error).map(|_| None)?,
                Ok(found) => found,
            };
        }
        contents.broken = (!faults.is_empty()).then(|| faults.join("; "));
        contents.catalog = Some(catalog);
        Ok(contents)
    }

    /// Returns the open catalog, where it can be read through.
    pub(super) fn catalog(&self) -> Option<&Catalog> {
        self.catalog.as_ref()
    }

    fn add(&mut self, pair: Pair<'_>) {
        match pair {
            // Records come in the order of versions: the last one of a tensor counts.
            Pair::Segment { tensor, version, record: Ok(record) } => {
                self.records.retain(|known| known.tensor != tensor);
                let tensor = tensor.to_owned();
                self.records.push(TensorRecord { tensor, version, record, lost: None });
            }
            Pair::Delta { tensor, record: Ok(delta), .. } => {
                let tensor = tensor.to_owned();
                self.deltas.push(TensorDelta { tensor, delta, is_prepared: false });
            }
            Pair::Prepared { tensor, record: Ok(delta), .. } => {
                let tensor = tensor.to_owned();
                self.deltas.push(TensorDelta { tensor, delta, is_prepared: true });
            }
            Pair::Row { tensor, version, .. } if version > self.version => {
                let is_it = |(of, at): &(String, u32)| of == tensor && *at == version;
                if !self.pending.last().is_some_and(is_it) {
                    self.pending.push((tensor.to_owned(), version));
                }
            }
            Pair::Losses(text) => {
                let text = String::from_utf8_lossy(text);
                self.losses.extend(text.lines().map(str::to_owned));
            }
            _ => {}
        }
    }
}

/// Returns the words of an error that says that a catalog is damaged; fails with any other. A
/// catalog that the medium does not return at this attempt may be sound.
fn damage(error: StoreError) -> Result<String, StoreError> {
    let error = as_damage(error)?;
    if error.origin() == ErrorOrigin::Damage { Ok(error.to_string()) } else { Err(error) }
}

/// Returns what is wrong with a pair. Committed rows of older releases that fit may stay.
fn fault(check: &CatalogCheck<'_>, key: &[u8], pair: &Pair<'_>) -> Option<String> {
    if check.is_of_older_release(pair) { None } else { check.fault(key, pair) }
}

/// The catalog of a partition as it should be.
struct CatalogPlan<'a> {
    graph: &'a Graph,
    part: PartId,
    /// Readable contents of the catalog that is there.
    contents: Contents,
    records: Vec<TensorRecord>,
    deltas: Vec<TensorDelta>,
    /// Deltas among them that no catalog has named, and that are recorded as prepared.
    adopted: Vec<String>,
    /// The version to commit: no file is of a later one, but for what is prepared.
    version: u32,
    /// The commits that made it and the versions before, ascending, as far as they are known.
    commits: Vec<VersionId>,
}

impl<'a> CatalogPlan<'a> {
    fn new(graph: &'a Graph, part: PartId, contents: Contents, plans: &[TensorPlan]) -> Self {
        let records: Vec<TensorRecord> = plans.iter().map(|plan| plan.record.clone()).collect();
        let deltas = plans.iter().flat_map(|plan| &plan.deltas);
        let mut deltas: Vec<TensorDelta> = deltas.cloned().collect();
        let neighbour = newest_neighbour(graph, part);
        let of_neighbour = neighbour.as_ref().and_then(|neighbour| neighbour.commits.last());
        let of_neighbour = of_neighbour.map_or(0, |version| version.number);
        let adopted = adopt(&contents, &records, &mut deltas, of_neighbour);
        let segments = records.iter().map(|record| record.version);
        let published = deltas.iter().filter(|it| !it.is_prepared).map(|it| it.delta.version);
        let version = segments.chain(published).chain([contents.version]).fold(1, u32::max);
        // What is prepared is for the version after; those before it may have changed no row here.
        let prepared = deltas.iter().filter(|it| it.is_prepared).map(|it| it.delta.version - 1);
        let version = prepared.fold(version, u32::max);
        // A file of its version or a later one shows that what was prepared was published since.
        deltas.iter_mut().for_each(|it| it.is_prepared &= it.delta.version > version);
        let mut commits = commits_of_files(part, &records, &deltas);
        if let Some(old) = &contents.catalog {
            // A file may be of a commit that another one has repeated.
            commits.extend(old.commits(version).unwrap_or_default());
        } else if let Some(neighbour) = neighbour {
            // Versions after the newest file are not claimed: nothing here shows whether they
            // changed a row of this partition. The next opening for writing decides that.
            let newest = commits.iter().find(|it| it.number == version && it.commit.is_known());
            if newest.is_some_and(|it| neighbour.has_made(it)) {
                commits = neighbour.commits_of_both(&commits);
            }
        }
        commits.retain(|it| it.number <= version && it.commit.is_known());
        // Of several the last one counts.
        commits.reverse();
        commits.sort_by_key(|it| it.number);
        commits.dedup_by_key(|it| it.number);
        Self { graph, part, contents, records, deltas, adopted, version, commits }
    }

    /// Makes the catalog name the files of the plan by one batch. If it is broken or older than
    /// they are, another is built beside it. Moves `strays` to quarantine while no writer can open
    /// the partition, or finds a reason to remove them.
    fn publish(self, actions: &mut RepairActions, strays: &[PathBuf]) -> Result<(), StoreError> {
        let Self { contents, version, .. } = &self;
        let dir = catalog_dir(&contents.part_dir);
        let mut reasons: Vec<String> = contents.broken.iter().cloned().collect();
        if contents.catalog.is_some() && *version > contents.version {
            let (old, next) = (contents.version, version.saturating_add(1));
            reasons.push(format!(
                "the files are of version {version}, it is of version {old}: rows that were \
                 pending for version {} are in a file of their tensor, or pending for version \
                 {next} now",
                old.saturating_add(1)
            ));
        }
        if contents.catalog.is_some() && !self.adopted.is_empty() {
            reasons.push(format!(
                "it does not know {}: rows of theirs are not pending any more",
                self.adopted.join(", ")
            ));
        }
        if reasons.is_empty() {
            strays.iter().try_for_each(|stray| actions.quarantine(stray))?;
            return self.change(actions);
        }
        let reason = reasons.join("; ");
        let action = match &contents.catalog {
            Some(_) => format!("rebuilt with all that makes sense in it ({reason})"),
            None => format!("rebuilt from the segments ({reason})"),
        };
        if !actions.is_dry_run() {
            self.build(actions).inspect_err(|_| actions.clear(&dir))?;
        }
        actions.finish(&dir, action, self.contents.catalog, strays)
    }

    /// Changes the records that are not as they should be, by one batch.
    fn change(&self, actions: &mut RepairActions) -> Result<(), StoreError> {
        let Self { contents, records, deltas, version, .. } = self;
        let is_new = |record: &&TensorRecord| !contents.records.contains(record);
        let changed: Vec<TensorRecord> = records.iter().filter(is_new).cloned().collect();
        let Some(catalog) = &contents.catalog else { return Ok(()) };
        // No delta is chosen here that the catalog does not name.
        if changed.is_empty() && deltas.len() == contents.deltas.len() {
            return Ok(());
        }
        if !actions.is_dry_run() {
            catalog.replace_records(&changed, deltas, *version, &contents.losses)?;
        }
        actions.note(catalog.dir(), "its records name what can be used".to_owned());
        Ok(())
    }

    /// Builds the catalog beside the broken one, whole and synced.
    fn build(&self, actions: &RepairActions) -> Result<(), StoreError> {
        let Self { graph, part, contents, records, deltas, version, commits, .. } = self;
        let fs = &*actions.fs;
        let dir = actions.building(&catalog_dir(&contents.part_dir));
        let text = graph.meta().to_text();
        let catalog = Catalog::create(fs, &dir, graph.uuid(), *part, &text)?;
        catalog.replace_records(records, deltas, *version, &contents.losses)?;
        // Followers and buckets know the history by them.
        catalog.replace_commits(commits)?;
        if let Some(old) = &contents.catalog {
            let check = CatalogCheck::new(graph, *part, old, contents.version);
            catalog.copy_rows(old, &mut |pair| match pair {
                Pair::Row { tensor, version, .. } if fault(&check, b"", pair).is_none() => {
                    self.place(tensor, *version)
                }
                _ => None,
            })?;
        }
        catalog.flush()?;
        drop(catalog);
        for entry in fs.list(&dir).map_err(StoreError::io(&dir, "list"))? {
            let path = dir.join(entry.name);
            fs.sync(&path).map_err(StoreError::io(&path, "sync"))?;
        }
        fs.sync(&dir).map_err(StoreError::io(&dir, "sync"))
    }

    /// Returns the version that a pending row goes to. `None` is for one that a file has taken in,
    /// of a version that the old catalog does not know.
    fn place(&self, tensor: &str, version: u32) -> Option<u32> {
        let is_as_old = self.version == self.contents.version && self.adopted.is_empty();
        if version <= self.contents.version || is_as_old {
            return Some(version);
        }
        let segments = self.records.iter().filter(|it| it.tensor == tensor).map(|it| it.version);
        let deltas = self.deltas.iter().filter(|it| it.tensor == tensor);
        let newest = segments.chain(deltas.map(|it| it.delta.version)).max().unwrap_or(0);
        (version > newest).then_some(version.max(self.version.saturating_add(1)))
    }
}

/// Marks deltas that no catalog has named as prepared, where nothing shows that their version was
/// committed; returns their files.
///
/// A commit makes its version visible once all partitions are prepared. So a partition that has the
/// version shows it, and so does a file of a later one, or one that it was folded into.
fn adopt(
    contents: &Contents,
    records: &[TensorRecord],
    deltas: &mut [TensorDelta],
    of_neighbour: u32,
) -> Vec<String> {
    let newest = deltas.iter().map(|it| it.delta.version).max().unwrap_or(0);
    let segments = records.iter().map(|record| record.version);
    let committed = segments.chain([contents.version, of_neighbour]).fold(0, u32::max);
    let of_newest = |it: &TensorDelta| it.delta.version == newest;
    let is_named = |it: &TensorDelta| {
        contents.deltas.iter().any(|known| known.delta.record.file == it.delta.record.file)
    };
    let shows_commit =
        |it: &TensorDelta| it.delta.first < it.delta.version || (is_named(it) && !it.is_prepared);
    let mut adopted = Vec::new();
    if newest <= committed || deltas.iter().any(|it| of_newest(it) && shows_commit(it)) {
        return adopted;
    }
    for it in deltas.iter_mut().filter(|it| of_newest(it)) {
        if !is_named(it) {
            adopted.push(it.delta.record.file.clone());
        }
        it.is_prepared = true;
    }
    adopted
}

/// Returns the commits that the uuids of these files tell.
fn commits_of_files(
    part: PartId,
    records: &[TensorRecord],
    deltas: &[TensorDelta],
) -> Vec<VersionId> {
    let mut commits = Vec::new();
    for record in records {
        let mask = SegmentMask::new(part.0, &record.tensor, 0, record.version);
        let commit = CommitId::of_segment(record.record.segment, mask);
        commits.push(VersionId::new(record.version, commit));
    }
    for TensorDelta { tensor, delta, is_prepared } in deltas {
        if !is_prepared {
            let mask = SegmentMask::new(part.0, tensor, delta.first, delta.version);
            let commit = CommitId::of_segment(delta.record.segment, mask);
            commits.push(VersionId::new(delta.version, commit));
        }
    }
    commits
}

/// Another partition of the folder.
struct Neighbour {
    /// Its last commits, ascending.
    commits: Vec<VersionId>,
    /// Versions with the ids that its files tell: of the first steps of their commits here. Over
    /// several servers the commit may have another one.
    of_files: Vec<VersionId>,
}

impl Neighbour {
    fn read(graph: &Graph, part: PartId, catalog: &Catalog) -> Result<Self, StoreError> {
        let number = catalog.current_version()?;
        let mut commits = catalog.commits(number)?;
        if commits.last().is_none_or(|last| last.number < number) {
            commits.push(VersionId::new(number, CommitId::UNKNOWN));
        }
        let (mut records, mut deltas) = (Vec::new(), Vec::new());
        for spec in &graph.meta().tensors {
            for (version, record) in catalog.segments(&spec.name)? {
                let tensor = spec.name.clone();
                records.push(TensorRecord { tensor, version, record, lost: None });
            }
            for delta in catalog.deltas(&spec.name)? {
                deltas.push(TensorDelta { tensor: spec.name.clone(), delta, is_prepared: false });
            }
        }
        Ok(Self { commits, of_files: commits_of_files(part, &records, &deltas) })
    }

    /// Returns whether it took part in the commit whose id a file tells.
    fn has_made(&self, told: &VersionId) -> bool {
        self.commits.contains(told) || self.of_files.contains(told)
    }

    /// Returns its commits, without those of versions that files of another partition tell to be of
    /// another commit: one that was aligned has made the versions before by commits of its own.
    fn commits_of_both(&self, told: &[VersionId]) -> Vec<VersionId> {
        let is_other = |made: &VersionId| {
            let mut of_number = told.iter().filter(|it| it.number == made.number);
            of_number.any(|it| it.commit.is_known() && !self.has_made(it))
        };
        self.commits.iter().filter(|made| !is_other(made)).copied().collect()
    }
}

/// Returns the partition of the folder that has the highest version; `None` where no catalog of
/// another partition can be read.
fn newest_neighbour(graph: &Graph, part: PartId) -> Option<Neighbour> {
    let mut newest: Option<Neighbour> = None;
    for other in graph.local_parts() {
        if other == part {
            continue;
        }
        let read = graph.with_catalog(other, |catalog| Neighbour::read(graph, other, &catalog));
        let Ok(found) = read else { continue };
        let is_newer = |known: &Neighbour| {
            known.commits.last().map(|it| it.number) < found.commits.last().map(|it| it.number)
        };
        if newest.as_ref().is_none_or(is_newer) {
            newest = Some(found);
        }
    }
    newest
}
