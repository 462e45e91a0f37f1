use super::*;
use crate::directory::Directory;
use crate::policy::PolicySpec;
use crate::slots::NO_SLOT;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

const ID_SPACE: u32 = 30;

fn spec(n: u32, gamma: f64, interval: u32, scoreboard: Scoreboard) -> PolicySpec {
    PolicySpec::Decay(inputs(n, gamma, interval, scoreboard))
}

fn inputs(n: u32, gamma: f64, interval: u32, scoreboard: Scoreboard) -> DecaySpec {
    // Every third id is no candidate; some degrees are equal.
    let candidates = (0..n).filter(|id| id % 3 != 1).rev();
    let candidate = |id| Candidate { id, degree: id * 5 % 7, is_halo: id % 2 == 0 };
    let candidates = candidates.map(candidate).collect();
    DecaySpec { candidates, gamma, interval, replacement: Replacement::Any, scoreboard }
}

/// Serves a batch as an owner does: one pull for misses and wanted rows. Returns the hits.
fn serve(directory: &mut Directory, ids: &[u32]) -> Vec<bool> {
    let (mut slots, mut placements, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
    directory.lookup(ids, &mut slots);
    directory.wanted(&mut wanted);
    let pulled: Vec<u32> = ids.iter().chain(&wanted).copied().collect();
    let positions = (0..pulled.len() as u32)
        .filter(|&at| slots.get(at as usize).is_none_or(|&slot| slot == NO_SLOT))
        .collect::<Vec<_>>();
    directory.admit(&pulled, &positions, &mut placements);
    slots.iter().map(|&slot| slot != NO_SLOT).collect()
}

fn resident(directory: &Directory) -> Vec<u32> {
    let mut ids: Vec<u32> = directory.residents().map(|(id, _)| id).collect();
    ids.sort_unstable();
    ids
}

#[derive(Clone, Copy)]
enum State {
    Resident { log: f64, n_decays: u32 },
    Outside { n_misses: u32, log: f64 },
}

/// Algorithms 1 and 2 of the paper, with a visit to every resident in every batch.
struct NaiveDecay {
    states: BTreeMap<u32, (u32, State)>,
    n_slots: usize,
    log_gamma: f64,
    interval: u32,
    replacement: Replacement,
    n_batches: u32,
    wanted: HashSet<u32>,
}

impl NaiveDecay {
    fn new(n_slots: usize, spec: &DecaySpec) -> Self {
        let outside = State::Outside { n_misses: 0, log: f64::NEG_INFINITY };
        let states = spec.candidates.iter().map(|c| (c.id, (c.degree, outside))).collect();
        let DecaySpec { interval, replacement, .. } = *spec;
        let log_gamma = spec.gamma.ln();
        let wanted = HashSet::new();
        let n_batches = 0;
        let mut naive =
            Self { states, n_slots, log_gamma, interval, replacement, n_batches, wanted };
        let mut first = spec.candidates.to_vec();
        first.sort_by_key(|c| (!c.is_halo, Reverse(c.degree), c.id));
        naive.wanted = first.iter().take(n_slots).map(|c| c.id).collect();
        naive
    }

    fn residents(&self) -> Vec<u32> {
        let is_resident = |state: &State| matches!(state, State::Resident { .. });
        self.states.iter().filter(|(_, (_, state))| is_resident(state)).map(|(id, _)| *id).collect()
    }

    fn want(&mut self, n: usize) {
        let outside = self.states.iter().filter_map(|(&id, &(degree, state))| match state {
            State::Outside { n_misses, log } => {
                let may_replace = match self.replacement {
                    Replacement::Missed => n_misses > 0,
                    Replacement::Scored => n_misses > 0 || log > f64::NEG_INFINITY,
                    Replacement::Any => true,
                };
                may_replace.then_some((n_misses, log, degree, Reverse(id)))
            }
            State::Resident { .. } => None,
        });
        let mut outside: Vec<_> = outside.collect();
        outside.sort_by(|a, b| b.partial_cmp(a).unwrap());
        self.wanted = outside.into_iter().take(n).map(|(.., Reverse(id))| id).collect();
    }

    fn dismiss(&mut self, id: u32) {
        let (_, state) = self.states.get_mut(&id).unwrap();
        let State::Resident { log, n_decays } = *state else { panic!("not resident") };
        let log = log + f64::from(n_decays) * self.log_gamma;
        let whole = if log < 0.0 { 0.0 } else { log.exp().floor() };
        let log = if log < 0.0 { log } else { (log.exp() - whole).ln() };
        *state = State::Outside { n_misses: whole as u32, log };
    }

    fn batch(&mut self, ids: &[u32]) -> Vec<bool> {
        self.n_batches += 1;
        let before = self.residents();
        let sampled: HashSet<u32> = ids.iter().copied().collect();
        for (id, (_, state)) in &mut self.states {
            match state {
                State::Resident { n_decays, .. } => *n_decays += u32::from(!sampled.contains(id)),
                State::Outside { n_misses, .. } => *n_misses += u32::from(sampled.contains(id)),
            }
        }
        let mut victims = Vec::new();
        if self.n_batches.is_multiple_of(self.interval) {
            for (&id, (_, state)) in &self.states {
                let State::Resident { log, n_decays } = *state else { continue };
                let past = f64::from(n_decays) - f64::from(self.interval);
                if log + past * self.log_gamma < 0.0 && !sampled.contains(&id) {
                    victims.push((log + f64::from(n_decays) * self.log_gamma, id));
                }
            }
            victims.sort_by(|a, b| a.partial_cmp(b).unwrap());
            self.want(victims.len() + self.n_slots - before.len());
        }
        let n_free = self.n_slots - before.len();
        let n_going = self.wanted.len().saturating_sub(n_free);
        victims.into_iter().take(n_going).for_each(|(_, id)| self.dismiss(id));
        for id in std::mem::take(&mut self.wanted) {
            let state = &mut self.states.get_mut(&id).unwrap().1;
            let State::Outside { n_misses, log } = *state else { continue };
            let log = match n_misses {
                _ if self.n_batches < self.interval => 0.0,
                0 => log,
                n_misses => (f64::from(n_misses) + log.exp()).ln(),
            };
            *state = State::Resident { log, n_decays: 0 };
        }
        ids.iter().map(|id| before.contains(id)).collect()
    }

    fn remove(&mut self, id: u32) {
        if self.residents().contains(&id) {
            self.dismiss(id);
            self.wanted.insert(id);
        }
    }
}

proptest! {
    #[test]
    fn both_scoreboards_follow_the_algorithms(
        batches in prop::collection::vec(prop::collection::vec(0..ID_SPACE, 0..9), 0..80),
        removed in prop::collection::vec(prop_oneof![4 => Just(None), 1 => (0..ID_SPACE).prop_map(Some)], 80),
        n_slots in 0u32..15,
        gamma in prop::sample::select(vec![0.5, 0.95, 0.9995, 1.0]),
        interval in 1u32..9,
        replacement in prop::sample::select(vec![
            Replacement::Missed, Replacement::Scored, Replacement::Any,
        ]),
    ) {
        for scoreboard in [Scoreboard::Dense, Scoreboard::Compact] {
            let inputs = DecaySpec { replacement, ..inputs(ID_SPACE, gamma, interval, scoreboard) };
            let spec = PolicySpec::Decay(inputs.clone());
            let mut directory = Directory::new(n_slots, ID_SPACE, &spec).unwrap();
            let mut naive = NaiveDecay::new(n_slots as usize, &inputs);
            for (batch, removed) in batches.iter().zip(&removed) {
                prop_assert_eq!(serve(&mut directory, batch), naive.batch(batch));
                prop_assert_eq!(resident(&directory), naive.residents());
                if let Some(id) = *removed {
                    directory.remove(&[id]);
                    naive.remove(id);
                }
            }
            let planned = Directory::planned_bytes(n_slots, ID_SPACE, &spec);
            prop_assert!(directory.bytes() <= planned);
        }
    }
}

#[test]
fn halo_nodes_of_the_highest_degree_are_there_before_the_first_batch_then_others() {
    // Degrees of 0, 2, 3, 5, 6, 8 are 0, 3, 1, 4, 2, 5; 3 and 5 are no halo nodes.
    let first = |n_slots, scoreboard| {
        let directory = Directory::new(n_slots, 9, &spec(9, 0.5, 4, scoreboard)).unwrap();
        let mut wanted = Vec::new();
        directory.wanted(&mut wanted);
        wanted.sort_unstable();
        (directory, wanted)
    };
    for scoreboard in [Scoreboard::Dense, Scoreboard::Compact] {
        assert_eq!(first(3, scoreboard).1, [2, 6, 8]);
        assert_eq!(first(5, scoreboard).1, [0, 2, 5, 6, 8]);
        assert_eq!(first(9, scoreboard).1, [0, 2, 3, 5, 6, 8]);
    }
    let ((mut directory, wanted), mut placements) = (first(3, Scoreboard::Compact), Vec::new());
    directory.admit(&wanted, &[0, 1, 2], &mut placements);
    assert_eq!(serve(&mut directory, &[8, 1, 2, 3]), [true, false, true, false]);
}

#[test]
fn a_row_stays_for_an_interval_even_where_the_threshold_is_below_all_numbers() {
    // 0.5 to the power of 2000 is 0 as a number: everything or nothing would be below it.
    const INTERVAL: u32 = 2000;
    let spec = spec(9, 0.5, INTERVAL, Scoreboard::Dense);
    let mut directory = Directory::new(2, 9, &spec).unwrap();
    serve(&mut directory, &[]);
    assert_eq!(resident(&directory), [2, 8]);
    for _ in 1..INTERVAL {
        serve(&mut directory, &[3]);
    }
    // 2 and 8 came in the first batch and were not sampled in the others: one less than Δ.
    assert_eq!(resident(&directory), [2, 8]);
    for _ in 0..INTERVAL {
        serve(&mut directory, &[3, 8]);
    }
    assert_eq!(resident(&directory), [3, 8], "8 was sampled");
}

#[test]
fn parameters_without_sense_are_refused() {
    for gamma in [0.0, -1.0, 1.1, f64::NAN] {
        let error = Directory::new(2, 9, &spec(9, gamma, 4, Scoreboard::Dense)).err().unwrap();
        assert!(error.to_string().contains("above 0 and at most 1"));
    }
    assert!(Directory::new(2, 9, &spec(9, 0.5, 0, Scoreboard::Dense)).is_err());
}

#[test]
fn a_row_that_was_never_missed_replaces_none_unless_any_may() {
    // 2 and 8 fill the slots; the first round finds both unsampled, and 3 missed once.
    let after_rounds = |replacement| {
        let inputs = DecaySpec { replacement, ..inputs(9, 0.5, 2, Scoreboard::Compact) };
        let mut directory = Directory::new(2, 9, &PolicySpec::Decay(inputs)).unwrap();
        serve(&mut directory, &[]);
        let batches = [&[3][..], &[], &[]];
        let residents = batches.map(|ids| {
            serve(&mut directory, ids);
            resident(&directory)
        });
        assert_eq!(residents[..2], [vec![2, 8], vec![2, 8]], "unsampled twice: not below γ^Δ");
        residents[2].clone()
    };
    assert_eq!(after_rounds(Replacement::Missed), [3, 8]);
    assert_eq!(after_rounds(Replacement::Scored), [3, 8]);
    assert_eq!(after_rounds(Replacement::Any), [3, 5], "5 has the highest degree of the rest");
}

/// A victim leaves with S_E as its score, and S_A has no whole miss in it then. Under the paper's
/// rule that is enough to come back, and under the other it is not.
#[test]
fn a_row_that_left_comes_back_without_a_miss_where_a_score_is_enough() {
    let after = |replacement| {
        let inputs = DecaySpec { replacement, ..inputs(9, 0.5, 1, Scoreboard::Dense) };
        let mut directory = Directory::new(1, 9, &PolicySpec::Decay(inputs)).unwrap();
        directory.admit(&[8], &[0], &mut Vec::new());
        assert_eq!(resident(&directory), [8], "before the first batch");
        // Two batches without 8: it is below the threshold, and 3, missed, takes its place.
        serve(&mut directory, &[3]);
        assert_eq!(resident(&directory), [8]);
        serve(&mut directory, &[]);
        assert_eq!(resident(&directory), [3]);
        // 3 came with a score of 1, and is below the threshold after two batches.
        serve(&mut directory, &[]);
        serve(&mut directory, &[]);
        resident(&directory)
    };
    assert_eq!(after(Replacement::Missed), [3]);
    assert_eq!(after(Replacement::Scored), [8]);
}

#[test]
fn scores_per_id_are_chosen_while_they_are_cheap() {
    assert_eq!(Scoreboard::by_memory(2_000_000, 10), Scoreboard::Dense);
    assert_eq!(Scoreboard::by_memory(100_000_000, 10_000_000), Scoreboard::Compact);
    let all = 100_000_000;
    assert_eq!(Scoreboard::by_memory(all, all as usize), Scoreboard::Dense, "no index of all");
}
