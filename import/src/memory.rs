//! The memory that a partitioner needs, compared with what is free.

use lodestore_graph::partition::PartitionConfig;
use lodestore_store::available_memory_bytes;
use thiserror::Error;

/// A partitioner that needs more memory than is free.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{algorithm} needs {needed_bytes} bytes for {n_nodes} nodes in {n_parts} partitions, and \
     {free_bytes} are free; see `lode partition --plan`"
)]
pub struct MemoryError {
    /// The partitioner.
    pub algorithm: String,
    /// Bytes that it needs.
    pub needed_bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Nodes of the graph.
    pub n_nodes: u32,
    /// Partitions asked for.
    pub n_parts: u16,
}

/// Fails when a partitioner would need more memory than there is.
pub fn check_memory(
    config: &PartitionConfig,
    n_nodes: u32,
    n_edges: u64,
) -> Result<(), MemoryError> {
    let needed_bytes = config.plan(n_nodes, n_edges).peak_bytes;
    match available_memory_bytes() {
        Some(free_bytes) if needed_bytes > free_bytes => Err(MemoryError {
            algorithm: config.algorithm.to_string(),
            needed_bytes,
            free_bytes,
            n_nodes,
            n_parts: config.n_parts,
        }),
        _ => Ok(()),
    }
}
