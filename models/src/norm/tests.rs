use super::*;
use crate::random::CounterRandom;

const WIDTH: usize = 5;

/// Returns a normalisation whose parameters are neither 1 nor 0.
fn norm(width: usize) -> NormLayer {
    let made = NormLayer::new(Norm::Layer, width).unwrap();
    for (number, parameter) in made.parameters().into_iter().enumerate() {
        let value = |i: usize| 0.5 + 0.3 * (i + number) as f32;
        let values: Vec<f32> = (0..width).map(value).collect();
        parameter.set(&values);
    }
    made
}

fn rows(n_rows: usize, width: usize) -> Matrix {
    let random = CounterRandom::new(4, n_rows as u64);
    // Far from 0, where a mean square less a squared mean would lose its digits.
    let value = |i: usize| 100.0 * (i % width) as f32 + random.unit(i as u64);
    Matrix::new((0..n_rows * width).map(value).collect(), width)
}

fn values(parameter: &Parameter) -> Vec<f64> {
    parameter.read().iter().map(|&value| value.into()).collect()
}

/// Returns the output by the formula.
fn naive(made: &NormLayer, x: &[f64], width: usize) -> Vec<f64> {
    let [weight, bias] = made.parameters().map(values);
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(width) {
        let mean = row.iter().sum::<f64>() / width as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
        for (column, x) in row.iter().enumerate() {
            let unscaled = (x - mean) / (variance + 1e-5).sqrt();
            out.push(unscaled * weight[column] + bias[column]);
        }
    }
    out
}

fn wide(rows: &Matrix) -> Vec<f64> {
    rows.values().iter().map(|&x| x.into()).collect()
}

#[test]
fn rows_are_those_of_the_formula_in_training_and_evaluation() {
    for n_rows in [2 * ROWS_PER_SUM + 7, 9, 1, 0] {
        let (made, x) = (norm(WIDTH), rows(n_rows, WIDTH));
        let expected = naive(&made, &wide(&x), WIDTH);
        let evaluated = made.evaluate(x.clone());
        let (found, _) = made.forward(x, &Workspace::default());
        assert_eq!(evaluated.values(), found.values());
        for (found, expected) in found.values().iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-3, "{found} {expected}");
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences_of_the_formula() {
    let (width, n_rows, step) = (4, 6, 1e-4);
    let (made, random) = (norm(width), CounterRandom::new(3, 1));
    let workspace = &Workspace::default();
    let x: Vec<f32> = (0..(n_rows * width) as u64).map(|i| 3.0 * random.unit(i)).collect();
    let weights: Vec<f64> = (0..x.len()).map(|i| (i % 5) as f64 - 1.7).collect();
    let loss = |made: &NormLayer, x: &[f64]| -> f64 {
        naive(made, x, width).iter().zip(&weights).map(|(y, w)| w * y * y).sum()
    };
    let (out, saved) = made.forward(Matrix::new(x.clone(), width), workspace);
    let grad = out.values().iter().zip(&weights).map(|(&y, &w)| 2.0 * w as f32 * y).collect();
    let (of_parameters, of_rows) = made.gradients(&saved, &Matrix::new(grad, width), workspace);
    let x: Vec<f64> = x.into_iter().map(f64::from).collect();
    let close = |found: f32, up: f64, down: f64| {
        let expected = (up - down) / (2.0 * step);
        let difference = (f64::from(found) - expected).abs();
        assert!(difference < 1e-3 * expected.abs().max(1.0), "{found} {expected}");
    };
    for at in 0..x.len() {
        let moved = |by: f64| {
            let mut moved = x.clone();
            moved[at] += by;
            loss(&made, &moved)
        };
        close(of_rows.values()[at], moved(step), moved(-step));
    }
    let step = 1e-2;
    for (parameter, of_parameter) in made.parameters().into_iter().zip(&of_parameters) {
        let before = parameter.read().to_vec();
        for (at, &found) in of_parameter.iter().enumerate() {
            let moved = |by: f32| {
                let mut moved = before.clone();
                moved[at] += by;
                parameter.set(&moved);
                let loss = loss(&made, &x);
                parameter.set(&before);
                loss
            };
            let expected = (moved(step) - moved(-step)) / (2.0 * f64::from(step));
            let difference = (f64::from(found) - expected).abs();
            assert!(difference < 1e-2 * expected.abs().max(1.0), "{found} {expected}");
        }
    }
    assert_eq!(of_parameters.len(), 2);
}

#[test]
fn sums_have_the_same_bits_for_any_number_of_threads() {
    let bits = |n_threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
        pool.install(|| {
            let (made, workspace) = (norm(WIDTH), Workspace::default());
            let (out, saved) = made.forward(rows(5000, WIDTH), &workspace);
            let (of_parameters, of_rows) = made.gradients(&saved, &out, &workspace);
            let all = [vec![out.into_values(), of_rows.into_values()], of_parameters].concat();
            all.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
        })
    };
    let expected = bits(1);
    assert!((2..=5).all(|n_threads| bits(n_threads) == expected));
}
