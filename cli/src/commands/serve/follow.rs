//! `lode serve --follow`: the folder follows the writers of its partitions.

use std::error::Error;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lodestore_client::{
    Address, ClientConfig, ClientError, FollowPlan, Follower, Security, is_refused,
};
use lodestore_graph::PartId;
use lodestore_server::{Installer, ServerError};

use crate::security_args::read_token;

/// Time for a step, and to wait for writers at the start.
const DEADLINE: Duration = Duration::from_secs(30);
/// How often the writers are asked for a new version, in milliseconds.
const INTERVAL_MS: u64 = 200;

/// The writer to follow, and the way.
#[derive(Args)]
pub(super) struct FollowArgs {
    /// Follow the partitions of these servers, which write them: fetch each version that they
    /// commit and serve it. The folder may be empty, or have followed them before.
    #[arg(long, value_name = "ADDR,ADDR", value_delimiter = ',', conflicts_with_all = ["writable", "parts_here"])]
    pub(super) follow: Vec<Address>,
    /// With --follow: milliseconds between two looks for a new version; 200 unless given.
    #[arg(long, value_name = "MS", requires = "follow", value_parser = clap::value_parser!(u64).range(1..))]
    follow_interval: Option<u64>,
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
    pub(super) fn add(&mut self, follow: Option<Vec<Address>>, interval: Option<u64>) {
        if self.follow.is_empty() {
            self.follow = follow.unwrap_or_default();
        }
        self.follow_interval = self.follow_interval.or(interval);
    }

    /// The same for what the writers want to see.
    pub(super) fn add_security(&mut self, token: Option<PathBuf>, authorities: Option<PathBuf>) {
        self.follow_token_file = self.follow_token_file.take().or(token);
        self.follow_tls_ca = self.follow_tls_ca.take().or(authorities);
    }

    /// The writers, as they are named to clients.
    pub(super) fn writers(&self) -> Option<String> {
        let all: Vec<String> = self.follow.iter().map(ToString::to_string).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// Brings the partitions that are not here; `None` without --follow.
    pub(super) fn begin(&self, graph: PathBuf, parts: &[u16]) -> Result<Option<Follower>> {
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
        let parts = parts.iter().copied().map(PartId).collect();
        let plan = FollowPlan { from: self.follow.clone(), parts, into: graph, config };
        let mut follower = Follower::begin(plan)?;
        follower.bring(&mut |_, _| {})?;
        Ok(Some(follower))
    }

    /// Follows for as long as the process lives, on a thread of its own.
    pub(super) fn start(&self, mut follower: Follower, installer: Installer) -> Result<()> {
        let interval = Duration::from_millis(self.follow_interval.unwrap_or(INTERVAL_MS));
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
}

/// Says once what keeps versions from coming.
fn report(error: &dyn Error, is_refused: bool, reported: &mut String) {
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
