//! A follower in another folder has the writer's rows after each version that it installs.

use std::path::PathBuf;

use lodestore_graph::PartId;

use super::*;
use crate::error::StoreError;
use crate::follow::{FetchCheck, FetchedFile, FollowedFolder, Manifest};
use crate::import::EXTERNAL_ID_TENSOR;
use crate::limits::PAGE_BYTES;
use crate::transfer::Arrival;

const N_NODES: u32 = 90;
const N_PARTS: u16 = 2;
/// Short pieces, so that files have several.
const PIECE: usize = 5000;

struct Pair {
    _ring: Ring,
    writer: Arc<GraphHandle>,
    dir: tempfile::TempDir,
}

impl Pair {
    fn new() -> Self {
        let ring = ring(N_NODES, 2, N_PARTS);
        let this = Self { writer: writer(&ring), _ring: ring, dir: tempfile::tempdir().unwrap() };
        FollowedFolder::open(&this.folder(), "10.0.0.5:7171").unwrap();
        for part in 0..N_PARTS {
            this.bring(PartId(part));
        }
        this
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("follower")
    }

    fn follower(&self) -> Arc<GraphHandle> {
        open(&self.folder(), OpenMode::Follow).unwrap()
    }

    /// Copies a partition to the follower for the first time.
    fn bring(&self, part: PartId) {
        let files = self.writer.part_files(part).unwrap();
        let arrival = Arrival::find_or_begin(&self.folder(), part, 1).unwrap();
        super::transfer::fetch(&files, &arrival);
        arrival.check_lists().unwrap();
        let catalog = arrival.catalog().unwrap();
        catalog.install(files.manifest()).unwrap();
        catalog.close().unwrap();
        arrival.sync().unwrap();
        arrival.take().unwrap();
    }

    /// Returns a copy of the writer's present state, whose history diverges.
    fn restored(&self, at: &str) -> Arc<GraphHandle> {
        let dir = self.dir.path().join(at);
        copy_all(self.writer.graph().dir(), &dir);
        open(&dir, OpenMode::Write).unwrap()
    }

    /// Fetches the missing files of the newest version, at most `pieces_max` pieces of each.
    fn fetch(&self, to: &GraphHandle, part: PartId, pieces_max: usize) -> Manifest {
        let files = self.writer.part_files(part).unwrap();
        let manifest = files.manifest().clone();
        for (at, (name, n_bytes)) in files.files().enumerate() {
            if !manifest.files().any(|it| it == name) {
                continue;
            }
            let check = FetchCheck::ReadBack;
            let begun = FetchedFile::begin_next(to, &manifest, name, n_bytes, check).unwrap();
            let Some(mut file) = begun else { continue };
            for _ in 0..pieces_max {
                let mut piece = Vec::new();
                let is_last = files.read(at, file.n_bytes(), PIECE, &mut piece).unwrap();
                file.append(&piece).unwrap();
                if is_last {
                    file.finish().unwrap();
                    break;
                }
            }
        }
        manifest
    }

    fn follow(&self, to: &GraphHandle) {
        for part in (0..N_PARTS).map(PartId) {
            let manifest = self.fetch(to, part, usize::MAX);
            let is_new = to.part_version(part) != Some(manifest.version());
            assert_eq!(to.install(&manifest).unwrap(), is_new, "{part}");
            to.graph().remove_strays(&manifest).unwrap();
        }
    }

    fn assert_same(&self, follower: &Arc<GraphHandle>) {
        for (name, _) in TENSORS {
            let rows = |live: &Arc<GraphHandle>| {
                let store = EmbeddedStore::from_handle(Arc::clone(live), View::Latest).unwrap();
                let width = live.graph().tensor(name).unwrap().row_bytes();
                let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
                let mut out = vec![0; ids.len() * width];
                store.gather(name, &ids, &mut out).unwrap();
                out
            };
            assert!(rows(&self.writer) == rows(follower), "{name}");
        }
    }
}

#[test]
fn a_follower_has_the_writers_rows_after_each_version_and_start() {
    let pair = Pair::new();
    let mut follower = pair.follower();
    pair.assert_same(&follower);
    for turn in 1..12 {
        let ids: Vec<u32> = (0..N_NODES).filter(|id| id % (turn % 4 + 1) == 0).collect();
        put(&pair.writer, TENSORS[turn as usize % 2].0, &ids, turn);
        pair.writer.commit_version().unwrap();
        if turn % 3 == 0 {
            compact(&pair.writer);
        }
        if turn % 4 == 2 {
            // Interrupted, and started again.
            pair.fetch(&follower, PartId(0), 1);
            drop(follower);
            follower = pair.follower();
        }
        if turn % 5 != 4 {
            pair.follow(&follower);
            assert_eq!(follower.version(), pair.writer.version());
            pair.assert_same(&follower);
        }
    }
    let (dir, version) = (pair.folder(), follower.version());
    drop(follower);
    let report = crate::verify::verify(&dir, &mut |_, _| {}).unwrap();
    assert!(report.ok, "{report:?}");
    assert_eq!(pair.follower().version(), version);
}

#[test]
fn a_manifest_that_does_not_continue_is_refused_and_changes_nothing() {
    let (pair, stranger) = (Pair::new(), Pair::new());
    let follower = pair.follower();
    let refused = |manifest: &Manifest| match follower.install(manifest).unwrap_err() {
        StoreError::FollowRefused { reason, .. } => reason,
        other => panic!("{other}"),
    };
    let theirs = stranger.writer.part_files(PartId(0)).unwrap().manifest().clone();
    assert!(refused(&theirs).contains("graph"), "another graph");
    let first = pair.writer.part_files(PartId(0)).unwrap().manifest().clone();
    put(&pair.writer, "feat", &[1, 2], 1);
    pair.writer.commit_version().unwrap();
    pair.follow(&follower);
    assert!(refused(&first).contains("restored from a copy"), "an earlier version");
    let mut other = pair.writer.part_files(PartId(0)).unwrap().manifest().clone();
    other.version += 1;
    other.tensors[1].deltas[0].record.digest[0] ^= 1;
    assert!(refused(&other).contains("has other rows of version 2"), "another history");
    let mut other = pair.writer.part_files(PartId(0)).unwrap().manifest().clone();
    other.tensors[1].base.1.digest[0] ^= 1;
    assert!(refused(&other).contains("has other rows of version 1"), "another import");
    assert_eq!(follower.version(), 2);
    pair.assert_same(&follower);
    // Only the follower writes to the folder.
    let write = open(&pair.folder(), OpenMode::Write).unwrap_err();
    assert!(matches!(write, StoreError::Follows { .. }), "{write}");
    assert!(write.to_string().contains("10.0.0.5:7171"), "{write}");
    assert!(try_put(&follower, "feat", &[1], 9).is_err() && follower.commit_version().is_err());
}

#[test]
fn files_of_another_history_replace_no_served_file() {
    let pair = Pair::new();
    let restored = pair.restored("restored");
    let all: Vec<u32> = (0..N_NODES).collect();
    put(&pair.writer, "feat", &all, 1);
    pair.writer.commit_version().unwrap();
    let follower = pair.follower();
    pair.follow(&follower);
    for seq in [11, 12] {
        put(&restored, "feat", &all, seq);
        restored.commit_version().unwrap();
    }
    let manifest = restored.part_files(PartId(0)).unwrap().manifest().clone();
    assert!(manifest.files().any(|it| it == "feat.v2.delta"));
    let (name, check) = ("feat.v2.delta", FetchCheck::ReadBack);
    let refused = FetchedFile::begin_next(&follower, &manifest, name, 1, check).unwrap_err();
    assert!(matches!(refused, StoreError::FollowRefused { .. }), "{refused}");
    drop(follower);
    pair.assert_same(&pair.follower());
}

#[test]
fn a_restored_writer_that_has_folded_past_its_follower_is_refused() {
    let pair = Pair::new();
    let all: Vec<u32> = (0..N_NODES).collect();
    let restored = pair.restored("restored");
    for seq in [1, 2] {
        put(&pair.writer, "feat", &all, seq);
        pair.writer.commit_version().unwrap();
    }
    let follower = pair.follower();
    pair.follow(&follower);
    for seq in [11, 12, 13] {
        put(&restored, "feat", &all, seq);
        restored.commit_version().unwrap();
    }
    compact(&restored);
    let manifest = restored.part_files(PartId(0)).unwrap().manifest().clone();
    assert_eq!((follower.version(), manifest.version()), (3, 4));
    assert!(manifest.tensors.iter().all(|it| it.deltas.is_empty()), "no file has its version");
    let refused = follower.install(&manifest).unwrap_err().to_string();
    let expected = "made version 3 by another commit than this folder has: was the";
    assert!(refused.contains(expected), "{refused}");
    assert!(refused.contains(&*pair.folder().to_string_lossy()), "no remedy: {refused}");
    pair.assert_same(&follower);
    // The same holds for a copy of a state that the follower has passed.
    drop(restored);
    let later = pair.restored("later");
    later.commit_version().unwrap();
    pair.writer.commit_version().unwrap();
    pair.follow(&follower);
    later.commit_version().unwrap();
    let manifest = later.part_files(PartId(1)).unwrap().manifest().clone();
    assert!(follower.install(&manifest).is_err());
    // The original writer may fold everything as well, and be as far ahead.
    for seq in [3, 4] {
        put(&pair.writer, "feat", &all, seq);
        pair.writer.commit_version().unwrap();
    }
    compact(&pair.writer);
    drop(follower);
    let follower = pair.follower();
    pair.follow(&follower);
    pair.assert_same(&follower);
}

#[test]
fn a_follower_older_than_the_known_commits_is_refused() {
    let pair = Pair::new();
    let follower = pair.follower();
    put(&pair.writer, "feat", &[1], 1);
    pair.writer.commit_version().unwrap();
    pair.follow(&follower);
    pair.writer.commit_version().unwrap();
    let mut manifest = pair.writer.part_files(PartId(0)).unwrap().manifest().clone();
    assert_eq!(manifest.commits.iter().map(|it| it.number).collect::<Vec<_>>(), [2, 3]);
    manifest.commits.remove(0);
    let refused = follower.install(&manifest).unwrap_err().to_string();
    assert!(refused.contains("knows commits only from version 3 on"), "{refused}");
    assert!(refused.contains("remove"), "{refused}");
    pair.follow(&follower);
    assert_eq!(follower.version(), 3);
}

/// Followers of the new writer have the same history.
#[test]
fn a_follower_that_becomes_the_writer_continues_with_its_history() {
    let pair = Pair::new();
    let follower = pair.follower();
    put(&pair.writer, "feat", &[1], 1);
    pair.writer.commit_version().unwrap();
    pair.follow(&follower);
    let theirs = pair.writer.part_files(PartId(0)).unwrap().manifest().commits.clone();
    drop(follower);
    std::fs::remove_file(pair.folder().join("follows")).unwrap();
    let promoted = open(&pair.folder(), OpenMode::Write).unwrap();
    promoted.commit_version().unwrap();
    let manifest = promoted.part_files(PartId(0)).unwrap().manifest().clone();
    assert_eq!(manifest.commits[..1], theirs);
    assert_eq!(manifest.commits.len(), 2);
    // The old writer has left that history.
    pair.writer.commit_version().unwrap();
    let old = pair.writer.part_files(PartId(0)).unwrap().manifest().commits.clone();
    assert!(old[0] == manifest.commits[0] && old[1] != manifest.commits[1]);
}

#[test]
fn a_damaged_file_is_rejected_and_fetched_again() {
    let pair = Pair::new();
    let follower = pair.follower();
    put(&pair.writer, "feat", &(0..N_NODES).collect::<Vec<_>>(), 3);
    pair.writer.commit_version().unwrap();
    let files = pair.writer.part_files(PartId(0)).unwrap();
    let manifest = files.manifest().clone();
    let at = files.files().position(|(name, _)| name == "feat.v2.delta").unwrap();
    let mut bytes = Vec::new();
    assert!(files.read(at, 0, usize::MAX >> 1, &mut bytes).unwrap());
    let n_bytes = bytes.len() as u64;
    let begin = |check| {
        FetchedFile::begin_next(&follower, &manifest, "feat.v2.delta", n_bytes, check).unwrap()
    };
    // Damages the header, each page of rows and tables, and the footer.
    for (turn, damaged) in (100..bytes.len()).step_by(PAGE_BYTES as usize).enumerate() {
        bytes[damaged] ^= 4;
        for check in [FetchCheck::ReadBack, FetchCheck::AsReceived] {
            let mut file = begin(check).unwrap();
            // Pieces end within pages.
            bytes.chunks(1000 + turn).for_each(|piece| file.append(piece).unwrap());
            assert!(file.finish().is_err(), "byte {damaged}");
            assert!(follower.install(&manifest).is_err());
            assert_eq!(begin(check).unwrap().n_bytes(), 0, "the fetch restarts");
        }
        bytes[damaged] ^= 4;
    }
    // Interrupted within pages, and continued each time.
    let mut received = 0;
    for cut in [PAGE_BYTES as usize - 1, bytes.len() - 1, bytes.len()] {
        let mut file = begin(FetchCheck::AsReceived).unwrap();
        assert_eq!(file.n_bytes(), received as u64, "the fetch continues");
        file.append(&bytes[received..cut]).unwrap();
        received = cut;
    }
    begin(FetchCheck::AsReceived).unwrap().finish().unwrap();
    assert!(begin(FetchCheck::ReadBack).is_none(), "the file is complete");
    pair.follow(&follower);
    pair.assert_same(&follower);
}

#[test]
fn a_writer_that_lost_a_layer_is_refused_but_one_that_folded_it_is_not() {
    let pair = Pair::new();
    let follower = pair.follower();
    for value in [3, 4, 5] {
        put(&pair.writer, "feat", &[2, 40, 80], value);
        pair.writer.commit_version().unwrap();
        if value != 5 {
            pair.follow(&follower);
        }
    }
    let manifest = pair.fetch(&follower, PartId(0), usize::MAX);
    let tensor = manifest.tensors.iter().position(|tensor| tensor.deltas.len() == 3).unwrap();
    for lost in 0..2 {
        let mut without = manifest.clone();
        without.tensors[tensor].deltas.remove(lost);
        let refused = follower.install(&without).unwrap_err();
        assert!(refused.to_string().contains("no file with the rows of `feat`"), "{refused}");
    }
    compact(&pair.writer);
    pair.follow(&follower);
    pair.assert_same(&follower);
}

/// A version's files may change although its rows do not: the writer removes folded files.
#[test]
fn a_fold_of_the_followed_version_is_installed() {
    let pair = Pair::new();
    let follower = pair.follower();
    for seq in 1..4 {
        put(&pair.writer, "feat", &(0..N_NODES).collect::<Vec<u32>>(), seq);
        pair.writer.commit_version().unwrap();
    }
    pair.follow(&follower);
    compact(&pair.writer);
    let layers = |live: &GraphHandle, part: PartId| -> Vec<_> {
        let current = live.tensor(part, 1).unwrap().current();
        current.layers().iter().map(|layer| *layer.segment().digest()).collect()
    };
    for part in (0..N_PARTS).map(PartId) {
        let manifest = pair.fetch(&follower, part, usize::MAX);
        assert_eq!(Some(manifest.version()), follower.part_version(part));
        assert_ne!(layers(&follower, part), layers(&pair.writer, part));
        assert!(follower.install(&manifest).unwrap(), "the files differ");
        assert_eq!(layers(&follower, part), layers(&pair.writer, part));
        assert!(!follower.install(&manifest).unwrap(), "nothing is new");
    }
    pair.assert_same(&follower);
    let (dir, version) = (pair.folder(), follower.version());
    drop(follower);
    let report = crate::verify::verify(&dir, &mut |_, _| {}).unwrap();
    assert!(report.ok, "{report:?}");
    let follower = pair.follower();
    assert_eq!(follower.version(), version);
    pair.assert_same(&follower);
}

/// A commit switches one tensor after the other.
#[test]
fn the_files_of_a_partition_are_of_one_version_during_commits() {
    const N_COMMITS: u32 = 50;
    let ring = ring(40, 1, 1);
    let live = writer(&ring);
    let n_looks = std::thread::scope(|scope| {
        let commits = scope.spawn(|| {
            for seq in 1..=N_COMMITS {
                TENSORS.iter().for_each(|(tensor, _)| put(&live, tensor, &[3, 9], seq));
                live.commit_version().unwrap();
            }
        });
        let (mut n_looks, mut is_over) = (0u32, false);
        while !is_over {
            is_over = commits.is_finished();
            let files = live.part_files(PartId(0)).unwrap();
            let manifest = files.manifest();
            // Every commit changes both tensors, and never the external ids.
            for tensor in manifest.tensors.iter().filter(|it| it.name != EXTERNAL_ID_TENSOR) {
                let newest = tensor.deltas.last().map_or(tensor.base.0, |delta| delta.version);
                assert_eq!(newest, manifest.version(), "{}", tensor.name);
            }
            n_looks += 1;
        }
        commits.join().unwrap();
        n_looks
    });
    assert!(n_looks > 1);
}
