use super::*;
use crate::edges::{ArrayEdges, EdgeStream};
use crate::npy::NpyArray;

struct Made {
    pairs: Vec<[u32; 2]>,
    labels: Vec<i64>,
    split: Vec<u8>,
    summary: GenerateSummary,
}

fn made(recipe: &GraphRecipe) -> Made {
    let dir = tempfile::tempdir().unwrap();
    let mut last = (0, 0);
    let summary = generate(recipe, dir.path(), &mut |done, total| last = (done, total)).unwrap();
    assert_eq!(last.0, last.1);
    let mut pairs = Vec::new();
    let edges = ArrayEdges::open_npy(&summary.edges_path, Some(recipe.n_nodes)).unwrap();
    edges
        .for_each_chunk(&mut |chunk| {
            pairs.extend_from_slice(chunk);
            Ok(())
        })
        .unwrap();
    assert_eq!(pairs.len() as u64, summary.edges);
    let labels = NpyArray::open(&summary.labels_path).unwrap();
    let split = NpyArray::open(&summary.split_path).unwrap();
    assert_eq!(labels.shape(), [u64::from(recipe.n_nodes)]);
    let labels = bytemuck::cast_slice(labels.bytes()).to_vec();
    Made { pairs, labels, split: split.bytes().to_vec(), summary }
}

fn degrees(made: &Made) -> Vec<u32> {
    let mut degrees = vec![0; made.labels.len()];
    for &end in made.pairs.as_flattened() {
        degrees[end as usize] += 1;
    }
    degrees
}

#[test]
fn the_graph_is_the_one_that_was_asked_for() {
    let recipe = GraphRecipe { n_nodes: 50_000, n_classes: 8, ..GraphRecipe::default() };
    let made = made(&recipe);
    let mean_degree = 2.0 * made.pairs.len() as f64 / 50_000.0;
    assert!((mean_degree - 20.0).abs() < 0.2, "mean degree {mean_degree}");
    assert!(made.pairs.iter().all(|[u, v]| u != v));
    assert!(made.pairs.is_sorted_by_key(|pair| pair[0]));
    let label = |v: u32| made.labels[v as usize];
    let same = made.pairs.iter().filter(|pair| label(pair[0]) == label(pair[1])).count();
    let homophily = same as f64 / made.pairs.len() as f64;
    assert!((homophily - 0.8).abs() < 0.01, "homophily {homophily}");
    for class in 0..8 {
        let n = made.labels.iter().filter(|&&label| label == class).count();
        assert!((6_200..6_300).contains(&n), "{n} nodes in class {class}");
    }
    let mut distinct: Vec<[u32; 2]> =
        made.pairs.iter().map(|&[u, v]| [u.min(v), u.max(v)]).collect();
    distinct.sort_unstable();
    distinct.dedup();
    assert!(distinct.len() as f64 > 0.94 * made.pairs.len() as f64, "{}", distinct.len());
}

#[test]
fn degrees_have_a_heavy_tail_and_few_nodes_are_isolated() {
    let made = made(&GraphRecipe { n_nodes: 50_000, n_classes: 8, ..GraphRecipe::default() });
    let mut degrees = degrees(&made);
    degrees.sort_unstable();
    let isolated = degrees.iter().filter(|&&d| d == 0).count();
    assert!(isolated < 50, "{isolated} isolated");
    assert!((10..=18).contains(&degrees[25_000]), "median {}", degrees[25_000]);
    assert!(degrees[49_999] > 250, "largest {}", degrees[49_999]);
    // Exponent 3: four times the degree is about a sixteenth of the nodes.
    let above = |d: u32| degrees.iter().filter(|&&degree| degree >= d).count() as f64;
    let ratio = above(40) / above(160);
    assert!((8.0..32.0).contains(&ratio), "{ratio}");
}

#[test]
fn hubs_have_the_degrees_that_their_share_and_power_say() {
    let largest = |hub_share, hub_power| {
        let (n_nodes, n_classes) = (40_000, 8);
        let recipe =
            GraphRecipe { n_nodes, n_classes, hub_share, hub_power, ..GraphRecipe::default() };
        f64::from(degrees(&made(&recipe)).into_iter().max().unwrap())
    };
    // Of 400 000 edges a fifth is between classes; the first hub has (1 / n)^(1 / power) of those
    // of hubs, beside the edges that it has anyway.
    for (hub_share, hub_power, expected) in [(1.0, 2, 400.0), (0.5, 4, 2828.0), (1.0, 3, 2339.0)] {
        let found = largest(hub_share, hub_power);
        assert!((expected * 0.95..expected * 1.05 + 100.0).contains(&found), "{found}, {expected}");
    }
    let (none, least) = (largest(1.0, 1), largest(0.0, 2));
    assert!(none < least * 1.1, "no hubs beside those of communities: {none}, {least}");
}

#[test]
fn ids_say_nothing_about_labels() {
    let made = made(&GraphRecipe { n_nodes: 20_000, n_classes: 4, ..GraphRecipe::default() });
    let same = made.labels.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert!((4_600..5_400).contains(&same), "{same} of 19999 neighbours share a class");
}

#[test]
fn splits_are_as_large_as_asked_for() {
    let recipe = GraphRecipe { n_nodes: 1000, n_classes: 4, ..GraphRecipe::default() };
    let made = made(&recipe);
    let count = |split| made.split.iter().filter(|&&s| s == split).count();
    assert_eq!([count(0), count(1), count(2), count(255)], [100, 50, 100, 750]);
}

#[test]
fn the_seed_decides_everything() {
    let of = |seed| {
        let made =
            made(&GraphRecipe { n_nodes: 500, n_classes: 3, seed, ..GraphRecipe::default() });
        (made.pairs, made.labels, made.split)
    };
    assert_eq!(of(1), of(1));
    let (a, b) = (of(1), of(2));
    assert!(a.0 != b.0 && a.1 != b.1 && a.2 != b.2);
    // Pinned, so that a change of the generator is noticed: published numbers depend on it.
    let digest = blake3::hash(bytemuck::cast_slice(a.0.as_flattened())).to_hex();
    assert_eq!(&digest[..16], "a8e8d7195655dc4a", "of {} edges", a.0.len());
}

#[test]
fn the_smallest_graphs_work() {
    for n_nodes in 1..6 {
        for n_classes in 1..=n_nodes {
            for homophily in [0.0, 1.0] {
                for community_nodes in [1, 1000] {
                    let recipe = GraphRecipe {
                        n_nodes,
                        n_classes,
                        homophily,
                        community_nodes,
                        ..GraphRecipe::default()
                    };
                    let made = made(&recipe);
                    assert_eq!(made.labels.len(), n_nodes as usize);
                    assert_eq!(made.pairs.is_empty(), n_nodes == 1);
                    assert!(made.pairs.iter().all(|[u, v]| u != v));
                    assert_eq!(made.summary.nodes, n_nodes);
                }
            }
        }
    }
}

#[test]
fn wrong_recipes_are_named_and_write_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let of = |change: fn(&mut GraphRecipe)| {
        let mut recipe = GraphRecipe::default();
        change(&mut recipe);
        match generate(&recipe, &out, &mut |_, _| {}) {
            Err(GenerateError::Recipe { name, .. }) => name,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(of(|r| r.n_nodes = 0), "n_nodes");
    assert_eq!(of(|r| r.mean_degree = f32::NAN), "mean_degree");
    assert_eq!(of(|r| r.mean_degree = f32::INFINITY), "mean_degree");
    assert_eq!(of(|r| r.n_classes = 0), "n_classes");
    assert_eq!(of(|r| r.n_classes = 200_001), "n_classes");
    assert_eq!(of(|r| r.homophily = 1.1), "homophily");
    assert_eq!(of(|r| r.community_nodes = 0), "community_nodes");
    assert_eq!(of(|r| r.hub_share = 1.5), "hub_share");
    assert_eq!(of(|r| r.hub_power = 0), "hub_power");
    assert_eq!(of(|r| r.test = -0.1), "test");
    assert_eq!(of(|r| r.train = 0.9), "train + val + test");
    assert!(!out.exists());
}
