//! A partition that has come, opened beside the others.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use lodestore_graph::PartId;

use super::super::open::OpenedPart;
use super::super::{LiveGraph, LiveMode, LivePart, Parts};
use crate::error::StoreError;

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
        let opened = OpenedPart::late(&self.graph, part, self.mode)?;
        let version = opened.version;
        let opened = Arc::new(opened.live(self.reader)?);
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        match self.mode {
            LiveMode::Write => self.level(&opened, version)?,
            LiveMode::Read => {
                let is_first = self.now().iter().flatten().next().is_none();
                let lowest = if is_first { version } else { version.min(self.version()) };
                self.version.store(lowest, Ordering::Release);
            }
        }
        self.replace(part, Some(opened));
        Ok(self.version())
    }

    /// Brings the partition and the others to one version; the gate must be held alone.
    pub(super) fn level(&self, opened: &LivePart, version: u32) -> Result<(), StoreError> {
        self.check_writable()?;
        let newest = self.version();
        if version > newest {
            self.check_unsealed()?;
            return self.roll_forward(version);
        }
        if version < newest {
            opened.catalog.set_version(newest)?;
            opened.tensors.iter().for_each(|tensor| tensor.freeze(newest.saturating_add(1)));
        }
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
