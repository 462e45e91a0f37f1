//! Memory of one batch of rows, and copies of rows to their positions in it.

use bytemuck::Pod;

/// Rows as bytes, aligned for every dtype. The memory is reused for one batch after another.
#[derive(Debug, Default)]
pub struct RowBuffer {
    words: Vec<u64>,
    n_bytes: usize,
}

impl RowBuffer {
    /// Resizes to exactly `n_bytes`; their content is unspecified until written.
    ///
    /// Memory grows to the largest batch and is kept, so that a steady run allocates nothing.
    pub fn resize(&mut self, n_bytes: usize) {
        let n_words = n_bytes.div_ceil(size_of::<u64>());
        if self.words.len() < n_words {
            // Not `resize`, which would copy the old rows for nothing. The old memory is freed
            // first.
            self.words = Vec::new();
            self.words = vec![0; n_words];
        }
        self.n_bytes = n_bytes;
    }

    /// Returns the rows.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.n_bytes]
    }

    /// Returns the rows for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.n_bytes]
    }

    /// Returns the rows as elements; bytes past the last whole element are left out.
    #[must_use]
    pub fn elements<T: Pod>(&self) -> &[T] {
        let whole = self.n_bytes / size_of::<T>() * size_of::<T>();
        bytemuck::cast_slice(&self.bytes()[..whole])
    }

    /// Returns the number of allocated bytes.
    #[must_use]
    pub(crate) fn capacity(&self) -> usize {
        size_of_val(&self.words[..])
    }
}

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

    #[test]
    fn keeps_its_memory_for_smaller_batches() {
        let mut buffer = RowBuffer::default();
        assert!(buffer.bytes().is_empty());
        buffer.resize(13);
        let place = buffer.bytes().as_ptr();
        buffer.bytes_mut().fill(7);
        buffer.resize(8);
        assert_eq!(buffer.bytes(), [7; 8]);
        assert_eq!(buffer.bytes().as_ptr(), place);
        assert_eq!(buffer.elements::<u16>(), [0x0707; 4]);
        buffer.resize(5);
        assert_eq!(buffer.elements::<f32>().len(), 1);
    }

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
