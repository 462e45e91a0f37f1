use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use lodestore_graph::PartId;
use uuid::Uuid;

use super::header::HeaderFault;
use super::*;
use crate::codec::SegmentCodec;
use crate::dtype::Dtype;
use crate::error::StoreError;
use crate::file_system::Disk;
use crate::fixture::{identity, row, write_segment};
use crate::layout::DATA_OFFSET;
use crate::limits::PAGE_BYTES;
use crate::tensor::TensorSpec;

mod groups;

const PAGE: usize = PAGE_BYTES as usize;

#[test]
fn rows_are_packed_and_the_length_is_promised() {
    let dir = tempfile::tempdir().unwrap();
    for (n_rows, row_bytes) in [(0, 8), (1, 1), (100, 400), (3, 5000), (2, 3 << 20)] {
        let (path, identity) = (dir.path().join(format!("{n_rows}")), identity(n_rows, row_bytes));
        let digest = write_segment(&path, &identity);
        let segment = Segment::open(&Disk, &path, &identity).unwrap();
        assert_eq!(segment.digest(), &digest);
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, segment.layout().file_bytes());
        let rows: Vec<u8> = (0..n_rows).flat_map(|i| row(i, row_bytes as usize)).collect();
        assert!(bytes[PAGE..PAGE + rows.len()] == rows);
        for page in 0..segment.layout().n_pages() {
            let start = (DATA_OFFSET + page * PAGE_BYTES) as usize;
            segment.check_page(page, &bytes[start..start + PAGE]).unwrap();
        }
    }
}

/// Raw segments are the same bytes in every release that writes format 1.
#[test]
fn raw_segments_are_written_as_they_always_were() {
    let dir = tempfile::tempdir().unwrap();
    let mut hashes = Vec::new();
    for (n_rows, row_bytes) in [(0, 8), (1, 1), (100, 400), (3000, 999)] {
        let path = dir.path().join(format!("{n_rows}"));
        write_segment(&path, &identity(n_rows, row_bytes));
        hashes.push(blake3::hash(&fs::read(&path).unwrap()).to_hex()[..16].to_owned());
    }
    let expected = ["20e272a15fb56f87", "33c86b7b419bf1f3", "fd283a10cafd01d3", "3698f90157ea88e6"];
    assert_eq!(hashes, expected);
}

#[test]
fn a_file_cut_or_extended_anywhere_near_a_page_edge_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, identity) = (dir.path().join("cut.seg"), identity(50, 400));
    write_segment(&path, &identity);
    let whole = fs::read(&path).unwrap();
    let edges = (0..=whole.len() / PAGE).flat_map(|page| {
        let edge = page * PAGE;
        [edge.saturating_sub(1), edge, edge + 1]
    });
    for length in edges.filter(|&length| length != whole.len()) {
        let mut bytes = whole.clone();
        bytes.resize(length, 0);
        fs::write(&path, bytes).unwrap();
        let error = Segment::open(&Disk, &path, &identity).unwrap_err();
        assert!(matches!(error, StoreError::FileLength { .. }), "{length}: {error}");
        assert!(error.to_string().contains("cut.seg"), "{error}");
    }
}

#[test]
fn every_flipped_bit_outside_the_rows_is_found_when_opening() {
    let dir = tempfile::tempdir().unwrap();
    let (path, identity) = (dir.path().join("flip.seg"), identity(30, 400));
    write_segment(&path, &identity);
    let bytes = fs::read(&path).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let n_pages = Segment::open(&Disk, &path, &identity).unwrap().layout().n_pages() as usize;
    let rows = PAGE..PAGE * (1 + n_pages);
    for offset in (0..bytes.len()).filter(|offset| !rows.contains(offset)) {
        for bit in 0..8 {
            file.write_all_at(&[bytes[offset] ^ (1 << bit)], offset as u64).unwrap();
            let error = Segment::open(&Disk, &path, &identity).expect_err("a flipped bit");
            let section = match offset / PAGE {
                0 => "header",
                page if page == 1 + n_pages => "page table",
                _ => "footer",
            };
            let message = error.to_string();
            assert!(message.contains("flip.seg") && message.contains(section), "{message}");
        }
        file.write_all_at(&bytes[offset..=offset], offset as u64).unwrap();
    }
    Segment::open(&Disk, &path, &identity).unwrap();
}

#[test]
fn every_damaged_page_of_rows_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (path, identity) = (dir.path().join("rows.seg"), identity(30, 400));
    write_segment(&path, &identity);
    let segment = Segment::open(&Disk, &path, &identity).unwrap();
    let bytes = fs::read(&path).unwrap();
    let pages: Vec<&[u8]> = bytes[PAGE..].chunks(PAGE).take(3).collect();
    for (no, page) in (0u64..).zip(&pages) {
        segment.check_page(no, page).unwrap();
        let expect = |bytes: &[u8]| {
            let error = segment.check_page(no, bytes).expect_err("a damaged page");
            assert!(matches!(error, StoreError::DamagedPage { page, .. } if page == no));
            let offset = DATA_OFFSET + no * PAGE_BYTES;
            let message = error.to_string();
            assert!(message.contains("rows.seg") && message.contains(&format!("page {no}")));
            assert!(message.contains(&offset.to_string()), "{message}");
        };
        let mut damaged = page.to_vec();
        for bit in 0..PAGE * 8 {
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(segment.check_page(no, &damaged).is_err());
            damaged[bit / 8] ^= 1 << (bit % 8);
        }
        expect(pages[(no as usize + 1) % 3]);
        expect(&[0; PAGE]);
        expect(&[0xff; PAGE]);
        expect(&page[..PAGE - 1]);
    }
}

#[test]
fn a_sound_segment_in_the_place_of_another_is_refused_by_field() {
    let dir = tempfile::tempdir().unwrap();
    let (path, right) = (dir.path().join("other.seg"), identity(30, 400));
    write_segment(&path, &right);
    let tensor = |name, dtype, width| TensorSpec::new(name, dtype, width).unwrap();
    let others = [
        ("graph", SegmentIdentity { graph: Uuid::nil(), ..right.clone() }),
        ("segment", SegmentIdentity { segment: Uuid::nil(), ..right.clone() }),
        ("partition", SegmentIdentity { part: PartId(4), ..right.clone() }),
        ("version", SegmentIdentity { version: 2, ..right.clone() }),
        ("tensor", SegmentIdentity { tensor: tensor("label", Dtype::U8, 400), ..right.clone() }),
        ("tensor", SegmentIdentity { tensor: tensor("feat", Dtype::I8, 400), ..right.clone() }),
        ("tensor", SegmentIdentity { tensor: tensor("feat", Dtype::U8, 401), ..right.clone() }),
        ("row count", SegmentIdentity { n_rows: 31, ..right.clone() }),
    ];
    for (name, expected) in others {
        let error = Segment::open(&Disk, &path, &expected).expect_err(name);
        assert!(matches!(error, StoreError::Misplaced { field, .. } if field == name), "{error}");
    }
}

#[test]
fn sealed_headers_that_make_no_sense_are_refused() {
    let good = identity(30, 400).to_page(SegmentCodec::Raw);
    assert_eq!(SegmentIdentity::from_page(&good), Ok((identity(30, 400), SegmentCodec::Raw)));
    let refused = |offset: usize, value: u32| {
        let mut page = good;
        header::put_u32(&mut page, offset, value);
        header::seal(&mut page);
        SegmentIdentity::from_page(&page).unwrap_err()
    };
    assert_eq!(refused(8, 4), HeaderFault::Newer(4));
    // Codec, partition, dtype, width (none, too many), length of the name.
    for (offset, value) in [
        (8, 2),
        (8, 3),
        (12, 1),
        (136, 1),
        (140, 1),
        (144, 1),
        (48, 1 << 16),
        (56, 9),
        (60, 0),
        (60, u32::MAX),
        (68, 65),
        (68, 0),
        (72, 0xff),
    ] {
        let fault = refused(offset, value);
        assert!(matches!(fault, HeaderFault::Damaged(_)), "{offset} {value}: {fault:?}");
    }
}

#[test]
fn a_newer_format_is_refused_by_number() {
    let dir = tempfile::tempdir().unwrap();
    let (path, identity) = (dir.path().join("newer.seg"), identity(1, 4));
    write_segment(&path, &identity);
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 9;
    let crc = crc32fast::hash(&bytes[..PAGE - 4]);
    bytes[PAGE - 4..PAGE].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let error = Segment::open(&Disk, &path, &identity).unwrap_err();
    assert!(matches!(error, StoreError::NewerFormat { found: 9, supported: 3, .. }), "{error}");
}

#[test]
fn random_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("random.seg");
    for (length, byte) in [(0, 0), (1, 0), (PAGE, 0), (3 * PAGE, 0), (4 * PAGE, 0xff)] {
        fs::write(&path, vec![byte; length]).unwrap();
        assert!(Segment::open(&Disk, &path, &identity(1, 4)).is_err(), "{length} times {byte}");
    }
    let missing = Segment::open(&Disk, &dir.path().join("none"), &identity(1, 4)).unwrap_err();
    assert!(matches!(missing, StoreError::Io { action: "open", .. }));
}

#[test]
#[should_panic(expected = "more rows")]
fn a_writer_takes_no_more_than_was_promised() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer =
        SegmentWriter::create(&Disk, &dir.path().join("a"), &identity(2, 4), SegmentCodec::Raw)
            .unwrap();
    let _ = writer.write_rows(&[0; 9]);
}

#[test]
#[should_panic(expected = "fewer rows")]
fn a_writer_seals_no_less_than_was_promised() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer =
        SegmentWriter::create(&Disk, &dir.path().join("a"), &identity(2, 4), SegmentCodec::Raw)
            .unwrap();
    writer.write_rows(&[0; 7]).unwrap();
    let _ = writer.finish();
}

#[test]
fn a_writer_never_overwrites() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("there");
    File::create(&path).unwrap();
    let error =
        SegmentWriter::create(&Disk, &path, &identity(2, 4), SegmentCodec::Raw).unwrap_err();
    assert!(matches!(error, StoreError::Io { action: "create", .. }), "{error}");
}
