//! Processes that are killed, disks that fill up, read-only mounts, exhausted limits. Acknowledged
//! changes stay, and each refusal has its reason.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../benches/src/graph.rs"]
#[allow(unreachable_pub, dead_code, reason = "public where it lives")]
mod graph;
mod support;

#[path = "../store/tests/refused/child.rs"]
#[allow(dead_code, reason = "its runs of scenarios have no deadline")]
mod child;
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
