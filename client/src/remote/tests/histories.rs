//! Servers that made one version by different commits.

use lodestore_graph::NodeId;
use lodestore_schema::limits::IDS_PER_PULL_MAX;
use lodestore_schema::reply::{PartState, Role};
use lodestore_schema::versions::VersionTag;

use super::{MS, connect, pull};
use crate::error::ClientError;
use crate::fake_server::{FakeServer, PART_NODES, ROW_BYTES};
use crate::remote::{Client, ClientConfig, Pin};
use crate::source::{PullKind, RowSource};

/// Returns two servers of all partitions that made version 3 by different commits.
fn two_histories() -> [FakeServer; 2] {
    [0x33, 0x44].map(|tag| {
        let version = VersionTag { number: 3, tag };
        let server = FakeServer::start_as(&[0, 1], |description| {
            description.version = version.number;
        });
        server.has_version(version);
        server
    })
}

/// Returns the server that answers the first pull of a client, and the other.
fn asked_first(client: &Client, servers: [FakeServer; 2]) -> [FakeServer; 2] {
    let (stats, _) = pull(client, PullKind::Vector).unwrap();
    assert_eq!((stats.versions.lowest, stats.versions.highest), (3, 3));
    let [one, other] = servers;
    if one.n_pulls() > 0 { [one, other] } else { [other, one] }
}

#[test]
fn a_server_of_another_history_serves_no_rows_and_both_are_named() {
    for kind in [PullKind::Sync, PullKind::Vector] {
        let [one, other] = two_histories();
        let client = connect(&[&one, &other], 1.0);
        let [known, stranger] = asked_first(&client, [one, other]);
        known.breaks(true);
        let error = pull(&client, kind).unwrap_err();
        let told = error.to_string();
        assert!(matches!(error, ClientError::OtherHistory { .. }), "{told}");
        assert!(told.contains(&known.address) && told.contains(&stranger.address), "{told}");
        assert!(stranger.n_pulls() > 0, "it was asked, and its rows were not taken");
        // The server whose version was read continues to serve.
        known.breaks(false);
        pull(&client, kind).unwrap();
    }
}

#[test]
fn a_hedge_that_is_refused_for_its_history_leaves_the_first_in_place() {
    let [one, other] = two_histories();
    let client = connect(&[&one, &other], 1.0);
    let [known, stranger] = asked_first(&client, [one, other]);
    stranger.falsifies(true);
    for _ in 0..60 {
        pull(&client, PullKind::Sync).unwrap();
    }
    known.delay(MS(300));
    for _ in 0..3 {
        pull(&client, PullKind::Sync).unwrap();
    }
}

#[test]
fn a_pin_is_of_one_history_and_is_checked_when_it_is_made() {
    let [one, other] = two_histories();
    let connect = |version: VersionTag| {
        let (deadline, pin) = (MS(20_000), Some(Pin::At(version)));
        let config = ClientConfig { deadline, pin, ..ClientConfig::default() };
        Client::connect(&[&one.address, &other.address], config)
    };
    let version = |tag| VersionTag { number: 3, tag };
    let client = connect(version(0x44)).unwrap();
    assert_eq!(client.version_id().unwrap(), version(0x44));
    let before = other.n_pulls();
    pull(&client, PullKind::Vector).unwrap();
    assert!(other.n_pulls() > before, "it alone has the version");
    let error = connect(version(0x55)).map(drop).unwrap_err();
    assert!(error.to_string().contains("0000000000000055"), "{error}");
    let error = connect(VersionTag { number: 4, tag: 0 }).map(drop).unwrap_err();
    assert!(
        matches!(error, ClientError::NoVersion { version, .. } if version.number == 4),
        "{error}"
    );
}

#[test]
fn a_pin_of_the_newest_version_is_of_the_writers_history() {
    let version = |tag| VersionTag { number: 3, tag };
    let server = |role, tag| {
        let server = FakeServer::start_as(&[0, 1], |description| {
            description.version = 3;
            description.states = vec![PartState { version: 3, tag, role }; 2];
        });
        server.has_version(version(tag));
        server
    };
    let (writer, reader) = (server(Role::Writer, 0x33), server(Role::Reader, 0x44));
    for addresses in [[&writer.address, &reader.address], [&reader.address, &writer.address]] {
        let (deadline, pin) = (MS(20_000), Some(Pin::Newest));
        let config = ClientConfig { deadline, pin, ..ClientConfig::default() };
        let client = Client::connect(&addresses, config).unwrap();
        assert_eq!(client.version_id().unwrap(), version(0x33));
    }
}

/// The server has committed between two requests of a call, and keeps no earlier version.
#[test]
fn a_call_whose_version_is_gone_starts_again() {
    let server = FakeServer::start(&[0, 1]);
    server.has_version(VersionTag { number: 3, tag: 0x33 });
    let client = connect(&[&server], 0.0);
    let n_pulls = server.n_pulls();
    server.commits_after(1);
    let ids = (0..2 * PART_NODES).cycle().take(IDS_PER_PULL_MAX + 9).map(NodeId);
    let ids: Vec<NodeId> = ids.collect();
    let mut out = vec![0xEE; ids.len() * ROW_BYTES];
    let stats = client.pull("x", &ids, &mut out, PullKind::Sync).unwrap();
    assert_eq!((stats.versions.lowest, stats.versions.highest), (4, 4));
    assert_eq!(server.n_pulls() - n_pulls, 4, "all of its rows are asked for again");
    assert_eq!(bytemuck::cast_slice::<NodeId, u8>(&ids), out);
}
