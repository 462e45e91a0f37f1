//! Which replicas go (CaPGNN, Algorithms 2 and 3).

use super::cost::{Rates, rates};
use super::{Adjusted, AdjustedPart, DeviceProfile, PartLoad, RapaError, RapaParams};

/// A partition between passes.
struct Part<'a> {
    load: &'a PartLoad,
    rates: Rates,
    memory_bytes: u64,
    n_dropped: usize,
    edges_dropped: u64,
    outer_edges: u64,
}

/// Takes replicas of lowest influence from each partition whose cost is above the mean, or whose
/// subgraph does not fit its device. Partitions follow each other from the weakest device on. Each
/// loses replicas until its subgraph fits and its cost is at most half way to the mean. Ends when
/// the standard deviation of the costs is below ε of their mean, or a pass changes nothing.
///
/// `devices` has one profile per partition, or one for all.
pub fn adjust(
    loads: &[PartLoad],
    devices: &[DeviceProfile],
    params: &RapaParams,
) -> Result<Adjusted, RapaError> {
    let rates = rates(devices, loads.len(), params)?;
    let mut parts: Vec<Part<'_>> = loads
        .iter()
        .zip(rates)
        .enumerate()
        .map(|(part, (load, rates))| Part {
            load,
            rates,
            memory_bytes: devices[part % devices.len()].memory_bytes,
            n_dropped: 0,
            edges_dropped: 0,
            outer_edges: load.replicas.iter().map(|replica| u64::from(replica.edges)).sum(),
        })
        .collect();
    let costs = |parts: &[Part<'_>]| parts.iter().map(Part::cost).collect::<Vec<f64>>();
    let before = costs(&parts);
    let mut order: Vec<usize> = (0..parts.len()).collect();
    let slowness = |part: usize| parts[part].rates.slowness();
    order.sort_by(|&a, &b| slowness(b).total_cmp(&slowness(a)).then(a.cmp(&b)));

    let mut passes = 0;
    let is_balanced = loop {
        let (mean, deviation) = spread(&costs(&parts));
        let fit = parts.iter().all(|part| part.fits(params));
        if fit && deviation <= params.epsilon * mean {
            break true;
        }
        passes += 1;
        if !pass(&mut parts, &order, params) {
            break false;
        }
    };
    let after = costs(&parts);
    let deviation = [spread(&before).1, spread(&after).1];
    let adjusted = |(part, cost): (&Part<'_>, [f64; 2])| AdjustedPart {
        n_dropped: part.n_dropped,
        edges_dropped: part.edges_dropped,
        cost,
        bytes: part.bytes(params),
        fits: part.fits(params),
    };
    let costs = before.into_iter().zip(after).map(|(before, after)| [before, after]);
    let parts = parts.iter().zip(costs).map(adjusted).collect();
    Ok(Adjusted { parts, passes, deviation, is_balanced })
}

/// Makes one pass over the partitions (Alg. 3); returns whether it changed anything.
fn pass(parts: &mut [Part<'_>], order: &[usize], params: &RapaParams) -> bool {
    let mut has_changed = false;
    let mut sum: f64 = parts.iter().map(Part::cost).sum();
    for &at in order {
        let mean = sum / parts.len() as f64;
        let part = &mut parts[at];
        let (first, n_before) = (part.cost(), part.n_dropped);
        let enough = 0.5 * (first + mean);
        while part.cost() > mean || !part.fits(params) {
            if !part.drop_one() || part.cost() <= enough && part.fits(params) {
                break;
            }
        }
        has_changed |= part.n_dropped > n_before;
        sum += part.cost() - first;
    }
    has_changed
}

impl Part<'_> {
    fn edges(&self) -> u64 {
        self.load.edges - self.edges_dropped
    }

    fn cost(&self) -> f64 {
        self.rates.cost(self.load.inner, self.edges(), self.outer_edges)
    }

    /// Returns the memory of the subgraph (Eq. 15, with the features of each node among its bytes).
    fn bytes(&self, params: &RapaParams) -> u64 {
        let nodes = self.load.inner + (self.load.replicas.len() - self.n_dropped) as u64;
        let nodes = nodes.saturating_mul(params.node_bytes);
        let edges = self.edges().saturating_mul(params.edge_bytes);
        nodes.saturating_add(edges).saturating_add(params.reserve_bytes)
    }

    fn fits(&self, params: &RapaParams) -> bool {
        self.bytes(params) <= self.memory_bytes
    }

    /// Drops the replica of lowest influence; false when none is left.
    fn drop_one(&mut self) -> bool {
        let Some(replica) = self.load.replicas.get(self.n_dropped) else { return false };
        self.n_dropped += 1;
        self.edges_dropped += u64::from(replica.edges);
        self.outer_edges -= u64::from(replica.edges);
        true
    }
}

/// Returns the mean and the standard deviation; zeros of nothing.
pub(super) fn spread(costs: &[f64]) -> (f64, f64) {
    let n = costs.len().max(1) as f64;
    let mean = costs.iter().sum::<f64>() / n;
    let square = costs.iter().map(|cost| (cost - mean).powi(2)).sum::<f64>() / n;
    (mean, square.sqrt())
}
