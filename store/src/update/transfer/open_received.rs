//! A partition that has come, opened beside the others.

use std::sync::{Arc, PoisonError};

use lodestore_graph::PartId;

use super::super::open::OpenedPart;
use super::super::{GraphHandle, OpenMode, PartHandle, Parts};
use crate::error::StoreError;
use crate::graph::Graph;

impl GraphHandle {
    /// Opens a partition whose folder has come since; returns the graph's version. Nothing happens
    /// if it is open.
    ///
    /// Where puts are accepted, the partition and the others are brought to the higher of their
    /// versions, as if they had been opened together. Pending rows of those behind were put before
    /// that commit was acknowledged.
    pub fn open_received(&self, part: PartId) -> Result<u32, StoreError> {
        self.graph.check_part(part)?;
        if self.now()[part.index()].is_some() {
            return Ok(self.version());
        }
        let stored = self.check_receivable(part)?;
        let opened = OpenedPart::open_in(&stored, part, self.mode)?;
        let version = opened.version;
        self.take_in(Arc::new(opened.live(self.reader)?), version)?;
        Ok(self.version())
    }

    /// Returns the graph as it is stored. Fails with [`StoreError::MoveRefused`] where its tensors
    /// are not those that are open here, in their order: readers name tensors by position.
    ///
    /// Tensors may have been added since the graph was opened.
    pub fn check_receivable(&self, part: PartId) -> Result<Graph, StoreError> {
        let stored = Graph::open_on(Arc::clone(self.graph.device()), self.graph.dir())?;
        let is_dropped = |it: &Arc<PartHandle>| it.tensors.iter().any(|tensor| tensor.is_dropped());
        let known = &self.graph.meta().tensors;
        if stored.meta().tensors.starts_with(known) && !self.open_parts().iter().any(is_dropped) {
            return Ok(stored);
        }
        let reason = "a tensor was dropped since the graph was opened; open it again first";
        Err(StoreError::MoveRefused { part, reason: reason.to_owned() })
    }

    /// Puts a partition in the list, and where puts are taken brings it and the others to the
    /// higher of their versions.
    pub(super) fn take_in(&self, opened: Arc<PartHandle>, version: u32) -> Result<(), StoreError> {
        let alone = self.commits();
        let highest =
            version.max(self.open_parts().iter().map(|it| it.version()).max().unwrap_or(0));
        {
            let _gate = self.gate.write().unwrap_or_else(PoisonError::into_inner);
            self.replace(opened.part, Some(opened));
        }
        if self.mode == OpenMode::Write {
            self.check_writable()?;
            self.advance(&alone, highest)?;
        }
        self.note_version();
        Ok(())
    }

    /// Puts a partition in the list, or none in its place.
    pub(in crate::update) fn replace(&self, part: PartId, by: Option<Arc<PartHandle>>) {
        let mut parts = self.parts.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed: Vec<Option<Arc<PartHandle>>> = parts.to_vec();
        changed[part.index()] = by;
        *parts = Parts::from(changed);
    }
}
