use std::fs;
use std::os::unix::fs::FileExt;

use proptest::prelude::*;

use super::faulty::{DiskFault, FaultyReader};
use super::*;
use crate::codec::SegmentCodec;
use crate::fixture::{row, segment};
use crate::layout::DATA_OFFSET;
use crate::limits::PAGE_BYTES;
use crate::plan::PlanError;
use crate::row::RowIdx;

const RAW: SegmentCodec = SegmentCodec::Raw;
const CODECS: [SegmentCodec; 3] =
    [RAW, SegmentCodec::Zstd { group_rows: 1 }, SegmentCodec::Zstd { group_rows: 5 }];

/// Returns all readers of the same segment; the fault of the faulty one never comes.
fn readers(
    dir: &std::path::Path,
    n_rows: u32,
    row_bytes: u32,
    codec: SegmentCodec,
) -> Vec<Box<dyn RowReader>> {
    let open = || segment(dir, n_rows, row_bytes, codec);
    let memory = || MemoryReader::load(open()).unwrap();
    vec![
        Box::new(MappedReader::open(open()).unwrap()),
        Box::new(DirectReader::open(open()).unwrap()),
        Box::new(PreadReader::new(open())),
        Box::new(memory()),
        Box::new(FaultyReader::new(memory(), DiskFault::Error, u64::MAX)),
    ]
}

fn plan(rows: &[u32], reader: &dyn RowReader) -> ReadPlan {
    let rows: Vec<RowIdx> = rows.iter().copied().map(RowIdx).collect();
    let mut plan = ReadPlan::default();
    plan.build(&rows, reader.layout(), &DiskProfile::default()).unwrap();
    plan
}

/// Checks that the reader returns exactly the requested rows, in the requested order.
fn gives_the_rows(reader: &dyn RowReader, rows: &[u32]) {
    let row_bytes = reader.layout().row_bytes();
    let mut out = vec![0xaa; rows.len() * row_bytes];
    reader.execute(&plan(rows, reader), &mut out).unwrap();
    let expected: Vec<u8> = rows.iter().flat_map(|&i| row(i, row_bytes)).collect();
    assert!(out == expected);
    gathers_the_rows(reader, rows);
}

/// Checks that a gather fills the output rows that it names, and no others.
fn gathers_the_rows(reader: &dyn RowReader, rows: &[u32]) {
    let row_bytes = reader.layout().row_bytes();
    // Backwards to every other row of the output.
    let places = (0..rows.len() as u32).rev().map(|i| 2 * i + 1);
    let pairs: Vec<(RowIdx, u32)> = rows.iter().copied().map(RowIdx).zip(places).collect();
    let mut out = vec![0xaa; (2 * rows.len() + 1) * row_bytes];
    let (profile, mut scratch) = (DiskProfile::default(), ReadPlan::default());
    reader.gather(&pairs, &profile, &mut scratch, &mut out).unwrap();
    let mut expected = vec![0xaa; out.len()];
    for (&i, (_, place)) in rows.iter().zip(pairs) {
        expected[place as usize * row_bytes..][..row_bytes].copy_from_slice(&row(i, row_bytes));
    }
    assert!(out == expected);
}

/// Checks that an output of another length, and rows that are not there, are refused.
fn refuses_what_does_not_fit(reader: &dyn RowReader) {
    let row_bytes = reader.layout().row_bytes();
    for length in [0, row_bytes - 1, row_bytes + 1, 2 * row_bytes] {
        let error = reader.execute(&plan(&[0], reader), &mut vec![0; length]).unwrap_err();
        assert!(matches!(error, StoreError::OutputLength { .. }), "{error}");
    }
    let n_rows = reader.layout().n_rows();
    let gather = |pairs: &[(RowIdx, u32)], length: usize| {
        let (profile, mut scratch) = (DiskProfile::default(), ReadPlan::default());
        reader.gather(pairs, &profile, &mut scratch, &mut vec![0; length]).unwrap_err()
    };
    let no_row = gather(&[(RowIdx(0), 0), (RowIdx(n_rows), 1)], 2 * row_bytes);
    assert!(matches!(no_row, StoreError::Plan(PlanError::NoRow { position: 1, .. })), "{no_row}");
    let no_place = gather(&[(RowIdx(0), 2)], 2 * row_bytes);
    let expected = matches!(no_place, StoreError::Plan(PlanError::NoOutputRow { out_row: 2, .. }));
    assert!(expected, "{no_place}");
    if row_bytes > 1 {
        let error = gather(&[(RowIdx(0), 0)], row_bytes + 1);
        assert!(matches!(error, StoreError::OutputLength { .. }), "{error}");
    }
}

#[test]
fn all_readers_agree_on_all_rows_and_on_none() {
    let dir = tempfile::tempdir().unwrap();
    for (n_rows, row_bytes) in [(1, 1), (1, 2), (1000, 400), (7, 5000), (3, 2 << 20)] {
        for codec in CODECS.into_iter().filter(|codec| codec.check(row_bytes as usize).is_ok()) {
            for reader in readers(dir.path(), n_rows, row_bytes, codec) {
                let backwards: Vec<u32> = (0..n_rows).rev().chain([0, 0, n_rows - 1]).collect();
                gives_the_rows(&*reader, &backwards);
                gives_the_rows(&*reader, &[]);
                refuses_what_does_not_fit(&*reader);
            }
        }
    }
    for codec in CODECS {
        for reader in readers(dir.path(), 0, 8, codec) {
            gives_the_rows(&*reader, &[]);
        }
    }
}

/// Returns lengths from 1 byte to 1 MiB, about as many in each power of two; with `LODE_LONG`, to
/// the limit.
fn row_lengths() -> impl Strategy<Value = u32> {
    let most_bits = if std::env::var_os("LODE_LONG").is_some() { 24 } else { 20 };
    (0u32..most_bits).prop_flat_map(|bits| (1u32 << bits)..=(2u32 << bits))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn all_readers_agree_in_any_order_at_any_row_length(
        row_bytes in row_lengths(),
        n_rows in 1u32..2000,
        group_rows in 1u32..64,
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..300),
    ) {
        let n_rows = n_rows.min((4 << 20) / row_bytes + 1);
        let picks = picks.iter().take((8 << 20) / row_bytes as usize + 1);
        let rows: Vec<u32> = picks.map(|pick| pick.index(n_rows as usize) as u32).collect();
        let group_rows = if row_bytes > 16_000 { 1 } else { group_rows };
        let dir = tempfile::tempdir().unwrap();
        for codec in [RAW, SegmentCodec::Zstd { group_rows }] {
            for reader in readers(dir.path(), n_rows, row_bytes, codec) {
                gives_the_rows(&*reader, &rows);
            }
        }
    }
}

#[test]
fn a_damaged_page_fails_its_rows_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let open = segment(dir.path(), 100, 400, RAW);
    let path = open.path().to_owned();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    // Row 25 is in pages 2 (10000 to 10400 of 8192 to 12288).
    file.write_all_at(&[row(25, 400)[7] ^ 0x10], DATA_OFFSET + 25 * 400 + 7).unwrap();
    drop(open);
    for reader in readers(dir.path(), 100, 400, RAW) {
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
    let path = segment(dir.path(), 100, 4096, RAW).path().to_owned();
    let mut bytes = fs::read(&path).unwrap();
    let page = PAGE_BYTES as usize;
    let (front, back) = bytes.split_at_mut(8 * page);
    front[3 * page..4 * page].swap_with_slice(&mut back[..page]);
    fs::write(&path, bytes).unwrap();
    for reader in readers(dir.path(), 100, 4096, RAW) {
        // The plan reads through the damaged pages, and that is no fault.
        gives_the_rows(&*reader, &[0, 1, 3, 6, 99]);
        for row in [2, 7] {
            let error = reader.execute(&plan(&[row], &*reader), &mut [0; 4096]).unwrap_err();
            assert!(error.to_string().contains(&format!("page {row} ")), "{error}");
        }
    }
}

#[test]
fn whatever_a_read_returns_no_wrong_row_comes_out() {
    let dir = tempfile::tempdir().unwrap();
    let rows: Vec<u32> = (0..100).step_by(9).collect();
    let mut faults = vec![DiskFault::Error, DiskFault::SwappedPages];
    faults.extend([1, 4095, 4096, 8192, usize::MAX].map(|by_bytes| DiskFault::Short { by_bytes }));
    faults.extend((0..10_000).step_by(37).map(|bit| DiskFault::FlippedBit { bit: bit * 11 }));
    for (fault, codec) in faults.into_iter().flat_map(|fault| CODECS.map(|codec| (fault, codec))) {
        for at_read in 0..2 {
            let memory = MemoryReader::load(segment(dir.path(), 100, 400, codec)).unwrap();
            let reader = FaultyReader::new(memory, fault, at_read);
            let mut out = vec![0; rows.len() * 400];
            let results = [(); 3].map(|()| reader.execute(&plan(&rows, &reader), &mut out).is_ok());
            assert_eq!(results.map(|ok| !ok).iter().filter(|&&bad| bad).count(), 1, "{fault:?}");
            gives_the_rows(&reader, &rows);
        }
    }
}
