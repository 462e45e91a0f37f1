use std::fs;
use std::sync::Arc;

use lodestore_graph::PartId;
use lodestore_graph::edges::MemoryEdges;
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::topology::{Direction, TopologyOptions, write_topologies_with};

use super::findings::Findings;
use super::*;
use crate::codec::SegmentCodec;
use crate::embedded::EmbeddedStore;
use crate::file_system::{Access, Change};
use crate::fixture::{Ring, flip, identity, row};
use crate::graph::catalog_dir;
use crate::reader::OpenOptions;
use crate::segment::SegmentWriter;
use crate::update::{GraphHandle, OpenMode};

mod read_back;

#[test]
fn verify_names_every_damaged_file_and_page() {
    let ring = Ring::new(500, 2, 2);
    ring.import();
    let sound = ring.verify();
    // 250 rows of 99 bytes are 7 pages, 250 of 8 bytes one; two partitions.
    assert_eq!((sound.ok, sound.pages), (true, 16));
    let (page, segment) = (4096, "part-001/feat.v1.seg");
    let places = [
        (segment, 4 * page + 9, Some(3)),
        (segment, 100, None),
        (segment, 8 * page + 1, None),
        (segment, 9 * page + 1, None),
        ("part-000/external_id.v1.seg", page, Some(0)),
        ("part-000/topology.csr", page + 16, None),
        ("part-001/halo.bin", page + 4, None),
        ("graph.toml", 60, None),
        ("part-001/catalog/CURRENT", 3, None),
    ];
    for (file, offset, page) in places {
        let path = ring.out().join(file);
        flip(&path, offset);
        let report = ring.verify();
        flip(&path, offset);
        assert!(!report.ok && report.damaged.len() == 1, "{file} {offset}: {report:?}");
        let damage = &report.damaged[0];
        let folder = path.parent().unwrap().display().to_string();
        assert!(damage.file.starts_with(&folder), "{file} {offset}: {damage:?}");
        assert_eq!(damage.page, page, "{file} {offset}: {damage:?}");
    }
    flip(&ring.out().join(segment), 2 * page);
    flip(&ring.out().join(segment), 6 * page);
    let pages: Vec<_> = ring.verify().damaged.into_iter().map(|damage| damage.page).collect();
    assert_eq!(pages, [Some(1), Some(5)]);
}

#[test]
fn files_that_are_gone_or_in_each_others_place_are_found() {
    let ring = Ring::new(500, 2, 2);
    ring.import();
    let (a, b) = ("part-000/feat.v1.seg", "part-001/feat.v1.seg");
    for (a, b) in [(a, b), ("part-000/catalog", "part-001/catalog"), ("part-000", "part-001")] {
        let (a, b, spare) = (ring.out().join(a), ring.out().join(b), ring.dir.path().join("spare"));
        let swap = || {
            fs::rename(&a, &spare).and_then(|()| fs::rename(&b, &a)).unwrap();
            fs::rename(&spare, &b).unwrap();
        };
        swap();
        assert!(ring.verify().damaged.len() >= 2, "{} and {}", a.display(), b.display());
        assert!(EmbeddedStore::open(ring.out(), None).is_err());
        swap();
        fs::rename(&a, &spare).unwrap();
        assert!(!ring.verify().ok, "{} is gone", a.display());
        fs::rename(&spare, &a).unwrap();
        assert!(ring.verify().ok);
    }
}

#[test]
fn partitions_must_tell_the_same_of_their_edges() {
    let ring = Ring::new(500, 2, 2);
    ring.import();
    let graph = Graph::open(&ring.out()).unwrap();
    let (book, part) = (graph.book().clone(), PartId(1));
    let pairs: Vec<[u32; 2]> = (0..book.n_nodes()).map(|i| [i, i]).collect();
    let edges = MemoryEdges::new(pairs).unwrap();
    let owners = book.parts().flat_map(|part| book.range(part).map(move |_| part));
    let assignment: Vec<PartId> = owners.collect();
    let relabelling = Relabelling::new(&assignment, 2).unwrap();
    let (other, uuid) = (ring.dir.path().join("other"), *graph.uuid().as_bytes());
    let options = TopologyOptions { edge_ids: true, ..TopologyOptions::usual(Direction::Directed) };
    let path_of = |part: PartId| other.with_extension(part.to_string());
    write_topologies_with(&edges, &relabelling, &options, uuid, &path_of).unwrap();
    fs::rename(path_of(part), graph.topology_path(part)).unwrap();
    let report = ring.verify();
    let reasons: Vec<&str> = report.damaged.iter().map(|d| d.reason.as_str()).collect();
    let columns = "holds ids of its edges, the partitions before it nothing";
    assert!(reasons.contains(&columns), "{report:?}");
    assert!(report.damaged.iter().any(|d| d.file.ends_with("part-001/topology.csr")));
}

#[test]
fn a_damaged_description_hides_no_other_damage() {
    let ring = Ring::new(500, 2, 2);
    ring.import();
    flip(&ring.out().join("graph.toml"), 60);
    flip(&ring.out().join("part-001/feat.v1.seg"), 4 * 4096 + 9);
    let report = ring.verify();
    let files: Vec<&str> =
        report.damaged.iter().map(|d| d.file.rsplit('/').next().unwrap()).collect();
    assert_eq!(files, ["graph.toml", "feat.v1.seg"]);
    assert_eq!(report.pages, 16);
}

#[test]
fn a_catalog_that_is_gone_hides_no_damaged_rows() {
    let ring = Ring::new(500, 2, 2);
    ring.import();
    fs::remove_dir_all(ring.out().join("part-001/catalog")).unwrap();
    flip(&ring.out().join("part-001/feat.v1.seg"), 4 * 4096 + 9);
    let report = ring.verify();
    let pages: Vec<_> = report.damaged.iter().map(|damage| damage.page).collect();
    assert_eq!(pages, [None, Some(3)], "{report:?}");
    assert_eq!(report.pages, 16);
}

fn verify_with(dir: &Path, n_threads: usize) -> VerifyReport {
    verify_on(Arc::new(Disk), dir, n_threads, &mut |_, _| {}).unwrap()
}

#[test]
fn the_report_is_the_same_for_any_number_of_threads() {
    // 100 000 rows of 99 bytes: two stretches in each partition.
    let ring = Ring::new(200_000, 2, 2);
    ring.import();
    for (file, pages) in [("feat.v1.seg", [1u64, 3, 100, 2400].as_slice()), ("halo.bin", &[2])] {
        for part in ["part-000", "part-001"] {
            pages.iter().for_each(|page| flip(&ring.out().join(part).join(file), 4096 * page + 7));
        }
    }
    let one = verify_with(&ring.out(), 1);
    assert_eq!(one.damaged.len(), 10, "{:?}", one.damaged);
    for n_threads in [2, 3, 16] {
        assert_eq!(verify_with(&ring.out(), n_threads), one, "{n_threads} threads");
    }
}

#[test]
fn progress_counts_bytes_up_to_all_of_them() {
    let ring = Ring::new(60_000, 2, 2);
    ring.import();
    for n_threads in [1, 4] {
        let mut told = Vec::new();
        let mut tell = |done, total| told.push((done, total));
        let report = verify_on(Arc::new(Disk), &ring.out(), n_threads, &mut tell).unwrap();
        assert!(told.windows(2).all(|pair| pair[0].0 < pair[1].0), "{told:?}");
        let (done, total) = *told.last().unwrap();
        assert_eq!((done, done), (total, report.bytes));
        assert!(total > 60_000 * 99);
    }
}

#[test]
fn of_many_faults_in_a_file_the_first_are_listed_and_the_rest_are_counted() {
    let findings = Findings::default();
    let file = Path::new("a.seg");
    let n_faults = MAX_DAMAGES_PER_FILE as u64 + 7;
    for page in (0..n_faults).rev() {
        findings.add(2, file, Some(page), format!("damaged page {page}"));
    }
    findings.add(1, Path::new("b.seg"), None, "gone".to_owned());
    let report = findings.into_report();
    let pages: Vec<Option<u64>> = report.damaged[1..].iter().map(|damage| damage.page).collect();
    let expected: Vec<Option<u64>> = (0..MAX_DAMAGES_PER_FILE as u64).map(Some).collect();
    assert_eq!(pages[..expected.len()], expected);
    assert_eq!(report.damaged[0].reason, "gone");
    assert_eq!(report.damaged.last().unwrap().reason, "7 more faults");
}

#[test]
fn what_nothing_names_is_listed_and_is_no_damage() {
    let ring = Ring::new(50, 2, 2);
    ring.import();
    for name in ["part-000/feat.v0.seg", "part-001/.hidden", "notes.txt"] {
        fs::write(ring.out().join(name), b"x").unwrap();
    }
    fs::create_dir(ring.out().join("part-002")).unwrap();
    fs::create_dir(ring.out().join("part-001/quarantine")).unwrap();
    let report = ring.verify();
    assert!(report.ok, "{report:?}");
    let names = ["notes.txt", "part-000/feat.v0.seg", "part-001/.hidden", "part-002"];
    let expected = names.map(|name| ring.out().join(name).display().to_string());
    assert_eq!(report.unknown, expected);
}

/// Applies changes to the catalog of partition 0 of an imported graph and returns what is damaged.
fn with_changes(changes: &[Change]) -> Vec<String> {
    let ring = Ring::new(50, 2, 2);
    let graph = ring.import();
    let dir = catalog_dir(&graph.part_dir(PartId(0)));
    let pairs = Disk.key_values(&dir, Access::Write).unwrap();
    pairs.write(changes).unwrap();
    drop(pairs);
    let report = ring.verify();
    assert!(report.damaged.iter().all(|damage| damage.file.contains("part-000")), "{report:?}");
    report.damaged.into_iter().map(|damage| damage.reason).collect()
}

#[test]
fn a_catalog_that_says_what_cannot_be_is_damaged() {
    let key = |text: &str, numbers: &[u32]| {
        let mut key = text.as_bytes().to_vec();
        numbers.iter().for_each(|number| key.extend_from_slice(&number.to_be_bytes()));
        key
    };
    let put = |key: Vec<u8>, n_bytes: usize| Change::Put(key, vec![0; n_bytes]);
    // First version, format, uuid, rows, bytes of a row, digest, file.
    let delta = |kind: &str, (first, last): (u32, u32), n_rows: u32, row_bytes: u32| {
        let mut value = [first.to_le_bytes(), 2u32.to_le_bytes()].concat();
        value.extend_from_slice(&[7; 16]);
        value.extend_from_slice(&[n_rows.to_le_bytes(), row_bytes.to_le_bytes()].concat());
        value.extend_from_slice(&[7; 32]);
        value.extend_from_slice(format!("feat.v{last}.delta").as_bytes());
        Change::Put(key(kind, &[last]), value)
    };
    assert_eq!(with_changes(&[put(key("overlay/feat/", &[2, 24]), 99)]), [""; 0]);
    let cases = [
        (put(key("overlay/feat/", &[2, 25]), 99), "pending row 25 of `feat` for version 2"),
        (put(key("overlay/feat/", &[4, 1]), 99), "expected rows below 25, for versions up to 3"),
        (put(key("overlay/feat/", &[2, 1]), 98), "expected 99 bytes, found 98"),
        (put(key("overlay/none/", &[2, 1]), 99), "there is no such tensor"),
        (put(key("segment/none/", &[1]), 99), "there is no such tensor"),
        (put(key("segment/feat/", &[1]), 20), "record of `feat`"),
        (put(key("delta/none/", &[1]), 99), "there is no such tensor"),
        (put(key("delta/feat/", &[1]), 20), "delta of `feat`"),
        (delta("delta/feat/", (2, 2), 3, 99), "expected a version up to 1"),
        (delta("delta/feat/", (1, 1), 0, 99), "expected 1 to 25 rows of 99 bytes"),
        (delta("delta/feat/", (1, 1), 26, 99), "expected 1 to 25 rows of 99 bytes"),
        (delta("delta/feat/", (1, 1), 3, 98), "expected 1 to 25 rows of 99 bytes"),
        (put(key("prepared/none/", &[2]), 99), "there is no such tensor"),
        (put(key("prepared/feat/", &[2]), 20), "prepared delta of `feat`"),
        (delta("prepared/feat/", (3, 3), 3, 99), "expected version 2"),
        (Change::Put(b"prepared".to_vec(), 3u32.to_le_bytes().to_vec()), "expected 2, found 3"),
        (put(b"prepared".to_vec(), 3), "expected 2, found none"),
        (put(key("overlay/feat/", &[2]), 99), "the unknown key"),
        (put(b"colour".to_vec(), 1), "the unknown key \"colour\""),
        (put(b"graph".to_vec(), 1), "its copy of graph.toml is another"),
        (put(b"version".to_vec(), 3), "no current version"),
        (Change::Delete(key("segment/feat/", &[1])), "no segment of `feat`"),
    ];
    for (change, reason) in cases {
        let reasons = with_changes(std::slice::from_ref(&change));
        assert!(reasons.iter().any(|found| found.contains(reason)), "{change:?}: {reasons:?}");
    }
}

#[test]
fn rows_put_over_segments_are_checked_with_the_rest() {
    let ring = Ring::new(50, 2, 2);
    let graph = ring.import();
    let live = GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap();
    let ids: Vec<_> = (0..50).map(lodestore_graph::NodeId).collect();
    live.put_rows("feat", &ids, &vec![7; 50 * 99]).unwrap();
    live.commit_version().unwrap();
    drop(live);
    assert!(ring.verify().ok, "{:?}", ring.verify());
}

/// Returns the faults of a compressed segment of 2 000 rows, in stretches of `per_stretch` pages.
fn faults_in_stretches(segment: &Segment, per_stretch: u64) -> Vec<(u64, String)> {
    let (mut faults, mut buffer) = (Vec::new(), Vec::new());
    let n_pages = segment.layout().n_pages();
    for first in (0..n_pages).step_by(per_stretch as usize) {
        let pages = first..n_pages.min(first + per_stretch);
        rows::check(segment, pages, &mut buffer, &mut |page, error| {
            faults.push((page, error.to_string()));
        });
    }
    faults
}

#[test]
fn row_groups_are_unpacked_once_wherever_stretches_meet() {
    let dir = tempfile::tempdir().unwrap();
    let (path, identity) = (dir.path().join("a.seg"), identity(2000, 99));
    let codec = SegmentCodec::Zstd { group_rows: 20 };
    let mut writer = SegmentWriter::create(&Disk, &path, &identity, codec).unwrap();
    for i in 0..2000 {
        writer.write_rows(&row(i, 99)).unwrap();
    }
    writer.finish().unwrap();
    let segment = Segment::open(&Disk, &path, &identity).unwrap();
    let n_pages = segment.layout().n_pages();
    assert!(n_pages > 4, "{n_pages} pages");
    for per_stretch in 1..=n_pages {
        assert_eq!(faults_in_stretches(&segment, per_stretch), []);
    }
    flip(&path, 4096 * 3 + 100);
    for per_stretch in 1..=n_pages {
        let faults = faults_in_stretches(&segment, per_stretch);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].0 == 2 && faults[0].1.contains("damaged page 2"), "{faults:?}");
    }
}
