//! Followers in this process: which server they follow as the writer of a partition.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lodestore_client::follow::{FollowPlan, FollowedServer, Follower};
use lodestore_client::{Address, ClientConfig, ClientError};
use lodestore_graph::{NodeId, PartId};
use lodestore_server::{Server, ServerConfig};
use lodestore_store::follow::Manifest;
use lodestore_store::{Graph, GraphHandle, OpenMode, OpenOptions};

use crate::updating::{WIDTH, config, connect, put_rows};
use testing::features::feature_graph;

const PART: PartId = PartId(0);

fn write_at(graph: &Path, socket: &Path, publishes: bool) -> Server {
    let unix = Some(socket.to_owned());
    Server::start(&ServerConfig { listen: None, unix, publishes, ..config(graph, 1) }).unwrap()
}

fn commit(socket: &Path, turn: u32) -> u32 {
    let client = connect(&[format!("unix:{}", socket.display())]);
    client.put_rows("feat", &[NodeId(3)], &put_rows(&[NodeId(3)], turn)).unwrap();
    client.commit().unwrap()
}

/// A folder that follows a writer, without a server.
struct Folder {
    live: GraphHandle,
    /// The failure of the last poll.
    failure: Option<String>,
    /// Address and version of the last writer seen.
    seen: Option<(String, u32)>,
}

impl FollowedServer for Folder {
    fn live(&self) -> &GraphHandle {
        &self.live
    }

    fn served(&self, part: PartId) -> Option<u32> {
        self.live.part_version(part)
    }

    fn install(&mut self, manifest: &Manifest) -> Result<bool, ClientError> {
        Ok(self.live.install(manifest)?)
    }

    fn looked(&mut self, _: PartId, writer: &Address, newest: u32) {
        self.seen = Some((writer.to_string(), newest));
    }

    fn polled(&mut self, _: PartId, result: Result<(), &ClientError>) {
        self.failure = result.err().map(ToString::to_string);
    }
}

/// A fenced server still serves the partition, as a reader.
#[test]
fn a_follower_leaves_a_server_that_is_no_longer_the_writer() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 8, WIDTH, 2);
    testing::edges::add_edges(&graph);
    let [copy, into, first, second] =
        ["copy", "into", "first", "second"].map(|name| dir.path().join(name));
    assert!(Command::new("cp").args(["-r".as_ref(), &*graph, &*copy]).status().unwrap().success());
    let from: [Address; 2] = [&first, &second].map(|path| Address::Unix(path.clone()));
    let old = write_at(&graph, &first, true);
    let config = ClientConfig { deadline: Duration::from_secs(5), ..ClientConfig::default() };
    let plan = FollowPlan { from: from.to_vec(), parts: vec![PART], into: into.clone(), config };
    let mut follower = Follower::begin(plan).unwrap();
    follower.bring(&mut |_, _| {}).unwrap();
    let (opened, options) = (Graph::open(&into).unwrap(), OpenOptions::default());
    let live = GraphHandle::open(opened, Some(&[PART]), OpenMode::Follow, &options).unwrap();
    let mut folder = Folder { live, failure: None, seen: None };
    assert_eq!(follower.poll(&mut folder), 0, "{:?}", folder.failure);
    assert_eq!(folder.seen.take(), Some((from[0].to_string(), 1)));
    // Another server takes over. The first one still serves the partition, and the connection stays
    // open.
    old.publishing().fence(PART, "another writer publishes".into(), Some(1));
    follower.poll(&mut folder);
    assert_eq!(folder.seen.take(), None, "no server writes the partition");
    let failure = folder.failure.take().unwrap();
    assert!(failure.contains("only reads partition 0"), "{failure}");
    let new = write_at(&copy, &second, false);
    assert_eq!(commit(&second, 7), 2);
    assert_eq!(follower.poll(&mut folder), 1, "{:?}", folder.failure);
    assert_eq!(folder.seen, Some((from[1].to_string(), 2)));
    assert_eq!(folder.live.part_version(PART), Some(2));
    old.stop().unwrap();
    new.stop().unwrap();
}
