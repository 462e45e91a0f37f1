//! The feature server: shards on glommio executors that serve rows of a graph's partitions over
//! TCP and Unix sockets.
//!
//! It joins the store (rows on disk), the cache (rows in memory) and the schema (the wire format).
//! It joins the store (rows on disk), the cache (rows in memory) and the schema (the wire format).
//! It knows nothing of clients, training or topology, and decides nothing about formats or
//! policies. Shards share nothing on the data path. Each row has one owner shard. Any other shard
//! that receives a request for the row sends a message to the owner.
//!
//! [`Server::start`] returns when all shards serve. See `examples/embedded_server.rs`.
//!
//! ```no_run
//! use lodestore_server::{Server, ServerConfig, ServerError};
//!
//! fn main() -> Result<(), ServerError> {
//!     let listen = Some(([127, 0, 0, 1], 7171).into());
//!     let server = Server::start(&ServerConfig { listen, ..ServerConfig::new("my-graph") })?;
//!     server.stop()
//! }
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

pub mod limits;

mod acceptor;
pub mod auth;
mod blocking;
mod buffers;
mod compactor;
pub mod config;
mod connection;
mod cut;
mod deadline;
mod dma;
mod error;
mod executors;
mod followers;
mod following;
mod http;
pub mod installer;
mod listen;
mod log_limit;
mod mailbox;
mod memory_budget;
mod mesh;
pub mod metrics;
mod partitions;
mod pins;
mod preload;
mod puts;
mod reads;
mod ring_support;
mod rows;
mod server;
mod shard;
mod shared_memory;
mod stats;
pub mod supervisor;
#[cfg(test)]
mod testing;
mod tls_scheduler;
mod volatile;

pub use config::{PreloadChoice, ServerConfig, TlsFiles, VolatileChoice};
pub use error::ServerError;
pub use lodestore_cache::PolicyKind;
pub use server::Server;
