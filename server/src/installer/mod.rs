//! Versions that a follower installs while it serves, and publications of a writer.

use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use lodestore_graph::PartId;
use lodestore_store::GraphHandle;
use lodestore_store::follow::Manifest;

use crate::error::ServerError;
pub use crate::following::{FollowFault, FollowedPart, Lag};
use crate::mailbox::{Event, Mailbox};
use crate::partitions::Partitions;
use crate::server::Server;

/// Timeout for all shards to switch to an installed version.
const SWITCH_MAX: Duration = Duration::from_secs(60);

/// Remedy for a fenced partition.
const ADVICE: &str = "stop this server; pull the published versions into a new folder";
/// Remedy for partitions whose writes are paused.
pub(crate) const ADVICE_PAUSED: &str = "puts resume by themselves once publishing does";

/// Installs versions on a following server, called on a thread of the embedding program.
#[derive(Clone)]
pub struct Installer {
    partitions: Arc<Partitions>,
    mailboxes: Arc<[Mailbox]>,
}

impl Installer {
    /// Returns the served graph.
    #[must_use]
    pub fn live(&self) -> &GraphHandle {
        &self.partitions.live
    }

    /// Returns the number of this run of the server, as its description has it.
    #[must_use]
    pub fn instance(&self) -> u64 {
        self.partitions.instance()
    }

    /// Returns the version of a partition that all shards serve; `None` if the partition is not
    /// here.
    #[must_use]
    pub fn version(&self, part: PartId) -> Option<u32> {
        let is_here = self.partitions.live.part_version(part).is_some();
        is_here.then(|| self.partitions.served_version(part))
    }

    /// Begins to follow partitions of `source`, the address of a writer or the URL of a bucket,
    /// which is polled at this interval.
    pub fn follow(&self, parts: &[PartId], source: &str, interval: Duration) {
        self.partitions.following.begin(parts, source, interval, Instant::now());
    }

    /// Records a successful poll of a partition's source, with the newest version there.
    pub fn looked(&self, part: PartId, source: &str, newest: u32) {
        let served = self.partitions.served_version(part);
        self.partitions.following.looked(part, source, newest, served, Instant::now());
    }

    /// Records that a poll of a partition has ended and the newest version is served.
    pub fn followed(&self, part: PartId) {
        let served = self.partitions.served_version(part);
        self.partitions.following.ended(part, None, served, Instant::now());
    }

    /// Records why a partition cannot be fetched, and whether that needs an operator.
    pub fn failed(&self, part: PartId, reason: &str, is_refused: bool) {
        let served = self.partitions.served_version(part);
        let failure = Some((reason.to_owned(), is_refused));
        self.partitions.following.ended(part, failure, served, Instant::now());
    }

    /// Returns the progress of each followed partition.
    #[must_use]
    pub fn followed_parts(&self) -> Vec<FollowedPart> {
        self.partitions.followed()
    }

    /// Installs the version of a manifest, whose files are all here; returns whether it is new.
    ///
    /// # Errors
    /// Errors of the manifest or its files; the server continues with the previous version.
    /// [`ServerError::NotSwitched`] if a shard did not switch: install the manifest again.
    pub fn install(&self, manifest: &Manifest) -> Result<bool, ServerError> {
        // A reader that has just read its number can still pin it.
        self.partitions.keep_newest();
        let (part, version) = (manifest.part(), manifest.version());
        let is_new = self.partitions.live.install(manifest)?;
        let is_new = is_new || self.partitions.served_version(part) < version;
        if is_new {
            let switched = self.switch(part);
            switched.map_err(|reason| ServerError::NotSwitched { part, version, reason })?;
        }
        // Also if nothing is new: files that readers held until a restart.
        self.partitions.live.graph().remove_strays(manifest)?;
        Ok(is_new)
    }

    /// Serves a partition whose folder has arrived since the start; returns its version.
    ///
    /// # Errors
    /// [`ServerError::NotAdopted`]: adopt it again.
    pub fn adopt(&self, part: PartId) -> Result<u32, ServerError> {
        let not_adopted = |reason: String| ServerError::NotAdopted { part, reason };
        let (done, adopted) = mpsc::channel();
        self.mailboxes[0].send(|| Event::Adopt(part, done.clone()));
        drop(done);
        let adopted = adopted.recv_timeout(SWITCH_MAX);
        let adopted = adopted.map_err(|error| not_adopted(why_silent(error)))?;
        adopted.map_err(|refusal| not_adopted(refusal.message))
    }

    /// Switches all shards to the installed version of a partition, or returns why one did not.
    fn switch(&self, part: PartId) -> Result<(), String> {
        let seen = self.partitions.seen(Some(part));
        let (done, all_done) = mpsc::channel();
        for mailbox in &*self.mailboxes {
            mailbox.send(|| Event::Installed(part, done.clone()));
        }
        drop(done);
        let end = Instant::now() + SWITCH_MAX;
        for _ in 0..self.mailboxes.len() {
            let left = end.saturating_duration_since(Instant::now());
            let switched = all_done.recv_timeout(left).map_err(why_silent)?;
            switched.map_err(|refusal| refusal.message)?;
        }
        self.partitions.note_served(seen);
        Ok(())
    }
}

fn why_silent(error: RecvTimeoutError) -> String {
    match error {
        RecvTimeoutError::Timeout => format!("shard has not responded for {SWITCH_MAX:?}"),
        RecvTimeoutError::Disconnected => "shard has ended, or its mailbox is full".to_owned(),
    }
}

/// The server's side of publications, called on a thread of the embedding program. See
/// [`ServerConfig::publishes`](crate::config::ServerConfig::publishes).
#[derive(Clone)]
pub struct Publishing {
    partitions: Arc<Partitions>,
}

impl Publishing {
    /// Returns the served graph.
    #[must_use]
    pub fn live(&self) -> &GraphHandle {
        &self.partitions.live
    }

    /// Records the newest published version of a partition, for `stat` and metrics.
    pub fn note(&self, part: PartId, version: u32) {
        self.partitions.note_published(part, version);
    }

    /// Rejects puts and commits of a partition from now on, for this reason: another writer has
    /// taken it over. Both histories are the same up to version `common`.
    ///
    /// Reads continue at version `common`, or if that is unknown at the last published version.
    /// Clients read later versions from the other writer. Blocks.
    pub fn fence(&self, part: PartId, reason: String, common: Option<u32>) {
        self.partitions.live.stop_writes(part, reason, ADVICE);
        let published = self.partitions.published_versions().unwrap_or_default();
        let published = published.into_iter().find(|(it, _)| *it == part);
        let published = published.map(|(_, version)| version).filter(|&version| version > 0);
        // If nothing was published, no common history is known; commits distinguish the histories.
        let last = common.or(published).unwrap_or_else(|| self.partitions.served_version(part));
        self.partitions.fence(part, last);
    }

    /// Returns the last common version of a fenced partition; `None` for any other.
    #[must_use]
    pub fn fenced(&self, part: PartId) -> Option<u32> {
        self.partitions.fenced(part)
    }

    /// Rejects puts and commits of all partitions for this reason until [`Publishing::resume`].
    /// Reads continue.
    pub fn pause(&self, reason: &str) {
        self.partitions.pause(reason);
    }

    /// Accepts puts and commits again after a pause.
    pub fn resume(&self) {
        let live = &self.partitions.live;
        live.parts().for_each(|part| live.pause_writes(part, None));
    }
}

impl Server {
    /// Returns the installer of this server, which must be a follower.
    #[must_use]
    pub fn installer(&self) -> Installer {
        let (partitions, mailboxes) =
            (Arc::clone(&self.plan.partitions), Arc::clone(&self.mailboxes));
        Installer { partitions, mailboxes }
    }

    /// Returns the server's side of publications.
    #[must_use]
    pub fn publishing(&self) -> Publishing {
        Publishing { partitions: Arc::clone(&self.plan.partitions) }
    }
}

#[cfg(test)]
mod tests;
