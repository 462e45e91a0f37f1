use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Instant,
};

use super::*;
use crate::testing::{ROW_BYTES, TestSource, loader, nodes, rows_of};

fn source(good_pulls: u64) -> Arc<TestSource> {
    Arc::new(TestSource::new(Duration::ZERO, good_pulls))
}

/// Epoch e: nodes e to e + 4.
fn sliding(epoch: u32) -> Result<Vec<NodeId>, ClientError> {
    Ok(nodes(epoch..epoch + 5))
}

/// The set of `epoch`, once it is there.
fn wait_for(cache: &SteadyCache<'_>, epoch: u32) -> Arc<HotSet> {
    let start = Instant::now();
    loop {
        let set = cache.for_epoch(epoch).unwrap();
        if set.ids()[0] == epoch {
            return set;
        }
        assert!(start.elapsed() < Duration::from_secs(5), "the set never came");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn each_epoch_gets_its_set_and_only_new_rows_travel() {
    let remote = source(u64::MAX);
    thread::scope(|scope| {
        let cache = SteadyCache::start(scope, &loader(&remote), 0..4, Arc::new(sliding)).unwrap();
        for epoch in 0..4 {
            let set = wait_for(&cache, epoch);
            assert_eq!(set.ids(), (epoch..epoch + 5).collect::<Vec<_>>());
            for &id in set.ids() {
                assert_eq!(set.get(id).unwrap(), rows_of(&nodes([id])));
            }
        }
        let stats = cache.stats();
        assert_eq!((cache.pulled_until(0).remote_rows, cache.pulled_until(3).remote_rows), (5, 8));
        assert_eq!(stats.kept_rows, 12);
        assert_eq!(stats.peak_bytes, 10 * ROW_BYTES as u64);
    });
    let pulls = remote.pulls.lock().unwrap();
    assert_eq!(pulls.len(), 4, "one pull per set, and none for an epoch past the last");
    assert!(pulls.iter().all(|(_, kind)| *kind == PullKind::Vector));
}

#[test]
fn a_run_may_begin_at_any_epoch() {
    let remote = source(u64::MAX);
    thread::scope(|scope| {
        let cache = SteadyCache::start(scope, &loader(&remote), 2..4, Arc::new(sliding)).unwrap();
        for epoch in 2..4 {
            assert_eq!(wait_for(&cache, epoch).ids(), (epoch..epoch + 5).collect::<Vec<_>>());
        }
        assert_eq!((cache.pulled_until(2).remote_rows, cache.pulled_until(3).remote_rows), (5, 6));
    });
    assert_eq!(remote.n_pulls(), 2);
}

#[test]
fn the_old_set_serves_until_a_late_one_comes() {
    let gate = Arc::new(AtomicBool::new(false));
    let opened = Arc::clone(&gate);
    let choose = move |epoch| {
        while epoch > 0 && !opened.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        sliding(epoch)
    };
    thread::scope(|scope| {
        let loader = loader(&source(u64::MAX));
        let cache = SteadyCache::start(scope, &loader, 0..3, Arc::new(choose)).unwrap();
        assert_eq!(cache.for_epoch(1).unwrap().ids()[0], 0);
        assert_eq!(cache.for_epoch(1).unwrap().ids()[0], 0);
        assert_eq!(cache.stats().late, 1);
        gate.store(true, Ordering::SeqCst);
        wait_for(&cache, 1);
        wait_for(&cache, 2);
        assert!(cache.stats().late <= 2);
    });
}

#[test]
fn a_set_that_comes_epochs_late_is_no_third_one() {
    let gate = Arc::new(AtomicBool::new(false));
    let opened = Arc::clone(&gate);
    let (told, chosen) = std::sync::mpsc::channel();
    let choose = move |epoch| {
        told.send(epoch).unwrap();
        while epoch > 0 && !opened.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        sliding(epoch)
    };
    thread::scope(|scope| {
        let loader = loader(&source(u64::MAX));
        let choose = Mutex::new(choose);
        let choose = move |epoch| choose.lock().unwrap()(epoch);
        let cache = SteadyCache::start(scope, &loader, 0..6, Arc::new(choose)).unwrap();
        assert_eq!(chosen.recv(), Ok(0));
        assert_eq!(chosen.recv(), Ok(1), "its set is begun");
        for epoch in 1..=3 {
            assert_eq!(cache.for_epoch(epoch).unwrap().ids()[0], 0);
        }
        gate.store(true, Ordering::SeqCst);
        assert_eq!(chosen.recv(), Ok(3), "2 is over");
        wait_for(&cache, 3);
        wait_for(&cache, 4);
        wait_for(&cache, 5);
        assert_eq!(cache.stats().peak_bytes, 10 * ROW_BYTES as u64);
        // Nothing is built and not used.
        let kept = cache.stats().kept_rows;
        assert_eq!((chosen.recv(), chosen.recv(), kept), (Ok(4), Ok(5), 4 + 3 + 4 + 4));
    });
}

#[test]
fn a_third_set_waits_for_the_readers_of_the_first() {
    let remote = source(u64::MAX);
    thread::scope(|scope| {
        let cache = SteadyCache::start(scope, &loader(&remote), 0..3, Arc::new(sliding)).unwrap();
        let first = cache.for_epoch(0).unwrap();
        wait_for(&cache, 1);
        thread::sleep(Duration::from_millis(30));
        assert_eq!(remote.n_pulls(), 2);
        drop(first);
        wait_for(&cache, 2);
        assert_eq!(remote.n_pulls(), 3);
    });
}

#[test]
fn a_failed_pull_reaches_the_caller() {
    assert!(thread::scope(|scope| {
        SteadyCache::start(scope, &loader(&source(0)), 0..2, Arc::new(sliding)).is_err()
    }));
    thread::scope(|scope| {
        let cache =
            SteadyCache::start(scope, &loader(&source(1)), 0..2, Arc::new(sliding)).unwrap();
        let start = Instant::now();
        while cache.for_epoch(1).is_ok() {
            assert!(start.elapsed() < Duration::from_secs(5), "the error never came");
            thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn no_hot_rows_is_a_cache_too() {
    let remote = source(0);
    thread::scope(|scope| {
        let loader = loader(&remote);
        let none = |_| Ok(Vec::new());
        let cache = SteadyCache::start(scope, &loader, 0..3, Arc::new(none)).unwrap();
        for epoch in 0..3 {
            assert_eq!(cache.for_epoch(epoch).unwrap().n_rows(), 0);
        }
        assert_eq!(cache.pulled_until(2), LoadStats::default());
    });
    assert_eq!(remote.n_pulls(), 0);
}

#[test]
fn dropped_while_building_it_ends() {
    thread::scope(|scope| {
        let remote = Arc::new(TestSource::new(Duration::from_millis(20), u64::MAX));
        drop(SteadyCache::start(scope, &loader(&remote), 0..9, Arc::new(sliding)).unwrap());
    });
}
