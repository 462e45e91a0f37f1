use std::fs;
use std::os::unix::fs::FileExt;

use proptest::prelude::*;

use super::*;
use crate::device::Disk;
use crate::fixture::{identity, row, segment};
use crate::layout::{DATA_OFFSET, PAGE_BYTES};
use crate::plan::DeviceProfile;
use crate::row::RowIdx;
use crate::segment::Segment;

/// Every reader of the same segment; the faulty one's fault never comes.
fn readers(dir: &std::path::Path, n_rows: u32, row_bytes: u32) -> Vec<Box<dyn RowReader>> {
    let open = || segment_again(dir, n_rows, row_bytes);
    let memory = || MemoryReader::load(open()).unwrap();
    vec![
        Box::new(MappedReader::open(open()).unwrap()),
        Box::new(DirectReader::open(open()).unwrap()),
        Box::new(PreadReader::open(open()).unwrap()),
        Box::new(memory()),
        Box::new(FaultyReader::new(memory(), Fault::Error, u64::MAX)),
    ]
}

fn segment_again(dir: &std::path::Path, n_rows: u32, row_bytes: u32) -> Segment {
    let path = dir.join(format!("{n_rows}x{row_bytes}.seg"));
    if path.exists() {
        return Segment::open(&Disk, &path, &identity(n_rows, row_bytes)).unwrap();
    }
    segment(dir, n_rows, row_bytes)
}

fn plan(rows: &[u32], reader: &dyn RowReader) -> ReadPlan {
    let rows: Vec<RowIdx> = rows.iter().copied().map(RowIdx).collect();
    let mut plan = ReadPlan::default();
    plan.build(&rows, reader.layout(), &DeviceProfile::default()).unwrap();
    plan
}

/// The shared body: the reader gives exactly the rows asked for, in the order asked for.
fn gives_the_rows(reader: &dyn RowReader, rows: &[u32]) {
    let row_bytes = reader.layout().row_bytes();
    let mut out = vec![0xaa; rows.len() * row_bytes];
    reader.execute(&plan(rows, reader), &mut out).unwrap();
    let expected: Vec<u8> = rows.iter().flat_map(|&i| row(i, row_bytes)).collect();
    assert!(out == expected);
}

/// The shared body: an output of another length is refused.
fn refuses_other_lengths(reader: &dyn RowReader) {
    let row_bytes = reader.layout().row_bytes();
    for length in [0, row_bytes - 1, row_bytes + 1, 2 * row_bytes] {
        let error = reader.execute(&plan(&[0], reader), &mut vec![0; length]).unwrap_err();
        assert!(matches!(error, StoreError::OutputLength { .. }), "{error}");
    }
}

#[test]
fn all_readers_agree_on_all_rows_and_on_none() {
    let dir = tempfile::tempdir().unwrap();
    for (n_rows, row_bytes) in [(1, 2), (1000, 400), (7, 5000), (3, 2 << 20)] {
        for reader in readers(dir.path(), n_rows, row_bytes) {
            let backwards: Vec<u32> = (0..n_rows).rev().chain([0, 0, n_rows - 1]).collect();
            gives_the_rows(&*reader, &backwards);
            gives_the_rows(&*reader, &[]);
            refuses_other_lengths(&*reader);
        }
    }
    for reader in readers(dir.path(), 0, 8) {
        gives_the_rows(&*reader, &[]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn all_readers_agree_in_any_order(
        row_bytes in prop_oneof![1u32..50, 390u32..410, 4090u32..4100],
        rows in prop::collection::vec(0u32..2000, 0..500),
    ) {
        let dir = tempfile::tempdir().unwrap();
        for reader in readers(dir.path(), 2000, row_bytes) {
            gives_the_rows(&*reader, &rows);
        }
    }
}

#[test]
fn a_damaged_page_fails_its_rows_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let open = segment(dir.path(), 100, 400);
    let path = open.path().to_owned();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    // Row 25 lies in pages 2 (10000 to 10400 of 8192 to 12288).
    file.write_all_at(&[row(25, 400)[7] ^ 0x10], DATA_OFFSET + 25 * 400 + 7).unwrap();
    drop(open);
    for reader in readers(dir.path(), 100, 400) {
        gives_the_rows(&*reader, &[0, 5, 19]);
        gives_the_rows(&*reader, &[31, 99]);
        for rows in [vec![25], vec![0, 22, 99], vec![20], vec![30]] {
            let mut out = vec![0; rows.len() * 400];
            let error = reader.execute(&plan(&rows, &*reader), &mut out).unwrap_err();
            assert!(matches!(error, StoreError::DamagedPage { page: 2, .. }), "{error}");
        }
    }
}

#[test]
fn pages_in_each_others_place_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = segment(dir.path(), 100, 4096).path().to_owned();
    let mut bytes = fs::read(&path).unwrap();
    let page = PAGE_BYTES as usize;
    let (front, back) = bytes.split_at_mut(8 * page);
    front[3 * page..4 * page].swap_with_slice(&mut back[..page]);
    fs::write(&path, bytes).unwrap();
    for reader in readers(dir.path(), 100, 4096) {
        // The plan reads through the damaged pages, and that is no fault.
        gives_the_rows(&*reader, &[0, 1, 3, 6, 99]);
        for row in [2, 7] {
            let error = reader.execute(&plan(&[row], &*reader), &mut [0; 4096]).unwrap_err();
            assert!(error.to_string().contains(&format!("page {row} ")), "{error}");
        }
    }
}

#[test]
fn whatever_a_read_gives_no_wrong_row_comes_out() {
    let dir = tempfile::tempdir().unwrap();
    let rows: Vec<u32> = (0..100).step_by(9).collect();
    let mut faults = vec![Fault::Error, Fault::SwappedPages];
    faults.extend([1, 4095, 4096, 8192, usize::MAX].map(|by_bytes| Fault::Short { by_bytes }));
    faults.extend((0..10_000).step_by(37).map(|bit| Fault::FlippedBit { bit: bit * 11 }));
    for fault in faults {
        for at_read in 0..2 {
            let memory = MemoryReader::load(segment_again(dir.path(), 100, 400)).unwrap();
            let reader = FaultyReader::new(memory, fault, at_read);
            let mut out = vec![0; rows.len() * 400];
            let results = [(); 3].map(|()| reader.execute(&plan(&rows, &reader), &mut out).is_ok());
            assert_eq!(results.map(|ok| !ok).iter().filter(|&&bad| bad).count(), 1, "{fault:?}");
            gives_the_rows(&reader, &rows);
        }
    }
}
