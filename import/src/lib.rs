//! Import: edges, tensors and whole datasets in files become a partitioned graph.
//!
//! [`import`] runs the stages, [`add_tensors`] adds tensors to a graph, [`Dataset`] reads the
//! folder layouts of other projects. This crate knows files, partitioners and the store. It does
//! not know flags, terminals or the network.
//!
//! ```no_run
//! use lodestore_import::{Error, ImportConfig, Silent, import};
//!
//! fn main() -> Result<(), Error> {
//!     let config = ImportConfig::new("edges.npy", 2, "my-graph").with_tensor("feat", "feat.npy");
//!     import(&config, &mut Silent).map(|_| ())
//! }
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

pub mod add;
mod config;
mod error;
mod input;
pub mod memory;
pub mod order;
pub mod report;
mod run;

pub mod dataset;

pub use add::add_tensors;
pub use config::{EdgeRules, ImportConfig, RowLayout, TensorFile};
pub use dataset::Dataset;
pub use error::Error;
pub use report::ImportReport;
pub use run::{Observer, Silent, import};
