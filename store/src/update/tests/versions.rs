//! Versions: which are readable, how they are made, and who may make them.

use lodestore_graph::PartId;

use super::*;
use crate::catalog::{Catalog, ChangedParts};
use crate::file_system::Disk;
use crate::reader::ReaderKind;
use crate::row::RowIdx;
use crate::update::compact::Folded;
use crate::update::next_cut;

#[test]
fn only_versions_between_the_oldest_and_the_newest_can_be_read() {
    let ring = ring(50, 2, 2);
    let live = writer(&ring);
    put(&live, "feat", &[3], 1);
    assert_eq!(live.commit_version().unwrap(), 2);
    put(&live, "feat", &[3], 2);
    assert_eq!(live.commit_version().unwrap(), 3);
    let refused = |asked| match at(&live, asked) {
        Err(StoreError::NoVersion { asked: found, oldest, newest }) => {
            assert_eq!(found, asked);
            (oldest, newest)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!((refused(0), refused(4)), ((1, 3), (1, 3)));
    let found: Vec<u8> = (1..=3).map(|v| seqs(&at(&live, v).unwrap(), "feat")[3]).collect();
    assert_eq!(found, [0, 1, 2]);
    compact(&live);
    assert_eq!((refused(2), refused(4)), ((3, 3), (3, 3)));
    assert_eq!(seqs(&at(&live, 3).unwrap(), "feat")[3], 2);
    assert!(at(&live, 2).unwrap_err().to_string().contains("oldest is 3, the newest 3"));
}

#[test]
fn a_version_within_folded_deltas_is_refused_and_its_neighbours_are_not() {
    let ring = ring(50, 2, 2);
    let live = writer(&ring);
    let commit = |seq: u32| {
        put(&live, "feat", &[3], seq);
        live.commit_version().unwrap();
    };
    (1..4).for_each(commit);
    live.compact(None, None, Folding::Deltas, &mut |_, _| ControlFlow::Continue(())).unwrap();
    commit(4);
    for (version, expected) in [(1, Some(0)), (2, None), (3, None), (4, Some(3)), (5, Some(4))] {
        let found = match at(&live, version) {
            Ok(store) => Some(seqs(&store, "feat")[3]),
            Err(StoreError::NoVersion { .. }) => None,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(found, expected, "version {version}");
    }
}

#[test]
fn a_pinned_version_has_the_layers_of_that_version_in_every_partition() {
    let ring = ring(50, 3, 3);
    let live = writer(&ring);
    let all: Vec<u32> = (0..50).collect();
    for seq in 1..4 {
        put(&live, "feat", &all, seq);
        live.commit_version().unwrap();
    }
    let pins: Vec<_> = (1..=4).map(|version| live.pin(version).unwrap()).collect();
    for (version, pinned) in (1..).zip(&pins) {
        assert_eq!(pinned.version(), version);
        for part in live.parts() {
            let feat = pinned.tensor(part, 1).unwrap();
            let found = (feat.version(), feat.layers().len(), feat.changed_by(RowIdx(0)));
            assert_eq!(found, (version, version as usize, version), "{part}");
        }
    }
    for missing in [0, 5] {
        assert!(matches!(live.pin(missing), Err(StoreError::NoVersion { .. })), "{missing}");
    }
}

#[test]
fn rows_are_visible_when_published_and_an_interrupted_commit_completes() {
    let ring = ring(50, 2, 2);
    let live = writer(&ring);
    put(&live, "feat", &[3, 40], 1);
    live.prepare(2).unwrap();
    put(&live, "feat", &[3], 2);
    assert_eq!((live.version(), seqs(&latest(&live), "feat")[3]), (1, 0));
    live.prepare(2).unwrap();
    drop(live);
    let reader = open(&ring.out(), OpenMode::Read).unwrap();
    assert_eq!((reader.version(), seqs(&latest(&reader), "feat")[3]), (1, 0));
    assert!(ring.verify().ok, "{:?}", ring.verify());
    let live = writer(&ring);
    assert_eq!(seqs(&latest(&live), "feat")[3], 0, "not published yet");
    for _ in 0..2 {
        assert_eq!(live.commit_through(2).unwrap().number, 2);
        let found = seqs(&latest(&live), "feat");
        assert_eq!((found[3], found[40]), (1, 1), "later puts are not in it");
    }
    assert_eq!(live.commit_version().unwrap(), 3);
    assert_eq!(seqs(&latest(&live), "feat")[3], 2);
}

#[test]
fn a_put_after_a_prepared_version_stays_after_it_across_a_restart() {
    let ring = ring(50, 1, 1);
    let live = writer(&ring);
    put(&live, "feat", &[3], 1);
    live.prepare(2).unwrap();
    put(&live, "feat", &[3], 2);
    drop(live);
    let live = writer(&ring);
    put(&live, "feat", &[3], 3);
    assert_eq!(live.commit_version().unwrap(), 3);
    let found = [2, 3].map(|version| seqs(&at(&live, version).unwrap(), "feat")[3]);
    assert_eq!(found, [1, 3]);
}

/// The prepared file has the rows of earlier puts, and no others.
#[test]
fn a_put_after_a_prepared_commit_and_a_restart_is_for_the_next_version() {
    let ring = ring(20, 1, 1);
    let live = writer(&ring);
    put(&live, "feat", &[1], 1);
    live.prepare(2).unwrap();
    drop(live);
    let live = writer(&ring);
    put(&live, "feat", &[2], 2);
    assert_eq!(live.commit_version().unwrap(), 3);
    assert_eq!(seqs(&latest(&live), "feat")[..3], [0, 1, 2]);
    assert_eq!(seqs(&at(&live, 2).unwrap(), "feat")[..3], [0, 1, 0]);
}

#[test]
fn a_commit_without_puts_makes_an_equal_version() {
    let ring = ring(10, 1, 1);
    let live = writer(&ring);
    put(&live, "mark", &[1], 5);
    assert_eq!((live.commit_version().unwrap(), live.commit_version().unwrap()), (2, 3));
    assert_eq!(seqs(&at(&live, 2).unwrap(), "mark"), seqs(&at(&live, 3).unwrap(), "mark"));
    assert_eq!(live.commit_through(2).unwrap().number, 3, "the version was already reached");
    assert_eq!(live.commit_through(7).unwrap().number, 7);
    assert_eq!(compact(&live), 1);
    assert_eq!(live.oldest_version(), 2, "later versions changed no row");
}

#[test]
fn pending_rows_are_invisible_and_survive_without_a_commit() {
    let ring = ring(40, 2, 2);
    let live = writer(&ring);
    put(&live, "feat", &[7, 30], 9);
    drop(live);
    for mode in [OpenMode::Read, OpenMode::Write] {
        let live = open(&ring.out(), mode).unwrap();
        assert_eq!(seqs(&latest(&live), "feat"), [0; 40]);
        assert_eq!(seqs(&at(&live, 1).unwrap(), "feat"), [0; 40]);
        assert_eq!(compact(&writer_if(&live, mode)), 0, "pending rows are not folded");
    }
    let live = writer(&ring);
    assert_eq!(live.commit_version().unwrap(), 2);
    let found = seqs(&latest(&live), "feat");
    assert_eq!((found[7], found[30], found[8]), (9, 9, 0));
}

/// Returns the live graph if it can write, else another one that has no rows.
fn writer_if(live: &Arc<GraphHandle>, mode: OpenMode) -> Arc<GraphHandle> {
    match mode {
        OpenMode::Write => Arc::clone(live),
        OpenMode::Read | OpenMode::Follow => {
            let refused = live
                .compact(None, None, Folding::All, &mut |_, _| ControlFlow::Continue(()))
                .unwrap_err();
            assert!(matches!(refused, StoreError::ReadOnly { .. }), "{refused}");
            writer(&ring(1, 1, 1))
        }
    }
}

#[test]
fn an_interrupted_commit_is_one_version_to_readers_and_the_next_to_writers() {
    let ring = ring(40, 2, 2);
    let live = writer(&ring);
    put(&live, "feat", &(0..40).collect::<Vec<_>>(), 1);
    live.prepare(2).unwrap();
    drop(live);
    // The second step has reached only one partition.
    let graph = Graph::open(&ring.out()).unwrap();
    let dir = graph.part_dir(PartId(1)).join("catalog");
    let catalog = Catalog::open_for_writing(&Disk, &dir, graph.uuid(), PartId(1)).unwrap();
    catalog.publish(2.into(), ["feat"], &ChangedParts::default()).unwrap();
    drop(catalog);
    let reader = open(&ring.out(), OpenMode::Read).unwrap();
    assert_eq!((reader.version(), reader.oldest_version()), (1, 1));
    assert_eq!(seqs(&at(&reader, 1).unwrap(), "feat"), [0; 40]);
    let newest = seqs(&latest(&reader), "feat");
    assert_eq!(newest, [[0; 20], [1; 20]].concat(), "the newest version of each partition");
    let live = writer(&ring);
    assert_eq!(live.version(), 2);
    assert_eq!(seqs(&at(&live, 2).unwrap(), "feat"), [1; 40]);
    assert_eq!(seqs(&at(&live, 1).unwrap(), "feat"), [0; 40]);
    drop(live);
    assert_eq!(open(&ring.out(), OpenMode::Read).unwrap().version(), 2);
}

#[test]
fn one_writer_at_a_time_and_concurrent_readers() {
    let ring = ring(40, 2, 2);
    let live = writer(&ring);
    let second = open(&ring.out(), OpenMode::Write).unwrap_err();
    assert!(matches!(second, StoreError::Locked { .. }), "{second}");
    assert!(second.to_string().contains("another process has this graph open for writing"));
    put(&live, "feat", &[1], 1);
    live.commit_version().unwrap();
    let reader = open(&ring.out(), OpenMode::Read).unwrap();
    put(&live, "feat", &[1], 2);
    live.commit_version().unwrap();
    compact(&live);
    assert_eq!(seqs(&latest(&reader), "feat")[1], 1, "the state when the reader opened");
    assert_eq!(reader.version(), 2);
    let later = open(&ring.out(), OpenMode::Read).unwrap();
    assert_eq!((seqs(&latest(&later), "feat")[1], later.version()), (2, 3));
    for refused in [try_put(&reader, "feat", &[1], 3), reader.commit_version().map(drop)] {
        assert!(matches!(refused, Err(StoreError::ReadOnly { .. })));
    }
    drop(live);
    drop(writer(&ring));
}

#[test]
fn partitions_of_several_writers_are_aligned_by_a_common_version() {
    let ring = ring(40, 2, 2);
    let only = |part| {
        let graph = Graph::open(&ring.out()).unwrap();
        let options = OpenOptions { reader: ReaderKind::Pread };
        GraphHandle::open(graph, Some(&[PartId(part)]), OpenMode::Write, &options).unwrap()
    };
    let (first, second) = (only(0), only(1));
    try_put(&first, "feat", &[0], 1).unwrap();
    let elsewhere = try_put(&first, "feat", &[39], 1).unwrap_err();
    assert!(matches!(elsewhere, StoreError::NoPart { part: PartId(1), .. }), "{elsewhere}");
    try_put(&second, "feat", &[39], 2).unwrap();
    assert_eq!(first.commit_through(4).unwrap().number, 4);
    drop((first, second));
    let refused = open(&ring.out(), OpenMode::Write).unwrap_err();
    assert!(matches!(refused, StoreError::HistoriesDiffer { .. }), "{refused}");
    let live = aligned(&ring);
    assert_eq!(live.version(), 5);
    let found = seqs(&at(&live, 5).unwrap(), "feat");
    assert_eq!((found[0], found[39]), (1, 2));
}

#[test]
fn a_put_is_checked_before_anything_is_written() {
    let ring = ring(20, 2, 2);
    let live = writer(&ring);
    let node = |id| NodeId(id);
    let checks: [(&str, &[NodeId], usize, &str); 6] = [
        ("external_id", &[node(1)], 8, "is read-only"),
        ("none", &[node(1)], 99, "no tensor `none`"),
        ("feat", &[node(1)], 98, "must have 99 bytes, found 98"),
        ("feat", &[], 1, "must have 0 bytes, found 1"),
        ("feat", &[node(1), node(20)], 198, "node 20 at position 1"),
        ("feat", &[node(1); 3], 99, "must have 297 bytes"),
    ];
    for (tensor, ids, n_bytes, expected) in checks {
        let error = live.put_rows(tensor, ids, &vec![7; n_bytes]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let n = crate::limits::MAX_PUT_BYTES as usize / 99 + 1;
    let large = live.put_rows("feat", &vec![node(1); n], &vec![7; n * 99]).unwrap_err();
    assert!(matches!(large, StoreError::PutTooLarge { .. }), "{large}");
    assert_eq!(seqs(&latest(&live), "feat"), [0; 20]);
    live.put_rows("feat", &[], &[]).unwrap();
    live.commit_version().unwrap();
    assert_eq!(seqs(&latest(&live), "feat"), [0; 20]);
    assert_eq!(compact(&live), 0);
}

#[test]
fn the_last_of_several_rows_for_a_node_wins() {
    let ring = ring(20, 2, 2);
    let live = writer(&ring);
    let ids = [5, 19, 5, 0, 5].map(NodeId);
    live.put_rows("mark", &ids, &[1, 2, 3, 4, 5]).unwrap();
    live.commit_version().unwrap();
    let found = seqs(&latest(&live), "mark");
    assert_eq!((found[5], found[19], found[0]), (5, 2, 4));
}

#[test]
fn rows_are_gathered_in_any_order_and_repeatedly() {
    let ring = ring(3000, 1, 1);
    let live = writer(&ring);
    let ids: Vec<u32> = (0..3000).step_by(2).collect();
    put(&live, "feat", &ids, 1);
    live.commit_version().unwrap();
    put(&live, "feat", &ids[..700], 2);
    live.commit_version().unwrap();
    let asked: Vec<NodeId> = (0..9000u32).map(|i| NodeId((i * 7919) % 3000)).collect();
    let expected = asked.iter().map(|id| match id.0 {
        id if id % 2 == 1 => 0,
        id if id < 1400 => 2,
        _ => 1,
    });
    let found = seqs_of(&latest(&live), "feat", &asked).unwrap();
    assert_eq!(found, expected.collect::<Vec<u8>>());
}

/// Unstable sorts are stable for fewer than 21 rows.
#[test]
fn the_last_row_of_a_node_that_a_put_repeats_often_wins() {
    let ring = ring(60, 4, 4);
    let live = writer(&ring);
    // Five rows for each node, far apart; row `i` has the value `i` + 1 modulo 251.
    let ids: Vec<NodeId> = (0..300).map(|i| NodeId(i * 7 % 60)).collect();
    for tensor in ["mark", "feat"] {
        let width = live.graph().tensor(tensor).unwrap().row_bytes();
        let seq_of = |i: usize| (i % 251 + 1) as u8;
        let rows: Vec<u8> = (0..ids.len()).flat_map(|i| vec![seq_of(i); width]).collect();
        live.put_rows(tensor, &ids, &rows).unwrap();
        let last = |node: u32| ids.iter().rposition(|id| id.0 == node).unwrap();
        let expected: Vec<u8> = (0..60).map(|node| seq_of(last(node))).collect();
        live.commit_version().unwrap();
        assert_eq!(seqs(&latest(&live), tensor), expected, "{tensor}");
    }
    compact(&live);
    assert_eq!(seqs(&latest(&live), "mark"), seqs(&latest(&live), "feat"));
}

#[test]
fn versions_without_readers_are_not_remembered() {
    let ring = ring(20, 1, 1);
    let live = writer(&ring);
    for seq in 1..=40 {
        put(&live, "feat", &[1], seq);
        live.commit_version().unwrap();
    }
    let tensor = live.tensor(lodestore_graph::PartId(0), 1).unwrap();
    assert!(tensor.n_earlier() <= 2, "{} versions", tensor.n_earlier());
}

/// A commit may reach this partition after a compaction has begun, and fail in the others: readers
/// still need the previous version.
#[test]
fn a_compaction_folds_no_version_after_the_one_it_began_with() {
    let ring = ring(20, 1, 1);
    let live = writer(&ring);
    put(&live, "feat", &[1], 1);
    live.commit_version().unwrap();
    let began_with = live.version();
    put(&live, "feat", &[1], 2);
    live.commit_version().unwrap();
    let parts = live.open_parts();
    let kept = live.kept_versions();
    let of = |version| Folded::of(&parts[0], 1, version, &kept, Folding::All);
    let folded = of(began_with);
    live.fold(&folded[0], &parts[0], &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(seqs(&at(&live, began_with).unwrap(), "feat")[1], 1);
    assert_eq!(seqs(&latest(&live), "feat")[1], 2);
    assert!(of(1).is_empty(), "the tensor is folded");
    drop(parts);
    drop(live);
    assert_eq!(seqs(&latest(&writer(&ring)), "feat")[1], 2);
}

#[test]
fn folds_leave_the_next_cut_readable() {
    for what in [Folding::All, Folding::Deltas, Folding::WherePays] {
        let ring = ring(20, 1, 1);
        let live = writer(&ring);
        live.keep_cut_after(Some(1));
        for seq in 2..=15 {
            put(&live, "feat", &[1, 2], seq);
            assert_eq!(live.commit_version().unwrap(), seq);
            live.compact(None, None, what, &mut |_, _| ControlFlow::Continue(())).unwrap();
            let cut = next_cut(1, seq).unwrap();
            assert_eq!(seqs(&at(&live, cut).unwrap(), "feat")[1], cut as u8, "{what:?}");
            assert_eq!(seqs(&latest(&live), "feat")[1], seq as u8);
        }
        let layers = live.tensor(PartId(0), 1).unwrap().current().layers().len();
        assert!(layers < 9, "{what:?}: {layers}");
        let pinned = live.pin(8).unwrap();
        live.keep_cut_after(None);
        compact(&live);
        at(&live, 9).unwrap_err();
        let files = live.part_files_at(PartId(0), &pinned).unwrap();
        assert_eq!((files.manifest().version(), pinned.version()), (8, 8));
        assert!(files.manifest().coverage().has(8));
        drop((files, pinned, live));
        let again = writer(&ring);
        assert_eq!(seqs(&latest(&again), "feat")[1], 15);
    }
}
