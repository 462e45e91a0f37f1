//! Rows in memory that a server shares with a client of the same machine. They equal rows sent over
//! the socket, and the server reclaims memory from clients that misbehave or disconnect.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "sharing/leases.rs"]
mod leases;
#[path = "sharing/strange.rs"]
mod strange;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lodestore_cache::PolicyKind;
use lodestore_client::{Client, ClientConfig, PullKind as Kind, RowSource};
use lodestore_graph::NodeId;
use lodestore_graph::lock::IgnorePoison;
use lodestore_schema::hello::hello;
use lodestore_schema::limits::{CHUNK_BYTES, HELLO_BYTES, PREFIX_BYTES, SHARED_CHUNK_BYTES_MIN};
use lodestore_schema::request::PullKind;
use lodestore_schema::socket::shard_socket;
use lodestore_schema::{FailureCode, Prefix, Reply, Request, RequestBody, WireVersions};
use lodestore_server::limits::{SHARED_BYTES_PER_SHARD, SHARED_SLOTS};
use lodestore_server::{Server, ServerConfig};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use testing::features::{feature_graph, row_of, shuffled_ids};

const N_NODES: u32 = 20_011;
const WIDTH: u32 = 24;
const ROW_BYTES: usize = WIDTH as usize * 4;
/// Rows of a reply that fills the slots of the shared memory three times.
const MANY: usize = 3 * SHARED_SLOTS * CHUNK_BYTES / ROW_BYTES;

struct Served {
    server: Server,
    socket: PathBuf,
    _dir: (tempfile::TempDir, MutexGuard<'static, ()>),
}

/// Serializes the tests: open descriptors of a process cannot be attributed to a test.
static ALONE: Mutex<()> = Mutex::new(());

fn serve(n_shards: u16, tier_bytes: u64) -> Served {
    serve_as(|config| ServerConfig { n_shards, tier_bytes, ..config })
}

fn serve_as(change: impl FnOnce(ServerConfig) -> ServerConfig) -> Served {
    serve_rows(WIDTH, change)
}

/// Serves rows of `width` values.
fn serve_rows(width: u32, change: impl FnOnce(ServerConfig) -> ServerConfig) -> Served {
    let alone = ALONE.lock().ignore_poison();
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, width, 2);
    let socket = dir.path().join("socket");
    let unix = Some(socket.clone());
    let config = change(ServerConfig { unix, ..ServerConfig::new(graph) });
    Served { server: Server::start(&config).unwrap(), socket, _dir: (dir, alone) }
}

fn connect(socket: &Path, shared_memory: bool) -> Client {
    let config = ClientConfig { shared_memory, ..ClientConfig::default() };
    Client::connect(&[format!("unix:{}", socket.display())], config).unwrap()
}

fn shared_bytes(server: &Server) -> u64 {
    server.stats().iter().map(|shard| shard.shared_bytes).sum()
}

/// Returns ids in random order; they repeat if `n_ids` exceeds the number of nodes.
fn ids(n_ids: usize) -> Vec<NodeId> {
    shuffled_ids(N_NODES, N_NODES as usize).into_iter().cycle().take(n_ids).collect()
}

fn assert_rows(ids: &[NodeId], rows: &[u8]) {
    assert_eq!(rows.len(), ids.len() * ROW_BYTES);
    for (row, &id) in rows.chunks_exact(ROW_BYTES).zip(ids) {
        assert!(row == row_of(id, WIDTH), "row of node {id}");
    }
}

#[test]
fn any_number_of_shared_rows_equals_those_of_the_socket() {
    let edge = SHARED_CHUNK_BYTES_MIN / ROW_BYTES;
    let chunk = CHUNK_BYTES / ROW_BYTES;
    // Without a tier the server lends no rows.
    for (n_shards, policy) in
        [(1, PolicyKind::Sieve), (2, PolicyKind::Sieve), (2, PolicyKind::None)]
    {
        let Served { server, socket, _dir } =
            serve_as(|config| ServerConfig { n_shards, tier_bytes: 256 << 20, policy, ..config });
        let (shared, plain) = (connect(&socket, true), connect(&socket, false));
        let pull = |client: &Client, ids: &[NodeId], kind| {
            let mut out = vec![0xEE; ids.len() * ROW_BYTES];
            client.pull("feat", ids, &mut out, kind).unwrap();
            out
        };
        let sizes = prop_oneof![
            0..3 * edge,
            (0..3usize, 1..=5 * SHARED_SLOTS).prop_map(move |(d, n)| n * chunk + d - 1),
            0..MANY,
        ];
        let mut runner = TestRunner::new(ProptestConfig { cases: 60, ..Default::default() });
        let cases = (sizes, any::<bool>());
        runner
            .run(&cases, |(n_ids, is_sync)| {
                let (ids, kind) = (ids(n_ids), if is_sync { Kind::Sync } else { Kind::Vector });
                let rows = pull(&shared, &ids, kind);
                assert_rows(&ids, &rows);
                prop_assert!(rows == pull(&plain, &ids, kind));
                Ok(())
            })
            .unwrap();
        let before = shared_bytes(&server);
        assert!(before > 0);
        pull(&plain, &ids(MANY), Kind::Sync);
        assert_eq!(
            shared_bytes(&server),
            before,
            "a client without shared memory gets rows over the socket"
        );
        pull(&shared, &ids(edge / 2), Kind::Sync);
        assert_eq!(shared_bytes(&server), before, "few rows are sent over the socket");
        pull(&shared, &ids(MANY), Kind::Vector);
        let more = shared_bytes(&server) - before;
        assert!(more as usize > MANY * ROW_BYTES * 9 / 10, "{more} bytes");
        server.stop().unwrap();
    }
}

/// A raw connection to a server.
struct Plain(UnixStream);

impl Plain {
    fn open(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(shard_socket(socket, 0)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(&hello()).unwrap();
        stream.read_exact(&mut [0; HELLO_BYTES]).unwrap();
        Self(stream)
    }

    fn ask(&mut self, body: RequestBody, ids: &[NodeId]) {
        self.ask_at(0, body, ids);
    }

    fn ask_at(&mut self, version: u32, body: RequestBody, ids: &[NodeId]) {
        let mut frame = Vec::new();
        Request { version, ..Request::new(body) }.append_to(size_of_val(ids), &mut frame);
        frame.extend_from_slice(bytemuck::cast_slice(ids));
        self.0.write_all(&frame).unwrap();
    }

    /// Returns the next reply without its body, or `None` at the end of the stream.
    fn answer(&mut self) -> Option<Reply> {
        let mut prefix = [0; PREFIX_BYTES];
        self.0.read_exact(&mut prefix).ok()?;
        let prefix = Prefix::of_reply(prefix).unwrap();
        let (mut head, mut body) = (vec![0; prefix.head_bytes], vec![0; prefix.body_bytes]);
        self.0.read_exact(&mut head).ok()?;
        self.0.read_exact(&mut body).ok()?;
        Some(Reply::decode(&head).unwrap())
    }

    /// Requests shared memory and more rows than it holds, and acknowledges no chunk.
    fn with_all_lent(socket: &Path) -> Self {
        let mut client = Self::open(socket);
        client.ask(RequestBody::Share, &[]);
        assert!(matches!(client.answer(), Some(Reply::Shared { .. })));
        client.ask(RequestBody::Pull { tensor: 0, kind: PullKind::Vector }, &ids(MANY));
        for slot in 0..SHARED_SLOTS {
            let chunk = client.answer().unwrap();
            let Reply::SharedRows { offset, awaited, .. } = chunk else { panic!("{chunk:?}") };
            assert_eq!((offset as usize, awaited), (slot * CHUNK_BYTES, true));
        }
        client
    }
}

/// Returns the number of open files and maps of rings and tiers in this process, which runs the
/// server.
fn n_open() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let files = files.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let is_ours = |path: &PathBuf| path.display().to_string().contains("lodestore-");
    maps.matches("memfd:lodestore-").count() + files.filter(is_ours).count()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn shared_memory_is_bounded_and_reclaimed_from_disconnected_and_lying_clients() {
    let Served { server, socket, _dir } = serve(1, 2 * SHARED_BYTES_PER_SHARD * 16);
    let n_regions = SHARED_BYTES_PER_SHARD as usize / (SHARED_SLOTS * CHUNK_BYTES);
    let before = n_open();
    let lent: Vec<Plain> = (0..n_regions).map(|_| Plain::with_all_lent(&socket)).collect();
    // These clients read without receiving the descriptors, which closes them: only maps are left.
    assert_eq!(n_open(), before + n_regions);

    // The server refuses to share memory with one more client, and still sends its rows.
    let mut late = Plain::open(&socket);
    late.ask(RequestBody::Share, &[]);
    let refusal = late.answer().unwrap();
    let is_refusal = |reply: &Reply| matches!(reply, Reply::Failure(failure) if failure.code == FailureCode::Overloaded);
    assert!(is_refusal(&refusal), "{refusal:?}");
    let (client, ids) = (connect(&socket, true), ids(MANY));
    let mut out = vec![0; MANY * ROW_BYTES];
    let by_memory = shared_bytes(&server);
    client.sync_pull("feat", &ids, &mut out).unwrap();
    assert_rows(&ids, &out);
    assert_eq!(shared_bytes(&server), by_memory);

    // They disconnect with all slots in use, and the server gives the memory to others.
    drop(lent);
    wait_until("the memory of disconnected clients is reclaimed", || n_open() == before);
    let client = connect(&socket, true);
    client.sync_pull("feat", &ids, &mut out).unwrap();
    assert_rows(&ids, &out);
    assert!(shared_bytes(&server) > by_memory);
    drop(client);
    wait_until("the memory of the dropped client is reclaimed", || n_open() == before);

    // The server closes the connection of a client that sends a false acknowledgement.
    let lies: [fn(&mut Plain); 4] = [
        |client| client.ask(RequestBody::Stat, &[]),
        |client| client.ask(RequestBody::Taken, &[NodeId(0)]),
        |client| client.ask(RequestBody::Share, &[]),
        |client| client.0.write_all(&[0xff; 64]).unwrap(),
    ];
    for lie in lies {
        let mut liar = Plain::with_all_lent(&socket);
        lie(&mut liar);
        assert_eq!(liar.answer(), None);
    }
    let mut liar = Plain::open(&socket);
    liar.ask(RequestBody::Taken, &[]);
    assert_eq!(liar.answer(), None, "nothing was shared to acknowledge");
    // Early acknowledgements only spoil the client's own rows. After the reply, the server expects
    // none and closes the connection.
    let mut liar = Plain::with_all_lent(&socket);
    for _ in 0..3 * SHARED_SLOTS {
        liar.ask(RequestBody::Taken, &[]);
    }
    while liar.answer().is_some() {}
    wait_until("the memory of lying clients is reclaimed", || n_open() == before);

    let mut twice = Plain::open(&socket);
    twice.ask(RequestBody::Share, &[]);
    assert!(matches!(twice.answer(), Some(Reply::Shared { .. })));
    twice.ask(RequestBody::Share, &[]);
    let refusal = twice.answer().unwrap();
    assert!(matches!(&refusal, Reply::Failure(f) if f.code == FailureCode::Invalid));
    server.stop().unwrap();
    assert!(before > 0, "tiers are mapped");
    wait_until("a stopped server has released all memory", || n_open() == 0);
}

#[test]
fn a_server_without_memory_to_share_sends_rows_over_the_socket() {
    let Served { server, socket, _dir } = serve(1, 1 << 20);
    let (client, ids) = (connect(&socket, true), ids(MANY));
    let mut out = vec![0; MANY * ROW_BYTES];
    client.vector_pull("feat", &ids, &mut out).unwrap();
    assert_rows(&ids, &out);
    assert_eq!(shared_bytes(&server), 0);
    server.stop().unwrap();
}

#[test]
fn a_stopping_server_finishes_a_reply_without_acknowledgements() {
    let Served { server, socket, _dir } = serve(1, 256 << 20);
    let (address, ids) = (socket.clone(), ids(MANY));
    let mut client = Plain::with_all_lent(&address);
    let stopping = std::thread::spawn(move || server.stop());
    // The server sends the rest over the socket.
    let mut n_rows = SHARED_SLOTS * (CHUNK_BYTES / ROW_BYTES);
    while n_rows < ids.len() {
        let chunk = client.answer().expect("the server finishes the reply");
        let Reply::Rows { first_row, n_rows: more, .. } = chunk else { panic!("{chunk:?}") };
        assert_eq!(first_row as usize, n_rows);
        n_rows += more as usize;
    }
    assert_eq!(client.answer(), None);
    stopping.join().unwrap().unwrap();
}
