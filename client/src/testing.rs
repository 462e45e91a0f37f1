//! A small graph in memory whose source counts its pulls, and can be slow or fail.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lodestore_graph::{NodeId, PartId, PartitionBook};
use lodestore_store::Dtype;

use crate::error::ClientError;
use crate::loader::BatchLoader;
use crate::source::memory::MemorySource;
use crate::source::{PullKind, PullStats, RowSource, TensorInfo, VersionTag};

/// Bytes of a row of the test graph.
pub(crate) const ROW_BYTES: usize = 4;

/// Three partitions of 10, 20 and 10 nodes; the row of node i is i, as u32.
pub(crate) struct TestSource {
    rows: MemorySource,
    /// Pause before every pull.
    pub(crate) delay: Duration,
    /// Pulls that still succeed.
    pub(crate) good_pulls: AtomicU64,
    /// The version that the source is pinned to.
    pub(crate) version: Option<VersionTag>,
    /// Ids and kind of each pull.
    pub(crate) pulls: Mutex<Vec<(Vec<NodeId>, PullKind)>>,
}

impl TestSource {
    pub(crate) fn new(delay: Duration, good_pulls: u64) -> Self {
        let book = PartitionBook::from_counts(&[10, 20, 10]).unwrap();
        let rows = (0..book.n_nodes()).flat_map(u32::to_le_bytes).collect();
        let mut source = MemorySource::new(book);
        source.add("x", Dtype::F32, 1, rows).unwrap();
        let (good_pulls, pulls) = (AtomicU64::new(good_pulls), Mutex::default());
        let version = source.pinned_version();
        Self { rows: source, delay, good_pulls, version, pulls }
    }

    /// Returns a source that is not pinned.
    pub(crate) fn unpinned() -> Arc<Self> {
        Arc::new(Self { version: None, ..Self::new(Duration::ZERO, u64::MAX) })
    }

    pub(crate) fn n_pulls(&self) -> usize {
        self.pulls.lock().unwrap().len()
    }
}

impl RowSource for TestSource {
    fn book(&self) -> &PartitionBook {
        self.rows.book()
    }

    fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError> {
        self.rows.tensor(name)
    }

    fn pinned_version(&self) -> Option<VersionTag> {
        self.version
    }

    fn pull_overlapped(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
        _work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        std::thread::sleep(self.delay);
        let less = |good: u64| good.checked_sub(1);
        if self.good_pulls.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err() {
            return Err(ClientError::Panicked { thread: "test source, out of good pulls:" });
        }
        self.pulls.lock().unwrap().push((ids.to_vec(), kind));
        self.rows.pull(tensor, ids, out, kind)
    }
}

/// Returns a loader whose worker owns partition 1, nodes 10 to 29.
pub(crate) fn loader(remote: &Arc<TestSource>) -> BatchLoader {
    let local = Arc::new(TestSource::new(Duration::ZERO, u64::MAX));
    BatchLoader::new(local, Arc::clone(remote) as _, "x", &[PartId(1)]).unwrap()
}

pub(crate) fn rows_of(nodes: &[NodeId]) -> Vec<u8> {
    nodes.iter().flat_map(|node| node.0.to_le_bytes()).collect()
}

pub(crate) fn nodes(ids: impl IntoIterator<Item = u32>) -> Vec<NodeId> {
    ids.into_iter().map(NodeId).collect()
}

/// Like [`loader`], with the worker's own rows in memory.
pub(crate) fn loader_in_memory() -> BatchLoader {
    let source = || TestSource::new(Duration::ZERO, u64::MAX);
    BatchLoader::new(Arc::new(source().rows), Arc::new(source()), "x", &[PartId(1)]).unwrap()
}
