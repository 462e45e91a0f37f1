//! Topology of a graph: edge streams, partitioners, in-neighbour lists, a deterministic sampler,
//! and schedules of mini-batches.
//!
//! This crate knows node ids and edges. It does not know features, caches or the network.
//! Partitioners read passes over a stream of edges and keep O(|V|) state; METIS alone holds the
//! whole graph.
//!
//! `examples/sample.rs` is a program.
//!
//! ```
//! use lodestore_graph::NodeId;
//! use lodestore_graph::sampler::Sampler;
//! use lodestore_graph::topology::Topology;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Node 0 has the in-neighbours 1 and 2, node 1 has 2.
//! let topology = Topology::from_lists(vec![0, 2, 3, 3], vec![1, 2, 2])?;
//! let batch = Sampler::new(&topology, &["2".parse()?]).sample(&[NodeId(0)], 42);
//! assert_eq!(batch.nodes.len(), 3);
//! # Ok(())
//! # }
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

mod bijection;
mod book;
mod file_error;
mod gunzip;
mod header;
mod ids;

pub mod batch;
pub mod edges;
pub mod file_check;
pub mod fork;
pub mod generate;
pub mod halo;
mod huge;
pub mod lock;
mod map;
pub mod micrograph;
pub mod node_set;
pub mod npy;
pub mod order;
mod output_file;
pub mod partition;
pub mod prefetch;
pub mod process;
pub mod rapa;
pub mod region;
pub mod relabel;
pub mod sampler;
pub mod schedule;
mod splitmix64;
pub mod topology;

pub use book::{BookError, PartitionBook};
pub use file_error::FileError;
pub use gunzip::Gunzip;
pub use ids::{NodeId, PartId};
pub use output_file::{OutputFile, OutputPlace, create_partial, is_stream};
pub use splitmix64::splitmix64;
