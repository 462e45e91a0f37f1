//! Two faults in one segment, in every combination of its parts.

use super::Outcome::{Lost, Whole};
use super::*;

const FEAT: &str = "part-001/feat.v1.seg";
const PACKED: &str = "part-000/packed.v1.seg";

/// A part of a segment, damaged in one of several ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Header,
    Page,
    Table,
    Index,
    Footer,
    Catalog,
}

fn damage(patient: &Patient, name: &str, part: Part) {
    let bytes = patient.bytes(name);
    let n_table_pages = if name == FEAT { 1 } else { 2 };
    let tables = bytes - (1 + n_table_pages) * PAGE;
    match part {
        Part::Header => patient.damage(name, 0, 4096),
        // Page 2 of the 13 pages of raw rows; the table's entry of page 0 is the one damaged below.
        Part::Page if name == FEAT => patient.damage(name, 3 * PAGE + 100, 1),
        Part::Page => patient.damage(name, 2 * PAGE + 100, 1),
        Part::Table => patient.damage(name, tables, 4),
        Part::Index => patient.damage(name, tables + PAGE, 4096),
        Part::Footer => patient.damage(name, bytes - PAGE, 4096),
        Part::Catalog => patient.remove(&format!("{}/catalog", &name[..8])),
    }
}

/// Returns rows on the page that is damaged.
fn rows_on_page(name: &str) -> usize {
    let graph = Graph::open(&plain().path()).unwrap();
    let (part, tensor, page) =
        if name == FEAT { (PartId(1), "feat", 2) } else { (PartId(0), "packed", 1) };
    let segment = graph.segment(part, tensor).unwrap();
    let rows = segment.layout().rows_on(&(page..page + 1));
    (rows.end - rows.start) as usize
}

#[test]
fn two_faults_in_a_raw_segment() {
    use Part::{Catalog, Footer, Header, Page, Table};
    let on_page = rows_on_page(FEAT);
    let all = [Header, Page, Table, Footer, Catalog];
    for (i, &a) in all.iter().enumerate() {
        for &b in &all[i + 1..] {
            let pair = [a, b];
            let expected = match pair {
                // Nothing is left that proves the segment.
                [Header | Table | Footer, Catalog] => continue,
                _ if pair.contains(&Page) => Lost(on_page),
                _ => Whole,
            };
            let both = |p: &Patient| pair.iter().for_each(|&part| damage(p, FEAT, part));
            check(plain(), &both, expected, &format!("{pair:?}"));
        }
    }
}

#[test]
fn a_segment_that_is_not_whole_beside_a_lost_catalog_is_reported_and_nothing_is_touched() {
    for part in [Part::Header, Part::Table, Part::Footer] {
        let patient = Patient::of(updated());
        let was = patient.rows();
        let sound = fs::read(patient.path(FEAT)).unwrap();
        damage(&patient, FEAT, part);
        damage(&patient, FEAT, Part::Catalog);
        let report = patient.repair();
        assert!(!report.ok && report.done.is_empty() && report.quarantined.is_empty());
        let [lost] = &report.lost[..] else { panic!("{part:?}: {report:?}") };
        assert!(lost.file.ends_with("part-001/catalog"), "{part:?}: {lost:?}");
        assert!(lost.reason.contains("of `feat`: nothing here is changed"), "{lost:?}");
        assert!(lost.reason.contains("from a replica"), "{lost:?}");
        assert!(!patient.verify().ok);
        fs::write(patient.path(FEAT), sound).unwrap();
        let report = patient.repair();
        assert!(report.lost.iter().all(|lost| lost.tensor.is_none()), "{part:?}: {report:?}");
        assert_eq!(patient.rows(), was, "{part:?}");
    }
}

#[test]
fn two_faults_in_a_compressed_segment() {
    use Part::{Footer, Header, Index, Page, Table};
    let on_page = rows_on_page(PACKED);
    let all = [Header, Page, Table, Index, Footer];
    for (i, &a) in all.iter().enumerate() {
        for &b in &all[i + 1..] {
            let pair = [a, b];
            let expected = match pair {
                // Groups cannot be followed over a page that is damaged.
                [Page, Index] => Lost(500),
                _ if pair.contains(&Page) => Lost(on_page),
                _ => Whole,
            };
            let both = |p: &Patient| pair.iter().for_each(|&part| damage(p, PACKED, part));
            check(plain(), &both, expected, &format!("{pair:?}"));
        }
    }
}

#[test]
fn without_header_footer_and_table_the_digest_proves_a_segment_from_its_rows() {
    for name in [FEAT, PACKED] {
        let all = |p: &Patient| {
            [Part::Header, Part::Table, Part::Footer]
                .iter()
                .for_each(|&part| damage(p, name, part));
        };
        check(plain(), &all, Whole, name);
    }
}
