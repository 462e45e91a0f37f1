//! Which rows are requested: drawn ids, consecutive ids, or batches of a trace.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lodestore_graph::{NodeId, splitmix64};

/// How ids are chosen.
#[derive(Clone, Debug, PartialEq)]
pub enum IdDraw {
    /// All rows are equally likely.
    Uniform,
    /// A row of rank r has a probability proportional to r^-s; ranks are scattered over the rows.
    Zipf {
        /// The exponent s, above 0.
        exponent: f64,
    },
    /// Consecutive ids, cyclically; all connections share one position.
    Sequential,
    /// Batches of a trace in order, cyclically; all connections share one position.
    Trace(Arc<IdBatches>),
}

/// Batches of node ids.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct IdBatches {
    /// The ids of all batches, concatenated.
    pub ids: Vec<NodeId>,
    /// The start of each batch in `ids`, then the end of the last one.
    pub bounds: Vec<usize>,
}

impl IdBatches {
    /// Returns the number of batches.
    #[must_use]
    pub fn n_batches(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }

    fn batch(&self, number: usize) -> &[NodeId] {
        &self.ids[self.bounds[number]..self.bounds[number + 1]]
    }
}

/// Pseudorandom numbers, the same for a seed on every machine.
#[derive(Clone, Debug)]
pub(super) struct Words {
    seed: u64,
    n_drawn: u64,
}

impl Words {
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        Self { seed: splitmix64(splitmix64(seed).wrapping_add(stream)), n_drawn: 0 }
    }

    pub(super) fn word(&mut self) -> u64 {
        self.n_drawn += 1;
        splitmix64(self.seed.wrapping_add(self.n_drawn))
    }

    /// Returns a uniform number below `bound`; the bias is less than `bound` / 2^64.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a uniform number in [0, 1).
    pub(super) fn fraction(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The nodes of all partitions that a server holds.
#[derive(Clone, Debug)]
pub(super) struct Nodes {
    /// First node of each range, and the number of nodes in earlier ranges.
    ranges: Vec<(u32, u64)>,
    n_nodes: u64,
}

impl Nodes {
    pub(super) fn new(held: impl IntoIterator<Item = std::ops::Range<u32>>) -> Self {
        let (mut ranges, mut n_nodes) = (Vec::new(), 0);
        for range in held.into_iter().filter(|range| !range.is_empty()) {
            ranges.push((range.start, n_nodes));
            n_nodes += range.len() as u64;
        }
        Self { ranges, n_nodes }
    }

    pub(super) fn len(&self) -> u64 {
        self.n_nodes
    }

    fn nth(&self, n: u64) -> NodeId {
        let range = self.ranges.partition_point(|&(_, before)| before <= n) - 1;
        let (start, before) = self.ranges[range];
        NodeId(start + (n - before) as u32)
    }
}

/// Draws the ids of one thread's requests.
pub(super) struct Drawer {
    draw: IdDraw,
    nodes: Nodes,
    zipf: Option<Zipf>,
    words: Words,
    /// Batches drawn by all threads for a trace, rows drawn by all threads for `Sequential`.
    position: Arc<AtomicU64>,
}

impl Drawer {
    pub(super) fn new(draw: IdDraw, nodes: Nodes, words: Words, position: Arc<AtomicU64>) -> Self {
        let zipf = match draw {
            IdDraw::Zipf { exponent } => Some(Zipf::new(nodes.len(), exponent)),
            _ => None,
        };
        Self { draw, nodes, zipf, words, position }
    }

    /// Draws the ids of the next request: `n_rows` of them, or the next batch of a trace.
    pub(super) fn next(&mut self, n_rows: usize, ids: &mut Vec<NodeId>) {
        ids.clear();
        let n_nodes = self.nodes.len();
        match (&self.draw, &self.zipf) {
            (IdDraw::Trace(batches), _) => {
                let turn = self.position.fetch_add(1, Ordering::Relaxed);
                let batch = (turn % batches.n_batches() as u64) as usize;
                ids.extend_from_slice(batches.batch(batch));
            }
            (IdDraw::Sequential, _) => {
                let first = self.position.fetch_add(n_rows as u64, Ordering::Relaxed);
                let rows = first..first + n_rows as u64;
                ids.extend(rows.map(|row| self.nodes.nth(row % n_nodes)));
            }
            (_, Some(zipf)) => {
                let draw = |_| self.nodes.nth(zipf.scattered(zipf.draw(&mut self.words)));
                ids.extend((0..n_rows).map(draw));
            }
            (_, None) => {
                ids.extend((0..n_rows).map(|_| self.nodes.nth(self.words.below(n_nodes))));
            }
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Draws ranks from 0 by rejection-inversion, without a table of all ranks (Hörmann and
/// Derflinger, "Rejection-inversion to generate variates from monotone discrete distributions",
/// 1996, algorithm for Zipf).
struct Zipf {
    n_ranks: u64,
    /// Coprime to `n_ranks`, so that `rank * multiplier % n_ranks` permutes the ranks.
    multiplier: u64,
    exponent: f64,
    /// H(x) at the ends of the interval that is drawn from.
    low: f64,
    high: f64,
    /// Draws at most this far below a rank are accepted without evaluating H.
    near: f64,
}

impl Zipf {
    fn new(n_ranks: u64, exponent: f64) -> Self {
        // The golden ratio places adjacent ranks far apart.
        let golden = (n_ranks as f64 * 0.618_033_988_749_894_9) as u64;
        let multiplier = (1..=golden).rev().find(|&m| gcd(m, n_ranks) == 1).unwrap_or(1);
        let (low, high, near) = (0.0, 0.0, 0.0);
        let mut zipf = Self { n_ranks, multiplier, exponent, low, high, near };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(n_ranks as f64 + 0.5);
        zipf.near = 2.0 - zipf.inverse(zipf.integral(2.5) - 2f64.powf(-exponent));
        zipf
    }

    fn draw(&self, words: &mut Words) -> u64 {
        loop {
            let u = self.high + words.fraction() * (self.low - self.high);
            let x = self.inverse(u);
            let rank = x.round().clamp(1.0, self.n_ranks as f64);
            let is_taken =
                rank - x <= self.near || u >= self.integral(rank + 0.5) - rank.powf(-self.exponent);
            if is_taken {
                return rank as u64 - 1;
            }
        }
    }

    /// Returns the position among the nodes of a rank.
    fn scattered(&self, rank: u64) -> u64 {
        let product = u128::from(rank) * u128::from(self.multiplier);
        (product % u128::from(self.n_ranks)) as u64
    }

    /// Returns H(x), the integral of x^-s.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        exp_m1_over((1.0 - self.exponent) * log) * log
    }

    fn inverse(&self, y: f64) -> f64 {
        let t = (y * (1.0 - self.exponent)).max(-1.0);
        (ln_1p_over(t) * y).exp()
    }
}

/// Returns (e^x − 1) / x, accurate near 0 too: an exponent of 1 is no special case.
fn exp_m1_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.exp_m1() / x } else { 1.0 + x / 2.0 }
}

/// Returns ln(1 + x) / x, accurate near 0 too.
fn ln_1p_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.ln_1p() / x } else { 1.0 - x / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawer(draw: IdDraw, nodes: Nodes) -> Drawer {
        Drawer::new(draw, nodes, Words::new(7, 0), Arc::default())
    }

    fn counts(draw: IdDraw, n_nodes: u32, n_drawn: usize) -> Vec<u32> {
        #[expect(clippy::single_range_in_vec_init, reason = "one range of nodes is meant")]
        let mut drawer = drawer(draw, Nodes::new([0..n_nodes]));
        let (mut counts, mut ids) = (vec![0; n_nodes as usize], Vec::new());
        drawer.next(n_drawn, &mut ids);
        ids.iter().for_each(|id| counts[id.index()] += 1);
        counts
    }

    #[test]
    fn zipf_draws_each_rank_as_often_as_its_weight_says() {
        const N_DRAWN: usize = 400_000;
        for exponent in [0.5, 1.0, 1.2, 2.0] {
            let mut counts = counts(IdDraw::Zipf { exponent }, 1000, N_DRAWN);
            assert!(counts[0] > 0, "rank 0 is at node 0");
            counts.sort_unstable_by(|a, b| b.cmp(a));
            let weight = |rank: usize| (rank as f64).powf(-exponent);
            let all: f64 = (1..=1000).map(weight).sum();
            for rank in [1, 2, 3, 5, 10, 30] {
                let expected = N_DRAWN as f64 * weight(rank) / all;
                let off = (f64::from(counts[rank - 1]) - expected).abs();
                // Sorting exchanges ranks of similar weight, hence the relative tolerance.
                assert!(off < 6.0 * expected.sqrt() + 0.06 * expected, "{exponent} {rank}: {off}");
            }
        }
    }

    #[test]
    fn uniform_draws_every_node_about_as_often() {
        let counts = counts(IdDraw::Uniform, 50, 100_000);
        assert!(counts.iter().all(|&n| (1750..2250).contains(&n)), "{counts:?}");
    }

    #[test]
    fn ranks_are_scattered_one_to_one() {
        for n in [1, 2, 3, 10, 997, 1024, 30_030] {
            let zipf = Zipf::new(n, 1.0);
            let mut all: Vec<u64> = (0..n).map(|rank| zipf.scattered(rank)).collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..n), "{n}");
        }
    }

    #[test]
    fn only_nodes_of_held_ranges_are_drawn() {
        let nodes = Nodes::new([10..13, 20..20, 30..32]);
        let all: Vec<u32> = (0..nodes.len()).map(|n| nodes.nth(n).0).collect();
        assert_eq!(all, [10, 11, 12, 30, 31]);
        let mut ids = Vec::new();
        let mut drawer = drawer(IdDraw::Sequential, nodes);
        drawer.next(4, &mut ids);
        drawer.next(3, &mut ids);
        assert_eq!(ids, [31, 10, 11].map(NodeId));
    }

    #[test]
    fn a_trace_is_drawn_in_order_and_cyclically() {
        let ids = [5, 6, 7].map(NodeId).to_vec();
        let batches = Arc::new(IdBatches { ids, bounds: vec![0, 2, 2, 3] });
        #[expect(clippy::single_range_in_vec_init, reason = "one range of nodes is meant")]
        let mut drawer = drawer(IdDraw::Trace(batches), Nodes::new([0..9]));
        let mut ids = Vec::new();
        let found: Vec<Vec<u32>> = (0..4)
            .map(|_| {
                drawer.next(99, &mut ids);
                ids.iter().map(|id| id.0).collect()
            })
            .collect();
        assert_eq!(found, [vec![5, 6], vec![], vec![7], vec![5, 6]]);
    }

    #[test]
    fn streams_of_one_seed_differ_and_are_deterministic() {
        let first = |seed, stream| Words::new(seed, stream).word();
        assert_eq!(first(1, 2), first(1, 2));
        assert_ne!(first(1, 2), first(1, 3));
        assert_ne!(first(1, 2), first(2, 2));
    }
}
