//! A graph that changes: puts, commits, pinned views and compaction over its partitions.
//!
//! A partition has a committed version V, which is a list of immutable files for each tensor. Puts
//! go to the pending version V + 1, as rows in the partition's catalog that no reader sees. A
//! commit writes them into a file of their own, a delta, and makes it visible. Compaction folds
//! files. Partitions are self-contained and share no commit point, so a graph's version is the
//! lowest of its partitions'; opening for writing rolls the others forward.
//!
//! Partitions come and go while a graph is open: `transfer` has how.
//!
//! Locks, in the order in which they are taken:
//!
//! 1. `compactions`: by a compaction for all of its time, so that there is one.
//! 2. `garbage`: for a moment.
//! 3. `commits`: by a commit for all of its time.
//! 4. `gate`: shared by puts; exclusive for a moment by commits and by changes of the set of
//!    partitions.
//! 5. The lock of the list of partitions, and a tensor's own: for a moment.

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
    /// For reading: the state at this moment, whatever other processes put. No lock, no file
    /// written, read-only mounts work.
    #[default]
    Read,
    /// For reading and writing, by one process at a time.
    Write,
    /// For reading, and for installing versions of the writer that the folder follows, by one
    /// process at a time.
    Follow,
}

/// Open partitions of a graph with all of their tensors. Shared freely between threads.
#[derive(Debug)]
pub struct GraphHandle {
    graph: Graph,
    mode: OpenMode,
    /// The process that has opened it.
    process: Generation,
    /// The reader of every segment, those to come too.
    reader: ReaderKind,
    /// By partition; `None` for one that is not open. Replaced as a whole.
    parts: RwLock<Parts>,
    /// The lowest committed version of the partitions; that of all of them where puts are taken.
    version: AtomicU32,
    /// Puts share it over their writes; a commit takes it alone to say which version puts are for.
    gate: RwLock<()>,
    /// Held by a commit for all of its time.
    commits: Mutex<CommitTurn>,
    /// Held by a compaction for all of its time.
    compactions: Mutex<()>,
    /// Files that compactions have left.
    garbage: Mutex<Garbage>,
    /// Which versions folds keep readable.
    keep_rule: RwLock<KeepRule>,
    /// Names of tensors that are being written.
    coming: Mutex<BTreeSet<String>>,
    /// Folds leave the next cut after this version readable; none if [`u32::MAX`].
    cut_after: AtomicU32,
}

/// The open partitions of one moment.
type Parts = Arc<[Option<Arc<PartHandle>>]>;

/// An open partition.
#[derive(Debug)]
struct PartHandle {
    part: PartId,
    catalog: Arc<Catalog>,
    /// As in the graph's description when it was opened, and then those that came since; one that
    /// was dropped keeps its place.
    tensors: Growing<Arc<TensorHandle>>,
    /// The number of the committed version.
    version: AtomicU32,
    /// The last commits, the committed version's at the end.
    commits: Mutex<RecentCommits>,
    /// The version at which it came into the folder; 0 where it was made there.
    joined_at: AtomicU32,
    /// The version that puts are for; changed under the gate, held alone.
    puts_for: AtomicU32,
    transfer: TransferState,
}

impl GraphHandle {
    /// Returns the graph.
    #[must_use]
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the newest version that every open partition has committed.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the committed version of a partition, if it is open here.
    #[must_use]
    pub fn part_version(&self, part: PartId) -> Option<u32> {
        Some(self.now().get(part.index())?.as_ref()?.version())
    }

    /// Returns the committed version of each partition that is open.
    #[must_use]
    pub fn part_versions(&self) -> Vec<(PartId, u32)> {
        let parts = self.parts.read().ignore_poison();
        parts.iter().flatten().map(|part| (part.part, part.version())).collect()
    }

    /// Returns the newest version that every open partition has committed, with its commit: unknown
    /// where the partitions do not have one in common.
    pub fn version_id(&self) -> Result<VersionId, StoreError> {
        let number = self.version();
        let commit = self.common_commit(number);
        Ok(VersionId::new(number, commit?))
    }

    /// Returns the newest version that rows are pending or prepared for; that of the graph without
    /// any.
    #[must_use]
    pub fn pending_version(&self) -> u32 {
        let newest = self.open_parts().iter().filter_map(|part| part.newest_pending()).max();
        newest.unwrap_or(0).max(self.version())
    }

    /// Returns the oldest version that can be read of every tensor.
    #[must_use]
    pub fn oldest_version(&self) -> u32 {
        let versions =
            |part: &Arc<PartHandle>| part.listed().map(|it| it.current().base().version()).max();
        self.open_parts().iter().filter_map(versions).max().unwrap_or(0)
    }

    /// Returns the tensor at `position` of the graph's description in a partition, if it is open
    /// here.
    #[must_use]
    pub fn tensor(&self, part: PartId, position: usize) -> Option<Arc<TensorHandle>> {
        self.now().get(part.index())?.as_ref()?.tensors.get(position).cloned()
    }

    /// Returns the position among the tensors of each open partition of the one that is called
    /// `name` now.
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

    /// Returns the tensor that is called `name` now.
    pub(crate) fn spec(&self, name: &str) -> Result<TensorSpec, StoreError> {
        let position = self.tensor_position(name)?;
        let first = self.open_parts().into_iter().next();
        let spec = first.map(|part| part.tensors[position].spec().clone());
        spec.map_or_else(|| self.graph.tensor(name).cloned(), Ok)
    }

    /// Positions of the tensors that the graph has now, with what they are.
    pub(crate) fn specs(&self) -> Vec<(usize, TensorSpec)> {
        let Some(part) = self.open_parts().into_iter().next() else {
            return self.graph.meta().tensors.iter().cloned().enumerate().collect();
        };
        let all = part.tensors.iter().enumerate().filter(|(_, tensor)| !tensor.is_dropped());
        all.map(|(position, tensor)| (position, tensor.spec().clone())).collect()
    }

    /// Returns a view of the tensor at `position` of the graph's description in a partition; `None`
    /// for a partition that is not open here.
    ///
    /// Fails with [`StoreError::NoVersion`] for a version that is not committed, and for one whose
    /// layers were folded into later ones.
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

    /// Returns the partitions that are open here.
    pub fn parts(&self) -> impl Iterator<Item = PartId> + use<> {
        self.open_parts().into_iter().map(|part| part.part)
    }

    /// Returns the partitions of this moment.
    fn now(&self) -> Parts {
        Arc::clone(&self.parts.read().ignore_poison())
    }

    /// Returns each of them, without what would keep one that goes from being closed.
    fn open_parts(&self) -> Vec<Arc<PartHandle>> {
        self.now().iter().flatten().cloned().collect()
    }

    /// Returns an open partition.
    fn open_part(&self, part: PartId) -> Result<Arc<PartHandle>, StoreError> {
        let open = self.now().get(part.index()).cloned().flatten();
        open.ok_or_else(|| StoreError::NoPart { part, opened: self.opened() })
    }

    /// Names the partitions that are open, for messages.
    pub(crate) fn opened(&self) -> String {
        let parts: Vec<String> = self.parts().map(|part| part.to_string()).collect();
        parts.join(", ")
    }

    /// Fails in a child of the process that opened the graph for writing; waits for no lock.
    ///
    /// The child has a copy of what the writer holds in memory. The parent's next put makes it
    /// stale, and the parent's threads may have held its locks. A graph that is open for reading
    /// serves the child too: its files do not change, and its catalog opens again by itself.
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

    /// Makes `version` the committed one.
    fn set_version(&self, version: VersionId) {
        self.commits.lock().ignore_poison().push(version);
        self.version.store(version.number, Ordering::Release);
    }

    /// Returns the tensors that the graph has, in the order of its description.
    fn listed(&self) -> impl Iterator<Item = &Arc<TensorHandle>> {
        self.tensors.iter().filter(|tensor| !tensor.is_dropped())
    }

    /// Returns the newest version that rows are pending or prepared for.
    fn newest_pending(&self) -> Option<u32> {
        let prepared = |tensor: &TensorHandle| tensor.prepared().map(|delta| delta.version());
        let versions = |tensor: &Arc<TensorHandle>| tensor.newest_pending().max(prepared(tensor));
        self.tensors.iter().filter_map(versions).max()
    }
}

impl Drop for GraphHandle {
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
