//! Discovery: the servers that a map names, and their descriptions.

use std::time::{Duration, Instant};

use lodestore_schema::reply::Description;
use tracing::warn;

use super::ClientConfig;
use super::describe::describe;
use super::parallel::parallel_map;
use super::retry::{RetryAction, RetryBudget};
use crate::address::Address;
use crate::cluster::{ClusterMap, Member};
use crate::error::ClientError;
use crate::security::Security;

/// Longest wait for the description of a server, when others may respond.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) fn find(
    map: &ClusterMap,
    config: &ClientConfig,
    deadline: Instant,
) -> Result<Vec<(Address, Description)>, ClientError> {
    if map.is_live() {
        find_living(map, config, deadline)
    } else {
        find_named(map, &config.security, deadline)
    }
}

/// Finds servers of a live map, of which one is enough. Waits for it until the deadline, since etcd
/// or the server may be about to start.
fn find_living(
    map: &ClusterMap,
    config: &ClientConfig,
    deadline: Instant,
) -> Result<Vec<(Address, Description)>, ClientError> {
    let mut retry = RetryBudget::new(config, deadline);
    loop {
        let error = match find_some(map, &config.security, deadline) {
            Ok(asked) if !asked.servers.is_empty() => return Ok(asked.servers),
            Ok(asked) => asked.absent.into_iter().next().map_or(ClientError::NoServers, |it| it.1),
            Err(error) => error,
        };
        let action = if comes_later(&error) {
            RetryAction::Later(Duration::ZERO)
        } else {
            RetryAction::Again
        };
        std::thread::sleep(retry.pause(action).ok_or(error)?);
    }
}

/// Finds servers that are named one by one. Some may be unreachable if others hold every partition.
///
/// # Errors
/// A server responds with an error, or is unreachable and alone holds some partition. A silent
/// server is asked again until the deadline.
fn find_named(
    map: &ClusterMap,
    security: &Security,
    deadline: Instant,
) -> Result<Vec<(Address, Description)>, ClientError> {
    loop {
        let DiscoveredServers { servers, mut absent } = find_some(map, security, deadline)?;
        if let Some(at) = absent.iter().position(|(_, error)| !is_absence(error)) {
            return Err(absent.swap_remove(at).1);
        }
        let Some((_, error)) = absent.first() else { return Ok(servers) };
        if has_all_parts(&servers) {
            let all: Vec<String> = absent.iter().map(|(address, _)| address.to_string()).collect();
            warn!(
                absent = all.join(", "), %error,
                "skipping unreachable servers, others hold their partitions"
            );
            return Ok(servers);
        }
        let silent = absent.iter().position(|(_, error)| is_silence(error));
        if silent.is_none() || Instant::now() >= deadline {
            return Err(absent.swap_remove(silent.unwrap_or(0)).1);
        }
    }
}

/// Returns whether etcd or a server may be about to start. A missing file is an error of the
/// caller.
fn comes_later(error: &ClientError) -> bool {
    match error {
        ClientError::NoServers | ClientError::Connect { .. } | ClientError::Unavailable { .. } => {
            true
        }
        ClientError::Map { map, .. } => map.starts_with("etcd:"),
        _ => false,
    }
}

/// The servers of a map, in its order.
struct DiscoveredServers {
    servers: Vec<(Address, Description)>,
    absent: Vec<(Address, ClientError)>,
}

/// Returns whether a server cannot be reached now; other errors are reported.
fn is_absence(error: &ClientError) -> bool {
    is_silence(error)
        || matches!(
            RetryAction::of(error),
            RetryAction::Again | RetryAction::Away | RetryAction::Later(_)
        )
}

fn is_silence(error: &ClientError) -> bool {
    match error {
        ClientError::Deadline { .. } => true,
        ClientError::Connect { source, .. } | ClientError::Unavailable { source, .. } => {
            source.kind() == std::io::ErrorKind::TimedOut
        }
        _ => false,
    }
}

fn has_all_parts(servers: &[(Address, Description)]) -> bool {
    let Some((_, first)) = servers.first() else { return false };
    let n_parts = first.bounds.len().saturating_sub(1);
    (0..n_parts)
        .all(|part| servers.iter().any(|(_, it)| it.parts.iter().any(|&p| usize::from(p) == part)))
}

/// Asks all of a map's servers concurrently.
fn find_some(
    map: &ClusterMap,
    security: &Security,
    deadline: Instant,
) -> Result<DiscoveredServers, ClientError> {
    // Each server has its own time limit, however many silent servers were asked before it.
    let ask = |Member { address, .. }: &Member| {
        let until = deadline.min(Instant::now() + DESCRIBE_TIMEOUT);
        (address.clone(), describe(address, security, until))
    };
    let all = parallel_map(&map.members()?, ask);
    let mut asked = DiscoveredServers { servers: Vec::new(), absent: Vec::new() };
    for (address, described) in all {
        match described {
            Ok(description) => asked.servers.push((address, description)),
            Err(error) => asked.absent.push((address, error)),
        }
    }
    Ok(asked)
}

/// Returns whether `servers` has every server that the map names.
pub(super) fn are_all(map: &ClusterMap, servers: &[(Address, Description)]) -> bool {
    let is_there = |member: &Member| servers.iter().any(|(known, _)| *known == member.address);
    map.members().is_ok_and(|members| members.iter().all(is_there))
}
