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
use crate::catalog::DeltaRecord;
use crate::error::StoreError;
use crate::limits::MAX_VERSIONS_AHEAD;
use crate::new_file::discard;

/// A commit folds deltas where a tensor has more layers than this.
const MAX_LAYERS: usize = 64;

impl GraphHandle {
    /// Makes everything put so far the next version, on all open partitions; returns its number.
    ///
    /// A commit with nothing put makes a version too, equal to the one before. So partitions that
    /// are committed in different processes stay in step by counting. After an error or a crash
    /// readers see the version before or this one, and a repeated commit makes it the same
    /// everywhere.
    pub fn commit_version(&self) -> Result<u32, StoreError> {
        self.check_process()?;
        let alone = self.commits();
        self.check_writable()?;
        self.check_all_take_writes()?;
        let next = self.next_version()?;
        let put_for = self.open_parts().iter().filter_map(|part| part.newest_pending()).max();
        let version = put_for.unwrap_or(next).max(next);
        self.advance(&alone, version)?;
        drop(alone);
        self.fold_if_many();
        Ok(version)
    }

    /// Does as [`GraphHandle::commit_version`], through `version`; does nothing if it was reached
    /// before, so that it may be repeated. Returns the committed version. It is the second step of
    /// a commit over several servers, and does the first one where that was not done.
    pub fn commit_through(&self, version: u32) -> Result<u32, StoreError> {
        self.check_process()?;
        let alone = self.commits();
        self.check_writable()?;
        self.check_near(version)?;
        if version > self.version() {
            self.check_all_take_writes()?;
        }
        self.advance(&alone, version)?;
        drop(alone);
        self.fold_if_many();
        Ok(self.version())
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
    pub fn prepare(&self, version: u32) -> Result<(), StoreError> {
        self.check_process()?;
        let alone = self.commits();
        self.check_writable()?;
        self.check_near(version)?;
        let Some(before) = version.checked_sub(1) else { return Ok(()) };
        self.advance(&alone, before)?;
        self.prepare_parts(&alone, &self.open_parts(), version)
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
    pub(super) fn commits(&self) -> MutexGuard<'_, ()> {
        self.commits.lock().ignore_poison()
    }

    /// Commits all versions up to `version` on the open partitions that are behind.
    pub(super) fn advance(
        &self,
        alone: &MutexGuard<'_, ()>,
        version: u32,
    ) -> Result<(), StoreError> {
        let lowest = |parts: &[Arc<PartHandle>]| parts.iter().map(|part| part.version()).min();
        loop {
            let mut parts = self.open_parts();
            let Some(next) = lowest(&parts).filter(|lowest| *lowest < version) else {
                return Ok(());
            };
            let next = next + 1;
            parts.retain(|part| part.version() < next);
            self.prepare_parts(alone, &parts, next)?;
            self.publish_parts(alone, &parts, next)?;
        }
    }

    /// Does the first step, on partitions whose version is below `version`.
    fn prepare_parts(
        &self,
        _alone: &MutexGuard<'_, ()>,
        parts: &[Arc<PartHandle>],
        version: u32,
    ) -> Result<(), StoreError> {
        // Before puts are for the version after it.
        parts.iter().try_for_each(|part| part.catalog.check_takes_writes())?;
        {
            // No put is midway: from here on none is for this version.
            let _gate = self.gate.write().ignore_poison();
            // Pending rows must not change while they are handed over.
            parts.iter().try_for_each(|part| part.check_is_not_sealed())?;
            for part in parts {
                part.puts_for.fetch_max(version.saturating_add(1), Ordering::AcqRel);
            }
        }
        let prepare = |part: &Arc<PartHandle>| self.prepare_part(part, version);
        let results = for_each(&**self.graph.device(), parts, prepare);
        results.into_iter().collect()
    }

    fn prepare_part(&self, part: &PartHandle, version: u32) -> Result<(), StoreError> {
        if part.version() >= version {
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
            tensor.set_prepared(version, layer);
            part.catalog.reclaim_rows(&tensor.spec().name, version, n_bytes);
        }
        Ok(())
    }

    /// Writes what is pending of a tensor for `version`, if anything is, and opens it before it
    /// counts. After the switch nothing can fail but memory.
    fn write_delta(
        &self,
        part: &PartHandle,
        tensor: &TensorHandle,
        version: u32,
    ) -> Result<Option<(DeltaRecord, Arc<Layer>)>, StoreError> {
        let Some(pending) = tensor.pending_for(version) else { return Ok(None) };
        let recorded = part.catalog.prepared_delta(&tensor.spec().name, version)?;
        if let Some(delta) = recorded {
            // An earlier attempt failed, and was on disk all the same.
            let segment = self.graph.open_delta(part.part, tensor.spec(), &delta)?;
            tensor.set_unrecorded(None);
            tensor.set_prepared(version, Layer::open(segment, version, self.reader)?);
            return Ok(None);
        }
        // What an earlier attempt left, which the catalog did not take.
        tensor.remove_unrecorded(&**self.graph.device())?;
        let place = DeltaPlace { graph: &self.graph, part: part.part, spec: tensor.spec() };
        let codec = tensor.current().base().segment().codec();
        let written = place.write_pending(&part.catalog, version, &pending, codec)?;
        let Some((record, segment)) = written else { return Ok(None) };
        Ok(Some((record, self.open_written(segment, version)?)))
    }

    /// Does the second step, on partitions that are prepared.
    fn publish_parts(
        &self,
        _alone: &MutexGuard<'_, ()>,
        parts: &[Arc<PartHandle>],
        version: u32,
    ) -> Result<(), StoreError> {
        let names = |part: &PartHandle| {
            let with_delta = part.listed().filter(|tensor| tensor.prepared().is_some());
            with_delta.map(|tensor| tensor.spec().name.clone()).collect::<Vec<_>>()
        };
        let publish = |part: &Arc<PartHandle>| {
            part.catalog.publish(version, names(part).iter().map(String::as_str))
        };
        let results = for_each(&**self.graph.device(), parts, publish);
        let mut outcome = Ok(());
        for (part, published) in parts.iter().zip(results) {
            // Those after a failed one are published on disk all the same.
            if published.is_ok() {
                part.tensors.iter().for_each(|tensor| tensor.publish(version));
                part.version.store(version, Ordering::Release);
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
