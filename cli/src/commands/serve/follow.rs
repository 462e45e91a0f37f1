//! `lode serve --follow`: the folder follows the writers of its partitions, or a bucket.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use lodestore_client::follow::{FollowPlan, FollowedServer, Follower, is_refused};
use lodestore_client::{Address, ClientError};
use lodestore_graph::PartId;
use lodestore_server::ServerError;
use lodestore_server::installer::Installer;
use lodestore_store::GraphHandle;
use lodestore_store::follow::Manifest;

use super::config::ServeSettings;
use super::follow_bucket::BucketFollowing;
use super::follow_log::FollowLog;
use crate::human::joined;
use crate::security_args::SecurityArgs;
use crate::usage::UsageError;

/// Time for a step, and to wait for writers at the start.
const DEADLINE: Duration = Duration::from_secs(30);
/// Interval at which the writers are asked for a new version, in milliseconds.
const INTERVAL_MS: u64 = 200;
/// The same of a bucket: each look is a request for each partition.
const BUCKET_INTERVAL_MS: u64 = 2000;

impl ServeSettings {
    /// Returns the writers, as they are named to clients.
    pub(super) fn writers(&self) -> Option<String> {
        (!self.follow.is_empty()).then(|| joined(&self.follow, ", "))
    }

    /// Returns the URL of the bucket that is followed, if one is.
    ///
    /// Fails for a URL beside other targets, and for flags that are of the other kind.
    pub(super) fn followed_bucket(&self) -> Result<Option<&str>> {
        let url = self.follow.iter().find_map(|target| match target {
            FollowTarget::Bucket(url) => Some(url.as_str()),
            FollowTarget::Server(_) => None,
        });
        match (url, self.follow.len()) {
            (None, _) if self.disk.is_some() => {
                Err(UsageError::new("--disk is for --follow URL").into())
            }
            (None, _) => Ok(None),
            (Some(_), 2..) => {
                Err(UsageError::new("--follow: expected addresses, or one URL alone").into())
            }
            (Some(_), _) if self.follow_token_file.is_some() || self.follow_tls_ca.is_some() => {
                let message = "--follow-token-file and --follow-tls-ca are for servers; credentials \
                               of object storage come from the environment";
                Err(UsageError::new(message).into())
            }
            (Some(url), _) => Ok(Some(url)),
        }
    }

    /// Brings the partitions that are not here, or the first of them from a bucket; `None` without
    /// --follow.
    pub(super) fn begin_following(&self, graph: &Path) -> Result<Option<Following>> {
        let parts = self.part_ids();
        if let Some(url) = self.followed_bucket()? {
            return BucketFollowing::begin(url, graph, &parts, self.disk)
                .map(|following| Some(Following::Bucket(following)));
        }
        if self.follow.is_empty() {
            return Ok(None);
        }
        let (token_file, tls_ca) = (self.follow_token_file.clone(), self.follow_tls_ca.clone());
        let config = SecurityArgs { token_file, tls_ca, ..SecurityArgs::default() };
        let config = config.client_config(DEADLINE)?;
        let from = self.follow.iter().filter_map(FollowTarget::server).cloned().collect();
        let plan = FollowPlan { from, parts, into: graph.to_owned(), config };
        let mut follower = Follower::begin(plan)?;
        tell_coverage(&follower, &joined(&self.follow, ", "));
        follower.bring(&mut |_, _| {})?;
        Ok(Some(Following::Servers(follower)))
    }

    /// Follows for as long as the process lives, on threads of its own.
    pub(super) fn start_following(&self, following: Following, installer: Installer) -> Result<()> {
        let interval = |default| Duration::from_millis(self.follow_interval.unwrap_or(default));
        match following {
            Following::Servers(follower) => {
                let (parts, from) =
                    (follower.parts().collect::<Vec<_>>(), joined(&self.follow, ", "));
                installer.follow(&parts, &from, interval(INTERVAL_MS));
                follow_servers(follower, installer, interval(INTERVAL_MS))
            }
            Following::Bucket(following) => {
                following.start(installer, interval(BUCKET_INTERVAL_MS))
            }
        }
    }
}

/// Follows writers for as long as the process lives.
fn follow_servers(mut follower: Follower, installer: Installer, interval: Duration) -> Result<()> {
    // Writers count it among their followers.
    follower.serve_as(installer.instance());
    let log = FollowLog::start(installer.clone())?;
    let mut server = Followed { installer };
    let follow = move || loop {
        if follower.poll(&mut server) > 0 {
            tracing::debug!("installed a version");
        }
        log.write();
        thread::sleep(interval);
    };
    thread::Builder::new().name("lode-follow".into()).spawn(follow)?;
    Ok(())
}

/// The server of the folder.
struct Followed {
    installer: Installer,
}

impl FollowedServer for Followed {
    fn live(&self) -> &GraphHandle {
        self.installer.live()
    }

    fn served(&self, part: PartId) -> Option<u32> {
        self.installer.version(part)
    }

    fn install(&mut self, manifest: &Manifest) -> Result<bool, ClientError> {
        self.installer.install(manifest).map_err(|error| match error {
            ServerError::Store(error) => ClientError::from(error),
            error => ClientError::NotInstalled { reason: error.to_string() },
        })
    }

    fn looked(&mut self, part: PartId, writer: &Address, newest: u32) {
        self.installer.looked(part, &writer.to_string(), newest);
    }

    fn polled(&mut self, part: PartId, result: Result<(), &ClientError>) {
        match result {
            Ok(()) => self.installer.followed(part),
            Err(error) => self.installer.failed(part, &error.to_string(), is_refused(error)),
        }
    }
}

/// Says which partitions are followed and which of the graph are not, in one line.
fn tell_coverage(follower: &Follower, writers: &str) {
    match follower.coverage() {
        (parts, None) => tracing::info!("following {parts} of {writers}"),
        (parts, Some(unwritten)) => tracing::warn!(
            "following {parts} of {writers}; no server named writes {unwritten}, not followed: name \
             the servers that write them too, if they are to be served here"
        ),
    }
}

/// A place where versions come from.
#[derive(Clone, Debug)]
pub(super) enum FollowTarget {
    Server(Address),
    /// A URL of object storage.
    Bucket(String),
}

impl FollowTarget {
    fn server(&self) -> Option<&Address> {
        match self {
            Self::Server(address) => Some(address),
            Self::Bucket(_) => None,
        }
    }
}

impl FromStr for FollowTarget {
    type Err = <Address as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.contains("://") {
            true => Ok(Self::Bucket(text.to_owned())),
            false => text.parse().map(Self::Server),
        }
    }
}

impl fmt::Display for FollowTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(address) => address.fmt(f),
            Self::Bucket(url) => f.write_str(url),
        }
    }
}

/// A follower that has begun.
pub(super) enum Following {
    Servers(Follower),
    Bucket(BucketFollowing),
}

impl Following {
    /// Returns the partitions that are followed. Another one in the folder would never get a new
    /// version.
    pub(super) fn parts(&self) -> Vec<PartId> {
        match self {
            Self::Servers(follower) => follower.parts().collect(),
            Self::Bucket(following) => following.parts(),
        }
    }
}
