//! Every policy against a plain model of it, over random batches.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::directory::Directory;
use crate::policy::PolicySpec;
use crate::slots::NO_SLOT;

/// A policy in the plainest form: ids instead of slots, searches instead of links.
pub(crate) trait Naive {
    /// Begins a batch, for policies that need its next uses.
    fn begin_batch(&mut self) {}

    /// Sets the best rows, each once, as many as there are slots.
    fn retarget(&mut self, _ids: &[u32]) {}

    fn used(&mut self, _ids: &[u32]) {}

    fn hit(&mut self, _id: u32) {}

    fn admits(&self, _id: u32) -> bool {
        true
    }

    fn evict(&mut self, id: u32, held: &dyn Fn(u32) -> bool) -> Option<u32>;

    fn insert(&mut self, id: u32);

    fn remove(&mut self, id: u32);
}

/// Returns the offer of a row that was not here before.
pub(crate) fn offer(id: u32) -> Offer {
    Offer { id, position: 0, is_remembered: false }
}

/// Ids in an order, front first.
#[derive(Default)]
pub(crate) struct Order(VecDeque<u32>);

impl Order {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn push_front(&mut self, id: u32) {
        self.0.push_front(id);
    }

    /// Takes an id out; returns whether it was there.
    pub(crate) fn take(&mut self, id: u32) -> bool {
        let at = self.0.iter().position(|&at| at == id);
        at.and_then(|at| self.0.remove(at)).is_some()
    }

    pub(crate) fn oldest(&self, held: &dyn Fn(u32) -> bool) -> Option<u32> {
        self.0.iter().copied().rev().find(|&id| !held(id))
    }

    pub(crate) fn take_oldest(&mut self, held: &dyn Fn(u32) -> bool) -> Option<u32> {
        let id = self.oldest(held)?;
        self.take(id);
        Some(id)
    }
}

/// A directory of plain parts, with the rules that all policies share.
struct NaiveDirectory {
    naive: Box<dyn Naive>,
    n_slots: usize,
    resident: HashSet<u32>,
    held: HashSet<u32>,
}

impl NaiveDirectory {
    fn lookup(&mut self, ids: &[u32]) -> Vec<bool> {
        self.held.clear();
        self.naive.begin_batch();
        self.naive.used(ids);
        let is_hit: Vec<bool> = ids.iter().map(|id| self.resident.contains(id)).collect();
        for (&id, _) in ids.iter().zip(&is_hit).filter(|(_, is_hit)| **is_hit) {
            self.held.insert(id);
            self.naive.hit(id);
        }
        is_hit
    }

    fn admit(&mut self, id: u32) {
        if self.resident.contains(&id) || self.n_slots == 0 || !self.naive.admits(id) {
            return;
        }
        if self.resident.len() == self.n_slots {
            let held = &self.held;
            let is_held = |id| held.contains(&id);
            let Some(evicted) = self.naive.evict(id, &is_held) else { return };
            assert!(self.resident.remove(&evicted) && !is_held(evicted));
        }
        self.naive.insert(id);
        self.resident.insert(id);
        self.held.insert(id);
    }

    fn retarget(&mut self, ids: &[u32]) {
        let mut seen = HashSet::new();
        let once = ids.iter().copied().filter(|&id| id < ID_SPACE && seen.insert(id));
        self.naive.retarget(&once.take(self.n_slots).collect::<Vec<_>>());
    }

    fn remove(&mut self, id: u32) {
        if self.resident.remove(&id) {
            self.naive.remove(id);
        }
    }
}

const ID_SPACE: u32 = 40;

fn ratio(id: u32) -> u16 {
    (id * 7 % 5) as u16
}

/// Returns the policies that have a model here, and the model.
fn twins(n_slots: u32) -> Vec<(PolicySpec, Box<dyn Naive>)> {
    let ratios: Arc<[u16]> = (0..ID_SPACE).map(ratio).collect();
    let target: Arc<[u32]> = (0..ID_SPACE).rev().collect();
    let overlap = overlap::tests::NaiveOverlap {
        ratios: (0..ID_SPACE).map(|id| (id, ratio(id))).collect(),
        rows: Vec::new(),
    };
    let naive_target = || target::tests::NaiveTarget {
        target: target.iter().copied().take(n_slots as usize).collect(),
        ..Default::default()
    };
    let (naive_degree, naive_frequency) = (naive_target(), naive_target());
    vec![
        (PolicySpec::Lru, Box::new(lru::tests::NaiveLru::default())),
        (PolicySpec::Fifo, Box::new(fifo::tests::NaiveFifo::default())),
        (PolicySpec::Clock, Box::new(clock::tests::NaiveClock::default())),
        (PolicySpec::Sieve, Box::new(sieve::tests::NaiveSieve::default())),
        (PolicySpec::S3Fifo, Box::new(s3_fifo::tests::NaiveS3Fifo::new(n_slots))),
        (PolicySpec::TinyLfu, Box::new(tiny_lfu::tests::NaiveTinyLfu::new(n_slots))),
        (PolicySpec::Overlap(ratios), Box::new(overlap)),
        (PolicySpec::Degree(Arc::clone(&target)), Box::new(naive_degree)),
        (PolicySpec::Frequency(target), Box::new(naive_frequency)),
    ]
}

/// Events of a directory.
#[derive(Clone, Debug)]
enum Step {
    Batch(Vec<u32>),
    Remove(Vec<u32>),
    Retarget(Vec<u32>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ids = |n| prop::collection::vec(prop_oneof![0..ID_SPACE, 0..8u32], 0..n);
    let step = prop_oneof![
        9 => ids(12).prop_map(Step::Batch),
        1 => ids(60).prop_map(Step::Batch),
        1 => ids(4).prop_map(Step::Remove),
        1 => ids(60).prop_map(Step::Retarget),
    ];
    prop::collection::vec(step, 0..60)
}

/// Returns every row once and again, each a batch of its own: a policy's behaviour on them shows
/// its whole state.
fn tail() -> impl Iterator<Item = Step> {
    (0..2 * ID_SPACE).map(|at| Step::Batch(vec![at * 7 % ID_SPACE]))
}

/// Runs both and compares all that can be seen; batches may repeat ids.
fn agree(
    spec: &PolicySpec,
    naive: Box<dyn Naive>,
    n_slots: u32,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let mut directory = Directory::new(n_slots, ID_SPACE, spec).unwrap();
    let mut model = NaiveDirectory {
        naive,
        n_slots: n_slots as usize,
        resident: HashSet::new(),
        held: HashSet::new(),
    };
    let (mut slots, mut placements) = (Vec::new(), Vec::new());
    for step in steps.iter().cloned().chain(tail()) {
        match &step {
            Step::Batch(ids) => {
                directory.lookup(ids, &mut slots);
                let is_hit = model.lookup(ids);
                let found: Vec<bool> = slots.iter().map(|&slot| slot != NO_SLOT).collect();
                prop_assert_eq!(&found, &is_hit, "{} hits", spec.kind());
                let misses: Vec<u32> =
                    (0..ids.len() as u32).filter(|&at| !found[at as usize]).collect();
                directory.admit(ids, &misses, &mut placements);
                misses.iter().for_each(|&at| model.admit(ids[at as usize]));
            }
            Step::Remove(ids) => {
                directory.remove(ids);
                ids.iter().for_each(|&id| model.remove(id));
            }
            Step::Retarget(ids) => {
                // The last batch is over.
                directory.lookup(&[], &mut slots);
                model.lookup(&[]);
                directory.retarget(ids);
                model.retarget(ids);
            }
        }
        let resident: HashSet<u32> = directory.residents().map(|(id, _)| id).collect();
        prop_assert_eq!(&resident, &model.resident, "{} rows after {:?}", spec.kind(), step);
        prop_assert_eq!(resident.len(), directory.n_resident());
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_policy_decides_as_its_plain_model(steps in steps(), n_slots in 0u32..=ID_SPACE) {
        for (spec, naive) in twins(n_slots) {
            agree(&spec, naive, n_slots, &steps)?;
        }
    }
}
