//! Sorting planned rows by their place: digit by digit, over the bits that a row can have.
//!
//! A comparison sort of random rows spends its time on mispredicted branches; this one has none.
//! Two passes of up to 11 bits cover a segment of 4 Mi rows.

use super::PlannedRow;

const MAX_DIGIT_BITS: u32 = 11;
const MAX_DIGITS: usize = 3;
const N_BUCKETS: usize = 1 << MAX_DIGIT_BITS;

/// Below this many rows, counting buckets costs more than comparing rows.
const FEW_ROWS: usize = 192;

const _: () = assert!(MAX_DIGITS as u32 * MAX_DIGIT_BITS >= u32::BITS);

/// Sorts `rows`, all of them below `n_rows`, by row. `spare` is scratch of the same kind; the two
/// may swap their memory. The order of equal rows is not specified.
pub(super) fn sort_by_row(rows: &mut Vec<PlannedRow>, spare: &mut Vec<PlannedRow>, n_rows: u32) {
    if rows.len() < FEW_ROWS {
        rows.sort_unstable_by_key(|planned| planned.row);
        return;
    }
    let n_bits = u32::BITS - n_rows.saturating_sub(1).leading_zeros();
    let n_digits = n_bits.div_ceil(MAX_DIGIT_BITS).max(1);
    let digit_bits = n_bits.div_ceil(n_digits);
    let mut counts = [[0u32; N_BUCKETS]; MAX_DIGITS];
    let counts = &mut counts[..n_digits as usize];
    for planned in &*rows {
        for (digit, counts) in (0u32..).zip(&mut *counts) {
            counts[bucket(planned, digit * digit_bits, digit_bits)] += 1;
        }
    }
    spare.resize(rows.len(), PlannedRow::default());
    for (digit, counts) in (0u32..).zip(counts) {
        let mut start = 0;
        for count in &mut counts[..1 << digit_bits] {
            start += std::mem::replace(count, start);
        }
        for planned in &*rows {
            let place = &mut counts[bucket(planned, digit * digit_bits, digit_bits)];
            spare[*place as usize] = *planned;
            *place += 1;
        }
        std::mem::swap(rows, spare);
    }
}

/// Returns the digit of a row that starts at bit `shift`; below `N_BUCKETS`, as the compiler can
/// see.
#[inline]
fn bucket(planned: &PlannedRow, shift: u32, digit_bits: u32) -> usize {
    let digit = (planned.row.0 >> shift) & ((1 << digit_bits) - 1);
    digit as usize & (N_BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::row::RowIdx;

    /// Checks against the twin, which orders the same rows by comparing.
    fn agrees(rows: &[PlannedRow], n_rows: u32) {
        let key = |planned: &PlannedRow| (planned.row, planned.out_row);
        let (mut found, mut spare) = (rows.to_vec(), vec![PlannedRow::default(); 3]);
        sort_by_row(&mut found, &mut spare, n_rows);
        assert!(found.is_sorted_by_key(|planned| planned.row));
        found.sort_by_key(key);
        let mut expected = rows.to_vec();
        expected.sort_by_key(key);
        assert_eq!(found, expected, "the same rows, none lost and none twice");
    }

    fn planned(rows: impl IntoIterator<Item = u32>) -> Vec<PlannedRow> {
        let rows = rows.into_iter().zip(0..);
        rows.map(|(row, out_row)| PlannedRow { out_row, row: RowIdx(row) }).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn agrees_with_a_comparison_sort(
            n_rows in prop_oneof![1u32..5, 1u32..5000, 1u32 << 20..1 << 23, any::<u32>()],
            picks in prop::collection::vec(any::<prop::sample::Index>(), 0..1500),
        ) {
            let n_rows = n_rows.max(1);
            let rows = picks.iter().map(|pick| pick.index(n_rows as usize) as u32);
            agrees(&planned(rows), n_rows);
        }
    }

    #[test]
    fn every_number_of_bits_and_the_largest_row() {
        for n_bits in 0..=32u32 {
            let last = ((1u64 << n_bits) - 1) as u32;
            for n_rows in [last.saturating_add(1), last.max(1)] {
                let spread = (0..1000u32).map(|i| i.wrapping_mul(0x9e37_79b9) % n_rows);
                agrees(&planned(spread.chain([n_rows - 1, 0, n_rows - 1])), n_rows);
            }
        }
    }

    #[test]
    fn sorted_reversed_equal_and_none() {
        for n in [0, 1, FEW_ROWS as u32 - 1, FEW_ROWS as u32, 5000] {
            agrees(&planned(0..n), n.max(1));
            agrees(&planned((0..n).rev()), n.max(1));
            agrees(&planned((0..n).map(|_| 7)), 8);
        }
    }
}
