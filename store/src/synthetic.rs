//! Features for generated graphs: informative, and too noisy to be enough on their own.
//!
//! Row of a node = mean of its class + noise. The means of two classes are [`SEPARATION`] noise
//! deviations apart, so a linear classifier on single rows often errs. A mean over the neighbours
//! that share the class keeps the signal and divides the noise, which is what a GNN does. Numbers
//! come from integer arithmetic alone, so the same seed produces the same bytes everywhere.

use std::path::Path;

use lodestore_graph::npy::{NpyArray, NpyType, NpyWriter};
use lodestore_graph::splitmix64;

use crate::dtype::Dtype;
use crate::source::SourceError;
use crate::tensor::TensorSpec;

/// Distance of two class means, in deviations of the noise along the line between them.
///
/// 2 leaves one in six wrong between two classes, and more than half wrong among sixteen.
pub const SEPARATION: f32 = 2.0;

/// Rows are written in pieces of about this many bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// Writes an array of shape (nodes, `dim`), `f32`, for the `i64` labels in `labels_npy`.
///
/// Memory: 1 MiB. A node with a negative label gets noise alone. `progress` receives rows done and
/// rows in all.
pub fn write_features(
    labels_npy: &Path,
    dim: u32,
    seed: u64,
    path: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), SourceError> {
    let labels = NpyArray::open(labels_npy)?;
    let &[n_nodes] = labels.shape() else {
        let (file, found) = (labels_npy.to_owned(), labels.shape().to_vec());
        return Err(SourceError::Shape { file, found });
    };
    TensorSpec::new("feat", Dtype::F32, dim)
        .map_err(|source| SourceError::Spec { file: path.to_owned(), source })?;
    if labels.dtype() != NpyType::I64 {
        let (file, found) = (labels_npy.to_owned(), labels.dtype().to_string());
        return Err(SourceError::Dtype { file, found });
    }
    let mut writer = NpyWriter::create(path, NpyType::F32, &[n_nodes, u64::from(dim)])?;
    let chunk_rows = (CHUNK_BYTES / (4 * dim as usize)).max(1);
    let mut buffer = Vec::with_capacity(chunk_rows * dim as usize * 4);
    let mut row = vec![0f32; dim as usize];
    let mut node = 0u64;
    for labels in labels.bytes().chunks(chunk_rows * 8) {
        buffer.clear();
        for label in labels.as_chunks::<8>().0 {
            fill_row(&mut row, seed, node, i64::from_le_bytes(*label));
            buffer.extend(row.iter().flat_map(|x| x.to_le_bytes()));
            node += 1;
        }
        writer.write_all(&buffer)?;
        progress(node, n_nodes);
    }
    Ok(writer.finish()?)
}

/// Fills a row with the features of one node.
fn fill_row(row: &mut [f32], seed: u64, node: u64, label: i64) {
    // Two means, each with deviation `strength` per dimension, lie about strength * sqrt(2 dim)
    // apart; integer square roots and one division are exact on every machine.
    let strength = SEPARATION / (2.0 * row.len() as f32).sqrt();
    let noise = splitmix64(seed ^ splitmix64(node));
    let mean = splitmix64(splitmix64(seed) ^ splitmix64(label as u64 ^ 0x6c61_6265_6c73));
    for (x, i) in row.iter_mut().zip(0u64..) {
        *x = normal(noise.wrapping_add(splitmix64(i)));
        if label >= 0 {
            *x += strength * normal(mean.wrapping_add(splitmix64(i)));
        }
    }
}

/// Returns a number from a distribution close to the standard normal one: the sum of four uniform
/// ones.
fn normal(counter: u64) -> f32 {
    let bits = splitmix64(counter);
    let sum: u32 = (0..4).map(|lane| u32::from((bits >> (16 * lane)) as u16)).sum();
    // Four uniform numbers below 2^16 have mean 4 * (2^16 - 1) / 2 and deviation 2^16 / sqrt(3).
    (sum as f32 - 131_070.0) * (1.732_050_8 / 65_536.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_standard_and_means_are_apart() {
        let dim = 128;
        let mut rows = vec![vec![0f32; dim]; 4000];
        for (row, node) in rows.iter_mut().zip(0u64..) {
            fill_row(row, 7, node, (node % 2) as i64);
        }
        let mean = |class: usize| -> Vec<f32> {
            let of_class = rows.iter().skip(class).step_by(2);
            let sums = of_class.fold(vec![0f32; dim], |sums, row| {
                sums.iter().zip(row).map(|(s, x)| s + x).collect()
            });
            sums.iter().map(|s| s / 2000.0).collect()
        };
        let (a, b) = (mean(0), mean(1));
        let distance = a.iter().zip(&b).map(|(x, y)| (x - y) * (x - y)).sum::<f32>().sqrt();
        assert!((1.6..2.5).contains(&distance), "{distance}");
        let noise: Vec<f32> =
            rows.iter().step_by(2).flat_map(|row| row.iter().zip(&a).map(|(x, m)| x - m)).collect();
        let variance = noise.iter().map(|x| x * x).sum::<f32>() / noise.len() as f32;
        assert!((0.97..1.03).contains(&variance), "{variance}");
    }

    #[test]
    fn bytes_depend_on_seed_node_and_label_only() {
        let mut rows = [[0f32; 5]; 4];
        fill_row(&mut rows[0], 1, 9, 2);
        fill_row(&mut rows[1], 2, 9, 2);
        fill_row(&mut rows[2], 1, 8, 2);
        fill_row(&mut rows[3], 1, 9, -1);
        for other in 1..4 {
            assert_ne!(rows[0], rows[other]);
        }
        // Pinned: other numbers would change every generated graph.
        assert_eq!(
            rows[0].map(f32::to_bits),
            [1_059_919_364, 3_162_436_160, 3_221_877_632, 1_076_269_494, 1_067_768_122]
        );
    }
}
