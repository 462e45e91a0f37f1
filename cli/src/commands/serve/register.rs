//! A server in a map that changes while it runs.

use std::sync::Arc;

use anyhow::Result;
use lodestore_client::Address;
use lodestore_server::Server;

use crate::usage::UsageError;

/// Returns the address of a server for clients: as given, or where it listens.
pub(super) fn address(server: &Server, told: Option<&Address>) -> Result<Address> {
    if let Some(told) = told {
        return Ok(told.clone());
    }
    match (server.address(), server.unix()) {
        (Some(address), _) if address.ip().is_unspecified() => Err(UsageError::new(format!(
            "{address} is every address of this machine and none that clients find; give one: \
             --advertise HOST:PORT"
        ))
        .into()),
        (Some(address), _) => Ok(Address::Tcp(address)),
        (None, Some(path)) => Ok(Address::Unix(path.to_owned())),
        (None, None) => Err(UsageError::new("there is nothing to register".to_owned()).into()),
    }
}

/// Registers the server until the returned value is dropped.
#[cfg(feature = "etcd")]
pub(super) fn start(
    map: &str,
    address: Address,
    server: &Arc<Server>,
) -> Result<lodestore_client::cluster::Registration> {
    use std::time::Instant;

    let server = Arc::clone(server);
    let (mut busy_before, mut looked) = (std::time::Duration::ZERO, Instant::now());
    let entry = move || {
        let (busy, n_shards) = (server.busy(), f64::from(server.n_shards()));
        let spent = busy.saturating_sub(busy_before).as_secs_f64();
        let share = spent / (looked.elapsed().as_secs_f64() * n_shards).max(1e-3);
        (busy_before, looked) = (busy, Instant::now());
        lodestore_client::cluster::ServerEntry {
            address: address.to_string(),
            parts: server.parts().iter().map(|part| part.0).collect(),
            version: server.version(),
            busy: share.clamp(0.0, 1.0),
            graph: format!("{:032x}", u128::from_be_bytes(server.graph())),
        }
    };
    Ok(lodestore_client::cluster::Registration::start(map, entry)?)
}

/// Registration in a build without etcd.
#[cfg(not(feature = "etcd"))]
pub(super) enum Registration {}

/// Fails, since a build without etcd registers nowhere.
#[cfg(not(feature = "etcd"))]
pub(super) fn start(map: &str, _: Address, _: &Arc<Server>) -> Result<Registration> {
    Err(UsageError::new(format!(
        "{map}: this build knows no etcd; build it with `--features lode/etcd` (`./x etcd` does)"
    ))
    .into())
}
