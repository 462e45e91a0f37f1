//! A list that grows while other threads read it.

use std::ops::Index;
use std::sync::OnceLock;

/// A list to which items are added through a shared reference. No item ever moves or goes, so that
/// references to items and positions stay good.
#[derive(Debug)]
pub(crate) struct Growing<T> {
    first: Vec<T>,
    /// The items added later.
    rest: OnceLock<Box<Growing<T>>>,
}

impl<T> Growing<T> {
    /// Adds an item at the end.
    pub(crate) fn push(&self, item: T) {
        let mut item = Box::new(Self::from(vec![item]));
        let mut list = self;
        while let Err(refused) = list.rest.set(item) {
            item = refused;
            list = list.rest.get().expect("it has refused a second one");
        }
    }

    /// Returns all items, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.segments().flat_map(|list| &list.first)
    }

    /// Returns the item at `position`.
    pub(crate) fn get(&self, mut position: usize) -> Option<&T> {
        for list in self.segments() {
            match list.first.get(position) {
                Some(item) => return Some(item),
                None => position -= list.first.len(),
            }
        }
        None
    }

    /// Returns the number of items.
    pub(crate) fn len(&self) -> usize {
        self.segments().map(|list| list.first.len()).sum()
    }

    fn segments(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |list| list.rest.get().map(|rest| &**rest))
    }
}

impl<T> From<Vec<T>> for Growing<T> {
    fn from(first: Vec<T>) -> Self {
        Self { first, rest: OnceLock::new() }
    }
}

impl<T> FromIterator<T> for Growing<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self::from(items.into_iter().collect::<Vec<T>>())
    }
}

impl<T> Index<usize> for Growing<T> {
    type Output = T;

    fn index(&self, position: usize) -> &T {
        let len = || format!("position {position} of a list of {} items", self.len());
        self.get(position).unwrap_or_else(|| panic!("{}", len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_that_many_threads_add_are_all_there_and_earlier_ones_stay() {
        let list: Growing<u32> = [7, 8].into_iter().collect();
        let first = &list[0];
        std::thread::scope(|scope| {
            for of in 1..5 {
                let list = &list;
                scope.spawn(move || (0..25).for_each(|at| list.push(of * 100 + at)));
            }
        });
        assert_eq!((*first, list[1], list.len(), list.get(102)), (7, 8, 102, None));
        let mut all: Vec<u32> = list.iter().copied().collect();
        assert_eq!(all[..2], [7, 8]);
        all.sort_unstable();
        let added = (1..5).flat_map(|of| (0..25).map(move |at| of * 100 + at));
        assert!(all.into_iter().eq([7, 8].into_iter().chain(added)));
    }
}
