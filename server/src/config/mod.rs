//! Settings of a server, and their validation before any file is opened.

mod choices;

use std::net::SocketAddr;
use std::path::PathBuf;

use lodestore_cache::PolicyKind;
use lodestore_graph::PartId;
use lodestore_schema::Tokens;
use lodestore_store::update::KeepRule;

use crate::error::ServerError;
use crate::limits::{SHARDS_MAX, TIER_BYTES_DEFAULT};

pub use choices::{BadVolatileChoice, PreloadChoice, TlsFiles, VolatileChoice};

/// Keeps the rows that many batches share, at a low cost per row; see
/// benches/notes/cache-policies.md.
const POLICY_DEFAULT: PolicyKind = PolicyKind::Sieve;

/// Read and write for the server's own user only.
const UNIX_MODE_DEFAULT: u32 = 0o600;

/// Settings of a server: graph, addresses and bounds.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Directory of the graph.
    pub graph: PathBuf,
    /// Version and revision of the program, shown by metrics and the status page.
    pub program: String,
    /// Partitions to serve; all if empty.
    pub parts: Vec<PartId>,
    /// Serve the partitions whose folders are here instead, and let clients move partitions in and
    /// out at run time.
    pub local_parts: bool,
    /// TCP address; port 0 selects a free port.
    pub listen: Option<SocketAddr>,
    /// Path of a Unix socket; shard `i` also listens on `PATH.i`.
    pub unix: Option<PathBuf>,
    /// First of the consecutive TCP ports of the shards; `None` selects free ports.
    pub shard_port_base: Option<u16>,
    /// Mode of the Unix sockets: which users may connect.
    pub unix_mode: u32,
    /// TCP address of metrics, health checks and the status page; `None` for no such port.
    pub metrics: Option<SocketAddr>,
    /// Number of shards; 0 for one per core.
    pub n_shards: u16,
    /// Bytes of the host tiers of all shards and tensors together, bookkeeping included; 0 reads
    /// every row from disk.
    pub tier_bytes: u64,
    /// Cache policy of the tiers; one that needs no plan.
    pub policy: PolicyKind,
    /// Tensors that are loaded into their tiers after the start.
    pub preload: Vec<PreloadChoice>,
    /// Folder of the saved lists of hot rows; `None` for a folder inside the graph's.
    pub state_dir: Option<PathBuf>,
    /// Tensors that are held in memory only, over the served partitions; counted in `tier_bytes`.
    /// If there are any, or if the server is writable, clients may declare further ones and publish
    /// rows. Over TCP that has the same conditions as `writable`.
    pub volatile: Vec<VolatileChoice>,
    /// Accept pushes, commits and compactions; locks the partitions against other writers. Over TCP
    /// this requires `token`, `tls.client_ca` or `insecure`, and so does `local_parts`.
    pub writable: bool,
    /// With `writable`: the versions that stay readable after a compaction, whether it runs in the
    /// background or for a client.
    pub keep: KeepRule,
    /// Addresses of the writers that this server follows; a follower rejects puts.
    pub follow: Option<String>,
    /// With `follow`: serve those of `parts` that are in the folder, and further ones when
    /// [`Installer::adopt`](crate::installer::Installer::adopt) adds them.
    pub grows: bool,
    /// Report which commits are published elsewhere:
    /// [`Server::publishing`](crate::server::Server::publishing).
    pub publishes: bool,
    /// With `publishes`: why puts and commits are rejected until
    /// [`Publishing::resume`](crate::installer::Publishing::resume).
    pub paused: Option<String>,
    /// Token that TCP clients must send first. A Unix socket is protected by its mode instead.
    pub token: Option<Tokens>,
    /// Token that TCP clients must send first to move partitions; it also admits a client as
    /// `token` does. `None` allows moves only to clients of the same machine.
    pub admin_token: Option<Tokens>,
    /// TLS for every TCP port that serves rows; `None` for plain TCP.
    pub tls: Option<TlsFiles>,
    /// Allow a non-loopback address without authentication, and changes by every user of the
    /// machine over loopback.
    pub insecure: bool,
    /// Allow metrics on a non-loopback address without a token, or with a token sent without TLS.
    pub metrics_insecure: bool,
    /// Host names that the metrics port accepts, besides IP addresses and `localhost`.
    pub metrics_hosts: Vec<String>,
}

impl ServerConfig {
    /// Returns default settings to serve all of `graph`; the caller adds a listener.
    #[must_use]
    pub fn new(graph: impl Into<PathBuf>) -> Self {
        Self {
            graph: graph.into(),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            parts: Vec::new(),
            local_parts: false,
            listen: None,
            unix: None,
            shard_port_base: None,
            unix_mode: UNIX_MODE_DEFAULT,
            metrics: None,
            n_shards: 0,
            tier_bytes: TIER_BYTES_DEFAULT,
            policy: POLICY_DEFAULT,
            preload: Vec::new(),
            state_dir: None,
            volatile: Vec::new(),
            writable: false,
            keep: KeepRule::default(),
            follow: None,
            grows: false,
            publishes: false,
            paused: None,
            token: None,
            admin_token: None,
            tls: None,
            insecure: false,
            metrics_insecure: false,
            metrics_hosts: Vec::new(),
        }
    }

    /// Checks all settings that do not depend on the graph; returns the number of shards.
    pub(crate) fn check(&self) -> Result<u16, ServerError> {
        if self.listen.is_none() && self.unix.is_none() {
            return Err(ServerError::NoListener);
        }
        let is_exposed = |address: &SocketAddr| !address.ip().is_loopback();
        if let Some(address) = self.listen.filter(is_exposed).filter(|_| !self.insecure)
            && self.token.is_none()
            && self.tls.is_none()
        {
            return Err(ServerError::Exposed { address });
        }
        let takes_changes = self.writable || self.local_parts || !self.volatile.is_empty();
        if let Some(address) = self.listen.filter(|_| takes_changes && !self.insecure)
            && self.token.is_none()
            && self.tls.as_ref().is_none_or(|tls| tls.client_ca.is_none())
        {
            return Err(ServerError::Unguarded { address });
        }
        let metrics = self.metrics.filter(is_exposed).filter(|_| !self.metrics_insecure);
        match (metrics, &self.token, &self.tls) {
            (Some(address), None, _) => return Err(ServerError::MetricsExposed { address }),
            (Some(address), _, Some(_)) => return Err(ServerError::MetricsInClear { address }),
            _ => {}
        }
        if !PolicyKind::REACTIVE.contains(&self.policy) {
            return Err(ServerError::Policy { found: self.policy });
        }
        if self.writable && self.follow.is_some() {
            return Err(ServerError::WritesAndFollows);
        }
        if self.n_shards > SHARDS_MAX {
            return Err(ServerError::Shards { found: self.n_shards });
        }
        if self.n_shards > 0 {
            return Ok(self.n_shards);
        }
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(u16::try_from(cores).unwrap_or(SHARDS_MAX).min(SHARDS_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination of listener, changes and credentials, against the rule in plain words.
    #[test]
    fn changes_over_tcp_need_authentication() {
        let token = || Some(Tokens::parse("token-token-token-token").unwrap());
        let files = |client_ca: bool| TlsFiles {
            cert: "cert".into(),
            key: "key".into(),
            client_ca: client_ca.then(|| "ca".into()),
        };
        for bits in 0u32..1 << 8 {
            let [tcp, writable, local_parts, has_token, has_admin, has_tls, insecure, publishes] =
                std::array::from_fn(|bit| bits & 1 << bit != 0);
            for client_ca in [false, true] {
                let config = ServerConfig {
                    listen: tcp.then(|| ([127, 0, 0, 1], 0).into()),
                    unix: Some("socket".into()),
                    writable,
                    local_parts,
                    volatile: "h1:2xf32".parse().into_iter().filter(|_| publishes).collect(),
                    token: token().filter(|_| has_token),
                    admin_token: token().filter(|_| has_admin),
                    tls: has_tls.then(|| files(client_ca)),
                    insecure,
                    ..ServerConfig::new("graph")
                };
                let knows_them = has_token || (has_tls && client_ca);
                let is_open =
                    tcp && (writable || local_parts || publishes) && !knows_them && !insecure;
                match config.check() {
                    Ok(_) => assert!(!is_open, "{config:?}"),
                    Err(ServerError::Unguarded { .. }) => assert!(is_open, "{config:?}"),
                    Err(error) => panic!("{error}: {config:?}"),
                }
            }
        }
    }
}
