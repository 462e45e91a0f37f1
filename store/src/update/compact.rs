//! Compaction of a live graph: one tensor of one partition after the other.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use lodestore_graph::PartId;
use lodestore_graph::lock::IgnorePoison;

use super::delta::DeltaPlace;
use super::garbage::Retired;
use super::{GraphHandle, Layer, PartHandle, TensorHandle, TensorVersion};
use crate::compact::{Compacted, Compaction, report};
use crate::error::StoreError;
use crate::layers::{Fold, choose_deltas, choose_fold, next_cut};
use crate::version_id::CommitId;

impl GraphHandle {
    /// Folds the layers of a tensor, or of all, in a partition, or in all that are open. Puts,
    /// commits and gathers continue meanwhile; pinned views keep what they see.
    ///
    /// `progress` receives bytes of rows written and to write; when it breaks, the compaction ends
    /// with [`StoreError::Stopped`]. Each tensor of a partition is switched on its own: after any
    /// other error the rest is done, and the first error is returned. A damaged page is such an
    /// error, unless all of its rows were changed since. A partition that is sealed is left as it
    /// is. A partition ahead of the others, after a commit that failed in them, keeps its newest
    /// layers. Readers still need its rows of the version before.
    ///
    /// Needs room on disk for the largest file that is written. Memory does not depend on its
    /// length except for 4 bytes per page, and 16 bytes per row where deltas become one.
    pub fn compact(
        &self,
        part: Option<PartId>,
        tensor: Option<&str>,
        what: Folding,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Vec<Compacted>, StoreError> {
        self.check_writable()?;
        let position = tensor.map(|name| self.tensor_position(name)).transpose()?;
        part.map(|part| self.open_part(part)).transpose()?;
        let _alone = self.compactions.lock().ignore_poison();
        self.sweep()?;
        let version = self.version();
        let kept = self.kept_versions(version);
        let is_chosen = |open: &Arc<PartHandle>| part.is_none_or(|part| part == open.part);
        let mut parts = self.open_parts();
        parts.retain(is_chosen);
        // Those that may fail come last: the others do not wait for room.
        parts.sort_by_key(|part| part.catalog.write_failure().is_some());
        let tensors: Vec<Folded> = parts
            .iter()
            .flat_map(|part| {
                let chosen = part.tensors.iter().enumerate();
                let chosen = chosen.filter(|(at, tensor)| {
                    position.is_none_or(|chosen| chosen == *at) && !tensor.is_dropped()
                });
                chosen.filter_map(|(at, _)| Folded::of(part, at, version, what, &kept))
            })
            .collect();
        // One whose turn has not come may be given up.
        drop(parts);
        let total = tensors.iter().map(Folded::bytes_to_write).sum();
        let mut done = 0;
        let mut advance = |bytes| {
            done += bytes;
            progress(done, total)
        };
        let (mut reports, mut outcome) = (Vec::with_capacity(tensors.len()), Ok(()));
        for mut folded in tensors {
            let Some(part) = self.still_open(&folded) else { continue };
            // Giving it up would wait for the fold.
            let is_sealed = || part.transfer.is_sealed();
            let mut advance =
                |bytes| if is_sealed() { ControlFlow::Break(()) } else { advance(bytes) };
            let mut done = self.fold(&folded, &part, &mut advance);
            let has_failed = !matches!(done, Ok(_) | Err(StoreError::Stopped));
            if has_failed && what == Folding::WherePays && folded.leave_segment() {
                // The segment cannot be read; files over it need not become ever more.
                let deltas = self.fold(&folded, &part, &mut advance);
                if matches!(deltas, Err(StoreError::Stopped)) {
                    done = deltas;
                }
            }
            match done {
                Ok(report) => reports.push(report),
                Err(StoreError::Stopped) if is_sealed() => {}
                Err(StoreError::Stopped) => return Err(StoreError::Stopped),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        self.sweep()?;
        outcome.map(|()| reports)
    }

    /// Leaves the next cut after `published` readable from now on: no fold puts layers up to it and
    /// layers after it into one file. `None` leaves none.
    ///
    /// A cut is a version that all writers of a graph publish, see [`next_cut`].
    pub fn keep_cut_after(&self, published: Option<u32>) {
        self.cut_after.store(published.unwrap_or(u32::MAX), Ordering::Release);
    }

    /// Returns the versions up to `newest` that folds leave readable, ascending.
    fn kept_versions(&self, newest: u32) -> Vec<u32> {
        next_cut(self.cut_after.load(Ordering::Acquire), newest).into_iter().collect()
    }

    /// Returns the partition of a tensor whose turn has come, unless it was given up since.
    fn still_open(&self, folded: &Folded) -> Option<Arc<PartHandle>> {
        let is_same = |open: &Arc<PartHandle>| Arc::as_ptr(open) == folded.part.as_ptr();
        self.open_parts().into_iter().find(is_same)
    }

    pub(super) fn fold(
        &self,
        folded: &Folded,
        part: &PartHandle,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Compacted, StoreError> {
        let start = Instant::now();
        let Folded { at, seen, fold, .. } = folded;
        let tensor = &part.tensors[*at];
        let layers = match fold {
            None => 0..0,
            Some(Fold::All) => 0..seen.layers().len(),
            Some(Fold::Deltas(deltas)) => deltas.start + 1..deltas.end + 1,
        };
        let commit = match seen.layers()[layers.clone()].last() {
            Some(newest) => part.commit_of(newest.version())?,
            None => CommitId::UNKNOWN,
        };
        let compaction = Compaction {
            graph: &self.graph,
            part: part.part,
            catalog: &part.catalog,
            spec: tensor.spec(),
            seen,
            commit,
        };
        if layers.is_empty() {
            return Ok(report(&compaction, 0, None, start));
        }
        let n_rows = match fold {
            Some(Fold::All) => seen.n_changed(),
            _ => seen.layers()[layers.clone()].iter().map(|it| it.n_rows()).sum(),
        };
        part.catalog.check_takes_writes()?;
        // Opened before it counts: after the switch nothing can fail but memory.
        let (layer, switched) = if layers.start == 0 {
            let (record, segment) = compaction.write(progress)?;
            let version = segment.identity().version;
            let layer = self.open_written(segment, version)?;
            (layer, part.catalog.switch_segment(&tensor.spec().name, version, &record))
        } else {
            let place = DeltaPlace { graph: &self.graph, part: part.part, spec: tensor.spec() };
            let codec = seen.base().segment().codec();
            let (record, segment) =
                place.write_folded(seen, layers.clone(), commit, codec, progress)?;
            let layer = self.open_written(segment, record.first)?;
            (layer, part.catalog.switch_deltas(&tensor.spec().name, &record))
        };
        if let Err(error) = switched {
            // The record may be on disk: the file goes when the catalog takes writes again, without
            // the record.
            self.garbage().push(Retired::new(&layer, &part.catalog));
            return Err(error);
        }
        tensor.fold(seen, layers.clone(), &layer);
        let retired = seen.layers()[layers].iter();
        self.garbage().extend(retired.map(|layer| Retired::new(layer, &part.catalog)));
        Ok(report(&compaction, n_rows, Some(layer.segment()), start))
    }
}

/// Layers that a compaction folds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folding {
    /// All layers of each tensor into one segment, where there are deltas.
    All,
    /// All deltas of each tensor into one, where there are several; its segment stays.
    Deltas,
    /// Folds that pay: deltas of a like size into one, and all layers where deltas have many of the
    /// rows.
    WherePays,
}

impl TensorHandle {
    /// Returns whether a compaction of [`Folding::WherePays`] would write anything.
    #[must_use]
    pub fn pays_to_fold(&self) -> bool {
        let current = self.current();
        choose_fold(current.base().n_rows(), &current.delta_sizes()).is_some()
    }
}

/// A tensor of a partition with what is to be folded of it.
pub(super) struct Folded {
    part: Weak<PartHandle>,
    /// Position of the tensor.
    at: usize,
    pub(super) seen: Arc<TensorVersion>,
    /// `None` where it stays as it is.
    fold: Option<Fold>,
}

impl Folded {
    /// Returns the layers up to `version`: a commit may come to this partition meanwhile, and fail
    /// in others. `None` where they are gone. Layers up to one of the versions `kept`, ascending,
    /// stay apart from those after it.
    pub(super) fn of(
        part: &Arc<PartHandle>,
        at: usize,
        version: u32,
        what: Folding,
        kept: &[u32],
    ) -> Option<Self> {
        let tensor = &part.tensors[at];
        let mut seen = tensor.at(version)?;
        for &version in kept.iter().rev() {
            let Some(n_older) = seen.deltas_up_to(version) else { continue };
            if let Some(fold) = choose_after(n_older, &seen, what) {
                let (part, fold) = (Arc::downgrade(part), Some(fold));
                return Some(Self { part, at, seen, fold });
            }
            seen = tensor.at(version)?;
        }
        let fold = match what {
            Folding::All => (!seen.is_plain()).then_some(Fold::All),
            Folding::Deltas => choose_after(0, &seen, what),
            Folding::WherePays => choose_fold(seen.base().n_rows(), &seen.delta_sizes()),
        };
        Some(Self { part: Arc::downgrade(part), at, seen, fold })
    }

    /// Folds deltas alone where all layers were to become one; returns whether any pay.
    fn leave_segment(&mut self) -> bool {
        if self.fold != Some(Fold::All) {
            return false;
        }
        self.fold = choose_deltas(&self.seen.delta_sizes()).map(Fold::Deltas);
        self.fold.is_some()
    }

    /// Returns the most bytes of rows that are to be written.
    fn bytes_to_write(&self) -> u64 {
        let raw_bytes = |layer: &Arc<Layer>| layer.segment().layout().raw_bytes();
        match &self.fold {
            None => 0,
            Some(Fold::All) => raw_bytes(self.seen.base()),
            Some(Fold::Deltas(deltas)) => {
                self.seen.layers()[deltas.start + 1..deltas.end + 1].iter().map(raw_bytes).sum()
            }
        }
    }
}

/// Chooses a fold of deltas after the oldest `n_older`.
fn choose_after(n_older: usize, seen: &TensorVersion, what: Folding) -> Option<Fold> {
    let newer = &seen.delta_sizes()[n_older..];
    let range = match what {
        Folding::All | Folding::Deltas => (newer.len() > 1).then_some(0..newer.len()),
        Folding::WherePays => choose_deltas(newer),
    };
    range.map(|range| Fold::Deltas(range.start + n_older..range.end + n_older))
}
