use super::*;
use crate::edges::MemoryEdges;
use crate::relabel::Relabelling;
use crate::topology::Direction;
use proptest::prelude::*;
use std::collections::HashSet;

fn topology_of(edges: &[[u32; 2]], n_nodes: u32) -> Topology {
    let edges = MemoryEdges::new(edges.to_vec()).unwrap();
    Topology::from_edges(&edges, &Relabelling::identity(n_nodes), Direction::Directed).unwrap()
}

fn at_most(fanouts: &[u32]) -> Vec<Fanout> {
    fanouts.iter().map(|&n| Fanout::at_most(n).unwrap_or(Fanout::All)).collect()
}

/// Returns the edges of block `i` as (source, destination) node ids.
fn edges_of(batch: &Batch, i: usize) -> Vec<[u32; 2]> {
    let block = &batch.blocks[i];
    let of_dst = |dst: usize| block.sources_of(dst).iter().map(move |&src| (src, dst));
    let id = |local: usize| batch.nodes[local].0;
    (0..block.n_dst as usize)
        .flat_map(of_dst)
        .map(|(src, dst)| [id(src as usize), id(dst)])
        .collect()
}

#[test]
fn all_neighbours_of_two_hops() {
    // 4 → 3 → 2 → 0, 3 → 1, and 5 alone.
    let topology = topology_of(&[[4, 3], [3, 2], [2, 0], [3, 1]], 6);
    let mut sampler = Sampler::new(&topology, &[Fanout::All; 2]);
    let batch = sampler.sample(&[0, 1, 5, 0].map(NodeId), 1);
    assert_eq!(batch.nodes, [0, 1, 5, 2, 3, 4].map(NodeId));
    assert_eq!(batch.roots(), [0, 1, 5].map(NodeId));
    assert_eq!(edges_of(&batch, 1), [[2, 0], [3, 1]]);
    assert_eq!(edges_of(&batch, 0), [[2, 0], [3, 1], [3, 2], [4, 3]]);
    assert_eq!(batch.check(6), Ok(()));
}

#[test]
fn no_roots_and_no_hops_work() {
    let topology = topology_of(&[[0, 1]], 2);
    let empty = Sampler::new(&topology, &at_most(&[2, 2])).sample(&[], 1);
    assert_eq!((empty.nodes.len(), empty.blocks.len(), empty.check(2)), (0, 2, Ok(())));
    let roots_only = Sampler::new(&topology, &[]).sample(&[NodeId(1)], 1);
    assert_eq!((roots_only.nodes.len(), roots_only.check(2)), (1, Ok(())));
}

#[test]
fn a_batch_of_too_many_edges_is_refused_before_they_are_drawn() {
    // Two hops of 0: one edge, then those of both nodes.
    let topology = topology_of(&[[1, 0], [2, 1], [3, 1]], 4);
    let mut sampler = Sampler::new(&topology, &[Fanout::All; 2]);
    let batch = sampler.sample(&[NodeId(0)], 1);
    assert_eq!(batch.n_edges(), 4);
    for (max_edges, found) in [(0, 1), (1, 4), (3, 4)] {
        let refused = sampler.sample_at_most(&[NodeId(0)], 1, max_edges);
        assert_eq!(refused, Err(TooManyEdges { found }), "at most {max_edges}");
    }
    assert_eq!(sampler.sample_at_most(&[NodeId(0)], 1, 4), Ok(batch));
}

#[test]
fn every_neighbour_is_drawn_equally_often() {
    let edges: Vec<[u32; 2]> = (1..=20).map(|source| [source, 0]).collect();
    let topology = topology_of(&edges, 21);
    let mut sampler = Sampler::new(&topology, &at_most(&[5]));
    let mut counts = [0u32; 21];
    for seed in 0..20_000 {
        for [source, _] in edges_of(&sampler.sample(&[NodeId(0)], seed), 0) {
            counts[source as usize] += 1;
        }
    }
    // 5000 each, ± 5 standard deviations of 61.
    assert!(counts[1..].iter().all(|count| (4700..5300).contains(count)), "{counts:?}");
}

#[test]
fn a_fixed_batch_is_pinned() {
    let edges: Vec<[u32; 2]> = (0u32..400).map(|i| [i * 37 % 61, i * 11 % 59]).collect();
    let topology = topology_of(&edges, 61);
    let batch = Sampler::new(&topology, &at_most(&[3, 2])).sample(&[9, 4].map(NodeId), 42);
    assert_eq!(batch.check(61), Ok(()));
    let edges = [[36, 9], [23, 9], [58, 9], [42, 4], [46, 4], [7, 4]];
    assert_eq!(edges_of(&batch, 1), edges);
    let last = [10, 33, 17, 52, 40, 5, 39, 47, 25, 45, 35, 48].map(NodeId);
    assert_eq!(batch.nodes[8..], last);
}

fn graph() -> impl Strategy<Value = (u32, Vec<[u32; 2]>)> {
    (1u32..40).prop_flat_map(|n_nodes| {
        let edge = (0..n_nodes, 0..n_nodes).prop_map(|(source, dst)| [source, dst]);
        (Just(n_nodes), prop::collection::vec(edge, 0..300))
    })
}

proptest! {
    #[test]
    fn batches_are_samples_without_replacement_of_the_graph(
        (n_nodes, edges) in graph(),
        fanouts in prop::collection::vec(0u32..6, 0..4),
        seed: u64,
    ) {
        let topology = topology_of(&edges, n_nodes);
        let fanouts = at_most(&fanouts);
        let roots: Vec<NodeId> = (0..n_nodes).step_by(3).map(NodeId).collect();
        let batch = Sampler::new(&topology, &fanouts).sample(&roots, seed);

        prop_assert_eq!(batch.check(n_nodes), Ok(()));
        prop_assert_eq!(batch.roots(), &roots[..]);
        let distinct: HashSet<_> = batch.nodes.iter().collect();
        prop_assert_eq!(distinct.len(), batch.nodes.len());
        let mut reached = vec![false; batch.nodes.len()];
        for (hop, block) in batch.blocks.iter().rev().enumerate() {
            for dst in 0..block.n_dst as usize {
                let real = topology.in_neighbours(batch.nodes[dst]);
                let drawn = block.sources_of(dst);
                prop_assert_eq!(drawn.len() as u32, fanouts[hop].of(real.len() as u32));
                let ids: HashSet<u32> = drawn.iter().map(|&s| batch.nodes[s as usize].0).collect();
                prop_assert_eq!(ids.len(), drawn.len());
                prop_assert!(ids.iter().all(|id| real.contains(id)));
                drawn.iter().for_each(|&source| reached[source as usize] = true);
            }
        }
        prop_assert!(reached[batch.n_roots..].iter().all(|&reached| reached));
    }

    #[test]
    fn neighbours_do_not_depend_on_who_else_is_in_the_batch(
        (n_nodes, edges) in graph(),
        seed: u64,
    ) {
        let topology = topology_of(&edges, n_nodes);
        let mut sampler = Sampler::new(&topology, &at_most(&[3, 2]));
        let roots: Vec<NodeId> = (0..n_nodes).rev().map(NodeId).collect();
        let together: Vec<_> = edges_of(&sampler.sample(&roots, seed), 1);
        for &root in &roots {
            let alone = edges_of(&sampler.sample(&[root], seed), 1);
            let same: Vec<_> = together.iter().copied().filter(|edge| edge[1] == root.0).collect();
            prop_assert_eq!(alone, same);
        }
    }
}

/// Returns the named shapes of graphs: edges and the number of nodes.
fn shapes() -> Vec<(&'static str, Vec<[u32; 2]>, u32)> {
    let star_in = (1..50).map(|leaf| [leaf, 0]).collect();
    let star_out = (1..50).map(|leaf| [0, leaf]).collect();
    let clique = (0..20).flat_map(|u| (0..20).map(move |v| [u, v])).filter(|[u, v]| u != v);
    let apart = (0..40).map(|u| [u, u ^ 1]).collect();
    let loops = (0..30).map(|u| [u, u]).collect();
    vec![
        ("no edges", vec![], 7),
        ("one node", vec![], 1),
        ("one node with a loop", vec![[0, 0]], 1),
        ("star inwards", star_in, 50),
        ("star outwards", star_out, 50),
        ("clique", clique.collect(), 20),
        ("pairs apart", apart, 40),
        ("self loops only", loops, 30),
    ]
}

#[test]
fn every_shape_of_graph_has_sound_batches() {
    for (name, edges, n_nodes) in shapes() {
        let topology = topology_of(&edges, n_nodes);
        let roots: Vec<NodeId> = (0..n_nodes).map(NodeId).collect();
        for fanouts in [vec![0, 0], vec![3, 2, 1], vec![u32::MAX - 1]] {
            let fanouts = at_most(&fanouts);
            let batch = Sampler::new(&topology, &fanouts).sample(&roots, 5);
            assert_eq!(batch.check(n_nodes), Ok(()), "{name}");
            assert_eq!(batch.roots(), roots, "{name}");
            for (hop, block) in batch.blocks.iter().rev().enumerate() {
                let degrees = (0..n_nodes).map(|v| topology.in_degree(NodeId(v)));
                let drawn = degrees.map(|degree| u64::from(fanouts[hop].of(degree)));
                assert_eq!(block.n_edges() as u64, drawn.sum::<u64>(), "{name}");
            }
        }
    }
}

#[test]
fn any_number_of_threads_and_any_split_into_runs_draw_the_same() {
    let edges: Vec<[u32; 2]> = (0u32..6000).map(|i| [i * i % 211, i * 7 % 199]).collect();
    let topology = topology_of(&edges, 211);
    let (seeds, fanouts) = (0..24u64, at_most(&[4, 0, 3]));
    let roots: Vec<NodeId> = (0..211).step_by(9).map(NodeId).collect();
    let run = |seeds: Vec<u64>| {
        let mut sampler = Sampler::new(&topology, &fanouts);
        seeds.into_iter().map(|seed| (seed, sampler.sample(&roots, seed))).collect::<Vec<_>>()
    };
    let whole = run(seeds.clone().collect());
    for n_threads in [1, 2, 3, 7, 24] {
        let shares = (0..n_threads).map(|t| seeds.clone().skip(t).step_by(n_threads).collect());
        let mut found: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = shares.map(|mine| scope.spawn(|| run(mine))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        found.sort_by_key(|(seed, _)| *seed);
        assert!(found == whole, "{n_threads} threads");
    }
    for cut in [0, 1, 11, 24] {
        let (one, other) = seeds.clone().partition::<Vec<_>, _>(|&seed| seed < cut);
        assert!([run(one), run(other)].concat() == whole, "cut at {cut}");
    }
    // Backwards, by one that has drawn other batches before.
    let mut back = run(seeds.rev().collect());
    back.reverse();
    assert!(back == whole);
}

#[test]
fn partitions_do_not_change_the_sample() {
    let edges: Vec<[u32; 2]> = (0u32..3000).map(|i| [i * i % 97, i * 31 % 97]).collect();
    let whole = topology_of(&edges, 97);
    let edges = MemoryEdges::new(edges).unwrap();
    // Partitions 0, 2 and 5 own no node; ids stay as they are.
    let part_of = |v| crate::ids::PartId(1 + u16::from(v >= 30) * 2 + u16::from(v >= 60));
    let assignment: Vec<_> = (0..97).map(part_of).collect();
    let relabelling = Relabelling::new(&assignment, 6).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path_of = |part: crate::ids::PartId| dir.path().join(format!("{part}"));
    crate::topology::write_topologies(&edges, &relabelling, Direction::Directed, [1; 16], &path_of)
        .unwrap();
    let paths: Vec<_> = relabelling.book.parts().map(path_of).collect();
    let parts = Topology::open(&paths, &relabelling.book, [1; 16]).unwrap();
    let roots: Vec<NodeId> = (0..97).step_by(4).map(NodeId).collect();
    let fanouts = at_most(&[5, 3]);
    for seed in 0..20 {
        let expected = Sampler::new(&whole, &fanouts).sample(&roots, seed);
        assert_eq!(Sampler::new(&parts, &fanouts).sample(&roots, seed), expected);
    }
}

/// Returns the chi-square of a table of counts against independence of its rows and columns. It has
/// 81 degrees of freedom, and is above 126.1 once in 1000.
fn chi_square_of_independence(table: &[[u32; 10]; 10]) -> f64 {
    let total: u32 = table.iter().flatten().sum();
    let rows = table.map(|row| row.iter().sum::<u32>());
    let columns = std::array::from_fn::<u32, 10, _>(|c| table.iter().map(|row| row[c]).sum());
    let cell = |r: usize, c: usize| {
        let expected = f64::from(rows[r]) * f64::from(columns[c]) / f64::from(total);
        (f64::from(table[r][c]) - expected).powi(2) / expected
    };
    (0..10).flat_map(|r| (0..10).map(move |c| (r, c))).map(|(r, c)| cell(r, c)).sum()
}

/// Returns a graph where nodes 10 and 11 have edges from 0 to 9, and these from each other.
fn ten_sources() -> Topology {
    let edges: Vec<_> = (0..12).flat_map(|v| (0..10).map(move |u| [u, v])).collect();
    topology_of(&edges, 12)
}

/// Returns the neighbour that `node` draws in `hop` of the batch named by seed, worker, epoch,
/// batch.
fn drawn(sampler: &mut Sampler<'_>, node: u32, hop: usize, name: (u64, u32, u32, u32)) -> usize {
    let seed = batch_seed(name.0, name.1, name.2, name.3);
    let batch = sampler.sample(&[NodeId(node)], seed);
    let block = &batch.blocks[batch.blocks.len() - 1 - hop];
    batch.nodes[block.sources_of(0)[0] as usize].index()
}

#[test]
fn draws_of_different_names_are_independent() {
    type Name = (u64, u32, u32, u32);
    type Pair = fn(u32) -> [(u32, usize, Name); 2];
    let topology = ten_sources();
    let mut sampler = Sampler::new(&topology, &at_most(&[1, 1]));
    let pairs: [(&str, Pair); 7] = [
        ("seeds", |i| [(10, 0, (i.into(), 0, 0, 0)), (10, 0, (u64::from(i) + 1, 0, 0, 0))]),
        ("workers", |i| [(10, 0, (1, i, 0, 0)), (10, 0, (1, i + 1, 0, 0))]),
        ("epochs", |i| [(10, 0, (1, 0, i, 0)), (10, 0, (1, 0, i + 1, 0))]),
        ("batches", |i| [(10, 0, (1, 0, 0, i)), (10, 0, (1, 0, 0, i + 1))]),
        ("fields", |i| [(10, 0, (1, i + 1, i, 0)), (10, 0, (1, i, i + 1, 0))]),
        ("nodes", |i| [(10, 0, (2, 0, 0, i)), (11, 0, (2, 0, 0, i))]),
        ("hops", |i| [(10, 0, (3, 0, 0, i)), (10, 1, (3, 0, 0, i))]),
    ];
    for (what, pair) in pairs {
        let mut table = [[0; 10]; 10];
        for i in 0..20_000 {
            let [one, other] =
                pair(i).map(|(node, hop, name)| drawn(&mut sampler, node, hop, name));
            table[one][other] += 1;
        }
        let chi = chi_square_of_independence(&table);
        assert!(chi < 126.1, "{what}: {chi}");
        // Uniform as well: 9 degrees of freedom, above 27.9 once in 1000.
        let sums = table.map(|row| row.iter().sum::<u32>());
        let uniform = sums.map(|n| (f64::from(n) - 2000.0).powi(2) / 2000.0);
        assert!(uniform.iter().sum::<f64>() < 27.9, "{what}: {sums:?}");
    }
}
