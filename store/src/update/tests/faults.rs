//! Damage and failures: they are reported, and leave nothing half-done.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use lodestore_graph::PartId;

use super::*;
use crate::catalog::Catalog;
use crate::file_system::Disk;
use crate::fixture::{files, flip};
use crate::repair::{RepairMode, repair};
use crate::row::RowIdx;

#[test]
fn a_damaged_page_fails_a_compaction_unless_all_its_rows_were_replaced() {
    // 99 bytes a row: page 1 holds rows 41 to 82, some of them in part.
    let ring = ring(200, 1, 1);
    let live = writer(&ring);
    let path = ring.out().join("part-000/feat.v1.seg");
    flip(&path, 2 * 4096 + 50);
    put(&live, "feat", &[50], 1);
    live.commit_version().unwrap();
    let before = files(&ring.out().join("part-000"));
    let error = live
        .compact(None, Some("feat"), Folding::All, &mut |_, _| ControlFlow::Continue(()))
        .unwrap_err();
    assert!(matches!(error, StoreError::DamagedPage { page: 1, .. }), "{error}");
    let names =
        |files: &std::collections::BTreeMap<_, _>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&files(&ring.out().join("part-000"))), names(&before));
    let store = latest(&live);
    assert_eq!(seqs_of(&store, "feat", &[NodeId(50), NodeId(0)]).unwrap(), [1, 0]);
    assert!(seqs_of(&store, "feat", &[NodeId(51)]).is_err(), "the neighbouring row is damaged");
    put(&live, "feat", &(41..83).collect::<Vec<_>>(), 2);
    live.commit_version().unwrap();
    assert_eq!(compact(&live), 42);
    assert_eq!(seqs(&store, "feat")[40..84].iter().filter(|&&seq| seq == 2).count(), 42);
    drop(store);
    drop(live);
    assert!(ring.verify().ok, "{:?}", ring.verify());
}

#[test]
fn a_stopped_compaction_leaves_nothing() {
    let ring = ring(200, 1, 1);
    let live = writer(&ring);
    put(&live, "feat", &[50], 1);
    live.commit_version().unwrap();
    let names = || files(&ring.out().join("part-000")).into_keys().collect::<Vec<_>>();
    let before = names();
    let stopped =
        live.compact(None, None, Folding::All, &mut |_, _| ControlFlow::Break(())).unwrap_err();
    assert!(matches!(stopped, StoreError::Stopped), "{stopped}");
    assert_eq!((names(), live.oldest_version()), (before, 1));
    assert_eq!(compact(&live), 1);
    assert_eq!(seqs(&latest(&live), "feat")[50], 1);
}

#[test]
fn a_pending_row_of_another_length_is_reported_and_not_committed() {
    let ring = ring(20, 1, 1);
    let live = writer(&ring);
    put(&live, "feat", &[1, 2, 3], 1);
    let tensor = live.tensor(PartId(0), 1).unwrap();
    tensor.catalog().put_rows("feat", 2, [(RowIdx(2), &[1u8; 98][..])], None).unwrap();
    let error = live.commit_version().unwrap_err();
    assert!(matches!(&error, StoreError::DamagedPending { row: RowIdx(2), .. }), "{error}");
    assert!(error.to_string().contains("found 98 bytes"), "{error}");
    assert_eq!((live.version(), seqs(&latest(&live), "feat")[1]), (1, 0));
    assert!(!ring.verify().ok, "verify finds it too");
    // A further put is for the next version; a repair of the catalog removes the damaged row.
    put(&live, "feat", &[2], 2);
    assert!(matches!(live.commit_version(), Err(StoreError::DamagedPending { .. })));
    drop(tensor);
    drop(live);
    let report = repair(&ring.out(), RepairMode::Apply, &mut |_, _| {}).unwrap();
    let expected = "1 rows of `feat` that no put can have written";
    assert!(report.lost[0].reason.contains(expected), "{report:?}");
    let live = writer(&ring);
    assert_eq!(live.commit_version().unwrap(), 3);
    assert_eq!(seqs(&latest(&live), "feat")[..4], [0, 1, 2, 1]);
    assert_eq!(seqs(&at(&live, 2).unwrap(), "feat")[..4], [0, 1, 0, 1]);
    assert!(ring.verify().ok, "{:?}", ring.verify());
}

#[test]
fn missing_pending_rows_are_reported_and_not_committed() {
    let ring = ring(20, 1, 1);
    let live = writer(&ring);
    put(&live, "feat", &[1, 2, 3], 1);
    live.tensor(PartId(0), 1).unwrap().catalog().remove_rows("feat", 2).unwrap();
    let error = live.commit_version().unwrap_err();
    assert!(matches!(&error, StoreError::DamagedPending { row: RowIdx(1), .. }), "{error}");
}

#[test]
fn pending_rows_that_no_put_can_have_written_are_refused() {
    for (version, row, opens) in [(2, 20, true), (4, 0, false), (u32::MAX, 0, false)] {
        let ring = ring(20, 1, 1);
        let graph = Graph::open(&ring.out()).unwrap();
        let dir = graph.part_dir(PartId(0)).join("catalog");
        let catalog = Catalog::open_for_writing(&Disk, &dir, graph.uuid(), PartId(0)).unwrap();
        catalog.put_rows("feat", version, [(RowIdx(row), &[1u8; 99][..])], None).unwrap();
        drop(catalog);
        for mode in [OpenMode::Read, OpenMode::Write] {
            let error = match (open(&ring.out(), mode), opens) {
                (Ok(live), true) if mode == OpenMode::Write => live.commit_version().unwrap_err(),
                (Ok(_), true) => continue,
                (found, _) => found.unwrap_err(),
            };
            assert!(matches!(error, StoreError::DamagedPending { .. }), "{error}");
        }
        assert!(!ring.verify().ok);
    }
}

#[test]
fn a_damaged_delta_is_reported_by_name() {
    let ring = ring(200, 1, 1);
    let live = writer(&ring);
    put(&live, "feat", &[50, 150], 1);
    live.commit_version().unwrap();
    drop(live);
    let path = ring.out().join("part-000/feat.v2.delta");
    // Damages the data, then the row list, which is the page before the footer.
    flip(&path, 4096 + 120);
    let live = open(&ring.out(), OpenMode::Read).unwrap();
    let error = seqs_of(&latest(&live), "feat", &[NodeId(150)]).unwrap_err();
    assert!(matches!(error, StoreError::DamagedPage { page: 0, .. }), "{error}");
    assert!(error.to_string().contains("feat.v2.delta"), "{error}");
    assert_eq!(seqs_of(&latest(&live), "feat", &[NodeId(51)]).unwrap(), [0]);
    assert!(ring.verify().damaged.iter().any(|it| it.file.ends_with("feat.v2.delta")));
    flip(&path, 4096 + 120);
    assert!(ring.verify().ok, "{:?}", ring.verify());
    let list = fs::metadata(&path).unwrap().len() - 2 * 4096;
    flip(&path, list + 5);
    let error = open(&ring.out(), OpenMode::Read).unwrap_err();
    assert!(error.to_string().contains("feat.v2.delta"), "{error}");
    assert!(ring.verify().damaged.iter().any(|it| it.reason.contains("feat.v2.delta")));
}

#[test]
fn after_a_failed_write_its_partition_rejects_writes_and_the_others_continue() {
    let ring = ring(20, 2, 2);
    let live = writer(&ring);
    let first_of = |part: u16| ring.nodes.book.range(PartId(part)).start;
    let (sound, failed) = (first_of(1), first_of(0));
    put(&live, "feat", &[failed, sound], 1);
    live.commit_version().unwrap();
    assert!(live.takes_writes());
    let catalog = Arc::clone(live.tensor(PartId(0), 1).unwrap().catalog());
    catalog.fail_writes(std::io::Error::other("the disk is on fire"));
    let [stopped] = &live.stopped_writes()[..] else { panic!("one partition") };
    assert!(stopped.part == PartId(0) && stopped.reason.contains("on fire"), "{stopped:?}");
    assert!(!live.takes_writes());
    let go = |_, _| ControlFlow::Continue(());
    let compact = || live.compact(None, None, Folding::All, &mut { go });
    let refused = [
        try_put(&live, "feat", &[failed], 2),
        try_put(&live, "feat", &[sound, failed], 2),
        live.commit_version().map(drop),
        live.commit_through(9).map(drop),
        compact().map(drop),
    ];
    for refused in refused {
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("on fire") && message.contains("open the graph again"));
    }
    let base = |part| live.tensor(PartId(part), 1).unwrap().current().base().version();
    assert_eq!((base(0), base(1)), (1, 2), "the other partition was compacted");
    put(&live, "feat", &[sound], 3);
    let found = seqs(&latest(&live), "feat");
    assert_eq!((found[failed as usize], found[sound as usize]), (1, 1));
    drop((catalog, live));
    let live = writer(&ring);
    put(&live, "feat", &[failed], 4);
    live.commit_version().unwrap();
    let found = seqs(&latest(&live), "feat");
    assert_eq!((found[failed as usize], found[sound as usize]), (4, 3));
}

#[test]
fn a_graph_that_cannot_be_written_can_be_read() {
    let ring = ring(20, 1, 1);
    let live = writer(&ring);
    put(&live, "feat", &[1], 1);
    live.commit_version().unwrap();
    put(&live, "feat", &[2], 2);
    live.prepare(3).unwrap();
    put(&live, "feat", &[3], 3);
    drop(live);
    let before = files(&ring.out());
    let set_mode = |mode| {
        for path in before.keys() {
            let is_dir = path.is_dir();
            let mode = if is_dir { mode | 0o111 } else { mode };
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    set_mode(0o444);
    let reader = open(&ring.out(), OpenMode::Read).unwrap();
    assert_eq!(seqs(&latest(&reader), "feat")[..4], [0, 1, 0, 0]);
    drop(reader);
    assert_eq!(files(&ring.out()), before, "reading changes nothing");
    set_mode(0o644);
}

fn n_layers(live: &GraphHandle, part: u16) -> usize {
    live.tensor(PartId(part), 1).unwrap().current().layers().len()
}

#[test]
fn a_damaged_delta_does_not_block_folds_of_other_partitions() {
    let ring = ring(200, 2, 2);
    let live = writer(&ring);
    put(&live, "feat", &[2], 1);
    for seq in 1..=100 {
        put(&live, "feat", &[1, 199], seq);
        live.commit_version().unwrap();
        if seq == 1 {
            flip(&ring.out().join("part-000/feat.v2.delta"), 4096 + 20);
        }
    }
    assert!(n_layers(&live, 1) <= 66, "{} layers", n_layers(&live, 1));
    let compact = |what| live.compact(None, None, what, &mut |_, _| ControlFlow::Continue(()));
    let error = compact(Folding::All).unwrap_err();
    assert!(error.to_string().contains("feat.v2.delta"), "{error}");
    assert_eq!((n_layers(&live, 0), n_layers(&live, 1)), (101, 1));
    assert_eq!(seqs_of(&latest(&live), "feat", &[NodeId(199)]).unwrap(), [100]);
}

#[test]
fn deltas_over_a_damaged_segment_become_one() {
    let n_nodes = 5000;
    let ring = ring(n_nodes, 1, 1);
    let live = writer(&ring);
    flip(&ring.out().join("part-000/feat.v1.seg"), 4096 + 50);
    for seq in 1..=5 {
        put(&live, "feat", &(100 * seq..n_nodes).collect::<Vec<_>>(), seq);
        live.commit_version().unwrap();
    }
    let compact = || {
        let mut go_on = |_, _| ControlFlow::Continue(());
        live.compact(None, Some("feat"), Folding::WherePays, &mut go_on)
    };
    let error = compact().unwrap_err();
    assert!(matches!(error, StoreError::DamagedPage { page: 0, .. }), "{error}");
    assert_eq!(n_layers(&live, 0), 2);
    assert_eq!(seqs_of(&latest(&live), "feat", &[NodeId(450)]).unwrap(), [4]);
    assert!(matches!(compact().unwrap_err(), StoreError::DamagedPage { page: 0, .. }));
}

#[test]
fn a_panicked_compaction_does_not_block_folds_of_commits() {
    let ring = ring(20, 1, 1);
    let live = writer(&ring);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _held = live.garbage();
        panic!("a compaction");
    }));
    assert!(panicked.is_err() && live.garbage.is_poisoned());
    for seq in 1..=70 {
        put(&live, "feat", &[1], seq);
        live.commit_version().unwrap();
    }
    assert!(n_layers(&live, 0) < 60, "{} layers", n_layers(&live, 0));
}

#[test]
fn a_version_far_ahead_is_refused_before_anything_is_written() {
    let ring = ring(20, 1, 1);
    let live = writer(&ring);
    let most = 1 + crate::limits::MAX_VERSIONS_AHEAD;
    for version in [most + 1, u32::MAX] {
        for refused in [live.commit_through(version).map(drop), live.prepare(version).map(drop)] {
            let error = refused.unwrap_err();
            assert!(matches!(error, StoreError::VersionAhead { committed: 1, .. }), "{error}");
        }
    }
    assert_eq!((live.version(), live.commit_version().unwrap()), (1, 2));
    assert_eq!(live.commit_through(9).unwrap().number, 9);
}
