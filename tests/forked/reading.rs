//! Readers and clients: used by threads of a parent, and by the children that it forks meanwhile.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lodestore_client::{Client, ClientConfig, ClientError, PullKind, RowSource, Security};
use lodestore_graph::NodeId;
use lodestore_store::{EmbeddedStore, Graph, GraphHandle, OpenMode, OpenOptions, ReaderKind};

use testing::Numbers;
use testing::authority::Authority;
use testing::fork::{fork, fork_within};
use testing::graph::{Source, WIDE};
use testing::http::get;
use testing::process::Serving;

const N_NODES: u32 = 3000;
const TENSORS: [&str; 2] = ["feat", "wide"];
/// Rows of a gather: by one read, by many, and by as many as are lent by a server of this machine.
const N_ROWS: [usize; 4] = [1, 700, 40, 160];
/// Forks of a scenario; of one whose threads are at locks for much of their time.
const N_FORKS: u64 = 12;
const N_SHORT_FORKS: u64 = 300;

/// A way to rows.
pub(crate) trait Rows: Sync {
    fn gather(&self, tensor: &str, ids: &[NodeId], out: &mut [u8]);
}

impl Rows for EmbeddedStore {
    fn gather(&self, tensor: &str, ids: &[NodeId], out: &mut [u8]) {
        EmbeddedStore::gather(self, tensor, ids, out).unwrap();
    }
}

impl Rows for Client {
    fn gather(&self, tensor: &str, ids: &[NodeId], out: &mut [u8]) {
        self.pull(tensor, ids, out, PullKind::Sync).unwrap();
    }
}

/// Rows by internal id, from the files that were imported.
pub(crate) struct Truth {
    rows: BTreeMap<&'static str, Vec<u8>>,
}

impl Truth {
    /// Returns rows of the graph in `dir`, where every seventh row of `wide` is put again.
    fn with_puts(source: &Source, dir: &Path) -> Self {
        let all: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
        let mut external = vec![0i64; all.len()];
        let store = EmbeddedStore::open(dir, None).unwrap();
        store.gather("external_id", &all, bytemuck::cast_slice_mut(&mut external)).unwrap();
        let external: Vec<u32> = external.iter().map(|&id| id as u32).collect();
        let of = |tensor| (tensor, source.rows(tensor, &external));
        let mut this = Self { rows: TENSORS.into_iter().map(of).collect() };
        let ids: Vec<NodeId> = all.into_iter().step_by(7).collect();
        let rows: Vec<u8> = (0..ids.len() * WIDE).map(|at| (at % 251) as u8).collect();
        let graph = Graph::open(dir).unwrap();
        let options = OpenOptions::default();
        let live = GraphHandle::open(graph, None, OpenMode::Write, &options).unwrap();
        live.put_rows("wide", &ids, &rows).unwrap();
        live.commit_version().unwrap();
        let wide = this.rows.get_mut("wide").unwrap();
        for (id, row) in ids.iter().zip(rows.chunks_exact(WIDE)) {
            wide[id.index() * WIDE..][..WIDE].copy_from_slice(row);
        }
        this
    }

    /// Compares `n` gathers of random rows.
    fn check(&self, rows: &dyn Rows, seed: u64, n: usize) {
        let mut numbers = Numbers(seed);
        for at in 0..n {
            let n_rows = N_ROWS[numbers.below(N_ROWS.len() as u32) as usize];
            let ids: Vec<NodeId> = (0..n_rows).map(|_| NodeId(numbers.below(N_NODES))).collect();
            let tensor = TENSORS[at % TENSORS.len()];
            let all = &self.rows[tensor];
            let row_bytes = all.len() / N_NODES as usize;
            let mut out = vec![0xEE; n_rows * row_bytes];
            rows.gather(tensor, &ids, &mut out);
            for (row, id) in out.chunks_exact(row_bytes).zip(&ids) {
                let expected = &all[id.index() * row_bytes..][..row_bytes];
                assert!(row == expected, "{tensor} of node {id} in process {}", std::process::id());
            }
        }
    }
}

/// A graph, a way to its rows, and the server that it leads to.
struct Scene {
    source: Source,
    truth: Truth,
    way: String,
    server: Option<Serving>,
}

impl Scene {
    fn new(way: &str) -> Self {
        let source = Source::random(N_NODES, 9000);
        let graph = source.import("graph", 3, "hash");
        let truth = Truth::with_puts(&source, &graph);
        let serve = |more: &str| {
            let metrics = "--shards 2 --listen 127.0.0.1:0 --metrics 127.0.0.1:0";
            Some(Serving::start(&graph, &format!("{metrics} {more}")))
        };
        let server = match way {
            "tcp" => serve(""),
            "unix" => serve(&format!("--unix {}", source.file("lode.sock").display())),
            "tls" => {
                let ours = Authority::new(source.dir.path(), "ours");
                serve(&ours.sign(source.dir.path(), "server", &["127.0.0.1"]))
            }
            _ => None,
        };
        Self { source, truth, way: way.to_owned(), server }
    }

    fn open(&self) -> Box<dyn Rows> {
        if self.server.is_some() {
            return Box::new(self.connect());
        }
        let reader: ReaderKind = self.way.parse().unwrap();
        let graph = self.source.file("graph");
        Box::new(EmbeddedStore::open_with(graph, None, &OpenOptions { reader }).unwrap())
    }

    fn connect(&self) -> Client {
        let server = self.server.as_ref().unwrap();
        let (address, security) = match self.way.as_str() {
            "unix" => (format!("unix:{}", self.source.file("lode.sock").display()), None),
            "tls" => {
                let ca = self.source.file("ours.pem");
                (server.address.clone(), Some(Security::default().with_tls(&ca, None).unwrap()))
            }
            _ => (server.address.clone(), None),
        };
        let deadline = Duration::from_secs(15);
        let security = security.unwrap_or_default();
        let config = ClientConfig { deadline, security, ..ClientConfig::default() };
        Client::connect(&[address], config).unwrap()
    }

    /// Returns the sum over shards of a metric of the server.
    fn metric(&self, name: &str) -> f64 {
        let text = get(&self.server.as_ref().unwrap().metrics, "/metrics").body;
        let of_name =
            |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
        text.lines().filter(of_name).map(value).sum()
    }
}

/// Ends the threads of a scope, also when its own thread panics.
pub(crate) struct EndsOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for EndsOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn forks_while_it_gathers(way: &str) {
    let scene = Scene::new(way);
    let truth = &scene.truth;
    let (shared, mut own) = (scene.open(), Some(scene.open()));
    // Rings, memory, connections and what is lent are there before the first fork.
    truth.check(&**own.as_ref().unwrap(), 1, 8);
    truth.check(&*shared, 2, 8);
    let (is_over, n_gathered) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _end = EndsOnDrop(&is_over);
        for thread in 0..3 {
            let (shared, is_over, n_gathered) = (&*shared, &is_over, &n_gathered);
            scope.spawn(move || {
                for turn in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    truth.check(shared, 1000 * thread + turn, 1);
                    n_gathered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for number in 0..N_FORKS {
            let before = n_gathered.load(Ordering::Relaxed);
            let end = Instant::now() + Duration::from_secs(20);
            while n_gathered.load(Ordering::Relaxed) < before + 3 {
                assert!(Instant::now() < end, "the parent's threads wait");
                thread::yield_now();
            }
            let child = fork(|| {
                truth.check(&**own.as_ref().unwrap(), 20 + number, 4);
                truth.check(&*shared, 40 + number, 4);
                thread::scope(|scope| {
                    for seed in [60, 80] {
                        let shared = &*shared;
                        scope.spawn(move || truth.check(shared, seed + number, 4));
                    }
                });
                drop(own.take());
                truth.check(&*shared, 100 + number, 2);
                let grandchild = fork(|| truth.check(&*shared, 120 + number, 2));
                truth.check(&*shared, 140 + number, 2);
                grandchild.ends_well();
            });
            truth.check(&**own.as_ref().unwrap(), 160 + number, 4);
            child.ends_well();
        }
        truth.check(&**own.as_ref().unwrap(), 3, 4);
    });
    drop((own, shared));
    if let Some(server) = scene.server {
        server.stop();
    }
}

/// Forks while threads gather nothing, again and again: they are at locks for much of their time.
pub(crate) fn forks_while_locks_are_held(way: &str) {
    let scene = Scene::new(way);
    let rows = scene.open();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndsOnDrop(&is_over);
        for _ in 0..3 {
            let (rows, is_over) = (&*rows, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    rows.gather("feat", &[], &mut []);
                }
            });
        }
        for _ in 0..N_SHORT_FORKS {
            fork(|| rows.gather("feat", &[], &mut [])).ends_well();
        }
    });
    drop(rows);
}

/// Forks in the midst of a pull, of which the child is refused the rest.
fn forks_within_a_pull(client: &Client, truth: &Truth) {
    let ids: Vec<NodeId> = (0..N_NODES).step_by(4).map(NodeId).collect();
    let mut out = vec![0xEE; ids.len() * WIDE];
    let (mut is_child, parent) = (false, std::process::id());
    fork_within(|fork| {
        let pulled = client.pull_overlapped("wide", &ids, &mut out, PullKind::Sync, &mut || {
            is_child = fork();
            if !is_child {
                // The child has dropped what it has of the connection by then.
                thread::sleep(Duration::from_millis(300));
            }
        });
        match pulled {
            Err(ClientError::Forked { .. }) => assert_ne!(std::process::id(), parent),
            pulled => {
                pulled.unwrap();
                assert_eq!(std::process::id(), parent, "a child took its parent's rows");
            }
        }
    })
    .ends_well();
    for (row, id) in out.chunks_exact(WIDE).zip(&ids) {
        assert!(row == &truth.rows["wide"][id.index() * WIDE..][..WIDE], "node {id}");
    }
}

/// Checks a client that a child drops, and then its parent while another child lives.
pub(crate) fn leaves_in_a_child(way: &str) {
    let scene = Scene::new(way);
    let mut client = Some(scene.connect());
    let pull = |client: &Option<Client>| scene.truth.check(client.as_ref().unwrap(), 5, 6);
    pull(&client);
    fork(|| {
        pull(&client);
        drop(client.take());
    })
    .ends_well();
    let n_taken = scene.metric("lodestore_connections_total");
    pull(&client);
    forks_within_a_pull(client.as_ref().unwrap(), &scene.truth);
    pull(&client);
    let n_now = scene.metric("lodestore_connections_total");
    assert_eq!(n_now, n_taken, "{way}: a connection was opened again");
    assert!(scene.metric("lodestore_connections") > 0.0, "{way}");
    let child = fork(|| thread::sleep(Duration::from_secs(60)));
    drop(client.take());
    let end = Instant::now() + Duration::from_secs(10);
    while scene.metric("lodestore_connections") > 0.0 {
        assert!(Instant::now() < end, "{way}: a child keeps its parent's connections open");
        thread::sleep(Duration::from_millis(10));
    }
    drop(child);
    scene.server.unwrap().stop();
}
