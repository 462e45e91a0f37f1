//! A partition that has come, opened beside the others.

use std::sync::{Arc, PoisonError};

use lodestore_graph::PartId;

use super::super::open::OpenedPart;
use super::super::{LiveGraph, LiveMode, LivePart, Parts};
use crate::error::StoreError;
use crate::graph::Graph;

impl LiveGraph {
    /// Opens a partition whose folder has come since; gives the graph's version. Nothing happens if
    /// it is open.
    ///
    /// Where puts are taken the partition and the others are brought to the higher of their versions,
    /// as if they had been opened together: what is pending in those that are behind was put before
    /// whoever commits there was answered.
    pub fn adopt(&self, part: PartId) -> Result<u32, StoreError> {
        self.graph.check_part(part)?;
        if self.now()[part.index()].is_some() {
            return Ok(self.version());
        }
        if self.open_parts().iter().any(|open| open.tensors.iter().any(|it| it.is_dropped())) {
            let reason = "a tensor was dropped since the graph was opened; open it again first";
            return Err(StoreError::MoveRefused { part, reason: reason.to_owned() });
        }
        // As it is now: tensors may have come since the graph was opened.
        let stored = Graph::open_on(Arc::clone(self.graph.device()), self.graph.dir())?;
        let opened = OpenedPart::late(&stored, part, self.mode)?;
        let version = opened.version;
        self.take_in(Arc::new(opened.live(self.reader)?), version)?;
        Ok(self.version())
    }

    /// Puts a partition in the list, and where puts are taken brings it and the others to the higher
    /// of their versions.
    pub(super) fn take_in(&self, opened: Arc<LivePart>, version: u32) -> Result<(), StoreError> {
        let alone = self.commits();
        let highest =
            version.max(self.open_parts().iter().map(|it| it.version()).max().unwrap_or(0));
        {
            let _gate = self.gate.write().unwrap_or_else(PoisonError::into_inner);
            self.replace(opened.part, Some(opened));
        }
        if self.mode == LiveMode::Write {
            self.check_writable()?;
            self.advance(&alone, highest)?;
        }
        self.note_version();
        Ok(())
    }

    /// Puts a partition in the list, or none in its place.
    pub(in crate::live) fn replace(&self, part: PartId, by: Option<Arc<LivePart>>) {
        let mut parts = self.parts.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed: Vec<Option<Arc<LivePart>>> = parts.to_vec();
        changed[part.index()] = by;
        *parts = Parts::from(changed);
    }
}
