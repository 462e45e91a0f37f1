//! The log, which goes to stderr.

use std::io::{self, IsTerminal};

use anyhow::Result;
use clap::ValueEnum;
use serde::Deserialize;
use tracing_subscriber::EnvFilter;

use crate::usage::UsageError;

/// Lowest level in the log.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Error,
    #[default]
    Warn,
    Info,
    Debug,
}

/// Format of the log's lines.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    /// One JSON object.
    Json,
}

/// Starts the log; what `LODE_LOG` asks for goes before `level`. RocksDB warns of its own defaults.
/// The server summarises in one line the warnings of glommio about little lockable memory.
///
/// # Errors
/// A `LODE_LOG` that would not do what it seems to.
pub fn start(level: LogLevel, format: LogFormat) -> Result<()> {
    let level = match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn,rocksdb=error,glommio=error",
        LogLevel::Info => "info,rocksdb=error,glommio=error",
        LogLevel::Debug => "debug,rocksdb=warn",
    };
    let filter = match std::env::var("LODE_LOG") {
        Ok(wanted) => filter(&wanted).map_err(UsageError::new)?,
        Err(std::env::VarError::NotPresent) => EnvFilter::new(level),
        Err(error) => return Err(UsageError::new(format!("LODE_LOG: {error}")).into()),
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).init(),
    }
    Ok(())
}

/// Returns what `LODE_LOG` asks for. A word alone that is no level would be taken for the name of a
/// module, and silence all others.
fn filter(wanted: &str) -> Result<EnvFilter, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_level = |word: &str| word.is_empty() || LEVELS.contains(&&*word.to_lowercase());
    let mut parts = wanted.split(',').map(str::trim);
    if let Some(word) = parts.find(|part| !part.contains(['=', '[']) && !is_level(part)) {
        return Err(format!(
            "LODE_LOG={wanted}: `{word}` is no level; write {}, or MODULE=LEVEL",
            LEVELS.join(", ")
        ));
    }
    EnvFilter::try_new(wanted).map_err(|error| format!("LODE_LOG={wanted}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_filter_is_reported() {
        for wanted in ["", "debug", "INFO", "info,lodestore_server=debug", "off,lode=trace"] {
            assert!(filter(wanted).is_ok(), "{wanted}");
        }
        for (wanted, told) in [
            ("loud", "`loud` is no level"),
            ("info,lodestore_server", "`lodestore_server` is no level"),
            ("lodestore_server=loud", "LODE_LOG=lodestore_server=loud: "),
        ] {
            let error = filter(wanted).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }
}
