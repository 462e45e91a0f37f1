//! A map in etcd: servers register under leases, clients watch.
//!
//! A prefix belongs to one graph, which `PREFIX/graph` names. The first server that registers
//! writes that key, and servers of other graphs do not register. Under `PREFIX/servers/` each
//! server has a key, its address, with its description as JSON. The key is removed with its lease:
//! when the server has stopped, or has not renewed the lease for [`LEASE`].

mod gateway;
mod member_watch;
mod register;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{EtcdAccess, Member, SERVERS_MAX};
use crate::address::{Address, AddressError};
use crate::error::ClientError;

pub(super) use member_watch::Watch;
pub use register::Registration;

/// How long a server stays in the map without renewing its lease.
const LEASE: Duration = Duration::from_secs(6);
/// Largest value of a key that is read.
const ENTRY_BYTES_MAX: usize = 1 << 20;

/// The entry that a server registers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerEntry {
    /// Address for clients.
    pub address: String,
    /// Partitions that it serves.
    pub parts: Vec<u16>,
    /// Its committed version.
    pub version: u32,
    /// Share of its time in which its shards were busy, 0 to 1.
    pub busy: f64,
    /// Identity (UUID) of its graph, in 32 hexadecimal digits; that of the prefix.
    #[serde(default)]
    pub graph: String,
}

/// The location of a map: `HOST:PORT,HOST:PORT/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EtcdLocation {
    endpoints: Vec<String>,
    prefix: String,
}

impl EtcdLocation {
    fn of(text: &str, access: &EtcdAccess) -> Result<Self, ClientError> {
        let bad = |reason: &str| AddressError {
            address: format!("etcd:{text}"),
            reason: format!("{reason}; write etcd:HOST:PORT,HOST:PORT/PREFIX"),
        };
        let (endpoints, prefix) = text.split_once('/').unwrap_or((text, "lodestore"));
        if prefix.is_empty() {
            return Err(bad("the prefix is empty").into());
        }
        for endpoint in endpoints.split(',') {
            // Any address that a socket can connect to, and nothing with another meaning in a URL.
            let address: Option<Address> = endpoint.parse().ok();
            let address = address.filter(|address| !matches!(address, Address::Unix(_)));
            let Some(address) = address else {
                return Err(bad(&format!("`{endpoint}` is not HOST:PORT")).into());
            };
            if access.user.is_some() && access.tls.is_none() && !address.is_of_one_machine() {
                return Err(AddressError {
                    address: format!("etcd:{text}"),
                    reason: format!(
                        "the password of its user would cross the network to {endpoint} in the clear; \
                         use TLS"
                    ),
                }
                .into());
            }
        }
        let scheme = if access.tls.is_some() { "https" } else { "http" };
        let endpoints = endpoints.split(',').map(|it| format!("{scheme}://{it}")).collect();
        Ok(Self { endpoints, prefix: prefix.trim_end_matches('/').to_owned() })
    }

    /// Returns the key that names the graph.
    fn graph(&self) -> Vec<u8> {
        format!("{}/graph", self.prefix).into_bytes()
    }

    /// Returns the common prefix of all servers' keys.
    fn servers(&self) -> Vec<u8> {
        format!("{}/servers/", self.prefix).into_bytes()
    }
}

/// The servers that the values of keys name.
#[derive(Debug, Default)]
struct RegisteredServers {
    members: Vec<Member>,
    /// Values that are not entries; skipped.
    n_nonsense: usize,
    /// Servers of other graphs than the prefix's; skipped.
    strangers: Vec<String>,
}

impl RegisteredServers {
    /// Parses values. Skips servers of another graph than `graph`, if that is known.
    fn of(values: impl Iterator<Item = Vec<u8>>, graph: Option<&str>) -> Self {
        let mut told = Self::default();
        for value in values {
            let entry = Some(value).filter(|value| value.len() <= ENTRY_BYTES_MAX);
            let entry = entry.and_then(|value| serde_json::from_slice::<ServerEntry>(&value).ok());
            let member = entry.and_then(|entry| {
                let busy = Some(entry.busy).filter(|busy| (0.0..=1.0).contains(busy));
                let address = entry.address.parse().ok()?;
                Some((Member { address, busy, parts: entry.parts }, entry.graph))
            });
            let Some((member, of)) = member else {
                told.n_nonsense += 1;
                continue;
            };
            // Earlier releases register no graph: those servers are asked.
            let is_stranger = !of.is_empty() && graph.is_some_and(|graph| graph != of);
            if is_stranger {
                told.strangers.push(member.address.to_string());
            } else if told.members.len() < SERVERS_MAX {
                told.members.push(member);
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place_of(text: &str) -> Result<EtcdLocation, ClientError> {
        EtcdLocation::of(text, &EtcdAccess::default())
    }

    #[test]
    fn a_password_crosses_no_network_in_the_clear() {
        let access = EtcdAccess::default().with_user("lode", "SECRET");
        assert!(EtcdLocation::of("127.0.0.1:2379,localhost:1/x", &access).is_ok());
        let error = EtcdLocation::of("127.0.0.1:2379,10.0.0.9:2379/x", &access).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("10.0.0.9:2379 in the clear") && !error.contains("SECRET"),
            "{error}"
        );
    }

    #[test]
    fn locations_are_parsed_and_invalid_ones_reported() {
        let place = place_of("127.0.0.1:2379,store.lan:2379/ours/").unwrap();
        assert_eq!(place.endpoints, ["http://127.0.0.1:2379", "http://store.lan:2379"]);
        assert_eq!(place.servers(), b"ours/servers/");
        assert_eq!(place_of("[::1]:2379").unwrap().prefix, "lodestore");
        for text in
            ["", "127.0.0.1", "127.0.0.1:1/", "a@b:1", "unix:/x", "127.0.0.1:1,/x", "h:1?x/y"]
        {
            let error = place_of(text).unwrap_err().to_string();
            assert!(error.contains("etcd:HOST:PORT"), "{text}: {error}");
        }
    }

    #[test]
    fn hostile_values_are_skipped_and_the_others_stay() {
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
        let found = RegisteredServers::of(values.into_iter(), None);
        assert_eq!(found.n_nonsense, 6);
        let told = found.members.iter().map(|it| (it.address.to_string(), it.busy));
        let told: Vec<_> = told.collect();
        assert_eq!(told, [("127.0.0.1:7".into(), Some(0.25)), ("127.0.0.1:8".into(), None)]);
    }

    #[test]
    fn servers_of_another_graph_than_the_prefix_are_skipped() {
        let entry = |address: &str, graph: &str| {
            let (address, graph) = (address.to_owned(), graph.to_owned());
            serde_json::to_vec(&ServerEntry { address, graph, ..Default::default() }).unwrap()
        };
        let values = ["ours", "", "theirs"].into_iter().zip(1..);
        let values: Vec<_> =
            values.map(|(graph, port)| entry(&format!("127.0.0.1:{port}"), graph)).collect();
        let told = RegisteredServers::of(values.iter().cloned(), Some("ours"));
        assert_eq!((told.members.len(), told.strangers), (2, vec!["127.0.0.1:3".to_owned()]));
        let told = RegisteredServers::of(values.into_iter(), None);
        assert_eq!((told.members.len(), told.strangers.len()), (3, 0));
    }
}
