//! File systems that lack features of a local disk.

use std::io;

use super::hooked::{Hooked, Step};
use super::*;
use crate::file_system::FileSystem;
use crate::file_system::nfs::Nfs;
use crate::import::{ImportError, Importer};
use crate::verify::verify;

const N_NODES: u32 = 60;

fn open_on(
    fs: impl FileSystem + 'static,
    dir: &Path,
    mode: OpenMode,
) -> Result<Arc<GraphHandle>, StoreError> {
    let graph = Graph::open_on(Arc::new(fs), dir)?;
    GraphHandle::open(graph, None, mode, &OpenOptions::default()).map(Arc::new)
}

#[test]
fn a_graph_works_on_a_mount_that_renames_and_locks_like_nfs() {
    let ring = ring(N_NODES, 3, 3);
    let dir = ring.out();
    let live = open_on(Nfs, &dir, OpenMode::Write).unwrap();
    let second = open_on(Nfs, &dir, OpenMode::Write).unwrap_err();
    assert!(matches!(second, StoreError::Locked { .. }), "{second}");
    put(&live, "feat", &[3, 4], 1);
    live.commit_version().unwrap();
    let reader = open_on(Nfs, &dir, OpenMode::Read).unwrap();
    put(&live, "feat", &[4, 5], 2);
    live.commit_version().unwrap();
    compact(&live);
    assert_eq!(seqs(&latest(&reader), "feat")[3..6], [1, 1, 0], "the reader has pinned its files");
    let files = || Nfs.list(&dir.join("part-000")).unwrap().into_iter().map(|entry| entry.name);
    assert!(files().any(|name| name == "feat.v1.seg"));
    drop(reader);
    assert_eq!(live.sweep().unwrap(), 0);
    assert!(!files().any(|name| name == "feat.v1.seg"), "files that no reader has are removed");
    drop(live);
    let live = open_on(Nfs, &dir, OpenMode::Write).unwrap();
    assert_eq!(seqs(&latest(&live), "feat")[3..6], [1, 2, 2]);
    let report = verify(&dir, &mut |_, _| {}).unwrap();
    assert!(report.ok && report.unknown.is_empty(), "{report:?}");
}

/// Leftover of a move that was interrupted between its link and the removal of the old name.
#[test]
fn an_interrupted_move_loses_its_temporary_name() {
    let ring = ring(N_NODES, 1, 1);
    let live = writer(&ring);
    put(&live, "feat", &[3], 1);
    live.commit_version().unwrap();
    drop(live);
    let of = |name: &str| ring.out().join("part-000").join(name);
    std::fs::hard_link(of("feat.v2.delta"), of("feat.v2.delta.tmp")).unwrap();
    let live = writer(&ring);
    assert!(!of("feat.v2.delta.tmp").exists());
    assert_eq!(seqs(&latest(&live), "feat")[3], 1);
}

#[test]
fn a_file_system_without_rename_is_refused_before_anything_is_written() {
    let ring = ring(N_NODES, 2, 2);
    let refuse = |step, path: &Path| match step {
        Step::Rename if path.is_file() => Err(io::ErrorKind::Unsupported.into()),
        _ => Ok(()),
    };
    let error = open_on(Hooked(refuse), &ring.out(), OpenMode::Write).unwrap_err();
    assert!(matches!(error, StoreError::Unsuited { .. }), "{error}");
    drop(open_on(Hooked(refuse), &ring.out(), OpenMode::Read).unwrap());
    let other = ring.dir.path().join("other");
    let error = Importer::begin_on(Arc::new(Hooked(refuse)), &other).unwrap_err();
    assert!(matches!(error, ImportError::Store(StoreError::Unsuited { .. })), "{error}");
    assert_eq!(ring.names(), ["graph"], "nothing is left");
    drop(writer(&ring));
}

#[test]
fn a_file_system_without_locks_is_refused_for_writing_and_can_be_read() {
    let ring = ring(N_NODES, 2, 2);
    let refuse = |step, _: &Path| match step {
        Step::Lock => Err(io::ErrorKind::Unsupported.into()),
        _ => Ok(()),
    };
    let error = open_on(Hooked(refuse), &ring.out(), OpenMode::Write).unwrap_err();
    assert!(matches!(error, StoreError::Unsuited { .. }), "{error}");
    drop(open_on(Hooked(refuse), &ring.out(), OpenMode::Read).unwrap());
}

/// RocksDB writes its logs and the number of the last write in place.
#[test]
fn a_copy_by_hard_links_is_refused_for_writing_and_the_original_stays_intact() {
    let ring = ring(N_NODES, 2, 2);
    let live = writer(&ring);
    put(&live, "feat", &[3], 1);
    drop(live);
    let copy = ring.dir.path().join("copy");
    let copied = std::process::Command::new("cp").arg("-al").arg(ring.out()).arg(&copy).status();
    assert!(copied.unwrap().success());
    let error = open(&copy, OpenMode::Write).unwrap_err();
    assert!(matches!(error, StoreError::HardLinked { n_links: 2, .. }), "{error}");
    assert!(error.to_string().contains("cp -r"), "{error}");
    let refused = crate::repair::repair(&copy, crate::repair::RepairMode::Apply, &mut |_, _| {});
    assert!(matches!(refused, Err(StoreError::HardLinked { .. })), "{refused:?}");
    drop(open(&copy, OpenMode::Read).unwrap());
    assert!(ring.verify().ok);
    // Follows the advice of the message.
    for part in ["part-000", "part-001"] {
        let catalog = copy.join(part).join("catalog");
        let real = copy.join(part).join("real");
        let copied = std::process::Command::new("cp").arg("-r").arg(&catalog).arg(&real).status();
        assert!(copied.unwrap().success());
        std::fs::remove_dir_all(&catalog).unwrap();
        std::fs::rename(real, catalog).unwrap();
    }
    let live = open(&copy, OpenMode::Write).unwrap();
    put(&live, "feat", &[4], 2);
    live.commit_version().unwrap();
    drop(live);
    assert!(ring.verify().ok);
    let original = writer(&ring);
    original.commit_version().unwrap();
    assert_eq!(seqs(&latest(&original), "feat")[3..5], [1, 0]);
}
