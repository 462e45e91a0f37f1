//! Partitions that are copied during puts and commits, sealed, released, and adopted elsewhere.

use std::path::{Path, PathBuf};

use lodestore_graph::{NodeId, PartId};

use super::*;
use crate::error::StoreError;
use crate::follow::{FetchCheck, FetchedFile, Manifest};
use crate::transfer::{Arrival, piece};
use crate::update::{PartCopy, PartFiles};

const PIECE: usize = 700;
const N_NODES: u32 = 120;
const PART: PartId = PartId(1);

/// Fetches the missing files of a version, as a move or a follower does.
pub(super) fn fetch(files: &PartFiles, arrival: &Arrival) {
    let manifest = files.manifest();
    for (at, (name, n_bytes)) in files.files().enumerate() {
        let read = |offset| {
            let mut piece = Vec::new();
            let is_last = files.read(at, offset, PIECE, &mut piece).unwrap();
            assert_eq!(is_last, offset + piece.len() as u64 == n_bytes);
            piece
        };
        if manifest.files().any(|it| it == name) {
            let graph = arrival.graph().unwrap();
            let check = FetchCheck::ReadBack;
            let begun = FetchedFile::begin(&graph, manifest, name, n_bytes, check).unwrap();
            let Some(mut file) = begun else { continue };
            while file.n_bytes() < n_bytes {
                file.append(&read(file.n_bytes())).unwrap();
            }
            file.finish().unwrap();
        } else {
            let (mut file, mut offset) = (arrival.file(name).unwrap(), 0);
            while offset < n_bytes {
                let piece = read(offset);
                file.append(&piece).unwrap();
                offset += piece.len() as u64;
            }
            file.finish().unwrap();
        }
        assert!(arrival.has(name, n_bytes).unwrap() && !arrival.has(name, n_bytes + 1).unwrap());
    }
}

/// Seals a copy and transfers the rest: files, and pending rows.
fn hand_over(copy: &mut PartCopy, live: &GraphHandle, arrival: &Arrival) -> Manifest {
    let version = copy.seal().unwrap();
    let files = live.part_files(PART).unwrap();
    let manifest = files.manifest().clone();
    assert_eq!(manifest.version(), version);
    fetch(&files, arrival);
    let catalog = arrival.catalog().unwrap();
    catalog.install(&manifest).unwrap();
    loop {
        let mut piece = Vec::new();
        let is_last = copy.next_pending(PIECE, &mut piece).unwrap();
        assert!(piece.len() <= PIECE);
        catalog.put(&manifest, &piece).unwrap();
        if is_last {
            break;
        }
    }
    catalog.close().unwrap();
    arrival.graph().unwrap().remove_strays(&manifest).unwrap();
    arrival.sync().unwrap();
    arrival.check_lists().unwrap();
    manifest
}

/// Returns the rows of a partition in the graph at `dir`, of both tensors.
fn rows_at(dir: &Path, part: PartId, view: View) -> Vec<Vec<u8>> {
    let live = open_part(dir, part, OpenMode::Read);
    let ids: Vec<NodeId> = live.graph().book().range(part).map(NodeId).collect();
    rows_in(&live, &ids, view)
}

fn open_part(dir: &Path, part: PartId, mode: OpenMode) -> Arc<GraphHandle> {
    let (graph, options) = (Graph::open(dir).unwrap(), OpenOptions::default());
    Arc::new(GraphHandle::open(graph, Some(&[part]), mode, &options).unwrap())
}

fn rows_in(live: &Arc<GraphHandle>, ids: &[NodeId], view: View) -> Vec<Vec<u8>> {
    let store = EmbeddedStore::from_handle(Arc::clone(live), view).unwrap();
    let rows = |(name, width): &(&str, usize)| {
        let mut out = vec![0; ids.len() * width];
        store.gather(name, ids, &mut out).unwrap();
        out
    };
    TENSORS.iter().map(rows).collect()
}

fn tensor_bytes(tensor: &str) -> usize {
    TENSORS.iter().find(|(name, _)| *name == tensor).map_or(8, |(_, width)| *width)
}

fn elsewhere(ring: &Ring) -> PathBuf {
    ring.dir.path().join("elsewhere")
}

/// Returns the nodes of the moving partition.
fn its_nodes(live: &GraphHandle) -> Vec<u32> {
    live.graph().book().range(PART).collect()
}

#[test]
fn a_moved_partition_has_every_row_put_before_and_during_its_copy() {
    let ring = ring(N_NODES, 3, 3);
    // The twin receives the same puts, and does not move.
    let twin_ring = super::ring(N_NODES, 3, 3);
    let (live, twin) = (writer(&ring), writer(&twin_ring));
    let nodes = its_nodes(&live);
    let put_both = |tensor: &str, ids: &[u32], seq: u32| {
        put(&live, tensor, ids, seq);
        put(&twin, tensor, ids, seq);
    };
    let commit_both = || {
        let version = live.commit_version().unwrap();
        assert_eq!(twin.commit_version().unwrap(), version);
        version
    };
    put_both("feat", &nodes[..5], 1);
    commit_both();
    put_both("mark", &nodes[3..9], 2);
    commit_both();

    let mut copy = live.begin_copy(PART).unwrap();
    let arrival = Arrival::find_or_begin(&elsewhere(&ring), PART, 77).unwrap();
    put_both("feat", &nodes[..3], 4);
    fetch(&live.part_files(PART).unwrap(), &arrival);
    // Commits and folds continue, and may remove files that were fetched.
    put_both("feat", &nodes[4..20], 3);
    commit_both();
    assert!(compact(&live) > 0);
    put_both("mark", &nodes[2..40], 6);
    let committed_at = commit_both();
    put_both("feat", &nodes[39..], 7);
    put_both("mark", &nodes[..7], 8);

    let ids: Vec<NodeId> = nodes.iter().copied().map(NodeId).collect();
    let committed = rows_in(&twin, &ids, View::Latest);
    let manifest = hand_over(&mut copy, &live, &arrival);
    assert_eq!((manifest.version(), live.version()), (committed_at, committed_at));
    let refused = try_put(&live, "feat", &nodes[..1], 8).unwrap_err();
    assert!(matches!(refused, StoreError::Busy { part: PART, .. }), "{refused}");
    assert!(matches!(live.commit_version(), Err(StoreError::Busy { .. })));
    put_both("feat", &[0], 9);
    assert_eq!(rows_in(&live, &ids, View::Latest), committed);

    copy.give_up().unwrap();
    assert!(copy.is_idle());
    assert!(matches!(try_put(&live, "feat", &nodes[..1], 8), Err(StoreError::NoPart { .. })));
    assert!(!live.graph().was_given_up(PART, 77));
    copy.close(77).unwrap();
    assert!(live.graph().was_given_up(PART, 77) && !live.graph().local_parts().contains(&PART));
    assert_eq!(live.commit_version().unwrap(), committed_at + 1, "the other partitions commit");
    arrival.take().unwrap();
    assert!(crate::verify::verify_parts(&elsewhere(&ring), &[PART], &mut |_, _| {}).unwrap().ok);
    assert_eq!(rows_at(&elsewhere(&ring), PART, View::Latest), committed);
    assert_eq!(rows_at(&elsewhere(&ring), PART, View::At(committed_at)), committed);

    // Moves back: the partition is one version behind, and catches up with its pending rows.
    let other = open_part(&elsewhere(&ring), PART, OpenMode::Write);
    put(&other, "feat", &nodes[7..8], 10);
    put(&twin, "feat", &nodes[7..8], 10);
    let mut copy = other.begin_copy(PART).unwrap();
    let arrival = Arrival::find_or_begin(&ring.out(), PART, 78).unwrap();
    hand_over(&mut copy, &other, &arrival);
    copy.give_up().unwrap();
    copy.close(78).unwrap();
    assert_eq!(rows_at(&elsewhere_given_up(&ring), PART, View::Latest), committed);
    arrival.take().unwrap();
    assert_eq!(live.open_received(PART).unwrap(), committed_at + 1);
    assert_eq!(twin.commit_version().unwrap(), committed_at + 1);
    let expected = rows_in(&twin, &ids, View::Latest);
    assert_ne!(expected, committed);
    assert_eq!(rows_in(&live, &ids, View::At(committed_at + 1)), expected);
    assert_eq!(rows_in(&live, &ids, View::At(committed_at)), committed);
    put(&live, "feat", &nodes[..1], 11);
    assert!(ring.verify().ok);
}

#[test]
fn prepared_rows_move_and_their_commit_completes_at_the_new_owner() {
    let ring = ring(N_NODES, 3, 3);
    let live = writer(&ring);
    let nodes = its_nodes(&live);
    put(&live, "feat", &nodes[..30], 1);
    put(&live, "mark", &nodes[7..9], 1);
    live.prepare(2).unwrap();
    // For the next version.
    put(&live, "feat", &nodes[20..], 2);
    let mut copy = live.begin_copy(PART).unwrap();
    let arrival = Arrival::find_or_begin(&elsewhere(&ring), PART, 3).unwrap();
    hand_over(&mut copy, &live, &arrival);
    assert!(matches!(live.commit_through(2), Err(StoreError::Busy { .. })));
    copy.give_up().unwrap();
    copy.close(3).unwrap();
    assert_eq!(live.commit_through(2).unwrap().number, 2, "of the remaining partitions");
    arrival.take().unwrap();

    let other = open_part(&elsewhere(&ring), PART, OpenMode::Write);
    let ids: Vec<NodeId> = nodes.iter().copied().map(NodeId).collect();
    let seqs = |tensor| seqs_of(&latest(&other), tensor, &ids).unwrap();
    let expected = |seq: &dyn Fn(usize) -> u8| (0..ids.len()).map(seq).collect::<Vec<u8>>();
    assert_eq!(seqs("feat"), expected(&|_| 0));
    assert_eq!(other.commit_through(2).unwrap().number, 2);
    assert_eq!(seqs("feat"), expected(&|at| u8::from(at < 30)));
    assert_eq!(seqs("mark"), expected(&|at| u8::from(at == 7 || at == 8)));
    assert_eq!(other.commit_version().unwrap(), 3);
    assert_eq!(seqs("feat"), expected(&|at| if at < 20 { 1 } else { 2 }));
}

#[test]
fn a_running_compaction_does_not_block_a_release() {
    let ring = ring(N_NODES, 3, 3);
    let live = writer(&ring);
    let nodes = its_nodes(&live);
    put(&live, "feat", &[0], 1);
    put(&live, "feat", &nodes[..9], 1);
    live.commit_version().unwrap();
    let arrival = Arrival::find_or_begin(&elsewhere(&ring), PART, 4).unwrap();
    let mut copy = Some((live.begin_copy(PART).unwrap(), arrival));
    // The first fold is of another partition.
    let mut progress = |_, _| {
        if let Some((mut copy, arrival)) = copy.take() {
            hand_over(&mut copy, &live, &arrival);
            copy.give_up().unwrap();
            assert!(copy.is_idle(), "the compaction holds no handle of it");
            copy.close(4).unwrap();
            arrival.take().unwrap();
        }
        ControlFlow::Continue(())
    };
    let reports = live.compact(None, None, Folding::All, &mut progress).unwrap();
    assert!(reports.iter().all(|report| report.part != PART.0), "{reports:?}");
    live.sweep().unwrap();
    put(&live, "feat", &[0], 2);
    live.commit_version().unwrap();
    let expected: Vec<u8> = (0..nodes.len()).map(|at| u8::from(at < 9)).collect();
    let other = open_part(&elsewhere(&ring), PART, OpenMode::Write);
    let ids: Vec<NodeId> = nodes.iter().copied().map(NodeId).collect();
    assert_eq!(seqs_of(&latest(&other), "feat", &ids).unwrap(), expected);
    assert!(compact(&other) > 0);
}

#[test]
fn a_fold_of_a_sealed_partition_ends_and_others_continue() {
    let ring = ring(N_NODES, 3, 3);
    let live = writer(&ring);
    let nodes = its_nodes(&live);
    put(&live, "feat", &nodes[..9], 1);
    put(&live, "feat", &[N_NODES - 1], 1);
    live.commit_version().unwrap();
    let mut copy = live.begin_copy(PART).unwrap();
    copy.seal().unwrap();
    let feat = live.graph().tensor_position("feat").unwrap();
    let folded = |live: &GraphHandle| {
        [1, 2].map(|part| live.tensor(PartId(part), feat).unwrap().current().layers().len())
    };
    assert_eq!(folded(&live), [2, 2]);
    compact(&live);
    assert_eq!(folded(&live), [2, 1]);
    drop(copy);
    compact(&live);
    assert_eq!(folded(&live), [1, 1]);
}

#[test]
fn a_restored_partition_catches_up_with_missed_commits() {
    let ring = ring(N_NODES, 3, 3);
    let live = writer(&ring);
    let nodes = its_nodes(&live);
    let ids: Vec<NodeId> = nodes.iter().copied().map(NodeId).collect();
    put(&live, "feat", &nodes[..5], 1);
    let mut copy = live.begin_copy(PART).unwrap();
    let arrival = Arrival::find_or_begin(&elsewhere(&ring), PART, 3).unwrap();
    hand_over(&mut copy, &live, &arrival);
    copy.give_up().unwrap();
    put(&live, "feat", &[0], 2);
    let missed = live.commit_version().unwrap();
    copy.put_back().unwrap();
    // The partition can be copied again, and dropping the earlier copy does not end that one.
    let again = live.begin_copy(PART).unwrap();
    drop(copy);
    assert!(matches!(live.begin_copy(PART), Err(StoreError::Busy { .. })));
    drop(again);

    put(&live, "feat", &nodes[3..9], 4);
    let expected = |last: std::ops::Range<usize>| -> Vec<u8> {
        let seq = |at| if last.contains(&at) { 4 } else { u32::from(at < 5) };
        (0..nodes.len()).flat_map(|at| row_of(seq(at), 99)).collect()
    };
    // The pending rows were put before the missed commit.
    assert_eq!(rows_in(&live, &ids, View::At(missed))[1], expected(0..0));
    assert_eq!(rows_in(&live, &ids, View::Latest)[1], expected(0..0));
    live.commit_version().unwrap();
    assert_eq!(rows_in(&live, &ids, View::At(missed))[1], expected(0..0));
    assert_eq!(rows_in(&live, &ids, View::Latest)[1], expected(3..9));
    drop(live);
    assert_eq!(rows_at(&ring.out(), PART, View::Latest)[1], expected(3..9));
    assert!(ring.verify().ok);
}

/// Returns a graph whose folder has the released partition.
fn elsewhere_given_up(ring: &Ring) -> PathBuf {
    let (from, to) = (elsewhere(ring), ring.dir.path().join("given-up"));
    let graph = Graph::open(&from).unwrap();
    std::fs::create_dir(&to).unwrap();
    std::fs::copy(from.join("graph.toml"), to.join("graph.toml")).unwrap();
    std::fs::rename(graph.released_dir(PART, 78), to.join("part-001")).unwrap();
    to
}

#[test]
fn a_dropped_copy_changes_nothing_and_its_arrival_is_continued() {
    let ring = ring(N_NODES, 3, 3);
    let live = writer(&ring);
    let nodes = its_nodes(&live);
    put(&live, "feat", &nodes[..5], 1);
    let mut copy = live.begin_copy(PART).unwrap();
    assert!(matches!(live.begin_copy(PART), Err(StoreError::Busy { .. })));
    let arrival = Arrival::find_or_begin(&elsewhere(&ring), PART, 5).unwrap();
    fetch(&live.part_files(PART).unwrap(), &arrival);
    assert!(copy.next_pending(PIECE, &mut Vec::new()).is_err(), "the copy is not sealed");
    copy.seal().unwrap();
    assert!(try_put(&live, "feat", &nodes[..5], 2).is_err());
    let refused = copy.give_up().unwrap_err();
    assert!(refused.to_string().contains("pending rows"), "{refused}");
    drop((copy, arrival));
    put(&live, "feat", &nodes[..5], 2);
    assert_eq!(compact(&live), 0, "there is no committed delta");

    let files = live.part_files(PART).unwrap();
    let arrival = Arrival::find_or_begin(&elsewhere(&ring), PART, 6).unwrap();
    assert_eq!(arrival.id(), 5, "the arrival keeps its number");
    for (name, n_bytes) in files.files() {
        assert!(arrival.has(name, n_bytes).unwrap(), "{name}");
    }
    let dir = elsewhere(&ring).join("part-001.copy-0000000000000005/part-001");
    let halo = dir.join("halo");
    let name = files.files().map(|(name, _)| name.to_owned()).find(|name| name.contains("halo"));
    let path = name.map_or(halo, |name| dir.join(name));
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let damaged = arrival.check_lists().unwrap_err();
    assert!(damaged.to_string().contains("damaged"), "{damaged}");
    assert!(!Arrival::is_begun(&elsewhere(&ring), PART).unwrap());
}

#[test]
fn an_arrival_has_one_owner_and_a_number_is_used_once() {
    let ring = ring(N_NODES, 3, 3);
    let to = elsewhere(&ring);
    let begin = |id| Arrival::find_or_begin(&to, PART, id);
    let first = begin(0xa).unwrap();
    let refused = begin(0xb).unwrap_err();
    assert!(refused.to_string().contains("another process brings it"), "{refused}");
    drop(first);
    assert_eq!(begin(0xb).unwrap().id(), 0xa, "the arrival continues");
    // Interrupted while its two folders are created or removed: nothing has arrived.
    let staging = to.join("part-001.copy-000000000000000a");
    std::fs::remove_dir(staging.join("part-001")).unwrap();
    assert_eq!(begin(0xc).unwrap().id(), 0xc);
    assert!(!staging.exists());
    assert!(Arrival::is_begun(&to, PART).unwrap() && !Arrival::is_begun(&to, PartId(2)).unwrap());
}

#[test]
fn an_old_move_of_a_returned_partition_is_not_accepted() {
    let ring = ring(N_NODES, 3, 3);
    let live = writer(&ring);
    assert!(!live.was_given_up(PART, 7).unwrap());
    std::fs::create_dir(live.graph().released_dir(PART, 7)).unwrap();
    let refused = live.was_given_up(PART, 7).unwrap_err();
    assert!(refused.to_string().contains("it is open here"), "{refused}");
    assert!(!live.was_given_up(PART, 8).unwrap());
}

#[test]
fn data_of_other_servers_is_validated() {
    let ring = ring(N_NODES, 3, 3);
    let live = writer(&ring);
    assert!(Arrival::find_or_begin(&ring.out(), PART, 1).is_err(), "the partition is here");
    let arrival = Arrival::find_or_begin(&elsewhere(&ring), PART, 1).unwrap();
    for name in ["", "..", "../x.v1.seg", "catalog", "/etc/passwd", ".v1.seg", "a/b.v1.seg", "x"] {
        let error = arrival.file(name).unwrap_err();
        assert!(matches!(error, StoreError::MoveRefused { .. }), "{name}: {error}");
    }
    let files = live.part_files(PART).unwrap();
    fetch(&files, &arrival);
    let (catalog, manifest) = (arrival.catalog().unwrap(), files.manifest());
    catalog.install(manifest).unwrap();
    let n_rows = its_nodes(&live).len() as u32;
    let stretch = |tensor: &str, version, row| {
        let (tensor, width) = (live.graph().tensor_position(tensor).unwrap(), tensor_bytes(tensor));
        let mut piece = Vec::new();
        piece::push(&mut piece, tensor as u16, version, &[row], &vec![7; width]);
        piece
    };
    catalog.put(manifest, &stretch("feat", 2, n_rows - 1)).unwrap();
    catalog.put(manifest, &stretch("mark", 3, 0)).unwrap();
    let mut no_tensor = stretch("feat", 2, 0);
    no_tensor[0] = 9;
    let wrong = [
        b"\x01".to_vec(),
        stretch("feat", 2, 0)[..50].to_vec(),
        stretch("feat", 2, n_rows),
        stretch("feat", 1, 0),
        stretch("feat", 4, 0),
        stretch("external_id", 2, 0),
        no_tensor,
    ];
    for piece in wrong {
        let refused = catalog.put(manifest, &piece).unwrap_err();
        assert!(matches!(refused, StoreError::MoveRefused { .. }), "{refused}");
    }
    let other = super::ring(N_NODES, 3, 3);
    let stranger = writer(&other).part_files(PartId(0)).unwrap();
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
}
