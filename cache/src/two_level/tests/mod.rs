mod model;

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;

use super::*;
use crate::device::{Device, DeviceSettings, TierShape};
use crate::policy::{PolicyKind, PolicySpec};
use crate::shared::SharedSettings;

const ROW_BYTES: usize = 5;
const ID_SPACE: u32 = 1000;

fn row_of(id: u32, time: u32) -> [u8; ROW_BYTES] {
    [id as u8, (id >> 8) as u8, time as u8, (id * 7) as u8, 0]
}

fn rows_of(ids: &[u32], time: u32) -> Vec<u8> {
    ids.iter().flat_map(|&id| row_of(id, time)).collect()
}

/// Sizes, policies and terms of two tiers.
#[derive(Clone, Debug)]
struct Spec {
    rows: (u32, u32),
    policies: (PolicySpec, PolicySpec),
    inclusion: Inclusion,
    staging_rows: usize,
    max_age: Option<u32>,
    bypass: Option<BypassSettings>,
    host_bypass: Option<BypassSettings>,
}

fn spec(rows: (u32, u32), inclusion: Inclusion) -> Spec {
    let policies = (PolicySpec::Lru, PolicySpec::Lru);
    let (max_age, bypass, host_bypass) = (None, None, None);
    Spec { rows, policies, inclusion, staging_rows: 2, max_age, bypass, host_bypass }
}

impl Spec {
    fn host(&self) -> Arc<SharedTier> {
        let settings = SharedSettings { max_age: self.max_age, bypass: self.host_bypass };
        let (n_slots, policy) = (self.rows.1, &self.policies.1);
        Arc::new(SharedTier::of_slots(n_slots, ROW_BYTES, ID_SPACE, policy, settings).unwrap())
    }

    fn over(&self, host: &Arc<SharedTier>, device: &Device) -> TwoLevelTier {
        let (staging_bytes, max_age) = (self.staging_rows * ROW_BYTES, self.max_age);
        let settings = DeviceSettings { staging_bytes, max_age };
        let (n_slots, policy) = (self.rows.0, &self.policies.0);
        let device = DeviceTier::new(
            device,
            TierShape { capacity_rows: n_slots, row_bytes: ROW_BYTES, id_space: ID_SPACE },
            policy,
            settings,
        );
        let levels = TwoLevelTier::new(device.unwrap()).over(Arc::clone(host), self.inclusion);
        levels.with_bypass(self.bypass)
    }
}

/// Returns two tiers of one worker.
fn levels(spec: &Spec) -> TwoLevelTier {
    spec.over(&spec.host(), &Device::host())
}

impl TwoLevelTier {
    fn host(&self) -> &SharedTier {
        self.below.as_ref().unwrap().host()
    }
}

/// Gathers one batch, checks its rows, and returns the ids that had to be fetched.
fn gather(levels: &mut TwoLevelTier, ids: &[u32], times: RangeInclusive<u32>) -> Vec<u32> {
    let mut tensor = levels.tensor(ids.len()).unwrap();
    let mut fetched = Vec::new();
    let fetch = |ids: &[u32], rows: &mut [u8]| {
        fetched.extend_from_slice(ids);
        rows.copy_from_slice(&rows_of(ids, *times.end()));
        Ok::<(), Infallible>(())
    };
    let found = levels.gather(ids, &mut tensor, fetch).unwrap();
    assert_eq!(found.device + found.host + fetched.len() as u64, ids.len() as u64);
    let rows = tensor.as_host().unwrap().chunks_exact(ROW_BYTES);
    for (&id, row) in ids.iter().zip(rows) {
        let is_right = times.clone().any(|time| row == row_of(id, time));
        assert!(is_right, "row of {id} is {row:?}, not of {times:?}");
    }
    fetched
}

fn residents(levels: &TwoLevelTier) -> [Vec<u32>; 2] {
    let device = levels.device().directory().residents().map(|(id, _)| id).collect();
    [device, levels.host().residents()].map(|mut ids: Vec<u32>| {
        ids.sort_unstable();
        ids
    })
}

#[test]
fn exclusive_rows_move_down_and_up() {
    let mut levels = levels(&spec((2, 3), Inclusion::Exclusive));
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
    let mut levels = levels(&spec((1, 3), Inclusion::Inclusive));
    assert_eq!(gather(&mut levels, &[1], 0..=0), [1]);
    assert_eq!(gather(&mut levels, &[2], 0..=0), [2]);
    assert_eq!(residents(&levels), [vec![2], vec![1, 2]]);
    assert_eq!(gather(&mut levels, &[1], 0..=0), [0u32; 0]);
    assert_eq!(residents(&levels), [vec![1], vec![1, 2]]);
    let stats = levels.stats();
    assert_eq!((stats.promotions, stats.demotions), (1, 0));
}

#[test]
fn what_one_worker_pulled_another_finds_unless_it_has_gone_up() {
    for (inclusion, n_fetched) in [(Inclusion::Inclusive, 0), (Inclusion::Exclusive, 1)] {
        let spec = spec((1, 3), inclusion);
        let host = spec.host();
        let mut pair = [0; 2].map(|_| spec.over(&host, &Device::host()));
        assert_eq!(gather(&mut pair[0], &[1, 2, 3], 0..=0).len(), 3);
        // The device has 1, and under exclusion it alone.
        assert_eq!(gather(&mut pair[1], &[1, 2, 3], 0..=0).len(), n_fetched, "{inclusion:?}");
    }
}

#[test]
fn a_batch_larger_than_both_tiers_is_served() {
    for inclusion in [Inclusion::Inclusive, Inclusion::Exclusive] {
        let spec = Spec { staging_rows: 50, ..spec((2, 3), inclusion) };
        let mut levels = levels(&spec);
        let ids: Vec<u32> = (0..50).rev().collect();
        gather(&mut levels, &ids, 0..=0);
        let again = gather(&mut levels, &ids, 0..=0).len();
        let kept = if inclusion == Inclusion::Exclusive { 5 } else { 3 };
        assert_eq!(again, 50 - kept);
    }
}

#[test]
fn a_failed_fetch_serves_no_wrong_row_later() {
    for inclusion in [Inclusion::Inclusive, Inclusion::Exclusive] {
        let mut levels = levels(&spec((3, 4), inclusion));
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
fn tiers_that_do_not_help_are_left_alone_for_a_while() {
    let bypass = BypassSettings {
        round_batches: 5,
        patience_rounds: 1,
        rest_rounds: 2,
        ..BypassSettings::default()
    };
    for inclusion in [Inclusion::Inclusive, Inclusion::Exclusive] {
        let spec = Spec { bypass: Some(bypass), ..spec((2, 2), inclusion) };
        let mut levels = levels(&spec);
        let mut rounds = Vec::new();
        for round in 0..8 {
            rounds.push(levels.watch.is_resting());
            for batch in 0..5 {
                let ids: Vec<u32> = (batch * 20..batch * 20 + 20).collect();
                gather(&mut levels, &ids, 0..=round);
            }
        }
        let (no, yes) = (false, true);
        assert_eq!(rounds, [no, yes, yes, no, yes, yes, no, yes]);
        assert_eq!((levels.stats().device.bypassed, levels.stats().device.misses), (500, 300));
    }
}
