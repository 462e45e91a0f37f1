use std::ops::ControlFlow;
use std::path::Path;

use lodestore_graph::NodeId;
use lodestore_schema::reply::Role;
use lodestore_schema::request::{CommitStep, PullKind};
use lodestore_schema::versions::VersionTag;
use lodestore_schema::{FailureCode, Reply, Request, RequestBody, Versions};
use lodestore_store::update::Folding;
use lodestore_store::{Graph, OpenMode, OpenOptions};

use super::*;
use crate::config::ServerConfig;
use crate::testing::{Faulty, OpenFault, fetch, import, put, row};
use testing::wire::PlainConnection;

fn open_writer(graph: &Path) -> Arc<GraphHandle> {
    let graph = Graph::open(graph).unwrap();
    Arc::new(GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap())
}

fn serve(into: &Path) -> Server {
    let server = Server::start(&ServerConfig {
        listen: Some(([127, 0, 0, 1], 0).into()),
        n_shards: 2,
        follow: Some("10.0.0.5:7171".into()),
        ..ServerConfig::new(into)
    });
    server.unwrap()
}

#[test]
fn a_version_that_a_shard_cannot_open_is_not_served_until_it_is_installed_again() {
    let dir = tempfile::tempdir().unwrap();
    let (graph, into) = (import(dir.path(), 100), dir.path().join("follower"));
    let writer = open_writer(&graph);
    fetch(&writer, &into);
    let server = serve(&into);
    let (installer, part) = (server.installer(), PartId(0));
    assert_eq!(installer.version(part), Some(1));
    put(&writer, 100, 1);
    writer.commit_version().unwrap();
    let manifest = fetch(&writer, &into);
    let _fault = Faulty::new(into.join("part-000/x.v2.delta"), OpenFault::Fails);
    let refused = installer.install(&manifest).unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, ServerError::NotSwitched { version: 2, .. }), "{text}");
    assert!(text.contains("on purpose"), "{text}");
    assert_eq!(installer.version(part), Some(1), "a shard serves the previous version");
    assert!(installer.install(&manifest).unwrap(), "the switch is retried");
    assert_eq!(installer.version(part), Some(2));
    assert!(!installer.install(&manifest).unwrap(), "all shards serve it");
    drop(writer);
    server.stop().unwrap();
}

/// The next version may be far off.
#[test]
fn replaced_files_are_removed_after_a_restart_and_after_the_last_reader() {
    let dir = tempfile::tempdir().unwrap();
    let (graph, into) = (import(dir.path(), 100), dir.path().join("follower"));
    let writer = open_writer(&graph);
    fetch(&writer, &into);
    let fold = |turn| {
        put(&writer, 100, turn);
        writer.commit_version().unwrap();
        let mut go_on = |_, _| ControlFlow::Continue(());
        writer.compact(None, None, Folding::All, &mut go_on).unwrap();
        fetch(&writer, &into)
    };
    let old = |version: u32| into.join(format!("part-000/x.v{version}.seg")).exists();
    let server = serve(&into);
    let manifest = fold(1);
    assert!(server.installer().install(&manifest).unwrap());
    server.stop().unwrap();
    assert!(old(1), "kept for readers");
    let server = serve(&into);
    assert!(!server.installer().install(&manifest).unwrap());
    assert!(!old(1) && old(2), "after a restart");

    assert!(server.installer().install(&fold(2)).unwrap());
    assert!(old(2), "kept for readers");
    let hour = Duration::from_secs(3600);
    server.plan.partitions.pins.expire(Instant::now() + hour);
    let end = Instant::now() + Duration::from_secs(60);
    while old(2) {
        assert!(Instant::now() < end, "the file is not removed");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(old(3));
    server.stop().unwrap();
}

/// Another writer continues from the published version and writes its own later versions.
#[test]
fn a_fenced_writer_is_a_reader_at_its_published_version() {
    check_fenced(None, 2);
}

/// The other writer may have published the same versions that this one committed beyond
/// `published`.
#[test]
fn a_fenced_writer_is_a_reader_at_the_last_common_version() {
    check_fenced(Some(1), 1);
    check_fenced(Some(2), 2);
}

fn check_fenced(common: Option<u32>, last: u32) {
    let dir = tempfile::tempdir().unwrap();
    let graph = import(dir.path(), 100);
    let server = Server::start(&ServerConfig {
        listen: Some(([127, 0, 0, 1], 0).into()),
        n_shards: 2,
        writable: true,
        insecure: true,
        publishes: true,
        ..ServerConfig::new(&graph)
    });
    let server = server.unwrap();
    let mut plain = PlainConnection::open(&server.address().unwrap().to_string());
    let commit = |plain: &mut PlainConnection, version| {
        put(&server.plan.partitions.live, 100, version - 1);
        let step = CommitStep::Publish;
        plain.ask(RequestBody::Commit { version, step, label: 0 }, &[]);
        assert!(matches!(plain.answer().0, Reply::Committed { .. }));
    };
    commit(&mut plain, 2);
    let publishing = server.publishing();
    publishing.note(PartId(0), 2);
    commit(&mut plain, 3);
    let state = |plain: &mut PlainConnection| {
        let state = plain.describe().state(0).unwrap();
        (state.version, state.role)
    };
    assert_eq!(state(&mut plain), (3, Role::Writer));
    let pull = |plain: &mut PlainConnection, version, floor| {
        let body = RequestBody::Pull { tensor: 0, kind: PullKind::Sync };
        let floors = Versions { lowest: VersionTag::any(floor), above: Vec::new() };
        plain.send(&Request { version, floors, ..Request::new(body) }, &[NodeId(7)]);
        match plain.answer() {
            (Reply::Rows { versions, .. }, found) => Ok((versions.of(0).number, found)),
            (Reply::Failure(failure), _) => Err(failure.code),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(pull(&mut plain, 0, 3), Ok((3, row(7, 2).to_vec())));
    publishing.fence(PartId(0), "another writer publishes".into(), common);
    assert_eq!(publishing.fenced(PartId(0)), Some(last));
    assert_eq!(state(&mut plain), (last, Role::Reader));
    for _ in 0..2 {
        assert_eq!(pull(&mut plain, 0, 0), Ok((last, row(7, last - 1).to_vec())));
    }
    // A client that has seen version 3 is sent elsewhere; only a reader pinned to it still gets it.
    assert_eq!(pull(&mut plain, 0, 3), Err(FailureCode::Behind));
    assert_eq!(pull(&mut plain, 3, 3), Ok((3, row(7, 2).to_vec())));
    server.stop().unwrap();
}
