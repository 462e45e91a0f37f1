//! Incomplete versions, which have reached a follower or a writer for some of many partitions only.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

use lodestore_client::Address;
use lodestore_client::follow::{FollowPlan, FollowedServer, Follower};
use lodestore_server::installer::Installer;
use lodestore_store::GraphHandle;
use lodestore_store::follow::Manifest;

use super::*;

/// More partitions than one message can name versions of.
const N_PARTS: u16 = 80;
const N_NODES: u32 = N_PARTS as u32;

/// A server that follows a writer, and the [`Follower`] that fetches versions for it.
struct Following {
    follower: Follower,
    server: Server,
    address: String,
}

impl Following {
    fn new(writer: &str, into: &Path, parts: Range<u16>) -> Self {
        let parts: Vec<PartId> = parts.map(PartId).collect();
        let plan = FollowPlan {
            from: vec![writer.parse().unwrap()],
            parts: parts.clone(),
            into: into.to_owned(),
            config: ClientConfig { deadline: Duration::from_secs(20), ..ClientConfig::default() },
        };
        let mut follower = Follower::begin(plan).unwrap();
        follower.bring(&mut |_, _| {}).unwrap();
        let follow = Some(writer.to_owned());
        let config = ServerConfig { writable: false, follow, parts, ..config(into, 1) };
        let (server, address) = start(&config);
        Self { follower, server, address }
    }

    /// Installs the newest version of these partitions only.
    fn take(&mut self, parts: Range<u16>) {
        let n_expected = parts.len();
        let mut taking = Taking { installer: self.server.installer(), parts };
        assert_eq!(self.follower.poll(&mut taking), n_expected);
    }
}

/// A server that installs new versions of some partitions only.
struct Taking {
    installer: Installer,
    parts: Range<u16>,
}

impl FollowedServer for Taking {
    fn live(&self) -> &GraphHandle {
        self.installer.live()
    }

    fn served(&self, part: PartId) -> Option<u32> {
        self.installer.version(part)
    }

    fn install(&mut self, manifest: &Manifest) -> Result<bool, ClientError> {
        let is_taken = self.parts.contains(&manifest.part().0);
        Ok(is_taken && self.installer.install(manifest).unwrap())
    }

    fn looked(&mut self, _: PartId, _: &Address, _: u32) {}

    fn polled(&mut self, part: PartId, result: Result<(), &ClientError>) {
        result.unwrap_or_else(|error| panic!("partition {part}: {error}"));
    }
}

#[test]
fn a_client_with_many_partitions_goes_back_in_time_on_none() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, WIDTH, N_PARTS);
    testing::edges::add_edges(&graph);
    let (writer, address) = start(&config(&graph, 1));
    let mut near = Following::new(&address, &dir.path().join("near"), 0..N_PARTS);
    let mut far = Following::new(&address, &dir.path().join("far"), 0..N_PARTS);
    let all: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    connect(&[&address]).put_rows("feat", &all, &put_rows(&all, 1)).unwrap();
    connect(&[&address]).commit().unwrap();
    // More partitions are ahead at the near follower than one message can name, and some of them
    // are behind at the far one.
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
    // A client does not require a newer version of a partition that is behind, however many others
    // are ahead.
    let alone = connect(&[&near.address]);
    for id in &all[72..] {
        for _ in 0..2 {
            assert_eq!(turn_of(*id, &pull(&alone, &[*id]).unwrap()), 0);
        }
    }
    for followed in [near, far] {
        followed.server.stop().unwrap();
    }
    writer.stop().unwrap();
}

/// A proxy that lets a number of connections through to a server, and closes all others.
struct Relay {
    address: String,
    left: Arc<AtomicI64>,
}

impl Relay {
    const OPEN: i64 = 1 << 40;

    fn new(to: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (left, to) = (Arc::new(AtomicI64::new(Self::OPEN)), to.to_owned());
        let of_thread = Arc::clone(&left);
        thread::spawn(move || {
            for from in listener.incoming().flatten() {
                if of_thread.fetch_sub(1, Ordering::SeqCst) > 0 {
                    let to = TcpStream::connect(&to).unwrap();
                    let twins = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || copy(from, to));
                    thread::spawn(move || copy(twins.1, twins.0));
                }
            }
        });
        Self { address, left }
    }

    /// Lets `n` more connections through.
    fn admit(&self, n: i64) {
        self.left.store(n, Ordering::SeqCst);
    }

    /// Returns the number of connections since [`Relay::OPEN`] were admitted.
    fn n_come(&self) -> i64 {
        Self::OPEN - self.left.load(Ordering::SeqCst)
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

/// Checks the turns of all rows, pulled together and one by one.
fn check_turns(client: &Client, all: &[NodeId], turn_of_part: impl Fn(u16) -> u32) {
    for _ in 0..3 {
        let rows = pull(client, all).unwrap();
        for (row, id) in rows.chunks_exact(ROW_BYTES).zip(all) {
            assert_eq!(turn_of(*id, row), turn_of_part(id.0 as u16), "node {id}");
        }
        for &id in all.iter().step_by(7) {
            let row = pull(client, &[id]).unwrap();
            assert_eq!(turn_of(id, &row), turn_of_part(id.0 as u16), "node {id} alone");
        }
    }
}

/// One writer has published its many partitions; the other became unreachable before it could
/// publish. The client reads the rows that the first has published, even if it asks a follower
/// first.
#[test]
fn a_client_reads_what_an_interrupted_commit_of_many_partitions_has_published() {
    const OF_FIRST: u16 = 72;
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, WIDTH, N_PARTS);
    testing::edges::add_edges(&graph);
    let of = |parts: Range<u16>| ServerConfig {
        parts: parts.map(PartId).collect(),
        ..config(&graph, 1)
    };
    let (first, first_address) = start(&of(0..OF_FIRST));
    let (second, second_address) = start(&of(OF_FIRST..N_PARTS));
    let relay = Relay::new(&second_address);
    let mut near = Following::new(&first_address, &dir.path().join("near"), 0..OF_FIRST);
    let all: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    // A client that has seen no version asks the first address that it was given.
    let addresses = [near.address.clone(), first_address, relay.address.clone()];
    let once = ClientConfig { attempts: 1, ..ClientConfig::default() };
    let connect = || Client::connect(&addresses, once.clone()).unwrap();
    let client = connect();
    relay.admit(Relay::OPEN);
    assert_eq!(client.commit().unwrap(), 2);
    // The last two connections to a writer are for the publish step and for reading its version
    // afterwards.
    let n_before_publish = relay.n_come() - 2;
    near.take(0..OF_FIRST);
    for turn in [1u32, 2] {
        let version = turn + 2;
        let client = connect();
        relay.admit(Relay::OPEN);
        let put = client.put_rows("feat", &all, &put_rows(&all, turn)).unwrap();
        assert_eq!(put.version, version);
        relay.admit(n_before_publish);
        let error = client.commit().unwrap_err();
        assert!(error.to_string().contains(&relay.address), "{error}");
        let has = |part: u16| if part < OF_FIRST { turn } else { turn - 1 };
        check_turns(&client, &all, has);
        // Every writer accepts this put for the version after that, whether or not it has
        // published.
        relay.admit(Relay::OPEN);
        let put = client.put_rows("feat", &all[..1], &put_rows(&all[..1], turn)).unwrap();
        assert_eq!(put.version, version + 1);
        near.take(0..40);
        check_turns(&client, &all, has);
        assert_eq!(client.commit_as(version).unwrap(), version);
        check_turns(&client, &all, |_| turn);
        near.take(40..OF_FIRST);
        check_turns(&client, &all, |_| turn);
    }
    for server in [near.server, first, second] {
        server.stop().unwrap();
    }
}

/// The writer publishes, but the client cannot read its version afterwards.
#[test]
fn a_commit_whose_version_cannot_be_read_fails() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 8, WIDTH, 1);
    let (server, address) = start(&config(&graph, 1));
    let relay = Relay::new(&address);
    let once = ClientConfig { attempts: 1, ..ClientConfig::default() };
    let connect = || Client::connect(&[&relay.address], once.clone()).unwrap();
    let client = connect();
    relay.admit(Relay::OPEN);
    assert_eq!(client.commit().unwrap(), 2);
    let n_connections = relay.n_come();
    let client = connect();
    relay.admit(n_connections - 1);
    let error = client.commit().unwrap_err();
    assert!(error.to_string().contains(&relay.address), "{error}");
    assert_eq!(PlainConnection::open(&address).describe().version, 3);
    server.stop().unwrap();
}
