//! The version that a client is pinned to. It is chosen at connect time, and servers keep it from
//! then on.

use std::collections::BTreeMap;
use std::time::Instant;

use lodestore_graph::PartId;
use lodestore_schema::reply::{Description, Role};
use lodestore_schema::request::PullKind;
use lodestore_schema::versions::VersionTag;
use lodestore_schema::{FailureCode, Reply, Request, RequestBody, Versions};
use tracing::warn;

use super::floors::Floors;
use super::parallel::parallel_map;
use crate::address::Address;
use crate::connection::Connection;
use crate::error::ClientError;
use crate::security::Security;

/// The version that a client is pinned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// The newest version that some server has of every partition.
    Newest,
    /// This version; with tag 0, by any commit.
    At(VersionTag),
}

/// A version that servers keep, each partition on at least one.
pub(super) struct Pinned {
    pub(super) number: u32,
    /// The version of each partition, with its commit.
    pub(super) floors: Floors,
}

impl Pinned {
    /// Returns the version; its tag is 0 unless all partitions have the same commit.
    pub(super) fn version(&self, parts: impl Iterator<Item = PartId>) -> VersionTag {
        // A client connected to some partitions only has no floors of the others.
        let known = parts.map(|part| self.floors.of(part)).filter(|it| it.number == self.number);
        VersionTag { number: self.number, ..common(known) }
    }
}

/// Returns the lowest of these versions. Its tag is 0 unless all versions with that number have the
/// same tag.
pub(super) fn common(versions: impl Iterator<Item = VersionTag>) -> VersionTag {
    let mut lowest: Option<VersionTag> = None;
    for version in versions {
        lowest = match lowest {
            Some(known) if known.number < version.number => Some(known),
            Some(known) if known.number == version.number && known.tag != version.tag => {
                Some(VersionTag::any(known.number))
            }
            _ => Some(version),
        };
    }
    lowest.unwrap_or_default()
}

/// Returns the newest version of which every held partition has a server here.
pub(super) fn newest_common(servers: &[(Address, Description)]) -> u32 {
    let mut newest: BTreeMap<u16, u32> = BTreeMap::new();
    for (_, description) in servers {
        for (part, state) in description.held() {
            let known = newest.entry(part).or_default();
            *known = state.version.max(*known);
        }
    }
    newest.into_values().min().unwrap_or(0)
}

/// Chooses the version, and has servers keep it before the first pull. A pull that names the
/// version keeps it longer, even a pull of no rows.
///
/// Returns `None` if the newest version was chosen and has been compacted away since the servers
/// were described: describe them again.
///
/// # Errors
/// No server has the version of a partition, or two writers made it by different commits.
pub(super) fn choose(
    servers: &[(Address, Description)],
    pin: Pin,
    security: &Security,
    deadline: Instant,
) -> Result<Option<Pinned>, ClientError> {
    let wanted = match pin {
        Pin::Newest => VersionTag::any(newest_common(servers)),
        Pin::At(version) => version,
    };
    // Servers that are behind are skipped. Writers come first: their commit decides the history.
    let has_it = |it: &Description| it.held().all(|(_, state)| state.version >= wanted.number);
    let replicas = servers.iter().filter(|(_, it)| !it.parts.is_empty() && !it.tensors.is_empty());
    let mut replicas: Vec<_> = replicas.filter(|(_, it)| has_it(it)).collect();
    replicas.sort_by_key(|(_, it)| it.held().all(|(_, state)| state.role != Role::Writer));
    let keep = |replica: &&(Address, Description)| keep(replica, wanted, security, deadline);
    let answers = parallel_map(&replicas, keep);
    let n_parts = servers.first().map_or(0, |(_, it)| it.bounds.len().saturating_sub(1));
    let floors = Floors::new(n_parts);
    let (mut has_part, mut refusal) = (vec![false; n_parts], None);
    for ((address, description), kept) in replicas.into_iter().zip(answers) {
        let versions = match kept {
            Ok(versions) => versions,
            Err(error @ ClientError::Refused { .. }) => {
                refusal.get_or_insert(error);
                continue;
            }
            // The retries of a pull handle a server that went down meanwhile.
            Err(ClientError::Connect { .. } | ClientError::Unavailable { .. }) => continue,
            Err(error) => return Err(error),
        };
        let is_writer = |part| description.state(part).is_some_and(|it| it.role == Role::Writer);
        for part in description.parts.iter().map(|&part| PartId(part)) {
            match floors.raise(part, version_of(&versions, part, wanted), address) {
                Err(error) if is_writer(part.0) => return Err(error),
                Err(error) => warn!(%error, "not pulling partition {part} from this server"),
                Ok(()) => has_part.iter_mut().skip(part.index()).take(1).for_each(|it| *it = true),
            }
        }
    }
    // A server without tensors has no rows to keep.
    let is_held = |part: u16| {
        let mut with_rows = servers.iter().filter(|(_, it)| !it.tensors.is_empty());
        with_rows.any(|(_, it)| it.state(part).is_some())
    };
    let lacking = (0u16..).zip(&has_part).find(|(part, has)| !**has && is_held(*part));
    let Some((part, _)) = lacking else {
        return Ok(Some(Pinned { number: wanted.number, floors }));
    };
    if pin == Pin::Newest && refusal.as_ref().is_some_and(is_folded) && Instant::now() < deadline {
        return Ok(None);
    }
    Err(refusal.unwrap_or(ClientError::NoVersion { part: PartId(part), version: wanted }))
}

/// Returns the version of a partition from the reply to a pull of `wanted`. A server before wire
/// version 6 names its latest committed versions instead.
fn version_of(versions: &Versions, part: PartId, wanted: VersionTag) -> VersionTag {
    let found = versions.of(part.0);
    if found.number == wanted.number { found } else { wanted }
}

fn is_folded(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused { failure, .. } if failure.code == FailureCode::OtherVersion)
}

/// Has a server keep a version; returns the versions that its reply names.
fn keep(
    (address, description): &(Address, Description),
    version: VersionTag,
    security: &Security,
    deadline: Instant,
) -> Result<Versions, ClientError> {
    let mut connection = Connection::open(address, security, deadline)?;
    let graph = description.tensor_tag(&description.tensors[0], connection.version());
    let body = RequestBody::Pull { tensor: 0, kind: PullKind::Sync };
    let floors = Versions { lowest: version, above: Vec::new() };
    let request = Request { graph, version: version.number, floors, ..Request::new(body) };
    match connection.ask(request, &[], deadline)? {
        Reply::Rows { versions, .. } => Ok(versions),
        _ => Err(ClientError::Confused { address: address.clone() }),
    }
}

#[cfg(test)]
mod tests {
    use lodestore_schema::reply::PartState;

    use super::*;

    #[test]
    fn the_newest_version_with_a_server_for_every_partition_is_chosen() {
        let server = |parts: &[u16], versions: &[u32]| {
            let state = |&version| PartState { version, ..PartState::default() };
            let states = versions.iter().map(state).collect();
            let parts = parts.to_vec();
            (
                "127.0.0.1:1".parse().unwrap(),
                Description { parts, states, ..Description::default() },
            )
        };
        assert_eq!(newest_common(&[server(&[0, 1], &[3, 3]), server(&[0, 1], &[2, 2])]), 3);
        assert_eq!(newest_common(&[server(&[0], &[7]), server(&[0, 1], &[2, 5])]), 5);
        assert_eq!(newest_common(&[]), 0);
    }

    #[test]
    fn the_tag_is_0_unless_all_partitions_have_the_same_commit() {
        let version = |number, tag| VersionTag { number, tag };
        let of = |all: &[(u32, u64)]| common(all.iter().map(|&(number, tag)| version(number, tag)));
        assert_eq!(of(&[(3, 5), (3, 5)]), version(3, 5));
        assert_eq!(of(&[(3, 5), (3, 6), (3, 5)]), version(3, 0));
        assert_eq!(of(&[(4, 6), (3, 5), (9, 1)]), version(3, 5));
        assert_eq!(of(&[]), version(0, 0));
    }
}
