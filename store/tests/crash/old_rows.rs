//! Graphs whose committed rows are stored as the last release did: in the catalog, by version.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use lodestore_store::file_system::crash::CrashFileSystem;
use lodestore_store::file_system::{Access, Change, FileSystem};
use lodestore_store::verify::verify_on;
use lodestore_store::{Graph, GraphHandle, OpenMode, OpenOptions, ReaderKind, StoreError};

use crate::crash::small::{BOUNDS, OUT, TENSORS, import};
use crate::crash::updates::Updates;
use crate::crash::world::{Model, Op, World, nodes_of};

/// Rows by tensor and nodes, and the version that they were put for. Rows of version 2 and 3 are
/// committed, of version 4 pending.
const PUTS: [(usize, u16, u32); 5] = [
    (0, 0b1000_0000_0110, 2),
    (1, 0b1111_1111_1111, 2),
    (0, 0b0000_0000_0011, 3),
    (0, 0b1000_0000_0010, 4),
    (1, 0b0000_0000_0001, 4),
];
const COMMITTED: u32 = 3;

/// Returns a graph as the last release has left it, and what it holds.
fn old_graph() -> (CrashFileSystem, Model) {
    let fs = CrashFileSystem::new(0);
    fs.create_dir(Path::new("graphs")).unwrap();
    fs.sync(Path::new("")).unwrap();
    let shared: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let graph = import(&shared).unwrap();
    let mut model = Model::imported();
    let mut changes = vec![Vec::new(); BOUNDS.len() - 1];
    for (tensor, nodes, version) in PUTS {
        while version <= COMMITTED && model.version + 1 < version {
            model.committed(model.version + 1).unwrap();
        }
        if version > COMMITTED && model.version < COMMITTED {
            model.committed(COMMITTED).unwrap();
        }
        let seq = model.begin_put().unwrap();
        model.end_put(tensor, nodes, seq, Some(version)).unwrap();
        for node in nodes_of(nodes) {
            let part = BOUNDS.partition_point(|first| *first <= node) - 1;
            let mut key = format!("overlay/{}/", TENSORS[tensor].name).into_bytes();
            key.extend_from_slice(&version.to_be_bytes());
            key.extend_from_slice(&(node - BOUNDS[part]).to_be_bytes());
            let (first, others) = TENSORS[tensor].row(node, seq);
            changes[part].push(Change::Put(key, [&[first], others].concat()));
        }
    }
    model.is_old = true;
    for (part, mut changes) in graph.book().parts().zip(changes) {
        let dir = graph.part_dir(part).join("catalog");
        let pairs = fs.key_values(&dir, Access::Write).unwrap();
        // The format comes first in a record and in the identity.
        let mut as_of_old = |key: &[u8], value: &[u8]| {
            if key == b"identity" || key.starts_with(b"segment/") {
                let old = [&1u32.to_le_bytes(), &value[4..]].concat();
                changes.push(Change::Put(key.to_vec(), old));
            }
            ControlFlow::Continue(())
        };
        pairs.scan_from(b"", &mut as_of_old).unwrap();
        changes.push(Change::Put(b"version".to_vec(), COMMITTED.to_le_bytes().to_vec()));
        pairs.write(&changes).unwrap();
    }
    (fs, model)
}

/// Names of all files with their bytes, and all pairs of the catalogs.
fn contents(fs: &CrashFileSystem) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for part in 0..BOUNDS.len() - 1 {
        let dir = Path::new(OUT).join(format!("part-{part:03}"));
        for entry in fs.list(&dir).unwrap().into_iter().filter(|entry| !entry.is_dir) {
            let path = dir.join(entry.name);
            let file = fs.open(&path).unwrap();
            let mut bytes = vec![0; file.len_bytes().unwrap() as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            found.insert(path.display().to_string(), bytes);
        }
        let pairs = fs.key_values(&dir.join("catalog"), Access::Read).unwrap();
        let mut each = |key: &[u8], value: &[u8]| {
            found.insert(format!("{part}: {}", key.escape_ascii()), value.to_vec());
            ControlFlow::Continue(())
        };
        pairs.scan_from(b"", &mut each).unwrap();
    }
    found
}

#[test]
fn rows_that_the_last_release_committed_are_refused_for_reading_and_brought_forward() {
    let (fs, model) = old_graph();
    let shared: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let graph = Graph::open_on(Arc::clone(&shared), Path::new(OUT)).unwrap();
    let options = OpenOptions { reader: ReaderKind::Pread };
    let before = contents(&fs);
    let refused = GraphHandle::open(graph.clone(), None, OpenMode::Read, &options).unwrap_err();
    assert!(matches!(refused, StoreError::OldRows { version: 2, .. }), "{refused}");
    assert!(refused.to_string().contains("compact the graph"), "{refused}");
    assert_eq!(contents(&fs), before, "refusing changes nothing");
    let report = verify_on(Arc::clone(&shared), Path::new(OUT), 1, &mut |_, _| {}).unwrap();
    assert!(report.damaged.iter().all(|it| it.reason.contains("compact the graph")), "{report:?}");
    assert!(!report.ok);

    let mut world = World::new(&fs, model);
    for op in [Op::Reopen, Op::Gather, Op::Verify, Op::Look] {
        world.act(&op).unwrap_or_else(|error| panic!("{op:?}: {error}"));
    }
    let live = GraphHandle::open(graph, None, OpenMode::Read, &options).unwrap();
    assert_eq!((live.version(), live.oldest_version()), (COMMITTED, 1));
    drop(live);
    let brought = contents(&fs);
    assert!(brought.keys().any(|name| name.ends_with("feat.v2.delta")), "{:?}", brought.keys());
    assert!(!brought.keys().any(|name| name.contains("mark.v3.delta")), "nothing was put");
    world.act(&Op::Reopen).unwrap();
    assert_eq!(contents(&fs), brought, "a second opening changes nothing");
    // What was pending is committed like any other.
    for op in [Op::Commit, Op::Gather, Op::Verify] {
        world.act(&op).unwrap_or_else(|error| panic!("{op:?}: {error}"));
    }
}

#[test]
fn bringing_forward_ends_the_same_wherever_it_is_cut_off() {
    const OPS: &[Op] = &[Op::Reopen, Op::Gather, Op::Put { tensor: 0, nodes: 0b101 }, Op::Gather];
    let (fs, model) = old_graph();
    Updates::of("bringing forward", fs, model, OPS).sweep();
}
