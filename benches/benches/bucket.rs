//! Push and pull of a graph over a folder as the bucket. Beside it the same library moves plain
//! objects of the same bytes in the same pieces.
//!
//! `LODE_BENCH_DIR=/nvme cargo bench --profile dev --bench bucket`: 4.4 GB in two partitions, in a
//! folder of that disk. Objects and files are synced on both sides. It does not measure a network;
//! `tests/object_storage.rs` has a server of S3's protocol.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};
use lodestore_benches::{check_parts, feature_graph, is_smoke};
use lodestore_bucket::{Bucket, PullOptions};
use lodestore_graph::PartId;
use lodestore_graph::edges::MemoryEdges;
use lodestore_graph::halo::write_halos;
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::topology::{Direction, Topology, write_topologies};
use lodestore_store::Graph;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{ObjectStoreExt, PutPayload};
use tokio::runtime::{Builder, Runtime};

/// Bytes of an object, and requests under way: those of a push.
const CHUNK_BYTES: u64 = 8 << 20;
const N_PARALLEL: usize = 8;

fn main() {
    check_parts(&[]);
    let dir = std::env::var_os("LODE_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(dir).expect("a temporary directory");
    let path = |name: &str| dir.path().join(name);
    let (n_nodes, n_rounds) = if is_smoke() { (20_000, 1) } else { (11_000_000, 3) };
    let graph = feature_graph(dir.path(), n_nodes, 100, 2);
    add_lists(&graph, n_nodes);
    let objects = objects_of(&graph);
    let n_bytes: u64 = objects.iter().map(|object| object.n_bytes).sum();
    println!("{:.2} GB in {} objects", n_bytes as f64 / 1e9, objects.len());
    let plain = Plain(Builder::new_current_thread().enable_all().build().expect("a runtime"));
    for round in 0..n_rounds {
        for name in ["bucket", "pulled", "objects", "files"] {
            // The first round finds none of them.
            let _ = fs::remove_dir_all(path(name));
        }
        let timed = |name: &str, work: &dyn Fn()| {
            let start = Instant::now();
            work();
            let seconds = start.elapsed().as_secs_f64();
            println!("{round} {name:<12} {:>6.0} MB/s", n_bytes as f64 / 1e6 / seconds);
            seconds
        };
        let push = timed("push", &|| push(&graph, &path("bucket")));
        let put = timed("plain puts", &|| plain.put(&objects, &path("objects")));
        let pull = timed("pull", &|| pull(&path("bucket"), &path("pulled")));
        let get = timed("plain gets", &|| plain.get(&objects, &path("objects"), &path("files")));
        println!("{round} push {:.2} and pull {:.2} of plain", put / push, get / pull);
    }
    println!("peak memory {} MB", peak_memory_mb());
}

/// Writes the lists of edges, of which there are none: a pull checks them.
fn add_lists(graph: &Path, n_nodes: u32) {
    let uuid = *Graph::open(graph).expect("a graph").uuid().as_bytes();
    let owners: Vec<PartId> =
        (0..n_nodes).map(|node| PartId((node >= n_nodes / 2).into())).collect();
    let nodes = Relabelling::new(&owners, 2).expect("two partitions");
    let edges = MemoryEdges::new(Vec::new()).expect("no edges");
    let path = |part: PartId, file: &str| graph.join(format!("part-{:03}", part.0)).join(file);
    write_topologies(&edges, &nodes, Direction::Directed, uuid, &|part| path(part, "topology.csr"))
        .expect("lists are written");
    let topology = Topology::from_edges(&edges, &nodes, Direction::Directed).expect("no edges");
    write_halos(&topology, &nodes.book, uuid, &|part| path(part, "halo.bin"))
        .expect("lists are written");
}

fn open(bucket: &Path) -> Bucket {
    Bucket::open(&format!("file://{}", bucket.display())).expect("a folder")
}

fn push(graph: &Path, bucket: &Path) {
    let report = open(bucket).push(graph, &[], &mut |_, _| {}).expect("a push");
    assert!(report.bytes > 0 && report.parts.iter().all(|part| part.is_new), "{report:?}");
}

fn pull(bucket: &Path, into: &Path) {
    let options = PullOptions::default();
    let report = open(bucket).pull(into, &options, &mut |_, _| {}).expect("a pull");
    assert_eq!(report.files_kept, 0);
}

/// A piece of a file of the graph.
#[derive(Clone, Debug)]
struct Object {
    file: PathBuf,
    /// Number of the file.
    number: usize,
    offset: u64,
    n_bytes: u64,
}

/// Returns the pieces of all files of rows and edges.
fn objects_of(graph: &Path) -> Vec<Object> {
    let mut objects = Vec::new();
    let folders = fs::read_dir(graph).expect("a folder").map(|entry| entry.expect("a name").path());
    let folders: Vec<PathBuf> = folders.filter(|path| path.is_dir()).collect();
    let files = folders.iter().flat_map(|dir| fs::read_dir(dir).expect("a folder"));
    let files = files.map(|entry| entry.expect("a name").path()).filter(|path| path.is_file());
    for (number, file) in files.enumerate() {
        let len = fs::metadata(&file).expect("a file").len();
        for offset in (0..len).step_by(CHUNK_BYTES as usize) {
            let n_bytes = CHUNK_BYTES.min(len - offset);
            objects.push(Object { file: file.clone(), number, offset, n_bytes });
        }
    }
    objects
}

/// Objects without names by content, checks, and publications.
struct Plain(Runtime);

impl Plain {
    fn put(&self, objects: &[Object], to: &Path) {
        fs::create_dir(to).expect("a new folder");
        let store = LocalFileSystem::new_with_prefix(to).expect("a folder").with_fsync(true);
        let store = &store;
        let each = |(at, object): (usize, Object)| async move {
            let read = tokio::task::spawn_blocking(move || {
                let mut bytes = vec![0; object.n_bytes as usize];
                let file = File::open(&object.file).expect("a file");
                file.read_exact_at(&mut bytes, object.offset).expect("its bytes");
                bytes
            });
            let bytes = read.await.expect("no panic");
            store.put(&key(at), PutPayload::from(bytes)).await
        };
        let all = stream::iter(objects.iter().cloned().enumerate()).map(each);
        let put = all.buffer_unordered(N_PARALLEL).try_for_each(|_| async { Ok(()) });
        self.0.block_on(put).expect("objects are put");
    }

    fn get(&self, objects: &[Object], from: &Path, to: &Path) {
        fs::create_dir(to).expect("a new folder");
        let store = LocalFileSystem::new_with_prefix(from).expect("a folder");
        let store = &store;
        let each = |at: usize| async move { store.get(&key(at)).await?.bytes().await };
        let mut all = stream::iter(0..objects.len()).map(each).buffered(N_PARALLEL);
        let mut files: Vec<File> = Vec::new();
        self.0.block_on(async {
            for object in objects {
                let bytes = all.next().await.expect("as many").expect("an object");
                if files.len() == object.number {
                    let name = to.join(object.number.to_string());
                    files.push(File::create_new(name).expect("a new file"));
                }
                files[object.number].write_all(&bytes).expect("room");
            }
        });
        files.iter().for_each(|file| file.sync_all().expect("a sync"));
    }
}

fn key(at: usize) -> Key {
    Key::from(format!("objects/{at:08}"))
}

/// Returns the highest memory that the process has had.
fn peak_memory_mb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib / 1024
}
