//! A graph made of a table that is in a file.

use std::path::Path;

use lodestore_store::Graph;
use lodestore_store::source::open_source;

use crate::graph::import_features;

/// Imports the table of a file to a graph without edges at `out`, unless the graph exists. Its
/// tensor `feat` is in one partition, in the table's order.
///
/// # Panics
/// When the import fails.
#[must_use]
pub fn table_graph(table: &Path, out: &Path) -> Graph {
    if !out.exists() {
        let source = open_source(table).expect("a table");
        let n_nodes = u32::try_from(source.n_rows()).expect("as many rows as a graph has nodes");
        import_features(out, &*source, n_nodes, 1);
    }
    Graph::open(out).expect("a graph")
}
