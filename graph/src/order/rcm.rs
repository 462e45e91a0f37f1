//! Reverse Cuthill–McKee order.

use super::inner_edges::Inside;

/// Searches for a start within one component; each costs a pass over its edges.
const MAX_SEARCHES: u8 = 8;

/// Returns all rows in reverse Cuthill–McKee order (Cuthill and McKee 1969; backwards, George
/// 1971). Each component is searched breadth first from a row far from the others, the neighbours
/// of a row by ascending degree. Then the whole order is reversed.
pub(super) fn reverse_cuthill_mckee(inside: &Inside<'_>) -> Vec<u32> {
    let mut starts: Vec<u32> = (0..inside.n_rows()).collect();
    starts.sort_by_cached_key(|&row| inside.degree(row));
    let mut searched_by = vec![0; starts.len()];
    let mut placed = vec![false; starts.len()];
    let mut order = Vec::with_capacity(starts.len());
    let mut next = 0;
    for lowest in starts {
        if placed[lowest as usize] {
            continue;
        }
        let start = far_end(inside, lowest, &mut searched_by);
        placed[start as usize] = true;
        order.push(start);
        while let Some(&row) = order.get(next) {
            next += 1;
            let first = order.len();
            for neighbour in inside.neighbours(row) {
                if !std::mem::replace(&mut placed[neighbour as usize], true) {
                    order.push(neighbour);
                }
            }
            order[first..].sort_unstable_by_key(|&row| (inside.degree(row), row));
        }
    }
    order.reverse();
    order
}

/// Returns a row of the component of `start` whose distance to others is about as large as any
/// (George and Liu 1979). It starts again from a row of the last level while that finds more
/// levels.
///
/// `searched_by` holds 0 for the whole component, which is searched once in the life of the table.
fn far_end(inside: &Inside<'_>, start: u32, searched_by: &mut [u8]) -> u32 {
    let (mut end, mut n_levels) = (start, 0);
    let mut queue = Vec::new();
    for search in 1..=MAX_SEARCHES {
        let (last, found) = last_level(inside, end, search, searched_by, &mut queue);
        if found <= n_levels {
            break;
        }
        (end, n_levels) = (last, found);
    }
    end
}

/// Returns the first row of lowest degree among those farthest from `start`, and the number of
/// levels.
fn last_level(
    inside: &Inside<'_>,
    start: u32,
    search: u8,
    searched_by: &mut [u8],
    queue: &mut Vec<u32>,
) -> (u32, usize) {
    queue.clear();
    queue.push(start);
    searched_by[start as usize] = search;
    let (mut level, mut n_levels) = (0..1, 0);
    loop {
        n_levels += 1;
        for i in level.clone() {
            for neighbour in inside.neighbours(queue[i]) {
                if std::mem::replace(&mut searched_by[neighbour as usize], search) != search {
                    queue.push(neighbour);
                }
            }
        }
        if level.end == queue.len() {
            let last = queue[level].iter().copied().min_by_key(|&row| inside.degree(row));
            return (last.unwrap_or(start), n_levels);
        }
        level = level.end..queue.len();
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{graph, inside, topology_of};
    use super::*;
    use crate::book::PartitionBook;
    use crate::ids::PartId;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Returns the rows of each distance from `start`, in the order of first sight.
    fn levels(inside: &Inside<'_>, start: u32) -> Vec<Vec<u32>> {
        let mut levels = vec![vec![start]];
        let mut seen = vec![start];
        loop {
            let mut level = Vec::new();
            for neighbour in levels[levels.len() - 1].iter().flat_map(|&row| inside.neighbours(row))
            {
                if !seen.contains(&neighbour) {
                    seen.push(neighbour);
                    level.push(neighbour);
                }
            }
            if level.is_empty() {
                return levels;
            }
            levels.push(level);
        }
    }

    fn naive(inside: &Inside<'_>) -> Vec<u32> {
        let by_degree = |rows: &mut Vec<u32>| rows.sort_by_key(|&row| inside.degree(row));
        let mut order: Vec<u32> = Vec::new();
        let mut starts: Vec<u32> = (0..inside.n_rows()).collect();
        by_degree(&mut starts);
        while let Some(mut start) = starts.iter().copied().find(|row| !order.contains(row)) {
            let mut n_levels = 0;
            loop {
                let levels = levels(inside, start);
                if levels.len() <= n_levels {
                    break;
                }
                n_levels = levels.len();
                start =
                    *levels[n_levels - 1].iter().min_by_key(|row| inside.degree(**row)).unwrap();
            }
            let mut next = order.len();
            order.push(start);
            while next < order.len() {
                let mut rows: Vec<u32> = inside.neighbours(order[next]).collect();
                rows.retain(|row| !order.contains(row));
                by_degree(&mut rows);
                order.extend(rows);
                next += 1;
            }
        }
        order.reverse();
        order
    }

    proptest! {
        #[test]
        fn agrees_with_lists_of_levels(graph in graph()) {
            let (topology, book) = graph;
            for part in book.parts() {
                let inside = inside(&topology, &book, part);
                prop_assert_eq!(reverse_cuthill_mckee(&inside), naive(&inside));
            }
        }
    }

    #[test]
    fn a_shuffled_ladder_gets_a_narrow_band() {
        // Rungs between two rails of 50 nodes, under numbers that mean nothing.
        let number = |place: u32| place * 37 % 100;
        let rails = (0..98).map(|place| [number(place), number(place + 2)]);
        let rungs = (0..50).map(|rung| [number(2 * rung), number(2 * rung + 1)]);
        let topology = topology_of(&rails.chain(rungs).collect::<Vec<_>>(), 100);
        let inside = inside(&topology, &PartitionBook::single(100), PartId(0));
        let order = reverse_cuthill_mckee(&inside);
        let places: BTreeMap<u32, u32> = order.into_iter().zip(0..).collect();
        let width = |row| {
            let ends = inside.neighbours(row).map(|other| places[&other].abs_diff(places[&row]));
            ends.max().unwrap_or(0)
        };
        assert!((0..100).all(|row| width(row) <= 3));
    }
}
