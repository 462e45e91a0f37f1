//! The wire as the schema says it, and as earlier releases speak it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod generated;
mod last_version;
mod version_5;
