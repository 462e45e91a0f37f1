//! Settings of a server, and their check before any file is opened.

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

/// Keeps the rows that many batches share and needs little time per row: see
/// benches/notes/cache-policies.md.
const POLICY_DEFAULT: PolicyKind = PolicyKind::Sieve;

/// The server's own user.
const UNIX_MODE_DEFAULT: u32 = 0o600;

/// Settings of a server: the graph, its addresses and its bounds.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Directory of the graph.
    pub graph: PathBuf,
    /// Version and revision of the program, as metrics and the status page show them.
    pub program: String,
    /// Partitions to serve; all of them if empty.
    pub parts: Vec<PartId>,
    /// Serve those whose folders are here instead, and take in and give up others while it runs.
    pub local_parts: bool,
    /// TCP address; port 0 takes a free one.
    pub listen: Option<SocketAddr>,
    /// Path of a Unix socket; shard `i` listens on `PATH.i` besides.
    pub unix: Option<PathBuf>,
    /// The first of the TCP ports of the shards, one after the other; free ones unless given.
    pub shard_port_base: Option<u16>,
    /// Mode of the Unix sockets: which users may open them.
    pub unix_mode: u32,
    /// TCP address of metrics, health checks and the status page; none unless given.
    pub metrics: Option<SocketAddr>,
    /// Executors; 0 takes one per core.
    pub n_shards: u16,
    /// Bytes that the host tiers of all shards and tensors take together, bookkeeping included; 0
    /// reads every row from disk.
    pub tier_bytes: u64,
    /// Which rows the tiers keep; one that needs no plan.
    pub policy: PolicyKind,
    /// Tables that are loaded into their tiers after the start.
    pub preload: Vec<PreloadChoice>,
    /// Where it is remembered which rows were resident; a folder in the graph's unless given.
    pub state_dir: Option<PathBuf>,
    /// Tensors in memory alone, over the partitions that are served; part of `tier_bytes`. With any
    /// of them, and on a writable server, clients may declare others and publish rows, which over
    /// TCP needs what `writable` needs.
    pub volatile: Vec<VolatileChoice>,
    /// Take pushes, commits and compactions: locks the partitions against other writers. Over TCP
    /// it needs `token`, `tls.client_ca` or `insecure`, and so does `local_parts`.
    pub writable: bool,
    /// With `writable`: which versions stay readable when files are folded, in the background or as
    /// clients ask for it.
    pub keep: KeepRule,
    /// Addresses of the writers whose versions the folder follows; then no puts are taken.
    pub follow: Option<String>,
    /// With `follow`: serve those of `parts` that are in the folder, and others as
    /// [`Installer::adopt`](crate::installer::Installer::adopt) adds them.
    pub grows: bool,
    /// Report how far commits are published elsewhere:
    /// [`Server::publishing`](crate::server::Server::publishing).
    pub publishes: bool,
    /// With `publishes`: why no puts and commits are taken before
    /// [`Publishing::resume`](crate::installer::Publishing::resume).
    pub paused: Option<String>,
    /// Token that clients over TCP must show first. A Unix socket is protected by its mode instead.
    pub token: Option<Tokens>,
    /// Token that clients over TCP must show first to move partitions; it admits them as `token`
    /// does. Without one that is for clients of the same machine.
    pub admin_token: Option<Tokens>,
    /// TLS on every TCP port of rows; in the clear unless given.
    pub tls: Option<TlsFiles>,
    /// Allow an address that others can reach, and changes by every user of the machine over
    /// loopback, without authentication.
    pub insecure: bool,
    /// Allow an address of metrics that others can reach, without a token or with one in the clear.
    pub metrics_insecure: bool,
    /// Names under which the metrics port may be asked, besides numbers and `localhost`.
    pub metrics_hosts: Vec<String>,
}

impl ServerConfig {
    /// Serves all of `graph` with default settings; the caller adds a listener.
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

    /// Checks all that can be wrong without looking at the graph; returns the number of shards.
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

    /// Every combination of door, changes and proof, against the rule in plain words.
    #[test]
    fn changes_over_tcp_need_proof_of_who_makes_them() {
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
