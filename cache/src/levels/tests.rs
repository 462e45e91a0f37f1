use std::collections::HashMap;
use std::convert::Infallible;

use proptest::prelude::*;

use super::*;
use crate::{BypassSettings, DeviceSettings, PolicySpec};

const ROW_BYTES: usize = 5;

fn row_of(id: u32, epoch: u32) -> [u8; ROW_BYTES] {
    [id as u8, (id >> 8) as u8, epoch as u8, (id * 7) as u8, 0]
}

fn rows_of(ids: &[u32], epoch: u32) -> Vec<u8> {
    ids.iter().flat_map(|&id| row_of(id, epoch)).collect()
}

fn spec(device_rows: u32, host_rows: u32, inclusion: Inclusion) -> LevelsSpec {
    LevelsSpec {
        device_rows,
        device_policy: PolicySpec::Lru,
        host_rows,
        host_policy: PolicySpec::Lru,
        row_bytes: ROW_BYTES,
        id_space: 1000,
        inclusion,
        settings: DeviceSettings { staging_bytes: 2 * ROW_BYTES, max_age_epochs: None },
        bypass: None,
    }
}

fn levels(spec: &LevelsSpec) -> Levels {
    Levels::new(&Device::host(), spec).unwrap()
}

/// Gathers one batch, checks its rows, and gives the ids that had to be fetched.
fn gather(levels: &mut Levels, ids: &[u32], epochs: std::ops::RangeInclusive<u32>) -> Vec<u32> {
    let mut tensor = levels.tensor(ids.len()).unwrap();
    let mut fetched = Vec::new();
    let fetch = |ids: &[u32], rows: &mut [u8]| {
        fetched.extend_from_slice(ids);
        rows.copy_from_slice(&rows_of(ids, *epochs.end()));
        Ok::<(), Infallible>(())
    };
    levels.gather(ids, &mut tensor, fetch).unwrap();
    let rows = tensor.as_host().unwrap().chunks_exact(ROW_BYTES);
    for (&id, row) in ids.iter().zip(rows) {
        let is_right = epochs.clone().any(|epoch| row == row_of(id, epoch));
        assert!(is_right, "row of {id} is {row:?}, not of {epochs:?}");
    }
    fetched
}

fn residents(levels: &Levels) -> [Vec<u32>; 2] {
    [levels.device().directory(), levels.host()].map(|directory| {
        let mut ids: Vec<u32> = directory.residents().map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
    })
}

#[test]
fn exclusive_rows_move_down_and_up() {
    let mut levels = levels(&spec(2, 3, Inclusion::Exclusive));
    assert_eq!(gather(&mut levels, &[1, 2], 0..=0), [1, 2]);
    assert_eq!(residents(&levels), [vec![1, 2], vec![]]);
    assert_eq!(gather(&mut levels, &[3], 0..=0), [3]);
    assert_eq!(residents(&levels), [vec![2, 3], vec![1]], "1 moved down");
    assert_eq!(gather(&mut levels, &[1], 0..=0), [0u32; 0]);
    assert_eq!(residents(&levels), [vec![1, 3], vec![2]], "1 and 2 changed places");
    let stats = levels.stats();
    assert_eq!((stats.promotions, stats.demotions), (1, 2));
    assert_eq!((stats.device.misses, stats.host.hits, stats.host.misses), (4, 1, 3));
}

#[test]
fn inclusive_rows_are_copied_and_stay() {
    let mut levels = levels(&spec(1, 3, Inclusion::Inclusive));
    assert_eq!(gather(&mut levels, &[1], 0..=0), [1]);
    assert_eq!(gather(&mut levels, &[2], 0..=0), [2]);
    assert_eq!(residents(&levels), [vec![2], vec![1, 2]]);
    assert_eq!(gather(&mut levels, &[1], 0..=0), [0u32; 0]);
    assert_eq!(residents(&levels), [vec![1], vec![1, 2]]);
    let stats = levels.stats();
    assert_eq!((stats.promotions, stats.demotions), (1, 0));
}

#[test]
fn a_batch_larger_than_both_tiers_is_served() {
    for inclusion in [Inclusion::Inclusive, Inclusion::Exclusive] {
        let mut levels = levels(&spec(2, 3, inclusion));
        let ids: Vec<u32> = (0..50).rev().collect();
        gather(&mut levels, &ids, 0..=0);
        let again = gather(&mut levels, &ids, 0..=0).len();
        let kept = if inclusion == Inclusion::Exclusive { 5 } else { 3 };
        assert_eq!(again, 50 - kept);
    }
}

#[test]
fn a_failed_fetch_loses_no_row_and_serves_no_wrong_one() {
    for inclusion in [Inclusion::Inclusive, Inclusion::Exclusive] {
        let mut levels = levels(&spec(3, 4, inclusion));
        gather(&mut levels, &[1, 2, 3, 4, 5], 0..=0);
        let mut tensor = levels.tensor(9).unwrap();
        let mut n_calls = 0;
        let failed = levels.gather(&[5, 6, 7, 8, 9, 1], &mut tensor, |ids, rows| {
            n_calls += 1;
            if n_calls == 2 {
                rows.fill(0xee);
                return Err("gone");
            }
            rows.copy_from_slice(&rows_of(ids, 0));
            Ok(())
        });
        assert!(matches!(failed, Err(GatherError::Fetch("gone"))));
        gather(&mut levels, &[1, 2, 3, 4, 5, 6, 7, 8, 9], 0..=0);
    }
}

#[test]
fn a_host_tier_cannot_know_the_future() {
    let host_policy = PolicySpec::Oracle { n_batches: 3 };
    let spec = LevelsSpec { host_policy, ..spec(1, 1, Inclusion::Inclusive) };
    let error = Levels::new(&Device::host(), &spec).err().unwrap();
    assert!(error.to_string().contains("cannot be `oracle`"), "{error}");
}

#[test]
fn tiers_that_do_not_help_are_left_alone_for_a_while() {
    let bypass = BypassSettings { patience_epochs: 1, rest_epochs: 2, ..Default::default() };
    let spec = LevelsSpec { bypass: Some(bypass), ..spec(2, 2, Inclusion::Inclusive) };
    let mut levels = levels(&spec);
    let ids: Vec<u32> = (0..100).collect();
    let mut bypassed = Vec::new();
    for epoch in 0..8 {
        levels.begin_epoch(epoch);
        bypassed.push(levels.is_bypassed());
        for ids in ids.chunks(20) {
            gather(&mut levels, ids, 0..=epoch);
        }
    }
    let (no, yes) = (false, true);
    assert_eq!(bypassed, [no, yes, yes, no, yes, yes, no, yes]);
    assert_eq!(levels.stats().bypassed, 500);
    assert_eq!(levels.stats().device.misses, 300);
}

/// The two tiers in the plainest form: maps from id to stamp, least recently used first.
struct NaiveLevels {
    device: NaiveTier,
    host: NaiveTier,
    inclusion: Inclusion,
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

    /// Gives what goes; `None` if the row is not kept.
    fn admit(&mut self, id: u32, stamp: u32) -> Option<Option<(u32, u32)>> {
        if let Some(own) = self.stamps.get_mut(&id) {
            *own = stamp.max(*own);
            return Some(None);
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
        Some(gone)
    }

    fn remove(&mut self, id: u32) {
        self.ids.retain(|&other| other != id);
        self.stamps.remove(&id);
    }
}

impl NaiveLevels {
    /// Gives the ids to fetch.
    fn gather(&mut self, ids: &[u32], epoch: u32, oldest: u32) -> Vec<u32> {
        let is_hit = self.device.lookup(ids, oldest);
        let below: Vec<u32> =
            ids.iter().zip(is_hit).filter(|(_, is_hit)| !is_hit).map(|(&id, _)| id).collect();
        let is_hit = self.host.lookup(&below, oldest);
        let mut fetched = Vec::new();
        let mut offered = Vec::new();
        for (&id, is_hit) in below.iter().zip(is_hit) {
            let stamp = if is_hit { self.host.stamps[&id] } else { epoch };
            offered.push((id, stamp));
            if !is_hit {
                fetched.push(id);
            }
        }
        let mut gone = Vec::new();
        for &(id, stamp) in &offered {
            gone.extend(self.device.admit(id, stamp).flatten());
        }
        if self.inclusion == Inclusion::Exclusive {
            for id in below.iter().filter(|id| self.device.stamps.contains_key(id)) {
                self.host.remove(*id);
            }
            for (id, stamp) in gone.into_iter().filter(|&(_, stamp)| stamp >= oldest) {
                self.host.admit(id, stamp);
            }
        }
        let shared = self.inclusion == Inclusion::Inclusive;
        for &id in &fetched {
            if shared || !self.device.stamps.contains_key(&id) {
                self.host.admit(id, epoch);
            }
        }
        fetched
    }

    fn remove(&mut self, ids: &[u32]) {
        for &id in ids {
            self.device.remove(id);
            self.host.remove(id);
        }
    }

    fn residents(&self) -> [Vec<u32>; 2] {
        [&self.device, &self.host].map(|tier| {
            let mut ids = tier.ids.clone();
            ids.sort_unstable();
            ids
        })
    }
}

/// A batch, what is removed after it, and whether an epoch ends then.
fn steps() -> impl Strategy<Value = Vec<(Vec<u32>, Vec<u32>, bool)>> {
    let batch = prop::collection::vec(0u32..40, 0..30);
    let removed = prop::collection::vec(0u32..45, 0..4);
    prop::collection::vec((batch, removed, prop::bool::weighted(0.3)), 0..25)
}

proptest! {
    #[test]
    fn two_tiers_do_as_the_plain_model_does(
        steps in steps(),
        device_rows in 0u32..30,
        host_rows in 0u32..30,
        is_exclusive: bool,
        max_age_epochs in prop::option::of(0u32..3),
        staging_rows in 1usize..9,
    ) {
        let inclusion = if is_exclusive { Inclusion::Exclusive } else { Inclusion::Inclusive };
        let settings =
            DeviceSettings { staging_bytes: staging_rows * ROW_BYTES, max_age_epochs };
        let spec = LevelsSpec { settings, ..spec(device_rows, host_rows, inclusion) };
        let mut levels = levels(&spec);
        let tier = |n_slots| NaiveTier { n_slots: n_slots as usize, ..Default::default() };
        let mut naive =
            NaiveLevels { device: tier(device_rows), host: tier(host_rows), inclusion };
        let mut epoch = 0;
        for (ids, removed, ends_epoch) in steps {
            let oldest = max_age_epochs.map_or(0, |age| epoch - epoch.min(age));
            let fetched = gather(&mut levels, &ids, oldest..=epoch);
            prop_assert_eq!(fetched, naive.gather(&ids, epoch, oldest));
            prop_assert_eq!(residents(&levels), naive.residents());
            let [device, host] = residents(&levels);
            prop_assert!(device.len() <= device_rows as usize);
            prop_assert!(host.len() <= host_rows as usize);
            prop_assert!(!is_exclusive || device.iter().all(|id| !host.contains(id)));
            levels.remove(&removed);
            naive.remove(&removed);
            if ends_epoch {
                epoch += 1;
                levels.begin_epoch(epoch);
            }
        }
    }

    #[test]
    fn every_policy_in_either_tier_serves_right_rows(
        steps in steps(),
        rows in (0u32..30, 0u32..30),
        is_exclusive: bool,
        policies in (policy(true), policy(false)),
        refreshed in prop::collection::vec(0u32..45, 0..9),
        max_age_epochs in prop::option::of(0u32..3),
    ) {
        let inclusion = if is_exclusive { Inclusion::Exclusive } else { Inclusion::Inclusive };
        let settings = DeviceSettings { staging_bytes: 4 * ROW_BYTES, max_age_epochs };
        let (device_policy, host_policy) = policies;
        let spec = spec(rows.0, rows.1, inclusion);
        let spec = LevelsSpec { device_policy, host_policy, settings, ..spec };
        let mut levels = levels(&spec);
        let mut wanted = Vec::new();
        for (epoch, (ids, removed, _)) in (0u32..).zip(steps) {
            levels.begin_epoch(epoch);
            let oldest = max_age_epochs.map_or(0, |age| epoch - epoch.min(age));
            gather(&mut levels, &ids, oldest..=epoch);
            levels.wanted(&mut wanted);
            levels.offer(&wanted, &rows_of(&wanted, epoch)).unwrap();
            levels.refresh(&refreshed, &rows_of(&refreshed, epoch)).unwrap();
            let kept: Vec<u32> = refreshed
                .iter()
                .copied()
                .filter(|&id| residents(&levels).iter().any(|ids| ids.contains(&id)))
                .collect();
            let in_place = gather(&mut levels, &kept, epoch..=epoch);
            prop_assert!(in_place.is_empty(), "refreshed rows stay, and are this epoch's");
            levels.remove(&removed);
            let [device, host] = residents(&levels);
            prop_assert!(!is_exclusive || device.iter().all(|id| !host.contains(id)));
        }
    }
}

#[test]
fn two_tiers_on_a_device_do_as_on_the_host() {
    let Some(device) = Device::cuda(0).ok() else {
        println!("SKIPPED: no CUDA device");
        return;
    };
    println!("device: {device}");
    for inclusion in [Inclusion::Inclusive, Inclusion::Exclusive] {
        let spec = spec(7, 9, inclusion);
        let mut pair = [Levels::new(&device, &spec).unwrap(), levels(&spec)];
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

fn policy(is_device: bool) -> impl Strategy<Value = PolicySpec> {
    let named = PolicyKind::ALL.into_iter().filter_map(|kind| PolicySpec::try_from(kind).ok());
    let ids: Vec<u32> = (0..40).rev().step_by(2).collect();
    let mut specs: Vec<PolicySpec> = named.collect();
    specs.push(PolicySpec::Degree(ids.clone().into()));
    specs.push(PolicySpec::Frequency(ids.into()));
    specs.push(PolicySpec::Overlap((0..40).map(|id| id % 5).collect()));
    if is_device {
        specs.push(PolicySpec::Oracle { n_batches: 99 });
    }
    prop::sample::select(specs)
}
