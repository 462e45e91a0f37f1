//! Object storage as the home of a graph: push, pull, verify, garbage collection.
//!
//! This crate knows keys and objects of a bucket, publications of partitions, and how files travel
//! there and back. It does not know segments, tensors or versions beyond a manifest, nor servers.
//!
//! `layout`, `sealed`, `publication`, `search`, `upload_plan` and `gc_plan` are free of I/O. `lease`
//! and `gc` say why garbage collection removes nothing that a writer or a reader needs.
//! `docs/decisions/0049-publications-in-a-bucket.md` has the reasons.
//!
//! ```no_run
//! use lodestore_bucket::{Bucket, BucketError, PullOptions};
//!
//! fn main() -> Result<(), BucketError> {
//!     let bucket = Bucket::open("file:///backups/my-graph")?;
//!     bucket.push("my-graph".as_ref(), &[], &mut |_, _| {})?;
//!     bucket.pull("copy".as_ref(), &PullOptions::default(), &mut |_, _| {}).map(|_| ())
//! }
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

mod bucket;
mod epochs;
mod error;
mod follow;
mod gc;
pub mod gc_plan;
mod head;
pub mod inspect;
mod layout;
mod lease;
mod leases;
mod publication;
mod publisher;
mod pull;
pub mod push;
mod sealed;
mod search;
mod takeover;
mod upload_plan;
pub mod verify;

pub use bucket::{Bucket, Reached};
pub use error::BucketError;
pub use follow::BucketFollower;
pub use gc::{GcOptions, GcReport};
pub use head::Folder;
pub use publisher::{Cut, Publisher, Turn};
pub use pull::{PullOptions, PullReport};
pub use push::PushReport;

/// A function that receives bytes done and bytes in all.
pub type Progress<'a> = dyn FnMut(u64, u64) + 'a;

#[cfg(test)]
mod tests;
