//! Files of a later version than the catalog's: leftovers of a crash are removed, and committed
//! rows never are.

use lodestore_graph::PartId;
use std::fs;
use std::path::PathBuf;

use super::*;
use crate::repair::{RepairMode, RepairReport, repair};

const N_NODES: u32 = 60;

fn catalog_of(ring: &Ring, part: u16) -> PathBuf {
    ring.out().join(format!("part-{part:03}/catalog"))
}

/// Copies the catalog of a partition, for [`put_back`].
fn keep_copy(ring: &Ring, part: u16) -> PathBuf {
    let copy = ring.dir.path().join(format!("old-{part}"));
    let _ = fs::remove_dir_all(&copy);
    copy_all(&catalog_of(ring, part), &copy);
    copy
}

fn put_back(ring: &Ring, part: u16, copy: &Path) {
    fs::remove_dir_all(catalog_of(ring, part)).unwrap();
    copy_all(copy, &catalog_of(ring, part));
}

fn repaired(dir: &Path) -> RepairReport {
    let report = repair(dir, RepairMode::Apply, &mut |_, _| {}).unwrap();
    assert_eq!(report.stopped, None, "{report:?}");
    let again = repair(dir, RepairMode::Apply, &mut |_, _| {}).unwrap();
    assert!(again.done.is_empty() && again.quarantined.is_empty(), "{again:?}");
    report
}

fn assert_refused(ring: &Ring, of: u32, is: u32) {
    let refused = open(&ring.out(), OpenMode::Write).unwrap_err();
    let expected = matches!(
        refused,
        StoreError::LaterFile { version, committed, .. } if (version, committed) == (of, is)
    );
    assert!(expected, "{refused}");
}

/// A commit that was interrupted before its record leaves a file whose rows are pending.
#[test]
fn a_file_whose_rows_are_all_pending_is_removed() {
    let ring = ring(N_NODES, 1, 1);
    let live = writer(&ring);
    put(&live, "feat", &[1, 3, 5], 1);
    drop(live);
    let old = keep_copy(&ring, 0);
    let live = writer(&ring);
    live.commit_version().unwrap();
    drop(live);
    put_back(&ring, 0, &old);
    let live = writer(&ring);
    assert!(!ring.out().join("part-000/feat.v2.delta").exists());
    assert_eq!(live.commit_version().unwrap(), 2);
    assert_eq!(seqs(&latest(&live), "feat")[..6], [0, 1, 0, 1, 0, 1]);
}

#[test]
fn committed_rows_are_not_deleted_because_of_an_older_catalog() {
    let ring = ring(N_NODES, 1, 1);
    let live = writer(&ring);
    put(&live, "feat", &[1], 1);
    put(&live, "mark", &[5], 1);
    drop(live);
    let old = keep_copy(&ring, 0);
    let live = writer(&ring);
    put(&live, "feat", &[2], 2);
    live.commit_version().unwrap();
    drop(live);
    put_back(&ring, 0, &old);
    let file = ring.out().join("part-000/feat.v2.delta");
    let bytes = fs::read(&file).unwrap();
    for _ in 0..2 {
        assert_refused(&ring, 2, 1);
        assert!(fs::read(&file).unwrap() == bytes, "the file stays for a repair");
    }
    let report = ring.verify();
    // All rows of `mark` are still pending.
    assert!(report.ok && report.later == [file.display().to_string()], "{report:?}");
    drop(open(&ring.out(), OpenMode::Read).unwrap());
    let report = repaired(&ring.out());
    assert!(report.done.iter().any(|done| done.action.contains("prepared")), "{report:?}");
    let live = writer(&ring);
    assert_eq!(seqs(&latest(&live), "feat")[..3], [0, 0, 0], "the version is not committed here");
    assert_eq!(live.commit_version().unwrap(), 2);
    assert_eq!(seqs(&latest(&live), "feat")[..3], [0, 1, 2]);
    assert_eq!(seqs(&latest(&live), "mark")[5], 1);
    drop(live);
    assert!(ring.verify().ok && ring.verify().later.is_empty());
    assert_eq!(seqs(&latest(&writer(&ring)), "feat")[..3], [0, 1, 2]);
}

/// The same rows as the pending ones, with other bytes.
#[test]
fn a_file_with_another_value_of_a_pending_row_is_not_removed() {
    let ring = ring(N_NODES, 1, 1);
    let live = writer(&ring);
    put(&live, "feat", &[1, 2], 1);
    drop(live);
    let old = keep_copy(&ring, 0);
    let live = writer(&ring);
    put(&live, "feat", &[2], 2);
    live.commit_version().unwrap();
    drop(live);
    put_back(&ring, 0, &old);
    assert_refused(&ring, 2, 1);
    // Quarantines the file as the message advises; the pending rows stay.
    let dir = ring.out().join("part-000");
    fs::create_dir(dir.join("quarantine")).unwrap();
    fs::rename(dir.join("feat.v2.delta"), dir.join("quarantine/feat.v2.delta")).unwrap();
    let live = writer(&ring);
    live.commit_version().unwrap();
    assert_eq!(seqs(&latest(&live), "feat")[..3], [0, 1, 1]);
}

#[test]
fn a_version_that_another_partition_has_is_repaired_as_committed() {
    let ring = ring(N_NODES, 2, 2);
    let all: Vec<u32> = (0..N_NODES).collect();
    let old = keep_copy(&ring, 0);
    let live = writer(&ring);
    put(&live, "feat", &all, 1);
    live.commit_version().unwrap();
    drop(live);
    put_back(&ring, 0, &old);
    assert_refused(&ring, 2, 1);
    repaired(&ring.out());
    let reader = open(&ring.out(), OpenMode::Read).unwrap();
    assert_eq!((reader.version(), seqs(&latest(&reader), "feat")), (2, vec![1; 60]));
    drop(reader);
    let live = writer(&ring);
    assert_eq!(live.commit_version().unwrap(), 3);
}

/// The file is left by a crash, before its commit, and the catalog is lost afterwards.
#[test]
fn a_file_that_no_catalog_names_is_prepared_unless_its_version_was_committed() {
    let ring = ring(N_NODES, 2, 2);
    let all: Vec<u32> = (0..N_NODES).collect();
    let live = writer(&ring);
    put(&live, "feat", &all, 1);
    live.commit_version().unwrap();
    drop(live);
    let before = ring.dir.path().join("before");
    copy_all(&ring.out(), &before);
    let live = writer(&ring);
    put(&live, "feat", &[1], 2);
    live.commit_version().unwrap();
    drop(live);
    let name = "part-000/feat.v3.delta";
    fs::copy(ring.out().join(name), before.join(name)).unwrap();
    fs::remove_dir_all(before.join("part-000/catalog")).unwrap();
    let report = repaired(&before);
    assert!(report.done.iter().any(|done| done.file.ends_with(name)), "{report:?}");
    let live = open(&before, OpenMode::Write).unwrap();
    assert_eq!((live.version(), seqs(&latest(&live), "feat")[1]), (2, 1));
    assert_eq!(live.commit_version().unwrap(), 3);
    assert_eq!(seqs(&latest(&live), "feat")[..3], [1, 2, 1]);
    drop(live);
    // The other partition has the version, so it was committed.
    fs::remove_dir_all(catalog_of(&ring, 0)).unwrap();
    repaired(&ring.out());
    let reader = open(&ring.out(), OpenMode::Read).unwrap();
    assert_eq!((reader.version(), seqs(&latest(&reader), "feat")[1]), (3, 2));
}

/// A partition was restored from an old copy, and its catalog was lost afterwards: the versions of
/// the others prove nothing about its files.
#[test]
fn a_repaired_partition_claims_no_version_that_its_files_do_not_show() {
    let ring = ring(N_NODES, 2, 2);
    let dir = ring.out().join("part-001");
    let old = ring.dir.path().join("old");
    copy_all(&dir, &old);
    let live = writer(&ring);
    for seq in 1..=2 {
        put(&live, "feat", &(0..N_NODES).collect::<Vec<_>>(), seq);
        live.commit_version().unwrap();
    }
    drop(live);
    fs::remove_dir_all(&dir).unwrap();
    copy_all(&old, &dir);
    fs::remove_dir_all(catalog_of(&ring, 1)).unwrap();
    let report = repaired(&ring.out());
    assert!(report.lost.iter().any(|lost| lost.reason.contains("versions after")), "{report:?}");
    let refused = open(&ring.out(), OpenMode::Write).unwrap_err();
    assert!(matches!(refused, StoreError::HistoriesDiffer { .. }), "{refused}");
    let graph = Graph::open(&ring.out()).unwrap();
    let (live, version) = GraphHandle::align(graph, &OpenOptions::default()).unwrap();
    assert_eq!(version.number, 4);
    let rows = seqs(&latest(&Arc::new(live)), "feat");
    assert_eq!((rows[0], rows[N_NODES as usize - 1]), (2, 0));
}

/// An aligned partition has made the previous version by its own commit, which a repair of another
/// partition must not adopt.
#[test]
fn a_repaired_partition_claims_no_commit_of_an_aligned_neighbour() {
    let ring = ring(N_NODES, 2, 2);
    let dir = ring.out().join("part-000");
    let old = ring.dir.path().join("old");
    copy_all(&dir, &old);
    let ids: Vec<u32> = (0..N_NODES).collect();
    let live = writer(&ring);
    for seq in 1..=2 {
        put(&live, "feat", &ids, seq);
        live.commit_version().unwrap();
    }
    let other = PartId(1);
    let made = live.commit_of(other, 3).unwrap();
    assert!(made.is_known());
    drop(live);
    fs::remove_dir_all(&dir).unwrap();
    copy_all(&old, &dir);
    let live = aligned(&ring);
    assert_ne!(live.commit_of(PartId(0), 3).unwrap(), made);
    put(&live, "feat", &ids, 3);
    let version = live.commit_version().unwrap();
    let newest = live.version_id().unwrap();
    drop(live);
    fs::remove_dir_all(catalog_of(&ring, other.0)).unwrap();
    repaired(&ring.out());
    let live = writer(&ring);
    assert_eq!(live.part_version_id(other), Some(newest), "{version}");
    assert!(!live.commit_of(other, 3).unwrap().is_known());
}

/// A partition was restored from an old copy, and the catalog of another one was lost: nothing
/// records any more whether the commit in between had rows of the first.
#[test]
fn a_restored_partition_is_not_rolled_forward_to_a_repaired_one() {
    let ring = ring(N_NODES, 2, 2);
    let dir = ring.out().join("part-001");
    let old = ring.dir.path().join("old");
    copy_all(&dir, &old);
    let live = writer(&ring);
    // The second commit shows that the first was committed.
    for seq in 1..=2 {
        put(&live, "feat", &(0..N_NODES).collect::<Vec<_>>(), seq);
        live.commit_version().unwrap();
    }
    drop(live);
    fs::remove_dir_all(&dir).unwrap();
    copy_all(&old, &dir);
    fs::remove_dir_all(catalog_of(&ring, 0)).unwrap();
    repaired(&ring.out());
    let opened = open(&ring.out(), OpenMode::Write);
    assert!(matches!(opened, Err(StoreError::HistoriesDiffer { .. })));
}
