//! Refusals of the system, in processes of their own, which drop rights or resources first.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use testing::child;
mod files;
mod readers;
mod threads;

/// Not a test of its own: what the child processes of the other tests do.
#[test]
#[ignore = "the others run it, each in a process of its own"]
fn scenario() {
    let Some((scenario, dir)) = child::own() else { return };
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let is_known = files::act(&scenario, &dir)
        || readers::act(&scenario, &dir)
        || threads::act(&scenario, &dir);
    assert!(is_known, "no scenario {scenario}");
}
