//! `lode serve --follow`: the folder follows the writers of its partitions, or a bucket.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lodestore_client::follow::{FollowPlan, Follower, is_refused};
use lodestore_client::{Address, ClientConfig, ClientError, Security};
use lodestore_graph::PartId;
use lodestore_server::ServerError;
use lodestore_server::installer::Installer;

use super::follow_bucket::BucketFollowing;
use crate::flags::parse_size;
use crate::security_args::read_token;
use crate::usage::UsageError;

/// Time for a step, and to wait for writers at the start.
const DEADLINE: Duration = Duration::from_secs(30);
/// Interval at which the writers are asked for a new version, in milliseconds.
const INTERVAL_MS: u64 = 200;
/// The same of a bucket: each look is a request for each partition.
const BUCKET_INTERVAL_MS: u64 = 2000;

/// The writers or the bucket to follow, and the way.
#[derive(Args)]
pub(super) struct FollowArgs {
    /// Follow the partitions of these servers, which write them: fetch each version that they
    /// commit and serve it. Or follow what is published in object storage, at one URL: partitions
    /// are served as they come. The folder may be empty, or have followed them before.
    #[arg(long, value_name = "ADDR,ADDR|URL", value_delimiter = ',', conflicts_with_all = ["writable", "local_parts"])]
    pub(super) follow: Vec<FollowTarget>,
    /// With --follow: milliseconds between two looks for a new version, 200 unless given. For a URL
    /// it is 2000, since each look is a request for each partition.
    #[arg(long, value_name = "MS", requires = "follow", value_parser = clap::value_parser!(u64).range(1..))]
    follow_interval: Option<u64>,
    /// With --follow URL: most bytes of files in the folder. Partitions are taken in the order of
    /// --parts while they fit; a version that does not fit is not installed.
    #[arg(long, value_name = "SIZE", requires = "follow", value_parser = parse_size)]
    disk: Option<u64>,
    /// With --follow: file with the token that the writers want.
    #[arg(long, value_name = "FILE", requires = "follow")]
    follow_token_file: Option<PathBuf>,
    /// With --follow: speak TLS with the writers, whose certificates these authorities (PEM) have
    /// signed.
    #[arg(long, value_name = "FILE", requires = "follow")]
    follow_tls_ca: Option<PathBuf>,
}

impl FollowArgs {
    /// Takes what a file says where no flag is given.
    pub(super) fn add(
        &mut self,
        follow: Option<Vec<FollowTarget>>,
        interval: Option<u64>,
        disk: Option<u64>,
    ) {
        if self.follow.is_empty() {
            self.follow = follow.unwrap_or_default();
        }
        self.follow_interval = self.follow_interval.or(interval);
        self.disk = self.disk.or(disk);
    }

    /// Takes the token and the authorities from a file where no flag is given.
    pub(super) fn add_security(&mut self, token: Option<PathBuf>, authorities: Option<PathBuf>) {
        self.follow_token_file = self.follow_token_file.take().or(token);
        self.follow_tls_ca = self.follow_tls_ca.take().or(authorities);
    }

    /// Returns the writers, as they are named to clients.
    pub(super) fn writers(&self) -> Option<String> {
        let all: Vec<String> = self.follow.iter().map(ToString::to_string).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// Returns the URL of the bucket that is followed, if one is.
    ///
    /// Fails for a URL beside other targets, and for flags that are of the other kind.
    pub(super) fn bucket(&self) -> Result<Option<&str>> {
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
    pub(super) fn begin(&self, graph: PathBuf, parts: &[u16]) -> Result<Option<Following>> {
        let parts: Vec<PartId> = parts.iter().copied().map(PartId).collect();
        if let Some(url) = self.bucket()? {
            return BucketFollowing::begin(url, &graph, &parts, self.disk)
                .map(|following| Some(Following::Bucket(following)));
        }
        if self.follow.is_empty() {
            return Ok(None);
        }
        let mut security = Security::default();
        if let Some(path) = &self.follow_token_file {
            security = security.with_token(read_token(path)?);
        }
        if let Some(ca) = &self.follow_tls_ca {
            security = security.with_tls(ca, None)?;
        }
        let config = ClientConfig { deadline: DEADLINE, security, ..ClientConfig::default() };
        let from = self.follow.iter().filter_map(FollowTarget::server).cloned().collect();
        let plan = FollowPlan { from, parts, into: graph, config };
        let mut follower = Follower::begin(plan)?;
        follower.bring(&mut |_, _| {})?;
        Ok(Some(Following::Servers(follower)))
    }

    /// Follows for as long as the process lives, on threads of its own.
    pub(super) fn start(&self, following: Following, installer: Installer) -> Result<()> {
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
