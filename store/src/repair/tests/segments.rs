use super::Outcome::{Lost, Whole};
use super::*;
use crate::codec::SegmentCodec;

const FEAT: &str = "part-000/feat.v1.seg";
const PACKED: &str = "part-001/packed.v1.seg";

/// Offsets of the tables and of the footer.
fn places(name: &str) -> (u64, u64) {
    let bytes = Patient::of(plain()).bytes(name);
    let n_table_pages = if name.ends_with("feat.v1.seg") { 1 } else { 2 };
    (bytes - (1 + n_table_pages) * PAGE, bytes - PAGE)
}

#[test]
fn a_damaged_header_footer_or_table_is_rebuilt() {
    for name in [FEAT, PACKED] {
        let (tables, footer) = places(name);
        for (offset, n_bytes) in
            [(0, 4096), (0, 8), (60, 1), (4092, 4), (tables, 4096), (tables, 4), (tables + 7, 1)]
        {
            check(plain(), &|p| p.damage(name, offset, n_bytes), Whole, "head or table");
        }
        for (offset, n_bytes) in [(footer, 4096), (footer, 8), (footer + 50, 1), (footer + 9, 1)] {
            check(plain(), &|p| p.damage(name, offset, n_bytes), Whole, "footer");
        }
        // Padding of the table and of the last page.
        check(plain(), &|p| p.damage(name, tables + 4000, 1), Whole, "padding");
    }
    // The index of the row groups.
    let (tables, _) = places(PACKED);
    for (offset, n_bytes) in [(tables + PAGE, 4096), (tables + PAGE + 5, 1), (tables, 8192)] {
        check(plain(), &|p| p.damage(PACKED, offset, n_bytes), Whole, "index");
    }
}

#[test]
fn damaged_pages_stay_and_every_other_row_is_served() {
    // Page 3 holds bytes 12 288 to 16 384 of rows of 99 bytes: rows 124 to 165.
    let report = check(plain(), &|p| p.damage(FEAT, 4 * PAGE + 100, 1), Lost(42), "one page");
    assert_eq!(report.lost[0].nodes, [[124, 166]]);
    assert_eq!((report.done.len(), report.quarantined.len()), (0, 0));
    // Pages 3 and 4: rows 124 to 206.
    check(plain(), &|p| p.damage(FEAT, 5 * PAGE - 10, 20), Lost(83), "two pages");
    let report = check(plain(), &|p| p.damage(PACKED, PAGE + 7, 1), Lost(report_rows()), "zstd");
    assert_eq!(report.lost[0].tensor.as_deref(), Some("packed"));
}

/// Returns the rows of `packed` on page 0 of partition 1.
fn report_rows() -> usize {
    let graph = Graph::open(&plain().path()).unwrap();
    let segment = graph.segment(PartId(1), "packed").unwrap();
    let rows = segment.layout().rows_on(&(0..1));
    (rows.end - rows.start) as usize
}

#[test]
fn a_file_that_was_cut_or_extended_gets_its_length_back() {
    for name in [FEAT, PACKED] {
        let whole = Patient::of(plain()).bytes(name);
        let (tables, footer) = places(name);
        for cut in [whole - 1, footer, footer - 1, tables + 1, tables] {
            check(plain(), &|p| p.cut(name, cut), Whole, "cut in the tables");
        }
        check(plain(), &|p| p.cut(name, whole + 1), Whole, "one byte more");
        check(plain(), &|p| p.cut(name, whole + 3 * PAGE), Whole, "pages more");
    }
    // Without its tables nothing proves the pages that are left.
    let (tables, _) = places(FEAT);
    for cut in [tables - PAGE, 5 * PAGE, PAGE, 10, 0] {
        let report = check(plain(), &|p| p.cut(FEAT, cut), Lost(500), "cut in the rows");
        assert_eq!(report.lost[0].rows, 500);
    }
}

#[test]
fn a_segment_that_is_gone_fails_its_rows_until_it_is_brought_back() {
    for name in [FEAT, PACKED] {
        let patient = Patient::of(plain());
        let (was, saved) = (patient.rows(), fs::read(patient.path(name)).unwrap());
        patient.remove(name);
        let report = patient.repair();
        assert!(!report.ok);
        assert_eq!(lost_rows(&was, &patient.rows(), &report), 500);
        assert!(patient.bytes(name) <= 5 * PAGE, "a stub is small");
        fs::write(patient.path(name), &saved).unwrap();
        let report = patient.repair();
        assert!(report.ok, "{report:?}");
        assert_eq!(patient.rows(), was);
        assert!(patient.verify().ok);
    }
}

#[test]
fn a_file_that_is_brought_back_with_a_bad_page_has_all_other_rows_back() {
    let patient = Patient::of(plain());
    let (was, saved) = (patient.rows(), fs::read(patient.path(FEAT)).unwrap());
    patient.remove(FEAT);
    patient.repair();
    fs::write(patient.path(FEAT), &saved).unwrap();
    // The page, and a header that must be rebuilt too.
    patient.damage(FEAT, 4 * PAGE + 100, 1);
    patient.damage(FEAT, 0, 100);
    let report = patient.repair();
    assert_eq!(lost_rows(&was, &patient.rows(), &report), 42, "{report:?}");
    fs::write(patient.path(FEAT), &saved).unwrap();
    assert!(patient.repair().ok);
    assert_eq!(patient.rows(), was);
}

#[test]
fn a_segment_that_no_digest_proves_is_kept_in_quarantine_until_it_is_brought_back() {
    let (tables, _) = places(FEAT);
    let patient = Patient::of(plain());
    let (was, saved) = (patient.rows(), fs::read(patient.path(FEAT)).unwrap());
    // Entry and page of page 2 are damaged, so that no digest knows the table.
    patient.damage(FEAT, tables + 8, 4);
    patient.damage(FEAT, 3 * PAGE, 8);
    let damaged = fs::read(patient.path(FEAT)).unwrap();
    let report = patient.repair();
    assert_eq!(lost_rows(&was, &patient.rows(), &report), 500, "{report:?}");
    let reason = &report.lost[0].reason;
    assert!(reason.contains("page table") && reason.contains("from a replica"), "{report:?}");
    let kept = patient.path("part-000/quarantine/feat.v1.seg.1");
    assert_eq!(fs::read(kept).unwrap(), damaged);
    fs::write(patient.path(FEAT), &saved).unwrap();
    assert!(patient.repair().ok);
    assert_eq!(patient.rows(), was);
    assert!(patient.verify().ok);
}

#[test]
fn rows_put_over_lost_ones_are_served() {
    let patient = Patient::of(plain());
    patient.remove(FEAT);
    patient.repair();
    let graph = Graph::open(&patient.graph()).unwrap();
    let live = GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap();
    let ids: Vec<NodeId> = (0..500).map(NodeId).collect();
    live.put_rows("feat", &ids, &vec![9; 500 * 99]).unwrap();
    live.commit_version().unwrap();
    live.compact(None, None, crate::update::Folding::All, &mut |_, _| {
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    drop(live);
    assert!(patient.verify().ok, "{:?}", patient.verify());
    let rows = patient.rows();
    assert!((0..500).all(|id| rows[&("feat".to_owned(), id)] == Some(vec![9; 99])));
    // As it was imported, and not in the large groups of what stood for it.
    let graph = Graph::open(&patient.graph()).unwrap();
    assert_eq!(graph.segment(PartId(0), "feat").unwrap().codec(), SegmentCodec::Raw);
}

#[test]
fn long_rows_put_over_lost_ones_are_stored_as_serves_them_best() {
    const WIDTH: usize = 600_000;
    let ring = Ring::new(4, 2, 2);
    let mut importer = ring.begin();
    let noise: Vec<u8> =
        (0..4 * WIDTH as u64).map(|i| lodestore_graph::splitmix64(i) as u8).collect();
    let file = npy(ring.dir.path().join("long.npy"), NpyType::U8, &[4, WIDTH as u64], &noise);
    ring.add(&mut importer, &DenseSource::open_npy(&file).unwrap()).unwrap();
    let graph = ring.commit(importer).unwrap();
    let codec_of = |graph: &Graph| graph.segment(PartId(0), "feat").unwrap().codec();
    assert_eq!(codec_of(&graph), SegmentCodec::Raw);
    fs::remove_file(ring.out().join("part-000/feat.v1.seg")).unwrap();
    repair(&ring.out(), RepairMode::Apply, &mut |_, _| {}).unwrap();
    // A group of one row each, as such rows are stored that shrink.
    assert_eq!(codec_of(&graph), SegmentCodec::zstd_for(WIDTH));
    let live = GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap();
    for id in 0..2 {
        live.put_rows("feat", &[NodeId(id)], &noise[id as usize * WIDTH..][..WIDTH]).unwrap();
    }
    live.commit_version().unwrap();
    live.compact(None, None, crate::update::Folding::All, &mut |_, _| {
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(codec_of(live.graph()), SegmentCodec::Raw);
}

#[test]
fn a_sound_segment_that_is_not_the_recorded_one_is_not_believed() {
    let other = import();
    let from_other = |p: &Patient| {
        fs::copy(other.path().join(FEAT), p.path(FEAT)).unwrap();
    };
    let report = check(plain(), &from_other, Lost(500), "of another graph");
    assert_eq!(
        report.quarantined[0].to,
        report.quarantined[0].from.replace("feat.v1.seg", "quarantine/feat.v1.seg.1")
    );
    // The same segment with other rows under tables of its own.
    let forged = |p: &Patient| {
        let graph = Graph::open(&p.graph()).unwrap();
        let identity = graph.segment(PartId(0), "feat").unwrap().identity().clone();
        p.remove(FEAT);
        let codec = SegmentCodec::Raw;
        let mut writer =
            crate::segment::SegmentWriter::create(&Disk, &p.path(FEAT), &identity, codec).unwrap();
        writer.write_rows(&[7; 500 * 99]).unwrap();
        writer.finish().unwrap();
    };
    check(plain(), &forged, Lost(500), "of another time");
}
