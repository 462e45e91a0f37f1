//! The wire of Lodestore: the messages, their frames, and every bound that a peer must keep.
//!
//! This crate is the only one that knows Cap'n Proto's types. It turns plain structs into bytes,
//! and hostile bytes into plain structs or a [`WireError`]. It is sans-I/O: it opens no socket and
//! knows no disk format.
//!
//! A [`Request`] and a [`Reply`] are the messages; `docs/protocol.md` has their bytes.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

pub mod limits;
pub mod pem;

mod error;
mod frame;
pub mod hello;
pub mod name;
pub mod reply;
pub mod request;
pub mod socket;
pub mod stats;
mod stripes;
pub mod tags;
pub mod token;
pub mod versions;
mod wire_versions;

#[expect(
    unreachable_pub,
    clippy::semicolon_if_nothing_returned,
    clippy::unwrap_used,
    reason = "generated from lodestore.capnp; tests/generated.rs holds it to the schema"
)]
#[rustfmt::skip]
mod lodestore_capnp;

pub use error::WireError;
pub use frame::Prefix;

pub use reply::{Failure, FailureCode, Reply};
pub use request::{Request, RequestBody};
pub use stripes::Stripes;
pub use token::{Token, Tokens};
pub use versions::Versions;
pub use wire_versions::WireVersions;
