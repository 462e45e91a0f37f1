//! A graph that changes: puts, commits, pinned views and compaction over its partitions.
//!
//! A partition has a committed version V. Puts go to the pending version V + 1, as overlay rows in
//! the partition's catalog; a commit makes it the committed one and changes no row. Compaction
//! folds committed overlay rows into a segment of its own. Partitions are self-contained and share
//! no commit point, so a graph's version is the lowest of its partitions'; opening for writing
//! rolls the others forward.
//!
//! Partitions come and go while a graph is open: [`hand_over`] has how.
//!
//! Locks, in the order in which they are taken: `garbage` by a compaction for all of its time, so
//! that there is one; `gate`, shared by puts and exclusive for commits and for whatever changes
//! which partitions there are; that of the list of partitions and a tensor's own, for a moment.

mod base;
mod commit;
mod compact;
mod garbage;
mod hand_over;
mod health;
mod holders;
mod journal;
mod open;
mod parallel;
mod put;
mod tensor;
mod view;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use lodestore_graph::PartId;

pub use base::Base;
pub use hand_over::{PartCopy, SEAL_MAX};
pub use health::StoppedWrites;
pub use holders::Holders;
pub use tensor::LiveTensor;
pub use view::{TensorView, View};

pub(crate) use open::OpenedPart;
pub(crate) use tensor::Pinned;

use crate::catalog::{Catalog, Membership};
use crate::error::StoreError;
use crate::graph::Graph;
use crate::reader::ReaderKind;
use garbage::Garbage;
use hand_over::HandOver;
use parallel::for_each;

/// How a graph is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LiveMode {
    /// For reading: the state at this moment, whatever other processes put. No lock, no file
    /// written, read-only mounts work.
    #[default]
    Read,
    /// For reading and writing, by one process at a time.
    Write,
}

/// Open partitions of a graph with all of their tensors. Shared freely between threads.
#[derive(Debug)]
pub struct LiveGraph {
    graph: Graph,
    mode: LiveMode,
    /// The reader of every segment, those to come too.
    reader: ReaderKind,
    /// By partition; `None` for one that is not open. Replaced as a whole.
    parts: RwLock<Parts>,
    /// The lowest committed version of the partitions; that of all of them where puts are taken.
    version: AtomicU32,
    /// Puts share it over their writes; a commit has it alone, so that what it freezes stays.
    gate: RwLock<()>,
    /// The version of a commit that has failed in between; 0 for none. Set under the gate.
    unfinished_commit: AtomicU32,
    /// What compactions have left; locked by a compaction for all of its time.
    garbage: Mutex<Garbage>,
}

/// The open partitions of one moment.
type Parts = Arc<[Option<Arc<LivePart>>]>;

/// An open partition.
#[derive(Debug)]
struct LivePart {
    part: PartId,
    catalog: Arc<Catalog>,
    /// As in the graph's description.
    tensors: Vec<Arc<LiveTensor>>,
    hand_over: HandOver,
    /// How many servers are to hold it; changed under the gate, held alone.
    membership: Mutex<Membership>,
}

impl LiveGraph {
    /// The graph.
    #[must_use]
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The newest version that every open partition has committed.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Whether all rows of the tensor at `position` that were gathered of the latest before this
    /// call are of `version`: it is committed last, nothing was put since, and no commit is midway.
    #[must_use]
    pub fn is_still_at(&self, version: u32, position: usize) -> bool {
        let parts = self.now();
        let tensors = || parts.iter().flatten().filter_map(|part| part.tensors.get(position));
        // The version afterwards: a commit freezes rows first, and a compaction, which takes frozen
        // rows away, only begins when the version is told.
        !tensors().any(|tensor| tensor.has_later(version)) && self.version() == version
    }

    /// The oldest version that can be read: that of the newest segment.
    #[must_use]
    pub fn oldest_version(&self) -> u32 {
        let versions =
            |part: &Arc<LivePart>| part.tensors.iter().map(|it| it.base().version()).max();
        self.open_parts().iter().filter_map(versions).max().unwrap_or(0)
    }

    /// The tensor at `position` of the graph's description in a partition, if it is open here.
    #[must_use]
    pub fn tensor(&self, part: PartId, position: usize) -> Option<Arc<LiveTensor>> {
        self.now().get(part.index())?.as_ref()?.tensors.get(position).cloned()
    }

    /// A view of the tensor at `position` of the graph's description in a partition; `None` for a
    /// partition that is not open here.
    ///
    /// Fails with [`StoreError::NoVersion`] for a version before the segment's or after the
    /// graph's.
    pub fn view(
        &self,
        part: PartId,
        position: usize,
        view: View,
    ) -> Result<Option<TensorView>, StoreError> {
        let Some(tensor) = self.tensor(part, position) else { return Ok(None) };
        let View::At(asked) = view else { return Ok(Some(TensorView::latest(tensor))) };
        // The version first: rows of a commit in between may be missing from what is taken after.
        let newest = self.version();
        let pinned = self.pin(&tensor, asked, newest)?;
        Ok(Some(TensorView::pinned(tensor, pinned)))
    }

    /// What `tensor` has of the version `asked`; `newest` was the graph's version before.
    fn pin(&self, tensor: &LiveTensor, asked: u32, newest: u32) -> Result<Pinned, StoreError> {
        let pinned = tensor.committed(asked);
        if asked < pinned.base.version() || asked > newest {
            return Err(StoreError::NoVersion { asked, oldest: self.oldest_version(), newest });
        }
        Ok(pinned)
    }

    /// The partitions that are open here.
    pub fn parts(&self) -> impl Iterator<Item = PartId> + use<> {
        self.open_parts().into_iter().map(|part| part.part)
    }

    /// The partitions of this moment.
    fn now(&self) -> Parts {
        Arc::clone(&self.parts.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Each of them, without what would keep one that goes from being closed.
    fn open_parts(&self) -> Vec<Arc<LivePart>> {
        self.now().iter().flatten().cloned().collect()
    }

    /// Partitions that are open, for messages.
    pub(crate) fn opened(&self) -> String {
        let parts: Vec<String> = self.parts().map(|part| part.to_string()).collect();
        parts.join(", ")
    }
}

impl Drop for LiveGraph {
    /// Moves what was put from logs into tables, which are checked for damage block by block, and
    /// which the next reader need not replay. Nothing depends on it: it was durable before.
    fn drop(&mut self) {
        if self.check_writable().is_err() {
            return;
        }
        let mut parts = self.open_parts();
        parts.retain(|part| part.catalog.write_failure().is_none());
        for flushed in for_each(&**self.graph.device(), &parts, |part| part.catalog.flush()) {
            if let Err(error) = flushed {
                tracing::warn!("{error}; what was put stays in the log");
            }
        }
    }
}

#[cfg(test)]
mod tests;
