//! `lode serve --follow`: the folder follows the writers of its partitions, or a bucket.

use std::error::Error;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use lodestore_client::follow::{FollowPlan, Follower, is_refused};
use lodestore_client::{Address, ClientError};
use lodestore_server::ServerError;
use lodestore_server::installer::Installer;

use super::config::ServeSettings;
use super::follow_bucket::BucketFollowing;
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
        follower.bring(&mut |_, _| {})?;
        Ok(Some(Following::Servers(follower)))
    }

    /// Follows for as long as the process lives, on threads of its own.
    pub(super) fn start_following(&self, following: Following, installer: Installer) -> Result<()> {
        let interval = |default| Duration::from_millis(self.follow_interval.unwrap_or(default));
        match following {
            Following::Servers(follower) => {
                follow_servers(follower, installer, interval(INTERVAL_MS))
            }
            Following::Bucket(following) => {
                following.start(installer, interval(BUCKET_INTERVAL_MS))
            }
        }
    }
}

fn follow_servers(mut follower: Follower, installer: Installer, interval: Duration) -> Result<()> {
    // Writers count it among their followers.
    follower.serve_as(installer.instance());
    let follow = move || {
        let mut reported = String::new();
        loop {
            let mut refused = None;
            let mut install = |manifest: &_| match installer.install(manifest) {
                Ok(is_new) => Ok(is_new),
                Err(ServerError::Store(error)) => Err(ClientError::from(error)),
                Err(error) => {
                    refused = Some(error);
                    Ok(false)
                }
            };
            let served = |part| installer.version(part);
            let polled = follower.poll(installer.live(), &served, &mut install);
            match (polled, refused) {
                (Err(error), _) => report(&error, is_refused(&error), &mut reported),
                (Ok(_), Some(error)) => report(&error, false, &mut reported),
                (Ok(0), None) => reported.clear(),
                (Ok(_), None) => tracing::debug!("a version has come"),
            }
            thread::sleep(interval);
        }
    };
    thread::Builder::new().name("lode-follow".into()).spawn(follow)?;
    Ok(())
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

/// Says once what keeps versions from coming.
pub(super) fn report(error: &dyn Error, is_refused: bool, reported: &mut String) {
    let text = error.to_string();
    if *reported == text {
        return;
    }
    match is_refused {
        true => tracing::error!(%error, "it does not follow; the version before is served"),
        false => tracing::warn!(%error, "no new version comes; the one before is served"),
    }
    *reported = text;
}
