//! Segments of a later version than the catalog's: what they have taken in is kept beside a damaged
//! one, and what is pending stays pending.

use std::sync::Arc;

use super::*;
use crate::file_system::{Access, Change, Disk, FileSystem};
use crate::update::View;

/// A graph with every third row put for version 2 and every fifth for version 3. A compaction that
/// was cut off has left a segment of those versions that no record names. Then puts continue.
struct CutOff {
    model: Model,
    /// The file of the segment, in both partitions.
    segment: &'static str,
}

fn put(live: &GraphHandle, tensor: &str, width: usize, step: usize, value: u8) {
    let ids: Vec<NodeId> = (0..N_NODES).step_by(step).map(NodeId).collect();
    live.put_rows(tensor, &ids, &vec![value; ids.len() * width]).unwrap();
}

fn open(path: &Path) -> GraphHandle {
    let graph = Graph::open(path).unwrap();
    GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap()
}

fn compact_feat(path: &Path) {
    let mut go_on = |_, _| std::ops::ControlFlow::Continue(());
    open(path).compact(None, Some("feat"), crate::update::Folding::All, &mut go_on).unwrap();
}

fn cut_off(commits_after: bool) -> CutOff {
    let model = import();
    let live = open(&model.path());
    put(&live, "feat", 99, 3, 3);
    live.commit_version().unwrap();
    put(&live, "feat", 99, 5, 5);
    live.commit_version().unwrap();
    drop(live);
    let compacted = tempfile::tempdir().unwrap();
    let compacted = Model { dir: compacted };
    copy_all(&model.path(), &compacted.path());
    compact_feat(&compacted.path());
    let live = open(&model.path());
    if commits_after {
        put(&live, "feat", 99, 7, 7);
        live.commit_version().unwrap();
    }
    put(&live, "feat", 99, 11, 11);
    drop(live);
    let segment = "feat.v3.seg";
    for part in ["part-000", "part-001"] {
        let from = compacted.path().join(part).join(segment);
        fs::copy(from, model.path().join(part).join(segment)).unwrap();
    }
    CutOff { model, segment }
}

/// Checks that all rows are as they were but those of the damaged page, which are reported.
fn check_rows(was: &Rows, patient: &Patient, report: &RepairReport, what: &str) {
    let n_lost = lost_rows(was, &patient.rows(), report);
    // Some of them were put since.
    assert!((35..44).contains(&n_lost), "{what}: {n_lost} rows of a page are lost");
}

#[test]
fn the_deltas_that_a_damaged_later_segment_has_taken_in_are_kept() {
    for commits_after in [false, true] {
        let CutOff { model, segment } = cut_off(commits_after);
        for has_catalog_fault in [false, true] {
            let patient = Patient::of(&model);
            let what = format!("commits after: {commits_after}, fault: {has_catalog_fault}");
            let was = patient.rows();
            patient.remove("part-000/feat.v1.seg");
            patient.damage(&format!("part-000/{segment}"), 5 * PAGE + 9, 3);
            if has_catalog_fault {
                let pairs = Disk.key_values(&patient.path("part-000/catalog"), Access::Write);
                let unknown = Change::Put(b"colour".to_vec(), b"green".to_vec());
                pairs.unwrap().write(&[unknown]).unwrap();
            }
            let report = patient.repair();
            for delta in ["feat.v2.delta", "feat.v3.delta"] {
                let kept = patient.path(&format!("part-000/quarantine/{delta}.1"));
                let found = fs::read(model.path().join("part-000").join(delta)).unwrap();
                assert_eq!(fs::read(kept).unwrap(), found, "{what}: a copy of lost rows");
                assert!(patient.path(&format!("part-001/{delta}")).exists(), "{what}");
            }
            check_rows(&was, &patient, &report, &what);
            let live = Arc::new(open(&patient.graph()));
            check_rows(&was, &patient, &report, &what);
            let version = if commits_after { 4 } else { 3 };
            assert_eq!(live.version(), version);
            assert_eq!(live.commit_version().unwrap(), version + 1);
            let store = EmbeddedStore::from_handle(Arc::clone(&live), View::Latest).unwrap();
            let mut out = vec![0; 99];
            for id in
                (0..N_NODES / 2).step_by(11).filter(|id| was[&("feat".to_owned(), *id)].is_some())
            {
                let gathered = store.gather("feat", &[NodeId(id)], &mut out);
                gathered.unwrap();
                assert_eq!(out, [11; 99], "{what}: what was pending for {id}");
            }
        }
    }
}

/// Returns a graph with old copies of its catalogs, and its latest rows. Some rows of `packed` were
/// put before the copies were made, and some with `then` afterwards. Two commits and a compaction
/// of `feat` followed.
fn with_an_old_catalog(then: Option<u8>) -> (Patient, Rows) {
    let model = import();
    let live = open(&model.path());
    put(&live, "packed", 200, 2, 6);
    drop(live);
    let old = tempfile::tempdir().unwrap();
    for part in ["part-000", "part-001"] {
        copy_all(&model.path().join(part).join("catalog"), &old.path().join(part));
    }
    let live = open(&model.path());
    if let Some(value) = then {
        put(&live, "packed", 200, 4, value);
    }
    put(&live, "feat", 99, 1, 9);
    live.commit_version().unwrap();
    live.commit_version().unwrap();
    drop(live);
    compact_feat(&model.path());
    let patient = Patient::of(&model);
    let latest = patient.rows();
    for part in ["part-000", "part-001"] {
        patient.remove(&format!("{part}/catalog"));
        copy_all(&old.path().join(part), &patient.path(&format!("{part}/catalog")));
    }
    (patient, latest)
}

#[test]
fn rows_that_a_delta_has_taken_in_are_not_pending_by_an_old_catalog() {
    let (patient, latest) = with_an_old_catalog(Some(7));
    let report = patient.repair();
    let told = "rows that were pending for version 2 are in a file of their tensor";
    assert!(report.done.iter().any(|done| done.action.contains(told)), "{report:?}");
    assert_eq!(patient.rows(), latest);
    let live = Arc::new(open(&patient.graph()));
    // Row 0 was put again after the copy was made.
    assert_eq!(live.version(), 2, "the version of the newest file");
    live.commit_version().unwrap();
    drop(live);
    assert_eq!(patient.rows(), latest);
}

#[test]
fn rows_stay_pending_when_a_segment_of_another_tensor_is_of_a_later_version() {
    let (patient, latest) = with_an_old_catalog(None);
    let imported = Patient::of(plain()).rows();
    // No file has the rows that are pending.
    for part in ["part-000", "part-001"] {
        patient.remove(&format!("{part}/packed.v2.delta"));
    }
    let report = patient.repair();
    let told = "or pending for version 3 now";
    assert!(report.done.iter().any(|done| done.action.contains(told)), "{report:?}");
    let is_packed = |row: &(&(String, u32), &Option<Vec<u8>>)| row.0.0 == "packed";
    let (found, was) = (patient.rows(), &imported);
    assert!(found.iter().filter(is_packed).eq(was.iter().filter(is_packed)), "none is committed");
    open(&patient.graph()).commit_version().unwrap();
    assert_eq!(patient.rows(), latest);
}

#[test]
fn a_whole_later_segment_takes_the_place_of_one_with_a_damaged_page() {
    let CutOff { model, .. } = cut_off(true);
    let patient = Patient::of(&model);
    let was = patient.rows();
    patient.damage("part-000/feat.v1.seg", 7 * PAGE + 9, 3);
    let report = patient.repair();
    assert!(report.ok, "{report:?}");
    assert_eq!(patient.rows(), was);
    drop(open(&patient.graph()));
    assert_eq!(patient.rows(), was);
}
