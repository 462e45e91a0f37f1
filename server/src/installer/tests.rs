use std::ops::ControlFlow;
use std::path::Path;

use lodestore_store::update::Folding;
use lodestore_store::{Graph, OpenMode, OpenOptions};

use super::*;
use crate::config::ServerConfig;
use crate::testing::{Faulty, OpenFault, fetch, import, put};

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
    assert_eq!(installer.version(part), Some(1), "a shard reads the version before");
    assert!(installer.install(&manifest).unwrap(), "it is tried again");
    assert_eq!(installer.version(part), Some(2));
    assert!(!installer.install(&manifest).unwrap(), "all serve it");
    drop(writer);
    server.stop().unwrap();
}

/// No other version may come for long.
#[test]
fn files_that_a_version_has_replaced_go_after_a_restart_and_when_no_reader_is_left() {
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
    assert!(old(1), "it was kept for readers");
    let server = serve(&into);
    assert!(!server.installer().install(&manifest).unwrap());
    assert!(!old(1) && old(2), "after a restart");

    assert!(server.installer().install(&fold(2)).unwrap());
    assert!(old(2), "it is kept for readers");
    let hour = Duration::from_secs(3600);
    server.plan.partitions.pins.expire(Instant::now() + hour);
    let end = Instant::now() + Duration::from_secs(60);
    while old(2) {
        assert!(Instant::now() < end, "its file stays");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(old(3));
    server.stop().unwrap();
}
