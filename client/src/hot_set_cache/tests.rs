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

/// Returns the nodes e to e + 4 for epoch e.
fn sliding(epoch: u32) -> Result<Vec<NodeId>, ClientError> {
    Ok(nodes(epoch..epoch + 5))
}

/// Returns the set of `epoch`, once it is there.
fn wait_for(cache: &HotSetCache<'_>, epoch: u32) -> Arc<HotSet> {
    let start = Instant::now();
    loop {
        let set = cache.for_epoch(epoch).unwrap();
        if set.ids()[0] == epoch {
            return set;
        }
        assert!(start.elapsed() < Duration::from_secs(5), "the set was never ready");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn each_epoch_gets_its_set_and_only_new_rows_are_pulled() {
    let remote = source(u64::MAX);
    thread::scope(|scope| {
        let cache = HotSetCache::start(scope, &loader(&remote), 0..4, Arc::new(sliding)).unwrap();
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
fn a_run_may_start_at_any_epoch() {
    let remote = source(u64::MAX);
    thread::scope(|scope| {
        let cache = HotSetCache::start(scope, &loader(&remote), 2..4, Arc::new(sliding)).unwrap();
        for epoch in 2..4 {
            assert_eq!(wait_for(&cache, epoch).ids(), (epoch..epoch + 5).collect::<Vec<_>>());
        }
        assert_eq!((cache.pulled_until(2).remote_rows, cache.pulled_until(3).remote_rows), (5, 6));
    });
    assert_eq!(remote.n_pulls(), 2);
}

#[test]
fn the_old_set_serves_until_a_late_one_is_ready() {
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
        let cache = HotSetCache::start(scope, &loader, 0..3, Arc::new(choose)).unwrap();
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
fn a_builder_that_panics_is_an_error() {
    let choose = |epoch| if epoch == 1 { panic!("as the test wants it") } else { sliding(epoch) };
    thread::scope(|scope| {
        let loader = loader(&source(u64::MAX));
        let mut cache = HotSetCache::start(scope, &loader, 0..3, Arc::new(choose)).unwrap();
        let (requests, builder) = cache.builder.take().unwrap();
        while !builder.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        cache.builder = Some((requests, builder));
        let found = cache.for_epoch(1).err().unwrap();
        assert!(matches!(found, ClientError::Panicked { thread: "hot set" }), "{found}");
    });
}

#[test]
fn a_set_that_is_epochs_late_is_no_third_set() {
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
        let cache = HotSetCache::start(scope, &loader, 0..6, Arc::new(choose)).unwrap();
        assert_eq!(chosen.recv(), Ok(0));
        assert_eq!(chosen.recv(), Ok(1), "its set was started");
        for epoch in 1..=3 {
            assert_eq!(cache.for_epoch(epoch).unwrap().ids()[0], 0);
        }
        gate.store(true, Ordering::SeqCst);
        assert_eq!(chosen.recv(), Ok(3), "2 is over");
        wait_for(&cache, 3);
        wait_for(&cache, 4);
        wait_for(&cache, 5);
        assert_eq!(cache.stats().peak_bytes, 10 * ROW_BYTES as u64);
        // No set is built without being used.
        let kept = cache.stats().kept_rows;
        assert_eq!((chosen.recv(), chosen.recv(), kept), (Ok(4), Ok(5), 4 + 3 + 4 + 4));
    });
}

#[test]
fn a_third_set_waits_for_the_readers_of_the_first() {
    let remote = source(u64::MAX);
    thread::scope(|scope| {
        let cache = HotSetCache::start(scope, &loader(&remote), 0..3, Arc::new(sliding)).unwrap();
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
        HotSetCache::start(scope, &loader(&source(0)), 0..2, Arc::new(sliding)).is_err()
    }));
    thread::scope(|scope| {
        let cache =
            HotSetCache::start(scope, &loader(&source(1)), 0..2, Arc::new(sliding)).unwrap();
        let start = Instant::now();
        while cache.for_epoch(1).is_ok() {
            assert!(start.elapsed() < Duration::from_secs(5), "the error never came");
            thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn a_cache_may_have_no_hot_rows() {
    let remote = source(0);
    thread::scope(|scope| {
        let loader = loader(&remote);
        let none = |_| Ok(Vec::new());
        let cache = HotSetCache::start(scope, &loader, 0..3, Arc::new(none)).unwrap();
        for epoch in 0..3 {
            assert_eq!(cache.for_epoch(epoch).unwrap().n_rows(), 0);
        }
        assert_eq!(cache.pulled_until(2), LoadStats::default());
    });
    assert_eq!(remote.n_pulls(), 0);
}

#[test]
fn a_cache_that_is_dropped_while_building_ends() {
    thread::scope(|scope| {
        let remote = Arc::new(TestSource::new(Duration::from_millis(20), u64::MAX));
        drop(HotSetCache::start(scope, &loader(&remote), 0..9, Arc::new(sliding)).unwrap());
    });
}

/// Like the prefetcher and the default path of the trainer: both request the epochs in order.
#[test]
fn two_threads_that_ask_concurrently_get_sets_of_their_epoch_or_one_before() {
    const N_EPOCHS: u32 = 30;
    for delay_us in [0, 200] {
        let remote = Arc::new(TestSource::new(Duration::from_micros(delay_us), u64::MAX));
        // No two epochs have the same set; nodes 10 to 29 are the worker's own.
        fn ids_of(epoch: u32) -> [u32; 4] {
            let (low, high) = (epoch % 8, 30 + epoch / 8);
            [low, low + 1, high, high + 1]
        }
        let choose = |epoch: u32| Ok(nodes(ids_of(epoch)));
        let stats = thread::scope(|scope| {
            let loader = loader(&remote);
            let cache = HotSetCache::start(scope, &loader, 0..N_EPOCHS, Arc::new(choose)).unwrap();
            let furthest = std::sync::atomic::AtomicU32::new(0);
            let ask = |seed: u64| {
                let (mut random, mut oldest) = (seed, 0);
                while furthest.load(Ordering::SeqCst) < N_EPOCHS {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let step = u32::from(random >> 33 & 31 == 0);
                    let epoch = furthest.fetch_add(step, Ordering::SeqCst).min(N_EPOCHS - 1);
                    let set = cache.for_epoch(epoch).unwrap();
                    for &id in set.ids() {
                        assert_eq!(set.get(id).unwrap(), rows_of(&nodes([id])));
                    }
                    // The other thread may be further by now, and a set may be late.
                    let newest = furthest.load(Ordering::SeqCst).min(N_EPOCHS - 1);
                    let of = (oldest..=newest).find(|&of| set.ids() == ids_of(of));
                    oldest = of.unwrap_or_else(|| panic!("{:?} from {oldest}", set.ids()));
                }
            };
            thread::scope(|asking| {
                asking.spawn(|| ask(1));
                asking.spawn(|| ask(2));
            });
            wait_until(|| cache.for_epoch(N_EPOCHS - 1).unwrap().ids() == ids_of(N_EPOCHS - 1));
            (cache.stats(), cache.pulled_until(N_EPOCHS))
        });
        let (HotSetStats { late, kept_rows, peak_bytes }, pulled) = stats;
        assert!(peak_bytes <= 8 * ROW_BYTES as u64, "two sets at most: {peak_bytes}");
        assert!(late < u64::from(N_EPOCHS));
        // Every row of every set was pulled or copied from the previous set; the first set and the
        // last were built.
        let n_rows = pulled.remote_rows + kept_rows;
        assert!(n_rows % 4 == 0 && (8..=u64::from(N_EPOCHS) * 4).contains(&n_rows), "{n_rows}");
    }
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "it never came");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_set_copies_no_rows_of_an_unpinned_source() {
    let loader = loader(&TestSource::unpinned());
    thread::scope(|scope| {
        let started = HotSetCache::start(scope, &loader, 0..2, Arc::new(sliding));
        let error = started.err();
        assert!(matches!(error, Some(ClientError::Unpinned { .. })), "{error:?}");
    });
}
