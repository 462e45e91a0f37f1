//! Partitions without a server, unreachable servers, and slow connections.

use std::time::{Duration, Instant};

use lodestore_graph::{NodeId, PartId};
use lodestore_schema::reply::Description;
use lodestore_schema::versions::VersionTag;

use super::{MS, nobody, pull};
use crate::error::ClientError;
use crate::fake_server::FakeServer;
use crate::remote::{Client, ClientConfig};
use crate::source::PullKind;

/// Returns how long a pull looks for the second partition before it fails.
fn looks_for(addresses: &[&str], deadline: Duration) -> Duration {
    let config = ClientConfig { deadline, ..ClientConfig::default() };
    let client = Client::connect(addresses, config).unwrap();
    let start = Instant::now();
    let error = pull(&client, PullKind::Sync).unwrap_err();
    assert!(matches!(error, ClientError::NoReplica { part } if part.0 == 1), "{error}");
    start.elapsed()
}

#[test]
fn a_partition_without_a_server_is_reported_immediately_unless_one_may_appear() {
    let roams = |description: &mut Description| description.roams = true;
    let one = FakeServer::start_as(&[0], roams);
    let took = looks_for(&[&one.address], MS(20_000));
    assert!(took < MS(5000), "all have answered: {took:?}");
    // The partition moves to a server, which may take long.
    let target = FakeServer::start_as(&[], |description| {
        (description.roams, description.arriving) = (true, vec![1]);
    });
    let took = looks_for(&[&one.address, &target.address], MS(700));
    assert!(took >= MS(200), "the move may end: {took:?}");
    // An unreachable server may hold the partition.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{}\n{}\n", one.address, nobody())).unwrap();
    let took = looks_for(&[&format!("map:{}", file.path().display())], MS(700));
    assert!(took >= MS(200), "the server may come back: {took:?}");
    std::fs::write(file.path(), &one.address).unwrap();
    let took = looks_for(&[&format!("map:{}", file.path().display())], MS(20_000));
    assert!(took < MS(5000), "the map names no other: {took:?}");
}

#[test]
fn two_writers_are_reported_soon_unless_a_server_has_not_answered_and_nothing_is_put() {
    let writes = |description: &mut Description| description.writable = true;
    let [one, other] = [(); 2].map(|()| FakeServer::start_as(&[0, 1], writes));
    let took = |addresses: &[&str], deadline| {
        let config = ClientConfig { deadline, ..ClientConfig::default() };
        let client = Client::connect(addresses, config).unwrap();
        let start = Instant::now();
        let error = client.put_rows("x", &[NodeId(1)], &[0; 4]).unwrap_err();
        let is_two = matches!(error, ClientError::TwoWriters { part: PartId(0), .. });
        assert!(is_two, "{error}");
        pull(&client, PullKind::Sync).unwrap();
        start.elapsed()
    };
    let all = took(&[&one.address, &other.address], MS(20_000));
    assert!(all < MS(5000), "all say so: {all:?}");
    let absent = nobody().to_string();
    let some = took(&[&one.address, &other.address, &absent], MS(700));
    assert!(some >= MS(200), "one server may have changed since: {some:?}");
}

/// The lowest version of all servers was returned before, and an error while one of them was down.
#[test]
fn the_version_is_that_of_responding_servers_and_never_below_what_was_read() {
    let server = |version: u32| {
        let server = FakeServer::start_as(&[0, 1], |description| description.version = version);
        server.has_version(VersionTag::any(version));
        server
    };
    let (writer, follower, absent) = (server(5), server(4), nobody().to_string());
    let connect = || {
        let config = ClientConfig { deadline: MS(20_000), ..ClientConfig::default() };
        Client::connect(&[&writer.address, &follower.address, &absent], config).unwrap()
    };
    let version = |client: &Client| client.version_id().map(|version| version.number);
    let [client, reader] = [connect(), connect()];
    assert_eq!(version(&client).unwrap(), 5);
    reader.read_from(5);
    writer.refuses(true);
    assert_eq!(version(&client).unwrap(), 4);
    assert_eq!(version(&reader).unwrap(), 5, "what its gathers read at least");
    follower.refuses(true);
    version(&client).unwrap_err();
}
