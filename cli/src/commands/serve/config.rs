//! Settings of a server from a file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use lodestore_client::Address;
use lodestore_server::{PolicyKind, PreloadChoice, VolatileChoice};
use serde::{Deserialize, Deserializer, de};

use super::follow::FollowTarget;
use crate::flags::parse_size;
use crate::log::{LogFormat, LogLevel};
use crate::small_file::read_small_file;

/// Settings of a file; `docs/serve.toml` documents each.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ConfigFile {
    pub(super) parts: Option<Vec<u16>>,
    #[serde(rename = "local-parts", alias = "parts-here")]
    pub(super) local_parts: Option<bool>,
    pub(super) listen: Option<SocketAddr>,
    #[serde(rename = "shard-port-base", deserialize_with = "port")]
    pub(super) shard_port_base: Option<u16>,
    pub(super) unix: Option<PathBuf>,
    #[serde(rename = "unix-mode", deserialize_with = "mode")]
    pub(super) unix_mode: Option<u32>,
    pub(super) metrics: Option<SocketAddr>,
    #[serde(rename = "metrics-insecure")]
    pub(super) metrics_insecure: Option<bool>,
    #[serde(rename = "metrics-host")]
    pub(super) metrics_host: Option<Vec<String>>,
    #[serde(deserialize_with = "shards")]
    pub(super) shards: Option<u16>,
    #[serde(deserialize_with = "size")]
    pub(super) memory: Option<u64>,
    #[serde(deserialize_with = "policy")]
    pub(super) policy: Option<PolicyKind>,
    #[serde(deserialize_with = "preload")]
    pub(super) preload: Option<Vec<PreloadChoice>>,
    #[serde(rename = "state-dir")]
    pub(super) state_dir: Option<PathBuf>,
    #[serde(deserialize_with = "volatile")]
    pub(super) volatile: Option<Vec<VolatileChoice>>,
    pub(super) writable: Option<bool>,
    #[serde(deserialize_with = "targets")]
    pub(super) follow: Option<Vec<FollowTarget>>,
    #[serde(rename = "follow-interval")]
    pub(super) follow_interval: Option<u64>,
    #[serde(deserialize_with = "size")]
    pub(super) disk: Option<u64>,
    pub(super) publish: Option<String>,
    #[serde(rename = "follow-token-file")]
    pub(super) follow_token_file: Option<PathBuf>,
    #[serde(rename = "follow-tls-ca")]
    pub(super) follow_tls_ca: Option<PathBuf>,
    #[serde(rename = "log-level")]
    pub(super) log_level: Option<LogLevel>,
    #[serde(rename = "log-format")]
    pub(super) log_format: Option<LogFormat>,
    #[serde(rename = "token-file")]
    pub(super) token_file: Option<PathBuf>,
    #[serde(rename = "admin-token-file")]
    pub(super) admin_token_file: Option<PathBuf>,
    #[serde(rename = "tls-cert")]
    pub(super) tls_cert: Option<PathBuf>,
    #[serde(rename = "tls-key")]
    pub(super) tls_key: Option<PathBuf>,
    #[serde(rename = "tls-client-ca")]
    pub(super) tls_client_ca: Option<PathBuf>,
    pub(super) insecure: Option<bool>,
    pub(super) register: Option<String>,
    #[serde(deserialize_with = "address")]
    pub(super) advertise: Option<Address>,
}

impl ConfigFile {
    /// Fails for a file that cannot be read, is no TOML, or has a key or value that is not known.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = read_small_file(path)?;
        toml::from_str(&text).with_context(|| format!("{}: not as expected", path.display()))
    }
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

fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    parse_mode(&String::deserialize(deserializer)?).map(Some).map_err(de::Error::custom)
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Address>, D::Error> {
    String::deserialize(deserializer)?.parse().map(Some).map_err(de::Error::custom)
}

fn targets<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<FollowTarget>>, D::Error> {
    let all = Vec::<String>::deserialize(deserializer)?;
    let all: Result<Vec<FollowTarget>, _> = all.iter().map(|one| one.parse()).collect();
    all.map(Some).map_err(de::Error::custom)
}

fn policy<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PolicyKind>, D::Error> {
    String::deserialize(deserializer)?.parse().map(Some).map_err(de::Error::custom)
}

/// One tensor, or a list of them.
#[derive(Deserialize)]
#[serde(untagged)]
enum Names {
    One(String),
    Several(Vec<String>),
}

fn preload<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<PreloadChoice>>, D::Error> {
    let names = match Names::deserialize(deserializer)? {
        Names::One(name) => vec![name],
        Names::Several(names) => names,
    };
    let choices = names.iter().map(|name| name.parse());
    choices.collect::<Result<_, _>>().map(Some).map_err(de::Error::custom)
}

fn volatile<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<VolatileChoice>>, D::Error> {
    let all = Vec::<String>::deserialize(deserializer)?;
    let all: Result<Vec<VolatileChoice>, _> = all.iter().map(|one| one.parse()).collect();
    all.map(Some).map_err(de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lodestore_server::ServerConfig;

    fn read(text: &str) -> Result<ConfigFile, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        ConfigFile::read(file.path()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn the_documented_file_names_every_setting_and_the_defaults() {
        let text = include_str!("../../../../docs/serve.toml");
        let found = read(text).unwrap();
        let defaults = ServerConfig::new("");
        assert_eq!(found.listen.unwrap().to_string(), super::super::DEFAULT_ADDRESS);
        assert_eq!(found.memory, Some(defaults.tier_bytes));
        assert_eq!(found.policy, Some(defaults.policy));
        assert_eq!(found.writable, Some(defaults.writable));
        assert_eq!((found.metrics, defaults.metrics), (None, None));
        assert_eq!(found.log_level, Some(LogLevel::default()));
        assert_eq!(found.log_format, Some(LogFormat::default()));
        assert_eq!(found.insecure, Some(defaults.insecure));
        assert_eq!(found.metrics_insecure, Some(defaults.metrics_insecure));
        let is_setting = |line: &&str| line.starts_with("# ") && line.contains(" = ");
        let all = text.lines().map(|line| match is_setting(&line) {
            true => &line[2..],
            false => line,
        });
        let found = read(&all.collect::<Vec<_>>().join("\n")).unwrap();
        // All of them: a setting that is added has to be added here, and there.
        let ConfigFile {
            parts,
            local_parts,
            listen,
            shard_port_base,
            unix,
            unix_mode,
            metrics,
            metrics_insecure,
            metrics_host,
            shards,
            memory,
            policy,
            preload,
            state_dir,
            volatile,
            writable,
            follow,
            follow_interval,
            disk,
            publish,
            follow_token_file,
            follow_tls_ca,
            log_level,
            log_format,
            token_file,
            admin_token_file,
            tls_cert,
            tls_key,
            tls_client_ca,
            insecure,
            register,
            advertise,
        } = found;
        assert_eq!((parts, local_parts, shards), (Some(vec![0, 1]), Some(true), Some(2)));
        assert!(listen.is_some() && unix.is_some() && memory.is_some() && policy.is_some());
        assert_eq!((shard_port_base, unix_mode), (Some(7172), Some(0o600)));
        assert_eq!((metrics_insecure, metrics_host.unwrap().len()), (Some(false), 1));
        assert!(metrics.is_some() && log_level.is_some() && log_format.is_some());
        assert!(writable.is_some() && insecure.is_some());
        assert_eq!(preload, Some(vec![PreloadChoice::Auto]));
        assert!(state_dir.is_some() && volatile.unwrap().len() == 2);
        assert_eq!((follow.unwrap().len(), follow_interval), (2, Some(200)));
        assert!(follow_token_file.is_some() && follow_tls_ca.is_some());
        assert_eq!((disk, publish.as_deref()), (Some(500 << 30), Some("s3://bucket/my-graph")));
        assert!(token_file.is_some() && admin_token_file.is_some() && tls_cert.is_some());
        assert!(register.is_some() && advertise.is_some());
        assert!(tls_key.is_some() && tls_client_ca.is_some());
    }

    #[test]
    fn what_is_not_known_is_named() {
        for (text, told) in [
            ("colour = 1", "unknown field `colour`"),
            ("memory = \"12parsecs\"", "512MiB"),
            ("memory = -1", "memory"),
            ("shards = 0", "1 to 256"),
            ("policy = \"best\"", "unknown policy `best`"),
            ("listen = \"nowhere\"", "listen"),
            ("shard-port-base = 0", "1 to 65535"),
            ("unix-mode = 384", "unix-mode"),
            ("unix-mode = \"1777\"", "in octal"),
            ("unix-mode = \"rw\"", "in octal"),
            ("parts = [70000]", "parts"),
            ("volatile = [\"h1\"]", "NAME:WIDTHxDTYPE"),
            ("writable", "writable"),
            ("metrics = \"9171\"", "metrics"),
            ("log-level = \"loud\"", "log-level"),
            ("log-format = \"xml\"", "log-format"),
            ("log_format = \"json\"", "unknown field `log_format`"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
        assert!(read(&"#".repeat(70_000)).unwrap_err().contains("at most 65536"));
        assert!(read("memory = 5").unwrap().memory == Some(5));
    }

    /// The two documented files fit together.
    #[test]
    fn the_documented_file_names_folders_that_the_unit_makes() {
        let text = include_str!("../../../../docs/serve.toml");
        let unit = include_str!("../../../../docs/lode.service");
        assert!(
            unit.contains("\nRuntimeDirectory=lode\n") && unit.contains(" --config /etc/lode/")
        );
        let paths = text.split('"').filter(|part| part.starts_with('/'));
        let n_known = paths
            .map(|path| {
                let is_known = ["/run/lode/", "/etc/lode/", "/var/lib/lode/"]
                    .iter()
                    .any(|folder| path.starts_with(folder));
                assert!(is_known, "{path}");
            })
            .count();
        assert!(n_known > 3);
    }
}
