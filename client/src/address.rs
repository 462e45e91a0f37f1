//! Addresses of servers.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use lodestore_schema::socket::shard_socket;
use thiserror::Error;

/// Where a server listens: `HOST:PORT`, or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP address as numbers.
    Tcp(SocketAddr),
    /// A TCP port of a named host. The name is resolved for every connection, since the host may
    /// move.
    Host {
        /// Name of the host.
        name: Arc<str>,
        /// Port.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// A text is not an address.
#[derive(Debug, Error)]
#[error("`{address}` is not an address: {reason}; write HOST:PORT or unix:PATH")]
pub struct AddressError {
    /// The text.
    pub address: String,
    /// The fault.
    pub reason: String,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Tcp(address));
        }
        let bad = |reason: String| AddressError { address: text.to_owned(), reason };
        let parts = text.rsplit_once(':').ok_or_else(|| bad("the port is missing".to_owned()))?;
        let (name, port) = parts;
        let port = port.parse().map_err(|error| bad(format!("port `{port}`: {error}")))?;
        if rustls::pki_types::DnsName::try_from(name).is_err() {
            return Err(bad(format!("`{name}` is not a host name")));
        }
        Ok(Self::Host { name: name.into(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Host { name, port } => write!(f, "{name}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// Returns whether the address has a meaning on this machine only: a Unix socket, or loopback.
    pub(crate) fn is_of_one_machine(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Host { name, .. } => **name == *"localhost",
            Self::Unix(_) => true,
        }
    }

    /// Returns the address of a shard of the server at this common address.
    pub(crate) fn of_shard(&self, shard: u16, port: Option<u16>) -> Self {
        match (self, port) {
            (Self::Unix(path), _) => Self::Unix(shard_socket(path, shard)),
            (Self::Tcp(common), Some(port)) => Self::Tcp(SocketAddr::new(common.ip(), port)),
            (Self::Host { name, .. }, Some(port)) => Self::Host { name: Arc::clone(name), port },
            (common, None) => common.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_printed_as_they_are_read() {
        for text in ["127.0.0.1:7070", "[::1]:7070", "unix:/run/lode.sock", "store-1.lan:7070"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn invalid_addresses_are_reported() {
        for text in ["", "unix:", "127.0.0.1", "127.0.0.1:99999", ":", ":1", "a b:1", "host:x"] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("HOST:PORT"), "{text}: {error}");
        }
    }

    #[test]
    fn shards_have_addresses_of_their_own() {
        let tcp: Address = "127.0.0.1:7070".parse().unwrap();
        assert_eq!(tcp.of_shard(1, Some(9)).to_string(), "127.0.0.1:9");
        let host: Address = "localhost:7070".parse().unwrap();
        assert_eq!(host.of_shard(1, Some(9)).to_string(), "localhost:9");
        let unix: Address = "unix:/run/l".parse().unwrap();
        assert_eq!(unix.of_shard(1, None).to_string(), "unix:/run/l.1");
    }
}
