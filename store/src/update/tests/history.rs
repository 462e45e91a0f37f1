//! Versions of equal number and different histories, and partitions that are behind.

use std::fs;
use std::path::PathBuf;

use lodestore_graph::PartId;
use uuid::Uuid;

use super::*;
use crate::repair::{RepairMode, repair};
use crate::version_id::{CommitId, VersionId};

const N_NODES: u32 = 40;

fn lose_catalog(ring: &Ring, part: u16) {
    std::fs::remove_dir_all(part_dir(ring, part).join("catalog")).unwrap();
}

fn repaired(ring: &Ring) -> Arc<GraphHandle> {
    repair(&ring.out(), RepairMode::Apply, &mut |_, _| {}).unwrap();
    writer(ring)
}

fn part_dir(ring: &Ring, part: u16) -> PathBuf {
    Graph::open(&ring.out()).unwrap().part_dir(PartId(part))
}

/// A copy of a partition, which can replace the partition later.
struct Copied {
    from: PathBuf,
    copy: PathBuf,
}

impl Copied {
    fn of(ring: &Ring, part: u16) -> Self {
        let from = part_dir(ring, part);
        let copy = ring.dir.path().join(format!("copy-{}", Uuid::new_v4()));
        copy_all(&from, &copy);
        Self { from, copy }
    }

    fn bring_back(&self) {
        std::fs::remove_dir_all(&self.from).unwrap();
        copy_all(&self.copy, &self.from);
    }
}

fn commit_all(live: &GraphHandle, seq: u32) -> u32 {
    put(live, "feat", &(0..N_NODES).collect::<Vec<_>>(), seq);
    live.commit_version().unwrap()
}

fn refusal(ring: &Ring) -> String {
    let error = open(&ring.out(), OpenMode::Write).unwrap_err();
    assert!(matches!(error, StoreError::HistoriesDiffer { .. }), "{error}");
    error.to_string()
}

#[test]
fn all_partitions_record_the_commit_of_a_version() {
    let ring = ring(N_NODES, 2, 2);
    let live = writer(&ring);
    assert_eq!(live.version_id().unwrap(), VersionId::from(1), "no commit made it");
    commit_all(&live, 1);
    // This commit changes rows of one partition only.
    put(&live, "feat", &[0], 2);
    live.commit_version().unwrap();
    let versions = live.part_version_ids();
    assert_eq!(versions[0].1, versions[1].1);
    assert!(versions[0].1.commit.is_shared());
    assert_eq!(live.version_id().unwrap(), versions[0].1);
    let of_second = live.commit_of(PartId(1), 2).unwrap();
    assert_ne!(of_second, versions[0].1.commit);
    let pinned = live.pin(2).unwrap();
    assert_eq!(pinned.version_id(), VersionId::new(2, of_second));
    drop(live);
    let reader = open(&ring.out(), OpenMode::Read).unwrap();
    assert_eq!(reader.part_version_ids(), versions);
    assert_eq!(reader.commit_of(PartId(0), 2).unwrap(), of_second);
}

#[test]
fn a_partition_behind_by_more_than_a_commit_is_refused_until_aligned() {
    let ring = ring(N_NODES, 2, 2);
    let live = writer(&ring);
    commit_all(&live, 1);
    drop(live);
    let copied = Copied::of(&ring, 1);
    let live = writer(&ring);
    commit_all(&live, 2);
    commit_all(&live, 3);
    drop(live);
    copied.bring_back();
    let refused = refusal(&ring);
    assert!(refused.contains("partition 0 has version 4 (commit "), "{refused}");
    assert!(refused.contains("partition 1 has version 2 (commit "), "{refused}");
    assert_eq!(refusal(&ring), refused, "the refusal changes nothing");
    let live = aligned(&ring);
    assert_eq!(live.version(), 5);
    let found = seqs(&latest(&live), "feat");
    assert_eq!((found[0], found[N_NODES as usize - 1]), (3, 1), "the rows are unchanged");
    drop(live);
    assert_eq!(commit_all(&writer(&ring), 4), 6);
}

/// The aligned partition had no rows of the aligning commit, and lacks rows of the previous
/// version.
#[test]
fn a_copy_of_the_previous_version_is_not_rolled_forward_to_an_alignment() {
    let ring = ring(N_NODES, 2, 2);
    commit_all(&writer(&ring), 1);
    let early = Copied::of(&ring, 1);
    commit_all(&writer(&ring), 2);
    commit_all(&writer(&ring), 3);
    let late = Copied::of(&ring, 1);
    early.bring_back();
    drop(aligned(&ring));
    late.bring_back();
    refusal(&ring);
}

#[test]
fn a_partition_that_lost_rows_of_the_last_commit_is_not_rolled_forward() {
    let ring = ring(N_NODES, 2, 2);
    let live = writer(&ring);
    commit_all(&live, 1);
    drop(live);
    let copied = Copied::of(&ring, 1);
    commit_all(&writer(&ring), 2);
    copied.bring_back();
    refusal(&ring);
}

#[test]
fn pending_rows_of_a_copy_do_not_join_a_published_commit() {
    let ring = ring(N_NODES, 2, 2);
    let live = writer(&ring);
    commit_all(&live, 1);
    drop(live);
    let [first, second] = [0, 1].map(|part| Copied::of(&ring, part));
    put(&writer(&ring), "feat", &[39], 9);
    let with_pending = Copied::of(&ring, 1);
    first.bring_back();
    second.bring_back();
    let live = writer(&ring);
    put(&live, "feat", &[0], 2);
    live.commit_version().unwrap();
    drop(live);
    with_pending.bring_back();
    refusal(&ring);
}

#[test]
fn a_partition_without_rows_of_the_last_commit_is_rolled_forward_to_it() {
    let ring = ring(N_NODES, 2, 2);
    let live = writer(&ring);
    commit_all(&live, 1);
    drop(live);
    let copied = Copied::of(&ring, 1);
    let live = writer(&ring);
    put(&live, "feat", &[0], 2);
    live.commit_version().unwrap();
    let made = live.version_id().unwrap();
    drop(live);
    copied.bring_back();
    let live = writer(&ring);
    assert_eq!(live.version_id().unwrap(), made, "both have recorded the same commit");
}

/// Commits versions 2 and 3, then restores both partitions at version 2. Returns a copy of
/// partition 1 at version 3.
fn partition_of_another_history(ring: &Ring) -> Copied {
    commit_all(&writer(ring), 1);
    let [first, second] = [0, 1].map(|part| Copied::of(ring, part));
    commit_all(&writer(ring), 2);
    let of_other_history = Copied::of(ring, 1);
    first.bring_back();
    second.bring_back();
    of_other_history
}

#[test]
fn partitions_that_made_a_version_by_different_commits_are_refused() {
    let ring = ring(N_NODES, 2, 2);
    let of_other_history = partition_of_another_history(&ring);
    commit_all(&writer(&ring), 3);
    // The copy has the other partition's number, and another commit.
    of_other_history.bring_back();
    refusal(&ring);
    let reader = open(&ring.out(), OpenMode::Read).unwrap();
    let pinned = reader.pin(3).unwrap_err();
    assert!(matches!(pinned, StoreError::HistoriesDiffer { .. }), "{pinned}");
    assert!(reader.version_id().is_err());
    let live = aligned(&ring);
    assert_eq!(live.version(), 4);
    live.version_id().unwrap();
    live.pin(4).unwrap();
}

/// The partition lacks no rows of the last commit, but has other rows of the one before.
#[test]
fn a_partition_behind_in_another_history_is_not_rolled_forward() {
    let ring = ring(N_NODES, 2, 2);
    let of_other_history = partition_of_another_history(&ring);
    let live = writer(&ring);
    commit_all(&live, 3);
    put(&live, "feat", &[0], 4);
    live.commit_version().unwrap();
    drop(live);
    of_other_history.bring_back();
    refusal(&ring);
}

#[test]
fn an_interrupted_commit_keeps_the_id_of_its_first_step() {
    let ring = ring(N_NODES, 2, 2);
    let live = writer(&ring);
    put(&live, "feat", &[0, 39], 1);
    let drawn = CommitId::draw();
    assert_eq!(live.prepare(VersionId::new(2, drawn)).unwrap(), drawn);
    let later = VersionId::new(2, CommitId::draw());
    assert_eq!(live.prepare(later).unwrap(), drawn, "the first step has fixed the id");
    drop(live);
    let live = writer(&ring);
    assert_eq!(live.prepare(later).unwrap(), drawn, "the id is kept across a restart");
    live.commit_version().unwrap();
    assert_eq!(live.version_id().unwrap(), VersionId::new(2, drawn));
    assert_eq!(live.prepare(later).unwrap(), drawn, "the version is committed");
}

#[test]
fn over_several_servers_the_id_of_the_second_step_counts() {
    let ring = ring(N_NODES, 1, 1);
    let live = writer(&ring);
    put(&live, "feat", &[0], 1);
    let smallest = CommitId::draw();
    live.prepare(VersionId::new(2, CommitId::draw())).unwrap();
    let made = live.commit_through(VersionId::new(2, smallest)).unwrap();
    assert_eq!(made, VersionId::new(2, smallest));
    let again = live.commit_through(VersionId::new(2, CommitId::draw())).unwrap();
    assert_eq!(again, made, "the version was already committed");
}

#[test]
fn a_commit_far_ahead_makes_no_versions_in_between() {
    let ring = ring(N_NODES, 2, 2);
    let live = writer(&ring);
    put(&live, "feat", &[0], 1);
    let made = live.commit_through(VersionId::new(60_000, CommitId::draw())).unwrap();
    let manifest = live.part_files(PartId(0)).unwrap().manifest().clone();
    let numbers: Vec<u32> = manifest.commits.iter().map(|commit| commit.number).collect();
    assert_eq!(numbers, [59_999, 60_000], "the second partition had no rows for version 2");
    assert_eq!(manifest.version_id(), made);
    assert_eq!(seqs(&latest(&live), "feat")[0], 1);
}

#[test]
fn a_repair_finds_the_commits_of_a_lost_catalog() {
    let ring = ring(N_NODES, 2, 2);
    let live = writer(&ring);
    let mut made = Vec::new();
    for seq in 1..4 {
        commit_all(&live, seq);
        made.push(live.version_id().unwrap());
    }
    compact(&live);
    commit_all(&live, 4);
    made.push(live.version_id().unwrap());
    // No file of partition 1 records this commit.
    put(&live, "feat", &[0], 5);
    live.commit_version().unwrap();
    made.push(live.version_id().unwrap());
    drop(live);
    let whole = ring.dir.path().join("whole");
    copy_all(&ring.out(), &whole);
    for part in [0, 1] {
        lose_catalog(&ring, part);
        let live = repaired(&ring);
        assert_eq!(live.version_id().unwrap(), made[4], "partition {part}");
        for version in &made {
            let found = live.commit_of(PartId(part), version.number).unwrap();
            assert_eq!(found, version.commit, "partition {part}, version {version}");
        }
        drop(live);
        fs::remove_dir_all(ring.out()).unwrap();
        copy_all(&whole, &ring.out());
    }
    // Without a neighbour, only the files record commits.
    lose_catalog(&ring, 0);
    lose_catalog(&ring, 1);
    let live = repaired(&ring);
    // Nothing shows that the last version was committed; repeating it makes the same commit.
    assert_eq!(live.version_id().unwrap(), made[3]);
    live.commit_version().unwrap();
    for version in &made[2..] {
        let found = live.commit_of(PartId(0), version.number).unwrap();
        assert_eq!(found, version.commit, "version {version}");
    }
}

/// The file has the id of the first step, the version the smallest id over all servers.
#[test]
fn a_repair_prefers_the_commit_of_a_neighbour_to_that_of_a_file() {
    let ring = ring(N_NODES, 2, 2);
    let live = writer(&ring);
    put(&live, "feat", &(0..N_NODES).collect::<Vec<_>>(), 1);
    live.prepare(VersionId::new(2, CommitId::draw())).unwrap();
    let made = live.commit_through(VersionId::new(2, CommitId::draw())).unwrap();
    drop(live);
    lose_catalog(&ring, 0);
    assert_eq!(repaired(&ring).version_id().unwrap(), made);
}

#[test]
fn a_recreated_tensor_is_not_the_one_of_an_earlier_manifest() {
    let ring = ring(N_NODES, 1, 1);
    let live = writer(&ring);
    let before = live.part_files(PartId(0)).unwrap().manifest().clone();
    let spec = live.graph().tensor("feat").unwrap().clone();
    live.drop_tensor("feat").unwrap();
    // Dropped and created again while the graph is open.
    let mut tensor = live.new_tensor(spec, crate::codec::SegmentCodec::Raw).unwrap();
    tensor.write_rows(&[7].repeat(N_NODES as usize * 99)).unwrap();
    tensor.finish().unwrap();
    let now = live.part_files(PartId(0)).unwrap().manifest().clone();
    let names = |of: &crate::follow::Manifest| {
        of.tensors.iter().map(|tensor| tensor.name.clone()).collect::<Vec<_>>()
    };
    let mut sorted = [names(&before), names(&now)];
    sorted.iter_mut().for_each(|names| names.sort());
    assert_eq!(sorted[0], sorted[1]);
    assert!(!now.has_tensors_of(&before));
    drop(live);
    let live = writer(&ring);
    let again = live.part_files(PartId(0)).unwrap().manifest().clone();
    assert!(again.has_tensors_of(&now), "the tensor is the same after a restart");
}
