//! Rows pulled together, put where each belongs.

/// Copies row `i` of `rows` to row `positions[i]` of `out`, which has room for all of them.
pub(crate) fn scatter(rows: &[u8], row_bytes: usize, positions: &[u32], out: &mut [u8]) {
    for (row, &position) in rows.chunks_exact(row_bytes).zip(positions) {
        out[position as usize * row_bytes..][..row_bytes].copy_from_slice(row);
    }
}

/// Moves the last `positions.len()` rows of `rows` to `positions`, first row first.
///
/// Row `i` of `k` is at `n - k + i`. The rising positions leave room for the `k - 1 - i` after it,
/// so `positions[i] <= n - k + i`: no move overwrites a row that is still to move.
pub(crate) fn spread(rows: &mut [u8], row_bytes: usize, positions: &[u32]) {
    let mut from = rows.len() - positions.len() * row_bytes;
    for &position in positions {
        let to = position as usize * row_bytes;
        if to != from {
            rows.copy_within(from..from + row_bytes, to);
        }
        from += row_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn spread_agrees_with_a_second_buffer(
            wanted in prop::collection::vec(any::<bool>(), 0..40),
            row_bytes in 1usize..5,
        ) {
            let positions: Vec<u32> = (0..).zip(&wanted).filter(|(_, w)| **w).map(|(i, _)| i)
                .collect();
            let mut rows: Vec<u8> = (0..wanted.len() * row_bytes).map(|i| i as u8).collect();
            let tail = rows[(wanted.len() - positions.len()) * row_bytes..].to_vec();
            spread(&mut rows, row_bytes, &positions);
            for (i, &position) in positions.iter().enumerate() {
                prop_assert_eq!(
                    &rows[position as usize * row_bytes..][..row_bytes],
                    &tail[i * row_bytes..][..row_bytes]
                );
            }
        }
    }
}
