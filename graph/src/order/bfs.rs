//! Breadth-first order.

use super::degree::by_degree;
use super::inner_edges::Inside;

/// Returns all rows, breadth first over the edges inside the partition. Each component starts at
/// its row of highest degree; the neighbours of a row ascend.
pub(super) fn breadth_first(inside: &Inside<'_>) -> Vec<u32> {
    let mut seen = vec![false; inside.n_rows() as usize];
    // The order is its own queue.
    let mut order = Vec::with_capacity(seen.len());
    let mut next = 0;
    for root in by_degree(inside) {
        if std::mem::replace(&mut seen[root as usize], true) {
            continue;
        }
        order.push(root);
        while let Some(&row) = order.get(next) {
            next += 1;
            for neighbour in inside.neighbours(row) {
                if !std::mem::replace(&mut seen[neighbour as usize], true) {
                    order.push(neighbour);
                }
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::super::tests::{graph, inside};
    use super::*;
    use proptest::prelude::*;

    /// Searches level by level, each from the whole of the one before.
    fn naive(inside: &Inside<'_>) -> Vec<u32> {
        let mut order: Vec<u32> = Vec::new();
        for root in by_degree(inside) {
            let mut level = vec![root];
            level.retain(|row| !order.contains(row));
            while !level.is_empty() {
                order.extend(&level);
                let mut next: Vec<u32> = Vec::new();
                for neighbour in level.iter().flat_map(|&row| inside.neighbours(row)) {
                    if !order.contains(&neighbour) && !next.contains(&neighbour) {
                        next.push(neighbour);
                    }
                }
                level = next;
            }
        }
        order
    }

    proptest! {
        #[test]
        fn agrees_with_levels(graph in graph()) {
            let (topology, book) = graph;
            for part in book.parts() {
                let inside = inside(&topology, &book, part);
                prop_assert_eq!(breadth_first(&inside), naive(&inside));
            }
        }
    }
}
