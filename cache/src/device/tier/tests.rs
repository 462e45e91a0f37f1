use std::convert::Infallible;

use proptest::prelude::*;

use super::*;
use crate::policy::PolicyKind;

/// Returns a row that depends on its id and epoch. Id 0 has a row of zeros in epoch 0.
fn row_of(id: u32, epoch: u32, row_bytes: usize) -> impl Iterator<Item = u8> {
    (0..row_bytes as u32)
        .map(move |at| (id.wrapping_mul(at * 2 + 1) ^ epoch.wrapping_mul(101)) as u8)
}

fn rows_of(ids: &[u32], epoch: u32, row_bytes: usize) -> Vec<u8> {
    ids.iter().flat_map(|&id| row_of(id, epoch, row_bytes)).collect()
}

fn fetch_of(
    epoch: u32,
    row_bytes: usize,
) -> impl FnMut(&[u32], &mut [u8]) -> Result<(), Infallible> {
    move |ids, rows| {
        rows.copy_from_slice(&rows_of(ids, epoch, row_bytes));
        Ok(())
    }
}

fn read(tensor: &BatchTensor) -> Vec<u8> {
    let mut rows = vec![0; tensor.n_bytes()];
    tensor.read(&mut rows).unwrap();
    rows
}

fn settings(staging_bytes: usize, max_age: Option<u32>) -> DeviceSettings {
    DeviceSettings { staging_bytes, max_age }
}

/// Returns the machine's CUDA device, if it has one.
pub(crate) fn cuda() -> Option<Device> {
    match Device::cuda(0) {
        Ok(device) => {
            println!("device: {device}");
            Some(device)
        }
        Err(error) => {
            println!("SKIPPED: no CUDA device ({error})");
            None
        }
    }
}

fn host_tier(n_slots: u32, row_bytes: usize, settings: DeviceSettings) -> DeviceTier {
    DeviceTier::new(
        &Device::host(),
        TierShape { capacity_rows: n_slots, row_bytes, id_space: 100 },
        &PolicySpec::Lru,
        settings,
    )
    .unwrap()
}

#[test]
fn a_device_that_is_not_there_is_an_error_and_host_memory_serves() {
    let error = Device::cuda(usize::from(u16::MAX)).err().unwrap();
    assert!(
        matches!(error, DeviceError::NoLibrary { .. } | DeviceError::NoDevice { .. })
            || matches!(error, DeviceError::Driver { .. }),
        "{error}"
    );
    let device = Device::best();
    assert_eq!(device.is_host(), device.to_string() == "host");
    assert_eq!(Device::host().free_bytes().unwrap(), None);
}

#[test]
fn a_failed_fetch_leaves_the_tier_as_it_was() {
    let mut tier = host_tier(4, 3, settings(6, None));
    let mut tensor = tier.tensor(6).unwrap();
    tier.gather(&[1, 2], &mut tensor, fetch_of(0, 3)).unwrap();
    let mut n_calls = 0;
    let error = tier.gather(&[1, 5, 6, 7, 8], &mut tensor, |_, _| {
        n_calls += 1;
        if n_calls == 2 { Err("gone") } else { Ok(()) }
    });
    assert!(matches!(error, Err(GatherError::Fetch("gone"))));
    tier.gather(&[5, 6, 1, 2, 7], &mut tensor, fetch_of(0, 3)).unwrap();
    assert_eq!(read(&tensor), rows_of(&[5, 6, 1, 2, 7], 0, 3));
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    let mut tier = host_tier(4, 3, DeviceSettings::default());
    let mut tensor = tier.tensor(1).unwrap();
    let error = tier.gather(&[1, 2], &mut tensor, fetch_of(0, 3)).unwrap_err();
    assert!(error.to_string().contains("holds 3 bytes, but the batch has 6"), "{error}");
    tier.gather(&[], &mut tensor, fetch_of(0, 3)).unwrap();
    assert_eq!((tensor.n_bytes(), tier.stats().misses), (0, 0));
    let policy = PolicySpec::Lru;
    for row_bytes in [0, (1 << 30) + 1] {
        let tier = DeviceTier::new(
            &Device::host(),
            TierShape { capacity_rows: 4, row_bytes, id_space: 9 },
            &policy,
            DeviceSettings::default(),
        );
        assert!(matches!(tier, Err(DeviceError::RowBytes { found, .. }) if found == row_bytes));
    }
}

#[test]
fn a_row_of_zeros_is_a_row() {
    let mut tier = host_tier(2, 4, DeviceSettings::default());
    let mut tensor = tier.tensor(2).unwrap();
    tier.gather(&[0, 1], &mut tensor, fetch_of(0, 4)).unwrap();
    assert_eq!(&read(&tensor)[..4], [0; 4]);
    assert_eq!(tier.directory().n_resident(), 2);
    tier.gather(&[0], &mut tensor, fetch_of(9, 4)).unwrap();
    assert_eq!(tier.stats().hits, 1, "its slot does not count as free");
    tier.gather(&[1], &mut tensor, fetch_of(9, 4)).unwrap();
    assert_eq!(read(&tensor), rows_of(&[1], 0, 4), "kept rows do not come back as zeros");
}

#[test]
fn unsorted_ids_keep_their_own_rows() {
    let mut tier = host_tier(8, 4, settings(12, None));
    let mut tensor = tier.tensor(9).unwrap();
    let ids = [9, 3, 7, 1, 8, 2];
    tier.gather(&ids, &mut tensor, fetch_of(0, 4)).unwrap();
    let again = [2, 9, 1, 40, 3, 8, 7, 9];
    tier.gather(&again, &mut tensor, fetch_of(0, 4)).unwrap();
    assert_eq!(read(&tensor), rows_of(&again, 0, 4));
    assert_eq!(tier.stats().hits, 7);
}

#[test]
fn a_row_that_is_too_old_is_fetched_again_and_kept() {
    let mut tier = host_tier(3, 4, settings(4, Some(1)));
    let mut tensor = tier.tensor(4).unwrap();
    tier.gather(&[1, 2], &mut tensor, fetch_of(0, 4)).unwrap();
    tier.advance(1);
    tier.gather(&[2, 3], &mut tensor, fetch_of(1, 4)).unwrap();
    assert_eq!(read(&tensor), [rows_of(&[2], 0, 4), rows_of(&[3], 1, 4)].concat());
    tier.advance(2);
    tier.gather(&[1, 2, 3], &mut tensor, fetch_of(2, 4)).unwrap();
    assert_eq!(read(&tensor), [rows_of(&[1, 2], 2, 4), rows_of(&[3], 1, 4)].concat());
    assert_eq!((tier.stats().stale, tier.stats().misses), (2, 5));
    tier.advance(1);
    tier.gather(&[1, 2], &mut tensor, fetch_of(99, 4)).unwrap();
    assert_eq!(read(&tensor), rows_of(&[1, 2], 2, 4), "what was fetched instead was kept");
}

/// One thing that an owner does.
#[derive(Clone, Debug)]
enum Step {
    Gather(Vec<u32>),
    Remove(Vec<u32>),
    NextEpoch,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ids = |most| prop::collection::vec(0u32..44, 0..most);
    let step = prop_oneof![
        6 => ids(90).prop_map(Step::Gather),
        1 => ids(9).prop_map(Step::Remove),
        2 => Just(Step::NextEpoch),
    ];
    prop::collection::vec(step, 0..25)
}

/// Carries out steps, checks every row, and returns all batches.
fn run(mut tier: DeviceTier, steps: &[Step], max_age: Option<u32>) -> Vec<Vec<u8>> {
    let row_bytes = tier.row_bytes();
    let mut tensor = tier.tensor(90).unwrap();
    let mut epoch = 0;
    let mut batches = Vec::new();
    for step in steps {
        match step {
            Step::Gather(ids) => {
                tier.gather(ids, &mut tensor, fetch_of(epoch, row_bytes)).unwrap();
                let batch = read(&tensor);
                for (&id, row) in ids.iter().zip(batch.chunks_exact(row_bytes)) {
                    let oldest = max_age.map_or(0, |age| epoch.saturating_sub(age));
                    let is_of = |epoch| row_of(id, epoch, row_bytes).eq(row.iter().copied());
                    assert!((oldest..=epoch).any(is_of), "a wrong or too old row of {id}");
                }
                batches.push(batch);
                batches.push(gather_residents(&mut tier, &mut tensor));
            }
            Step::Remove(ids) => tier.remove(ids),
            Step::NextEpoch => {
                epoch += 1;
                tier.advance(epoch);
            }
        }
        assert!(tier.directory().n_resident() <= tier.directory().n_slots() as usize);
    }
    batches
}

/// Returns whether the policy keeps all rows, or none.
fn has_no_bound(spec: &PolicySpec) -> bool {
    matches!(spec.kind(), PolicyKind::Unbounded | PolicyKind::None)
}

/// Returns all that is resident, the last slots first, and the first of them once more.
fn gather_residents(tier: &mut DeviceTier, tensor: &mut BatchTensor) -> Vec<u8> {
    let mut residents: Vec<(u32, u32)> = tier.directory().residents().collect();
    residents.reverse();
    residents.extend(residents.first().copied());
    let slots: Vec<u32> = residents.iter().map(|&(_, slot)| slot).collect();
    tier.gather_slots(&slots, tensor).unwrap();
    let rows = read(tensor);
    for (&(id, _), row) in residents.iter().zip(rows.chunks_exact(tier.row_bytes())) {
        let is_of = |epoch| row_of(id, epoch, row.len()).eq(row.iter().copied());
        assert!((0..=25).any(is_of), "slot of {id} has {row:?}");
    }
    rows
}

fn reactive() -> impl Strategy<Value = PolicySpec> {
    let kinds = PolicyKind::ALL.into_iter().filter_map(|kind| PolicySpec::try_from(kind).ok());
    prop::sample::select(kinds.collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn a_tier_with_its_staging_stays_within_its_room(
        row_bytes in 1usize..3000,
        room_rows in 24usize..20_000,
        wanted_rows in prop_oneof![Just(u32::MAX), 0u32..100],
        max_age in prop::option::of(0u32..3),
        spec in reactive().prop_filter("a bound", |spec| !has_no_bound(spec)),
    ) {
        // Policies have tables of some hundred bytes, however few rows there are.
        let capacity = row_bytes * room_rows + 4096;
        let room = TierSpec {
            free_bytes: capacity as u64 + 7,
            reserve_bytes: 7,
            row_bytes: row_bytes as u64,
            wanted_rows,
        };
        let id_space = 20_000;
        let tier = DeviceTier::within(&Device::host(), room, id_space, &spec, max_age).unwrap();
        prop_assert!(tier.bytes() <= capacity, "{} of {capacity}", tier.bytes());
        let n_slots = tier.directory().n_slots();
        prop_assert!(n_slots <= wanted_rows);
        // Staging is an eighth, and more bookkeeping than this no row has.
        let least = (capacity - capacity / 8).saturating_sub(8192) / (row_bytes + 200);
        prop_assert!(n_slots as usize >= least.min(wanted_rows as usize).min(id_space as usize));
    }

    #[test]
    fn every_row_is_right_and_none_is_too_old(
        steps in steps(),
        n_slots in 0u32..50,
        row_bytes in 1usize..40,
        staging_bytes in 0usize..400,
        max_age in prop::option::of(0u32..3),
        spec in reactive(),
    ) {
        let settings = settings(staging_bytes, max_age);
        let tier = DeviceTier::new(&Device::host(), TierShape { capacity_rows: n_slots, row_bytes, id_space: 40 }, &spec, settings);
        run(tier.unwrap(), &steps, max_age);
    }
}

/// Batches are equal byte for byte, over policies and widths, and staging from one row to more than
/// a batch. Some widths are multiples of 16, 8, 4 or 2, and some are not.
#[test]
fn device_and_host_give_the_same_batches() {
    let Some(device) = cuda() else { return };
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() };
    let widths =
        prop::sample::select(vec![1usize, 2, 3, 4, 6, 8, 12, 16, 20, 32, 100, 128, 202, 513]);
    let inputs = (steps(), 0u32..50, widths, 0usize..9000, prop::option::of(0u32..3), reactive());
    let mut runner = prop::test_runner::TestRunner::new(config);
    let same = runner.run(&inputs, |(steps, n_slots, row_bytes, staging_bytes, max_age, spec)| {
        let settings = settings(staging_bytes, max_age);
        let batches = |device: &Device| {
            let tier = DeviceTier::new(
                device,
                TierShape { capacity_rows: n_slots, row_bytes, id_space: 40 },
                &spec,
                settings,
            );
            run(tier.unwrap(), &steps, max_age)
        };
        prop_assert_eq!(batches(&device), batches(&Device::host()));
        Ok(())
    });
    same.unwrap();
}

#[test]
fn a_tensor_of_another_device_is_refused() {
    let Some(device) = cuda() else { return };
    let mut tensor = host_tier(2, 4, DeviceSettings::default()).tensor(2).unwrap();
    let settings = DeviceSettings::default();
    let mut tier = DeviceTier::new(
        &device,
        TierShape { capacity_rows: 2, row_bytes: 4, id_space: 9 },
        &PolicySpec::Lru,
        settings,
    )
    .unwrap();
    let error = tier.gather(&[1], &mut tensor, fetch_of(0, 4)).unwrap_err();
    assert!(matches!(error, GatherError::Device(DeviceError::OtherDevice { .. })));
    assert!(device.free_bytes().unwrap().is_some());
}

#[test]
fn slots_that_do_not_fit_are_refused() {
    let Some(device) = cuda() else { return };
    let (policy, settings) = (PolicySpec::Fifo, settings(1 << 20, None));
    let tier = DeviceTier::new(
        &device,
        TierShape { capacity_rows: 1 << 12, row_bytes: 1 << 30, id_space: 1 << 12 },
        &policy,
        settings,
    );
    assert!(matches!(tier, Err(DeviceError::Driver { .. })));
}

/// Runs under a driver that fails on request. Up to the failure all rows are right, then every call
/// reports that the tier is lost. Under any other, nothing fails.
#[test]
fn a_device_that_fails_is_lost_and_says_so() {
    let Some(device) = cuda() else { return };
    let mut tier = DeviceTier::new(
        &device,
        TierShape { capacity_rows: 4, row_bytes: 3, id_space: 40 },
        &PolicySpec::Lru,
        settings(6, None),
    )
    .unwrap();
    let mut tensor = tier.tensor(9).unwrap();
    let mut rows = vec![0; 27];
    for first in 0..20 {
        let ids: Vec<u32> = (first..first + 9).collect();
        let gathered = tier.gather(&ids, &mut tensor, fetch_of(0, 3));
        let read = gathered.map(|()| tensor.read(&mut rows));
        if matches!(read, Ok(Ok(()))) {
            assert_eq!(rows, rows_of(&ids, 0, 3));
            continue;
        }
        println!("{:?}", read.map_err(|error| error.to_string()));
        for _ in 0..3 {
            let again = tier.gather(&ids, &mut tensor, fetch_of(0, 3));
            assert!(matches!(again, Err(GatherError::Device(_))));
        }
        return;
    }
    assert!(std::env::var_os("SIMULATED_FAILURE").is_none(), "it never failed");
}
