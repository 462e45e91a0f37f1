//! [`crate::versioned::VersionedRows`] and [`crate::volatile::VolatileRows`] over the model
//! checker's atomics, which try every order of accesses.

use loom::sync::{Arc, Mutex};
use loom::thread;

use versioned::{TornRead, VersionedRows, WORD_BYTES};
use volatile::VolatileRows;

/// The counterpart of `sync.rs`.
mod sync {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};

    /// Each read more is a tree of orders more.
    pub(super) const READ_TRIES: usize = 1;

    /// Yields: a thread that spins would keep loom from running the thread that it waits for.
    pub(super) fn pause(_: u32) {
        loom::thread::yield_now();
    }

    /// Takes nothing from the orders that are tried.
    pub(super) fn prefetch(_: &AtomicWords, _: std::ops::Range<usize>) {}

    pub(super) type AtomicWords = Box<[AtomicU64]>;

    pub(super) fn zeros(n: usize) -> Option<AtomicWords> {
        Some((0..n).map(|_| AtomicU64::new(0)).collect())
    }
}

#[expect(dead_code, unreachable_pub, reason = "what is not tried here is used elsewhere")]
#[expect(clippy::duplicate_mod, reason = "over other atomics it is another module")]
#[path = "versioned.rs"]
mod versioned;

#[expect(dead_code, unreachable_pub, reason = "what is not tried here is used elsewhere")]
#[expect(clippy::duplicate_mod, reason = "over other atomics it is another module")]
#[path = "volatile.rs"]
mod volatile;

/// Returns a row of one word: with its tag there are two that can disagree.
fn row(write: u8) -> [u8; WORD_BYTES] {
    [write; WORD_BYTES]
}

/// Reads once, and checks that what is taken is one write's.
fn check(rows: &VersionedRows) -> Result<u64, TornRead> {
    let mut out = row(9);
    let tag = rows.try_read(0, &mut out)?;
    assert_eq!(out, row(tag as u8), "tag and row are of one write");
    Ok(tag)
}

#[test]
fn no_order_of_accesses_shows_a_reader_a_torn_row() {
    loom::model(|| {
        let rows = Arc::new(VersionedRows::new(1, WORD_BYTES).unwrap());
        let writer = {
            let rows = Arc::clone(&rows);
            thread::spawn(move || {
                rows.write(0, 1, &row(1));
                rows.write(0, 2, &row(2));
            })
        };
        let _any_of_the_three = check(&rows);
        writer.join().unwrap();
        assert_eq!(check(&rows), Ok(2), "what was written last is there");
    });
}

#[test]
fn a_slot_that_goes_to_another_row_shows_no_reader_a_wrong_one() {
    // As shared tiers do it: under a lock it is decided which row is where, under which number;
    // rows are written and read outside of it.
    loom::model(|| {
        let rows = Arc::new(VersionedRows::new(1, WORD_BYTES).unwrap());
        let decided = Arc::new(Mutex::new(1));
        rows.write(0, 1, &row(1));
        let writer = {
            let (rows, decided) = (Arc::clone(&rows), Arc::clone(&decided));
            thread::spawn(move || {
                *decided.lock().unwrap() = 2;
                rows.write(0, 2, &row(2));
            })
        };
        let number = *decided.lock().unwrap();
        let mut out = row(9);
        if rows.try_read(0, &mut out) == Ok(number.into()) {
            assert_eq!(out, row(number), "the row that was decided to be there");
        }
        writer.join().unwrap();
        assert_eq!(check(&rows), Ok(2), "what was decided last is there");
    });
}

#[test]
fn a_reader_never_goes_back() {
    loom::model(|| {
        let rows = Arc::new(VersionedRows::new(1, 0).unwrap());
        let writer = {
            let rows = Arc::clone(&rows);
            thread::spawn(move || rows.write(0, 1, &[]))
        };
        let tag = |rows: &VersionedRows| rows.try_read(0, &mut []);
        let first = tag(&rows);
        let second = tag(&rows);
        assert!(first != Ok(1) || second == Ok(1));
        writer.join().unwrap();
    });
}

#[test]
fn of_two_writes_the_greater_tag_stays() {
    loom::model(|| {
        let rows = Arc::new(VersionedRows::new(1, WORD_BYTES).unwrap());
        let other = {
            let rows = Arc::clone(&rows);
            thread::spawn(move || rows.write(0, 1, &row(1)))
        };
        rows.write(0, 2, &row(2));
        assert_eq!(check(&rows), Ok(2), "it is there from now on");
        other.join().unwrap();
        assert_eq!(check(&rows), Ok(2));
    });
}

/// A publisher that goes back in time claims again: what a reader gets is whole and as new as it
/// asked.
#[test]
fn no_order_of_accesses_shows_a_volatile_row_that_is_too_old_or_of_no_claim() {
    let mut model = loom::model::Builder::new();
    // All orders take most of a minute; a fault of two accesses needs fewer changes of threads.
    model.preemption_bound = Some(3);
    model.check(|| {
        let rows = Arc::new(VolatileRows::new([0..1, 1..2], WORD_BYTES).unwrap());
        let publish = |rows: &VolatileRows, claim: &volatile::VolatileClaim, stamp: u8| {
            let claims = std::slice::from_ref(claim);
            let publication = rows.check_publication(claims, &[0], stamp.into()).unwrap();
            rows.publish_checked(&publication, &[0], 0, &row(stamp)).unwrap();
        };
        let claim = rows.claim(0).unwrap();
        publish(&rows, &claim, 3);
        let publisher = {
            let rows = Arc::clone(&rows);
            thread::spawn(move || {
                rows.release(claim);
                publish(&rows, &rows.claim(0).unwrap(), 1);
            })
        };
        let pull = |min_stamp| {
            let (mut out, mut stamps) = (row(9), [9]);
            let places = rows.locate(&[0]).unwrap();
            let n_lacking = rows.pull_stamped(&places, min_stamp, &mut out, &mut stamps).unwrap();
            let stamp = Some(stamps[0]).filter(|&stamp| stamp != volatile::NO_STAMP);
            assert_eq!(stamp.is_none(), n_lacking == 1);
            if let Some(stamp) = stamp {
                assert_eq!(out, row(stamp as u8), "a row is of its stamp");
                assert!(stamp >= min_stamp, "never older than was asked");
            }
            stamp
        };
        let first = pull(0);
        let second = pull(2);
        assert!(first != Some(1) || second.is_none(), "no row of the claim before");
        publisher.join().unwrap();
        assert_eq!((pull(0), pull(2)), (Some(1), None));
    });
}
