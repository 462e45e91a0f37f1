//! One layer's rows of many nodes, in memory, in a file, or in both.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::atomic::{AtomicU64, Ordering},
};

use rayon::prelude::*;

/// Rows that one task gathers.
const ROWS_PER_TASK: usize = 1024;
/// Most bytes of one read, and most bytes that it skips between two requested rows.
const READ_BYTES: usize = 1 << 20;
const GAP_BYTES: usize = 1 << 14;

/// Rows of equal width by their numbers.
#[derive(Debug)]
pub(crate) struct RowStore {
    pub(crate) width: usize,
    n_rows: usize,
    /// All rows, if the budget has room for them.
    memory: Option<Vec<f32>>,
    /// An unlinked file, which ends with its handle, or the given file.
    file: Option<File>,
}

/// Bytes of memory left.
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
    /// Returns a store for `n_rows` of `width`. Rows are in memory if the budget has room, and in
    /// `file` if one is given; otherwise in a temporary file.
    pub(crate) fn new(
        n_rows: usize,
        width: usize,
        budget: &Budget,
        file: Option<File>,
    ) -> io::Result<Self> {
        let n_elements = n_rows * width;
        let memory = budget.take(4 * n_elements as u64).then(|| vec![0.0; n_elements]);
        let file = match file {
            None if memory.is_none() => Some(tempfile::tempfile()?),
            file => file,
        };
        Ok(Self { width, n_rows, memory, file })
    }

    /// Drops the rows, and returns their memory to the budget.
    pub(crate) fn drop_into(self, budget: &Budget) {
        if let Some(rows) = self.memory {
            budget.0.fetch_add(4 * rows.len() as u64, Ordering::Relaxed);
        }
    }

    /// Sets the rows from number `first` on.
    pub(crate) fn write(&mut self, first: usize, rows: &[f32]) -> io::Result<()> {
        let first = first * self.width;
        if let Some(memory) = &mut self.memory {
            memory[first..][..rows.len()].copy_from_slice(rows);
        }
        match &self.file {
            Some(file) => file.write_all_at(bytemuck::cast_slice(rows), 4 * first as u64),
            None => Ok(()),
        }
    }

    /// Syncs the rows of a file.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_data)
    }

    /// Reads the first `n_rows` of the file into memory, if the store keeps rows there.
    pub(crate) fn load(&mut self, n_rows: usize) -> io::Result<()> {
        match (&mut self.memory, &self.file) {
            (Some(memory), Some(file)) => {
                let rows = &mut memory[..n_rows * self.width];
                file.read_exact_at(bytemuck::cast_slice_mut(rows), 0)
            }
            _ => Ok(()),
        }
    }

    /// Returns all rows in the order of their numbers, in chunks.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = io::Result<Vec<f32>>> {
        let per_read = (READ_BYTES / 4 / self.width.max(1)).max(1);
        (0..self.n_rows).step_by(per_read).map(move |first| {
            let numbers = first as u32..(first + per_read).min(self.n_rows) as u32;
            self.gather(&numbers.collect::<Vec<_>>())
        })
    }

    /// Returns the rows with these numbers; ascending numbers are fastest.
    pub(crate) fn gather(&self, numbers: &[u32]) -> io::Result<Vec<f32>> {
        let mut out = vec![0.0; numbers.len() * self.width];
        let tasks = out.par_chunks_mut(ROWS_PER_TASK * self.width.max(1));
        tasks.zip(numbers.par_chunks(ROWS_PER_TASK)).try_for_each(|(out, numbers)| {
            match (&self.memory, &self.file) {
                (Some(rows), _) => {
                    for (out, &number) in out.chunks_exact_mut(self.width).zip(numbers) {
                        out.copy_from_slice(&rows[number as usize * self.width..][..self.width]);
                    }
                    Ok(())
                }
                (None, Some(file)) => self.read(file, numbers, out),
                (None, None) => unreachable!("rows are in memory or in a file"),
            }
        })?;
        Ok(out)
    }

    /// Reads rows from the file; adjacent rows by one read.
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
        for (n_bytes, is_named) in
            [(60_000, false), (59_999, false), (60_000, true), (59_999, true)]
        {
            let (budget, is_file) = (Budget::new(n_bytes), n_bytes < 60_000);
            let file = tempfile::tempfile().unwrap();
            let given = is_named.then(|| file.try_clone().unwrap());
            let mut store = RowStore::new(n_rows, width, &budget, given).unwrap();
            // Pieces in any order.
            for piece in (0..n_rows.div_ceil(17)).rev() {
                let of_piece = &rows[piece * 17 * width..];
                let of_piece = &of_piece[..of_piece.len().min(17 * width)];
                store.write(piece * 17, of_piece).unwrap();
            }
            assert_eq!(
                [store.memory.is_none(), store.file.is_some()],
                [is_file, is_file || is_named]
            );
            store.sync().unwrap();
            for order in &orders {
                let row = |&number: &u32| rows[number as usize * width..][..width].to_vec();
                let expected: Vec<f32> = order.iter().flat_map(row).collect();
                assert_eq!(store.gather(order).unwrap(), expected);
            }
            assert_eq!(store.gather(&[]).unwrap(), [0.0; 0]);
            assert_eq!(store.pieces().flat_map(Result::unwrap).collect::<Vec<_>>(), rows);
            store.drop_into(&budget);
            if is_named {
                // From the file once more, into memory where there is room.
                let mut again = RowStore::new(n_rows, width, &budget, Some(file)).unwrap();
                again.load(n_rows).unwrap();
                assert_eq!(again.gather(&orders[1]).unwrap().last(), Some(&2.0));
                again.drop_into(&budget);
            }
            assert_eq!(budget.0.into_inner(), n_bytes);
        }
    }
}
