use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lodestore_graph::{NodeId, PartId};
use lodestore_schema::limits::IDS_PER_PULL_MAX;
use lodestore_schema::request::{CommitStep, PullKind, Push};
use lodestore_schema::versions::VersionTag;
use lodestore_schema::{FailureCode, Reply, Request, RequestBody, Versions};
use lodestore_store::CommitId;
use lodestore_store::update::{Folding, KeepRule};

use crate::config::ServerConfig;
use crate::limits::{CALLS_WAITING_MAX, WRITE_THREADS};
use crate::server::Server;
use crate::testing::{Faulty, OpenFault, import, put, row};
use testing::wire::PlainConnection;

fn serve(graph: &Path) -> (Server, PlainConnection) {
    let config = ServerConfig {
        listen: Some(([127, 0, 0, 1], 0).into()),
        n_shards: 2,
        writable: true,
        insecure: true,
        keep: KeepRule::NEWEST,
        ..ServerConfig::new(graph)
    };
    let server = Server::start(&config).unwrap();
    let address = server.address().unwrap().to_string();
    (server, PlainConnection::open(&address))
}

/// Holds bulk memory indefinitely: it announces ids and never sends them.
fn announce(address: &str, n_ids: usize) -> PlainConnection {
    let mut holder = PlainConnection::open(address);
    let body = RequestBody::Pull { tensor: 0, kind: PullKind::Vector };
    let mut frame = Vec::new();
    Request::new(body).append_to(n_ids * size_of::<NodeId>(), &mut frame);
    holder.stream.write_all(&frame).unwrap();
    holder
}

#[test]
fn a_sync_pull_has_room_while_bulk_holds_all_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let graph = import(dir.path(), 100);
    let config = ServerConfig {
        listen: Some(([127, 0, 0, 1], 0).into()),
        n_shards: 1,
        ..ServerConfig::new(&graph)
    };
    let server = Server::start(&config).unwrap();
    let address = server.address().unwrap().to_string();
    let holders: Vec<_> = [[IDS_PER_PULL_MAX; 16], [2; 16]]
        .concat()
        .into_iter()
        .map(|n_ids| announce(&address, n_ids))
        .collect();
    let mut plain = PlainConnection::open(&address);
    let mut pull = |kind: PullKind| {
        plain.ask(RequestBody::Pull { tensor: 0, kind }, &[NodeId(7)]);
        plain.answer()
    };
    // Until the server has read all announcements.
    let refusal = loop {
        if let (Reply::Failure(refusal), _) = pull(PullKind::Vector) {
            break refusal;
        }
    };
    assert_eq!(refusal.code, FailureCode::Overloaded, "{refusal}");
    match pull(PullKind::Sync) {
        (Reply::Rows { n_rows: 1, .. }, found) => assert_eq!(found, row(7, 0)),
        other => panic!("{other:?}"),
    }
    drop(holders);
    server.stop().unwrap();
}

fn commit(version: u32) -> RequestBody {
    RequestBody::Commit { version, step: CommitStep::Publish, label: 0 }
}

fn served(server: &Server) -> u32 {
    server.plan.partitions.served_version(PartId(0))
}

/// Waits until all shards serve a version.
fn wait_for(server: &Server, version: u32) {
    let end = Instant::now() + Duration::from_secs(10);
    while served(server) < version {
        assert!(Instant::now() < end, "version {} is served", served(server));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_shard_that_cannot_open_a_version_reads_it_later_without_another_commit() {
    let dir = tempfile::tempdir().unwrap();
    let graph = import(dir.path(), 100);
    let (server, mut plain) = serve(&graph);
    put(&server.plan.partitions.live, 100, 1);
    let _fault = Faulty::new(graph.join("part-000/x.v2.delta"), OpenFault::Fails);
    plain.ask(commit(2), &[]);
    let failure = plain.failure();
    assert_eq!(failure.code, FailureCode::Overloaded, "{failure}");
    assert!(failure.message.contains("durable"), "{failure}");
    wait_for(&server, 2);
    plain.ask(commit(2), &[]);
    assert!(matches!(plain.answer().0, Reply::Committed { version: 2, .. }));
    server.stop().unwrap();
}

/// A commit that ends while another one has published a later version vouches only for its own.
#[test]
fn a_version_is_acknowledged_once_all_shards_read_it_and_not_before() {
    let dir = tempfile::tempdir().unwrap();
    let graph = import(dir.path(), 100);
    let (server, mut first) = serve(&graph);
    let mut second = PlainConnection::open(&server.address().unwrap().to_string());
    let delta = |version: u32| graph.join(format!("part-000/x.v{version}.delta"));
    let [of_second, of_third] = [2, 3].map(|at| Faulty::new(delta(at), OpenFault::Waits));
    let live = &server.plan.partitions.live;
    put(live, 100, 1);
    first.ask(commit(2), &[]);
    of_second.wait_for(2);
    put(live, 100, 2);
    second.ask(commit(3), &[]);
    while live.version() < 3 {
        std::thread::yield_now();
    }
    drop(of_second);
    assert!(matches!(first.answer().0, Reply::Committed { version: 2, .. }));
    assert_eq!(served(&server), 2, "shards cannot have opened version 3");
    drop(of_third);
    assert!(matches!(second.answer().0, Reply::Committed { .. }));
    assert_eq!(served(&server), 3);
    server.stop().unwrap();
}

/// A reply names the version that was read. If it named a committed version that is not served yet,
/// the server would refuse the reader's next pull.
#[test]
fn readers_are_served_while_shards_switch_to_a_version() {
    let dir = tempfile::tempdir().unwrap();
    let graph = import(dir.path(), 100);
    let (server, mut plain) = serve(&graph);
    let mut reader = PlainConnection::open(&server.address().unwrap().to_string());
    let mut floors = Versions::default();
    let mut check = |turn: u32| {
        let body = RequestBody::Pull { tensor: 0, kind: PullKind::Sync };
        reader.send(&Request { floors: floors.clone(), ..Request::new(body) }, &[NodeId(7)]);
        match reader.answer() {
            (Reply::Rows { versions, .. }, found) => {
                assert_eq!((versions.of(0).number, found), (turn + 1, row(7, turn).to_vec()));
                floors = versions;
            }
            other => panic!("turn {turn}: {other:?}"),
        }
    };
    put(&server.plan.partitions.live, 100, 1);
    let fault = Faulty::new(graph.join("part-000/x.v2.delta"), OpenFault::Waits);
    plain.ask(commit(2), &[]);
    fault.wait_for(2);
    check(0);
    check(0);
    assert_eq!(plain_version(&server), 1, "the described version is served");
    drop(fault);
    assert!(matches!(plain.answer().0, Reply::Committed { version: 2, .. }));
    check(1);
    check(1);
    assert_eq!(plain_version(&server), 2);
    server.stop().unwrap();
}

/// Returns the version that a server describes.
fn plain_version(server: &Server) -> u32 {
    PlainConnection::open(&server.address().unwrap().to_string()).describe().version
}

#[test]
fn a_full_queue_of_writes_keeps_the_received_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let (server, mut plain) = serve(&import(dir.path(), 100));
    let piece = |at: u32| {
        let push =
            Push { put: 9, n_rows: 1, piece: at, is_last: at == 1, total_rows: 2, tensor: 0 };
        let body: Vec<u8> = at.to_le_bytes().into_iter().chain(row(at, 1)).collect();
        (RequestBody::Push(push), body)
    };
    let mut send = |at: u32| {
        let (request, body) = piece(at);
        plain.ask_bytes(request, &body);
        plain.answer().0
    };
    assert_eq!(send(0), Reply::Pushed { version: 0 });
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap();
    let mut n_calls = 0;
    loop {
        let gate = Arc::clone(&gate);
        match server.plan.threads.writes.call(move || drop(gate.lock().unwrap())) {
            Ok(_) => n_calls += 1,
            // Every thread runs one.
            Err(_) if n_calls >= WRITE_THREADS + CALLS_WAITING_MAX => break,
            Err(_) => std::thread::yield_now(),
        }
    }
    match send(1) {
        Reply::Failure(failure) => assert_eq!(failure.code, FailureCode::Overloaded, "{failure}"),
        other => panic!("{other:?}"),
    }
    drop(closed);
    while server.plan.threads.writes.n_waiting() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(send(1), Reply::Pushed { version: 2 });
    server.stop().unwrap();
}

#[test]
fn the_newest_version_is_kept_for_a_reader_that_has_just_seen_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let (server, mut plain) = serve(&import(dir.path(), 100));
    let seen = plain.describe().version;
    let live = &server.plan.partitions.live;
    put(live, 100, 1);
    plain.ask(commit(2), &[]);
    assert!(matches!(plain.answer().0, Reply::Committed { version: 2, .. }));
    live.compact(None, None, Folding::All, &mut |_, _| ControlFlow::Continue(())).unwrap();
    for (version, turn) in [(seen, 0), (2, 1), (0, 1)] {
        let body = RequestBody::Pull { tensor: 0, kind: PullKind::Sync };
        plain.send(&Request { version, ..Request::new(body) }, &[NodeId(7)]);
        match plain.answer() {
            (Reply::Rows { n_rows: 1, .. }, found) => assert_eq!(found, row(7, turn)),
            other => panic!("version {version}: {other:?}"),
        }
    }
    server.stop().unwrap();
}

/// Pulls node 7 of a version, 0 for the newest, from a floor on.
fn pull(
    plain: &mut PlainConnection,
    version: u32,
    floor: VersionTag,
) -> Result<Vec<u8>, FailureCode> {
    let body = RequestBody::Pull { tensor: 0, kind: PullKind::Sync };
    let floors = Versions { lowest: floor, above: Vec::new() };
    plain.send(&Request { version, floors, ..Request::new(body) }, &[NodeId(7)]);
    match plain.answer() {
        (Reply::Rows { n_rows: 1, .. }, found) => Ok(found),
        (Reply::Failure(failure), _) => Err(failure.code),
        other => panic!("{other:?}"),
    }
}

/// Puts and commits version `version`, with the rows of turn `version - 1`.
fn commit_next(server: &Server, plain: &mut PlainConnection, version: u32) {
    put(&server.plan.partitions.live, 100, version - 1);
    plain.ask(commit(version), &[]);
    assert!(matches!(plain.answer().0, Reply::Committed { .. }));
}

/// The server's later version does not show which commit made the earlier one.
#[test]
fn a_version_of_another_commit_is_refused_after_the_next_one_too() {
    let dir = tempfile::tempdir().unwrap();
    let graph = import(dir.path(), 100);
    let (server, mut plain) = serve(&graph);
    [2, 3].iter().for_each(|&version| commit_next(&server, &mut plain, version));
    let check = |server: &Server, plain: &mut PlainConnection| {
        let made = server.plan.partitions.live.commit_of(PartId(0), 2).unwrap().tag();
        for tag in [made, 0] {
            let found = pull(plain, 0, VersionTag { number: 2, tag });
            assert_eq!(found, Ok(row(7, 2).to_vec()));
        }
        let other = VersionTag { number: 2, tag: made ^ 1 };
        assert_eq!(pull(plain, 0, other), Err(FailureCode::OtherHistory));
    };
    check(&server, &mut plain);
    server.stop().unwrap();
    // After the restart only the catalog knows the commits of served versions.
    let (server, mut plain) = serve(&graph);
    check(&server, &mut plain);
    server.stop().unwrap();
}

#[test]
fn a_version_that_a_pull_names_is_kept_across_later_commits() {
    let dir = tempfile::tempdir().unwrap();
    let (server, mut plain) = serve(&import(dir.path(), 100));
    assert_eq!(pull(&mut plain, 1, VersionTag::default()), Ok(row(7, 0).to_vec()));
    for version in 2..20 {
        commit_next(&server, &mut plain, version);
    }
    let live = &server.plan.partitions.live;
    live.compact(None, None, Folding::All, &mut |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(pull(&mut plain, 1, VersionTag::default()), Ok(row(7, 0).to_vec()));
    let unnamed = pull(&mut plain, 2, VersionTag::default());
    assert_eq!(unnamed, Err(FailureCode::OtherVersion), "later versions were the newest since");
    server.stop().unwrap();
}

/// Two concurrent commits have drawn an id each; the first step has fixed one of them.
#[test]
fn a_commit_replies_with_its_fixed_id() {
    let dir = tempfile::tempdir().unwrap();
    let (server, mut plain) = serve(&import(dir.path(), 100));
    put(&server.plan.partitions.live, 100, 1);
    let labels = [CommitId::draw(), CommitId::draw()];
    let labels = labels.map(|it| u128::from_be_bytes(it.to_bytes()));
    let mut ask = |step, label| {
        plain.ask(RequestBody::Commit { version: 2, step, label }, &[]);
        match plain.answer().0 {
            Reply::Committed { label, .. } => label,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(CommitStep::Prepare, labels[0]), labels[0]);
    assert_eq!(ask(CommitStep::Prepare, labels[1]), labels[0], "it is fixed");
    assert_eq!(ask(CommitStep::Publish, labels[0]), labels[0]);
    assert_eq!(ask(CommitStep::Publish, labels[1]), labels[0], "it is committed");
    server.stop().unwrap();
}
