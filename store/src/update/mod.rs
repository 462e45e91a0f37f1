//! A mutable graph: puts, commits, pinned views and compaction over its partitions.
//!
//! A partition has a committed version V, which is a list of immutable files per tensor. Puts go to
//! the pending version V + 1, as rows in the partition's catalog that no reader sees. A commit
//! writes these rows into a file of their own, a delta, and publishes it. Compaction folds files.
//! Partitions are self-contained and share no commit point, so a graph's version is the lowest of
//! its partitions' versions. Opening for writing rolls the others forward.
//!
//! Partitions can be added and released while a graph is open, see `transfer`.
//!
//! Locks, in the order in which they are acquired:
//!
//! 1. `compactions`: held during a whole compaction, so that one runs at a time.
//! 2. `garbage`: held briefly.
//! 3. `commits`: held during a whole commit.
//! 4. `gate`: shared by puts; exclusive and brief for commits and for changes of the set of
//!    partitions.
//! 5. The lock of the list of partitions, and a tensor's own: held briefly.

mod commit;
mod compact;
mod delta;
mod follow;
mod garbage;
mod health;
mod history;
mod keep;
mod later;
mod open;
mod parallel;
mod put;
mod tensor;
mod tensors;
mod transfer;
mod version;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use lodestore_graph::PartId;
use lodestore_graph::fork::Generation;
use lodestore_graph::lock::IgnorePoison;

pub use health::StoppedWrites;
pub use keep::KeepRule;
pub use tensor::TensorHandle;
pub use tensors::{NewTensor, drop_tensor};
pub use transfer::{PartCopy, PartFiles, SEAL_MAX};
pub(crate) use version::GatherScratch;
pub use version::{GraphVersion, Layer, LayerRows, TensorVersion, TensorView, View};

pub(crate) use garbage::remove_unpinned;
pub(crate) use later::holds_only_pending;
pub(crate) use open::{OpenedPart, OpenedTensor};

use crate::catalog::Catalog;
use crate::error::StoreError;
use crate::graph::Graph;
use crate::growing::Growing;
pub use crate::layers::{Folding, Kept, next_cut};
use crate::reader::ReaderKind;
use crate::tensor::TensorSpec;
use crate::version_id::VersionId;
use commit::CommitTurn;
use garbage::Garbage;
use history::RecentCommits;
use parallel::for_each;
use transfer::TransferState;

/// How a graph is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OpenMode {
    /// For reading the state at this moment, unaffected by later puts of other processes. Takes no
    /// lock and writes no file, so read-only mounts work.
    #[default]
    Read,
    /// For reading and writing, by one process at a time.
    Write,
    /// For reading, and for installing versions of the followed writer, by one process at a time.
    Follow,
}

/// The open partitions of a graph with all their tensors. Shared freely between threads.
#[derive(Debug)]
pub struct GraphHandle {
    graph: Graph,
    mode: OpenMode,
    /// The process that opened the graph.
    process: Generation,
    /// The reader of all segments, later ones included.
    reader: ReaderKind,
    /// By partition; `None` for a partition that is not open. Replaced as a whole.
    parts: RwLock<Parts>,
    /// The lowest committed version of the partitions. On a writer it is the version of all of
    /// them.
    version: AtomicU32,
    /// Shared by puts during their writes; exclusive for a commit that advances the version of
    /// puts.
    gate: RwLock<()>,
    /// Held during a whole commit.
    commits: Mutex<CommitTurn>,
    /// Held during a whole compaction.
    compactions: Mutex<()>,
    /// Files that compactions have replaced.
    garbage: Mutex<Garbage>,
    /// Which versions compactions keep readable.
    keep_rule: RwLock<KeepRule>,
    /// Names of tensors that are being written.
    coming: Mutex<BTreeSet<String>>,
    /// Compactions keep the next cut after this version readable; none if [`u32::MAX`].
    cut_after: AtomicU32,
}

/// The open partitions at one moment.
type Parts = Arc<[Option<Arc<PartHandle>>]>;

#[derive(Debug)]
struct PartHandle {
    part: PartId,
    catalog: Arc<Catalog>,
    /// In the order of the graph's description at the open, followed by tensors added since. A
    /// dropped tensor keeps its position.
    tensors: Growing<Arc<TensorHandle>>,
    /// Number of the committed version.
    version: AtomicU32,
    /// The last commits, ending with that of the committed version.
    commits: Mutex<RecentCommits>,
    /// The version at which the partition was added to the folder; 0 if it was created there.
    joined_at: AtomicU32,
    /// The version that new puts are for; changed only with exclusive `gate`.
    puts_for: AtomicU32,
    transfer: TransferState,
}

impl GraphHandle {
    /// Returns the graph whose partitions are open.
    #[must_use]
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the newest version that every open partition has committed.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the committed version of a partition, if it is open.
    #[must_use]
    pub fn part_version(&self, part: PartId) -> Option<u32> {
        Some(self.now().get(part.index())?.as_ref()?.version())
    }

    /// Returns the committed version of each open partition.
    #[must_use]
    pub fn part_versions(&self) -> Vec<(PartId, u32)> {
        let parts = self.parts.read().ignore_poison();
        parts.iter().flatten().map(|part| (part.part, part.version())).collect()
    }

    /// Returns the newest version that every open partition has committed, with its commit, which
    /// is unknown if the partitions have none in common.
    pub fn version_id(&self) -> Result<VersionId, StoreError> {
        let number = self.version();
        let commit = self.common_commit(number);
        Ok(VersionId::new(number, commit?))
    }

    /// Returns the newest version with pending or prepared rows; the committed version if there are
    /// none.
    #[must_use]
    pub fn pending_version(&self) -> u32 {
        let newest = self.open_parts().iter().filter_map(|part| part.newest_pending()).max();
        newest.unwrap_or(0).max(self.version())
    }

    /// Returns the oldest version that is readable for every tensor.
    #[must_use]
    pub fn oldest_version(&self) -> u32 {
        let versions =
            |part: &Arc<PartHandle>| part.listed().map(|it| it.current().base().version()).max();
        self.open_parts().iter().filter_map(versions).max().unwrap_or(0)
    }

    /// Returns the tensor at `position` of the graph's description in a partition, if it is open.
    #[must_use]
    pub fn tensor(&self, part: PartId, position: usize) -> Option<Arc<TensorHandle>> {
        self.now().get(part.index())?.as_ref()?.tensors.get(position).cloned()
    }

    /// Returns the position of the tensor `name` in each open partition.
    pub(crate) fn tensor_position(&self, name: &str) -> Result<usize, StoreError> {
        let Some(part) = self.open_parts().into_iter().next() else {
            return self.graph.tensor_position(name);
        };
        let is_it = |it: &Arc<TensorHandle>| it.spec().name == name && !it.is_dropped();
        part.tensors.iter().position(is_it).ok_or_else(|| {
            let known: Vec<&str> = part.listed().map(|it| it.spec().name.as_str()).collect();
            StoreError::NoTensor { tensor: name.to_owned(), known: known.join(", ") }
        })
    }

    /// Returns the description of the tensor `name`.
    pub(crate) fn spec(&self, name: &str) -> Result<TensorSpec, StoreError> {
        let position = self.tensor_position(name)?;
        let first = self.open_parts().into_iter().next();
        let spec = first.map(|part| part.tensors[position].spec().clone());
        spec.map_or_else(|| self.graph.tensor(name).cloned(), Ok)
    }

    /// Returns the position and description of each tensor.
    pub(crate) fn specs(&self) -> Vec<(usize, TensorSpec)> {
        let Some(part) = self.open_parts().into_iter().next() else {
            return self.graph.meta().tensors.iter().cloned().enumerate().collect();
        };
        let all = part.tensors.iter().enumerate().filter(|(_, tensor)| !tensor.is_dropped());
        all.map(|(position, tensor)| (position, tensor.spec().clone())).collect()
    }

    /// Returns a view of the tensor at `position` of the graph's description in a partition; `None`
    /// if the partition is not open.
    ///
    /// Fails with [`StoreError::NoVersion`] for a version that is not committed, or whose layers
    /// were folded into later ones.
    pub fn view(
        &self,
        part: PartId,
        position: usize,
        view: View,
    ) -> Result<Option<TensorView>, StoreError> {
        self.check_process()?;
        let Some(tensor) = self.tensor(part, position) else { return Ok(None) };
        let View::At(asked) = view else { return Ok(Some(TensorView::Latest(tensor))) };
        match tensor.at(asked) {
            Some(version) => Ok(Some(TensorView::At(version))),
            None => Err(self.no_version(asked)),
        }
    }

    fn no_version(&self, asked: u32) -> StoreError {
        let (oldest, newest) = (self.oldest_version(), self.version());
        StoreError::NoVersion { asked, oldest, newest }
    }

    /// Returns the open partitions.
    pub fn parts(&self) -> impl Iterator<Item = PartId> + use<> {
        self.open_parts().into_iter().map(|part| part.part)
    }

    /// Returns the current list of partitions.
    fn now(&self) -> Parts {
        Arc::clone(&self.parts.read().ignore_poison())
    }

    /// Returns the open partitions, without holding the list, which would block a release.
    fn open_parts(&self) -> Vec<Arc<PartHandle>> {
        self.now().iter().flatten().cloned().collect()
    }

    fn open_part(&self, part: PartId) -> Result<Arc<PartHandle>, StoreError> {
        let open = self.now().get(part.index()).cloned().flatten();
        open.ok_or_else(|| StoreError::NoPart { part, opened: self.opened() })
    }

    /// Lists the open partitions, for messages.
    pub(crate) fn opened(&self) -> String {
        let parts: Vec<String> = self.parts().map(|part| part.to_string()).collect();
        parts.join(", ")
    }

    /// Fails in a forked child of the process that opened the graph for writing, without waiting
    /// for a lock.
    ///
    /// The child has a copy of the writer's memory, which the parent's next put makes stale, and
    /// the parent's threads may have held locks at the fork. A graph that is open for reading also
    /// works in the child: its files do not change, and its catalog reopens by itself.
    pub(crate) fn check_process(&self) -> Result<(), StoreError> {
        if self.mode == OpenMode::Read || self.process.is_current() {
            return Ok(());
        }
        Err(StoreError::Forked { dir: self.graph.dir().to_owned() })
    }
}

impl PartHandle {
    /// Returns the number of the committed version.
    fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Sets the committed version.
    fn set_version(&self, version: VersionId) {
        self.commits.lock().ignore_poison().push(version);
        self.version.store(version.number, Ordering::Release);
    }

    /// Returns the tensors of the graph in the order of its description, without dropped ones.
    fn listed(&self) -> impl Iterator<Item = &Arc<TensorHandle>> {
        self.tensors.iter().filter(|tensor| !tensor.is_dropped())
    }

    /// Returns the newest version with pending or prepared rows.
    fn newest_pending(&self) -> Option<u32> {
        let prepared = |tensor: &TensorHandle| tensor.prepared().map(|delta| delta.version());
        let versions = |tensor: &Arc<TensorHandle>| tensor.newest_pending().max(prepared(tensor));
        self.tensors.iter().filter_map(versions).max()
    }
}

impl Drop for GraphHandle {
    /// Flushes puts from logs into tables, which have checksums per block and which the next reader
    /// need not replay. Nothing depends on this, because the puts are already durable.
    fn drop(&mut self) {
        if self.check_writable().is_err() {
            return;
        }
        let mut parts = self.open_parts();
        parts.retain(|part| part.catalog.write_failure().is_none());
        for flushed in for_each(&**self.graph.file_system(), &parts, |part| part.catalog.flush()) {
            if let Err(error) = flushed {
                tracing::warn!("{error}; pending rows stay in the log");
            }
        }
    }
}

#[cfg(test)]
mod tests;
