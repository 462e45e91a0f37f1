//! Greedy order: next comes the row with most neighbours among the rows just placed.

use super::degree::by_degree;
use super::inner_edges::Inside;

/// Rows that count as just placed: some hundred pages, so that a row finds its neighbourhood even
/// when other rows came between. Among 128, 1024 and 4096 the middle did best over all graphs.
pub(super) const WINDOW_ROWS: usize = 1024;

/// No row.
const NONE: u32 = u32::MAX;

/// Returns all rows, next always the one with most neighbours among the last `window_rows` placed.
/// Among equals it is the one whose number changed last. Where no row has any, it is the one of
/// highest degree.
///
/// The greedy algorithm of Gorder (Wei, Yu, Lu and Lin, SIGMOD 2016) with edges alone as score:
/// O(edges) list operations, 20 bytes per row.
pub(super) fn greedy(inside: &Inside<'_>, window_rows: usize) -> Vec<u32> {
    let mut waiting = Waiting::new(inside.n_rows() as usize);
    let mut order: Vec<u32> = Vec::with_capacity(inside.n_rows() as usize);
    let mut starts = by_degree(inside).into_iter();
    loop {
        let next = waiting.nearest().or_else(|| starts.find(|&row| !waiting.is_placed(row)));
        let Some(row) = next else { return order };
        waiting.place(row);
        order.push(row);
        inside.neighbours(row).for_each(|neighbour| waiting.change(neighbour, 1));
        if let Some(left) = order.len().checked_sub(window_rows + 1) {
            inside.neighbours(order[left]).for_each(|neighbour| waiting.change(neighbour, -1));
        }
    }
}

/// Rows that are not placed, in a doubly linked list for each number of neighbours in the window.
/// Rows that have none there are in no list.
struct Waiting {
    /// Neighbours in the window of each row; `NONE` for a row that is placed.
    n_near: Vec<u32>,
    before: Vec<u32>,
    after: Vec<u32>,
    /// First row of each list; as long as the largest number was.
    firsts: Vec<u32>,
    /// All lists past this one are empty.
    most: usize,
}

impl Waiting {
    fn new(n_rows: usize) -> Self {
        Self {
            n_near: vec![0; n_rows],
            before: vec![NONE; n_rows],
            after: vec![NONE; n_rows],
            firsts: vec![NONE],
            most: 0,
        }
    }

    fn is_placed(&self, row: u32) -> bool {
        self.n_near[row as usize] == NONE
    }

    /// Returns the row with most neighbours in the window, if any has some.
    fn nearest(&mut self) -> Option<u32> {
        while self.most > 0 && self.firsts[self.most] == NONE {
            self.most -= 1;
        }
        (self.most > 0).then(|| self.firsts[self.most])
    }

    fn place(&mut self, row: u32) {
        self.unlink(row);
        self.n_near[row as usize] = NONE;
    }

    /// Adds `by` to the neighbours of `row` in the window, unless it is placed.
    #[inline]
    fn change(&mut self, row: u32, by: i32) {
        if !self.is_placed(row) {
            self.unlink(row);
            let n_near = &mut self.n_near[row as usize];
            *n_near = n_near.wrapping_add_signed(by);
            self.link(row);
        }
    }

    #[inline]
    fn unlink(&mut self, row: u32) {
        let n_near = self.n_near[row as usize] as usize;
        if n_near == 0 {
            return;
        }
        let (before, after) = (self.before[row as usize], self.after[row as usize]);
        match before {
            NONE => self.firsts[n_near] = after,
            before => self.after[before as usize] = after,
        }
        if after != NONE {
            self.before[after as usize] = before;
        }
    }

    /// Puts the row at the front of its list.
    #[inline]
    fn link(&mut self, row: u32) {
        let n_near = self.n_near[row as usize] as usize;
        if n_near == 0 {
            return;
        }
        if n_near == self.firsts.len() {
            self.firsts.push(NONE);
        }
        let second = std::mem::replace(&mut self.firsts[n_near], row);
        if second != NONE {
            self.before[second as usize] = row;
        }
        self.before[row as usize] = NONE;
        self.after[row as usize] = second;
        self.most = self.most.max(n_near);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{graph, inside};
    use super::*;
    use proptest::prelude::*;

    /// Returns the same with a search for every row: count, then time of the last change, decide.
    fn naive(inside: &Inside<'_>, window_rows: usize) -> Vec<u32> {
        let n_rows = inside.n_rows() as usize;
        let (mut n_near, mut changed) = (vec![0i64; n_rows], vec![0u64; n_rows]);
        let (mut order, mut now) = (Vec::new(), 0);
        while order.len() < n_rows {
            let left = (0..n_rows as u32).filter(|row| !order.contains(row));
            let near = left.clone().filter(|&row| n_near[row as usize] > 0);
            let nearest = near.max_by_key(|&row| (n_near[row as usize], changed[row as usize]));
            let richest = by_degree(inside).into_iter().find(|row| !order.contains(row));
            let row = nearest.or(richest).unwrap();
            order.push(row);
            let leaves = order.len().checked_sub(window_rows + 1).map(|left| order[left]);
            for (of, by) in [(Some(row), 1), (leaves, -1)] {
                for neighbour in of.into_iter().flat_map(|of| inside.neighbours(of)) {
                    now += 1;
                    n_near[neighbour as usize] += by;
                    changed[neighbour as usize] = now;
                }
            }
        }
        order
    }

    proptest! {
        #[test]
        fn agrees_with_a_search_for_the_nearest(graph in graph(), window_rows in 1usize..40) {
            let (topology, book) = graph;
            for part in book.parts() {
                let inside = inside(&topology, &book, part);
                prop_assert_eq!(greedy(&inside, window_rows), naive(&inside, window_rows));
            }
        }
    }
}
