//! Compressed segments: damaged ones, and ones that agree with their checksums and still lie.

use std::sync::Mutex;

use super::super::footer::footer_page;
use super::*;
use crate::checksum::PageChecksum;
use crate::fixture::write_encoded;
use crate::layout::Sections;
use crate::plan::{DiskProfile, ReadPlan};
use crate::reader::{MappedReader, MemoryReader, RowReader};
use crate::row::RowIdx;

const ZSTD: SegmentCodec = SegmentCodec::Zstd { group_rows: 5 };

/// Returns a file of any data and group lengths whose every checksum is right. Its footer has any
/// number for the bytes of all groups.
fn forge(identity: &SegmentIdentity, data: &[u8], lengths: &[u32], data_bytes: u64) -> Vec<u8> {
    let header = identity.to_page(ZSTD);
    let checksum = PageChecksum::new(identity.segment);
    let padded = |mut bytes: Vec<u8>| {
        bytes.resize(bytes.len().next_multiple_of(PAGE), 0);
        bytes
    };
    let data = padded(data.to_vec());
    let crcs =
        (0u64..).zip(data.chunks(PAGE)).flat_map(|(no, page)| checksum.of(no, page).to_le_bytes());
    let index = lengths.iter().flat_map(|length| length.to_le_bytes());
    let tables = [padded(crcs.collect()), padded(index.collect())].concat();
    let sections = Sections { data_bytes, n_groups: lengths.len() as u32, n_listed: 0 };
    let footer = footer_page(&header, ZSTD, &sections, crc32fast::hash(&tables));
    [&header[..], &data, &tables, &footer].concat()
}

/// Returns the stored groups of the fixture's rows.
fn groups(identity: &SegmentIdentity, dir: &std::path::Path) -> Vec<Vec<u8>> {
    let path = dir.join("sound.seg");
    write_encoded(&path, identity, ZSTD);
    let (segment, bytes) =
        (Segment::open(&Disk, &path, identity).unwrap(), fs::read(&path).unwrap());
    let groups = segment.layout().groups().unwrap();
    let span = |group| groups.span(group).start as usize..groups.span(group).end as usize;
    (0..groups.n_groups()).map(|group| bytes[PAGE..][span(group)].to_vec()).collect()
}

fn lengths(groups: &[Vec<u8>]) -> Vec<u32> {
    groups.iter().map(|group| group.len() as u32).collect()
}

#[test]
fn groups_are_packed_and_vouched_for() {
    let dir = tempfile::tempdir().unwrap();
    for (n_rows, row_bytes) in [(0, 8), (1, 1), (101, 400), (30, 5000)] {
        let (path, identity) = (dir.path().join(format!("{n_rows}")), identity(n_rows, row_bytes));
        let digest = write_encoded(&path, &identity, ZSTD);
        let segment = Segment::open(&Disk, &path, &identity).unwrap();
        assert_eq!((segment.digest(), segment.codec()), (&digest, ZSTD));
        assert_eq!(fs::metadata(&path).unwrap().len(), segment.layout().file_bytes());
        assert_eq!(segment.layout().raw_bytes(), u64::from(n_rows * row_bytes));
        assert!(n_rows < 30 || segment.layout().data_bytes() * 2 < segment.layout().raw_bytes());
        segment.check_groups(0..u32::MAX, &mut Vec::new(), &mut |_, error| panic!("{error}"));
    }
    // What `forge` makes of the right parts is what the writer writes.
    let identity = identity(101, 400);
    let groups = groups(&identity, dir.path());
    let data = groups.concat();
    let forged = forge(&identity, &data, &lengths(&groups), data.len() as u64);
    assert!(forged == fs::read(dir.path().join("sound.seg")).unwrap());
}

#[test]
fn any_cut_and_any_flipped_bit_outside_the_rows_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, identity) = (dir.path().join("flip.seg"), identity(30, 400));
    write_encoded(&path, &identity, ZSTD);
    let whole = fs::read(&path).unwrap();
    assert_eq!(whole.len(), 5 * PAGE, "header, one page of rows, two tables, footer");
    for length in (0..8 * PAGE).step_by(PAGE / 4).filter(|&length| length != whole.len()) {
        let mut bytes = whole.clone();
        bytes.resize(length, 0);
        fs::write(&path, bytes).unwrap();
        let message = Segment::open(&Disk, &path, &identity).unwrap_err().to_string();
        assert!(message.contains("flip.seg") && message.contains("cut"), "{length}: {message}");
    }
    fs::write(&path, &whole).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    for offset in (0..whole.len()).filter(|offset| offset / PAGE != 1).step_by(3) {
        file.write_all_at(&[whole[offset] ^ (1 << (offset % 8))], offset as u64).unwrap();
        let error = Segment::open(&Disk, &path, &identity).expect_err("a flipped bit");
        assert!(matches!(error, StoreError::DamagedSegment { .. }), "{error}");
        file.write_all_at(&whole[offset..=offset], offset as u64).unwrap();
    }
    Segment::open(&Disk, &path, &identity).unwrap();
}

#[test]
fn lengths_that_contradict_rows_or_data_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, identity) = (dir.path().join("lie.seg"), identity(20, 400));
    let groups = groups(&identity, dir.path());
    let (data, right) = (groups.concat(), lengths(&groups));
    let n_bytes = data.len() as u64;
    let refused = |lengths: &[u32], data_bytes: u64| {
        fs::write(&path, forge(&identity, &data, lengths, data_bytes)).unwrap();
        Segment::open(&Disk, &path, &identity).unwrap_err()
    };
    let moved = |from: usize, to: usize, by: u32| {
        let mut lengths = right.clone();
        lengths[from] -= by;
        lengths[to] += by;
        lengths
    };
    for (lengths, part) in [
        (moved(0, 1, right[0]), "row group 0 has 0 bytes"),
        (moved(3, 3, 0).into_iter().map(|length| length + 1).collect(), "in all expected"),
        (vec![2001, 1, 1, 1], "row group 0 has 2001 bytes, expected 1 to 2000"),
        (vec![u32::MAX; 4], "row group 0 has"),
    ] {
        let message = refused(&lengths, n_bytes).to_string();
        assert!(message.contains("group index") && message.contains(part), "{message}");
    }
    for data_bytes in [0, 3, 20 * 400 + 1, u64::from(u32::MAX) << 12] {
        let message = refused(&right, data_bytes).to_string();
        assert!(message.contains("footer") && message.contains("bytes of rows"), "{message}");
    }
    // Other numbers that the rows allow contradict the file's length or the lengths' sum.
    for data_bytes in [n_bytes - 1, n_bytes + 1, 8000] {
        refused(&right, data_bytes);
    }
    refused(&right[1..], n_bytes);
}

#[test]
fn a_group_that_does_not_unpack_fails_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (path, identity) = (dir.path().join("frame.seg"), identity(20, 400));
    let sound = groups(&identity, dir.path());
    let longer = zstd::bulk::compress(&[0; 2001], 1).unwrap();
    let shorter = zstd::bulk::compress(&[0; 1999], 1).unwrap();
    for lie in [vec![7; 100], longer, shorter, sound[1][..sound[1].len() - 1].to_vec()] {
        let mut groups = sound.clone();
        groups[1] = lie;
        let data = groups.concat();
        fs::write(&path, forge(&identity, &data, &lengths(&groups), data.len() as u64)).unwrap();
        let open = || Segment::open(&Disk, &path, &identity).unwrap();
        let mut faults = Vec::new();
        open().check_groups(0..u32::MAX, &mut Vec::new(), &mut |page, error| {
            faults.push((page, error));
        });
        let found = matches!(&faults[..], [(0, StoreError::DamagedGroup { group: 1, .. })]);
        assert!(found, "{faults:?}");
        let readers: [Box<dyn RowReader>; 2] = [
            Box::new(MappedReader::open(open()).unwrap()),
            Box::new(MemoryReader::load(open()).unwrap()),
        ];
        for reader in readers {
            let mut plan = ReadPlan::default();
            let mut gather = |rows: &[u32]| {
                let rows: Vec<RowIdx> = rows.iter().copied().map(RowIdx).collect();
                let mut out = vec![0; rows.len() * 400];
                plan.build(&rows, reader.layout(), &DiskProfile::default()).unwrap();
                reader.execute(&plan, &mut out).map(|()| out)
            };
            for rows in [vec![5], vec![19, 9, 0]] {
                let error = gather(&rows).unwrap_err();
                assert!(matches!(error, StoreError::DamagedGroup { group: 1, .. }), "{error}");
                assert!(error.to_string().contains("frame.seg"), "{error}");
            }
            assert!(gather(&[10, 4]).unwrap() == [row(10, 400), row(4, 400)].concat());
        }
    }
}

#[test]
fn verification_unpacks_groups_beside_damaged_pages() {
    let dir = tempfile::tempdir().unwrap();
    let (path, identity) = (dir.path().join("frame.seg"), identity(400, 4000));
    let mut groups = groups(&identity, dir.path());
    let last = groups.len() - 1;
    groups[last] = vec![7; 100];
    let data = groups.concat();
    assert!(data.len() > 8192, "{}", data.len());
    fs::write(&path, forge(&identity, &data, &lengths(&groups), data.len() as u64)).unwrap();
    crate::fixture::flip(&path, 4096 + 9);
    let segment = Segment::open(&Disk, &path, &identity).unwrap();
    let faults = Mutex::new(Vec::new());
    crate::verify::check_segment(&segment, 1, &|page, error| {
        faults.lock().unwrap().push((page, error));
    });
    let faults = faults.into_inner().unwrap();
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(matches!(faults[0], (0, StoreError::DamagedPage { page: 0, .. })), "{faults:?}");
    assert!(matches!(faults[1].1, StoreError::DamagedGroup { .. }), "{faults:?}");
}

#[test]
fn sealed_headers_of_groups_that_make_no_sense_are_refused() {
    let good = identity(30, 400).to_page(ZSTD);
    assert_eq!(SegmentIdentity::from_page(&good), Ok((identity(30, 400), ZSTD)));
    // Format, codec, rows per group (none, too many).
    for (offset, value) in [(8, 1), (12, 0), (12, 2), (136, 0), (136, 1 << 20), (136, u32::MAX)] {
        let mut page = good;
        header::put_u32(&mut page, offset, value);
        header::seal(&mut page);
        let fault = SegmentIdentity::from_page(&page).unwrap_err();
        assert!(matches!(fault, HeaderFault::Damaged(_)), "{offset} {value}: {fault:?}");
    }
}
