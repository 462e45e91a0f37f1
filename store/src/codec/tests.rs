use proptest::prelude::*;
use zstd::zstd_safe::{CCtx, CParameter};

use super::decoder::GroupDecoder;
use super::*;
use crate::error::StoreError;
use crate::plan::{DiskProfile, PlannedRow};
use crate::row::RowIdx;

/// Encodes `rows` as a writer does, handed over in pieces of `piece_bytes`.
fn encode(rows: &[u8], group_bytes: usize, piece_bytes: usize) -> (Vec<Vec<u8>>, Vec<u8>) {
    let mut encoder = GroupEncoder::new(group_bytes).unwrap();
    let mut groups = Vec::new();
    for mut piece in rows.chunks(piece_bytes) {
        while let Some(stored) = encoder.take(&mut piece).unwrap() {
            groups.push(stored.to_vec());
        }
        assert!(piece.is_empty());
    }
    groups.extend(encoder.finish().unwrap().map(<[u8]>::to_vec));
    (groups, encoder.into_index())
}

fn planned(rows: impl IntoIterator<Item = u32>) -> Vec<PlannedRow> {
    let rows = rows.into_iter().zip(0..);
    rows.map(|(row, out_row)| PlannedRow { row: RowIdx(row), out_row }).collect()
}

/// Returns bytes that shrink, hardly shrink, or do not shrink.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..3000),
        prop::collection::vec(prop_oneof![20 => Just(0u8), 1 => any::<u8>()], 0..9000),
        (any::<u8>(), 0..20_000usize).prop_map(|(byte, n)| vec![byte; n]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn groups_give_their_rows_back(
        bytes in bytes(),
        row_bytes in 1usize..700,
        group_rows in 1u32..9,
        piece_bytes in 1usize..5000,
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..20),
    ) {
        let n_rows = bytes.len() / row_bytes;
        let rows = &bytes[..n_rows * row_bytes];
        let group_bytes = group_rows as usize * row_bytes;
        let (groups, index) = encode(rows, group_bytes, piece_bytes);
        prop_assert_eq!(&encode(rows, group_bytes, bytes.len().max(1)).0, &groups);
        prop_assert_eq!(groups.len(), n_rows.div_ceil(group_rows as usize));
        let lengths: Vec<u8> =
            groups.iter().flat_map(|group| (group.len() as u32).to_le_bytes()).collect();
        prop_assert_eq!(lengths, index);
        for (stored, (no, raw)) in groups.iter().zip((0u32..).zip(rows.chunks(group_bytes))) {
            prop_assert!(stored.len() <= raw.len());
            let first_row = RowIdx(no * group_rows);
            let group = StoredGroup { stored, first_row, raw_bytes: raw.len(), row_bytes };
            let n_rows = raw.len() / row_bytes;
            let mut picks: Vec<usize> = picks.iter().map(|pick| pick.index(n_rows)).collect();
            picks.sort_unstable();
            let expected = picks.iter().flat_map(|&i| &raw[i * row_bytes..(i + 1) * row_bytes]);
            let expected: Vec<u8> = expected.copied().collect();
            let mut out = vec![0xaa; expected.len()];
            let rows = planned(picks.iter().map(|&i| first_row.0 + i as u32));
            with_decoder(|decoder| decoder.copy_rows(&group, &rows, &mut out)).unwrap();
            prop_assert!(out == expected);
        }
    }

    #[test]
    fn damaged_groups_fail_or_fill_exactly_their_rows(
        bytes in bytes(),
        row_bytes in 1usize..700,
        flips in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
        cut in 0usize..40,
    ) {
        let raw = &bytes[..bytes.len() / row_bytes * row_bytes];
        prop_assume!(!raw.is_empty());
        let mut stored = encode(raw, raw.len(), raw.len()).0.remove(0);
        for flip in flips {
            let bit = flip.index(stored.len() * 8);
            stored[bit / 8] ^= 1 << (bit % 8);
        }
        let stored = &stored[..stored.len().saturating_sub(cut).max(1)];
        let first_row = RowIdx(0);
        let group = StoredGroup { stored, first_row, raw_bytes: raw.len(), row_bytes };
        with_decoder(|decoder| {
            if let Ok(rows) = decoder.unpacked(&group) {
                assert_eq!(rows.len(), raw.len());
            }
        });
    }
}

#[test]
fn frames_of_another_length_are_refused() {
    let mut zstd = CCtx::create();
    zstd.set_parameter(CParameter::ContentSizeFlag(false)).unwrap();
    // A frame that says nothing about its length, of far more bytes than the group has.
    let mut bomb = Vec::with_capacity(100_000);
    zstd.compress2(&mut bomb, &vec![0; 64 << 20]).unwrap();
    let mut frame = |n: usize| {
        let mut frame = Vec::with_capacity(1000);
        zstd.compress2(&mut frame, &vec![0; n]).unwrap();
        frame
    };
    let (short, long, none) = (frame(4999), frame(5001), frame(0));
    let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0][..], &[7; 4]].concat();
    for stored in [bomb, short, long, none, skippable, vec![0; 9]] {
        let group =
            StoredGroup { stored: &stored, first_row: RowIdx(0), raw_bytes: 5000, row_bytes: 500 };
        let mut out = vec![0; 500];
        let refused = |decoder: &mut GroupDecoder| {
            decoder.copy_rows(&group, &planned([9]), &mut out).unwrap_err()
        };
        assert!(!with_decoder(refused).is_empty());
    }
}

/// Asks for a sample of sparse rows with one byte in `one_in` set.
fn chosen(choice: CodecChoice, n_rows: u32, row_bytes: usize, one_in: usize) -> SegmentCodec {
    let table = || SampledTable::new("feat".into(), n_rows, row_bytes, DiskProfile::default());
    let copy_rows = |first, out: &mut [u8]| {
        assert!(first as usize * row_bytes + out.len() <= n_rows as usize * row_bytes);
        sparse(first, out, one_in);
        Ok::<_, StoreError>(())
    };
    choice.settle(row_bytes, table, copy_rows).unwrap()
}

/// Fills rows with one byte in `one_in` set.
fn sparse(first: u32, out: &mut [u8], one_in: usize) {
    for (i, byte) in out.iter_mut().enumerate() {
        let random = (i + first as usize).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        *byte = if random.is_multiple_of(one_in) { (random >> 8) as u8 } else { 0 };
    }
}

/// Sizes of a sample are the same each time; its speed is measured. On disks far faster or slower
/// than unpacking the verdict is the same for any measured speed.
#[test]
fn a_sample_is_judged_on_the_disk_that_it_is_read_from() {
    let assess = |disk: DiskProfile, memory_bytes, one_in| {
        let (n_rows, row_bytes) = (20_000, 1200);
        let table_bytes = 50 * u64::from(n_rows) * row_bytes as u64;
        let table = SampledTable::new("feat".into(), n_rows, row_bytes, disk);
        let table = SampledTable { table_bytes, memory_bytes, ..table };
        let copy_rows = |first, out: &mut [u8]| {
            sparse(first, out, one_in);
            Ok::<_, StoreError>(())
        };
        table.assess(copy_rows).unwrap().unwrap()
    };
    let slow = DiskProfile { iops: 100.0, bandwidth_bytes_per_s: 1e6 };
    let fast = DiskProfile { iops: 1e9, bandwidth_bytes_per_s: 1e15 };
    let (cold, verdict) = assess(slow, Some(0), 10);
    assert_eq!(verdict.codec, SegmentCodec::zstd_for(1200), "{}", verdict.reason);
    assert_eq!(assess(slow, Some(0), 1).1.codec, SegmentCodec::Raw, "it does not shrink");
    let (_, at_once) = assess(fast, Some(0), 10);
    assert_eq!(at_once.codec, SegmentCodec::Raw, "{}", at_once.reason);
    let (warm, verdict) = assess(slow, Some(u64::MAX), 10);
    assert_eq!(verdict.codec, SegmentCodec::Raw, "{}", verdict.reason);
    assert_eq!((cold.raw_bytes, cold.zstd_bytes), (1_200_000_000, warm.zstd_bytes));
    assert!((2..20).contains(&(cold.raw_bytes / cold.zstd_bytes)), "{cold:?}");
    assert!((1e6..1e12).contains(&cold.decode_bytes_per_s), "{cold:?}");
}

#[test]
fn auto_takes_zstd_for_long_rows_that_shrink() {
    let one_row = SegmentCodec::Zstd { group_rows: 1 };
    assert_eq!(chosen(CodecChoice::Auto, 5000, 4000, 200), one_row);
    assert_eq!(chosen(CodecChoice::Auto, 5000, 4000, 4), SegmentCodec::Raw);
    // Rows too short, too few bytes in all.
    assert_eq!(chosen(CodecChoice::Auto, 50_000, 400, 200), SegmentCodec::Raw);
    assert_eq!(chosen(CodecChoice::Auto, 100, 4000, 200), SegmentCodec::Raw);
    assert_eq!(chosen(CodecChoice::Auto, 0, 4000, 200), SegmentCodec::Raw);
    for (choice, codec) in [(CodecChoice::Raw, SegmentCodec::Raw), (CodecChoice::Zstd, one_row)] {
        for n_rows in [0, 1, 100_000] {
            assert_eq!(chosen(choice, n_rows, 4000, 2), codec);
        }
    }
}

#[test]
fn names_lead_back() {
    for (name, choice) in
        [("auto", CodecChoice::Auto), ("raw", CodecChoice::Raw), ("zstd", CodecChoice::Zstd)]
    {
        assert_eq!(name.parse(), Ok(choice));
    }
    let unknown = "lz4".parse::<CodecChoice>().unwrap_err();
    assert_eq!((unknown.kind, &*unknown.found), ("codec", "lz4"));
    assert_eq!(SegmentCodec::zstd_for(8).group_rows(), 256);
    assert_eq!(SegmentCodec::zstd_for(16 << 20).group_rows(), 1);
}
