//! A tier that many threads use. It decides like a tier of one owner, and no reader ever sees a
//! torn row, another's row, or one older than its request.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use lodestore_cache::directory::DirectoryError;
use lodestore_cache::shared::{BatchAccess, SharedSettings};
use lodestore_cache::{PolicyKind, PolicySpec, SharedTier, Tier};
use proptest::prelude::*;

const N_IDS: u32 = 40;

fn row_of(id: u32, row_bytes: usize) -> Vec<u8> {
    id.to_le_bytes().into_iter().cycle().take(row_bytes).collect()
}

fn spec(kind: PolicyKind) -> PolicySpec {
    PolicySpec::try_from(kind).expect("a policy that needs no plan")
}

proptest! {
    #[test]
    fn one_thread_sees_what_one_owner_sees(
        kind in prop::sample::select(PolicyKind::REACTIVE.to_vec()),
        n_slots in 0u32..50,
        row_bytes in 1usize..20,
        steps in prop::collection::vec(
            (prop::collection::vec(0..N_IDS + 2, 0..60), any::<bool>()), 1..20),
    ) {
        let shared = SharedTier::of_slots(n_slots, row_bytes, N_IDS, &spec(kind), SharedSettings::default()).unwrap();
        let mut owned = Tier::of_slots(n_slots, row_bytes, N_IDS, &spec(kind)).unwrap();
        let (mut access, mut misses) = (BatchAccess::default(), Vec::new());
        for (ids, removes) in steps {
            if removes {
                shared.remove(&ids);
                owned.remove(&ids);
                continue;
            }
            let mut out = vec![0; ids.len() * row_bytes];
            shared.lookup(&ids, &mut out, &mut access);
            owned.lookup(&ids, &mut out.clone(), &mut misses);
            prop_assert_eq!(access.misses(), &misses);
            for (position, (&id, row)) in (0..).zip(ids.iter().zip(out.chunks_mut(row_bytes))) {
                if misses.binary_search(&position).is_ok() {
                    row.copy_from_slice(&row_of(id, row_bytes));
                }
                prop_assert_eq!(&*row, &row_of(id, row_bytes));
            }
            shared.admit(&ids, &out, &mut access);
            owned.admit(&ids, &out, &misses);
            prop_assert_eq!(shared.stats(), owned.stats());
        }
    }
}

/// Rows name their id and the version that they are of, eight times over.
const WORDS: usize = 8;

fn versioned_row(id: u32, version: u32) -> Vec<u8> {
    let word = u64::from(id) << 32 | u64::from(version);
    (0..WORDS).flat_map(|_| word.to_le_bytes()).collect()
}

/// The true rows, and the lower bound of what every reader must see.
struct World {
    versions: Vec<AtomicU32>,
    published: Vec<AtomicU32>,
    tier: SharedTier,
}

impl World {
    /// Serves batches as a worker does, and checks every row. After the given number it continues
    /// until a kept row has changed, however late that is on a busy machine. Returns their number.
    fn work(&self, seed: u32, n_batches: u32) -> u32 {
        let mut access = BatchAccess::default();
        let row_bytes = self.tier.row_bytes();
        let mut turn = 0;
        while turn < n_batches || self.tier.stats().removals == 0 {
            let ids: Vec<u32> = (0..12).map(|i| (i * i * seed + turn * 7 + i) % N_IDS).collect();
            let least: Vec<u32> = self.read(&self.published, &ids);
            let mut out = vec![0; ids.len() * row_bytes];
            self.tier.lookup(&ids, &mut out, &mut access);
            let now = self.read(&self.versions, &ids);
            for &position in access.misses() {
                let at = position as usize;
                let row = versioned_row(ids[at], now[at]);
                out[at * row_bytes..][..row_bytes].copy_from_slice(&row);
            }
            for (at, row) in out.chunks(row_bytes).enumerate() {
                let version = u32::from_le_bytes([row[0], row[1], row[2], row[3]]);
                assert_eq!(row, versioned_row(ids[at], version), "torn, or another's");
                assert!(version >= least[at], "row {} is of {version}: {}", ids[at], least[at]);
            }
            self.tier.admit(&ids, &out, &mut access);
            turn += 1;
        }
        turn
    }

    fn read(&self, of: &[AtomicU32], ids: &[u32]) -> Vec<u32> {
        ids.iter().map(|&id| of[id as usize].load(Ordering::SeqCst)).collect()
    }

    /// Changes rows until it is stopped, seldom enough for rows to be kept in between.
    fn change(&self, ends: &AtomicBool) {
        let mut id = 0;
        while !ends.load(Ordering::Relaxed) {
            id = (id + 7) % N_IDS;
            let version = self.versions[id as usize].fetch_add(1, Ordering::SeqCst) + 1;
            self.tier.remove(&[id]);
            self.published[id as usize].store(version, Ordering::SeqCst);
            thread::sleep(Duration::from_micros(200));
        }
    }
}

#[test]
fn no_thread_sees_a_torn_row_or_one_that_was_old_when_it_asked() {
    let n_batches = if std::env::var_os("LODE_LONG").is_some() { 300_000 } else { 20_000 };
    for (kind, n_slots) in [(PolicyKind::Fifo, 3), (PolicyKind::Sieve, 20), (PolicyKind::Lru, 40)] {
        let zeros = || (0..N_IDS).map(|_| AtomicU32::new(0)).collect::<Vec<_>>();
        let tier =
            SharedTier::of_slots(n_slots, WORDS * 8, N_IDS, &spec(kind), SharedSettings::default())
                .unwrap();
        let world = World { versions: zeros(), published: zeros(), tier };
        let ends = AtomicBool::new(false);
        let n_served: u32 = thread::scope(|scope| {
            let changes = scope.spawn(|| world.change(&ends));
            let work = |seed| {
                let world = &world;
                move || world.work(seed, n_batches)
            };
            let workers = [3, 5, 11].map(|seed| scope.spawn(work(seed)));
            let ended = workers.map(thread::ScopedJoinHandle::join);
            ends.store(true, Ordering::Relaxed);
            changes.join().unwrap();
            ended.into_iter().map(|worker| worker.unwrap()).sum()
        });
        let stats = world.tier.stats();
        assert_eq!(stats.hits + stats.misses, 12 * u64::from(n_served));
        assert!(stats.removals > 0, "{stats:?}");
        let fits = n_slots == N_IDS;
        assert!(fits || stats.evictions > u64::from(n_batches), "slots change hands: {stats:?}");
        assert!(!fits || stats.hits > stats.misses, "rows are kept: {stats:?}");
    }
}

#[test]
fn threads_that_refresh_rows_see_whole_ones_within_the_bound_on_their_age() {
    const MAX_AGE: u32 = 4;
    let n_batches = if std::env::var_os("LODE_LONG").is_some() { 300_000 } else { 20_000 };
    for n_slots in [20, N_IDS] {
        let settings = SharedSettings { max_age: Some(MAX_AGE), bypass: None };
        let row_bytes = WORDS * 8;
        let tier =
            SharedTier::of_slots(n_slots, row_bytes, N_IDS, &PolicySpec::Sieve, settings).unwrap();
        // Rows name the time when they were read.
        let work = |seed: u32| {
            let (mut access, mut out) = (BatchAccess::default(), vec![0; 12 * row_bytes]);
            for turn in 1..=n_batches {
                let ids: Vec<u32> =
                    (0..12).map(|i| (i * i * seed + turn / 8 + i) % N_IDS).collect();
                let now = tier.advance(turn);
                tier.lookup(&ids, &mut out, &mut access);
                let read_at = tier.advance(turn);
                for &position in access.misses() {
                    let at = position as usize;
                    let row = versioned_row(ids[at], read_at);
                    out[at * row_bytes..][..row_bytes].copy_from_slice(&row);
                }
                for (&id, row) in ids.iter().zip(out.chunks(row_bytes)) {
                    let time = u32::from_le_bytes([row[0], row[1], row[2], row[3]]);
                    assert_eq!(row, versioned_row(id, time), "torn, or another's");
                    assert!(time + MAX_AGE >= now, "row {id} of {time} at {now}");
                }
                tier.admit(&ids, &out, &mut access);
            }
        };
        let work = &work;
        thread::scope(|scope| {
            for seed in [3, 5, 11] {
                scope.spawn(move || work(seed));
            }
        });
        let stats = tier.stats();
        assert!(stats.stale > u64::from(n_batches) && stats.hits > stats.stale, "{stats:?}");
    }
}

#[test]
fn what_was_decided_before_a_removal_is_not_kept() {
    let tier = SharedTier::of_slots(4, 4, 10, &PolicySpec::Lru, SharedSettings::default()).unwrap();
    let (mut early, mut late) = (BatchAccess::default(), BatchAccess::default());
    let mut out = [0; 4];
    tier.lookup(&[5], &mut out, &mut early);
    tier.remove(&[6]);
    tier.admit(&[5], b"old!", &mut early);
    tier.lookup(&[5], &mut out, &mut late);
    assert_eq!(late.misses(), [0]);
    tier.admit(&[5], b"new!", &mut late);
    tier.lookup(&[5], &mut out, &mut early);
    assert_eq!((early.misses(), &out), (&[][..], b"new!"));
}

#[test]
fn capacities_are_kept_to_and_nonsense_is_refused() {
    for capacity in [0, 100, 5_000, 1 << 20] {
        let tier =
            SharedTier::new(capacity, 100, 1_000, &PolicySpec::S3Fifo, SharedSettings::default())
                .unwrap();
        assert!(tier.n_slots() == 0 || tier.bytes() <= capacity, "{capacity}: {}", tier.bytes());
        assert!(capacity < 1 << 20 || tier.n_slots() == 1_000);
    }
    let no_row = SharedTier::of_slots(4, 0, 10, &PolicySpec::Lru, SharedSettings::default());
    assert!(matches!(no_row, Err(DirectoryError::Memory(_))));
    let none = SharedTier::of_slots(
        u32::MAX,
        usize::MAX / 64,
        u32::MAX,
        &PolicySpec::None,
        SharedSettings::default(),
    );
    assert!(none.is_ok(), "none has no slots");
    for row_bytes in [usize::MAX, usize::MAX / 64, 1 << 50] {
        let huge = SharedTier::of_slots(
            1000,
            row_bytes,
            1000,
            &PolicySpec::Fifo,
            SharedSettings::default(),
        );
        assert!(matches!(huge, Err(DirectoryError::Memory(_))), "{row_bytes}");
    }
}
