//! Topology of a graph: edge streams, partitioners, in-neighbour lists, a deterministic sampler,
//! and schedules of mini-batches.
//!
//! This crate knows node ids and edges. It does not know features, caches or the network, and it
//! holds no edge list in memory: partitioners see passes over a stream and O(|V|) state.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

mod bijection;
mod book;
mod header;
mod ids;

pub mod batch;
pub mod check;
pub mod edges;
pub mod fork;
pub mod generate;
pub mod halo;
mod huge;
mod map;
mod memory;
pub mod micrograph;
mod mix;
pub mod npy;
pub mod order;
pub mod partition;
pub mod prefetch;
pub mod rapa;
pub mod relabel;
pub mod sampler;
pub mod schedule;
pub mod topology;

pub use book::{BookError, PartitionBook};
pub use ids::{NodeId, PartId};
pub use memory::{forget_peak_rss, peak_rss_bytes};
pub use mix::mix;
