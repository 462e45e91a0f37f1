//! Segments that move on to a later version: rows that lie over the old one, and that a damaged
//! later one has not, stay; and what is pending stays pending.

use std::sync::Arc;

use super::*;
use crate::device::{Access, Change, Device, Disk};
use crate::live::View;

/// Every third row put for version 2, every fifth for version 3; of those versions a segment that
/// no record names, of a compaction that was cut off. Then puts that go on.
struct CutOff {
    model: Model,
    /// The file of the segment, in both partitions.
    segment: &'static str,
}

fn put(live: &LiveGraph, tensor: &str, width: usize, step: usize, value: u8) {
    let ids: Vec<NodeId> = (0..N_NODES).step_by(step).map(NodeId).collect();
    live.put_rows(tensor, &ids, &vec![value; ids.len() * width]).unwrap();
}

fn open(path: &Path) -> LiveGraph {
    let graph = Graph::open(path).unwrap();
    LiveGraph::open(graph, None, LiveMode::Write, &OpenOptions::default()).unwrap()
}

fn compact_feat(path: &Path) {
    let mut go_on = |_, _| std::ops::ControlFlow::Continue(());
    open(path).compact(None, Some("feat"), crate::Folding::All, &mut go_on).unwrap();
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

fn check_overlay(was: &Rows, is: &Rows, what: &str) {
    let mut n_lost = 0;
    for ((tensor, id), bytes) in was {
        let found = &is[&(tensor.clone(), *id)];
        let is_put = [3, 5].iter().any(|step| id % step == 0);
        if tensor == "feat" && !is_put && found.is_none() {
            n_lost += 1;
        } else {
            assert_eq!(found, bytes, "{what}: `{tensor}` {id}");
        }
    }
    assert!((1..43).contains(&n_lost), "{what}: {n_lost} rows of a page are lost");
}

#[test]
fn rows_over_a_lost_segment_outlive_a_damaged_page_of_the_later_one() {
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
            let action = "rows over it that its damaged pages lack are kept";
            assert!(report.done.iter().any(|done| done.action.contains(action)), "{report:?}");
            check_overlay(&was, &patient.rows(), &what);
            // Whoever writes removes what a segment has taken in.
            drop(open(&patient.graph()));
            check_overlay(&was, &patient.rows(), &what);
            let live = Arc::new(open(&patient.graph()));
            assert_eq!(live.version(), if commits_after { 4 } else { 3 });
            live.commit_version().unwrap();
            let store = EmbeddedStore::over(Arc::clone(&live), View::At(live.version())).unwrap();
            let mut out = vec![0; 99];
            for id in (0..N_NODES / 2).filter(|id| id % 3 == 0) {
                store.gather("feat", &[NodeId(id)], &mut out).unwrap();
                assert_eq!(Some(&out), was[&("feat".to_owned(), id)].as_ref(), "{what}: {id}");
            }
        }
    }
}

#[test]
fn rows_stay_pending_when_a_segment_of_another_tensor_is_of_a_later_version() {
    let model = import();
    let live = open(&model.path());
    put(&live, "packed", 200, 2, 6);
    drop(live);
    let old = tempfile::tempdir().unwrap();
    for part in ["part-000", "part-001"] {
        copy_all(&model.path().join(part).join("catalog"), &old.path().join(part));
    }
    let live = open(&model.path());
    put(&live, "feat", 99, 1, 9);
    live.commit_version().unwrap();
    live.commit_version().unwrap();
    drop(live);
    compact_feat(&model.path());
    let patient = Patient::of(&model);
    let latest = patient.rows();
    for part in ["part-000", "part-001"] {
        // The old copy knows of the first put alone.
        patient.remove(&format!("{part}/catalog"));
        copy_all(&old.path().join(part), &patient.path(&format!("{part}/catalog")));
    }
    let report = patient.repair();
    let told = "rows of packed that are pending for version 2 are so for version 4 now";
    assert!(report.done.iter().any(|done| done.action.contains(told)), "{report:?}");
    assert_eq!(patient.rows(), latest);
    let live = Arc::new(open(&patient.graph()));
    assert_eq!(live.version(), 3);
    let store = EmbeddedStore::over(Arc::clone(&live), View::At(3)).unwrap();
    let mut out = vec![0; 200];
    store.gather("packed", &[NodeId(0)], &mut out).unwrap();
    assert_ne!(out, [6; 200], "no version has what was not committed");
    live.commit_version().unwrap();
    let store = EmbeddedStore::over(Arc::clone(&live), View::At(4)).unwrap();
    store.gather("packed", &[NodeId(0)], &mut out).unwrap();
    assert_eq!(out, [6; 200]);
}
