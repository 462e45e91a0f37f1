use std::fs;
use std::path::Path;

use lodestore_graph::NodeId;
use lodestore_graph::npy::NpyType;

use super::*;
use crate::fixture::{Ring, files, npy};
use crate::source::{DenseSource, SourceError};

#[test]
fn what_exists_is_never_overwritten() {
    let ring = Ring::new(3, 1, 1);
    for make in [
        |path: &Path| fs::create_dir(path),
        |path: &Path| fs::write(path, b"mine"),
        |path: &Path| std::os::unix::fs::symlink("nowhere", path),
    ] {
        make(&ring.out()).unwrap();
        let refused = Importer::begin(&ring.out()).unwrap_err();
        assert!(matches!(refused, ImportError::Exists { .. }), "{refused}");
        assert_eq!(ring.names(), ["graph"]);
        let removed = fs::remove_dir(ring.out()).or_else(|_| fs::remove_file(ring.out()));
        removed.unwrap();
    }
    // The place is taken while the import runs.
    let importer = ring.begin();
    fs::create_dir(ring.out()).unwrap();
    let refused = ring.commit(importer).unwrap_err();
    assert!(matches!(refused, ImportError::Exists { .. }), "{refused}");
    assert_eq!(ring.names(), ["graph"]);
    assert_eq!(fs::read_dir(ring.out()).unwrap().count(), 0);
}

#[test]
fn a_failed_import_leaves_nothing_behind() {
    let ring = Ring::new(40, 2, 2);
    let add = |importer: &mut Importer, source: &dyn TensorSource| {
        let before = files(importer.staging_dir());
        let error = ring.add(importer, source).unwrap_err();
        (error, before == files(importer.staging_dir()))
    };
    let mut importer = ring.begin();
    let (error, untouched) = add(&mut importer, &ring.features(39));
    let found = matches!(error, ImportError::Source(SourceError::RowCount { found: 39, .. }));
    assert!(found && untouched, "{error}");
    ring.add(&mut importer, &ring.features(40)).unwrap();
    let (error, untouched) = add(&mut importer, &ring.features(40));
    assert!(matches!(error, ImportError::DuplicateTensor { .. }) && untouched, "{error}");
    assert_eq!(ring.names().len(), 1, "the staging folder alone");
    drop(importer);
    assert!(ring.names().is_empty());
    let nowhere = Importer::begin(&ring.out().join("deeper")).unwrap_err();
    assert!(nowhere.to_string().contains("cannot create"), "{nowhere}");
    assert!(ring.names().is_empty());
}

#[test]
fn the_external_ids_have_their_name_for_themselves() {
    let ring = Ring::new(4, 1, 1);
    let mut importer = ring.begin();
    let source = ring.features(4);
    let (name, options) = (EXTERNAL_ID_TENSOR, TensorOptions::default());
    let added = importer.add_tensor(name, &source, options, &ring.nodes, &mut |_, _| {});
    assert!(matches!(added, Err(ImportError::DuplicateTensor { .. })));
}

#[test]
fn nan_is_refused_by_row_and_column_or_kept_on_purpose() {
    let ring = Ring::new(6, 2, 2);
    let mut values = [0.5f32; 18];
    values[13] = f32::from_bits(0x7fc0_0bad);
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let path = npy(ring.dir.path().join("nan.npy"), NpyType::F32, &[6, 3], &bytes);
    let source = DenseSource::open_npy(&path).unwrap();
    let mut importer = ring.begin();
    let error = ring.add(&mut importer, &source).unwrap_err();
    let place = matches!(error, ImportError::Source(SourceError::Nan { row: 4, column: 1, .. }));
    assert!(place, "{error}");
    drop(importer);
    assert!(ring.names().is_empty());
    let mut importer = ring.begin();
    let keep = TensorOptions { nan: NanPolicy::Keep, ..TensorOptions::default() };
    importer.add_tensor("feat", &source, keep, &ring.nodes, &mut |_, _| {}).unwrap();
    let store = EmbeddedStore::from_graph(ring.commit(importer).unwrap(), None).unwrap();
    let mut out = [0; 12];
    store.gather("feat", &[NodeId(ring.nodes.internal_of[4])], &mut out).unwrap();
    assert_eq!(out, bytes[48..60]);
}

#[test]
fn progress_counts_every_row_once() {
    let ring = Ring::new(50, 3, 3);
    let (mut importer, mut last) = (ring.begin(), 0);
    let source = ring.features(50);
    let mut progress = |done, total| {
        assert!(done > last && done <= total && total == 50);
        last = done;
    };
    let options = TensorOptions::default();
    importer.add_tensor("feat", &source, options, &ring.nodes, &mut progress).unwrap();
    assert_eq!(last, 50);
}
