//! Volatile rows beside a naive twin, and on real threads.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use lodestore_cache::volatile::{
    NO_STAMP, STAMP_MAX, Stamp, VolatileClaim, VolatileError, VolatileRows,
};
use proptest::prelude::*;

const RANGES: [Range<u32>; 4] = [3..10, 10..10, 10..30, 40..41];

fn row_of(id: u32, stamp: Stamp, row_bytes: usize) -> Vec<u8> {
    (0..row_bytes).map(|i| (id as usize * 31 + stamp as usize * 7 + i) as u8).collect()
}

fn rows_of(ids: &[u32], stamp: Stamp, row_bytes: usize) -> Vec<u8> {
    ids.iter().flat_map(|&id| row_of(id, stamp, row_bytes)).collect()
}

fn publish(
    rows: &VolatileRows,
    claims: &[VolatileClaim],
    (ids, bytes): (&[u32], &[u8]),
    stamp: Stamp,
) -> Result<(), VolatileError> {
    rows.publish_checked(&rows.check_publication(claims, ids, stamp)?, ids, 0, bytes)
}

/// Publishes as a server does: all ids are checked, and rows are written piece by piece.
fn publish_in_pieces(
    rows: &VolatileRows,
    claims: &[VolatileClaim],
    (ids, bytes): (&[u32], &[u8]),
    stamp: Stamp,
) -> Result<(), VolatileError> {
    const PIECE: usize = 3;
    let publication = rows.check_publication(claims, ids, stamp)?;
    let pieces = ids.chunks(PIECE).zip(bytes.chunks(PIECE * rows.row_bytes()));
    let all = pieces.enumerate().map(|(number, (ids, bytes))| {
        rows.publish_checked(&publication, ids, number * PIECE, bytes)
    });
    // Each of them is written, whatever comes of those before it.
    all.fold(Ok(()), Result::and)
}

/// Returns the oldest stamp of the rows pulled; `lacking` gets the positions of the others.
fn pull(
    rows: &VolatileRows,
    ids: &[u32],
    min_stamp: Stamp,
    out: &mut [u8],
    lacking: &mut Vec<u32>,
) -> Result<Option<Stamp>, VolatileError> {
    let mut stamps = vec![0; ids.len()];
    rows.pull_stamped(&rows.locate(ids)?, min_stamp, out, &mut stamps)?;
    lacking.clear();
    let positions = (0..).zip(&stamps).filter(|(_, stamp)| **stamp == NO_STAMP);
    lacking.extend(positions.map(|(at, _)| at));
    Ok(stamps.into_iter().filter(|&stamp| stamp != NO_STAMP).min())
}

#[derive(Clone, Debug)]
enum Step {
    Claim(usize),
    Release(usize),
    Publish(Vec<u32>, Stamp),
    Pull(Vec<u32>, Stamp),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ids = || proptest::collection::vec(0u32..45, 0..12);
    // Mostly ids that are held.
    let held = || proptest::collection::vec(3u32..30, 0..12);
    let step = prop_oneof![
        2 => (0usize..5).prop_map(Step::Claim),
        1 => (0usize..4).prop_map(Step::Release),
        4 => (held(), 0u32..6).prop_map(|(ids, stamp)| Step::Publish(ids, stamp)),
        1 => (ids(), 0u32..6).prop_map(|(ids, stamp)| Step::Publish(ids, stamp)),
        4 => (held(), 0u32..7).prop_map(|(ids, stamp)| Step::Pull(ids, stamp)),
        1 => (ids(), 0u32..7).prop_map(|(ids, stamp)| Step::Pull(ids, stamp)),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Changes of one publisher after the other, in maps.
#[derive(Default)]
struct Twin {
    held: HashMap<usize, VolatileClaim>,
    rows: HashMap<u32, Stamp>,
}

impl Twin {
    fn range_of(id: u32) -> Option<usize> {
        RANGES.iter().position(|range| range.contains(&id))
    }
}

proptest! {
    #[test]
    fn steps_do_what_they_do_to_maps(steps in steps(), row_bytes in prop_oneof![Just(1), Just(8), Just(20)]) {
        let rows = VolatileRows::new(RANGES, row_bytes).unwrap();
        let mut twin = Twin::default();
        for step in steps {
            match step {
                Step::Claim(range) => match rows.claim(range) {
                    Ok(claim) => {
                        prop_assert!(twin.held.insert(range, claim).is_none());
                        twin.rows.retain(|id, _| !RANGES[range].contains(id));
                    }
                    Err(VolatileError::Held { ids }) => {
                        prop_assert!(twin.held.contains_key(&range) && ids == RANGES[range]);
                    }
                    Err(error) => {
                        let is_none = matches!(error, VolatileError::NoRange { range: 4, .. });
                        prop_assert!(is_none, "{error}");
                    }
                },
                Step::Release(range) => {
                    if let Some(claim) = twin.held.remove(&range) {
                        rows.release(claim);
                    }
                }
                Step::Publish(ids, stamp) => {
                    let mut held: Vec<_> = twin.held.drain().collect();
                    held.sort_by_key(|(range, _)| *range);
                    let (ranges, claims): (Vec<_>, Vec<_>) = held.into_iter().unzip();
                    let bytes = rows_of(&ids, stamp, row_bytes);
                    let published = match stamp % 2 {
                        0 => publish(&rows, &claims, (&ids, &bytes), stamp),
                        _ => publish_in_pieces(&rows, &claims, (&ids, &bytes), stamp),
                    };
                    twin.held = ranges.into_iter().zip(claims).collect();
                    let owned = |id: &u32| {
                        Twin::range_of(*id).is_some_and(|range| twin.held.contains_key(&range))
                    };
                    if let Some(first) = ids.iter().find(|id| !owned(id)) {
                        match published {
                            Err(VolatileError::NotOwned { id }) => {
                                prop_assert!(id == *first && Twin::range_of(id).is_some());
                            }
                            Err(VolatileError::NotHere { id }) => {
                                prop_assert!(id == *first && Twin::range_of(id).is_none());
                            }
                            other => prop_assert!(false, "{other:?}"),
                        }
                        continue;
                    }
                    let older = ids.iter().find(|id| twin.rows.get(id) > Some(&stamp));
                    match (older, published) {
                        (None, Ok(())) => {}
                        (Some(first), Err(VolatileError::Older { id, .. })) => {
                            prop_assert_eq!(id, *first);
                        }
                        (_, published) => prop_assert!(false, "{published:?}"),
                    }
                    for id in ids {
                        let of = twin.rows.entry(id).or_insert(stamp);
                        *of = stamp.max(*of);
                    }
                }
                Step::Pull(ids, min_stamp) => {
                    let mut out = vec![9; ids.len() * row_bytes];
                    let mut lacking = vec![7];
                    let pulled = pull(&rows, &ids, min_stamp, &mut out, &mut lacking);
                    if let Some(first) = ids.iter().find(|id| Twin::range_of(**id).is_none()) {
                        let is_first = matches!(pulled, Err(VolatileError::NotHere { id }) if id == *first);
                        prop_assert!(is_first, "{pulled:?}");
                        continue;
                    }
                    let mut stamps = vec![0; ids.len()];
                    let mut rows_of_ids = vec![7; out.len()];
                    let places = rows.locate(&ids).unwrap();
                    let n_lacking =
                        rows.pull_stamped(&places, min_stamp, &mut rows_of_ids, &mut stamps).unwrap();
                    prop_assert_eq!(n_lacking, lacking.len());
                    prop_assert_eq!(&rows_of_ids, &out);
                    for first in 0..=ids.len() {
                        let next = lacking.iter().map(|&at| at as usize).find(|&at| at >= first);
                        prop_assert_eq!(rows.first_lacking(&places, min_stamp, first), next);
                    }
                    for (stamp, id) in stamps.iter().zip(&ids) {
                        let known = twin.rows.get(id).filter(|stamp| **stamp >= min_stamp);
                        prop_assert_eq!(*stamp, known.copied().unwrap_or(NO_STAMP));
                    }
                    let (mut oldest, mut expected) = (None::<Stamp>, Vec::new());
                    for (at, id) in ids.iter().enumerate() {
                        let row = &out[at * row_bytes..(at + 1) * row_bytes];
                        match twin.rows.get(id).filter(|stamp| **stamp >= min_stamp) {
                            Some(&stamp) => {
                                prop_assert_eq!(row, &row_of(*id, stamp, row_bytes)[..]);
                                oldest = Some(oldest.map_or(stamp, |old| old.min(stamp)));
                            }
                            None => {
                                prop_assert!(row.iter().all(|&byte| byte == 0), "{row:?}");
                                expected.push(at as u32);
                            }
                        }
                    }
                    prop_assert_eq!(lacking, expected);
                    prop_assert_eq!(pulled.unwrap(), oldest);
                }
            }
        }
    }
}

#[test]
fn what_is_wrong_is_said_and_nothing_is_written() {
    let rows = VolatileRows::new(RANGES, 4).unwrap();
    let claims = [rows.claim(0).unwrap()];
    // Another publisher's claim of another range has the same number.
    let other = rows.claim(2).unwrap();
    let text = |result: Result<(), VolatileError>| result.unwrap_err().to_string();
    let own = |ids: &[u32], bytes: &[u8], stamp| publish(&rows, &claims, (ids, bytes), stamp);
    assert!(text(own(&[3, 10], &[1; 8], 1)).contains("row 10 is not this publisher's"));
    rows.release(other);
    assert!(text(own(&[3, 10], &[1; 8], 1)).contains("row 10 is not this publisher's"));
    assert!(text(own(&[3, 39], &[1; 8], 1)).contains("row 39 is not held here"));
    assert!(text(own(&[3], &[1; 8], 1)).contains("another buffer than one of 8 bytes"));
    assert!(text(own(&[3], &[1; 4], STAMP_MAX + 1)).contains("is no stamp"));
    let (mut out, mut lacking) = ([0; 4], Vec::new());
    assert_eq!(pull(&rows, &[3], 0, &mut out, &mut lacking).unwrap(), None);
    assert_eq!(lacking, [0]);
    own(&[3], &[9; 4], STAMP_MAX).unwrap();
    let pulled = pull(&rows, &[3], STAMP_MAX, &mut out, &mut lacking).unwrap();
    assert_eq!(pulled, Some(STAMP_MAX));
    assert!(out == [9; 4] && lacking.is_empty());
    // Of a later claim nothing is there, and the claim before it publishes no more.
    let [claim] = claims;
    rows.release(claim);
    assert_eq!(pull(&rows, &[3], 0, &mut out, &mut lacking).unwrap(), Some(STAMP_MAX));
    let claims = [rows.claim(0).unwrap()];
    assert_eq!(pull(&rows, &[3], 0, &mut out, &mut lacking).unwrap(), None);
    publish(&rows, &claims, (&[3], &[5; 4]), 0).unwrap();
    assert_eq!(pull(&rows, &[3], 0, &mut out, &mut lacking).unwrap(), Some(0));
    assert_eq!(out, [5; 4]);
    let overlapping = VolatileRows::new([0..3, 2..4], 4);
    assert!(matches!(overlapping, Err(VolatileError::Ranges { range }) if range == (2..4)));
    assert_eq!(VolatileRows::new([], 4).unwrap().range_of(0), None);
}

#[test]
fn ids_are_claimed_by_whole_ranges() {
    let rows = VolatileRows::new(RANGES, 4).unwrap();
    assert_eq!(rows.ranges_of(3..10).unwrap(), 0..1);
    assert_eq!(rows.ranges_of(3..30).unwrap(), 0..3);
    assert_eq!(rows.ranges_of(10..30).unwrap(), 2..3);
    assert_eq!(rows.ranges_of(40..41).unwrap(), 3..4);
    let text = |ids| rows.ranges_of(ids).unwrap_err().to_string();
    assert!(text(3..9).contains("those from 3 to 10"), "{}", text(3..9));
    assert!(text(4..10).contains("those from 3 to 10"));
    assert!(text(3..29).contains("those from 10 to 30"));
    assert!(text(3..31).contains("row 30 is not held"));
    assert!(text(5..5).contains("row 5 is not held") && text(50..60).contains("row 50"));
}

/// Two publishers continue from stamp to stamp while readers pull both of their ranges.
#[test]
fn rows_are_whole_and_never_older_than_was_asked() {
    const ROW_BYTES: usize = 200;
    const LAST: Stamp = 4_000;
    let rows = VolatileRows::new([0..8, 8..16], ROW_BYTES).unwrap();
    let done = [AtomicU32::new(0), AtomicU32::new(0)];
    std::thread::scope(|scope| {
        for range in 0..2 {
            let (rows, done) = (&rows, &done[range]);
            scope.spawn(move || {
                let claims = [rows.claim(range).unwrap()];
                let ids: Vec<u32> = (range as u32 * 8..(range as u32 + 1) * 8).collect();
                for stamp in 1..=LAST {
                    let bytes = rows_of(&ids, stamp, ROW_BYTES);
                    publish(rows, &claims, (&ids, &bytes), stamp).unwrap();
                    done.store(stamp, Ordering::Release);
                }
            });
        }
        for reader in 0..2 {
            let (rows, done) = (&rows, &done);
            scope.spawn(move || {
                let ids = [[0, 15, 7, 8], [12, 3, 3, 9]][reader];
                let (mut out, mut lacking) = (vec![0; 4 * ROW_BYTES], Vec::new());
                let mut newest = 0;
                while newest < LAST {
                    // What both have published is there from then on.
                    let min_stamp = done.iter().map(|of| of.load(Ordering::Acquire)).min().unwrap();
                    let pulled = pull(rows, &ids, min_stamp.max(1), &mut out, &mut lacking);
                    let oldest = pulled.unwrap();
                    if min_stamp > 0 && !lacking.is_empty() {
                        // A writer has lost its processor in the middle of a row.
                        std::thread::yield_now();
                        continue;
                    }
                    assert!(oldest.is_none_or(|oldest| oldest >= min_stamp.max(1)));
                    for (at, &id) in ids.iter().enumerate() {
                        if lacking.contains(&(at as u32)) {
                            continue;
                        }
                        let row = &out[at * ROW_BYTES..(at + 1) * ROW_BYTES];
                        let is_of = |stamp| row == row_of(id, stamp, ROW_BYTES);
                        // A writer may be a few stamps further by now.
                        assert!((min_stamp..=LAST).any(is_of), "a row is one publication's");
                    }
                    newest = min_stamp;
                }
            });
        }
    });
}
