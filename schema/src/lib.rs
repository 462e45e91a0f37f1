//! The wire of Lodestore: the messages, their frames, and every bound that a peer must keep.
//!
//! This crate is the only one that knows Cap'n Proto's types. It turns plain structs into bytes,
//! and hostile bytes into plain structs or a [`WireError`]. It is sans-I/O: it opens no socket and
//! knows no disk format.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

pub mod limits;
pub mod pem;

mod error;
mod frame;
mod hello;
mod message;
mod name;
mod reply;
mod request;
mod socket;
mod stats;
mod stripes;
mod token;
mod versions;

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
pub use hello::{Agreement, WireVersions, hello, plain_hello};
pub use name::Name;
pub use reply::{
    Copied, Declared, Description, Failure, FailureCode, Followed, PartState, Reply, Role,
    TensorDescription, graph_tag,
};
pub use request::{
    CommitStep, CopyStep, Declare, FollowStep, Publish, PullKind, PullVolatile, Push, Request,
    RequestBody,
};
pub use socket::shard_socket;
pub use stats::{ServerStats, ShardStats, UpdateStats, VolatileStats};
pub use stripes::Stripes;
pub use token::{BadToken, BadTokens, Token, Tokens};
pub use versions::{PartVersion, Versions};
