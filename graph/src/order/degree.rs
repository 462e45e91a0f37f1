//! Degree order.

use std::cmp::Reverse;

use super::inner_edges::Inside;

/// Returns all rows by descending degree in the whole graph; of equal ones the lower first.
///
/// Neighbour sampling draws a node the more often the more neighbours it has, so that the rows of
/// nearly every batch share pages.
pub(super) fn by_degree(inside: &Inside<'_>) -> Vec<u32> {
    let mut rows: Vec<u32> = (0..inside.n_rows()).collect();
    rows.sort_by_cached_key(|&row| Reverse(inside.full_degree(row)));
    rows
}

#[cfg(test)]
mod tests {
    use super::super::tests::{graph, inside};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn degrees_descend_and_equal_ones_keep_their_order(graph in graph()) {
            let (topology, book) = graph;
            for part in book.parts() {
                let inside = inside(&topology, &book, part);
                let key = |&row: &u32| (Reverse(inside.full_degree(row)), row);
                prop_assert!(by_degree(&inside).is_sorted_by_key(key));
            }
        }
    }
}
