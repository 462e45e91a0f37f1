//! The log, which goes to stderr.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use serde::Deserialize;
use tracing_subscriber::EnvFilter;

/// What is logged: this and what is worse.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogLevel {
    Error,
    #[default]
    Warn,
    Info,
    Debug,
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    #[default]
    Text,
    /// One JSON object.
    Json,
}

/// Starts the log; what `LODE_LOG` asks for goes before `level`. RocksDB warns of its own defaults.
pub(crate) fn start(level: LogLevel, format: LogFormat) {
    let level = match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn,rocksdb=error",
        LogLevel::Info => "info,rocksdb=error",
        LogLevel::Debug => "debug,rocksdb=warn",
    };
    let filter = EnvFilter::try_from_env("LODE_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).init(),
    }
}
