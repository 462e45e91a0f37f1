//! Settings of a server: flags, and lines of a file under the same names.

use std::fmt::Display;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use lodestore_client::Address;
use lodestore_client::cluster::EtcdAccess;
use lodestore_graph::PartId;
use lodestore_server::{PolicyKind, PreloadChoice, TlsFiles, VolatileChoice};
use serde::{Deserialize, Deserializer, de};

use super::follow::FollowTarget;
use crate::flags::{parse_size, parse_time};
use crate::log::{LogFormat, LogLevel};
use crate::security_args::{EtcdArgs, check_key};
use crate::small_file::read_small_file;
use crate::usage::UsageError;

/// Settings as flags, or as the lines of a file; `docs/serve.toml` documents each.
#[derive(Args, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ServeSettings {
    /// Partitions to serve; all of them unless given, and with --follow those that the named servers
    /// write.
    #[arg(long, value_name = "P,P,...", value_delimiter = ',')]
    pub(super) parts: Vec<u16>,
    /// Serve the partitions whose folders are here, and let `lode transfer` bring and take some
    /// while it runs.
    #[arg(long, alias = "parts-here", conflicts_with = "parts")]
    #[serde(alias = "parts-here")]
    pub(super) local_parts: bool,
    /// TCP address; port 0 takes a free one. 127.0.0.1:7171 if neither this nor --unix is given.
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    #[serde(deserialize_with = "address")]
    pub(super) listen: Option<SocketAddr>,
    /// The first of the TCP ports of the shards, one after the other; free ones unless given. For
    /// firewalls and containers, which have to know them.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    #[serde(deserialize_with = "port")]
    pub(super) shard_port_base: Option<u16>,
    /// Path of a Unix socket.
    #[arg(long, value_name = "PATH")]
    pub(super) unix: Option<PathBuf>,
    /// Mode of the Unix sockets, in octal: every user who may open them is admitted. 600 unless
    /// given.
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    #[serde(deserialize_with = "mode")]
    pub(super) unix_mode: Option<u32>,
    /// TCP address of metrics (/metrics), health checks (/healthz, /readyz) and the status page
    /// (/); port 0 takes a free one. None unless given.
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    #[serde(deserialize_with = "address")]
    pub(super) metrics: Option<SocketAddr>,
    /// Have metrics on an address that is not loopback without a token, or, on a server that speaks
    /// TLS, with the token in the clear.
    #[arg(long)]
    pub(super) metrics_insecure: bool,
    /// A name of this machine under which metrics may be asked for, besides its numbers and
    /// localhost; several times for several.
    #[arg(long, value_name = "NAME")]
    pub(super) metrics_host: Vec<String>,
    /// Shards, each with a core of its own; one per core unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    #[serde(deserialize_with = "shards")]
    pub(super) shards: Option<u16>,
    /// Memory for rows that stay resident, over all shards; 0 reads every row from disk.
    /// 1GiB unless given.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    #[serde(deserialize_with = "size")]
    pub(super) memory: Option<u64>,
    /// Which rows stay resident: lru, fifo, clock, sieve, s3-fifo, tinylfu or none; sieve unless
    /// given. `lode cache-bench` compares them on a trace.
    #[arg(long, value_name = "P", value_parser = parse_policy)]
    #[serde(deserialize_with = "policy")]
    pub(super) policy: Option<PolicyKind>,
    /// Load tensors into memory right after the start, behind all pulls: each that memory holds,
    /// unless given. Or those of these names; or auto for each that memory holds, and of the others
    /// the rows that were resident when the server was last stopped cleanly; or none.
    #[arg(long, value_name = "T,T,...|auto|none", value_delimiter = ',')]
    #[serde(deserialize_with = "one_or_several")]
    pub(super) preload: Vec<PreloadChoice>,
    /// Folder in which --preload remembers which rows were resident; hot-rows in the graph's unless
    /// given.
    #[arg(long, value_name = "DIR")]
    pub(super) state_dir: Option<PathBuf>,
    /// Keep a tensor in memory alone, over the partitions that are served; clients publish and pull
    /// its rows with stamps. It is NAME:WIDTHxDTYPE, such as h1:256xf32, or NAME:WIDTHxDTYPE/ROWS
    /// for ROWS that are claimed together instead of all of a partition. Its memory is part of
    /// --memory: 16 bytes and the row for each node. Several times for several. Over TCP it needs
    /// what --writable needs.
    #[arg(long, value_name = "TENSOR")]
    #[serde(deserialize_with = "several")]
    pub(super) volatile: Vec<VolatileChoice>,
    /// Take puts, commits and compactions; no other process may write the partitions meanwhile.
    /// Over TCP it needs --token-file, --tls-client-ca or --insecure, and so does --local-parts.
    #[arg(long)]
    pub(super) writable: bool,
    /// With --writable: keep the newest N versions readable by their number when files are folded;
    /// 2 unless given. Each costs the room of the rows that later versions have changed.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    #[serde(deserialize_with = "versions")]
    pub(super) keep_versions: Option<u32>,
    /// With --writable: keep every version readable for this long after the next one was committed,
    /// such as 30s, 10m, 12h or 7d; 10m unless given, 0 for not at all. Of very frequent commits the
    /// newest 32 versions are kept so.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    #[serde(deserialize_with = "time")]
    pub(super) keep_for: Option<Duration>,
    /// Follow the partitions that these servers write: fetch each version that they commit and serve
    /// it, also after a partition was moved to another server. Or follow what is published in object storage, at one URL: partitions
    /// are served as they come. The folder may be empty, or have followed them before.
    #[arg(long, value_name = "ADDR,ADDR|URL", value_delimiter = ',', conflicts_with_all = ["writable", "local_parts"])]
    #[serde(deserialize_with = "several")]
    pub(super) follow: Vec<FollowTarget>,
    /// With --follow: milliseconds between two looks for a new version, 200 unless given. For a URL
    /// it is 2000, since each look is a request for each partition.
    #[arg(long, value_name = "MS", requires = "follow", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) follow_interval: Option<u64>,
    /// With --follow URL: most bytes of files in the folder. Partitions are taken in the order of
    /// --parts while they fit; a version that does not fit is not installed.
    #[arg(long, value_name = "SIZE", requires = "follow", value_parser = parse_size)]
    #[serde(deserialize_with = "size")]
    pub(super) disk: Option<u64>,
    /// With --follow: file with the token that the writers want.
    #[arg(long, value_name = "FILE", requires = "follow")]
    pub(super) follow_token_file: Option<PathBuf>,
    /// With --follow: speak TLS with the writers, whose certificates these authorities (PEM) have
    /// signed.
    #[arg(long, value_name = "FILE", requires = "follow")]
    pub(super) follow_tls_ca: Option<PathBuf>,
    /// With --writable: publish each commit in object storage, at this URL (`lode push --help` has
    /// the forms). A version is the graph's once it is published. Another writer that has
    /// published, or taken the partition over, ends puts here.
    #[arg(long, value_name = "URL", conflicts_with = "follow")]
    pub(super) publish: Option<String>,
    /// With --publish: become the writer of the partitions. Brings each to its newest published
    /// version, from nothing if it is not here, and fences the server that wrote it before.
    #[arg(long)]
    #[serde(skip)]
    pub(super) take_over: bool,
    /// With --publish: take no puts and commits while object storage has not answered for this
    /// time, so that no more than that is lost where another writer takes over. Without it they are
    /// taken however long it does not answer.
    #[arg(long, value_name = "SECONDS")]
    pub(super) publish_within: Option<u64>,
    /// File with the token that clients over TCP must present, readable by its owner alone. The
    /// metrics port requires it where it is not on loopback.
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// File with the token of clients that move partitions over TCP; it admits them as that of
    /// --token-file does. Without it only clients of this machine may move them.
    #[arg(long, value_name = "FILE")]
    pub(super) admin_token_file: Option<PathBuf>,
    /// TLS for clients over TCP: the server's certificate and those up to its authority (PEM).
    #[arg(long, value_name = "FILE")]
    pub(super) tls_cert: Option<PathBuf>,
    /// The key of --tls-cert (PEM), not readable by others.
    #[arg(long, value_name = "FILE")]
    pub(super) tls_key: Option<PathBuf>,
    /// Take only clients with a certificate that these authorities (PEM) have signed.
    #[arg(long, value_name = "FILE")]
    pub(super) tls_client_ca: Option<PathBuf>,
    /// Listen on an address that is not loopback, or take changes from every user of this machine,
    /// without authentication or encryption. Metrics have a flag of their own.
    #[arg(long)]
    pub(super) insecure: bool,
    /// Register in etcd for as long as it runs, under a lease: etcd:HOST:PORT,HOST:PORT/PREFIX.
    /// Wants a build with the cargo feature `etcd`.
    #[arg(long, value_name = "MAP")]
    pub(super) register: Option<String>,
    /// With --register: speak TLS with etcd, and take certificates that these authorities (PEM) have
    /// signed.
    #[arg(long, value_name = "FILE")]
    pub(super) etcd_ca: Option<PathBuf>,
    /// With --etcd-ca: show this certificate (PEM) to etcd.
    #[arg(long, value_name = "FILE")]
    pub(super) etcd_cert: Option<PathBuf>,
    /// The key of --etcd-cert (PEM), not readable by others.
    #[arg(long, value_name = "FILE")]
    pub(super) etcd_key: Option<PathBuf>,
    /// With --register: authenticate with etcd as this user.
    #[arg(long, value_name = "NAME")]
    pub(super) etcd_user: Option<String>,
    /// File with the password of --etcd-user, readable by its owner alone.
    #[arg(long, value_name = "FILE")]
    pub(super) etcd_password_file: Option<PathBuf>,
    /// With --register: where clients find it, if that is not where it listens.
    #[arg(long, value_name = "ADDR", requires = "register")]
    #[serde(deserialize_with = "parsed")]
    pub(super) advertise: Option<Address>,
    /// Level of the log on stderr: error, warn, info or debug [default: warn]. LODE_LOG goes before
    /// it.
    #[arg(long, value_enum, value_name = "L")]
    pub(super) log_level: Option<LogLevel>,
    /// How it goes there: text, or json with one object to a line; text unless given.
    #[arg(long, value_enum, value_name = "F")]
    pub(super) log_format: Option<LogFormat>,
}

/// Flags that work only beside another setting, and whether each is given.
pub(super) struct DependentFlags {
    of_writable: [(&'static str, bool); 2],
    of_unix: [(&'static str, bool); 1],
    of_metrics: [(&'static str, bool); 2],
    of_tcp: [(&'static str, bool); 5],
    of_token: [(&'static str, bool); 1],
    of_rows: [(&'static str, bool); 1],
    of_follow: [(&'static str, bool); 4],
}

impl ServeSettings {
    /// Fails for a file that cannot be read, is no TOML, or has a key or value that is not known.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = read_small_file(path)?;
        toml::from_str(&text).with_context(|| format!("{}: not as expected", path.display()))
    }

    /// Takes what a file says where no flag is given.
    pub(super) fn or(self, file: Self) -> Self {
        // Either flag goes before both settings.
        let names_parts = self.local_parts || !self.parts.is_empty();
        let local_parts = if names_parts { self.local_parts } else { file.local_parts };
        Self {
            local_parts,
            parts: if names_parts { self.parts } else { file.parts },
            listen: self.listen.or(file.listen),
            shard_port_base: self.shard_port_base.or(file.shard_port_base),
            unix: self.unix.or(file.unix),
            unix_mode: self.unix_mode.or(file.unix_mode),
            metrics: self.metrics.or(file.metrics),
            metrics_insecure: self.metrics_insecure || file.metrics_insecure,
            metrics_host: either(self.metrics_host, file.metrics_host),
            shards: self.shards.or(file.shards),
            memory: self.memory.or(file.memory),
            policy: self.policy.or(file.policy),
            preload: either(self.preload, file.preload),
            state_dir: self.state_dir.or(file.state_dir),
            volatile: either(self.volatile, file.volatile),
            writable: self.writable || file.writable,
            keep_versions: self.keep_versions.or(file.keep_versions),
            keep_for: self.keep_for.or(file.keep_for),
            follow: either(self.follow, file.follow),
            follow_interval: self.follow_interval.or(file.follow_interval),
            disk: self.disk.or(file.disk),
            follow_token_file: self.follow_token_file.or(file.follow_token_file),
            follow_tls_ca: self.follow_tls_ca.or(file.follow_tls_ca),
            publish: self.publish.or(file.publish),
            take_over: self.take_over,
            publish_within: self.publish_within.or(file.publish_within),
            token_file: self.token_file.or(file.token_file),
            admin_token_file: self.admin_token_file.or(file.admin_token_file),
            tls_cert: self.tls_cert.or(file.tls_cert),
            tls_key: self.tls_key.or(file.tls_key),
            tls_client_ca: self.tls_client_ca.or(file.tls_client_ca),
            insecure: self.insecure || file.insecure,
            register: self.register.or(file.register),
            etcd_ca: self.etcd_ca.or(file.etcd_ca),
            etcd_cert: self.etcd_cert.or(file.etcd_cert),
            etcd_key: self.etcd_key.or(file.etcd_key),
            etcd_user: self.etcd_user.or(file.etcd_user),
            etcd_password_file: self.etcd_password_file.or(file.etcd_password_file),
            advertise: self.advertise.or(file.advertise),
            log_level: self.log_level.or(file.log_level),
            log_format: self.log_format.or(file.log_format),
        }
    }

    /// Returns whether clients can connect over TCP.
    fn listens_on_tcp(&self) -> bool {
        self.listen.is_some() || self.unix.is_none()
    }

    /// Returns each of these flags that works only beside another setting, and whether it is given.
    pub(super) fn dependent_flags(&self) -> DependentFlags {
        DependentFlags {
            of_writable: [
                ("--keep-versions", self.keep_versions.is_some()),
                ("--keep-for", self.keep_for.is_some()),
            ],
            of_unix: [("--unix-mode", self.unix_mode.is_some())],
            of_metrics: [
                ("--metrics-insecure", self.metrics_insecure),
                ("--metrics-host", !self.metrics_host.is_empty()),
            ],
            of_tcp: [
                ("--shard-port-base", self.shard_port_base.is_some()),
                ("--admin-token-file", self.admin_token_file.is_some()),
                ("--tls-cert", self.tls_cert.is_some()),
                ("--tls-key", self.tls_key.is_some()),
                ("--tls-client-ca", self.tls_client_ca.is_some()),
            ],
            of_token: [("--token-file", self.token_file.is_some())],
            of_rows: [("--preload", self.preload.iter().any(|it| *it != PreloadChoice::Nothing))],
            of_follow: [
                ("--follow-interval", self.follow_interval.is_some()),
                ("--disk", self.disk.is_some()),
                ("--follow-token-file", self.follow_token_file.is_some()),
                ("--follow-tls-ca", self.follow_tls_ca.is_some()),
            ],
        }
    }

    /// Returns an error for each of `flags` that would do nothing with these settings, which are
    /// those of the flags and of the file.
    pub(super) fn vain(&self, flags: &DependentFlags) -> Vec<UsageError> {
        const OF_TCP: &str = "is for clients over TCP; add --listen, or leave out --unix";
        const OF_ROWS: &str =
            "is for rows that stay in memory: --memory above 0, and a --policy but none";
        let mut vain = Vec::new();
        let mut note = |group: &[(&str, bool)], reason: &str| {
            let given = group.iter().filter(|(_, is_given)| *is_given);
            vain.extend(given.map(|(flag, _)| UsageError::new(format!("{flag} {reason}"))));
        };
        if !self.writable {
            note(&flags.of_writable, "is for --writable");
        }
        if self.unix.is_none() {
            note(&flags.of_unix, "is for --unix");
        }
        if self.metrics.is_none() {
            note(&flags.of_metrics, "is for --metrics");
        }
        if !self.listens_on_tcp() {
            note(&flags.of_tcp, OF_TCP);
            if self.metrics.is_none() {
                note(&flags.of_token, OF_TCP);
            }
        }
        if self.memory == Some(0) || self.policy == Some(PolicyKind::None) {
            note(&flags.of_rows, OF_ROWS);
        }
        if self.follow.is_empty() {
            note(&flags.of_follow, "is for --follow");
        }
        vain
    }

    /// Returns the partitions that are named.
    pub(super) fn part_ids(&self) -> Vec<PartId> {
        self.parts.iter().copied().map(PartId).collect()
    }

    /// Fails for an address that others can reach, unless a flag says which clients may connect, or
    /// that all may. Other users of the machine count where the server takes changes.
    pub(super) fn check_exposure(&self, listen: Option<SocketAddr>) -> Result<(), UsageError> {
        let is_exposed = |address: &SocketAddr| !address.ip().is_loopback();
        if let Some(address) = listen.filter(is_exposed).filter(|_| !self.insecure)
            && self.token_file.is_none()
            && self.tls_cert.is_none()
        {
            return Err(UsageError::new(format!(
                "address {address} can be reached from outside, and connections are neither \
                 authenticated nor encrypted; listen on 127.0.0.1, use --unix, give --token-file or \
                 --tls-cert, or add --insecure on a trusted network"
            )));
        }
        let takes_changes = self.writable || self.local_parts || !self.volatile.is_empty();
        if let Some(address) = listen.filter(|_| takes_changes && !self.insecure)
            && self.token_file.is_none()
            && self.tls_client_ca.is_none()
        {
            return Err(UsageError::new(format!(
                "with {} every user of this machine could change rows by {address}: connections \
                 are not authenticated; give --token-file (or --tls-client-ca), serve by --unix alone, \
                 or add --insecure where all users may",
                match (self.writable, self.local_parts) {
                    (true, _) => "--writable",
                    (_, true) => "--local-parts",
                    _ => "--volatile",
                }
            )));
        }
        let metrics = self.metrics.filter(is_exposed).filter(|_| !self.metrics_insecure);
        if let Some(address) = metrics
            && self.token_file.is_none()
        {
            return Err(UsageError::new(format!(
                "metrics on {address} can be read from outside; listen on 127.0.0.1, give \
                 --token-file, or add --metrics-insecure on a trusted network"
            )));
        }
        if let Some(address) = metrics
            && self.tls_cert.is_some()
        {
            return Err(UsageError::new(format!(
                "metrics on {address} want the token, and that port speaks no TLS, so that others can \
                 read it on its way; listen on 127.0.0.1, or add --metrics-insecure on a trusted \
                 network"
            )));
        }
        Ok(())
    }

    /// Returns the tensors to load ahead, those that memory holds unless others are named.
    pub(super) fn preloaded(&self) -> Result<Vec<PreloadChoice>, UsageError> {
        let choices = match self.preload.is_empty() {
            true => vec![PreloadChoice::Whole],
            false => self.preload.clone(),
        };
        if choices.len() > 1 && choices.contains(&PreloadChoice::Nothing) {
            return Err(UsageError::new("--preload: expected none alone, found others beside it"));
        }
        let remembers =
            |choice: &_| matches!(choice, PreloadChoice::Auto | PreloadChoice::Tensor(_));
        if self.state_dir.is_some() && !choices.iter().any(remembers) {
            let message = "--state-dir is for rows that --preload auto, or --preload with names, \
                           remembers; give one of them";
            return Err(UsageError::new(message));
        }
        Ok(choices)
    }

    /// Reads what etcd is shown, and required of it.
    pub(super) fn etcd(&self) -> Result<EtcdAccess> {
        let args = EtcdArgs {
            etcd_ca: self.etcd_ca.clone(),
            etcd_cert: self.etcd_cert.clone(),
            etcd_key: self.etcd_key.clone(),
            etcd_user: self.etcd_user.clone(),
            etcd_password_file: self.etcd_password_file.clone(),
        };
        args.read()
    }

    /// Returns the files of TLS, if it is requested.
    pub(super) fn tls(&self) -> Result<Option<TlsFiles>> {
        match (&self.tls_cert, &self.tls_key, &self.tls_client_ca) {
            (None, None, None) => Ok(None),
            (Some(cert), Some(key), client_ca) => {
                check_key(key)?;
                let (cert, key, client_ca) = (cert.clone(), key.clone(), client_ca.clone());
                Ok(Some(TlsFiles { cert, key, client_ca }))
            }
            _ => {
                let message =
                    "TLS needs both --tls-cert and --tls-key, and --tls-client-ca goes with them";
                Err(UsageError::new(message).into())
            }
        }
    }
}

fn either<T>(flags: Vec<T>, file: Vec<T>) -> Vec<T> {
    if flags.is_empty() { file } else { flags }
}

/// Bytes as a number or with a unit.
#[derive(Deserialize)]
#[serde(untagged)]
enum Size {
    Bytes(u64),
    Text(String),
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    match Size::deserialize(deserializer)? {
        Size::Bytes(bytes) => Ok(Some(bytes)),
        Size::Text(text) => parse_size(&text).map(Some).map_err(de::Error::custom),
    }
}

fn versions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    match u32::deserialize(deserializer)? {
        0 => Err(de::Error::custom("expected 1 or more versions, found 0")),
        versions => Ok(Some(versions)),
    }
}

/// Reads a time as its flag does.
fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    parse_time(&String::deserialize(deserializer)?).map(Some).map_err(de::Error::custom)
}

fn shards<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    match u16::deserialize(deserializer)? {
        found @ 1..=256 => Ok(Some(found)),
        found => Err(de::Error::custom(format!("expected 1 to 256 shards, found {found}"))),
    }
}

fn port<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    match u16::deserialize(deserializer)? {
        0 => Err(de::Error::custom("expected a port from 1 to 65535, found 0")),
        port => Ok(Some(port)),
    }
}

/// Parses the mode of a socket's file: its bits for user, group and others, in octal. The owner
/// must be able to write. Otherwise the next server at the path could not find out whether a
/// process listens there.
pub(super) fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode @ 0..=0o777) if mode & 0o200 != 0 => Ok(mode),
        Ok(0..=0o777) => {
            Err(format!("expected a mode whose owner may connect such as 660, found `{text}`"))
        }
        _ => Err(format!("expected a mode in octal such as 660, found `{text}`")),
    }
}

/// Parses a policy that servers follow: one that needs no plan.
fn parse_policy(text: &str) -> Result<PolicyKind, String> {
    let of_servers = PolicyKind::REACTIVE;
    if let Some(found) = of_servers.into_iter().find(|kind| kind.name() == text) {
        return Ok(found);
    }
    let fault = match text.parse::<PolicyKind>() {
        Ok(known) => format!("a server cannot follow the policy `{known}`"),
        Err(_) => format!("unknown policy `{text}`"),
    };
    Err(format!("{fault}; one of: {}", of_servers.map(PolicyKind::name).join(", ")))
}

fn policy<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PolicyKind>, D::Error> {
    parse_policy(&String::deserialize(deserializer)?).map(Some).map_err(de::Error::custom)
}

/// Parses an address with a port; of a name's addresses the first is taken.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let found = text.to_socket_addrs().map(|mut all| all.next());
    match found {
        Ok(Some(address)) => Ok(address),
        Ok(None) => Err(format!("`{text}` has no address")),
        Err(error) => Err(format!(
            "expected an address with a port, such as 127.0.0.1:7171 or [::1]:7171: {error}"
        )),
    }
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    parse_address(&String::deserialize(deserializer)?).map(Some).map_err(de::Error::custom)
}

fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    parse_mode(&String::deserialize(deserializer)?).map(Some).map_err(de::Error::custom)
}

/// Reads a text as its flag does.
fn parsed<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: FromStr<Err: Display>,
{
    String::deserialize(deserializer)?.parse().map(Some).map_err(de::Error::custom)
}

/// Reads a list of texts, each as its flag does.
fn several<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: FromStr<Err: Display>,
{
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| text.parse().map_err(de::Error::custom)).collect()
}

/// One tensor, or a list of them.
#[derive(Deserialize)]
#[serde(untagged)]
enum Names {
    One(String),
    Several(Vec<String>),
}

fn one_or_several<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<PreloadChoice>, D::Error> {
    let names = match Names::deserialize(deserializer)? {
        Names::One(name) => vec![name],
        Names::Several(names) => names,
    };
    names.iter().map(|name| name.parse().map_err(de::Error::custom)).collect()
}
