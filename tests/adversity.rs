//! Processes that are killed, disks that fill up, read-only mounts, exhausted limits. Acknowledged
//! changes stay, and each refusal has its reason.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "adversity/descriptors.rs"]
mod descriptors;
#[path = "adversity/full_disk.rs"]
mod full_disk;
#[path = "adversity/killed.rs"]
mod killed;
#[path = "adversity/killed_import.rs"]
mod killed_import;
#[path = "adversity/load.rs"]
mod load;
#[path = "adversity/read_only.rs"]
mod read_only;
#[path = "adversity/without_rings.rs"]
mod without_rings;
