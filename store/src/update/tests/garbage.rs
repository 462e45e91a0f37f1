//! Files that a compaction replaces stay while a view reads them, and are removed afterwards.

use std::fs;

use rustix::fs::{FlockOperation, flock};

use super::*;
use crate::catalog::Catalog;
use crate::file_system::{Access, Disk};
use crate::graph::Graph;

fn segments(ring: &Ring) -> Vec<String> {
    let entries = fs::read_dir(ring.out().join("part-000")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.starts_with("feat"));
    names.sort();
    names
}

/// Counts the pending rows of a version in the catalog.
fn stored_rows(live: &GraphHandle, version: u32) -> usize {
    let mut n_rows = 0;
    let tensor = live.tensor(lodestore_graph::PartId(0), 1).unwrap();
    let each = |_, _: &[u8]| {
        n_rows += 1;
        Ok(std::ops::ControlFlow::Continue(()))
    };
    tensor.catalog().scan_pending("feat", version, crate::row::RowIdx(0), each).unwrap();
    n_rows
}

#[test]
fn a_pinned_view_survives_compaction_and_its_files_are_removed_after_it() {
    let ring = ring(100, 1, 1);
    let live = writer(&ring);
    put(&live, "feat", &[1, 2], 1);
    live.commit_version().unwrap();
    let pins = [at(&live, 1).unwrap(), at(&live, 2).unwrap()];
    put(&live, "feat", &[2, 3], 2);
    live.commit_version().unwrap();
    put(&live, "feat", &[4], 3);
    assert_eq!(compact(&live), 3);
    let (first, second) = (seqs(&pins[0], "feat"), seqs(&pins[1], "feat"));
    assert_eq!((&first[..5], &second[..5]), (&[0, 0, 0, 0, 0][..], &[0, 1, 1, 0, 0][..]));
    assert_eq!(seqs(&latest(&live), "feat")[..5], [0, 1, 2, 2, 0]);
    assert_eq!(segments(&ring), ["feat.v1.seg", "feat.v2.delta", "feat.v3.seg"]);
    assert_eq!(live.sweep().unwrap(), 2, "still held");
    drop(pins);
    assert_eq!(live.sweep().unwrap(), 0);
    assert_eq!(segments(&ring), ["feat.v3.seg"]);
    assert_eq!([2, 3, 4].map(|version| stored_rows(&live, version)), [0, 0, 1]);
}

/// On a full disk, puts wait for the space of removed files.
#[test]
fn unused_files_are_removed_although_the_partition_rejects_writes() {
    let ring = ring(100, 1, 1);
    let live = writer(&ring);
    put(&live, "feat", &[1], 1);
    live.commit_version().unwrap();
    let pin = at(&live, 1).unwrap();
    compact(&live);
    assert_eq!(segments(&ring), ["feat.v1.seg", "feat.v2.seg"]);
    let tensor = live.tensor(lodestore_graph::PartId(0), 1).unwrap();
    tensor.catalog().fail_writes(std::io::Error::other("no writes"));
    assert_eq!(live.sweep().unwrap(), 1, "still held");
    drop(pin);
    assert_eq!(live.sweep().unwrap(), 0);
    assert_eq!(segments(&ring), ["feat.v2.seg"]);
}

#[test]
fn a_view_of_an_older_base_keeps_the_deltas_over_it() {
    let ring = ring(100, 1, 1);
    let live = writer(&ring);
    put(&live, "feat", &[1], 1);
    live.commit_version().unwrap();
    put(&live, "feat", &[2], 2);
    live.commit_version().unwrap();
    // There are bases of versions 1 and 3; the view at version 3 reads the first.
    let early = at(&live, 3).unwrap();
    compact(&live);
    put(&live, "feat", &[1, 2], 3);
    live.commit_version().unwrap();
    compact(&live);
    assert_eq!(seqs(&early, "feat")[..4], [0, 1, 2, 0]);
    let held = ["feat.v1.seg", "feat.v2.delta", "feat.v3.delta", "feat.v4.seg"];
    assert_eq!(segments(&ring), held, "the middle segment is removed");
    assert_eq!(seqs(&early, "feat")[..4], [0, 1, 2, 0]);
    drop(early);
    assert_eq!(live.sweep().unwrap(), 0);
    assert_eq!(segments(&ring), ["feat.v4.seg"]);
}

#[test]
fn readers_of_other_processes_keep_their_file_until_the_next_compaction_or_open() {
    let ring = ring(100, 1, 1);
    for reopen in [false, true] {
        let mut live = writer(&ring);
        let reader = open(&ring.out(), OpenMode::Read).unwrap();
        let before = seqs(&latest(&reader), "feat");
        put(&live, "feat", &[1], u32::from(before[1]) + 1);
        live.commit_version().unwrap();
        compact(&live);
        assert_eq!(segments(&ring).len(), 2);
        assert_eq!(seqs(&latest(&reader), "feat"), before);
        drop(reader);
        if reopen {
            drop(live);
            live = writer(&ring);
        } else {
            assert_eq!(compact(&live), 0);
        }
        assert_eq!(segments(&ring).len(), 1);
    }
}

#[test]
fn leftovers_of_a_crash_are_removed_by_a_writer_and_never_seen() {
    let ring = ring(100, 1, 1);
    let dir = ring.out().join("part-000");
    let live = writer(&ring);
    put(&live, "feat", &[1], 1);
    live.commit_version().unwrap();
    let pin = at(&live, 1).unwrap();
    compact(&live);
    // Pinned until the end of the process, like a killed process.
    drop((live, pin));
    assert_eq!(segments(&ring).len(), 2, "no sweep ran");
    fs::write(dir.join("feat.v2.seg.tmp"), b"half").unwrap();
    fs::write(dir.join("mark.v2.seg"), b"named by no record").unwrap();
    fs::write(dir.join("feat.v9.seg"), b"of a version without a commit").unwrap();
    fs::write(dir.join("feat.v1.seg.bak"), b"a copy of the user's").unwrap();
    let reader = open(&ring.out(), OpenMode::Read).unwrap();
    assert_eq!(seqs(&latest(&reader), "feat")[1], 1);
    drop(reader);
    assert_eq!(segments(&ring).len(), 5, "a reader removes nothing");
    let refused = open(&ring.out(), OpenMode::Write).unwrap_err();
    assert!(matches!(refused, StoreError::LaterFile { version: 9, committed: 2, .. }), "{refused}");
    // Follows the advice of the message.
    fs::create_dir(dir.join("quarantine")).unwrap();
    fs::rename(dir.join("feat.v9.seg"), dir.join("quarantine/feat.v9.seg")).unwrap();
    let live = writer(&ring);
    assert_eq!(segments(&ring), ["feat.v1.seg.bak", "feat.v2.seg"]);
    assert!(!dir.join("mark.v2.seg").exists());
    assert_eq!(seqs(&latest(&live), "feat")[1], 1);
}

#[test]
fn segments_unknown_to_an_old_catalog_are_never_removed() {
    let ring = ring(100, 1, 1);
    let (dir, old) = (ring.out().join("part-000"), ring.dir.path().join("old"));
    let copy = |from: &Path, to: &Path| {
        fs::create_dir(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    };
    copy(&dir.join("catalog"), &old);
    let first = fs::read(dir.join("feat.v1.seg")).unwrap();
    let live = writer(&ring);
    put(&live, "feat", &[1], 1);
    live.commit_version().unwrap();
    compact(&live);
    drop(live);
    let second = fs::read(dir.join("feat.v2.seg")).unwrap();
    // Restores catalog and segment, and makes another second version.
    fs::remove_dir_all(dir.join("catalog")).unwrap();
    copy(&old, &dir.join("catalog"));
    fs::write(dir.join("feat.v1.seg"), first).unwrap();
    let refused = open(&ring.out(), OpenMode::Write).unwrap_err();
    assert!(matches!(refused, StoreError::LaterFile { version: 2, .. }), "{refused}");
    assert!(fs::read(dir.join("feat.v2.seg")).unwrap() == second);
    fs::create_dir(dir.join("quarantine")).unwrap();
    fs::rename(dir.join("feat.v2.seg"), dir.join("quarantine/second")).unwrap();
    let live = writer(&ring);
    // Another one appears while the graph is open.
    fs::write(dir.join("feat.v2.seg"), &second[..5000]).unwrap();
    put(&live, "feat", &[2], 2);
    live.commit_version().unwrap();
    compact(&live);
    assert_eq!(segments(&ring), ["feat.v2.seg"]);
    assert_eq!(seqs(&latest(&live), "feat")[..3], [0, 0, 2]);
    assert!(fs::read(dir.join("quarantine/feat.v2.seg.1")).unwrap() == second[..5000]);
}

#[test]
fn the_record_of_a_new_segment_is_in_a_table_before_the_old_segment_is_removed() {
    let ring = ring(100, 2, 2);
    let live = writer(&ring);
    put(&live, "feat", &[1, 99], 1);
    live.commit_version().unwrap();
    compact(&live);
    let graph = Graph::open(&ring.out()).unwrap();
    for part in graph.book().parts() {
        assert!(!graph.part_dir(part).join("feat.v1.seg").exists(), "{part}");
        let copy = ring.dir.path().join(format!("killed-{part}"));
        fs::create_dir(&copy).unwrap();
        for entry in fs::read_dir(graph.part_dir(part).join("catalog")).unwrap() {
            let entry = entry.unwrap();
            // All logs are lost.
            let name = entry.file_name().into_string().unwrap();
            if !name.ends_with(".log") {
                fs::copy(entry.path(), copy.join(name)).unwrap();
            }
        }
        let catalog = Catalog::open_unchecked(&Disk, &copy, Access::Salvage).unwrap();
        let records = catalog.segments("feat").unwrap();
        assert_eq!(records.len(), 1, "{part}");
        assert_eq!(records[0].1.file, "feat.v2.seg", "{part}");
    }
}

#[test]
fn a_segment_that_is_replaced_between_catalog_and_open_is_found_again() {
    let ring = ring(50, 1, 1);
    let live = writer(&ring);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let graph = Graph::open(&ring.out()).unwrap();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let (mut n_opened, mut last) = (0, 0);
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        let reader = open(&ring.out(), OpenMode::Read).unwrap();
                        let found = seqs(&latest(&reader), "feat")[7];
                        assert!(found >= last, "{found} after {last}");
                        (n_opened, last) = (n_opened + 1, found);
                        graph.segment(lodestore_graph::PartId(0), "feat").unwrap();
                    }
                    n_opened
                })
            })
            .collect();
        let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for seq in 1..60 {
                put(&live, "feat", &[7], seq);
                live.commit_version().unwrap();
                assert_eq!(compact(&live), 1);
            }
        }));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        written.unwrap();
        assert!(readers.into_iter().all(|reader| reader.join().unwrap() > 0));
    });
}

#[test]
fn a_reader_pins_its_segment() {
    let ring = ring(50, 1, 1);
    let path = ring.out().join("part-000/feat.v1.seg");
    let is_pinned = || {
        let file = std::fs::File::open(&path).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
    };
    assert!(!is_pinned());
    let reader = open(&ring.out(), OpenMode::Read).unwrap();
    assert!(is_pinned());
    drop(reader);
    assert!(!is_pinned());
}
