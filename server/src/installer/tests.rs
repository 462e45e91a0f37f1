use lodestore_store::{Graph, LiveMode, OpenOptions};

use super::*;
use crate::ServerConfig;
use crate::testing::{Faulty, OpenFault, fetch, import, put};

#[test]
fn a_version_that_a_shard_cannot_open_is_not_served_until_it_is_installed_again() {
    let dir = tempfile::tempdir().unwrap();
    let (graph, into) = (import(dir.path(), 100), dir.path().join("follower"));
    let writer = Graph::open(&graph).unwrap();
    let options = OpenOptions::default();
    let writer = Arc::new(
        lodestore_store::LiveGraph::open(writer, None, LiveMode::Write, &options).unwrap(),
    );
    fetch(&writer, &into);
    let server = Server::start(&ServerConfig {
        listen: Some(([127, 0, 0, 1], 0).into()),
        n_shards: 2,
        follow: Some("10.0.0.5:7171".into()),
        ..ServerConfig::new(&into)
    });
    let server = server.unwrap();
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
