//! Compaction of an open graph: one tensor of one partition after the other.

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Weak};
use std::time::Instant;

use lodestore_graph::PartId;
use lodestore_graph::lock::IgnorePoison;

use super::delta::DeltaPlace;
use super::garbage::Retired;
use super::{GraphHandle, Layer, PartHandle, TensorHandle, TensorVersion};
use crate::catalog::DeltaRecord;
use crate::compact::{Compacted, Compaction, report};
use crate::error::StoreError;
use crate::layers::{Folding, Kept, choose_deltas, choose_folds};

impl GraphHandle {
    /// Folds the layers of one tensor or of all, in one partition or in all open ones. Puts,
    /// commits and gathers continue meanwhile, and pinned views keep their rows. Kept versions stay
    /// readable, see [`GraphHandle::set_keep_rule`] and [`GraphHandle::keep_cut_after`].
    ///
    /// `progress` receives the bytes of rows written and to write; if it breaks, the compaction
    /// ends with [`StoreError::Stopped`]. Each tensor of a partition is switched separately: after
    /// any other error the remaining tensors are compacted, and the first error is returned. A
    /// damaged page is such an error, unless later versions changed all of its rows. Sealed
    /// partitions are skipped. A partition ahead of the others, after a commit that failed in them,
    /// keeps its newest layers, because readers still need its rows of the previous version.
    ///
    /// Needs disk space for the largest file that is written. Memory does not depend on file
    /// lengths except for 4 bytes per page, and 16 bytes per row where deltas are folded into one.
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
        let kept = self.kept_versions();
        let is_chosen = |open: &Arc<PartHandle>| part.is_none_or(|part| part == open.part);
        let mut parts = self.open_parts();
        parts.retain(is_chosen);
        // Partitions that may fail are last, so that the others do not wait for disk space.
        parts.sort_by_key(|part| part.catalog.write_failure().is_some());
        let tensors: Vec<Folded> = parts
            .iter()
            .flat_map(|part| {
                let chosen = part.tensors.iter().enumerate();
                let chosen = chosen.filter(|(at, tensor)| {
                    position.is_none_or(|chosen| chosen == *at) && !tensor.is_dropped()
                });
                let kept = &kept;
                chosen.flat_map(move |(at, _)| Folded::of(part, at, version, kept, what))
            })
            .collect();
        // Drops the handles, so that partitions can be released before their turn.
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
            // A release would wait for the fold.
            let is_sealed = || part.transfer.is_sealed();
            let mut advance =
                |bytes| if is_sealed() { ControlFlow::Break(()) } else { advance(bytes) };
            let mut done = self.fold(&folded, &part, &mut advance);
            let has_failed = !matches!(done, Ok(_) | Err(StoreError::Stopped));
            if has_failed && what == Folding::WherePays && folded.leave_segment() {
                // The base segment cannot be read; folding the deltas over it still limits their
                // number.
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

    /// Returns the partition of a tensor when its turn comes, unless it was released since.
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
        let Folded { at, seen, layers, .. } = folded;
        let tensor = &part.tensors[*at];
        let layers = layers.clone().unwrap_or(0..1);
        // A new segment is made of the layers below those that stay on top.
        let from =
            if layers.start == 0 { seen.oldest_layers(layers.end) } else { (**seen).clone() };
        let compaction = Compaction {
            graph: &self.graph,
            part: part.part,
            catalog: &part.catalog,
            spec: tensor.spec(),
            seen: &from,
            commit: part.commit_of(seen.layers()[layers.end - 1].version())?,
        };
        if folded.layers.is_none() {
            return Ok(report(&compaction, 0, None, start));
        }
        let n_rows = match layers.start {
            0 => from.n_changed(),
            _ => seen.layers()[layers.clone()].iter().map(|it| it.n_rows()).sum(),
        };
        part.catalog.check_takes_writes()?;
        // Opened before the switch, so that nothing but memory can fail after it.
        let (layer, record) = if layers.start == 0 {
            let (record, segment) = compaction.write(progress)?;
            let version = segment.identity().version;
            (self.open_written(segment, version)?, DeltaRecord { first: version, version, record })
        } else {
            let place = DeltaPlace { graph: &self.graph, part: part.part, spec: tensor.spec() };
            let codec = seen.base().segment().codec();
            let commit = compaction.commit;
            let (record, segment) =
                place.write_folded(seen, layers.clone(), commit, codec, progress)?;
            (self.open_written(segment, record.first)?, record)
        };
        let switched = match layers.start {
            0 => part.catalog.switch_segment(&tensor.spec().name, record.version, &record.record),
            _ => part.catalog.switch_deltas(&tensor.spec().name, &record),
        };
        if let Err(error) = switched {
            // The record may be on disk. The file is removed once the catalog accepts writes again,
            // without the record.
            self.garbage().push(Retired::new(&layer, &part.catalog));
            return Err(error);
        }
        tensor.fold(seen, layers.clone(), &layer);
        let retired = seen.layers()[layers].iter();
        self.garbage().extend(retired.map(|layer| Retired::new(layer, &part.catalog)));
        Ok(report(&compaction, n_rows, Some(layer.segment()), start))
    }
}

impl GraphHandle {
    /// Returns whether a compaction with [`Folding::WherePays`] would write anything now.
    #[must_use]
    pub fn pays_to_fold(&self) -> bool {
        let kept = self.kept_versions();
        let pays = |tensor: &Arc<TensorHandle>| tensor.pays_to_fold(&kept);
        self.open_parts().iter().any(|part| part.listed().any(pays))
    }
}

impl TensorHandle {
    /// Returns whether a compaction with [`Folding::WherePays`] would write anything if these
    /// versions stay readable.
    #[must_use]
    pub fn pays_to_fold(&self, kept: &Kept) -> bool {
        !choose_folds(&self.current().spans(), kept, Folding::WherePays).is_empty()
    }
}

/// A tensor of a partition with neighbouring layers to fold into one.
pub(super) struct Folded {
    part: Weak<PartHandle>,
    /// Position of the tensor.
    at: usize,
    pub(super) seen: Arc<TensorVersion>,
    /// Positions of the layers to fold. A range from 0 becomes a segment, any other a delta. `None`
    /// if the tensor is not changed.
    layers: Option<Range<usize>>,
}

impl Folded {
    /// Returns the folds of a tensor, newest layers first, among its layers up to `version`: a
    /// commit may reach this partition meanwhile and fail in others. Empty if those layers are
    /// gone.
    pub(super) fn of(
        part: &Arc<PartHandle>,
        at: usize,
        version: u32,
        kept: &Kept,
        what: Folding,
    ) -> Vec<Self> {
        let Some(seen) = part.tensors[at].newest_layers_of(version) else { return Vec::new() };
        let folds = choose_folds(&seen.spans(), kept, what);
        let folded = |layers: Option<Range<usize>>| {
            let (part, seen) = (Arc::downgrade(part), Arc::clone(&seen));
            Self { part, at, seen, layers }
        };
        match folds.is_empty() {
            true => vec![folded(None)],
            false => folds.into_iter().map(|layers| folded(Some(layers))).collect(),
        }
    }

    /// Restricts a fold into a segment to deltas; returns whether any such fold pays.
    fn leave_segment(&mut self) -> bool {
        let Some(layers) = self.layers.take().filter(|layers| layers.start == 0) else {
            return false;
        };
        let deltas = &self.seen.layers()[1..layers.end];
        let sizes: Vec<u64> = deltas.iter().map(|layer| layer.n_rows()).collect();
        self.layers = choose_deltas(&sizes).map(|deltas| deltas.start + 1..deltas.end + 1);
        self.layers.is_some()
    }

    /// Returns an upper bound of the bytes of rows to write.
    fn bytes_to_write(&self) -> u64 {
        let Some(layers) = &self.layers else { return 0 };
        let raw_bytes = |layer: &Arc<Layer>| layer.segment().layout().raw_bytes();
        match layers.start {
            0 => raw_bytes(self.seen.base()),
            _ => self.seen.layers()[layers.clone()].iter().map(raw_bytes).sum(),
        }
    }
}
