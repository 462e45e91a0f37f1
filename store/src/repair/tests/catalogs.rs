use std::ops::ControlFlow;

use super::Outcome::{Lost, Whole};
use super::*;
use crate::file_system::{Access, Change};
use crate::row::RowIdx;

const CATALOG: &str = "part-000/catalog";

fn change(patient: &Patient, changes: &[Change]) {
    let pairs = Disk.key_values(&patient.path(CATALOG), Access::Write).unwrap();
    pairs.write(changes).unwrap();
}

fn key(text: &str, numbers: &[u32]) -> Vec<u8> {
    let numbers = numbers.iter().flat_map(|number| number.to_be_bytes());
    text.bytes().chain(numbers).collect()
}

#[test]
fn a_catalog_that_is_gone_is_built_from_the_segments() {
    for damage in [
        &|p: &Patient| p.remove(CATALOG) as _,
        &|p: &Patient| p.damage(&format!("{CATALOG}/CURRENT"), 0, 5),
        &|p: &Patient| p.remove(&format!("{CATALOG}/CURRENT")),
        &|p: &Patient| {
            p.remove(CATALOG);
            fs::write(p.path(CATALOG), b"not a folder").unwrap();
        },
        &|p: &Patient| {
            p.remove(CATALOG);
            p.remove("part-001/catalog");
        },
    ] as [&dyn Fn(&Patient); 5]
    {
        let report = check(plain(), damage, Lost(0), "catalog");
        let told = "rows that were put and not committed are lost, if there were any";
        assert!(report.lost[0].reason.contains(told), "{report:?}");
    }
}

/// Checks that pending rows are committed, in a graph and in a repaired copy of it, and compared.
fn check_pending(model: &Model, patient: &Patient, what: &str) {
    let whole = Patient::of(model);
    for graph in [whole.graph(), patient.graph()] {
        let live = GraphHandle::open(
            Graph::open(&graph).unwrap(),
            None,
            OpenMode::Write,
            &OpenOptions::default(),
        );
        live.unwrap().commit_version().unwrap();
    }
    assert_eq!(patient.rows(), whole.rows(), "{what}");
}

#[test]
fn without_its_catalog_a_partition_keeps_all_that_was_committed() {
    for is_folded in [false, true] {
        let patient = Patient::of(updated());
        if is_folded {
            let graph = Graph::open(&patient.graph()).unwrap();
            let options = OpenOptions::default();
            let live = GraphHandle::open(graph, None, OpenMode::Write, &options).unwrap();
            let mut go_on = |_, _| std::ops::ControlFlow::Continue(());
            live.compact(None, None, crate::update::Folding::Deltas, &mut go_on).unwrap();
        }
        assert_eq!(patient.path("part-000/feat.v2-3.delta").exists(), is_folded);
        let was = patient.rows();
        patient.remove(CATALOG);
        let report = patient.repair();
        assert!(!report.ok, "what was pending is lost");
        assert_eq!(patient.rows(), was);
        assert!(patient.verify().ok, "{:?}", patient.verify());
        let version = Graph::open(&patient.graph()).unwrap().catalog(PartId(0)).unwrap();
        assert_eq!(version.current_version().unwrap(), 3);
        // Nothing of it is garbage to the next writer.
        let live = Graph::open(&patient.graph()).unwrap();
        drop(GraphHandle::open(live, None, OpenMode::Write, &OpenOptions::default()).unwrap());
        assert_eq!(patient.rows(), was);
    }
}

#[test]
fn the_newest_segment_counts_and_updates_in_it_are_kept() {
    let model = import();
    let graph = Graph::open(&model.path()).unwrap();
    let live = GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap();
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    live.put_rows("feat", &ids, &vec![5; ids.len() * 99]).unwrap();
    live.commit_version().unwrap();
    let old = fs::read(model.path().join("part-000/feat.v1.seg")).unwrap();
    live.compact(None, None, crate::update::Folding::All, &mut |_, _| {
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    drop(live);
    // A reader had the old one pinned.
    fs::write(model.path().join("part-000/feat.v1.seg"), old).unwrap();
    check(&model, &|p| p.remove(CATALOG), Lost(0), "two versions");
    let patient = Patient::of(&model);
    patient.remove(CATALOG);
    patient.repair();
    assert_eq!(
        Graph::open(&patient.graph())
            .unwrap()
            .catalog(PartId(0))
            .unwrap()
            .current_version()
            .unwrap(),
        2
    );
}

#[test]
fn a_damaged_file_beside_a_lost_catalog_is_reported_and_kept() {
    // What the next writer would remove.
    for name in ["feat.v2.delta", "feat.v3.delta", "feat.v4.seg"] {
        let patient = Patient::of(updated());
        let path = format!("part-000/{name}");
        if name.ends_with(".seg") {
            fs::copy(patient.path("part-000/feat.v1.seg"), patient.path(&path)).unwrap();
        }
        patient.damage(&path, 20, 4);
        let damaged = fs::read(patient.path(&path)).unwrap();
        patient.remove(CATALOG);
        let report = patient.repair();
        let lost = report.lost.iter().find(|lost| lost.file.ends_with(&path));
        let told = "have the values of earlier versions";
        assert!(lost.is_some_and(|lost| lost.reason.contains(told)), "{name}: {report:?}");
        assert!(patient.rows().values().all(Option::is_some), "{name}");
        let graph = Graph::open(&patient.graph()).unwrap();
        drop(GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap());
        let kept = patient.path(&format!("part-000/quarantine/{name}.1"));
        assert_eq!(fs::read(kept).unwrap(), damaged, "{name}");
    }
}

#[test]
fn what_makes_sense_in_a_catalog_is_kept_with_all_deltas_and_pending_rows() {
    let record = key("segment/feat/", &[1]);
    for changes in [
        vec![Change::Delete(record.clone())],
        vec![Change::Put(record.clone(), vec![1, 0, 0, 0, 7])],
        vec![Change::Put(b"graph".to_vec(), b"no".to_vec())],
        vec![Change::Put(b"colour".to_vec(), b"red".to_vec())],
        vec![Change::Put(key("segment/none/", &[1]), vec![1, 0, 0, 0, 7])],
    ] {
        let report = check(updated(), &|p| change(p, &changes), Whole, &format!("{changes:?}"));
        assert!(report.done[0].action.contains("all that makes sense"), "{report:?}");
        let patient = Patient::of(updated());
        change(&patient, &changes);
        patient.repair();
        check_pending(updated(), &patient, &format!("{changes:?}"));
    }
    for (row, n_bytes) in [(500, 99), (7, 98)] {
        let bad = Change::Put(key("overlay/feat/", &[4, row]), vec![1; n_bytes]);
        // The row that was overwritten, if it was there, is not reported by node, since it is
        // unreadable.
        let patient = Patient::of(updated());
        change(&patient, &[bad]);
        let report = patient.repair();
        assert!(report.lost[0].reason.contains("1 rows of `feat`"), "{report:?}");
        assert!(patient.verify().ok, "{:?}", patient.verify());
    }
}

/// Returns a copy of [`updated`] after a commit, or after a fold of its deltas.
fn gone_on(is_folded: bool) -> Patient {
    let patient = Patient::of(updated());
    let graph = Graph::open(&patient.graph()).unwrap();
    let live = GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap();
    if is_folded {
        let mut go_on = |_, _| ControlFlow::Continue(());
        live.compact(None, None, crate::update::Folding::Deltas, &mut go_on).unwrap();
    } else {
        live.commit_version().unwrap();
    }
    patient
}

#[test]
fn files_of_a_commit_or_a_fold_that_was_cut_off_are_no_loss_beside_a_current_catalog() {
    let colour = Change::Put(b"colour".to_vec(), b"red".to_vec());
    for (name, is_folded) in [("feat.v4.delta", false), ("feat.v2-3.delta", true)] {
        for is_damaged in [false, true] {
            let (patient, what) = (Patient::of(updated()), format!("{name}, {is_damaged}"));
            let (was, path) = (patient.rows(), format!("part-000/{name}"));
            fs::copy(gone_on(is_folded).path(&path), patient.path(&path)).unwrap();
            if is_damaged {
                patient.damage(&path, 20, 4);
            }
            change(&patient, std::slice::from_ref(&colour));
            let report = patient.repair();
            assert!(report.ok && !report.done.is_empty(), "{what}: {report:?}");
            assert_eq!(patient.rows(), was, "{what}");
            check_pending(updated(), &patient, &what);
        }
    }
}

#[test]
fn a_delta_whose_record_is_damaged_is_recorded_again_if_it_is_whole() {
    let bad = Change::Put(key("delta/feat/", &[3]), vec![1, 0, 0, 0, 7]);
    let report =
        check(updated(), &|p| change(p, std::slice::from_ref(&bad)), Whole, "a bad record");
    assert!(report.done[0].action.contains("all that makes sense"), "{report:?}");
    let patient = Patient::of(updated());
    change(&patient, &[bad]);
    patient.damage("part-000/feat.v3.delta", 20, 4);
    let report = patient.repair();
    assert!(report.lost[0].file.ends_with("part-000/feat.v3.delta"), "{report:?}");
}

#[test]
fn a_damaged_newer_segment_beside_a_lost_catalog_can_be_brought_back_as_the_report_says() {
    let patient = Patient::of(updated());
    let old = fs::read(patient.path("part-000/feat.v1.seg")).unwrap();
    let graph = Graph::open(&patient.graph()).unwrap();
    let live = GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap();
    let mut go_on = |_, _| ControlFlow::Continue(());
    live.compact(None, None, crate::update::Folding::All, &mut go_on).unwrap();
    drop(live);
    let (was, newer) = (patient.rows(), patient.path("part-000/feat.v3.seg"));
    let sound = fs::read(&newer).unwrap();
    // A reader had the old one pinned.
    fs::write(patient.path("part-000/feat.v1.seg"), old).unwrap();
    patient.damage("part-000/feat.v3.seg", patient.bytes("part-000/feat.v3.seg") - 2 * PAGE, 4);
    patient.remove(CATALOG);
    let report = patient.repair();
    let lost = report.lost.iter().find(|lost| lost.file.ends_with("feat.v3.seg")).unwrap();
    assert!(lost.reason.contains("move `feat.v1.seg` away"), "{lost:?}");
    fs::write(&newer, sound).unwrap();
    fs::rename(patient.path("part-000/feat.v1.seg"), patient.dir.path().join("away")).unwrap();
    let report = patient.repair();
    assert!(report.ok, "{report:?}");
    assert_eq!(patient.rows(), was);
}

#[test]
fn what_is_prepared_and_not_published_stays_so_beside_a_damaged_log() {
    let (patient, committed) = (Patient::of(updated()), gone_on(false));
    let was = patient.rows();
    let record = |graph: &Path| {
        let catalog = Graph::open(graph).unwrap().catalog(PartId(0)).unwrap();
        catalog.deltas("feat").unwrap().pop().unwrap()
    };
    let delta = record(&committed.graph());
    assert_eq!(delta.version, 4);
    let path = format!("part-000/{}", delta.record.file);
    fs::copy(committed.path(&path), patient.path(&path)).unwrap();
    let graph = Graph::open(&patient.graph()).unwrap();
    let catalog = graph.catalog_for_writing(PartId(0)).unwrap();
    catalog.prepare(4.into(), &[("feat", delta)]).unwrap();
    catalog.flush().unwrap();
    for row in 0..9 {
        catalog.put_rows("packed", 5, [(RowIdx(row), &[8; 200][..])], None).unwrap();
    }
    drop(catalog);
    let names = fs::read_dir(patient.path(CATALOG)).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let log = names.filter(|name| name.ends_with(".log")).max().unwrap();
    patient.damage(&format!("{CATALOG}/{log}"), 300, 1);
    let report = patient.repair();
    assert!(report.done[0].action.contains("all that makes sense"), "{report:?}");
    let catalog = graph.catalog(PartId(0)).unwrap();
    assert_eq!(catalog.current_version().unwrap(), 3, "no commit has published version 4");
    assert_eq!(catalog.prepared_version().unwrap().map(|it| it.number), Some(4));
    drop(catalog);
    assert_eq!(patient.rows(), was);
    let live = GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap();
    assert_eq!(live.version(), 3);
    // It is committed first, then what was put since.
    assert_eq!(live.commit_version().unwrap(), 5);
    drop(live);
    let is_feat = |row: &(&(String, u32), &Option<Vec<u8>>)| row.0.0 == "feat";
    let (found, expected) = (patient.rows(), committed.rows());
    assert!(found.iter().filter(is_feat).eq(expected.iter().filter(is_feat)));
}

#[test]
fn rows_of_an_older_release_that_no_put_can_have_written_are_reported() {
    for (tensor, row, n_bytes) in [("feat", 500, 99), ("feat", 7, 98), ("none", 7, 99)] {
        let patient = Patient::of(updated());
        let was = patient.rows();
        let key = key(&format!("overlay/{tensor}/"), &[2, row]);
        change(&patient, &[Change::Put(key, vec![1; n_bytes])]);
        let report = patient.repair();
        let told = format!("1 rows of `{tensor}` that no put can have written");
        assert!(report.lost[0].reason.contains(&told), "{report:?}");
        assert_eq!(patient.rows(), was);
        assert!(patient.verify().ok, "{:?}", patient.verify());
    }
}

#[test]
fn a_catalog_of_another_partition_or_graph_is_not_believed() {
    let other = import();
    let swap = |p: &Patient| {
        p.remove(CATALOG);
        copy_all(&p.path("part-001/catalog"), &p.path(CATALOG));
    };
    let foreign = |p: &Patient| {
        p.remove(CATALOG);
        copy_all(&other.path().join(CATALOG), &p.path(CATALOG));
    };
    for damage in [&swap as &dyn Fn(&Patient), &foreign] {
        let report = check(plain(), damage, Lost(0), "misplaced");
        assert!(report.quarantined[0].to.ends_with("part-000/quarantine/catalog.1"), "{report:?}");
    }
}

#[test]
fn a_partition_on_another_disk_is_repaired_there() {
    let patient = Patient::of(plain());
    let elsewhere = patient.dir.path().join("elsewhere");
    fs::rename(patient.path("part-001"), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, patient.path("part-001")).unwrap();
    assert!(patient.repair().ok);
    patient.damage("part-001/feat.v1.seg", 0, 4096);
    patient.remove("part-001/halo.bin");
    let report = patient.repair();
    assert!(report.ok && report.done.len() == 2, "{report:?}");
    assert!(patient.verify().ok && elsewhere.join("halo.bin").is_file());
}

#[test]
fn a_partition_that_is_not_here_is_reported() {
    let patient = Patient::of(plain());
    patient.remove("part-001");
    let report = patient.repair();
    assert!(!report.ok && report.lost.is_empty(), "{report:?}");
    assert_eq!(report.absent, [1]);
    let verified = patient.verify();
    assert!(!verified.ok && verified.damaged.is_empty(), "{verified:?}");
    assert_eq!(verified.absent, [1]);
    let named = |parts: &[u16]| {
        let parts: Vec<PartId> = parts.iter().copied().map(PartId).collect();
        let repaired = repair_parts(&patient.graph(), &parts, RepairMode::Apply, &mut |_, _| {});
        (repaired, verify_parts(&patient.graph(), &parts, &mut |_, _| {}))
    };
    let (repaired, verified) = named(&[0]);
    assert!(repaired.unwrap().ok && verified.unwrap().ok);
    // One that was named must be here.
    let (repaired, verified) = named(&[0, 1]);
    let (repaired, verified) = (repaired.unwrap(), verified.unwrap());
    assert!(!repaired.ok && repaired.lost[0].file.ends_with("part-001"), "{repaired:?}");
    assert!(!verified.ok && verified.damaged[0].file.ends_with("part-001"), "{verified:?}");
    let (repaired, verified) = named(&[2]);
    assert!(matches!(repaired.unwrap_err(), StoreError::NoPart { part: PartId(2), .. }));
    assert!(matches!(verified.unwrap_err(), StoreError::NoPart { part: PartId(2), .. }));
}

#[test]
fn only_the_partitions_that_are_named_are_repaired_and_locked() {
    let patient = Patient::of(plain());
    patient.damage("part-000/feat.v1.seg", 0, 4096);
    patient.damage("part-001/feat.v1.seg", 0, 4096);
    let graph = Graph::open(&patient.graph()).unwrap();
    let writer = graph.catalog_for_writing(PartId(0)).unwrap();
    let report =
        repair_parts(&patient.graph(), &[PartId(1)], RepairMode::Apply, &mut |_, _| {}).unwrap();
    assert!(report.ok && report.done.len() == 1, "{report:?}");
    assert!(report.done[0].file.ends_with("part-001/feat.v1.seg"));
    drop(writer);
    assert!(verify_parts(&patient.graph(), &[PartId(1)], &mut |_, _| {}).unwrap().ok);
    assert_eq!(patient.verify().damaged.len(), 1);
}
