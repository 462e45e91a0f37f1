//! Commits: what was put becomes a version.
//!
//! A commit has two steps, each over all partitions. First each partition writes the rows that are
//! pending for the version into a delta and records it as prepared. Then each makes it visible.
//! Between the steps, and after a crash in between, readers see the version before. The same commit
//! repeated ends the same.

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

/// A commit folds deltas where a tensor has more layers than this.
const MAX_LAYERS: usize = 64;

/// The turn of a commit: what is known of the version that is being made.
#[derive(Debug, Default)]
pub(super) struct CommitTurn {
    /// The version whose first step was done, with the commit that it was done for. A later commit
    /// of the version keeps that id: files have it.
    prepared: Option<VersionId>,
}

impl CommitTurn {
    /// Makes the turn after the graph was opened; `prepared` has the versions that commits have
    /// prepared in its partitions.
    pub(super) fn new(prepared: impl Iterator<Item = VersionId>) -> Self {
        // The smallest id, as over several servers.
        let prepared = prepared.filter(|version| version.commit.is_shared());
        Self { prepared: prepared.min_by_key(|version| (version.number, version.commit)) }
    }

    /// Returns the id of the commit that makes version `number`: `drawn`, unless a first step has
    /// fixed another one.
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
    /// Makes everything put so far the next version, on all open partitions; returns its number.
    ///
    /// A commit with nothing put makes a version too, equal to the one before. So partitions that
    /// are committed in different processes stay in step by counting. After an error or a crash
    /// readers see the version before or this one, and a repeated commit makes it the same
    /// everywhere.
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

    /// Does as [`GraphHandle::commit_version`], through `version`; does nothing if it was reached
    /// before, so that it may be repeated. Returns the committed version. It is the second step of
    /// a commit over several servers, and does the first one where that was not done.
    ///
    /// Where the first step was done, `version` has the smallest id that the servers have returned
    /// for it.
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

    /// Folds deltas where no compaction has done it for long: each is an open file.
    fn fold_if_many(&self) {
        let has_many = |part: &Arc<PartHandle>| {
            part.listed().any(|it| it.current().layers().len() > MAX_LAYERS)
        };
        // A compaction that runs already does it.
        let is_running = matches!(self.compactions.try_lock(), Err(TryLockError::WouldBlock));
        // Where each layer is that of a version that is kept, nothing can be folded.
        if is_running || !self.open_parts().iter().any(has_many) || !self.pays_to_fold() {
            return;
        }
        let mut go_on = |_, _| ControlFlow::Continue(());
        if let Err(error) = self.compact(None, None, Folding::WherePays, &mut go_on) {
            tracing::warn!("{error}; deltas stay as they are until the next commit");
        }
    }

    /// Writes what is pending for `version` into files, durable and not visible yet, on all open
    /// partitions. It is the first step of a commit over several servers, and may be repeated.
    ///
    /// Versions before it are committed. Puts that begin afterwards are for the version after.
    ///
    /// Returns the id of the commit that makes the version: the one given, or drawn where that is
    /// unknown, unless an earlier first step has fixed another, or the version is committed already.
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

    /// Fails for a version that is further ahead than partitions ever are: each in between costs a
    /// sync.
    fn check_near(&self, version: u32) -> Result<(), StoreError> {
        let committed = self.version();
        if version <= committed.saturating_add(MAX_VERSIONS_AHEAD) {
            return Ok(());
        }
        Err(StoreError::VersionAhead { asked: version, committed })
    }

    /// Returns the version after the newest one.
    fn next_version(&self) -> Result<u32, StoreError> {
        self.version().checked_add(1).ok_or_else(|| StoreError::Catalog {
            dir: self.graph.dir().to_owned(),
            reason: "there is no version after the last number; import the graph again".to_owned(),
            origin: crate::error_origin::ErrorOrigin::System,
        })
    }

    /// Keeps other commits out.
    pub(super) fn commits(&self) -> MutexGuard<'_, CommitTurn> {
        self.commits.lock().ignore_poison()
    }

    /// Commits `version` on the open partitions that are behind; draws a commit for it where that of
    /// `version` is unknown.
    ///
    /// A partition that is several versions behind passes over those that it has no rows for: it
    /// took no part in their commits. The last of them, and each that rows are pending for, gets a
    /// commit of its own.
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
            // Over several servers the smallest id counts, not that of the first step here.
            self.publish_parts(&parts, if is_last { version } else { next })?;
        }
    }

    /// Does the first step, on partitions whose version is below `version`.
    fn prepare_parts(
        &self,
        _turn: &MutexGuard<'_, CommitTurn>,
        parts: &[Arc<PartHandle>],
        version: VersionId,
    ) -> Result<(), StoreError> {
        // Before puts are for the version after it.
        parts.iter().try_for_each(|part| part.catalog.check_takes_writes())?;
        {
            // No put is midway: from here on none is for this version.
            let _gate = self.gate.write().ignore_poison();
            // Pending rows must not change while they are handed over.
            parts.iter().try_for_each(|part| part.check_is_not_sealed())?;
            for part in parts {
                part.puts_for.fetch_max(version.number.saturating_add(1), Ordering::AcqRel);
            }
        }
        let prepare = |part: &Arc<PartHandle>| self.prepare_part(part, version);
        let results = for_each(&**self.graph.device(), parts, prepare);
        results.into_iter().collect()
    }

    fn prepare_part(&self, part: &PartHandle, version: VersionId) -> Result<(), StoreError> {
        if part.version() >= version.number {
            return Ok(());
        }
        // While a record of an earlier attempt may be on disk, its file stays.
        part.catalog.check_takes_writes()?;
        let mut prepared = Vec::new();
        for tensor in part.listed() {
            match self.write_delta(part, tensor, version) {
                Ok(None) => {}
                Ok(Some((record, layer))) => prepared.push((tensor, record, layer)),
                Err(error) => {
                    // No record names them: they would take room, and be in the way.
                    for (_, _, layer) in prepared {
                        discard(&**self.graph.device(), layer.segment().path());
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

    /// Writes what is pending of a tensor for `version`, if anything is, and opens it before it
    /// counts. After the switch nothing can fail but memory.
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
            // An earlier attempt failed, and was on disk all the same.
            let segment = self.graph.open_delta(part.part, tensor.spec(), &delta)?;
            tensor.set_unrecorded(None);
            tensor.set_prepared(number, Layer::open(segment, number, self.reader)?);
            return Ok(None);
        }
        // What an earlier attempt left, which the catalog did not take.
        tensor.remove_unrecorded(&**self.graph.device())?;
        let place = DeltaPlace { graph: &self.graph, part: part.part, spec: tensor.spec() };
        let codec = tensor.current().base().segment().codec();
        let written = place.write_pending(&part.catalog, version, &pending, codec)?;
        let Some((record, segment)) = written else { return Ok(None) };
        Ok(Some((record, self.open_written(segment, number)?)))
    }

    /// Does the second step, on partitions that are prepared.
    fn publish_parts(
        &self,
        parts: &[Arc<PartHandle>],
        version: VersionId,
    ) -> Result<(), StoreError> {
        let mut changed = ChangedParts { version: version.number, ..ChangedParts::default() };
        // Where this commit aligns partitions, one of them may come back from a copy of the version
        // before, whose rows it does not have now.
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
        let results = for_each(&**self.graph.device(), parts, publish);
        let mut outcome = Ok(());
        for (part, published) in parts.iter().zip(results) {
            // Those after a failed one are published on disk all the same.
            if published.is_ok() {
                part.tensors.iter().for_each(|tensor| tensor.publish(version.number));
                part.set_version(version);
            }
            outcome = outcome.and(published);
        }
        self.note_version();
        outcome
    }

    /// Takes the lowest version of the open partitions as the graph's.
    pub(super) fn note_version(&self) {
        let lowest = self.open_parts().iter().map(|part| part.version()).min();
        if let Some(lowest) = lowest {
            self.version.store(lowest, Ordering::Release);
        }
    }
}

/// Returns whether partitions have one version, which one commit may have made.
fn are_of_one_version(parts: &[Arc<PartHandle>]) -> bool {
    let versions: Vec<VersionId> = parts.iter().map(|part| part.version_id()).collect();
    versions.windows(2).all(|pair| pair[0].number == pair[1].number)
        && CommitId::may_be_one(versions.iter().map(|version| version.commit))
}

impl PartHandle {
    /// Returns the version that a commit through `version` makes next here: one that rows are pending
    /// or prepared for, the one before `version`, or `version`.
    fn next_stop(&self, version: u32) -> u32 {
        let before = version - 1;
        let last = if self.version() < before { before } else { version };
        let of_rows = self.tensors.iter().filter_map(|tensor| tensor.oldest_pending());
        of_rows.min().map_or(last, |pending| pending.min(last)).max(self.version() + 1)
    }
}
