//! Finds the graph's description: in `graph.toml`, in its copies, or in the files themselves.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use lodestore_graph::{PartId, PartitionBook};

use super::actions::RepairActions;
use super::derive::derive;
use super::partitions::Partition;
use super::scan;
use crate::error::StoreError;
use crate::error_origin::ErrorOrigin;
use crate::graph::{Graph, META_FILE};
use crate::meta::{GraphMeta, MetaError};

/// A graph's description, and its source.
pub(super) struct Description {
    pub(super) meta: GraphMeta,
    pub(super) book: PartitionBook,
    /// How `graph.toml` is rebuilt, if it must be.
    pub(super) rebuilt: Option<String>,
}

/// Finds out what the graph in `dir` is.
///
/// Fails when `graph.toml` is of a later format, and when it is lost without another source.
pub(super) fn find(
    actions: &RepairActions,
    dir: &Path,
    partitions: &BTreeMap<PartId, Partition>,
) -> Result<Description, StoreError> {
    let error = match Graph::open_on(Arc::clone(&actions.device), dir) {
        Ok(graph) => match misplaced(actions, &graph, partitions)? {
            None => {
                let (meta, book) = (graph.meta().clone(), graph.book().clone());
                return Ok(Description { meta, book, rebuilt: None });
            }
            Some(error) => error,
        },
        Err(error @ StoreError::NewerFormat { .. }) => return Err(error),
        Err(error) if error.origin() == ErrorOrigin::System => return Err(error),
        Err(error) => error,
    };
    if let Some((meta, book, n_copies)) = copy(partitions, dir)? {
        let rebuilt = Some(format!("written again from its copy in {n_copies} catalogs ({error})"));
        return Ok(Description { meta, book, rebuilt });
    }
    // Older graphs keep no copies.
    match derive(actions, partitions) {
        Ok((meta, book, guessed)) => {
            let rebuilt = format!("derived from the headers of topology and segments; {guessed}");
            Ok(Description { meta, book, rebuilt: Some(rebuilt) })
        }
        Err(reason) => Err(StoreError::Unrepairable {
            file: dir.join(META_FILE),
            reason: format!("{error}; no catalog has a copy; and {reason}"),
        }),
    }
}

/// Returns what is wrong with a sound `graph.toml` that no file here belongs to; `None` if it may
/// stay.
///
/// Fails when some files belong to it, and more to another graph: it is undecided which of both
/// this folder is.
fn misplaced(
    actions: &RepairActions,
    graph: &Graph,
    partitions: &BTreeMap<PartId, Partition>,
) -> Result<Option<StoreError>, StoreError> {
    let mut owners = scan::owners(actions, partitions.values())?;
    let n_own = owners.remove(&graph.uuid()).unwrap_or(0);
    let most = owners.iter().max_by_key(|(_, n)| **n).map(|(uuid, n)| (*uuid, *n));
    let Some((other, n_other)) = most.filter(|(_, n)| *n > n_own) else { return Ok(None) };
    let (file, found) = (graph.dir().join(META_FILE), graph.uuid());
    if n_own == 0 && owners.len() == 1 {
        let (field, expected, found) = ("graph", other.to_string(), found.to_string());
        return Ok(Some(StoreError::Misplaced { file, field, expected, found }));
    }
    let reason = format!(
        "it is of graph {found}, as {n_own} other files are, but {n_other} are of {other}: files \
         of several graphs are here; move out what does not belong here and repair again"
    );
    Err(StoreError::Unrepairable { file, reason })
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
