//! Versions that stay readable by number, across commits and folds.

use std::time::{Duration, SystemTime};

use super::*;
use crate::update::KeepRule;
use crate::update::keep::KEPT_BY_AGE_MAX;
use crate::version_id::{CommitId, VersionId};

const N_NODES: u32 = 60;

/// Puts rows of the next version: all rows of `feat`, and at times node 1 of `mark`.
fn put_next(live: &GraphHandle) -> u32 {
    let version = live.version() + 1;
    put(live, "feat", &(0..N_NODES).collect::<Vec<u32>>(), version);
    if version.is_multiple_of(3) {
        put(live, "mark", &[1], version);
    }
    version
}

fn commit(live: &GraphHandle) -> u32 {
    let version = put_next(live);
    live.commit_version().unwrap();
    version
}

/// Returns a commit id whose time is `hours` ago.
fn drawn_before(hours: u64) -> CommitId {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let at = (now - Duration::from_hours(hours)).as_millis() as u64;
    let id = uuid::Builder::from_unix_timestamp_millis(at, &[hours as u8; 10]).into_uuid();
    CommitId::from_bytes(id.into_bytes())
}

/// Returns the readable versions, and checks the rows of each.
fn readable(live: &Arc<GraphHandle>) -> Vec<u32> {
    let is_readable = |&version: &u32| {
        let Ok(store) = at(live, version) else { return false };
        let expected = if version == 1 { 0 } else { version as u8 };
        assert_eq!(seqs(&store, "feat"), vec![expected; N_NODES as usize], "version {version}");
        assert_eq!(u32::from(seqs(&store, "mark")[1]), version / 3 * 3, "version {version}");
        true
    };
    (1..=live.version()).filter(is_readable).collect()
}

fn opened_again(ring: &Ring, live: Arc<GraphHandle>) -> Arc<GraphHandle> {
    drop(Arc::into_inner(live).expect("no reader is left"));
    writer(ring)
}

#[test]
fn the_newest_versions_are_kept_across_folds_and_openings() {
    let ring = ring(N_NODES, 2, 2);
    let live = writer(&ring);
    live.set_keep_rule(KeepRule { n_versions: 4, ..KeepRule::NEWEST });
    for _ in 0..12 {
        commit(&live);
        compact(&live);
    }
    assert_eq!(readable(&live), [10, 11, 12, 13]);
    let live = opened_again(&ring, live);
    assert_eq!(readable(&live), [10, 11, 12, 13]);
    compact(&live);
    assert_eq!(readable(&live), [13], "by itself a graph keeps the newest version");
}

/// A commit folds a tensor with very many layers; it must not retry in vain each time.
#[test]
fn more_versions_can_be_kept_than_a_commit_leaves_layers() {
    let ring = ring(N_NODES, 1, 1);
    let live = writer(&ring);
    live.set_keep_rule(KeepRule { n_versions: 80, ..KeepRule::NEWEST });
    for _ in 0..100 {
        commit(&live);
    }
    let readable = readable(&live);
    assert!(readable.len() >= 80 && readable.len() < 101, "{readable:?}");
    assert!(!live.pays_to_fold() || readable.len() < 100);
}

/// Times are those of the commits, which catalogs record, so a restart loses none.
#[test]
fn versions_are_kept_by_age_across_openings() {
    let ring = ring(N_NODES, 2, 2);
    let by_age = |hours| KeepRule { n_versions: 1, age: Duration::from_hours(hours) };
    let live = writer(&ring);
    live.set_keep_rule(by_age(1000));
    for _ in 0..40 {
        commit(&live);
    }
    compact(&live);
    let expected: Vec<u32> = (41 - KEPT_BY_AGE_MAX + 1..=41).collect();
    assert_eq!(readable(&live), expected);
    let live = opened_again(&ring, live);
    live.set_keep_rule(by_age(1000));
    compact(&live);
    assert_eq!(readable(&live), expected);
    live.set_keep_rule(by_age(0));
    compact(&live);
    assert_eq!(readable(&live), [41]);
}

/// A reader may pin a version until the next one is committed.
#[test]
fn the_age_of_a_version_counts_from_the_commit_after_it() {
    let ring = ring(N_NODES, 1, 1);
    let live = writer(&ring);
    live.set_keep_rule(KeepRule { n_versions: 1, age: Duration::from_hours(1) });
    for hours in [30, 20, 0] {
        let version = put_next(&live);
        live.commit_through(VersionId::new(version, drawn_before(hours))).unwrap();
    }
    compact(&live);
    assert_eq!(readable(&live), [3, 4]);
}
