//! The partitions of a graph that are on this machine: others may be on others.

use anyhow::{Result, bail};
use lodestore_graph::{NodeId, PartId, PartitionBook};
use lodestore_store::Graph;

use crate::human::joined;

/// Returns the partitions of `graph` that are on this machine; fails if none is.
pub(crate) fn local_parts(graph: &Graph) -> Result<Vec<PartId>> {
    let parts = graph.local_parts();
    if parts.is_empty() {
        bail!("{}: no partition of the graph is on this machine", graph.dir().display());
    }
    Ok(parts)
}

/// Returns the partitions of the graph that are not among `here`.
pub(crate) fn remote_parts(book: &PartitionBook, here: &[PartId]) -> Vec<u16> {
    book.parts().filter(|part| !here.contains(part)).map(|part| part.0).collect()
}

/// Fails for the first of `nodes` that no partition among `here` owns; they are those of a list
/// from position `first` on.
pub(crate) fn check_local(
    book: &PartitionBook,
    here: &[PartId],
    nodes: &[NodeId],
    first: u64,
) -> Result<()> {
    for (position, &node) in (first..).zip(nodes) {
        let part = book.locate(node).map(|(part, _)| part);
        if let Some(part) = part.filter(|part| !here.contains(part)) {
            bail!(
                "id {position} of the list is node {node} of partition {part}, which is not on \
                 this machine; here: {}",
                joined(here, ", ")
            );
        }
    }
    Ok(())
}

/// Returns a line that names partitions between two texts; no line without any.
pub(crate) fn line_of(before: &str, parts: &[u16], after: &str) -> String {
    match parts {
        [] => String::new(),
        parts => format!("\n{before}: partitions {}{after}", joined(parts, ", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_node_that_is_elsewhere_is_named_with_its_position() {
        let book = PartitionBook::new(vec![0, 10, 20, 30]).unwrap();
        let here = [PartId(0), PartId(2)];
        assert_eq!(remote_parts(&book, &here), [1]);
        check_local(&book, &here, &[9, 20, 0, 29].map(NodeId), 0).unwrap();
        let error = check_local(&book, &here, &[9, 10].map(NodeId), 100).unwrap_err().to_string();
        assert!(error.contains("id 101 of the list is node 10 of partition 1"), "{error}");
        assert!(error.ends_with("here: 0, 2"), "{error}");
    }
}
