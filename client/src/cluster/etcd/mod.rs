//! A map in etcd: servers register under leases, clients watch.
//!
//! Under `PREFIX/servers/` each server has a key, its address, with what it says of itself as JSON.
//! The key goes with its lease: when the server has ended, or has not been heard of for
//! [`LEASE`].

mod gateway;
mod register;
mod watch;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Member, SERVERS_MAX};
use crate::{Address, ClientError};

pub use register::Registration;
pub(super) use watch::Watch;

/// How long a server that is not heard of stays in the map.
const LEASE: Duration = Duration::from_secs(6);
/// Largest value of a key that is looked at.
const ENTRY_BYTES_MAX: usize = 1 << 20;

/// What a server says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerEntry {
    /// Where clients find it.
    pub address: String,
    /// Partitions that it serves.
    pub parts: Vec<u16>,
    /// Its committed version.
    pub version: u32,
    /// Share of its time in which its shards were not idle, 0 to 1.
    pub busy: f64,
}

/// A map's place: `HOST:PORT,HOST:PORT/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    endpoints: Vec<String>,
    prefix: String,
}

impl Place {
    fn of(text: &str) -> Result<Self, ClientError> {
        let bad = |reason: &str| ClientError::BadAddress {
            address: format!("etcd:{text}"),
            reason: format!("{reason}; write etcd:HOST:PORT,HOST:PORT/PREFIX"),
        };
        let (endpoints, prefix) = text.split_once('/').unwrap_or((text, "lodestore"));
        if prefix.is_empty() {
            return Err(bad("the prefix is empty"));
        }
        for endpoint in endpoints.split(',') {
            // Whatever a socket can be opened to, and nothing that means more in a URL.
            if !matches!(endpoint.parse(), Ok(Address::Tcp(_) | Address::Host { .. })) {
                return Err(bad(&format!("`{endpoint}` is no HOST:PORT")));
            }
        }
        let endpoints = endpoints.split(',').map(|it| format!("http://{it}")).collect();
        Ok(Self { endpoints, prefix: prefix.trim_end_matches('/').to_owned() })
    }

    /// What the keys of all servers start with.
    fn servers(&self) -> Vec<u8> {
        format!("{}/servers/", self.prefix).into_bytes()
    }
}

/// The servers that these values name; what is no entry is left out.
fn members(values: impl Iterator<Item = Vec<u8>>) -> Vec<Member> {
    let member = |value: Vec<u8>| {
        if value.len() > ENTRY_BYTES_MAX {
            return None;
        }
        let entry: ServerEntry = serde_json::from_slice(&value).ok()?;
        let busy = Some(entry.busy).filter(|busy| (0.0..=1.0).contains(busy));
        Some(Member { address: entry.address.parse().ok()?, busy, parts: entry.parts })
    };
    let mut left_out = 0;
    let count = |found: &Option<Member>| left_out += u32::from(found.is_none());
    let found = values.map(member).inspect(count).flatten().take(SERVERS_MAX).collect();
    if left_out > 0 {
        tracing::warn!("{left_out} keys of the map in etcd are no servers, and are left out");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_and_nonsense_is_named() {
        let place = Place::of("127.0.0.1:2379,store.lan:2379/ours/").unwrap();
        assert_eq!(place.endpoints, ["http://127.0.0.1:2379", "http://store.lan:2379"]);
        assert_eq!(place.servers(), b"ours/servers/");
        assert_eq!(Place::of("[::1]:2379").unwrap().prefix, "lodestore");
        for text in
            ["", "127.0.0.1", "127.0.0.1:1/", "a@b:1", "unix:/x", "127.0.0.1:1,/x", "h:1?x/y"]
        {
            let error = Place::of(text).unwrap_err().to_string();
            assert!(error.contains("etcd:HOST:PORT"), "{text}: {error}");
        }
    }

    #[test]
    fn hostile_values_are_left_out_and_the_others_stay() {
        let good = ServerEntry { address: "127.0.0.1:7".into(), busy: 0.25, ..Default::default() };
        let values = [
            serde_json::to_vec(&good).unwrap(),
            Vec::new(),
            b"\xff\xff".to_vec(),
            b"{\"address\": 5}".to_vec(),
            br#"{"address":"nowhere","parts":[],"version":1,"busy":0}"#.to_vec(),
            br#"{"address":"127.0.0.1:8","parts":[],"version":1,"busy":1e99}"#.to_vec(),
            vec![b' '; ENTRY_BYTES_MAX + 1],
            [b"[".repeat(100_000), b"]".repeat(100_000)].concat(),
        ];
        let found = members(values.into_iter());
        let told: Vec<_> = found.iter().map(|it| (it.address.to_string(), it.busy)).collect();
        assert_eq!(told, [("127.0.0.1:7".into(), Some(0.25)), ("127.0.0.1:8".into(), None)]);
    }
}
