//! Access to the rows of a graph: sources, batch loading, hot sets and the prefetcher.
//!
//! This crate does not know what is trained, how rows are stored on disk, or which policy is best.
//! It turns node ids into bytes of rows, from wherever they are, and counts what it moved.
//!
//! A [`RowSource`] provides the rows: a [`Client`] of servers, an [`EmbeddedSource`] of files, or
//! either behind a [`TieredSource`]. A [`BatchLoader`] and a [`Prefetcher`] assemble batches from
//! it. `examples/` has a program for each.
//!
//! Types that cache rows across commits take a pinned source, see [`RowSource::pinned_version`].
//! `docs/guide.md` has the rule for each.
//!
//! ```no_run
//! use lodestore_client::{Client, ClientConfig, ClientError};
//! use lodestore_graph::NodeId;
//!
//! fn main() -> Result<(), ClientError> {
//!     let client = Client::connect(&["127.0.0.1:7171"], ClientConfig::default())?;
//!     let rows: Vec<f32> = client.tensor("feat")?.gather(&[NodeId(7), NodeId(4)])?;
//!     println!("{} elements", rows.len());
//!     Ok(())
//! }
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

#[cfg(feature = "load")]
pub mod load;

pub mod address;
pub mod budget;
pub mod buffer;
pub mod cluster;
mod connection;
pub mod error;
#[cfg(test)]
mod fake_server;
pub mod follow;
pub mod gather_queue;
pub mod halo_buffer;
mod health;
pub mod hot_set_cache;
pub mod keep;
mod latency_estimate;
pub mod load_stats;
pub mod loader;
pub mod oracle_tier;
pub mod parts;
pub mod prefetch;
mod read_buffer;
pub mod remote;
mod route;
pub mod scheduled;
pub mod security;
mod shared_memory;
mod socket;
pub mod source;
#[cfg(test)]
mod testing;
pub mod transfer;
pub mod volatile;

pub use address::Address;
pub use error::ClientError;
pub use gather_queue::GatherQueue;
pub use loader::BatchLoader;
pub use prefetch::Prefetcher;
pub use remote::{Client, ClientConfig, Pin};
pub use security::Security;
pub use source::embedded::EmbeddedSource;
pub use source::tiered::TieredSource;
pub use source::{PullKind, RowSource, VersionTag};

/// The README's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
