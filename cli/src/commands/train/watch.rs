//! Watches the servers of a run: keeps its version there, and tells of later ones.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use anyhow::Result;
use lodestore_client::source::VersionTag;
use lodestore_client::{Client, ClientError, PullKind, RowSource};
use lodestore_graph::NodeId;
use tracing::{debug, warn};

/// Time between two looks for later versions.
const LOOK: Duration = Duration::from_secs(5);
/// Time between two pulls that keep the version. Servers keep it for 10 minutes.
const KEEP: Duration = Duration::from_mins(1);

/// A thread that watches the servers; it ends soon after this is dropped, whatever servers do.
pub(super) struct VersionWatch {
    _end: Sender<()>,
}

struct Watched {
    client: Arc<Client>,
    tensor: String,
    version: VersionTag,
    /// The newest version that was told of.
    told: u32,
}

impl VersionWatch {
    /// Starts to watch servers that `client` has pinned; `None` for a client that follows commits.
    pub(super) fn start(client: &Arc<Client>, tensor: &str) -> Result<Option<Self>> {
        let Some(version) = client.pinned_version() else { return Ok(None) };
        let (end, ended) = channel();
        let mut watched = Watched {
            client: Arc::clone(client),
            tensor: tensor.to_owned(),
            version,
            told: version.number,
        };
        Builder::new().name("versions".to_owned()).spawn(move || {
            let mut kept = Instant::now();
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                watched.look();
                if kept.elapsed() >= KEEP {
                    kept = Instant::now();
                    watched.keep();
                }
            }
        })?;
        Ok(Some(Self { _end: end }))
    }
}

impl Watched {
    /// Warns of a version that servers have committed since the last look.
    fn look(&mut self) {
        match self.client.stats() {
            Ok(stats) => {
                let newest = stats.iter().map(|(_, stats)| stats.updates.version).max();
                if let Some(newest) = newest.filter(|&newest| newest > self.told) {
                    self.told = newest;
                    warn!(
                        "servers have committed version {newest}; this run keeps to version {}",
                        self.version
                    );
                }
            }
            // The run's own pulls meet with what is wrong.
            Err(error) => debug!(%error, "servers do not tell their versions"),
        }
    }

    /// Pulls a row of each partition, so that servers keep the version while no batch needs any.
    fn keep(&self) {
        if let Err(error) = self.pull_some() {
            debug!(%error, "a pull that keeps version {} failed", self.version);
        }
    }

    fn pull_some(&self) -> Result<(), ClientError> {
        let book = self.client.book();
        let ranges = book.parts().map(|part| book.range(part));
        let first = ranges.filter(|range| !range.is_empty()).map(|range| NodeId(range.start));
        let ids: Vec<NodeId> = first.collect();
        let mut rows = vec![0; ids.len() * self.client.tensor(&self.tensor)?.info().row_bytes()];
        self.client.pull(&self.tensor, &ids, &mut rows, PullKind::Vector).map(drop)
    }
}
