use super::Outcome::Whole;
use super::*;
use crate::catalog::Catalog;
use crate::file_system::{Access, Change};

#[test]
fn graph_toml_is_written_again_from_its_copies() {
    for damage in [
        &|p: &Patient| p.damage("graph.toml", 30, 1) as _,
        &|p: &Patient| p.cut("graph.toml", 100),
        &|p: &Patient| p.remove("graph.toml"),
        &|p: &Patient| {
            p.remove("graph.toml");
            p.remove("part-001/halo.bin");
            p.damage("part-000/feat.v1.seg", 0, 100);
        },
    ] as [&dyn Fn(&Patient); 4]
    {
        check(plain(), damage, Whole, "graph.toml");
        check(updated(), damage, Whole, "graph.toml");
    }
}

#[test]
fn under_the_description_of_another_graph_nothing_is_touched() {
    let other = import();
    for model in [plain(), updated()] {
        let patient = Patient::of(model);
        let was = patient.rows();
        let foreign = other.path().join("graph.toml");
        assert!(fs::copy(foreign, patient.path("graph.toml")).unwrap() > 0);
        let report = patient.repair();
        assert!(!report.ok && report.done.is_empty() && report.quarantined.is_empty());
        for part in ["part-000", "part-001"] {
            let is_of = |lost: &&Lost| lost.file.ends_with(&format!("{part}/catalog"));
            let lost = report.lost.iter().find(is_of).unwrap_or_else(|| panic!("{report:?}"));
            let told = "if `graph.toml` is of another graph, move it away first";
            assert!(lost.reason.contains(told), "{report:?}");
        }
        patient.remove("graph.toml");
        let report = patient.repair();
        assert!(report.ok && report.done.len() == 1, "{report:?}");
        assert_eq!(patient.rows(), was);
        assert!(patient.verify().ok);
    }
}

#[test]
fn without_copies_a_lost_description_is_refused_and_nothing_is_touched() {
    // A graph as older releases made it.
    let patient = Patient::of(plain());
    for part in ["part-000/catalog", "part-001/catalog"] {
        let pairs = Disk.key_values(&patient.path(part), Access::Write).unwrap();
        pairs.write(&[Change::Delete(b"graph".to_vec())]).unwrap();
    }
    assert!(patient.verify().ok);
    let (was, saved) = (patient.rows(), fs::read(patient.path("graph.toml")).unwrap());
    patient.remove("graph.toml");
    // What could be repaired is not, either.
    patient.remove("part-001/halo.bin");
    let before = contents(&patient.graph());
    let error = repair(&patient.graph(), RepairMode::Apply, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, StoreError::Unrepairable { .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains("graph.toml") && error.contains("other machines"), "{error}");
    let after = contents(&patient.graph());
    let is_ours = |path: &&String| !path.contains("/catalog/");
    assert!(before.keys().filter(is_ours).eq(after.keys().filter(is_ours)));
    fs::write(patient.path("graph.toml"), saved).unwrap();
    assert!(patient.repair().ok);
    assert_eq!(patient.rows(), was);
}

#[test]
fn catalogs_with_different_copies_of_the_description_are_refused() {
    let patient = Patient::of(plain());
    patient.remove("graph.toml");
    patient.remove("part-001");
    copy_all(&import().path().join("part-001"), &patient.path("part-001"));
    let error =
        repair(&patient.graph(), RepairMode::Apply, &mut |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("several graphs"), "{error}");
    assert!(!patient.path("graph.toml").exists());
}

#[test]
fn nothing_of_a_later_format_is_touched() {
    let patient = Patient::of(plain());
    let text = fs::read_to_string(patient.path("graph.toml")).unwrap();
    let body = text.split_once('\n').unwrap().1.replace("format_version = 1", "format_version = 9");
    let crc = crc32fast::hash(body.as_bytes());
    fs::write(patient.path("graph.toml"), format!("checksum = \"{crc:08x}\"\n{body}")).unwrap();
    let error = repair(&patient.graph(), RepairMode::Apply, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, StoreError::NewerFormat { found: 9, .. }), "{error}");
    let delta = "part-000/feat.v3.delta";
    for (name, version_at) in [
        ("part-000/feat.v1.seg", 8),
        ("part-000/topology.csr", 8),
        ("part-000/halo.bin", 8),
        (delta, 8),
    ] {
        let patient = Patient::of(updated());
        let mut bytes = fs::read(patient.path(name)).unwrap();
        bytes[version_at] = 9;
        let crc = crc32fast::hash(&bytes[..4092]).to_le_bytes();
        bytes[4092..4096].copy_from_slice(&crc);
        fs::write(patient.path(name), &bytes).unwrap();
        let error = repair(&patient.graph(), RepairMode::Apply, &mut |_, _| {}).unwrap_err();
        assert!(matches!(error, StoreError::NewerFormat { found: 9, .. }), "{name}: {error}");
        assert!(fs::read(patient.path(name)).unwrap() == bytes);
    }
    // What can be repaired is not, either, and wherever the later format is.
    let patient = Patient::of(plain());
    patient.damage("part-000/feat.v1.seg", 0, 100);
    let body = "format_version = 9\n";
    let text = format!("checksum = \"{:08x}\"\n{body}", crc32fast::hash(body.as_bytes()));
    let path = patient.path("part-001/feat.v1.seg");
    let mut bytes = fs::read(&path).unwrap();
    let sound = bytes.clone();
    bytes[8] = 9;
    let crc = crc32fast::hash(&bytes[..4092]).to_le_bytes();
    bytes[4092..4096].copy_from_slice(&crc);
    fs::write(&path, &bytes).unwrap();
    let refused = |what: &str| {
        let before = contents(&patient.graph());
        let error = repair(&patient.graph(), RepairMode::Apply, &mut |_, _| {}).unwrap_err();
        assert!(matches!(error, StoreError::NewerFormat { .. }), "{what}: {error}");
        let after = contents(&patient.graph());
        for (path, bytes) in before.iter().filter(|(path, _)| !path.contains("/catalog/")) {
            assert!(after.get(path) == Some(bytes), "{what}: {path}");
        }
    };
    refused("segment");
    fs::write(&path, &sound).unwrap();
    fs::write(patient.path("device.toml"), text).unwrap();
    refused("device.toml");
    patient.remove("device.toml");
    let lost = [b"lost/feat/".as_slice(), &1u32.to_be_bytes()].concat();
    let pairs = Disk.key_values(&patient.path("part-001/catalog"), Access::Write).unwrap();
    pairs.write(&[Change::Put(lost.clone(), 9u32.to_le_bytes().to_vec())]).unwrap();
    drop(pairs);
    refused("lost");
    // Although its identity cannot be read.
    let pairs = Disk.key_values(&patient.path("part-001/catalog"), Access::Write).unwrap();
    pairs.write(&[Change::Delete(b"identity".to_vec())]).unwrap();
    drop(pairs);
    refused("lost, in a catalog without identity");
    let patient = Patient::of(plain());
    let dir = patient.path("part-001/catalog");
    let pairs = Disk.key_values(&dir, Access::Write).unwrap();
    let mut identity = pairs.get(b"identity").unwrap().unwrap();
    identity[0] = 9;
    pairs.write(&[Change::Put(b"identity".to_vec(), identity)]).unwrap();
    drop(pairs);
    let error = repair(&patient.graph(), RepairMode::Apply, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, StoreError::NewerFormat { found: 9, .. }), "{error}");
    assert!(Catalog::open_unchecked(&Disk, &dir, Access::Read).is_ok(), "it is where it was");
}

#[test]
fn a_writer_keeps_repair_out() {
    let patient = Patient::of(plain());
    let graph = Graph::open(&patient.graph()).unwrap();
    let live = GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap();
    let error = repair(&patient.graph(), RepairMode::Apply, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }), "{error}");
    // Whatever has become of the catalog that it writes to.
    let current = patient.path("part-000/catalog/CURRENT");
    fs::rename(&current, patient.path("CURRENT")).unwrap();
    let error = repair(&patient.graph(), RepairMode::Apply, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }), "{error}");
    fs::rename(patient.path("CURRENT"), &current).unwrap();
    assert!(!patient.path("part-000/quarantine").exists());
    live.put_rows("feat", &[NodeId(1)], &[1; 99]).unwrap();
    drop(live);
    assert!(repair(&patient.graph(), RepairMode::Apply, &mut |_, _| {}).unwrap().ok);
}

#[test]
fn a_repair_keeps_others_out_also_where_the_catalog_is_gone() {
    let patient = Patient::of(plain());
    patient.remove("part-000/catalog");
    let mut n_refused = 0;
    let mut second = |_, _| {
        let error = repair(&patient.graph(), RepairMode::Apply, &mut |_, _| {}).unwrap_err();
        assert!(matches!(error, StoreError::Locked { .. }), "{error}");
        let graph = Graph::open(&patient.graph()).unwrap();
        let part = Some([PartId(0)].as_slice());
        let live = GraphHandle::open(graph, part, OpenMode::Write, &OpenOptions::default());
        assert!(matches!(live, Err(StoreError::Locked { .. })));
        n_refused += 1;
    };
    repair(&patient.graph(), RepairMode::Apply, &mut second).unwrap();
    assert_eq!(n_refused, 3);
}

#[test]
fn a_damaged_profile_goes_out_of_the_way() {
    let write =
        |p: &Patient| fs::write(p.path("device.toml"), "checksum = \"00000000\"\n").unwrap();
    let report = check(plain(), &write, Whole, "device.toml");
    assert!(report.quarantined[0].to.ends_with("quarantine/device.toml.1"), "{report:?}");
}
