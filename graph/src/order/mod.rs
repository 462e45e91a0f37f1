//! Row orders: which row of its partition each node gets, so that rows that are read together lie
//! in the same pages.
//!
//! Each order sees the edges inside one partition and O(rows) memory. It depends on the graph
//! alone: not on time, chance or threads.

mod degree;
mod greedy;
mod inner_edges;
mod locality;

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::book::PartitionBook;
use crate::topology::Topology;

use inner_edges::Inside;

pub use locality::{RowsPerPage, Trace, WINDOW_BATCHES};

/// How rows are laid out within a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowOrder {
    /// As the input numbers them.
    Input,
    /// By descending degree.
    Degree,
    /// Next the row with most neighbours among the rows before it. It is the default: it has the
    /// most rows per page on most graphs measured, and is close to the best on the others.
    #[default]
    Greedy,
}

/// An order that is not known.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("row order {found:?} is not known; input, degree and greedy are")]
pub struct RowOrderError {
    /// Name given.
    pub found: String,
}

/// Returns the nodes of `book` in the order of the rows they get: those of each partition in its
/// range.
///
/// `topology` holds each edge in both directions. Memory: 24 bytes per row of the largest
/// partition at most. Lists are read at random, so they should fit in the page cache.
///
/// # Panics
///
/// When topology and book are of different graphs.
pub fn arrange(order: RowOrder, topology: &Topology, book: &PartitionBook) -> Vec<u32> {
    assert_eq!(topology.n_nodes(), book.n_nodes(), "topology and book must be of one graph");
    let mut nodes = Vec::with_capacity(book.n_nodes() as usize);
    for part in book.parts() {
        let range = book.range(part);
        let inside = Inside::new(topology, range.clone());
        let rows = match order {
            RowOrder::Input => (0..inside.n_rows()).collect(),
            RowOrder::Degree => degree::by_degree(&inside),
            RowOrder::Greedy => greedy::greedy(&inside, greedy::WINDOW_ROWS),
        };
        nodes.extend(rows.into_iter().map(|row| range.start + row));
    }
    nodes
}

impl RowOrder {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Input, Self::Degree, Self::Greedy];

    /// Returns the name under which it is asked for.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Degree => "degree",
            Self::Greedy => "greedy",
        }
    }
}

impl fmt::Display for RowOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for RowOrder {
    type Err = RowOrderError;

    fn from_str(name: &str) -> Result<Self, RowOrderError> {
        let found = Self::ALL.into_iter().find(|order| order.name() == name);
        found.ok_or_else(|| RowOrderError { found: name.to_owned() })
    }
}

#[cfg(test)]
mod tests;
