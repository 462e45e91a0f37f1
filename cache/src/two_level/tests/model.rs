use super::*;

/// The two tiers in the plainest form: maps from id to stamp, least recently used first.
struct NaiveLevels {
    device: NaiveTier,
    host: NaiveTier,
    spec: Spec,
}

#[derive(Default)]
struct NaiveTier {
    n_slots: usize,
    /// Least recently used first.
    ids: Vec<u32>,
    stamps: HashMap<u32, u32>,
    held: Vec<u32>,
}

impl NaiveTier {
    fn lookup(&mut self, ids: &[u32], oldest: u32) -> Vec<bool> {
        self.held.clear();
        for &id in ids.iter().filter(|id| self.stamps.contains_key(id)) {
            self.ids.retain(|&other| other != id);
            self.ids.push(id);
            self.held.push(id);
        }
        ids.iter().map(|id| self.stamps.get(id).is_some_and(|&stamp| stamp >= oldest)).collect()
    }

    /// Returns the evicted row.
    fn admit(&mut self, id: u32, stamp: u32) -> Option<(u32, u32)> {
        if let Some(own) = self.stamps.get_mut(&id) {
            *own = stamp.max(*own);
            return None;
        }
        let mut gone = None;
        if self.ids.len() == self.n_slots {
            let at = self.ids.iter().position(|id| !self.held.contains(id))?;
            let id = self.ids.remove(at);
            gone = Some((id, self.stamps.remove(&id).unwrap()));
        }
        self.ids.push(id);
        self.held.push(id);
        self.stamps.insert(id, stamp);
        gone
    }

    fn remove(&mut self, id: u32) {
        self.ids.retain(|&other| other != id);
        self.stamps.remove(&id);
    }
}

impl NaiveLevels {
    /// Returns the ids to fetch.
    fn gather(&mut self, ids: &[u32], now: u32, oldest: u32) -> Vec<u32> {
        let is_hit = self.device.lookup(ids, oldest);
        let below: Vec<u32> =
            ids.iter().zip(is_hit).filter(|(_, is_hit)| !is_hit).map(|(&id, _)| id).collect();
        let before = self.device.stamps.clone();
        let mut gone: Vec<(u32, u32)> =
            below.iter().filter_map(|&id| self.device.admit(id, now)).collect();
        gone.retain(|&(_, stamp)| stamp >= oldest);
        let is_exclusive = self.spec.inclusion == Inclusion::Exclusive;
        let (mut fetched, mut is_first) = (Vec::new(), HashMap::new());
        for (turn, piece) in below.chunks(self.spec.staging_rows).enumerate() {
            let is_hit = self.host.lookup(piece, oldest);
            let mut missed = Vec::new();
            for (&id, is_hit) in piece.iter().zip(is_hit) {
                // A row that the device keeps is that of its first position.
                let stamp = if is_hit { self.host.stamps[&id] } else { now };
                let is_new = before.get(&id).is_none_or(|&stamp| stamp < oldest);
                if is_first.insert(id, ()).is_none() && is_new {
                    self.device.stamps.entry(id).and_modify(|own| *own = stamp);
                }
                if !is_hit {
                    missed.push(id);
                }
            }
            fetched.extend_from_slice(&missed);
            if is_exclusive {
                let up = piece.iter().filter(|id| self.device.stamps.contains_key(id));
                up.for_each(|&id| self.host.remove(id));
                missed.retain(|id| !self.device.stamps.contains_key(id));
                if turn == 0 {
                    for &(id, stamp) in &gone {
                        self.host.admit(id, stamp);
                    }
                }
            }
            for &id in &missed {
                self.host.admit(id, now);
            }
        }
        fetched
    }

    fn residents(&self) -> [Vec<u32>; 2] {
        [&self.device, &self.host].map(|tier| {
            let mut ids = tier.ids.clone();
            ids.sort_unstable();
            ids
        })
    }
}

/// Returns a batch, and what is removed after it.
fn steps() -> impl Strategy<Value = Vec<(Vec<u32>, Vec<u32>)>> {
    let batch = prop::collection::vec(0u32..40, 0..30);
    prop::collection::vec((batch, prop::collection::vec(0u32..45, 0..4)), 0..25)
}

fn inclusion() -> impl Strategy<Value = Inclusion> {
    prop::sample::select(vec![Inclusion::Inclusive, Inclusion::Exclusive])
}

proptest! {
    #[test]
    fn two_tiers_do_as_the_plain_model_does(
        steps in steps(),
        rows in (0u32..30, 0u32..30),
        inclusion in inclusion(),
        max_age in prop::option::of(0u32..6),
        staging_rows in 1usize..9,
    ) {
        let spec = Spec { staging_rows, max_age, ..spec(rows, inclusion) };
        let mut levels = levels(&spec);
        let tier = |n_slots| NaiveTier { n_slots: n_slots as usize, ..Default::default() };
        let mut naive = NaiveLevels { device: tier(rows.0), host: tier(rows.1), spec };
        for (now, (ids, removed)) in (1..).zip(steps) {
            let oldest = max_age.map_or(0, |age| now - now.min(age));
            let fetched = gather(&mut levels, &ids, oldest..=now);
            prop_assert_eq!(fetched, naive.gather(&ids, now, oldest));
            prop_assert_eq!(residents(&levels), naive.residents());
            let [device, host] = residents(&levels);
            prop_assert!(device.len() <= rows.0 as usize && host.len() <= rows.1 as usize);
            let is_apart = device.iter().all(|id| !host.contains(id));
            prop_assert!(inclusion == Inclusion::Inclusive || is_apart);
            let invalidation = levels.host().remove(&removed);
            levels.remove(&removed, Some(invalidation));
            for &id in &removed {
                naive.device.remove(id);
                naive.host.remove(id);
            }
        }
    }
}

/// Every other round is one of rest, but for those in which all hit or many slots fill up.
const RESTLESS: BypassSettings = BypassSettings {
    round_batches: 1,
    leave_below: 1.0,
    patience_rounds: 1,
    return_at: 1.0,
    rest_rounds: 1,
    weight: 1.0,
};

fn are_apart(levels: &TwoLevelTier) -> bool {
    let [device, host] = residents(levels);
    device.iter().all(|id| !host.contains(id))
}

#[test]
fn exclusive_tiers_stay_apart_while_either_rests() {
    for (bypass, host_bypass) in [(Some(RESTLESS), None), (None, Some(RESTLESS))] {
        let spec = Spec { bypass, host_bypass, ..spec((4, 8), Inclusion::Exclusive) };
        let mut levels = levels(&spec);
        let mut n_resting = 0;
        for first in 0..60u32 {
            // Two new ids of eleven each time: from the device, from the host, and from neither.
            let ids: Vec<u32> = (0..3).map(|at| (first * 2 + at) % 11).collect();
            let had = residents(&levels)[0].iter().any(|id| ids.contains(id));
            let host_rests = levels.host().is_resting();
            n_resting += u32::from((had && levels.watch.is_resting()) || host_rests);
            gather(&mut levels, &ids, 0..=0);
            assert!(are_apart(&levels), "after {ids:?}: {:?}", residents(&levels));
        }
        assert!(n_resting > 5, "{n_resting} batches say anything");
    }
}

proptest! {
    #[test]
    fn rests_change_no_row_and_keep_exclusive_tiers_apart(
        steps in steps(),
        rows in (0u32..12, 0u32..30),
        inclusion in inclusion(),
        rests in prop::sample::select(vec![(true, false), (false, true), (true, true)]),
        max_age in prop::option::of(0u32..6),
        staging_rows in 1usize..9,
    ) {
        let bypass = rests.0.then_some(RESTLESS);
        let host_bypass = rests.1.then_some(RESTLESS);
        let spec = Spec { bypass, host_bypass, max_age, staging_rows, ..spec(rows, inclusion) };
        let mut levels = levels(&spec);
        for (now, (ids, removed)) in (1..).zip(steps) {
            let oldest = max_age.map_or(0, |age| now - now.min(age));
            gather(&mut levels, &ids, oldest..=now);
            prop_assert!(inclusion == Inclusion::Inclusive || are_apart(&levels));
            let invalidation = levels.host().remove(&removed);
            levels.remove(&removed, Some(invalidation));
        }
    }
}

/// Ids that changed, their removal from the host, and all versions from then on.
type Change = (Vec<u32>, Invalidation, [u8; 30]);

/// Events on a machine with two workers.
#[derive(Clone, Debug)]
enum Event {
    Gather {
        worker: usize,
        ids: Vec<u32>,
    },
    /// Rows change, and the host drops them; each worker will.
    Change(Vec<u32>),
    Tell {
        worker: usize,
    },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let ids = |most| prop::collection::vec(0u32..30, 0..most);
    let event = prop_oneof![
        6 => (0usize..2, ids(25)).prop_map(|(worker, ids)| Event::Gather { worker, ids }),
        1 => ids(4).prop_map(Event::Change),
        2 => (0usize..2).prop_map(|worker| Event::Tell { worker }),
    ];
    prop::collection::vec(event, 0..60)
}

proptest! {
    /// Under every policy, with rows that change and rows that grow old, a worker's rows are no
    /// older than it knows, nor than the bound.
    #[test]
    fn workers_over_one_host_tier_get_right_rows(
        events in events(),
        rows in (0u32..20, 0u32..25),
        inclusion in inclusion(),
        policies in (policy(), policy()),
        max_age in prop::option::of(0u32..5),
    ) {
        let spec = Spec { policies, max_age, staging_rows: 4, ..spec(rows, inclusion) };
        let host = spec.host();
        let mut workers = [0; 2].map(|_| spec.over(&host, &Device::host()));
        let (mut versions, mut n_batches) = ([0u8; 30], [0; 2]);
        let mut told = [versions; 2];
        let mut untold: [VecDeque<Change>; 2] = Default::default();
        for event in events {
            match event {
                Event::Gather { worker, ids } => {
                    n_batches[worker] += 1;
                    let now: u8 = n_batches[0].max(n_batches[1]);
                    let mut tensor = workers[worker].tensor(ids.len()).unwrap();
                    let fetch = |ids: &[u32], rows: &mut [u8]| {
                        let row = |&id: &u32| [id as u8, versions[id as usize], now, 0, 1];
                        rows.copy_from_slice(&ids.iter().flat_map(row).collect::<Vec<u8>>());
                        Ok::<(), Infallible>(())
                    };
                    workers[worker].gather(&ids, &mut tensor, fetch).unwrap();
                    let rows = tensor.as_host().unwrap().as_chunks::<ROW_BYTES>().0;
                    for (&id, &[row, version, time, zero, one]) in ids.iter().zip(rows) {
                        prop_assert_eq!((u32::from(row), zero, one), (id, 0, 1));
                        prop_assert!(version >= told[worker][id as usize], "{} changed", id);
                        let age = u32::from(now - time);
                        prop_assert!(max_age.is_none_or(|most| age <= most), "{} is old", id);
                    }
                }
                Event::Change(ids) => {
                    ids.iter().for_each(|&id| versions[id as usize] += 1);
                    let invalidation = host.remove(&ids);
                    let change = (ids, invalidation, versions);
                    untold.iter_mut().for_each(|all| all.push_back(change.clone()));
                }
                Event::Tell { worker } => {
                    let Some((ids, invalidation, now)) = untold[worker].pop_front() else { continue };
                    workers[worker].remove(&ids, Some(invalidation));
                    told[worker] = now;
                }
            }
        }
    }
}

#[test]
fn rows_that_a_panic_kept_from_coming_are_not_there() {
    for inclusion in [Inclusion::Inclusive, Inclusion::Exclusive] {
        let mut levels = levels(&spec((3, 2), inclusion));
        gather(&mut levels, &[1, 2, 3], 0..=0);
        let mut tensor = levels.tensor(3).unwrap();
        let fetch = |_: &[u32], _: &mut [u8]| -> Result<(), Infallible> { panic!("the fetch") };
        let gathering = AssertUnwindSafe(|| drop(levels.gather(&[4, 5, 6], &mut tensor, fetch)));
        assert!(catch_unwind(gathering).is_err());
        assert_eq!(gather(&mut levels, &[4, 5, 6], 0..=0), [4, 5, 6], "{inclusion:?}");
        gather(&mut levels, &[1, 2, 3, 4, 5, 6], 0..=0);
    }
}

#[test]
fn from_a_device_that_missed_a_removal_nothing_moves_down() {
    let mut levels = levels(&spec((2, 9), Inclusion::Exclusive));
    let moves_down = |levels: &mut TwoLevelTier, ids: [u32; 2]| {
        let before = levels.stats().demotions;
        gather(levels, &ids, 0..=0);
        levels.stats().demotions > before
    };
    moves_down(&mut levels, [1, 2]);
    assert!(moves_down(&mut levels, [3, 4]));
    levels.remove(&[9], None);
    assert!(moves_down(&mut levels, [5, 6]), "the host has removed nothing");
    let missed = levels.host().remove(&[7]);
    assert!(!moves_down(&mut levels, [1, 2]));
    let told = levels.host().remove(&[8]);
    levels.remove(&[8], Some(told));
    levels.remove(&[8], Some(told));
    assert!(!moves_down(&mut levels, [3, 4]), "one was passed twice, and the other not");
    levels.remove(&[7], Some(missed));
    assert!(!moves_down(&mut levels, [5, 6]), "not in their order");
}

#[test]
fn two_tiers_on_a_device_do_as_on_the_host() {
    let Some(device) = Device::cuda(0).ok() else {
        println!("SKIPPED: no CUDA device");
        return;
    };
    println!("device: {device}");
    for inclusion in [Inclusion::Inclusive, Inclusion::Exclusive] {
        let spec = spec((7, 9), inclusion);
        let mut pair = [spec.over(&spec.host(), &device), levels(&spec)];
        for step in 0..60u32 {
            let ids: Vec<u32> = (0..step % 19).map(|at| (at * at + step * 3) % 31).collect();
            let batches = pair.each_mut().map(|levels| {
                let mut tensor = levels.tensor(ids.len()).unwrap();
                let fetch = |ids: &[u32], rows: &mut [u8]| {
                    rows.copy_from_slice(&rows_of(ids, 0));
                    Ok::<(), Infallible>(())
                };
                levels.gather(&ids, &mut tensor, fetch).unwrap();
                let mut rows = vec![0; tensor.n_bytes()];
                tensor.read(&mut rows).unwrap();
                rows
            });
            assert_eq!(batches[0], batches[1]);
            assert_eq!(batches[1], rows_of(&ids, 0));
        }
        let [device, host] = pair.map(|levels| levels.stats());
        assert_eq!(device, host);
    }
}

fn policy() -> impl Strategy<Value = PolicySpec> {
    let named = PolicyKind::ALL.into_iter().filter_map(|kind| PolicySpec::try_from(kind).ok());
    let ids: Vec<u32> = (0..30).rev().step_by(2).collect();
    let mut specs: Vec<PolicySpec> = named.collect();
    specs.push(PolicySpec::Degree(ids.clone().into()));
    specs.push(PolicySpec::Frequency(ids.into()));
    specs.push(PolicySpec::Overlap((0..30).map(|id| id % 5).collect()));
    prop::sample::select(specs)
}
