//! Followers that have come halfway to a version, each to another half of many partitions.

use std::ops::Range;

use lodestore_client::{FollowPlan, Follower};
use lodestore_store::Manifest;

use super::*;

/// More than a message names versions of.
const N_PARTS: u16 = 80;
const N_NODES: u32 = N_PARTS as u32;

/// A server that follows, and what brings it versions.
struct Following {
    follower: Follower,
    server: Server,
    address: String,
}

impl Following {
    fn new(writer: &str, into: &Path) -> Self {
        let plan = FollowPlan {
            from: vec![writer.parse().unwrap()],
            parts: Vec::new(),
            into: into.to_owned(),
            config: ClientConfig { deadline: Duration::from_secs(20), ..ClientConfig::default() },
        };
        let mut follower = Follower::begin(plan).unwrap();
        follower.bring(&mut |_, _| {}).unwrap();
        let follow = Some(writer.to_owned());
        let config = ServerConfig { writable: false, follow, ..config(into, 1) };
        let (server, address) = start(&config);
        Self { follower, server, address }
    }

    /// Takes the newest version of these partitions over, and leaves the others.
    fn take(&mut self, parts: Range<u16>) {
        let installer = self.server.installer();
        let served = |part| installer.version(part);
        let mut install = |manifest: &Manifest| match parts.contains(&manifest.part().0) {
            true => Ok(installer.install(manifest).unwrap()),
            false => Ok(false),
        };
        let n_new = self.follower.poll(installer.live(), &served, &mut install).unwrap();
        assert_eq!(n_new, parts.len());
    }
}

#[test]
fn a_client_goes_back_in_time_on_none_of_many_partitions() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, WIDTH, N_PARTS);
    edges::add_edges(&graph);
    let (writer, address) = start(&config(&graph, 1));
    let mut near = Following::new(&address, &dir.path().join("near"));
    let mut far = Following::new(&address, &dir.path().join("far"));
    let all: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    connect(&[&address]).put_rows("feat", &all, &put_rows(&all, 1)).unwrap();
    connect(&[&address]).commit().unwrap();
    // More than a message names are ahead at the one, and some of them behind at the other.
    near.take(0..72);
    far.take(0..40);
    for _ in 0..12 {
        let client = connect(&[&near.address, &far.address, &address]);
        let mut seen = vec![0; all.len()];
        let mut see = |ids: &[NodeId]| {
            let rows = pull(&client, ids).unwrap();
            for (row, id) in rows.chunks_exact(ROW_BYTES).zip(ids) {
                let (found, before) = (turn_of(*id, row), &mut seen[id.index()]);
                assert!(found >= *before, "node {id} was put in turn {before}, then {found}");
                *before = found;
            }
        };
        for _ in 0..2 {
            see(&all);
            all[30..].iter().for_each(|&id| see(&[id]));
        }
    }
    for followed in [near, far] {
        followed.server.stop().unwrap();
    }
    writer.stop().unwrap();
}
