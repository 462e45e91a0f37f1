//! Partitions that are copied while others put, given up, and taken elsewhere.

use std::path::{Path, PathBuf};

use lodestore_graph::{NodeId, PartId};

use super::*;
use crate::moving::Arrival;
use crate::{PartCopy, StoreError};

const PIECE: usize = 700;
const N_NODES: u32 = 120;
const PART: PartId = PartId(1);

/// Fetches the files, and the pairs up to now.
pub(super) fn fetch(copy: &mut PartCopy, arrival: &Arrival) -> crate::ArrivingCatalog {
    let files: Vec<(String, u64)> = copy.files().map(|(name, n)| (name.to_owned(), n)).collect();
    for (at, (name, n_bytes)) in files.iter().enumerate() {
        let mut file = arrival.file(name).unwrap();
        let (mut offset, mut piece) = (0, Vec::new());
        while !copy.read(at, offset, PIECE, &mut piece).unwrap() {
            file.append(&piece).unwrap();
            offset += piece.len() as u64;
            piece.clear();
        }
        file.append(&piece).unwrap();
        file.finish().unwrap();
        assert!(arrival.has(name, *n_bytes).unwrap() && !arrival.has(name, n_bytes + 1).unwrap());
    }
    let catalog = arrival.catalog().unwrap();
    pairs(copy, &catalog, &mut || {});
    catalog
}

/// Fetches pairs until there are no more; `between` is called after each piece.
pub(super) fn pairs(copy: &mut PartCopy, to: &crate::ArrivingCatalog, between: &mut dyn FnMut()) {
    loop {
        let mut piece = Vec::new();
        let is_last = copy.next_pairs(PIECE, &mut piece).unwrap();
        to.write(&piece).unwrap();
        between();
        if is_last {
            return;
        }
    }
}

/// The rows of a partition's nodes in the graph at `dir`, of both tensors.
fn rows_at(dir: &Path, part: PartId, view: View) -> Vec<Vec<u8>> {
    let graph = Graph::open(dir).unwrap();
    let ids: Vec<NodeId> = graph.book().range(part).map(NodeId).collect();
    let options = OpenOptions::default();
    let live = LiveGraph::open(graph, Some(&[part]), LiveMode::Read, &options).unwrap();
    rows_in(&Arc::new(live), &ids, view)
}

fn rows_in(live: &Arc<LiveGraph>, ids: &[NodeId], view: View) -> Vec<Vec<u8>> {
    let store = EmbeddedStore::over(Arc::clone(live), view).unwrap();
    let rows = |(name, width): &(&str, usize)| {
        let mut out = vec![0; ids.len() * width];
        store.gather(name, ids, &mut out).unwrap();
        out
    };
    TENSORS.iter().map(rows).collect()
}

fn elsewhere(ring: &Ring) -> PathBuf {
    ring.dir.path().join("elsewhere")
}

/// The nodes of the partition that moves.
fn its_nodes(live: &LiveGraph) -> Vec<u32> {
    live.graph().book().range(PART).collect()
}

#[test]
fn a_moved_partition_has_every_row_that_was_put_before_and_during_its_copy() {
    let ring = ring(N_NODES, 3, 3);
    // The twin takes the same puts, and moves nowhere.
    let twin_ring = super::ring(N_NODES, 3, 3);
    let (live, twin) = (writer(&ring), writer(&twin_ring));
    let nodes = its_nodes(&live);
    let put_both = |tensor: &str, ids: &[u32], seq: u32| {
        put(&live, tensor, ids, seq);
        put(&twin, tensor, ids, seq);
    };
    put_both("feat", &nodes[..5], 1);
    live.commit_version().unwrap();
    put_both("mark", &nodes[3..9], 2);
    live.commit_version().unwrap();
    compact(&live);
    put_both("feat", &nodes[4..20], 3);
    live.commit_version().unwrap();
    twin.commit_through(4).unwrap();
    put_both("mark", &nodes[..7], 3);

    let mut copy = live.begin_copy(PART).unwrap();
    let arrival = Arrival::find_or_begin(&elsewhere(&ring), PART, 77).unwrap();
    put_both("feat", &nodes[..3], 4);
    let catalog = fetch(&mut copy, &arrival);
    put_both("feat", &nodes[1..2], 5);
    // A copy keeps its files: nothing is committed, and nothing of it is folded.
    assert!(matches!(live.commit_version(), Err(StoreError::Busy { part: PART, .. })));
    put_both("mark", &nodes[2..40], 6);
    put_both("feat", &nodes[39..], 7);
    let segments = || {
        let names = crate::fixture::files(&live.graph().part_dir(PART)).into_keys();
        let is_segment =
            |path: &PathBuf| path.extension().is_some_and(|kind| kind == "seg" || kind == "delta");
        names.filter(is_segment).collect::<Vec<_>>()
    };
    let before = segments();
    compact(&live);
    assert_eq!(segments(), before);

    let sealed_at = copy.seal().unwrap();
    assert_eq!((sealed_at, live.version()), (4, 4));
    let refused = try_put(&live, "feat", &nodes[..1], 8).unwrap_err();
    assert!(matches!(refused, StoreError::Busy { part: PART, .. }), "{refused}");
    assert!(matches!(live.commit_version(), Err(StoreError::Busy { .. })));
    put_both("feat", &[0], 9);
    let ids: Vec<NodeId> = nodes.iter().copied().map(NodeId).collect();
    let committed = rows_in(&twin, &ids, View::Latest);
    assert_eq!(rows_in(&live, &ids, View::Latest), committed);
    catalog.close().unwrap();
    let catalog = arrival.catalog_again().unwrap();
    pairs(&mut copy, &catalog, &mut || {});
    catalog.close().unwrap();
    arrival.check(&mut |_, _| {}).unwrap();

    copy.give_up().unwrap();
    assert!(copy.is_idle());
    assert!(matches!(try_put(&live, "feat", &nodes[..1], 8), Err(StoreError::NoPart { .. })));
    assert!(!live.graph().was_given_up(PART, 77));
    copy.close(77).unwrap();
    assert!(live.graph().was_given_up(PART, 77) && !live.graph().parts_here().contains(&PART));
    assert_eq!(live.commit_version().unwrap(), sealed_at + 1, "the others commit");
    arrival.take().unwrap();
    assert_eq!(rows_at(&elsewhere(&ring), PART, View::Latest), committed);
    assert_eq!(rows_at(&elsewhere(&ring), PART, View::At(sealed_at)), committed);

    // Back to where it came from: it is behind by a version, and catches up.
    let other = LiveGraph::open(
        Graph::open(&elsewhere(&ring)).unwrap(),
        Some(&[PART]),
        LiveMode::Write,
        &OpenOptions::default(),
    );
    let other = Arc::new(other.unwrap());
    put(&other, "feat", &nodes[7..8], 10);
    put(&twin, "feat", &nodes[7..8], 10);
    let mut copy = other.begin_copy(PART).unwrap();
    let arrival = Arrival::find_or_begin(&ring.out(), PART, 78).unwrap();
    let catalog = fetch(&mut copy, &arrival);
    copy.seal().unwrap();
    pairs(&mut copy, &catalog, &mut || {});
    catalog.close().unwrap();
    arrival.check(&mut |_, _| {}).unwrap();
    copy.give_up().unwrap();
    copy.close(78).unwrap();
    assert_eq!(rows_at(&elsewhere_given_up(&ring), PART, View::Latest), committed);
    arrival.take().unwrap();
    assert_eq!(live.adopt(PART).unwrap(), sealed_at + 1);
    assert_eq!(twin.commit_version().unwrap(), sealed_at + 1);
    let expected = rows_in(&twin, &ids, View::Latest);
    assert_ne!(expected, committed);
    assert_eq!(rows_in(&live, &ids, View::At(sealed_at + 1)), expected);
    assert_eq!(rows_in(&live, &ids, View::At(sealed_at)), committed);
    put(&live, "feat", &nodes[..1], 11);
    assert!(ring.verify().ok);
}

#[test]
fn a_partition_that_is_put_back_has_every_commit_that_went_by() {
    let ring = ring(N_NODES, 3, 3);
    let live = writer(&ring);
    let nodes = its_nodes(&live);
    let ids: Vec<NodeId> = nodes.iter().copied().map(NodeId).collect();
    put(&live, "feat", &nodes[..5], 1);
    let mut copy = live.begin_copy(PART).unwrap();
    let arrival = Arrival::find_or_begin(&elsewhere(&ring), PART, 3).unwrap();
    let catalog = fetch(&mut copy, &arrival);
    copy.seal().unwrap();
    pairs(&mut copy, &catalog, &mut || {});
    copy.give_up().unwrap();
    put(&live, "feat", &[0], 2);
    let passed_by = live.commit_version().unwrap();
    copy.put_back().unwrap();
    // It can be copied again, which the end of the earlier copy does not undo.
    let again = live.begin_copy(PART).unwrap();
    drop(copy);
    assert!(matches!(live.commit_version(), Err(StoreError::Busy { .. })));
    drop(again);

    put(&live, "feat", &nodes[3..9], 4);
    let expected = |last: std::ops::Range<usize>| -> Vec<u8> {
        let seq = |at| if last.contains(&at) { 4 } else { u32::from(at < 5) };
        (0..nodes.len()).flat_map(|at| row_of(seq(at), 99)).collect()
    };
    // What was pending was put before the commit that went by.
    assert_eq!(rows_in(&live, &ids, View::At(passed_by))[1], expected(0..0));
    assert_eq!(rows_in(&live, &ids, View::Latest)[1], expected(0..0));
    live.commit_version().unwrap();
    assert_eq!(rows_in(&live, &ids, View::At(passed_by))[1], expected(0..0));
    assert_eq!(rows_in(&live, &ids, View::Latest)[1], expected(3..9));
    drop(live);
    assert_eq!(rows_at(&ring.out(), PART, View::Latest)[1], expected(3..9));
    assert!(ring.verify().ok);
}

/// The folder that was given up, as a graph.
fn elsewhere_given_up(ring: &Ring) -> PathBuf {
    let (from, to) = (elsewhere(ring), ring.dir.path().join("given-up"));
    let graph = Graph::open(&from).unwrap();
    std::fs::create_dir(&to).unwrap();
    std::fs::copy(from.join("graph.toml"), to.join("graph.toml")).unwrap();
    std::fs::rename(graph.given_up_dir(PART, 78), to.join("part-001")).unwrap();
    to
}

#[test]
fn a_copy_that_is_dropped_changes_nothing_and_its_leftovers_are_gone_on_with() {
    let ring = ring(N_NODES, 3, 3);
    let live = writer(&ring);
    let nodes = its_nodes(&live);
    put(&live, "feat", &nodes[..5], 1);
    let mut copy = live.begin_copy(PART).unwrap();
    assert!(matches!(live.begin_copy(PART), Err(StoreError::Busy { .. })));
    let arrival = Arrival::find_or_begin(&elsewhere(&ring), PART, 5).unwrap();
    drop(fetch(&mut copy, &arrival));
    let refused = copy.give_up().unwrap_err();
    assert!(refused.to_string().contains("not all that was put"), "{refused}");
    copy.seal().unwrap();
    assert!(try_put(&live, "feat", &nodes[..5], 2).is_err());
    drop((copy, arrival));
    put(&live, "feat", &nodes[..5], 2);
    assert_eq!(compact(&live), 0, "nothing is committed");

    let mut copy = live.begin_copy(PART).unwrap();
    let arrival = Arrival::find_or_begin(&elsewhere(&ring), PART, 6).unwrap();
    assert_eq!(arrival.id(), 5, "it goes on under the number that it began with");
    for (name, n_bytes) in copy.files() {
        assert!(arrival.has(name, n_bytes).unwrap(), "{name}");
    }
    // The catalog is fetched anew.
    let catalog = arrival.catalog().unwrap();
    copy.seal().unwrap();
    let mut copy_again = copy;
    pairs(&mut copy_again, &catalog, &mut || {});
    catalog.close().unwrap();
    let damaged = arrival.check(&mut |_, _| {}).unwrap_err();
    assert!(damaged.to_string().contains("damaged"), "without its records: {damaged}");
    assert!(!Arrival::is_begun(&elsewhere(&ring), PART).unwrap());
}

#[test]
fn an_arrival_has_one_who_brings_it_and_a_number_is_used_once() {
    let ring = ring(N_NODES, 3, 3);
    let to = elsewhere(&ring);
    let begin = |id| Arrival::find_or_begin(&to, PART, id);
    let first = begin(0xa).unwrap();
    let refused = begin(0xb).unwrap_err();
    assert!(refused.to_string().contains("another process brings it"), "{refused}");
    drop(first);
    assert_eq!(begin(0xb).unwrap().id(), 0xa, "it is gone on with");
    // Cut off between the two folders that it makes, or as it was removed: nothing has come.
    let staging = to.join("part-001.copy-000000000000000a");
    std::fs::remove_dir(staging.join("part-001")).unwrap();
    assert_eq!(begin(0xc).unwrap().id(), 0xc);
    assert!(!staging.exists());
    assert!(Arrival::is_begun(&to, PART).unwrap() && !Arrival::is_begun(&to, PartId(2)).unwrap());
}

#[test]
fn an_old_move_of_a_partition_that_has_come_back_is_not_believed() {
    let ring = ring(N_NODES, 3, 3);
    let live = writer(&ring);
    assert!(!live.was_given_up(PART, 7).unwrap());
    std::fs::create_dir(live.graph().given_up_dir(PART, 7)).unwrap();
    let refused = live.was_given_up(PART, 7).unwrap_err();
    assert!(refused.to_string().contains("it is open here"), "{refused}");
    assert!(!live.was_given_up(PART, 8).unwrap());
}

#[test]
fn what_comes_from_outside_is_believed_only_where_it_can_be() {
    let ring = ring(N_NODES, 3, 3);
    let live = writer(&ring);
    assert!(Arrival::find_or_begin(&ring.out(), PART, 1).is_err(), "it is there");
    let arrival = Arrival::find_or_begin(&elsewhere(&ring), PART, 1).unwrap();
    for name in ["", "..", "../x.v1.seg", "catalog", "/etc/passwd", ".v1.seg", "a/b.v1.seg", "x"] {
        let error = arrival.file(name).unwrap_err();
        assert!(matches!(error, StoreError::MoveRefused { .. }), "{name}: {error}");
    }
    let mut copy = live.begin_copy(PART).unwrap();
    let catalog = fetch(&mut copy, &arrival);
    for piece in [&b"\x01"[..], b"\x01\0\0\0\0\0", b"\x01\0\0\0\0\0?", b"\x08\0\0\0\0\0identity"] {
        catalog.write(piece).unwrap_err();
    }
    let other = super::ring(N_NODES, 3, 3);
    let mut stranger = writer(&other).begin_copy(PartId(0)).unwrap();
    let arrival = Arrival::find_or_begin(&elsewhere(&ring), PartId(0), 2).unwrap();
    std::fs::copy(ring.out().join("graph.toml"), elsewhere(&ring).join("graph.toml")).unwrap();
    let mut file = arrival.file("graph.toml").unwrap();
    let mut bytes = Vec::new();
    stranger.read(0, 0, 1 << 20, &mut bytes).unwrap();
    file.append(&bytes).unwrap();
    file.finish().unwrap();
    let error = arrival.catalog().unwrap_err();
    assert!(matches!(error, StoreError::Misplaced { field: "graph", .. }), "{error}");
    assert!(stranger.read(99, 0, 1, &mut bytes).is_err());
    let mut nothing = Vec::new();
    assert!(stranger.read(0, u64::MAX, 1, &mut nothing).unwrap() && nothing.is_empty());
    stranger.seal().unwrap();
}
