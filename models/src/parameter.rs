//! Parameters of a model, which its layers and its optimiser share.

use std::{
    ops::{Deref, Range},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use crate::matrix::MatrixView;

/// A matrix or a vector of f32. Clones share their values.
///
/// Workers of a process share a model. They read its parameters in a step, and the optimiser
/// writes them between two steps.
#[derive(Clone, Debug)]
pub struct Parameter {
    shape: Vec<usize>,
    values: Arc<RwLock<Vec<f32>>>,
}

/// The values of a parameter, or of some of its rows. While they are read, nothing changes the
/// parameter.
#[derive(Debug)]
pub struct Values<'p> {
    all: RwLockReadGuard<'p, Vec<f32>>,
    elements: Range<usize>,
    width: usize,
}

impl Parameter {
    /// Makes a parameter of `shape`: (length,) or (rows, columns). Matrices are row-major.
    ///
    /// # Panics
    ///
    /// The shape has another number of elements.
    pub fn new(values: Vec<f32>, shape: &[usize]) -> Self {
        assert_eq!(values.len(), shape.iter().product::<usize>(), "elements of shape {shape:?}");
        Self { shape: shape.to_vec(), values: Arc::new(RwLock::new(values)) }
    }

    /// Makes a vector of zeros.
    pub(crate) fn zeros(len: usize) -> Self {
        Self::new(vec![0.0; len], &[len])
    }

    /// Returns the length of a vector, or the rows and columns of a matrix.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of elements.
    pub fn n_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the columns of a matrix, or the length of a vector.
    pub fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Returns all values.
    pub fn read(&self) -> Values<'_> {
        let all = self.values.read().unwrap_or_else(PoisonError::into_inner);
        Values { elements: 0..all.len(), width: self.width(), all }
    }

    /// Returns the values of some rows of a matrix.
    pub fn read_rows(&self, rows: Range<usize>) -> Values<'_> {
        let width = self.width();
        Values { elements: rows.start * width..rows.end * width, ..self.read() }
    }

    /// Returns all values, to be changed.
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Vec<f32>> {
        self.values.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces all values.
    ///
    /// # Panics
    ///
    /// The parameter has another number of elements.
    pub fn set(&self, values: &[f32]) {
        self.write().copy_from_slice(values);
    }
}

impl Values<'_> {
    /// Returns the values as a matrix.
    pub fn matrix(&self) -> MatrixView<'_> {
        MatrixView::new(self, self.width)
    }
}

impl Deref for Values<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.all[self.elements.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_their_values_and_rows_are_those_of_the_matrix() {
        let matrix = Parameter::new(vec![0.0; 6], &[3, 2]);
        let shared = matrix.clone();
        matrix.set(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(*shared.read(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(*shared.read_rows(1..3), [3.0, 4.0, 5.0, 6.0]);
        let rows = shared.read_rows(1..3);
        assert_eq!((rows.matrix().n_rows(), rows.matrix().width()), (2, 2));
        assert_eq!((shared.shape(), shared.n_elements(), shared.width()), (&[3, 2][..], 6, 2));
    }
}
