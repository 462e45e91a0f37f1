//! A client and servers in one process: pulls, puts, and volatile tensors.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod serving;
mod updating;
mod volatile;
