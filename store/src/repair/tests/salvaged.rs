//! Damaged logs of catalogs whose segments have moved on. No acknowledged row that is whole in a
//! segment is dropped for an earlier state of the catalog.

use super::*;

/// Places of a log that are damaged, one at a time.
const N_PLACES: u64 = 24;

const PARTS: [&str; 2] = ["part-000", "part-001"];

/// History of a graph that was put to, committed and compacted before it was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum History {
    /// The old segments are gone, as after every compaction.
    Swept,
    /// Killed while the second partition was compacted: the first one's switch is in its log alone.
    Switched,
    /// The same, but the old files are gone: earlier releases left that.
    GoneTooSoon,
}

/// Rewrites and compacts `feat`, puts a few rows of `packed` and commits all; returns what a kill
/// leaves.
fn killed(history: History) -> Model {
    let model = import();
    let dir = tempfile::tempdir().unwrap();
    let killed = Model { dir };
    for part in PARTS {
        copy_all(&model.path().join(part).join("catalog"), &old_catalog(&killed, part));
    }
    let graph = Graph::open(&model.path()).unwrap();
    let options = OpenOptions::default();
    let live = Arc::new(GraphHandle::open(graph, None, OpenMode::Write, &options).unwrap());
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    live.put_rows("feat", &ids, &vec![5; ids.len() * 99]).unwrap();
    live.put_rows("packed", &ids[..700], &vec![6; 700 * 200]).unwrap();
    live.commit_version().unwrap();
    live.compact(None, Some("feat"), crate::update::Folding::All, &mut |done, total| {
        // The last rows of the second partition are being written.
        if history != History::Swept && done == total && !killed.path().exists() {
            copy_all(&model.path(), &killed.path());
        }
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    if history == History::Swept {
        copy_all(&model.path(), &killed.path());
    }
    assert!(killed.path().join("part-000/feat.v2.seg").exists());
    for old in ["feat.v1.seg", "feat.v2.delta"] {
        let old = killed.path().join("part-000").join(old);
        assert_eq!(old.exists(), history != History::Swept);
        if history == History::GoneTooSoon {
            fs::remove_file(old).unwrap();
        }
    }
    killed
}

/// Returns the catalog of a partition as it was imported.
fn old_catalog(model: &Model, part: &str) -> PathBuf {
    model.dir.path().join(format!("catalog-of-{part}"))
}

/// Logs of the first partition's catalog with their lengths.
fn logs(patient: &Patient) -> Vec<(String, u64)> {
    let names = fs::read_dir(patient.path("part-000/catalog")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let logs = names.filter(|name| name.ends_with(".log"));
    let logs = logs.map(|name| format!("part-000/catalog/{name}"));
    logs.map(|name| (name.clone(), patient.bytes(&name))).collect()
}

/// Checks that every row of `feat` is the one that was put, and every other row is an acknowledged
/// one.
fn check_rows(patient: &Patient, what: &str) {
    for ((tensor, id), bytes) in patient.rows() {
        let bytes = bytes.unwrap_or_else(|| panic!("{what}: `{tensor}` {id} is lost"));
        match tensor.as_str() {
            "feat" => assert_eq!(bytes, [5; 99], "{what}: `feat` {id}"),
            "packed" if id < 700 && bytes == [6; 200] => {}
            "packed" => assert!(bytes.iter().skip(1).step_by(4).all(|&byte| byte == 0), "{what}"),
            _ => {}
        }
    }
}

fn check_log(history: History) {
    let model = killed(history);
    let n_log_bytes: u64 = logs(&Patient::of(&model)).iter().map(|(_, n_bytes)| n_bytes).sum();
    let is_in_log = n_log_bytes > 50_000;
    assert_eq!(is_in_log, history != History::Swept, "{n_log_bytes} bytes of log");
    let mut n_salvaged = 0;
    for place in 0..N_PLACES {
        let patient = Patient::of(&model);
        let what = format!("{history:?}, place {place}");
        for (log, n_bytes) in logs(&patient).into_iter().filter(|(_, n_bytes)| *n_bytes > 0) {
            patient.damage(&log, place * (n_bytes - 1) / (N_PLACES - 1), 1);
        }
        let report = patient.repair();
        n_salvaged += u64::from(!report.lost.is_empty());
        assert!(report.lost.iter().all(|lost| lost.tensor.is_none()), "{what}: {report:?}");
        check_rows(&patient, &what);
        assert!(patient.verify().ok, "{what}: {:?}", patient.verify());
        goes_on(&patient, &what);
    }
    assert!(n_salvaged >= if is_in_log { N_PLACES / 2 } else { 0 }, "{n_salvaged} salvaged");
}

/// Checks that the repaired graph takes puts, and a compaction keeps every row.
fn goes_on(patient: &Patient, what: &str) {
    let graph = Graph::open(&patient.graph()).unwrap();
    let live = GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap();
    live.put_rows("packed", &[NodeId(3)], &[6; 200]).unwrap();
    live.commit_version().unwrap();
    live.compact(None, None, crate::update::Folding::All, &mut |_, _| {
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    drop(live);
    check_rows(patient, what);
    assert!(patient.verify().ok, "{what}: {:?}", patient.verify());
}

#[test]
fn a_damaged_log_costs_no_row_of_a_compacted_segment() {
    check_log(History::Swept);
}

#[test]
fn a_damaged_log_costs_no_row_while_the_old_segment_is_still_there() {
    check_log(History::Switched);
}

#[test]
fn a_damaged_log_costs_no_row_when_the_old_segment_is_gone() {
    check_log(History::GoneTooSoon);
}

#[test]
fn a_segment_that_a_salvaged_catalog_does_not_name_goes_to_quarantine() {
    let patient = Patient::of(&killed(History::Switched));
    let newer = "part-000/feat.v2.seg";
    // A page of the newer one is damaged too: the older one is whole, and counts.
    patient.damage(newer, 4 * PAGE + 100, 1);
    let kept = fs::read(patient.path(newer)).unwrap();
    for (log, _) in logs(&patient) {
        patient.damage(&log, 100, 1);
    }
    let report = patient.repair();
    assert!(patient.rows().iter().all(|(_, row)| row.is_some()), "{report:?}");
    assert!(!patient.path(newer).exists());
    assert_eq!(fs::read(patient.path("part-000/quarantine/feat.v2.seg.1")).unwrap(), kept);
    let graph = Graph::open(&patient.graph()).unwrap();
    drop(GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap());
    assert_eq!(fs::read(patient.path("part-000/quarantine/feat.v2.seg.1")).unwrap(), kept);
}

#[test]
fn a_later_segment_takes_the_place_of_one_that_is_missing() {
    let model = killed(History::Swept);
    let patient = Patient::of(&model);
    for part in PARTS {
        // An old copy is put back: it knows nothing of put, commit and compaction.
        patient.remove(&format!("{part}/catalog"));
        copy_all(&old_catalog(&model, part), &patient.path(&format!("{part}/catalog")));
    }
    let report = patient.repair();
    assert!(report.ok, "{report:?}");
    assert!(report.done[0].action.contains("later version"), "{report:?}");
    check_rows(&patient, "an old catalog");
    goes_on(&patient, "an old catalog");
}

/// Damages the logs of the first partition's catalog: what is left of it is of before the puts.
fn damage_logs(patient: &Patient) {
    for (log, _) in logs(patient) {
        patient.damage(&log, 100, 1);
    }
}

#[test]
fn a_later_segment_takes_the_place_of_a_damaged_or_missing_delta_beside_a_salvaged_catalog() {
    for is_gone in [false, true] {
        let patient = Patient::of(&killed(History::Switched));
        match is_gone {
            true => patient.remove("part-000/feat.v2.delta"),
            false => patient.damage("part-000/feat.v2.delta", 20, 4),
        }
        damage_logs(&patient);
        let report = patient.repair();
        assert!(report.lost.iter().all(|lost| !lost.file.contains("feat")), "{report:?}");
        check_rows(&patient, "salvaged");
        goes_on(&patient, "salvaged");
    }
}

#[test]
fn a_later_segment_that_is_brought_back_takes_the_place_of_a_placeholder() {
    let model = killed(History::Switched);
    let patient = Patient::of(&model);
    let (later, aside) = (patient.path("part-000/feat.v2.seg"), patient.dir.path().join("aside"));
    fs::rename(&later, &aside).unwrap();
    patient.remove("part-000/feat.v1.seg");
    patient.remove("part-000/feat.v2.delta");
    patient.remove("part-000/catalog");
    copy_all(&old_catalog(&model, "part-000"), &patient.path("part-000/catalog"));
    assert!(patient.repair().lost.iter().any(|lost| lost.rows == 500));
    fs::rename(&aside, &later).unwrap();
    let report = patient.repair();
    assert!(report.ok, "{report:?}");
    check_rows(&patient, "brought back");
}
