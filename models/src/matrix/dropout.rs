//! Activations, and dropout with a mask that is a function of keys.

use rayon::prelude::*;

use crate::{
    matrix::sparse::SparsePiece, matrix::spmm::ROWS_PER_TASK, matrix::workspace::Workspace,
    random::CounterRandom,
};

/// Elements per parallel task.
const ELEMENTS_PER_TASK: usize = 1 << 14;

/// Keeps each element with probability `1 - rate` and scales it to keep the mean.
///
/// An element's draw depends on the step's seed, the layer, the key of its row and its column
/// alone. Rows are keyed by their nodes, so a node drops the same in any batch, worker or place.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// The stream of one layer in one step.
    random: CounterRandom,
    /// Draws out of 65 536 that drop an element.
    dropped: u32,
}

/// Dropout of given rows.
#[derive(Clone, Debug)]
pub struct Mask {
    dropout: Dropout,
    /// One key for each row.
    keys: Vec<u64>,
}

/// Map of an element before dropout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// `x` where it is positive, `exp(x) - 1` elsewhere (Clevert et al. 2016, equation 15).
    Elu,
}

impl Dropout {
    /// Returns the dropout of one layer in one step; `rate` is in [0, 1), and 0 is none.
    #[must_use]
    pub(crate) fn new(rate: f32, seed: u64, layer: u64) -> Option<Self> {
        debug_assert!((0.0..1.0).contains(&rate));
        let dropped = (rate * 65_536.0) as u32;
        (dropped > 0).then(|| Self { random: CounterRandom::new(seed, layer), dropped })
    }

    /// Drops elements of the row of `key`.
    fn apply(self, key: u64, row: &mut [f32]) {
        let (Self { random, dropped }, scale) = (self, self.scale());
        random.substream(key).for_each_lane(row, |value, draw| {
            *value *= if u32::from(draw) < dropped { 0.0 } else { scale };
        });
    }

    /// Returns what elements that are kept are multiplied with.
    fn scale(self) -> f32 {
        65_536.0 / (65_536 - self.dropped) as f32
    }

    /// Returns the mask of rows with these keys.
    pub fn mask(self, keys: impl Iterator<Item = u64>) -> Mask {
        Mask { dropout: self, keys: keys.collect() }
    }
}

impl Mask {
    /// Appends row number `row`, of these elements, to `piece`, less those that are dropped. Among
    /// these it keeps the ones that are not finite as NaN, as [`Self::apply`] does.
    pub(crate) fn push_row(
        &self,
        row: usize,
        elements: impl Iterator<Item = (u32, f32)>,
        piece: &mut SparsePiece,
    ) {
        let factor_of = self.factors(row);
        for (column, value) in elements {
            let factor = factor_of(column);
            if factor != 0.0 || !value.is_finite() {
                piece.push(column, value * factor);
            }
        }
        piece.end_row();
    }

    /// Drops elements of row number `row`, which are in `columns`.
    pub(crate) fn apply_to_row(&self, row: usize, columns: &[u32], values: &mut [f32]) {
        let factor_of = self.factors(row);
        values.iter_mut().zip(columns).for_each(|(value, &column)| *value *= factor_of(column));
    }

    /// Returns what the element of row number `row` in a column is multiplied with.
    fn factors(&self, row: usize) -> impl Fn(u32) -> f32 {
        let (Dropout { random, dropped }, scale) = (self.dropout, self.dropout.scale());
        let random = random.substream(self.keys[row]);
        move |column| if u32::from(random.lane(column.into())) < dropped { 0.0 } else { scale }
    }

    /// Drops elements of `values`, rows of equal width.
    pub fn apply(&self, values: &mut [f32]) {
        let width = self.width(values.len());
        let rows = values.par_chunks_exact_mut(width).zip(&*self.keys);
        rows.with_min_len(ROWS_PER_TASK).for_each(|(row, &key)| self.dropout.apply(key, row));
    }

    /// Returns the elements of each row, at least 1, of `n_values` in all.
    fn width(&self, n_values: usize) -> usize {
        (n_values / self.keys.len().max(1)).max(1)
    }
}

impl Activation {
    /// Returns the rows `x` after the activation and dropout by `mask`.
    pub fn forward(self, x: &[f32], mask: Option<&Mask>, workspace: &Workspace) -> Vec<f32> {
        let mut out = workspace.take(x.len());
        let Some(mask) = mask else {
            let pieces = out.par_chunks_mut(ELEMENTS_PER_TASK).zip(x.par_chunks(ELEMENTS_PER_TASK));
            pieces.for_each(|(out, x)| self.apply(x, out));
            return out;
        };
        let width = mask.width(x.len());
        let rows = out.par_chunks_exact_mut(width).zip(x.par_chunks_exact(width)).zip(&*mask.keys);
        rows.with_min_len(ROWS_PER_TASK).for_each(|((out, x), &key)| {
            self.apply(x, out);
            mask.dropout.apply(key, out);
        });
        out
    }

    /// Turns the gradient of the output for `x` into that of `x`.
    pub fn backward(self, x: &[f32], mask: Option<&Mask>, grad: &mut [f32]) {
        let Some(mask) = mask else {
            let pieces =
                grad.par_chunks_mut(ELEMENTS_PER_TASK).zip(x.par_chunks(ELEMENTS_PER_TASK));
            pieces.for_each(|(grad, x)| self.apply_slopes(x, grad));
            return;
        };
        let width = mask.width(x.len());
        let rows = grad.par_chunks_exact_mut(width).zip(x.par_chunks_exact(width)).zip(&*mask.keys);
        rows.with_min_len(ROWS_PER_TASK).for_each(|((grad, x), &key)| {
            self.apply_slopes(x, grad);
            mask.dropout.apply(key, grad);
        });
    }

    // Not `x.max(0.0)`: it would turn NaN into 0 and hide that training has diverged. One loop for
    // each activation, without branches, so that it is compiled to vector instructions.
    fn apply(self, x: &[f32], out: &mut [f32]) {
        let pairs = out.iter_mut().zip(x);
        match self {
            Self::Relu => pairs.for_each(|(out, &x)| *out = if x < 0.0 { 0.0 } else { x }),
            Self::Elu => pairs.for_each(|(out, &x)| *out = if x < 0.0 { x.exp_m1() } else { x }),
        }
    }

    /// Multiplies `grad` by the derivatives at `x`.
    fn apply_slopes(self, x: &[f32], grad: &mut [f32]) {
        let pairs = grad.iter_mut().zip(x);
        match self {
            Self::Relu => pairs.for_each(|(grad, &x)| *grad *= if x > 0.0 { 1.0 } else { 0.0 }),
            Self::Elu => pairs.for_each(|(grad, &x)| *grad *= if x < 0.0 { x.exp() } else { 1.0 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::sparse::SparseRows;

    fn mask(rate: f32, seed: u64, layer: u64) -> Mask {
        Dropout::new(rate, seed, layer).unwrap().mask(0..7)
    }

    #[test]
    fn a_row_has_the_mask_of_its_key_wherever_it_is() {
        let masks = |keys: &[u64], seed, layer| {
            let mut rows = vec![1.0; 70 * keys.len()];
            Dropout::new(0.5, seed, layer).unwrap().mask(keys.iter().copied()).apply(&mut rows);
            rows.chunks_exact(70).map(<[f32]>::to_vec).collect::<Vec<_>>()
        };
        let (few, many) = (masks(&[7, 3], 1, 0), masks(&[0, 3, 9, 7, 1 << 40], 1, 0));
        assert_eq!((&few[0], &few[1]), (&many[3], &many[1]));
        for (i, row) in many.iter().enumerate() {
            assert!(many[..i].iter().all(|other| other != row), "row {i}");
        }
        // The step's seed and the layer are parts of the key.
        assert_ne!(masks(&[7], 2, 0), masks(&[7], 1, 0));
        assert_ne!(masks(&[7], 1, 1), masks(&[7], 1, 0));
    }

    #[test]
    fn keeps_the_mean_and_zeroes_the_rate() {
        let n = 70_000;
        let out =
            Activation::Relu.forward(&vec![1.0; n], Some(&mask(0.3, 1, 0)), &Workspace::default());
        let zeros = out.iter().filter(|&&v| v == 0.0).count() as f32 / n as f32;
        assert!((zeros - 0.3).abs() < 0.01, "{zeros}");
        assert!(out.iter().all(|&v| v == 0.0 || (v - 1.0 / 0.7).abs() < 1e-4));
    }

    #[test]
    fn gradient_uses_the_mask_of_the_forward_pass() {
        let x: Vec<f32> = (0..203).map(|i| if i % 3 == 0 { -1.0 } else { 2.0 }).collect();
        for activation in [Activation::Relu, Activation::Elu] {
            let mask = mask(0.5, 9, 0);
            let out = activation.forward(&x, Some(&mask), &Workspace::default());
            let mut grad = vec![1.0; x.len()];
            activation.backward(&x, Some(&mask), &mut grad);
            for ((&x, out), grad) in x.iter().zip(out).zip(grad) {
                let slope = match activation {
                    _ if x > 0.0 => 1.0,
                    Activation::Relu => 0.0,
                    Activation::Elu => (-1f32).exp(),
                };
                // Half of the elements are kept, at twice their value; ReLU shows no mask at x < 0.
                let kept = if out == 0.0 { 0.0 } else { 2.0 };
                assert_eq!(grad, kept * slope, "{activation:?} at {x}");
            }
        }
    }

    #[test]
    fn sparse_and_dense_rows_show_the_same_elements_that_are_not_finite() {
        let (mask, n) = (mask(0.5, 1, 0), 7 * 90);
        let value = |i| [1.5, f32::NAN, f32::INFINITY][i % 3];
        let mut dense: Vec<f32> = (0..n).map(value).collect();
        let mut piece = SparsePiece::default();
        for row in 0..7 {
            let elements = (0..90u32).map(|column| (column, value(90 * row + column as usize)));
            mask.push_row(row, elements, &mut piece);
        }
        mask.apply(&mut dense);
        let sparse = SparseRows::new(90, vec![piece]).to_dense().into_values();
        for (at, (sparse, dense)) in sparse.iter().zip(&dense).enumerate() {
            let is_same = sparse == dense || sparse.is_nan() && dense.is_nan();
            assert!(is_same, "{at}: {sparse} {dense}");
            assert_eq!(dense.is_finite(), at % 3 == 0, "{at}");
        }
    }

    #[test]
    fn without_dropout_activations_are_as_published_and_show_nan() {
        let x = [-1.0f32, 0.0, 2.5, f32::NAN];
        let first = [0.0, (-1f32).exp() - 1.0];
        for (activation, first) in [Activation::Relu, Activation::Elu].into_iter().zip(first) {
            let out = activation.forward(&x, None, &Workspace::default());
            assert!((out[0] - first).abs() < 1e-6, "{activation:?} {}", out[0]);
            assert_eq!(out[1..3], [0.0, 2.5]);
            assert!(out[3].is_nan());
        }
    }
}
