//! Addresses of servers as people write them.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use lodestore_schema::shard_socket;

use crate::ClientError;

/// Where a server listens: `HOST:PORT`, or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = ClientError;

    /// Host names are resolved here, once; the first address counts.
    fn from_str(text: &str) -> Result<Self, ClientError> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let bad = |reason: String| ClientError::BadAddress { address: text.to_owned(), reason };
        let mut found = text.to_socket_addrs().map_err(|error| bad(error.to_string()))?;
        found.next().map(Self::Tcp).ok_or_else(|| bad("the name has no address".into()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// The address of shard `shard` of the server at this common address.
    pub(crate) fn of_shard(&self, shard: u16, port: Option<u16>) -> Self {
        match self {
            Self::Tcp(common) => match port {
                Some(port) => Self::Tcp(SocketAddr::new(common.ip(), port)),
                None => self.clone(),
            },
            Self::Unix(path) => Self::Unix(shard_socket(path, shard)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_are_read_and_printed_alike() {
        for text in ["127.0.0.1:7070", "[::1]:7070", "unix:/run/lode.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn nonsense_is_named() {
        for text in ["", "unix:", "127.0.0.1", "127.0.0.1:99999", ":"] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("HOST:PORT"), "{text}: {error}");
        }
    }

    #[test]
    fn shards_have_addresses_of_their_own() {
        let tcp: Address = "127.0.0.1:7070".parse().unwrap();
        assert_eq!(tcp.of_shard(1, Some(9)).to_string(), "127.0.0.1:9");
        let unix: Address = "unix:/run/l".parse().unwrap();
        assert_eq!(unix.of_shard(1, None).to_string(), "unix:/run/l.1");
    }
}
