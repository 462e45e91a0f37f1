//! Commits: pending rows become a version.
//!
//! A commit has two steps, each over all partitions. First each partition writes the rows that are
//! pending for the version into a delta, and records it as prepared. Then each partition publishes
//! it. Between the steps, and after a crash in between, readers see the previous version. Repeating
//! the same commit completes it.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, TryLockError};

use lodestore_graph::lock::IgnorePoison;

use super::delta::DeltaPlace;
use super::parallel::for_each;
use super::{Folding, GraphHandle, Layer, PartHandle, TensorHandle};
use crate::catalog::{ChangedParts, DeltaRecord};
use crate::error::StoreError;
use crate::limits::MAX_VERSIONS_AHEAD;
use crate::new_file::discard;
use crate::version_id::{CommitId, VersionId};

/// Number of layers of a tensor above which a commit folds deltas.
const MAX_LAYERS: usize = 64;

/// State of the commit in progress.
#[derive(Debug, Default)]
pub(super) struct CommitTurn {
    /// The version whose first step is done, with its commit. A later commit of that version keeps
    /// the id, because files contain it.
    prepared: Option<VersionId>,
}

impl CommitTurn {
    /// Creates the state after an open; `prepared` has the prepared versions of the partitions.
    pub(super) fn new(prepared: impl Iterator<Item = VersionId>) -> Self {
        // The smallest id, as for commits over several servers.
        let prepared = prepared.filter(|version| version.commit.is_shared());
        Self { prepared: prepared.min_by_key(|version| (version.number, version.commit)) }
    }

    /// Returns the commit of version `number`: `drawn`, unless a first step has fixed another one.
    fn fix(&mut self, number: u32, drawn: CommitId) -> CommitId {
        match self.prepared {
            Some(prepared) if prepared.number == number && prepared.commit.is_known() => {
                prepared.commit
            }
            _ => {
                self.prepared = Some(VersionId::new(number, drawn));
                drawn
            }
        }
    }
}

impl GraphHandle {
    /// Commits all pending rows as the next version on all open partitions; returns the version.
    ///
    /// A commit without pending rows also makes a version, equal to the previous one, so that
    /// partitions that are committed by different processes stay in step by counting. After an
    /// error or a crash readers see the previous version or this one, and a repeated commit makes
    /// it the same everywhere.
    pub fn commit_version(&self) -> Result<u32, StoreError> {
        self.check_process()?;
        let mut turn = self.commits();
        self.check_writable()?;
        self.check_all_take_writes()?;
        let next = self.next_version()?;
        let put_for = self.open_parts().iter().filter_map(|part| part.newest_pending()).max();
        let number = put_for.unwrap_or(next).max(next);
        let commit = turn.fix(number, CommitId::draw());
        self.advance(&mut turn, VersionId::new(number, commit))?;
        drop(turn);
        self.fold_if_many();
        Ok(number)
    }

    /// Like [`GraphHandle::commit_version`], through `version`; does nothing if the graph has
    /// reached it, so that the call may be repeated. Returns the committed version. This is the
    /// second step of a commit over several servers, and does the first step if necessary.
    ///
    /// After a first step, `version` has the smallest id that the servers have returned for it.
    pub fn commit_through(&self, version: impl Into<VersionId>) -> Result<VersionId, StoreError> {
        let version = version.into();
        self.check_process()?;
        let mut turn = self.commits();
        self.check_writable()?;
        self.check_near(version.number)?;
        if version.number > self.version() {
            self.check_all_take_writes()?;
        }
        self.advance(&mut turn, version)?;
        drop(turn);
        self.fold_if_many();
        self.version_id()
    }

    /// Folds deltas if no compaction has done so for long, because each delta is an open file.
    fn fold_if_many(&self) {
        let has_many = |part: &Arc<PartHandle>| {
            part.listed().any(|it| it.current().layers().len() > MAX_LAYERS)
        };
        // A running compaction does the same.
        let is_running = matches!(self.compactions.try_lock(), Err(TryLockError::WouldBlock));
        // If every layer ends at a kept version, nothing can be folded.
        if is_running || !self.open_parts().iter().any(has_many) || !self.pays_to_fold() {
            return;
        }
        let mut go_on = |_, _| ControlFlow::Continue(());
        if let Err(error) = self.compact(None, None, Folding::WherePays, &mut go_on) {
            tracing::warn!("{error}; the next commit retries to fold deltas");
        }
    }

    /// Writes the rows that are pending for `version` into files, durable and not visible yet, on
    /// all open partitions. This is the first step of a commit over several servers, and may be
    /// repeated.
    ///
    /// It commits all earlier versions. Later puts are for the version after.
    ///
    /// Returns the commit of the version: the given one, or a drawn one if that is unknown, unless
    /// an earlier first step has fixed another or the version is already committed.
    pub fn prepare(&self, version: impl Into<VersionId>) -> Result<CommitId, StoreError> {
        let version = version.into();
        self.check_process()?;
        let mut turn = self.commits();
        self.check_writable()?;
        self.check_near(version.number)?;
        let Some(before) = version.number.checked_sub(1) else { return Ok(CommitId::UNKNOWN) };
        self.advance(&mut turn, VersionId::new(before, CommitId::UNKNOWN))?;
        if self.version() >= version.number {
            return self.common_commit(version.number);
        }
        let given = version.commit;
        let drawn = if given.is_known() { given } else { CommitId::draw() };
        let commit = turn.fix(version.number, drawn);
        self.prepare_parts(&turn, &self.open_parts(), VersionId { commit, ..version })?;
        Ok(commit)
    }

    /// Fails for a version that is further ahead than partitions ever are, because each version in
    /// between costs a sync.
    fn check_near(&self, version: u32) -> Result<(), StoreError> {
        let committed = self.version();
        if version <= committed.saturating_add(MAX_VERSIONS_AHEAD) {
            return Ok(());
        }
        Err(StoreError::VersionAhead { asked: version, committed })
    }

    fn next_version(&self) -> Result<u32, StoreError> {
        self.version().checked_add(1).ok_or_else(|| StoreError::Catalog {
            dir: self.graph.dir().to_owned(),
            reason: "the last version number is used; import the graph again".to_owned(),
            origin: crate::error_origin::ErrorOrigin::System,
        })
    }

    /// Locks out other commits.
    pub(super) fn commits(&self) -> MutexGuard<'_, CommitTurn> {
        self.commits.lock().ignore_poison()
    }

    /// Commits `version` on the open partitions that are behind; draws a commit for it if that of
    /// `version` is unknown.
    ///
    /// A partition that is several versions behind skips those that it has no rows for, because it
    /// took no part in their commits. The last skipped version, and each version with pending rows,
    /// gets its own commit.
    pub(super) fn advance(
        &self,
        turn: &mut MutexGuard<'_, CommitTurn>,
        version: VersionId,
    ) -> Result<(), StoreError> {
        loop {
            let mut parts = self.open_parts();
            parts.retain(|part| part.version() < version.number);
            let Some(next) = parts.iter().map(|part| part.next_stop(version.number)).min() else {
                return Ok(());
            };
            parts.retain(|part| part.version() < next);
            let is_last = next == version.number && version.commit.is_known();
            let commit = if is_last { version.commit } else { CommitId::draw() };
            let next = VersionId::new(next, turn.fix(next, commit));
            self.prepare_parts(turn, &parts, next)?;
            // Over several servers the smallest id is published, not the one of the first step
            // here.
            self.publish_parts(&parts, if is_last { version } else { next })?;
        }
    }

    /// Runs the first step on partitions whose version is below `version`.
    fn prepare_parts(
        &self,
        _turn: &MutexGuard<'_, CommitTurn>,
        parts: &[Arc<PartHandle>],
        version: VersionId,
    ) -> Result<(), StoreError> {
        // Checked before later puts are assigned to the version after.
        parts.iter().try_for_each(|part| part.catalog.check_takes_writes())?;
        {
            // Excludes running puts: later puts are not for this version.
            let _gate = self.gate.write().ignore_poison();
            // Pending rows must not change while a move copies them.
            parts.iter().try_for_each(|part| part.check_is_not_sealed())?;
            for part in parts {
                part.puts_for.fetch_max(version.number.saturating_add(1), Ordering::AcqRel);
            }
        }
        let prepare = |part: &Arc<PartHandle>| self.prepare_part(part, version);
        let results = for_each(&**self.graph.file_system(), parts, prepare);
        results.into_iter().collect()
    }

    fn prepare_part(&self, part: &PartHandle, version: VersionId) -> Result<(), StoreError> {
        if part.version() >= version.number {
            return Ok(());
        }
        // A record of an earlier attempt may be on disk, so its file must stay.
        part.catalog.check_takes_writes()?;
        let mut prepared = Vec::new();
        for tensor in part.listed() {
            match self.write_delta(part, tensor, version) {
                Ok(None) => {}
                Ok(Some((record, layer))) => prepared.push((tensor, record, layer)),
                Err(error) => {
                    // No record names these files, and a retry would collide with them.
                    for (_, _, layer) in prepared {
                        discard(&**self.graph.file_system(), layer.segment().path());
                    }
                    return Err(error);
                }
            }
        }
        if prepared.is_empty() {
            return Ok(());
        }
        let records: Vec<(&str, DeltaRecord)> = prepared
            .iter()
            .map(|(tensor, record, _)| (tensor.spec().name.as_str(), record.clone()))
            .collect();
        for (tensor, _, layer) in &prepared {
            tensor.set_unrecorded(Some(layer.segment().path().to_owned()));
        }
        part.catalog.prepare(version, &records)?;
        for (tensor, record, layer) in prepared {
            let n_bytes = u64::from(record.record.n_rows) * tensor.spec().row_bytes() as u64;
            tensor.set_unrecorded(None);
            tensor.set_prepared(version.number, layer);
            part.catalog.reclaim_rows(&tensor.spec().name, version.number, n_bytes);
        }
        Ok(())
    }

    /// Writes the pending rows of a tensor for `version`, if any, and opens the file before it is
    /// recorded, so that nothing but memory can fail after the switch.
    fn write_delta(
        &self,
        part: &PartHandle,
        tensor: &TensorHandle,
        version: VersionId,
    ) -> Result<Option<(DeltaRecord, Arc<Layer>)>, StoreError> {
        let number = version.number;
        let Some(pending) = tensor.pending_for(number) else { return Ok(None) };
        let recorded = part.catalog.prepared_delta(&tensor.spec().name, number)?;
        if let Some(delta) = recorded {
            // An earlier attempt reported an error but is on disk.
            let segment = self.graph.open_delta(part.part, tensor.spec(), &delta)?;
            tensor.set_unrecorded(None);
            tensor.set_prepared(number, Layer::open(segment, number, self.reader)?);
            return Ok(None);
        }
        // Removes the file of an earlier attempt that the catalog did not record.
        tensor.remove_unrecorded(&**self.graph.file_system())?;
        let place = DeltaPlace { graph: &self.graph, part: part.part, spec: tensor.spec() };
        let codec = tensor.current().base().segment().codec();
        let written = place.write_pending(&part.catalog, version, &pending, codec)?;
        let Some((record, segment)) = written else { return Ok(None) };
        Ok(Some((record, self.open_written(segment, number)?)))
    }

    /// Runs the second step on prepared partitions.
    fn publish_parts(
        &self,
        parts: &[Arc<PartHandle>],
        version: VersionId,
    ) -> Result<(), StoreError> {
        let mut changed = ChangedParts { version: version.number, ..ChangedParts::default() };
        // If this commit aligns partitions, a partition may later be restored from a copy of the
        // previous version, whose rows it does not have now. So each counts as changed.
        let is_aligning = !are_of_one_version(parts);
        for part in parts {
            if is_aligning || part.listed().any(|tensor| tensor.prepared().is_some()) {
                changed.parts.insert(part.part.0.into());
            }
        }
        let names = |part: &PartHandle| {
            let with_delta = part.listed().filter(|tensor| tensor.prepared().is_some());
            with_delta.map(|tensor| tensor.spec().name.clone()).collect::<Vec<_>>()
        };
        let publish = |part: &Arc<PartHandle>| {
            part.catalog.publish(version, names(part).iter().map(String::as_str), &changed)
        };
        let results = for_each(&**self.graph.file_system(), parts, publish);
        let mut outcome = Ok(());
        for (part, published) in parts.iter().zip(results) {
            // Partitions after a failed one are still published on disk.
            if published.is_ok() {
                part.tensors.iter().for_each(|tensor| tensor.publish(version.number));
                part.set_version(version);
            }
            outcome = outcome.and(published);
        }
        self.note_version();
        outcome
    }

    /// Sets the graph's version to the lowest version of the open partitions.
    pub(super) fn note_version(&self) {
        let lowest = self.open_parts().iter().map(|part| part.version()).min();
        if let Some(lowest) = lowest {
            self.version.store(lowest, Ordering::Release);
        }
    }
}

/// Returns whether all partitions have the same version, possibly made by one commit.
fn are_of_one_version(parts: &[Arc<PartHandle>]) -> bool {
    let versions: Vec<VersionId> = parts.iter().map(|part| part.version_id()).collect();
    versions.windows(2).all(|pair| pair[0].number == pair[1].number)
        && CommitId::may_be_one(versions.iter().map(|version| version.commit))
}

impl PartHandle {
    /// Returns the next version that a commit through `version` makes here: one with pending or
    /// prepared rows, the version before `version`, or `version`.
    fn next_stop(&self, version: u32) -> u32 {
        let before = version - 1;
        let last = if self.version() < before { before } else { version };
        let of_rows = self.tensors.iter().filter_map(|tensor| tensor.oldest_pending());
        of_rows.min().map_or(last, |pending| pending.min(last)).max(self.version() + 1)
    }
}
