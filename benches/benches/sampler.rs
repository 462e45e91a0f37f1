//! The sampler: sampled edges per second, deduplication and local ids included.
//!
//! Batches of 1000 roots with fan-outs 15, 10, 5, each batch drawn once, by one thread and by two.
//! The graph is a power law of 60 M edges, or the one whose lists `LODE_SAMPLER_GRAPH` names:
//! `PREFIX.indptr.u64` and `PREFIX.indices.u32`. It does not measure what a batch costs on its way
//! to a schedule.

use std::path::Path;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use lodestore_benches::{is_smoke, random_ids};
use lodestore_graph::NodeId;
use lodestore_graph::sampler::{Fanout, Sampler, batch_seed, epoch_order};
use lodestore_graph::topology::{Direction, Topology};

const FANOUTS: [u32; 3] = [15, 10, 5];
const BATCH_ROOTS: usize = 1000;

fn sampler(c: &mut Criterion) {
    let topology = graph();
    let fanouts = FANOUTS.map(|n| Fanout::at_most(n).expect("a fan-out"));
    let connected = (0..topology.n_nodes()).map(NodeId).filter(|&v| topology.in_degree(v) > 0);
    let roots = epoch_order(1, 0, &connected.collect::<Vec<_>>());
    let mut samplers: Vec<_> = (0..2).map(|_| Sampler::new(&topology, &fanouts)).collect();
    let n_edges = check(&mut samplers, &roots);

    let mut group = c.benchmark_group("sampler");
    group.throughput(Throughput::Elements(n_edges));
    for n_threads in [1, 2] {
        let mut next = 0;
        group.bench_function(BenchmarkId::new("threads", n_threads), |b| {
            b.iter_custom(|n_batches| {
                next += n_batches;
                timed(&mut samplers[..n_threads], &roots, next - n_batches..next)
            });
        });
    }
    group.finish();
}

/// Returns the time of sampling `batches`, shared out among the samplers, a thread each.
fn timed(
    samplers: &mut [Sampler<'_>],
    roots: &[NodeId],
    batches: std::ops::Range<u64>,
) -> Duration {
    let (start, n_threads) = (Instant::now(), samplers.len());
    std::thread::scope(|scope| {
        for (first, sampler) in samplers.iter_mut().enumerate() {
            let mine = batches.clone().skip(first).step_by(n_threads);
            scope.spawn(move || {
                for batch in mine {
                    std::hint::black_box(sample(sampler, roots, batch));
                }
            });
        }
    });
    start.elapsed()
}

fn sample(
    sampler: &mut Sampler<'_>,
    roots: &[NodeId],
    batch: u64,
) -> lodestore_graph::batch::Batch {
    let n_whole = (roots.len() / BATCH_ROOTS).max(1) as u64;
    let first = (batch % n_whole) as usize * BATCH_ROOTS;
    let roots = &roots[first..roots.len().min(first + BATCH_ROOTS)];
    sampler.sample(roots, batch_seed(1, 0, 0, batch as u32))
}

/// Checks that both samplers draw the same sound batches; returns the edges of a batch, on average.
fn check(samplers: &mut [Sampler<'_>], roots: &[NodeId]) -> u64 {
    const N_CHECKED: u64 = 20;
    let [one, other] = samplers else { panic!("two samplers") };
    let mut n_edges = 0;
    for batch in 0..N_CHECKED {
        let drawn = sample(one, roots, batch);
        drawn.check(u32::MAX).expect("a sound batch");
        assert_eq!(drawn, sample(other, roots, batch));
        n_edges += drawn.n_edges();
    }
    n_edges / N_CHECKED
}

fn graph() -> Topology {
    if let (Ok(prefix), false) = (std::env::var("LODE_SAMPLER_GRAPH"), is_smoke()) {
        let read = |end: &str| std::fs::read(Path::new(&(prefix.clone() + end))).expect("a list");
        let u64_of = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
        let offsets = read(".indptr.u64").as_chunks().0.iter().map(u64_of).collect();
        let u32_of = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
        let neighbours = read(".indices.u32").as_chunks().0.iter().map(u32_of).collect();
        return Topology::from_lists(offsets, neighbours).expect("lists");
    }
    power_law(if is_smoke() { 5_000 } else { 2_449_029 }, 25)
}

/// Returns a graph with in-degrees that fall as a power of a rank that is scattered over the ids;
/// sources likewise.
fn power_law(n_nodes: u32, mean_degree: usize) -> Topology {
    let skewed = |random: u32| {
        let rank = f64::from(n_nodes) * (f64::from(random) / 2f64.powi(32)).powi(3);
        (rank as u64 * 1_000_003 % u64::from(n_nodes)) as u32
    };
    let n_edges = n_nodes as usize * mean_degree;
    let ends = random_ids(u32::MAX, 2 * n_edges, 1);
    let edges = ends.as_chunks().0.iter().map(|&[u, v]| [skewed(u), skewed(v)]).collect();
    let edges = lodestore_graph::edges::MemoryEdges::new(edges).expect("edges");
    let nodes = lodestore_graph::relabel::Relabelling::identity(n_nodes);
    Topology::from_edges(&edges, &nodes, Direction::Directed).expect("a topology")
}

criterion_group!(benches, sampler);
criterion_main!(benches);
