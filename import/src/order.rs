//! The row of each node, and the rows that a page read returns with it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use lodestore_graph::edges::EdgeStream;
use lodestore_graph::order::{RowOrder, RowsPerPage, Trace, arrange};
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::topology::{Topology, scratch_topology};
use lodestore_graph::{NodeId, PartitionBook};
use serde::Serialize;

use crate::error::Error;

/// The lists of the whole graph in the order of the input, in both directions.
const SCRATCH_FILE: &str = "scratch.csr";

/// The order of the rows, and those it was compared with. Rows are uncompressed rows of the widest
/// tensor; a page is 4 KiB.
#[derive(Clone, Debug, Serialize)]
pub struct OrderReport {
    /// The order of the rows.
    pub order: &'static str,
    /// Seconds to find each order, once the topology is there.
    pub order_seconds: BTreeMap<&'static str, f64>,
    /// Distinct rows for each distinct page, when sampled batches are read one by one. Empty
    /// without a tensor, and where the topology does not fit in memory.
    pub rows_per_page: BTreeMap<&'static str, f64>,
    /// The same when windows of 8 batches are read together.
    pub rows_per_page_window: BTreeMap<&'static str, f64>,
}

/// The relabelling of an import, and what it takes to compare it with those of other orders.
pub(crate) struct Ordering {
    pub(crate) relabelling: Relabelling,
    order: RowOrder,
    seconds: f64,
    others: Option<Others>,
}

/// The state from which other orders are found.
struct Others {
    /// In the order of the input.
    topology: Topology,
    /// Row in the order of the input of each row.
    input_row_of: Vec<u32>,
    scratch: PathBuf,
}

impl Ordering {
    /// Puts the nodes of each partition in `order`. Unless that is the input's and the only one,
    /// the topology is written to `staging` first, and removed once it is used.
    pub(crate) fn find(
        order: RowOrder,
        compare: bool,
        edges: &dyn EdgeStream,
        by_input: Relabelling,
        staging: &Path,
    ) -> Result<Self, Error> {
        if order == RowOrder::Input && !compare {
            return Ok(Self { relabelling: by_input, order, seconds: 0.0, others: None });
        }
        let scratch = staging.join(SCRATCH_FILE);
        let (by_input, topology) = scratch_topology(edges, by_input, &scratch)?;
        let start = Instant::now();
        let input_row_of = arrange(order, &topology, &by_input.book);
        let seconds = start.elapsed().as_secs_f64();
        let relabelling = by_input.in_order(&input_row_of)?;
        let others = Others { topology, input_row_of, scratch };
        let others = if compare { Some(others) } else { others.remove().map(|()| None)? };
        Ok(Self { relabelling, order, seconds, others })
    }

    /// Measures the order, and those it is to be compared with, on batches sampled from `topology`.
    /// Without `row_bytes` nothing is measured.
    pub(crate) fn measure(
        &self,
        topology: &Topology,
        row_bytes: Option<u64>,
    ) -> Result<OrderReport, Error> {
        let mut report = OrderReport {
            order: self.order.name(),
            order_seconds: BTreeMap::from([(self.order.name(), self.seconds)]),
            rows_per_page: BTreeMap::new(),
            rows_per_page_window: BTreeMap::new(),
        };
        let Some(row_bytes) = row_bytes else { return Ok(report) };
        let trace = Trace::sample(topology);
        let book = &self.relabelling.book;
        let found = trace.rows_per_page(book, row_bytes, &|node| node.0);
        report.add(self.order, self.seconds, found);
        let Some(others) = &self.others else { return Ok(report) };
        for order in RowOrder::ALL.into_iter().filter(|&order| order != self.order) {
            let (row_of, seconds) = others.rows(order, book);
            let row_of = |node: NodeId| row_of[others.input_row_of[node.index()] as usize];
            report.add(order, seconds, trace.rows_per_page(book, row_bytes, &row_of));
        }
        Ok(report)
    }

    /// Removes scratch files from the staging folder, and returns the relabelling.
    pub(crate) fn done(self) -> Result<Relabelling, Error> {
        self.others.map_or(Ok(()), Others::remove)?;
        Ok(self.relabelling)
    }
}

impl Others {
    /// Returns the row in `order` of each row in the order of the input, and the seconds spent.
    fn rows(&self, order: RowOrder, book: &PartitionBook) -> (Vec<u32>, f64) {
        let start = Instant::now();
        let input_row_of = arrange(order, &self.topology, book);
        let seconds = start.elapsed().as_secs_f64();
        let mut row_of = vec![0; input_row_of.len()];
        for (row, &input_row) in (0..).zip(&input_row_of) {
            row_of[input_row as usize] = row;
        }
        (row_of, seconds)
    }

    fn remove(self) -> Result<(), Error> {
        drop(self.topology);
        remove(&self.scratch)
    }
}

impl OrderReport {
    fn add(&mut self, order: RowOrder, seconds: f64, found: RowsPerPage) {
        self.order_seconds.insert(order.name(), seconds);
        self.rows_per_page.insert(order.name(), found.batch);
        self.rows_per_page_window.insert(order.name(), found.window);
    }
}

/// Removes a file of the staging folder that is not of the graph.
pub(crate) fn remove(path: &Path) -> Result<(), Error> {
    fs::remove_file(path).map_err(Error::io(path, "remove"))
}
