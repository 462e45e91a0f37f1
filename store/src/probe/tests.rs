use super::*;

fn quick() -> ProbeOptions {
    ProbeOptions { scratch_bytes: Some(8 << 20), duration: Duration::from_millis(500) }
}

#[test]
fn a_probe_measures_every_cell_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut stages = std::collections::BTreeMap::new();
    let report = probe(dir.path(), &quick(), &mut |stage, done, total| {
        assert!(done <= total);
        stages.insert(stage.to_owned(), (done, total));
    })
    .unwrap();
    assert!(stages.values().all(|(done, total)| done == total), "{stages:?}");
    assert_eq!(stages.len(), 2);
    assert!(report.profile().is_sensible());
    assert_eq!((report.file_bytes, report.written), (8 << 20, true));
    // 1 MiB comes at depths 1, 4, 16 and 32, 512 KiB also at 64, the rest at all six.
    assert_eq!(report.cells.len(), 7 * 6 + 5 + 4);
    for cell in &report.cells {
        assert!(cell.iops > 0.0 && cell.p50_us > 0.0 && cell.p99_us >= cell.p50_us, "{cell:?}");
        let bytes_per_s = cell.iops * cell.request_bytes as f64;
        assert!((cell.bytes_per_s / bytes_per_s - 1.0).abs() < 1e-9);
    }
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
}

#[test]
fn a_file_that_is_there_is_read_and_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let bytes = vec![7; (5 << 20) + 1];
    std::fs::write(&path, &bytes).unwrap();
    let report = probe(&path, &quick(), &mut |_, _, _| {}).unwrap();
    assert_eq!((report.file_bytes, report.written), (5 << 20, false));
    assert!(report.profile().is_sensible());
    assert!(std::fs::read(&path).unwrap() == bytes);
    std::fs::write(&path, &bytes[..1000]).unwrap();
    let error = probe(&path, &quick(), &mut |_, _, _| {}).unwrap_err().to_string();
    assert!(error.contains("too small"), "{error}");
}

#[test]
fn a_file_system_in_memory_is_measured_too() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    let report = probe(dir.path(), &quick(), &mut |_, _, _| {}).unwrap();
    assert!(report.profile().is_sensible());
}

#[test]
fn threads_measure_where_there_is_no_ring() {
    let dir = tempfile::tempdir().unwrap();
    let subject = subject::write(dir.path(), Some(8 << 20), &mut |_, _, _| {}).unwrap();
    let mut arena = Arena::new(MEMORY_BYTES).unwrap();
    let mut threads = WorkerQueue::new(Arc::clone(&subject.file), &mut arena);
    let duration = Duration::from_millis(200);
    let cells =
        measure_on(dir.path(), &mut threads, subject.n_bytes, duration, &mut |_, _, _| {}).unwrap();
    assert!(cells.iter().all(|cell| cell.depth <= 64 && cell.iops > 0.0));
    assert!(fit(&cells).is_some());
}

#[test]
fn no_room_and_no_folder_are_errors_that_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let small = ProbeOptions { scratch_bytes: Some(1 << 20), ..quick() };
    let error = probe(dir.path(), &small, &mut |_, _, _| {}).unwrap_err().to_string();
    assert!(error.contains("too small"), "{error}");
    let error = probe(&dir.path().join("none"), &quick(), &mut |_, _, _| {}).unwrap_err();
    assert!(error.to_string().contains("none"), "{error}");
}
