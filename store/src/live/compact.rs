//! Compaction of a live graph: one tensor of one partition after the other.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use lodestore_graph::PartId;

use super::garbage::{Garbage, Retired};
use super::{Base, LiveGraph, LivePart, LiveTensor};
use crate::compact::{Compacted, Compaction, report};
use crate::error::StoreError;

impl LiveGraph {
    /// Folds the committed overlay rows of a tensor, or of all, in a partition, or in all that are
    /// open, into segments of the committed version. Puts, commits and gathers go on meanwhile;
    /// pinned views keep what they see.
    ///
    /// `progress` is told bytes of rows written and to write; when it breaks, the compaction ends
    /// with [`StoreError::Stopped`] as after any error. Tensors without committed overlay
    /// rows are left as they are. Each tensor of a partition is switched on its own: after an error
    /// those before it are done, and nothing else has changed. A damaged page of a segment is such
    /// an error, unless all of its rows have been put anew.
    ///
    /// A partition that is being copied is left as it is.
    ///
    /// Needs room on disk for the largest segment once more; memory does not depend on its length
    /// but for 4 bytes per page.
    pub fn compact(
        &self,
        part: Option<PartId>,
        tensor: Option<&str>,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Vec<Compacted>, StoreError> {
        self.check_writable()?;
        let position = tensor.map(|name| self.graph.tensor_position(name)).transpose()?;
        if let Some(part) = part
            && !self.parts().any(|open| open == part)
        {
            return Err(StoreError::NoPart { part, opened: self.opened() });
        }
        let mut garbage = self.garbage();
        self.sweep_garbage(&mut garbage)?;
        // One that is being copied keeps the files that it has.
        let is_chosen = |open: &Arc<LivePart>| {
            part.is_none_or(|part| part == open.part) && !open.hand_over.is_copied()
        };
        let mut parts = self.open_parts();
        parts.retain(is_chosen);
        // Those that may fail come last: the others do not wait for room.
        parts.sort_by_key(|part| part.catalog.write_failure().is_some());
        let tensors: Vec<(&Arc<LivePart>, &Arc<LiveTensor>)> = parts
            .iter()
            .flat_map(|part| {
                let chosen = part.tensors.iter().enumerate();
                let chosen = chosen.filter(|(at, _)| position.is_none_or(|chosen| chosen == *at));
                chosen.map(move |(_, tensor)| (part, tensor))
            })
            .collect();
        let version = self.version();
        let to_write = tensors.iter().filter(|(_, tensor)| !tensor.committed(version).is_plain());
        let total = to_write.map(|(_, tensor)| tensor.base().segment().layout().raw_bytes()).sum();
        let mut done = 0;
        let mut advance = |bytes| {
            done += bytes;
            progress(done, total)
        };
        let mut reports = Vec::with_capacity(tensors.len());
        for (part, tensor) in tensors {
            reports.push(self.compact_tensor(part, tensor, &mut garbage, &mut advance)?);
        }
        self.sweep_garbage(&mut garbage)?;
        Ok(reports)
    }

    fn compact_tensor(
        &self,
        part: &LivePart,
        tensor: &Arc<LiveTensor>,
        garbage: &mut Garbage,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Compacted, StoreError> {
        let start = Instant::now();
        // The version first: a commit in between only adds layers that stay.
        let version = self.version();
        let pinned = tensor.committed(version);
        let compaction = Compaction {
            graph: &self.graph,
            part: part.part,
            catalog: &part.catalog,
            spec: tensor.spec(),
            pinned: &pinned,
            version,
        };
        if pinned.is_plain() {
            return Ok(report(&compaction, None, start));
        }
        part.catalog.check_takes_writes()?;
        let (record, segment) = compaction.write(progress)?;
        // Opened before it counts: after the switch nothing can fail but memory.
        let base = Base::open(segment, self.reader)?;
        part.catalog.switch_segment(&tensor.spec().name, version, &record)?;
        let report = report(&compaction, Some(base.segment()), start);
        tensor.rebase(&base);
        garbage.push(Retired::new(&pinned, Arc::clone(tensor), version));
        Ok(report)
    }
}
