//! Rows on disk: graphs as folders of self-contained partitions, segments with page checksums,
//! read plans, readers, import, verification.
//!
//! This crate knows bytes, files and node ids. It does not know the network, caches or their
//! policies, sampling, or what the rows mean to a model.
//!
//! [`EmbeddedStore`] reads rows, [`GraphHandle`] puts and commits them, and the crate
//! `lodestore-import` makes graphs. `examples/` has programs for each.
//!
//! ```no_run
//! use lodestore_graph::NodeId;
//! use lodestore_store::{EmbeddedStore, StoreError};
//!
//! fn main() -> Result<(), StoreError> {
//!     let store = EmbeddedStore::open("my-graph", None)?;
//!     let rows: Vec<f32> = store.tensor("feat")?.gather(&[NodeId(7), NodeId(4)])?;
//!     println!("{} elements", rows.len());
//!     Ok(())
//! }
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

pub mod catalog;
mod checksum;
pub mod codec;
pub mod compact;
mod convert;
pub mod dtype;
mod embedded;
mod error;
pub mod error_origin;
pub mod file_system;
#[cfg(test)]
mod fixture;
pub mod follow;
pub mod graph;
mod growing;
pub mod import;
pub mod inspect;
mod layers;
pub mod layout;
pub mod limits;
mod map;
pub mod meta;
pub mod nan;
mod new_file;
mod open_files;
pub mod plan;
pub mod probe;
mod quarantine;
pub mod reader;
pub mod repair;
mod ring;
mod row;
mod sealed_text;
pub mod segment;
pub mod source;
pub mod synthetic;
pub mod tensor;
pub mod transfer;
pub mod update;
pub mod verify;
pub mod version_id;

pub use dtype::{Dtype, Element};
pub use embedded::{EmbeddedStore, Tensor};
pub use error::StoreError;
pub use graph::Graph;
pub use import::Importer;
pub use reader::{OpenOptions, ReaderKind};
pub use row::RowIdx;
pub use tensor::TensorSpec;
pub use update::{GraphHandle, OpenMode, View};
pub use version_id::{CommitId, VersionId};
