//! Tests of settings as flags and as lines of a file.

use clap::Args;
use lodestore_server::{PreloadChoice, ServerConfig};

use super::config::ServeSettings;
use crate::log::{LogFormat, LogLevel};

fn read(text: &str) -> Result<ServeSettings, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    ServeSettings::read(file.path()).map_err(|error| format!("{error:#}"))
}

/// Returns the documented file with the settings that it shows as comments.
fn every_setting(text: &str) -> String {
    let is_setting = |line: &&str| line.starts_with("# ") && line.contains(" = ");
    let all = text.lines().map(|line| match is_setting(&line) {
        true => &line[2..],
        false => line,
    });
    all.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_flag_goes_before_each_setting_of_the_file() {
    let text = every_setting(include_str!("../../../../docs/serve.toml"));
    let file = || read(&text.replace("= false", "= true")).unwrap();
    let of_file = format!("{:?}", file());
    assert_eq!(format!("{:?}", ServeSettings::default().or(file())), of_file);
    // All settings but `parts`, which `local-parts` goes before.
    let other = "
        local-parts = true\nlisten = '10.1.1.1:1'\nshard-port-base = 1\nunix = 'a'\n\
        unix-mode = '640'\nmetrics = '10.1.1.1:2'\nmetrics-host = ['b']\nshards = 1\n\
        memory = '1MiB'\npolicy = 'lru'\npreload = ['x']\nstate-dir = 'c'\n\
        volatile = ['h3:1xf32']\nfollow = ['10.1.1.1:3']\nfollow-interval = 1\n\
        follow-token-file = 'd'\nfollow-tls-ca = 'e'\ndisk = '1GiB'\npublish = 's3://f/f'\n\
        publish-within = 77\nlog-level = 'debug'\nlog-format = 'json'\ntoken-file = 'g'\nadmin-token-file = 'h'\n\
        tls-cert = 'i'\ntls-key = 'j'\ntls-client-ca = 'k'\nregister = 'etcd:10.1.1.1:4/l'\n\
        etcd-ca = 'm'\netcd-cert = 'n'\netcd-key = 'o'\netcd-user = 'p'\netcd-password-file = 'q'\n\
        advertise = '10.1.1.1:5'\nmetrics-insecure = true\nwritable = true\ninsecure = true\n\
        keep-versions = 3\nkeep-for = '1h'\n";
    let flags = || read(other).unwrap();
    assert_eq!(format!("{:?}", flags().or(file())), format!("{:?}", flags()));
    // Either way of naming partitions goes before both of the file.
    let named = ServeSettings { parts: vec![3], ..ServeSettings::default() }.or(file());
    assert_eq!((named.parts, named.local_parts), (vec![3], false));
}

#[test]
fn the_documented_file_names_every_setting_and_the_defaults() {
    let text = include_str!("../../../../docs/serve.toml");
    let found = read(text).unwrap();
    let defaults = ServerConfig::new("");
    assert_eq!(found.listen.unwrap().to_string(), super::DEFAULT_ADDRESS);
    assert_eq!(found.memory, Some(defaults.tier_bytes));
    assert_eq!(found.policy, Some(defaults.policy));
    assert_eq!((found.metrics, defaults.metrics), (None, None));
    assert_eq!(found.log_level, Some(LogLevel::default()));
    assert_eq!(found.log_format, Some(LogFormat::default()));
    let named: toml::Table = text.parse().unwrap();
    for (name, default) in [
        ("writable", defaults.writable),
        ("insecure", defaults.insecure),
        ("metrics-insecure", defaults.metrics_insecure),
    ] {
        assert_eq!(named[name].as_bool(), Some(default), "{name}");
    }
    let text = every_setting(text);
    let found = read(&text).unwrap();
    assert_eq!(found.keep_versions, Some(defaults.keep.n_versions));
    assert_eq!(found.keep_for, Some(defaults.keep.age));
    // All of them: a setting that is added has to be added there.
    let named: toml::Table = text.parse().unwrap();
    let flags = ServeSettings::augment_args(clap::Command::new("serve"));
    let flags: Vec<&str> = flags.get_arguments().filter_map(|flag| flag.get_long()).collect();
    for flag in flags.iter().filter(|flag| **flag != "take-over") {
        assert!(named.contains_key(*flag), "--{flag}");
    }
    assert_eq!(named.len(), flags.len() - 1, "and no other");
    let ServeSettings { parts, local_parts, shards, .. } = &found;
    assert_eq!((&parts[..], *local_parts, *shards), (&[0, 1][..], true, Some(2)));
    assert!(found.listen.is_some() && found.unix.is_some() && found.memory.is_some());
    assert_eq!((found.shard_port_base, found.unix_mode), (Some(7172), Some(0o600)));
    assert_eq!((found.metrics_insecure, found.metrics_host.len()), (false, 1));
    assert!(found.metrics.is_some() && found.policy.is_some());
    assert!(found.log_level.is_some() && found.log_format.is_some());
    assert_eq!(found.preload, [PreloadChoice::Auto]);
    assert!(found.state_dir.is_some() && found.volatile.len() == 2);
    assert_eq!((found.follow.len(), found.follow_interval), (2, Some(200)));
    assert!(found.follow_token_file.is_some() && found.follow_tls_ca.is_some());
    let publish = found.publish.as_deref();
    assert_eq!((found.disk, publish), (Some(500 << 30), Some("s3://bucket/my-graph")));
    assert!(found.token_file.is_some() && found.admin_token_file.is_some());
    assert!(found.tls_cert.is_some() && found.tls_key.is_some());
    assert!(found.tls_client_ca.is_some());
    assert!(found.register.is_some() && found.advertise.is_some());
}

#[test]
fn a_name_is_an_address_too() {
    for name in ["localhost:0", "127.0.0.1:0", "[::1]:0"] {
        assert!(read(&format!("listen = '{name}'")).unwrap().listen.unwrap().ip().is_loopback());
    }
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
        ("take-over = true", "unknown field `take-over`"),
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
    assert!(unit.contains("\nRuntimeDirectory=lode\n") && unit.contains(" --config /etc/lode/"));
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
