//! Access scores of the candidates: found by id, or by a search among the candidates.

use std::cmp::Reverse;
use std::hint::black_box;

use bytemuck::{Pod, Zeroable};

use super::DecaySpec;
use crate::arena::ArenaError;
use crate::pages::PageVec;

/// A halo node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its id.
    pub id: u32,
    /// Its degree in the whole graph.
    pub degree: u32,
}

/// How `decay` finds the access score of an id (section IV-B, end). Decisions are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoreboard {
    /// A score per id of the id space: found at once.
    Dense,
    /// A score per candidate: found by binary search.
    Compact,
}

/// S_A of a candidate that is not resident: `n_misses` plus a fraction.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Entry {
    /// Logarithm of the fraction.
    fraction_log: f64,
    n_misses: u32,
    /// The last batch that missed it.
    missed: u32,
    degree: u32,
    state: u16,
    is_wanted: u16,
}

/// States of an entry.
const NO_CANDIDATE: u16 = 0;
const OUTSIDE: u16 = 1;
const RESIDENT: u16 = 2;

/// Misses that are counted together when candidates are compared: this many or more.
const MANY_MISSES: usize = 255;

pub(super) struct Scores {
    /// Ascending ids of the candidates.
    ids: Vec<u32>,
    entries: PageVec<Entry>,
    scoreboard: Scoreboard,
}

impl Scores {
    pub(super) fn planned_bytes(id_space: u32, spec: &DecaySpec) -> usize {
        let n_candidates = spec.candidates.len();
        let n_entries = match spec.scoreboard {
            Scoreboard::Dense => id_space as usize,
            Scoreboard::Compact => n_candidates,
        };
        n_entries * size_of::<Entry>() + n_candidates * size_of::<u32>()
    }

    /// Candidates outside the id space are none; of those that repeat the first counts.
    pub(super) fn new(id_space: u32, spec: &DecaySpec) -> Result<Self, ArenaError> {
        let mut candidates: Vec<Candidate> = spec.candidates.to_vec();
        candidates.retain(|candidate| candidate.id < id_space);
        candidates.sort_by_key(|candidate| candidate.id);
        candidates.dedup_by_key(|candidate| candidate.id);
        let n_entries = match spec.scoreboard {
            Scoreboard::Dense => id_space as usize,
            Scoreboard::Compact => candidates.len(),
        };
        let mut scores = Self {
            ids: candidates.iter().map(|candidate| candidate.id).collect(),
            entries: PageVec::new(n_entries)?,
            scoreboard: spec.scoreboard,
        };
        for (rank, candidate) in candidates.iter().enumerate() {
            let at = scores.place(rank);
            scores.entries[at] = Entry {
                fraction_log: f64::NEG_INFINITY,
                n_misses: 0,
                missed: 0,
                degree: candidate.degree,
                state: OUTSIDE,
                is_wanted: 0,
            };
        }
        Ok(scores)
    }

    pub(super) fn bytes(&self) -> usize {
        self.entries.bytes() + self.ids.capacity() * size_of::<u32>()
    }

    /// Where the entry of the candidate with a rank in `ids` is.
    fn place(&self, rank: usize) -> usize {
        match self.scoreboard {
            Scoreboard::Dense => self.ids[rank] as usize,
            Scoreboard::Compact => rank,
        }
    }

    fn entry(&mut self, id: u32) -> Option<&mut Entry> {
        let at = match self.scoreboard {
            Scoreboard::Dense => id as usize,
            Scoreboard::Compact => self.ids.binary_search(&id).ok()?,
        };
        self.entries.get_mut(at).filter(|entry| entry.state != NO_CANDIDATE)
    }

    /// Reads what counting misses of these ids needs.
    pub(super) fn touch(&self, ids: impl Iterator<Item = u32>) {
        if self.scoreboard == Scoreboard::Dense {
            let entries: &[Entry] = &self.entries;
            black_box(ids.fold(0, |seen, id| {
                seen ^ entries.get(id as usize).map_or(0, |entry| entry.missed)
            }));
        }
    }

    /// A batch missed `id`; that it misses it at several positions counts once.
    pub(super) fn miss(&mut self, id: u32, batch: u32) {
        if let Some(entry) = self.entry(id)
            && entry.missed != batch
        {
            entry.missed = batch;
            entry.n_misses = entry.n_misses.saturating_add(1);
        }
    }

    /// Says whether the row of `id` may come.
    pub(super) fn set_wanted(&mut self, id: u32, is_wanted: bool) {
        if let Some(entry) = self.entry(id) {
            entry.is_wanted = is_wanted.into();
        }
    }

    pub(super) fn is_wanted(&mut self, id: u32) -> bool {
        self.entry(id).is_some_and(|entry| entry.is_wanted != 0)
    }

    /// The row of `id` comes: gives ln S_A.
    pub(super) fn admit(&mut self, id: u32) -> f64 {
        let Some(entry) = self.entry(id) else { return f64::NEG_INFINITY };
        entry.state = RESIDENT;
        match entry.n_misses {
            0 => entry.fraction_log,
            n_misses => (f64::from(n_misses) + entry.fraction_log.exp()).ln(),
        }
    }

    /// The row of `id` goes with S_E as its S_A; given ln S_E.
    pub(super) fn dismiss(&mut self, id: u32, log: f64) {
        let Some(entry) = self.entry(id) else { return };
        entry.state = OUTSIDE;
        // Above 1, which only a row taken out from outside is, it has whole misses in it.
        let whole = if log < 0.0 { 0.0 } else { log.exp().floor() };
        entry.n_misses = whole as u32;
        entry.fraction_log = if log < 0.0 { log } else { (log.exp() - whole).ln() };
    }

    /// Appends the best `n` candidates that are not resident.
    pub(super) fn best(&self, n: usize, best: &mut Vec<u32>) {
        let entry = |rank: u32| &self.entries[self.place(rank as usize)];
        // Whole misses decide most: only candidates that have as many as the n-th best go on.
        let mut n_with = [0usize; MANY_MISSES + 1];
        let outside = || (0..self.ids.len() as u32).filter(|&rank| entry(rank).state == OUTSIDE);
        let misses = |rank| (entry(rank).n_misses as usize).min(MANY_MISSES);
        outside().for_each(|rank| n_with[misses(rank)] += 1);
        let mut n_better = 0;
        let least = (0..=MANY_MISSES).rev().find(|&misses| {
            n_better += n_with[misses];
            n_better >= n
        });
        let least = least.unwrap_or(0);
        let mut ranks: Vec<u32> = outside().filter(|&rank| misses(rank) >= least).collect();
        if n < ranks.len() {
            ranks.select_nth_unstable_by(n, |&a, &b| {
                let (of_a, of_b) = (entry(a), entry(b));
                let whole = Reverse(of_a.n_misses).cmp(&Reverse(of_b.n_misses));
                let fraction = of_b.fraction_log.total_cmp(&of_a.fraction_log);
                let degree = Reverse(of_a.degree).cmp(&Reverse(of_b.degree));
                whole.then(fraction).then(degree).then(a.cmp(&b))
            });
            ranks.truncate(n);
        }
        best.extend(ranks.into_iter().map(|rank| self.ids[rank as usize]));
    }
}
