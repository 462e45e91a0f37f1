use super::*;
use crate::edges::MemoryEdges;
use crate::ids::PartId;
use crate::relabel::Relabelling;
use crate::topology::Direction;
use proptest::prelude::*;

/// Returns the undirected graph of these edges.
pub(super) fn topology_of(edges: &[[u32; 2]], n_nodes: u32) -> Topology {
    let edges = MemoryEdges::new(edges.to_vec()).unwrap();
    Topology::from_edges(&edges, &Relabelling::identity(n_nodes), Direction::Undirected).unwrap()
}

pub(super) fn inside<'a>(topology: &'a Topology, book: &PartitionBook, part: PartId) -> Inside<'a> {
    Inside::new(topology, book.range(part))
}

/// Graphs with loops, isolated nodes, several components, and partitions of which some are empty
/// and some have nodes with neighbours in other partitions only.
pub(super) fn graph() -> impl Strategy<Value = (Topology, PartitionBook)> {
    let counts =
        prop::collection::vec(prop_oneof![1 => Just(0u32), 1 => Just(1), 4 => 2u32..30], 1..4);
    counts.prop_flat_map(|counts| {
        let book = PartitionBook::from_counts(&counts).unwrap();
        let end = book.n_nodes().max(1);
        let n_edges = if book.n_nodes() == 0 { 0..1 } else { 0..90 };
        prop::collection::vec((0..end, 0..end), n_edges).prop_map(move |ends| {
            let edges: Vec<[u32; 2]> = ends.into_iter().map(|(u, v)| [u, v]).collect();
            (topology_of(&edges, book.n_nodes()), book.clone())
        })
    })
}

#[test]
fn names_are_read_back() {
    for order in RowOrder::ALL {
        assert_eq!(order.to_string().parse(), Ok(order));
    }
    let error = "gorder".parse::<RowOrder>().unwrap_err().to_string();
    assert!(error.contains("input, degree and greedy"), "{error}");
}

#[test]
fn small_graphs_work_with_every_order() {
    // Two nodes joined across partitions, a loop, a node alone.
    let edges = [[0, 1], [2, 2]];
    let cases = [
        (topology_of(&[], 0), vec![0]),
        (topology_of(&[], 0), vec![0, 0]),
        (topology_of(&[], 1), vec![1]),
        (topology_of(&[[0, 0]], 1), vec![0, 1, 0]),
        (topology_of(&edges, 4), vec![1, 0, 3]),
    ];
    for order in RowOrder::ALL {
        for (topology, counts) in &cases {
            let book = PartitionBook::from_counts(counts).unwrap();
            let mut nodes = arrange(order, topology, &book);
            for part in book.parts() {
                let range = book.range(part);
                nodes[range.start as usize..range.end as usize].sort_unstable();
            }
            assert!(nodes.into_iter().eq(0..book.n_nodes()), "{order} of {counts:?}");
        }
    }
}

/// Rings of `size` nodes with chords, numbered so that neighbours are far apart.
fn scattered_rings(n_rings: u32, size: u32) -> Topology {
    let node = |ring: u32, i: u32| (i % size) * n_rings + ring;
    let chords = |ring| {
        (0..size).flat_map(move |i| (1..4).map(move |step| [node(ring, i), node(ring, i + step)]))
    };
    topology_of(&(0..n_rings).flat_map(chords).collect::<Vec<_>>(), n_rings * size)
}

#[test]
fn the_order_that_sees_edges_brings_neighbours_into_pages() {
    let topology = scattered_rings(1500, 50);
    let book = PartitionBook::single(75_000);
    let trace = Trace::sample(&topology);
    let measured = RowOrder::ALL.map(|order| {
        let nodes = arrange(order, &topology, &book);
        let mut row_of = vec![0; nodes.len()];
        for (row, &node) in (0..).zip(&nodes) {
            row_of[node as usize] = row;
        }
        trace.rows_per_page(&book, 400, &|node| row_of[node.index()]).batch
    });
    let [input, degree, greedy] = measured;
    // All degrees are equal.
    assert_eq!(input, degree);
    assert!(greedy > 1.2 * input, "greedy: {greedy} of {input} rows per page");
}

proptest! {
    #[test]
    fn every_order_is_a_permutation_of_each_partition(graph in graph()) {
        let (topology, book) = graph;
        for order in RowOrder::ALL {
            let mut nodes = arrange(order, &topology, &book);
            prop_assert_eq!(&nodes, &arrange(order, &topology, &book));
            for part in book.parts() {
                let range = book.range(part);
                nodes[range.start as usize..range.end as usize].sort_unstable();
            }
            prop_assert!(nodes.into_iter().eq(0..book.n_nodes()), "{}", order);
        }
    }
}
