use super::state::State;
use super::*;
use crate::edges::MemoryEdges;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Placement as the papers say it: sets of copies, edges per partition, one edge after the other.
#[derive(Default)]
struct Model {
    copies: BTreeMap<u32, BTreeSet<u16>>,
    sizes: Vec<u64>,
    placed: Vec<([u32; 2], u16)>,
}

impl Model {
    fn of(n_parts: u16) -> Self {
        Self { sizes: vec![0; usize::from(n_parts)], ..Self::default() }
    }

    fn copies(&self, node: u32) -> BTreeSet<u16> {
        self.copies.get(&node).cloned().unwrap_or_default()
    }

    fn place(&mut self, edge: [u32; 2], part: u16) {
        self.sizes[usize::from(part)] += 1;
        for end in edge {
            self.copies.entry(end).or_default().insert(part);
        }
        self.placed.push((edge, part));
    }

    fn emptiest(&self, among: impl IntoIterator<Item = u16>) -> u16 {
        among.into_iter().min_by_key(|&part| (self.sizes[usize::from(part)], part)).unwrap()
    }

    fn all(&self) -> std::ops::Range<u16> {
        0..self.sizes.len() as u16
    }
}

fn degree(pairs: &[[u32; 2]], node: u32) -> usize {
    pairs.iter().flatten().filter(|&&end| end == node).count()
}

fn by_degree(pairs: &[[u32; 2]], n_parts: u16) -> Model {
    let mut model = Model::of(n_parts);
    for &edge in pairs {
        let end = *edge.iter().min_by_key(|&&end| (degree(pairs, end), end)).unwrap();
        let hash = u128::from(crate::splitmix64::splitmix64(u64::from(end)));
        model.place(edge, ((hash * u128::from(n_parts)) >> 64) as u16);
    }
    model
}

fn by_copies(pairs: &[[u32; 2]], n_parts: u16) -> Model {
    let mut model = Model::of(n_parts);
    for (i, &edge) in pairs.iter().enumerate() {
        let [u, v] = edge;
        let (of_u, of_v) = (model.copies(u), model.copies(v));
        let both: Vec<u16> = of_u.intersection(&of_v).copied().collect();
        let part = if !both.is_empty() {
            model.emptiest(both)
        } else if !of_u.is_empty() && !of_v.is_empty() {
            let left = |node| degree(&pairs[i..], node);
            model.emptiest(if left(u) >= left(v) { of_u } else { of_v })
        } else if of_u.is_empty() && of_v.is_empty() {
            model.emptiest(model.all())
        } else {
            model.emptiest(of_u.union(&of_v).copied())
        };
        model.place(edge, part);
    }
    model
}

fn by_score(pairs: &[[u32; 2]], n_parts: u16) -> Model {
    let mut model = Model::of(n_parts);
    for (i, &edge) in pairs.iter().enumerate() {
        let [of_u, of_v] = edge.map(|end| degree(&pairs[..=i], end) as f64);
        let max = *model.sizes.iter().max().unwrap();
        let min = *model.sizes.iter().min().unwrap();
        let mut best = None;
        for part in model.all() {
            let mut score = 0.0;
            for (end, own, other) in [(edge[0], of_u, of_v), (edge[1], of_v, of_u)] {
                if model.copies(end).contains(&part) {
                    score += 2.0 - own / (own + other);
                }
            }
            let size = model.sizes[usize::from(part)];
            score += 1.1 * (max - size) as f64 / (1.0 + (max - min) as f64);
            if best.is_none_or(|(most, _)| score > most) {
                best = Some((score, part));
            }
        }
        model.place(edge, best.unwrap().1);
    }
    model
}

/// Returns the cluster of each node that has edges, and the volume of each cluster that ever was.
fn clusters_of(pairs: &[[u32; 2]], max_volume: usize) -> (BTreeMap<u32, usize>, Vec<usize>) {
    let mut clusters: Vec<BTreeSet<u32>> = Vec::new();
    let find = |clusters: &[BTreeSet<u32>], node| clusters.iter().position(|c| c.contains(&node));
    let volume =
        |cluster: &BTreeSet<u32>| cluster.iter().map(|&node| degree(pairs, node)).sum::<usize>();
    for &[u, v] in pairs {
        for end in [u, v] {
            if find(&clusters, end).is_none() {
                clusters.push(BTreeSet::from([end]));
            }
        }
        let (of_u, of_v) = (find(&clusters, u).unwrap(), find(&clusters, v).unwrap());
        let without_u = volume(&clusters[of_u]) - degree(pairs, u);
        let without_v = volume(&clusters[of_v]) - degree(pairs, v);
        let small_enough = [of_u, of_v].iter().all(|&c| volume(&clusters[c]) <= max_volume);
        let (mover, from, to) =
            if without_u <= without_v { (u, of_u, of_v) } else { (v, of_v, of_u) };
        if small_enough && volume(&clusters[to]) + degree(pairs, mover) <= max_volume {
            clusters[from].remove(&mover);
            clusters[to].insert(mover);
        }
    }
    let nodes: BTreeSet<u32> = pairs.iter().flatten().copied().collect();
    let of_nodes = nodes.iter().map(|&node| (node, find(&clusters, node).unwrap())).collect();
    (of_nodes, clusters.iter().map(volume).collect())
}

/// Follows the paper word for word, with maps.
fn two_ps(pairs: &[[u32; 2]], n_parts: u16) -> Model {
    let (of_nodes, volumes) = clusters_of(pairs, 2 * pairs.len() / usize::from(n_parts));
    let mut order: Vec<usize> = (0..volumes.len()).collect();
    order.sort_by_key(|&cluster| std::cmp::Reverse(volumes[cluster]));
    let mut loads = vec![0; usize::from(n_parts)];
    let mut part_of = BTreeMap::new();
    for cluster in order {
        let least = (0..loads.len()).min_by_key(|&part| loads[part]).unwrap();
        loads[least] += volumes[cluster];
        part_of.insert(cluster, least as u16);
    }
    let mean = pairs.len() as f64 / f64::from(n_parts);
    let capacity = ((1.05 * mean) as u64).max(mean.ceil() as u64);
    let mut model = Model::of(n_parts);
    for together in [true, false] {
        for &edge in pairs {
            let clusters = edge.map(|end| of_nodes[&end]);
            let parts = clusters.map(|cluster| part_of[&cluster]);
            if (parts[0] == parts[1]) != together {
                continue;
            }
            let degrees = edge.map(|end| degree(pairs, end) as f64);
            let volume = clusters.map(|cluster| volumes[cluster] as f64);
            let score = |at: usize| {
                let copy = |end: usize| match model.copies(edge[end]).contains(&parts[at]) {
                    true => 2.0 - degrees[end] / (degrees[0] + degrees[1]),
                    false => 0.0,
                };
                copy(at) + copy(1 - at) + volume[at] / (volume[0] + volume[1]).max(1.0)
            };
            let wanted = if together || score(0) >= score(1) { parts[0] } else { parts[1] };
            let richer = if degrees[0] >= degrees[1] { edge[0] } else { edge[1] };
            let hash = u128::from(crate::splitmix64::splitmix64(u64::from(richer)));
            let hashed = ((hash * u128::from(n_parts)) >> 64) as u16;
            let fits = |part: &u16| model.sizes[usize::from(*part)] < capacity;
            let part = [wanted, hashed].into_iter().find(fits);
            let part = part.unwrap_or_else(|| model.emptiest(model.all()));
            model.place(edge, part);
        }
    }
    model
}

const N_NODES: u32 = 24;

/// Copies, sizes and owners of `rule` agree with the model's.
fn check(rule: &Algorithm, pairs: &[[u32; 2]], n_parts: u16, model: &Model) {
    let edges = MemoryEdges::new(pairs.to_vec()).unwrap();
    let mut state = State::new(N_NODES, n_parts);
    let known = degrees(&edges, N_NODES).unwrap();
    match rule {
        Algorithm::Dbh => dbh::place(&edges, &known, &mut state).unwrap(),
        Algorithm::Greedy => greedy::place(&edges, known, &mut state).unwrap(),
        Algorithm::Hdrf => hdrf::place(&edges, &mut state).unwrap(),
        _ => two_ps_l::place(&edges, known, &mut state, &mut Steps::new(0)).unwrap(),
    }
    for part in 0..n_parts {
        assert_eq!(state.n_edges(PartId(part)), model.sizes[usize::from(part)], "{rule:?}");
        for node in 0..N_NODES {
            let expected = model.copies(node).contains(&part);
            assert_eq!(state.has_copy(node, PartId(part)), expected, "{rule:?} {node} in {part}");
        }
    }
    let (owners, report) = state.finish();
    let n_copies: usize = (0..N_NODES).map(|node| model.copies(node).len().max(1)).sum();
    assert_eq!(report.replication_factor, n_copies as f64 / f64::from(N_NODES));
    for (node, owner) in (0..).zip(&owners) {
        let mut of_parts: BTreeMap<u16, usize> = BTreeMap::new();
        for (_, part) in model.placed.iter().filter(|(edge, _)| edge.contains(&node)) {
            *of_parts.entry(*part).or_default() += 1;
        }
        if let Some(most) = of_parts.values().max() {
            assert_eq!(of_parts.get(&owner.0), Some(most), "most edges decide");
        }
    }
}

#[test]
fn a_hub_stays_where_it_has_most_edges_past_what_a_byte_counts() {
    let mut state = State::new(2000, 3);
    for leaf in 1..1900 {
        // 900 in partition 1, 1 in partition 2, the others in partition 0.
        let part = if leaf == 5 { 2 } else { u16::from(leaf % 2 == 0 && leaf < 1800) };
        state.place(0, leaf, PartId(part));
    }
    assert!((0..3).all(|part| state.has_copy(0, PartId(part))));
    let (owners, report) = state.finish();
    assert_eq!(owners[0], PartId(0));
    assert_eq!(report.replication_factor, 2002.0 / 2000.0);
}

proptest! {
    #[test]
    fn edges_go_where_the_papers_say(
        ends in prop::collection::vec((0..N_NODES, 0..N_NODES), 0..80),
        n_parts in 1u16..6,
    ) {
        let pairs: Vec<[u32; 2]> = ends.iter().map(|&(u, v)| [u, v]).collect();
        let pairs: Vec<[u32; 2]> = pairs.into_iter().filter(|[u, v]| u != v).collect();
        check(&Algorithm::Dbh, &pairs, n_parts, &by_degree(&pairs, n_parts));
        check(&Algorithm::Greedy, &pairs, n_parts, &by_copies(&pairs, n_parts));
        check(&Algorithm::Hdrf, &pairs, n_parts, &by_score(&pairs, n_parts));
        check(&Algorithm::TwoPsL, &pairs, n_parts, &two_ps(&pairs, n_parts));
    }

    #[test]
    fn two_ps_l_keeps_edges_in_balance(
        ends in prop::collection::vec((0..N_NODES, 0..N_NODES), 1..200),
        n_parts in 1u16..100,
    ) {
        let pairs: Vec<[u32; 2]> = ends.iter().map(|&(u, v)| [u, v]).collect();
        let n_edges = pairs.iter().filter(|[u, v]| u != v).count() as f64;
        let edges = MemoryEdges::new(pairs).unwrap();
        let mut steps = Steps::new(0);
        let rule = &Algorithm::TwoPsL;
        let (_, report) = vertex_cut(&edges, N_NODES, n_parts, rule, &mut steps).unwrap();
        let mean = n_edges / f64::from(n_parts);
        prop_assert!(n_edges == 0.0 || report.edge_balance * mean <= (1.05 * mean).max(mean.ceil()) + 1e-9);
    }
}

#[test]
fn a_star_is_cut_at_its_hub_only() {
    let pairs: Vec<[u32; 2]> = (1..1000).map(|leaf| [0, leaf]).collect();
    let edges = MemoryEdges::new(pairs).unwrap();
    for rule in &[Algorithm::Dbh, Algorithm::Hdrf] {
        let (_, report) = vertex_cut(&edges, 1000, 4, rule, &mut Steps::new(0)).unwrap();
        assert_eq!(report.replication_factor, 1003.0 / 1000.0, "{rule:?}");
        assert!(report.edge_balance < 1.2, "{rule:?}: {}", report.edge_balance);
    }
}
