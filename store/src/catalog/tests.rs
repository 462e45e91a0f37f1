use std::fs;

use super::*;
use crate::file_system::Disk;
use crate::version_id::{CommitId, VersionId};

fn record() -> SegmentRecord {
    SegmentRecord {
        segment: Uuid::from_u128(9),
        n_rows: 10,
        row_bytes: 400,
        digest: [7; 32],
        file: "feat.v1.seg".to_owned(),
    }
}

fn graph() -> Uuid {
    Uuid::from_u128(1)
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn recordings_are_read_by_several_concurrently() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog");
    let catalog = Catalog::create(&Disk, &path, graph(), PartId(2), "").unwrap();
    catalog.commit_version(1, [("feat", &record())]).unwrap();
    let first = Catalog::open_read_only(&Disk, &path, graph(), PartId(2)).unwrap();
    assert_eq!(first.segment("feat", 1).unwrap(), Some((1, record())), "seen before a flush");
    catalog.flush().unwrap();
    drop(catalog);
    let second = Catalog::open_read_only(&Disk, &path, graph(), PartId(2)).unwrap();
    for catalog in [&first, &second] {
        assert_eq!(catalog.current_version().unwrap(), 1);
        assert_eq!(catalog.segment("feat", 1).unwrap(), Some((1, record())));
        assert_eq!(catalog.segment("feat", 2).unwrap(), Some((1, record())), "the newest up to it");
        assert_eq!(catalog.segment("feat", 0).unwrap(), None);
        assert_eq!(catalog.segment("fea", 1).unwrap(), None);
    }
}

#[test]
fn reading_changes_nothing_in_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog");
    let catalog = Catalog::create(&Disk, &path, graph(), PartId(2), "").unwrap();
    catalog.commit_version(1, []).unwrap();
    drop(catalog);
    let before = names(&path);
    for _ in 0..2 {
        drop(Catalog::open_read_only(&Disk, &path, graph(), PartId(2)).unwrap());
    }
    assert_eq!(names(&path), before);
}

#[test]
fn another_catalog_in_its_place_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog");
    drop(Catalog::create(&Disk, &path, graph(), PartId(2), "").unwrap());
    let other_part = Catalog::open_read_only(&Disk, &path, graph(), PartId(3)).unwrap_err();
    assert!(matches!(other_part, StoreError::Misplaced { .. }), "{other_part}");
    let other_graph = Catalog::open_read_only(&Disk, &path, Uuid::nil(), PartId(2)).unwrap_err();
    assert!(matches!(other_graph, StoreError::Misplaced { .. }), "{other_graph}");
    assert!(
        Catalog::create(&Disk, &path, graph(), PartId(2), "").is_err(),
        "an existing one is not reused"
    );
}

#[test]
fn a_missing_or_broken_catalog_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let missing =
        Catalog::open_read_only(&Disk, &dir.path().join("none"), graph(), PartId(0)).unwrap_err();
    assert!(missing.to_string().contains("CURRENT"), "{missing}");
    assert!(!dir.path().join("none").exists());
    let path = dir.path().join("catalog");
    drop(Catalog::create(&Disk, &path, graph(), PartId(0), "").unwrap());
    fs::write(path.join("CURRENT"), b"MANIFEST-999999\n").unwrap();
    let broken = Catalog::open_read_only(&Disk, &path, graph(), PartId(0)).unwrap_err();
    assert!(matches!(broken, StoreError::Catalog { .. }), "{broken}");
}

#[test]
fn a_record_cut_anywhere_or_naming_a_path_is_refused() {
    let bytes = record().to_bytes();
    assert_eq!(SegmentRecord::from_bytes(&bytes), Ok(record()));
    let fixed_bytes = bytes.len() - record().file.len();
    for length in 0..=fixed_bytes {
        assert!(SegmentRecord::from_bytes(&bytes[..length]).is_err(), "length {length}");
    }
    for name in ["..", "../x", "a/b", "/etc/passwd", "a\0b", ".hidden"] {
        let record = SegmentRecord { file: name.to_owned(), ..record() };
        assert!(SegmentRecord::from_bytes(&record.to_bytes()).is_err(), "{name:?}");
    }
    let mut newer = bytes.clone();
    newer[0] = 3;
    assert!(SegmentRecord::from_bytes(&newer).unwrap_err().contains("format 3"));
    newer[0] = 1;
    assert_eq!(SegmentRecord::from_bytes(&newer), Ok(record()), "of an older release");
}

#[test]
fn a_delta_record_cut_anywhere_or_of_versions_that_cannot_be_is_refused() {
    let delta = DeltaRecord { first: 3, version: 5, record: record() };
    let bytes = delta.to_bytes();
    assert_eq!(DeltaRecord::from_bytes(5, &bytes), Ok(delta.clone()));
    let fixed_bytes = bytes.len() - record().file.len();
    for length in 0..=fixed_bytes {
        assert!(DeltaRecord::from_bytes(5, &bytes[..length]).is_err(), "length {length}");
    }
    assert!(DeltaRecord::from_bytes(2, &bytes).unwrap_err().contains("found 3"));
    let none = DeltaRecord { first: 0, ..delta }.to_bytes();
    assert!(DeltaRecord::from_bytes(5, &none).unwrap_err().contains("found 0"));
    let mut newer = bytes;
    newer[4] = 3;
    assert!(DeltaRecord::from_bytes(5, &newer).unwrap_err().contains("format 3"));
    assert_eq!(DeltaRecord::newer_format(&newer), Some(3));
}

fn with_deltas(dir: &Path, deltas: &[(u32, u32)]) -> Catalog {
    let catalog = Catalog::create(&Disk, &dir.join("catalog"), graph(), PartId(0), "").unwrap();
    catalog.commit_version(2, [("feat", &record())]).unwrap();
    for &(first, version) in deltas {
        catalog.bring_forward("feat", &DeltaRecord { first, version, record: record() }).unwrap();
    }
    catalog
}

#[test]
fn one_delta_takes_the_place_of_those_that_it_spans_and_of_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = with_deltas(dir.path(), &[(3, 3), (4, 4), (5, 5), (6, 6)]);
    let by = DeltaRecord { first: 4, version: 5, record: record() };
    catalog.switch_deltas("feat", &by).unwrap();
    let (base, _) = catalog.segment("feat", 6).unwrap().unwrap();
    let deltas = catalog.deltas_at("feat", 6).unwrap();
    let versions: Vec<_> = deltas.iter().map(|it| (it.first, it.version)).collect();
    assert_eq!((base, versions), (2, vec![(3, 3), (4, 5), (6, 6)]));
}

#[test]
fn deltas_that_overlap_the_segment_or_each_other_are_refused() {
    for (deltas, overlapped) in [(&[(2, 3)][..], 2), (&[(3, 4), (4, 5)], 4), (&[(3, 4), (3, 5)], 4)]
    {
        let dir = tempfile::tempdir().unwrap();
        let catalog = with_deltas(dir.path(), deltas);
        let error = catalog.deltas_at("feat", 9).unwrap_err().to_string();
        assert!(error.contains(&format!("overlaps version {overlapped}")), "{error}");
    }
}

fn commit(number: u32) -> VersionId {
    VersionId::new(number, CommitId::draw())
}

#[test]
fn commits_are_remembered_for_long_and_then_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog");
    let catalog = Catalog::create(&Disk, &path, graph(), PartId(2), "").unwrap();
    catalog.commit_version(1, [("feat", &record())]).unwrap();
    assert_eq!(catalog.commit_id(1).unwrap(), CommitId::UNKNOWN);
    assert_eq!(catalog.commits(1).unwrap(), []);
    let kept = crate::limits::COMMITS_KEPT;
    let made = [5, 6, 7, kept + 5, kept + 6].map(commit);
    for &version in &made {
        let parts = [2].into_iter().collect();
        let changed = ChangedParts { version: version.number, parts };
        catalog.publish(version, [], &changed).unwrap();
        assert_eq!(catalog.changed_parts().unwrap(), Some(changed));
    }
    assert_eq!(catalog.commit_id(5).unwrap(), CommitId::UNKNOWN, "forgotten");
    assert_eq!(catalog.commit_id(7).unwrap(), made[2].commit);
    assert_eq!(catalog.commits(u32::MAX).unwrap(), [], "none of the last ones");
    assert_eq!(catalog.commits(kept + 6).unwrap(), made[3..]);
    assert_eq!(catalog.commits(kept + 5).unwrap(), made[3..4]);
    assert_eq!(catalog.commits(8).unwrap(), made[2..3]);
    catalog.write(&[Change::Put(keys::commit(9), vec![1; 15])]).unwrap();
    let damaged = catalog.commits(9).unwrap_err().to_string();
    assert!(damaged.contains("16 bytes"), "{damaged}");
    assert!(catalog.commit_id(9).is_err());
}

#[test]
fn commits_of_another_catalog_take_the_place_of_those_of_another_history() {
    let dir = tempfile::tempdir().unwrap();
    let catalog =
        Catalog::create(&Disk, &dir.path().join("catalog"), graph(), PartId(2), "").unwrap();
    let made = [3, 4, 5, 6].map(commit);
    catalog.replace_commits(&made).unwrap();
    let later = [made[2], commit(7)];
    catalog.replace_commits(&later).unwrap();
    let expected = [made[0], made[1], made[2], later[1]];
    assert_eq!(catalog.commits(9).unwrap(), expected, "those before are of the same history");
    let other = [commit(5), commit(8)];
    catalog.replace_commits(&other).unwrap();
    assert_eq!(catalog.commits(9).unwrap(), other);
}

#[test]
fn a_prepared_version_of_an_older_release_has_no_commit() {
    let dir = tempfile::tempdir().unwrap();
    let catalog =
        Catalog::create(&Disk, &dir.path().join("catalog"), graph(), PartId(2), "").unwrap();
    let version = commit(2);
    catalog.prepare(version, &[]).unwrap();
    assert_eq!(catalog.prepared_version().unwrap(), Some(version));
    catalog.write(&[Change::Put(keys::PREPARED.to_vec(), 2u32.to_le_bytes().to_vec())]).unwrap();
    assert_eq!(catalog.prepared_version().unwrap(), Some(2.into()));
    catalog.write(&[Change::Put(keys::PREPARED.to_vec(), vec![0; 19])]).unwrap();
    assert!(catalog.prepared_version().is_err());
}
