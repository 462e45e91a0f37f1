use super::*;
use crate::random::CounterRandom;

const WIDTH: usize = 5;

/// Returns a normalisation whose parameters are neither 1 nor 0.
fn norm(norm: Norm, width: usize) -> NormLayer {
    let made = NormLayer::new(norm, width).unwrap();
    for (number, parameter) in made.parameters().enumerate() {
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

/// Returns the groups of elements that are normalised together, by their places.
fn groups(norm: Norm, n_rows: usize, width: usize) -> Vec<Vec<usize>> {
    match norm {
        Norm::Batch => (0..width).map(|c| (0..n_rows).map(|r| r * width + c).collect()).collect(),
        _ => (0..n_rows).map(|r| (0..width).map(|c| r * width + c).collect()).collect(),
    }
}

/// Returns the output by the formula, and mean and biased variance of each group.
fn naive(made: &NormLayer, x: &[f64], width: usize) -> (Vec<f64>, Vec<[f64; 2]>) {
    let [weight, bias]: [Vec<f64>; 2] =
        std::array::from_fn(|i| values(made.parameters().nth(i).unwrap()));
    let (mut out, mut statistics) = (vec![0.0; x.len()], Vec::new());
    let norm = if made.running.is_some() { Norm::Batch } else { Norm::Layer };
    for group in groups(norm, x.len() / width, width) {
        let n = group.len() as f64;
        let mean = group.iter().map(|&at| x[at]).sum::<f64>() / n;
        let variance = group.iter().map(|&at| (x[at] - mean).powi(2)).sum::<f64>() / n;
        for at in group {
            let unscaled = (x[at] - mean) / (variance + 1e-5).sqrt();
            out[at] = unscaled * weight[at % width] + bias[at % width];
        }
        statistics.push([mean, variance]);
    }
    (out, statistics)
}

fn wide(rows: &Matrix) -> Vec<f64> {
    rows.values().iter().map(|&x| x.into()).collect()
}

#[test]
fn rows_are_those_of_the_formulas_and_statistics_are_of_the_step() {
    for kind in [Norm::Batch, Norm::Layer] {
        // More rows than one piece of a sum has, one row, and none.
        for n_rows in [2 * ROWS_PER_SUM + 7, 9, 1, 0] {
            let (made, x) = (norm(kind, WIDTH), rows(n_rows, WIDTH));
            let (expected, statistics) = naive(&made, &wide(&x), WIDTH);
            let (found, saved) = made.forward(x, &Workspace::default());
            for (found, expected) in found.values().iter().zip(expected) {
                assert!((f64::from(*found) - expected).abs() < 1e-3, "{kind}: {found} {expected}");
            }
            let Some([means, variances]) = &saved.statistics else {
                assert_eq!(kind, Norm::Layer);
                continue;
            };
            // Those of fewer rows are the running ones: see below.
            for (column, [mean, variance]) in
                statistics.into_iter().enumerate().filter(|_| n_rows > 1)
            {
                let unbiased = variance * n_rows as f64 / (n_rows - 1) as f64;
                assert!((f64::from(means[column]) - mean).abs() < 1e-4);
                assert!((f64::from(variances[column]) - unbiased).abs() < 1e-5, "{n_rows} rows");
            }
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences_of_the_formula() {
    let (width, n_rows, step) = (4, 6, 1e-4);
    for kind in [Norm::Batch, Norm::Layer] {
        let (made, random) = (norm(kind, width), CounterRandom::new(3, 1));
        let workspace = &Workspace::default();
        let x: Vec<f32> = (0..(n_rows * width) as u64).map(|i| 3.0 * random.unit(i)).collect();
        let weights: Vec<f64> = (0..x.len()).map(|i| (i % 5) as f64 - 1.7).collect();
        let loss = |made: &NormLayer, x: &[f64]| -> f64 {
            naive(made, x, width).0.iter().zip(&weights).map(|(y, w)| w * y * y).sum()
        };
        let (out, saved) = made.forward(Matrix::new(x.clone(), width), workspace);
        let grad = out.values().iter().zip(&weights).map(|(&y, &w)| 2.0 * w as f32 * y).collect();
        let (of_parameters, of_rows) = made.gradients(&saved, &Matrix::new(grad, width), workspace);
        let x: Vec<f64> = x.into_iter().map(f64::from).collect();
        let close = |found: f32, up: f64, down: f64| {
            let expected = (up - down) / (2.0 * step);
            let difference = (f64::from(found) - expected).abs();
            assert!(difference < 1e-3 * expected.abs().max(1.0), "{kind}: {found} {expected}");
        };
        for at in 0..x.len() {
            let moved = |by: f64| {
                let mut moved = x.clone();
                moved[at] += by;
                loss(&made, &moved)
            };
            close(of_rows.values()[at], moved(step), moved(-step));
        }
        let trained = made.parameters().take(2);
        let step = 1e-2;
        for (parameter, of_parameter) in trained.zip(&of_parameters) {
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
                assert!(difference < 1e-2 * expected.abs().max(1.0), "{kind}: {found} {expected}");
            }
        }
        assert_eq!(of_parameters.len(), if kind == Norm::Batch { 4 } else { 2 });
    }
}

#[test]
fn evaluation_takes_running_statistics_and_no_others() {
    let (made, x) = (norm(Norm::Batch, WIDTH), rows(9, WIDTH));
    let [weight, bias, mean, variance]: [Vec<f64>; 4] =
        std::array::from_fn(|i| values(made.parameters().nth(i).unwrap()));
    let found = made.evaluate(x.clone());
    for (at, (found, x)) in found.values().iter().zip(wide(&x)).enumerate() {
        let c = at % WIDTH;
        let expected = (x - mean[c]) / (variance[c] + 1e-5).sqrt() * weight[c] + bias[c];
        assert!((f64::from(*found) - expected).abs() < 1e-3, "{found} {expected}");
    }
    // A row is normalised by itself in any company.
    let alone = made.evaluate(Matrix::new(x.rows(1).to_vec(), WIDTH));
    assert_eq!(alone.values(), found.rows(1));
    let of_rows = norm(Norm::Layer, WIDTH);
    let found = of_rows.evaluate(x.clone());
    assert_eq!(found.values(), of_rows.forward(x, &Workspace::default()).0.values());
}

#[test]
fn sums_have_the_same_bits_for_any_number_of_threads() {
    let bits = |n_threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
        pool.install(|| {
            [Norm::Batch, Norm::Layer].map(|kind| {
                let (made, workspace) = (norm(kind, WIDTH), Workspace::default());
                let (out, saved) = made.forward(rows(5000, WIDTH), &workspace);
                let (of_parameters, of_rows) = made.gradients(&saved, &out, &workspace);
                let all = [vec![out.into_values(), of_rows.into_values()], of_parameters].concat();
                all.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
            })
        })
    };
    let expected = bits(1);
    assert!((2..=5).all(|n_threads| bits(n_threads) == expected));
}

#[test]
fn one_row_leaves_running_statistics_where_they_are() {
    let made = norm(Norm::Batch, WIDTH);
    let running: Vec<Vec<f32>> =
        made.parameters().skip(2).map(|parameter| parameter.read().to_vec()).collect();
    let workspace = Workspace::default();
    for (n_rows, stay) in [(0, true), (1, true), (2, false)] {
        let (_, saved) = made.forward(rows(n_rows, WIDTH), &workspace);
        let (gradients, _) = made.gradients(&saved, &rows(n_rows, WIDTH), &workspace);
        assert_eq!(gradients[2..] == running, stay, "{n_rows} rows");
    }
}
