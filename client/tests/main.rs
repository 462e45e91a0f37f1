//! A client and servers in one process: rows that are read, put and published.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod serving;
mod updating;
mod volatile;
