//! One layer's rows of many nodes, in memory or in a file.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::atomic::{AtomicU64, Ordering},
};

use rayon::prelude::*;

/// Rows that one task gathers.
const ROWS_PER_TASK: usize = 1024;
/// Most bytes that one read takes, and most that it skips between two rows that are wanted.
const READ_BYTES: usize = 1 << 20;
const GAP_BYTES: usize = 1 << 14;

/// Rows of equal width, appended in order and then read in any.
#[derive(Debug)]
pub(crate) struct RowStore {
    width: usize,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Memory(Vec<f32>),
    /// A file without a name, which goes with its handle.
    File {
        file: File,
        n_bytes: u64,
    },
}

/// Bytes of memory that may still be taken.
#[derive(Debug)]
pub(crate) struct Budget(AtomicU64);

impl Budget {
    pub(crate) fn new(n_bytes: u64) -> Self {
        Self(AtomicU64::new(n_bytes))
    }

    fn take(&self, n_bytes: u64) -> bool {
        let less = |left: u64| left.checked_sub(n_bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

impl RowStore {
    /// Makes a store for `n_rows` of `width`: in memory if the budget has room for them, else in a
    /// temporary file.
    pub(crate) fn new(n_rows: usize, width: usize, budget: &Budget) -> io::Result<Self> {
        let place = if budget.take(4 * (n_rows * width) as u64) {
            Place::Memory(Vec::with_capacity(n_rows * width))
        } else {
            Place::File { file: tempfile::tempfile()?, n_bytes: 0 }
        };
        Ok(Self { width, place })
    }

    /// Returns the elements of a row.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Drops the rows, and gives the memory back to the budget that it came from.
    pub(crate) fn drop_into(self, budget: &Budget) {
        if let Place::Memory(rows) = self.place {
            budget.0.fetch_add(4 * rows.capacity() as u64, Ordering::Relaxed);
        }
    }

    /// Appends rows.
    pub(crate) fn append(&mut self, rows: &[f32]) -> io::Result<()> {
        match &mut self.place {
            Place::Memory(all) => all.extend_from_slice(rows),
            Place::File { file, n_bytes } => {
                let bytes: &[u8] = bytemuck::cast_slice(rows);
                file.write_all_at(bytes, *n_bytes)?;
                *n_bytes += bytes.len() as u64;
            }
        }
        Ok(())
    }

    /// Returns the rows with these numbers; rising numbers are read fastest.
    pub(crate) fn gather(&self, numbers: &[u32]) -> io::Result<Vec<f32>> {
        let mut out = vec![0.0; numbers.len() * self.width];
        let tasks = out.par_chunks_mut(ROWS_PER_TASK * self.width.max(1));
        tasks.zip(numbers.par_chunks(ROWS_PER_TASK)).try_for_each(|(out, numbers)| match &self
            .place
        {
            Place::Memory(rows) => {
                for (out, &number) in out.chunks_exact_mut(self.width).zip(numbers) {
                    out.copy_from_slice(&rows[number as usize * self.width..][..self.width]);
                }
                Ok(())
            }
            Place::File { file, .. } => self.read(file, numbers, out),
        })?;
        Ok(out)
    }

    /// Reads rows from the file: near ones together.
    fn read(&self, file: &File, mut numbers: &[u32], mut out: &mut [f32]) -> io::Result<()> {
        let row_bytes = 4 * self.width;
        let mut bytes = Vec::new();
        while let [first, ..] = *numbers {
            let is_near = |pair: &[u32]| {
                let is_rising = pair[0] < pair[1];
                is_rising
                    && (pair[1] - pair[0]) as usize * row_bytes <= GAP_BYTES.max(row_bytes)
                    && (pair[1] - first + 1) as usize * row_bytes <= READ_BYTES
            };
            let n_rows = 1 + numbers.windows(2).take_while(|&pair| is_near(pair)).count();
            let (run, rest) = numbers.split_at(n_rows);
            let n_bytes = (run[n_rows - 1] - first + 1) as usize * row_bytes;
            bytes.resize(n_bytes, 0);
            file.read_exact_at(&mut bytes, u64::from(first) * row_bytes as u64)?;
            let (of_run, others) = out.split_at_mut(n_rows * self.width);
            for (out, number) in of_run.chunks_exact_mut(self.width).zip(run) {
                let row = &bytes[(number - first) as usize * row_bytes..][..row_bytes];
                bytemuck::cast_slice_mut(out).copy_from_slice(row);
            }
            (numbers, out) = (rest, others);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_from_memory_and_from_a_file_in_any_order() {
        let (n_rows, width) = (5000usize, 3);
        let rows: Vec<f32> = (0..n_rows * width).map(|i| i as f32).collect();
        let scattered = (0..n_rows as u32).map(|i| i * 1667 % 5000);
        let orders: [Vec<u32>; 4] = [
            (0..n_rows as u32).collect(),
            (0..n_rows as u32).rev().collect(),
            scattered.collect(),
            vec![7, 7, 4999, 0, 1, 2],
        ];
        for (n_bytes, is_file) in [(60_000, false), (59_999, true)] {
            let budget = Budget::new(n_bytes);
            let mut store = RowStore::new(n_rows, width, &budget).unwrap();
            rows.chunks(17 * width).for_each(|rows| store.append(rows).unwrap());
            assert_eq!(matches!(store.place, Place::File { .. }), is_file);
            for order in &orders {
                let row = |&number: &u32| rows[number as usize * width..][..width].to_vec();
                let expected: Vec<f32> = order.iter().flat_map(row).collect();
                assert_eq!(store.gather(order).unwrap(), expected);
            }
            assert_eq!(store.gather(&[]).unwrap(), [0.0; 0]);
            store.drop_into(&budget);
            assert_eq!(budget.0.into_inner(), n_bytes);
        }
    }
}
