//! Finds the graph's description: in `graph.toml`, or in its copies in the catalogs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use lodestore_graph::{PartId, PartitionBook};

use super::as_damage;
use super::partitions::Partition;
use crate::error::StoreError;
use crate::file_system::FileSystem;
use crate::graph::{Graph, META_FILE};
use crate::meta::{GraphMeta, MetaError};

/// Finds out what the graph in `dir` is; returns also how `graph.toml` is to be rebuilt, if it is.
///
/// Fails when `graph.toml` is of a later format, and when it is lost without a copy.
pub(super) fn find(
    fs: &Arc<dyn FileSystem>,
    dir: &Path,
    partitions: &BTreeMap<PartId, Partition>,
) -> Result<(Graph, Option<String>), StoreError> {
    let error = match Graph::open_on(Arc::clone(fs), dir) {
        Ok(graph) => return Ok((graph, None)),
        Err(error) => as_damage(error)?,
    };
    if let Some((meta, book, n_copies)) = copy(partitions, dir)? {
        let rebuilt = format!("written again from its copy in {n_copies} catalogs ({error})");
        return Ok((Graph::of(Arc::clone(fs), dir, meta, book), Some(rebuilt)));
    }
    let reason = format!(
        "{error}; no catalog here has a copy; other machines with partitions of the graph have the \
         same file"
    );
    Err(StoreError::Unrepairable { file: dir.join(META_FILE), reason })
}

/// Returns the copy that most catalogs have, and how many; fails when none has the most.
fn copy(
    partitions: &BTreeMap<PartId, Partition>,
    dir: &Path,
) -> Result<Option<(GraphMeta, PartitionBook, usize)>, StoreError> {
    let mut copies: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    let catalogs = partitions.values().filter_map(|partition| partition.catalog.as_ref().ok());
    for copy in catalogs.filter_map(|catalog| catalog.graph_copy().ok().flatten()) {
        *copies.entry(copy).or_default() += 1;
    }
    let mut by_count: Vec<(usize, Vec<u8>)> = copies.into_iter().map(|(c, n)| (n, c)).collect();
    by_count.sort();
    let Some((n, text)) = by_count.pop() else { return Ok(None) };
    let file = dir.join(META_FILE);
    if by_count.last().is_some_and(|(second, _)| *second == n) {
        let reason = "catalogs have different copies of it: partitions of several graphs are here";
        return Err(StoreError::Unrepairable { file, reason: reason.to_owned() });
    }
    match GraphMeta::parse(&String::from_utf8_lossy(&text)) {
        Ok((meta, book)) => Ok(Some((meta, book, n))),
        Err(MetaError::Newer { found }) => {
            let supported = crate::meta::GRAPH_FORMAT_VERSION;
            Err(StoreError::NewerFormat { file, found, supported })
        }
        Err(_) => Ok(None),
    }
}
