//! Versions that a follower takes over while it serves.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use lodestore_store::{LiveGraph, Manifest};

use crate::holdings::Holdings;
use crate::shard::Inbox;
use crate::{Server, ServerError};

/// Longest wait until all shards read a version that was installed.
const SWITCH_MAX: Duration = Duration::from_secs(60);

/// Installs versions on a server that follows; from a thread of the caller's.
#[derive(Clone)]
pub struct Installer {
    holdings: Arc<Holdings>,
    inboxes: Arc<[Inbox]>,
}

impl Installer {
    pub(crate) fn new(holdings: &Arc<Holdings>, inboxes: &Arc<[Inbox]>) -> Self {
        Self { holdings: Arc::clone(holdings), inboxes: Arc::clone(inboxes) }
    }

    /// The graph that is served.
    #[must_use]
    pub fn live(&self) -> &LiveGraph {
        &self.holdings.live
    }

    /// The version of a partition that is served, if it is here.
    #[must_use]
    pub fn version(&self, part: lodestore_graph::PartId) -> Option<u32> {
        self.holdings.live.part_version(part)
    }

    /// Serves the version of a manifest, whose files are all here; returns whether that is new.
    ///
    /// # Errors
    /// What is wrong with the manifest or its files; the version before is served then.
    pub fn install(&self, manifest: &Manifest) -> Result<bool, ServerError> {
        // A reader that has just seen its number finds it.
        self.holdings.keep_newest();
        if !self.holdings.live.install(manifest)? {
            return Ok(false);
        }
        let seen = self.holdings.committed(Some(manifest.part()));
        let (done, all_done) = mpsc::channel();
        for inbox in &*self.inboxes {
            inbox.installed(manifest.part(), &done);
        }
        drop(done);
        let end = Instant::now() + SWITCH_MAX;
        for _ in 0..self.inboxes.len() {
            let left = end.saturating_duration_since(Instant::now());
            if all_done.recv_timeout(left).is_err() {
                // A shard that has ended, or has not switched: older rows may come from it.
                return Ok(true);
            }
        }
        self.holdings.note_served(&seen);
        self.holdings.live.graph().remove_strays(manifest)?;
        Ok(true)
    }
}

impl Server {
    /// Returns what installs versions on this server, which must follow another.
    #[must_use]
    pub fn installer(&self) -> Installer {
        Installer::new(&self.holdings, &self.inboxes)
    }
}
