//! From cells to the cost model of plans: a request of n bytes costs 1 / IOPS + n / bandwidth.

use std::collections::BTreeMap;

use super::ProbeCell;
use crate::plan::DiskProfile;

/// Limit of both constants of the model, as a factor by which they may be better than the best
/// measured value. Without it noise could make one of them infinite or negative.
const BEYOND_MEASURED: f64 = 20.0;

/// Fits the model to the best depth of each request size, by least squares of relative errors. From
/// four sizes on it leaves out the one without which the others agree best.
///
/// Returns `None` for fewer than two sizes, and for figures that no device has.
#[must_use]
pub(super) fn fit(cells: &[ProbeCell]) -> Option<DiskProfile> {
    let costs = best_costs(cells);
    if costs.len() < 2 {
        return None;
    }
    let line = if costs.len() < 4 { line(&costs) } else { robust_line(&costs) };
    let profile =
        DiskProfile { iops: 1.0 / line.request_s, bandwidth_bytes_per_s: 1.0 / line.byte_s };
    profile.is_sensible().then_some(profile)
}

/// Cost of a request of some size at the depth that suits it best.
#[derive(Clone, Copy, Debug)]
struct Cost {
    n_bytes: f64,
    seconds: f64,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    request_s: f64,
    byte_s: f64,
}

fn best_costs(cells: &[ProbeCell]) -> Vec<Cost> {
    let mut best: BTreeMap<u64, f64> = BTreeMap::new();
    let sensible = |cell: &&ProbeCell| cell.request_bytes > 0 && (1e-3..1e12).contains(&cell.iops);
    for cell in cells.iter().filter(sensible) {
        let iops = best.entry(cell.request_bytes).or_insert(cell.iops);
        *iops = iops.max(cell.iops);
    }
    best.iter().map(|(&n, iops)| Cost { n_bytes: n as f64, seconds: 1.0 / iops }).collect()
}

fn robust_line(costs: &[Cost]) -> Line {
    let without = |left_out: usize| -> Vec<Cost> {
        let kept = costs.iter().enumerate().filter(|(i, _)| *i != left_out);
        kept.map(|(_, cost)| *cost).collect()
    };
    let fits = (0..costs.len()).map(|left_out| {
        let kept = without(left_out);
        let line = line(&kept);
        (kept.iter().map(|cost| line.relative_error(cost).powi(2)).sum::<f64>(), line)
    });
    let best = fits.min_by(|(a, _), (b, _)| a.total_cmp(b));
    best.map_or_else(|| line(costs), |(_, line)| line)
}

/// Fits by least squares of relative errors, and keeps both constants positive.
fn line(costs: &[Cost]) -> Line {
    let sum = |term: fn(&Cost) -> f64| costs.iter().map(term).sum::<f64>();
    // Weights 1 / seconds² make the errors relative.
    let w = sum(|c| c.seconds.powi(-2));
    let wn = sum(|c| c.n_bytes / c.seconds.powi(2));
    let wnn = sum(|c| (c.n_bytes / c.seconds).powi(2));
    let wt = sum(|c| 1.0 / c.seconds);
    let wnt = sum(|c| c.n_bytes / c.seconds);
    let determinant = w * wnn - wn * wn;
    let request_s = (wnn * wt - wn * wnt) / determinant;
    let byte_s = (w * wnt - wn * wt) / determinant;
    let least = |cost: fn(&Cost) -> f64| costs.iter().map(cost).fold(f64::INFINITY, f64::min);
    let least_request_s = least(|c| c.seconds) / BEYOND_MEASURED;
    let least_byte_s = least(|c| c.seconds / c.n_bytes) / BEYOND_MEASURED;
    // A constant that is not above its bound is put there, and the other fitted alone.
    let is_above = |found: f64, bound: f64| found > bound;
    if !is_above(request_s, least_request_s) {
        return Line { request_s: least_request_s, byte_s: (wnt - least_request_s * wn) / wnn };
    }
    if !is_above(byte_s, least_byte_s) {
        return Line { request_s: (wt - least_byte_s * wn) / w, byte_s: least_byte_s };
    }
    Line { request_s, byte_s }
}

impl Line {
    fn relative_error(&self, cost: &Cost) -> f64 {
        (self.request_s + self.byte_s * cost.n_bytes) / cost.seconds - 1.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::probe::{DEPTHS, REQUEST_BYTES};

    /// Cells of a device that keeps to the model but for a factor on the cost of each size.
    fn cells(profile: &DiskProfile, factors: &[f64]) -> Vec<ProbeCell> {
        let mut cells = Vec::new();
        for (&request_bytes, factor) in REQUEST_BYTES.iter().zip(factors) {
            for depth in DEPTHS {
                // The depth of 32 is the best, the others take up to 17 times as long.
                let slower = 1.0 + (depth as f64 - 32.0).abs() / 6.0;
                let seconds = profile.request_seconds(request_bytes as u64) * factor * slower;
                let (request_bytes, depth) = (request_bytes as u64, depth as u32);
                let bytes_per_s = request_bytes as f64 / seconds;
                let cell = ProbeCell {
                    request_bytes,
                    depth,
                    iops: 1.0 / seconds,
                    bytes_per_s,
                    p50_us: 0.0,
                    p99_us: 0.0,
                };
                cells.push(cell);
            }
        }
        cells
    }

    fn close(found: f64, expected: f64, tolerance: f64) -> bool {
        (found / expected - 1.0).abs() < tolerance
    }

    /// Devices on which both constants show within the sizes that are measured.
    fn devices() -> impl Strategy<Value = DiskProfile> {
        (3e3..1.5e6f64, 4096.0..400_000.0f64).prop_map(|(iops, knee_bytes)| DiskProfile {
            iops,
            bandwidth_bytes_per_s: iops * knee_bytes,
        })
    }

    proptest! {
        #[test]
        fn finds_the_device_behind_noise_and_one_outlier(
            device in devices(),
            noise in prop::collection::vec(0.98..1.02f64, REQUEST_BYTES.len()),
            outlier in prop::option::of((0..REQUEST_BYTES.len(), 1.5..20.0f64)),
        ) {
            let mut factors = noise;
            if let Some((at, factor)) = outlier {
                factors[at] *= factor;
            }
            let found = fit(&cells(&device, &factors)).unwrap();
            prop_assert!(close(found.iops, device.iops, 0.15), "{found:?}");
            let bandwidth = device.bandwidth_bytes_per_s;
            prop_assert!(close(found.bandwidth_bytes_per_s, bandwidth, 0.15), "{found:?}");
        }

        #[test]
        fn whatever_was_measured_both_constants_are_positive(
            figures in prop::collection::vec((0u64..2_000_000, prop::num::f64::ANY), 0..20),
            sizes in prop::collection::vec(1.0..1e7f64, REQUEST_BYTES.len()),
        ) {
            let cell = |request_bytes, iops| ProbeCell {
                request_bytes, depth: 1, iops, bytes_per_s: 0.0, p50_us: 0.0, p99_us: 0.0,
            };
            let nonsense: Vec<_> = figures.iter().map(|&(n, iops)| cell(n, iops)).collect();
            if let Some(profile) = fit(&nonsense) {
                prop_assert!(profile.is_sensible(), "{profile:?}");
            }
            let cells: Vec<_> =
                REQUEST_BYTES.iter().zip(&sizes).map(|(&n, &iops)| cell(n as u64, iops)).collect();
            let profile = fit(&cells).unwrap();
            prop_assert!(profile.is_sensible(), "{profile:?}");
            let best = sizes.iter().copied().fold(0.0, f64::max);
            prop_assert!(profile.iops <= best * BEYOND_MEASURED * 1.001);
        }
    }

    #[test]
    fn one_size_does_not_determine_the_other_constant() {
        let device = DiskProfile::default();
        let all = cells(&device, &[1.0; REQUEST_BYTES.len()]);
        assert_eq!(fit(&[]), None);
        assert_eq!(fit(&all[..DEPTHS.len()]), None);
        let found = fit(&all[..2 * DEPTHS.len()]).unwrap();
        assert!(close(found.iops, device.iops, 1e-6), "{found:?}");
    }

    #[test]
    fn a_device_of_one_speed_has_a_bound_all_the_same() {
        let flat = |seconds: fn(usize) -> f64| -> Vec<ProbeCell> {
            let cell = |n: usize| ProbeCell {
                request_bytes: n as u64,
                depth: 1,
                iops: 1.0 / seconds(n),
                bytes_per_s: n as f64 / seconds(n),
                p50_us: 0.0,
                p99_us: 0.0,
            };
            REQUEST_BYTES.map(cell).to_vec()
        };
        // Only bytes cost; only requests cost.
        let bytes = fit(&flat(|n| n as f64 * 1e-9)).unwrap();
        assert!(close(bytes.bandwidth_bytes_per_s, 1e9, 0.1), "{bytes:?}");
        let requests = fit(&flat(|_| 1e-4)).unwrap();
        assert!(close(requests.iops, 1e4, 0.1), "{requests:?}");
    }
}
