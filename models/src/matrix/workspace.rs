//! Memory of matrices, which one step leaves to the next.
//!
//! Rows of a layer take megabytes. Memory that the system allocates and frees for each of them
//! comes as zero pages, with one fault each. That costs a fifth of a step and more.

use std::cell::RefCell;

use crate::{matrix::Matrix, matrix::sparse::Rows};

/// Fewer elements come from the allocator, which keeps such pieces itself.
const LEAST_ELEMENTS: usize = 1 << 14;

/// Memory this many times as large as the request is left for others.
const MOST_TIMES: usize = 4;

/// Steps after which memory that none has used is given back.
const IDLE_STEPS: u32 = 2;

/// Memory that a worker's matrices share over time. Each step takes what it needs and returns it
/// back; there is never more than its matrices took together.
#[derive(Debug, Default)]
pub struct Workspace {
    free: RefCell<Vec<Idle>>,
}

#[derive(Debug)]
struct Idle {
    memory: Vec<f32>,
    n_steps: u32,
}

impl Workspace {
    /// Returns `len` elements of any values.
    pub fn take(&self, len: usize) -> Vec<f32> {
        let mut free = self.free.borrow_mut();
        let fits = |idle: &Idle| {
            let capacity = idle.memory.capacity();
            capacity >= len && capacity / MOST_TIMES <= len
        };
        let fitting = free.iter().enumerate().filter(|(_, idle)| fits(idle));
        let best = fitting.min_by_key(|(_, idle)| idle.memory.capacity()).map(|(at, _)| at);
        let mut memory = match best {
            Some(at) => free.swap_remove(at).memory,
            // Room for a batch of some more rows.
            None if len >= LEAST_ELEMENTS => Vec::with_capacity(len + len / 16),
            None => Vec::new(),
        };
        memory.resize(len, 0.0);
        if cfg!(debug_assertions) {
            // Finds code that expects zeros.
            memory.fill(f32::NAN);
        }
        memory
    }

    /// Returns a copy of `values`.
    pub fn copy(&self, values: &[f32]) -> Vec<f32> {
        let mut copy = self.take(values.len());
        copy.copy_from_slice(values);
        copy
    }

    /// Takes memory back.
    pub fn give(&self, memory: Vec<f32>) {
        if memory.capacity() >= LEAST_ELEMENTS {
            self.free.borrow_mut().push(Idle { memory, n_steps: 0 });
        }
    }

    /// Takes the memory of a matrix back.
    pub fn give_matrix(&self, matrix: Matrix) {
        self.give(matrix.into_values());
    }

    /// Takes the memory of rows back.
    pub fn give_rows(&self, rows: Rows) {
        if let Rows::Dense(rows) = rows {
            self.give_matrix(rows);
        }
    }

    /// Ends a step: drops memory that it and those before have not used.
    pub fn end_step(&self) {
        let mut free = self.free.borrow_mut();
        free.retain(|idle| idle.n_steps < IDLE_STEPS);
        free.iter_mut().for_each(|idle| idle.n_steps += 1);
    }

    /// Drops all memory.
    pub fn clear(&self) {
        self.free.borrow_mut().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_to_what_it_fits() {
        let workspace = Workspace::default();
        let place = |memory: &[f32]| memory.as_ptr() as usize;
        let (large, small) = (workspace.take(400_000), workspace.take(100_000));
        let [of_large, of_small] = [&large, &small].map(|memory| place(memory));
        workspace.give(large);
        workspace.give(small);
        // The smallest that fits, and never memory of many times the size.
        let first = workspace.take(90_000);
        assert_eq!((place(&first), first.len()), (of_small, 90_000));
        let second = workspace.take(90_000);
        assert_ne!(place(&second), of_large);
        let third = workspace.take(390_000);
        assert_eq!((place(&third), third.len()), (of_large, 390_000));
        assert_eq!(workspace.copy(&[1.0, 2.0]), [1.0, 2.0]);
    }

    #[test]
    fn memory_that_no_step_uses_is_given_back() {
        let workspace = Workspace::default();
        let n_free = || workspace.free.borrow().len();
        let (used, idle) = (workspace.take(100_000), workspace.take(1_000_000));
        workspace.give(used);
        workspace.give(idle);
        for left in [2, 2, 1, 1] {
            let used = workspace.take(100_000);
            workspace.give(used);
            workspace.end_step();
            assert_eq!(n_free(), left);
        }
        workspace.give(vec![0.0; 10]);
        assert_eq!(n_free(), 1);
        workspace.clear();
        assert_eq!(n_free(), 0);
    }
}
