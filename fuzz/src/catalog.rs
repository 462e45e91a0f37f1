//! Catalogs: whatever the pairs in one, the graph is refused, or every row given is the segment's
//! or one that the catalog holds.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use lodestore_graph::NodeId;
use lodestore_store::file_system::crash::CrashFileSystem;
use lodestore_store::file_system::{Access, Change, FileSystem};
use lodestore_store::verify::verify_rows;
use lodestore_store::{EmbeddedStore, Graph, GraphHandle, OpenMode, OpenOptions, ReaderKind, View};

use crate::memory::bounded;
use crate::small::{N_NODES, OUT, TENSORS};
use crate::stateful::imported;
use crate::world::{Model, Op, World};

const CATALOG: &str = "graphs/small/part-000/catalog";

/// A change of a sound catalog.
#[derive(Arbitrary, Debug)]
enum Edit<'a> {
    /// Any pair.
    Pair { key: &'a [u8], value: &'a [u8] },
    /// Any value of the version or the identity.
    Own { identity: bool, value: &'a [u8] },
    /// A version that is none too large.
    Version(u8),
    /// The record of a segment, changed in a place, at a version.
    Record { tensor: bool, version: u8, at: u8, byte: u8, cut: u8 },
    /// The record of a delta, or of a prepared one, changed in a place, at a version.
    Delta { tensor: bool, is_prepared: bool, version: u8, at: u8, byte: u8, cut: u8 },
    /// A version that is said to be prepared.
    Prepared(u8),
    /// A pending row of a length near the right one.
    Row { tensor: bool, version: u8, row: u8, fill: u8, longer: i8 },
    /// A pair less, by its position.
    Less(u8),
}

/// Puts of the graph whose catalog is changed: two are committed, one after the other, one is
/// prepared, and one is pending.
const UPDATES: [Op; 8] = [
    Op::Reopen,
    Op::Put { tensor: 0, nodes: 0b111 },
    Op::Commit,
    Op::Put { tensor: 1, nodes: 0b1101 },
    Op::Commit,
    Op::Put { tensor: 0, nodes: 0b110 },
    Op::Prepare,
    Op::Put { tensor: 1, nodes: 0b1 },
];
const N_PUTS: u32 = 4;

thread_local! {
    static UPDATED: CrashFileSystem = {
        let fs = imported();
        let mut world = World::new(&fs, Model::imported());
        UPDATES.iter().for_each(|op| world.act(op).expect("a sound file system"));
        world.close();
        fs
    };
}

/// Returns a file system with a graph that has deltas, a prepared one too, and pending rows.
fn updated() -> CrashFileSystem {
    UPDATED.with(|fs| fs.after_loss(0))
}

/// Changes the first partition's catalog, and then reads and opens everything.
pub fn run(data: &[u8]) {
    let Ok(edits) = Vec::<Edit<'_>>::arbitrary(&mut Unstructured::new(data)) else { return };
    let fs = updated();
    {
        let pairs = fs.key_values(Path::new(CATALOG), Access::Write).expect("a catalog");
        let mut before = Vec::new();
        let mut each = |key: &[u8], value: &[u8]| {
            before.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        pairs.scan_from(b"", &mut each).expect("a catalog");
        let changes: Vec<Change> = edits.iter().filter_map(|edit| edit.change(&before)).collect();
        pairs.write(&changes).expect("room in memory");
    }
    bounded(data.len(), || look(&fs, &edits));
}

fn look(fs: &CrashFileSystem, edits: &[Edit<'_>]) {
    let shared: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let graph = Graph::open_on(shared, Path::new(OUT)).expect("its description is sound");
    let options = OpenOptions { reader: ReaderKind::Pread };
    let report = verify_rows(&graph);
    for mode in [OpenMode::Read, OpenMode::Write] {
        let live = match GraphHandle::open(graph.clone(), None, mode, &options) {
            Ok(live) => live,
            Err(error) => {
                // A file that no record names goes to quarantine, which this file system cannot do.
                let is_simulated = error.to_string().contains("cannot move: cross-device link");
                let is_explained = !report.ok || !report.later.is_empty();
                assert!(is_explained || is_simulated, "verified, and cannot be opened: {error}");
                continue;
            }
        };
        let live = Arc::new(live);
        let versions = [View::Latest, View::At(live.version()), View::At(live.oldest_version())];
        for view in versions {
            if let Ok(store) = EmbeddedStore::from_handle(Arc::clone(&live), view) {
                check(&store, edits);
            }
        }
    }
}

/// Asserts that every row that a gather returns is of the import, of a put, or of an edit.
fn check(store: &EmbeddedStore, edits: &[Edit<'_>]) {
    let all: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    for rows in TENSORS {
        let mut out = vec![0; all.len() * rows.row_bytes];
        let together = store.gather(rows.name, &all, &mut out).is_ok();
        for (node, row) in (0..N_NODES).zip(out.chunks_exact_mut(rows.row_bytes)) {
            // One row that cannot be given says nothing about the others.
            if !together && store.gather(rows.name, &[NodeId(node)], row).is_err() {
                continue;
            }
            let was_put = rows.seq_of(node, row).is_some_and(|seq| seq <= N_PUTS);
            let is_of = |edit: &Edit<'_>| match edit {
                Edit::Row { fill, .. } => row.iter().all(|byte| byte == fill),
                Edit::Pair { value, .. } => *value == &*row,
                _ => false,
            };
            assert!(was_put || edits.iter().any(is_of), "node {node}: {row:02x?}");
        }
    }
}

impl Edit<'_> {
    fn change(&self, before: &[(Vec<u8>, Vec<u8>)]) -> Option<Change> {
        Some(match *self {
            Edit::Pair { key, value } => Change::Put(key.to_vec(), value.to_vec()),
            Edit::Own { identity, value } => {
                let key: &[u8] = if identity { b"identity" } else { b"version" };
                Change::Put(key.to_vec(), value.to_vec())
            }
            Edit::Version(version) => {
                Change::Put(b"version".to_vec(), u32::from(version).to_le_bytes().to_vec())
            }
            Edit::Record { tensor, version, at, byte, cut } => {
                record(before, "segment", tensor, version, Mutation { at, byte, cut })?
            }
            Edit::Delta { tensor, is_prepared, version, at, byte, cut } => {
                let kind = if is_prepared { "prepared" } else { "delta" };
                record(before, kind, tensor, version, Mutation { at, byte, cut })?
            }
            Edit::Prepared(version) => {
                Change::Put(b"prepared".to_vec(), u32::from(version).to_le_bytes().to_vec())
            }
            Edit::Row { tensor, version, row, fill, longer } => {
                let rows = TENSORS[usize::from(tensor)];
                let prefix = format!("overlay/{}/", rows.name).into_bytes();
                let place = [u32::from(version), u32::from(row)].map(u32::to_be_bytes).concat();
                let longer = if longer % 4 == 0 { 0 } else { isize::from(longer) };
                let n_bytes = rows.row_bytes.saturating_add_signed(longer);
                Change::Put([prefix, place].concat(), vec![fill; n_bytes])
            }
            Edit::Less(at) => Change::Delete(before.get(usize::from(at))?.0.clone()),
        })
    }
}

/// A change of a record's bytes.
struct Mutation {
    /// Position of the changed byte.
    at: u8,
    /// Bits of it that change.
    byte: u8,
    /// Bytes that are cut from the end.
    cut: u8,
}

/// Returns the first record of a kind and a tensor, changed in a place and cut, at a version.
fn record(
    before: &[(Vec<u8>, Vec<u8>)],
    kind: &str,
    tensor: bool,
    version: u8,
    Mutation { at, byte, cut }: Mutation,
) -> Option<Change> {
    let prefix = format!("{kind}/{}/", TENSORS[usize::from(tensor)].name).into_bytes();
    let (_, record) = before.iter().find(|(key, _)| key.starts_with(&prefix))?;
    let mut record = record.clone();
    let n_bytes = record.len();
    record[usize::from(at) % n_bytes] ^= byte;
    record.truncate(n_bytes - usize::from(cut) % n_bytes % 9);
    Some(Change::Put([prefix, u32::from(version).to_be_bytes().to_vec()].concat(), record))
}

/// Returns edits of every kind, each in a few bytes.
pub fn seeds() -> Vec<Vec<u8>> {
    [3u8, 59, 113, 0xff].map(|by| (0..120u8).map(|i| i.wrapping_mul(by)).collect()).into()
}
