//! `lode serve --follow URL`: the folder follows what is published in a bucket.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use lodestore_bucket::{Bucket, BucketError, BucketFollower};
use lodestore_graph::PartId;
use lodestore_server::ServerError;
use lodestore_server::installer::Installer;
use lodestore_store::StoreError;

use super::follow_log::FollowLog;
use crate::human::joined;

/// Pause after a partition that could not be brought.
const PAUSE: Duration = Duration::from_secs(5);

/// A bucket that is followed.
pub(super) struct BucketFollowing {
    /// Brings partitions.
    arrivals: BucketFollower,
    /// Follows those that are served. It has connections of its own, so that it need not wait.
    versions: BucketFollower,
    url: String,
}

/// Reason for not serving a version.
enum PollError {
    Bucket(BucketError),
    Server(ServerError),
}

impl From<BucketError> for PollError {
    fn from(error: BucketError) -> Self {
        Self::Bucket(error)
    }
}

impl BucketFollowing {
    /// Brings the first partition, unless one is there.
    pub(super) fn begin(
        url: &str,
        graph: &Path,
        parts: &[PartId],
        bytes_max: Option<u64>,
    ) -> Result<Self> {
        let mut arrivals = BucketFollower::begin(Bucket::open(url)?, graph, parts, bytes_max)?;
        let versions = arrivals.with_bucket(Bucket::open(url)?);
        if !arrivals.left_out().is_empty() {
            tracing::warn!(
                parts = joined(arrivals.left_out(), ","),
                "partitions do not fit; another server has to follow them"
            );
        }
        if arrivals.parts().next().is_none() {
            bail!("{url}: no partition fits into the size given; raise --disk");
        }
        if !arrivals.has_any()? {
            arrivals.bring_next(&mut |_, _| {})?;
        }
        Ok(Self { arrivals, versions, url: url.to_owned() })
    }

    /// Returns the partitions that are followed.
    pub(super) fn parts(&self) -> Vec<PartId> {
        self.versions.parts().collect()
    }

    /// Brings the other partitions and follows all of them, on two threads.
    pub(super) fn start(self, installer: Installer, interval: Duration) -> Result<()> {
        let Self { mut arrivals, mut versions, url } = self;
        let adopting = installer.clone();
        let bring = move || while bring_one(&mut arrivals, &adopting) {};
        thread::Builder::new().name("lode-bring".into()).spawn(bring)?;
        let log = FollowLog::start(installer.clone())?;
        let follow = move || {
            let mut begun = BTreeSet::new();
            loop {
                for part in versions.parts().collect::<Vec<_>>() {
                    if installer.version(part).is_none() {
                        continue;
                    }
                    if begun.insert(part) {
                        installer.follow(&[part], &url, interval);
                    }
                    poll(&mut versions, &installer, part, &url);
                }
                log.write();
                thread::sleep(interval);
            }
        };
        thread::Builder::new().name("lode-follow".into()).spawn(follow)?;
        Ok(())
    }
}

/// Brings a partition and serves it; returns `false` when all are served.
fn bring_one(arrivals: &mut BucketFollower, installer: &Installer) -> bool {
    let brought = arrivals.bring_next(&mut |_, _| {});
    // One that came as the server started, or was not adopted, is served now.
    let adopted: Result<(), ServerError> = arrivals.parts().try_for_each(|part| {
        let is_waiting = installer.version(part).is_none() && arrivals.is_here(part);
        if is_waiting { installer.adopt(part).map(drop) } else { Ok(()) }
    });
    match (brought, adopted) {
        (Ok(None), Ok(())) => return false,
        (Ok(_), Ok(())) => return true,
        (Err(error), _) => tracing::warn!(%error, "a partition does not come; it is tried again"),
        (_, Err(error)) => tracing::warn!(%error, "it is tried again"),
    }
    thread::sleep(PAUSE);
    true
}

/// Brings a partition that is served to its newest version, and notes how far it is.
fn poll(versions: &mut BucketFollower, installer: &Installer, part: PartId, url: &str) {
    match fetch_newest(versions, installer, part, url) {
        Ok(()) => installer.followed(part),
        Err(PollError::Bucket(error)) => {
            installer.failed(part, &error.to_string(), is_refused(&error));
        }
        Err(PollError::Server(error)) => installer.failed(part, &error.to_string(), false),
    }
}

fn fetch_newest(
    versions: &mut BucketFollower,
    installer: &Installer,
    part: PartId,
    url: &str,
) -> Result<(), PollError> {
    let Some(newest) = versions.look(part)? else { return Ok(()) };
    installer.looked(part, url, newest);
    let install = &mut |manifest: &_| match installer.install(manifest) {
        Ok(is_new) => Ok(is_new),
        Err(ServerError::Store(error)) => Err(PollError::Bucket(error.into())),
        Err(error) => Err(PollError::Server(error)),
    };
    if versions.fetch(installer.live(), part, install)? {
        tracing::debug!(%part, "installed a version");
    }
    Ok(())
}

/// Returns whether a person has to help.
fn is_refused(error: &BucketError) -> bool {
    matches!(
        error,
        BucketError::Folder(StoreError::FollowRefused { .. }) | BucketError::NoRoom { .. }
    )
}
