//! Access scores of the candidates: found by id, or by a search among the candidates.

use std::cmp::Reverse;

use bytemuck::{Pod, Zeroable};

use super::super::Piece;
use super::DecaySpec;
use crate::arena::ArenaError;
use crate::index::{NO_SLOT, RowIndex};
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
    /// A score per candidate: found through an index of them.
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
    /// Places of the entries; `None`: that of an id is the id.
    places: Option<RowIndex>,
    /// Ids that are about to be asked for, and their places.
    ahead: (Vec<u32>, Vec<u32>),
}

impl Scores {
    pub(super) fn planned_bytes(id_space: u32, spec: &DecaySpec) -> usize {
        let n_candidates = spec.candidates.len();
        let n_entries = match spec.scoreboard {
            Scoreboard::Dense => id_space as usize,
            Scoreboard::Compact => n_candidates,
        };
        let places = match spec.scoreboard {
            Scoreboard::Dense => 0,
            Scoreboard::Compact => RowIndex::planned_bytes(id_space, n_candidates as u32),
        };
        n_entries * size_of::<Entry>() + n_candidates * size_of::<u32>() + places
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
        let places = match spec.scoreboard {
            Scoreboard::Dense => None,
            Scoreboard::Compact => Some(RowIndex::new(id_space, candidates.len() as u32)?),
        };
        let mut scores = Self {
            ids: candidates.iter().map(|candidate| candidate.id).collect(),
            entries: PageVec::new(n_entries)?,
            places,
            ahead: (Vec::new(), Vec::new()),
        };
        for (rank, candidate) in candidates.iter().enumerate() {
            if let Some(places) = &mut scores.places {
                places.insert(places.home(candidate.id), candidate.id, rank as u32);
            }
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
        let places = self.places.as_ref().map_or(0, RowIndex::bytes);
        self.entries.bytes() + places + self.ids.capacity() * size_of::<u32>()
    }

    /// Where the entry of the candidate with a rank in `ids` is.
    fn place(&self, rank: usize) -> usize {
        if self.places.is_some() { rank } else { self.ids[rank] as usize }
    }

    /// The place of an id's entry; of ids without one, some place where there is none.
    fn place_of(&self, id: u32) -> u32 {
        self.places.as_ref().map_or(id, |places| places.get(id))
    }

    #[inline]
    fn entry_at(&mut self, place: u32) -> Option<&mut Entry> {
        self.entries.get_mut(place as usize).filter(|entry| entry.state != NO_CANDIDATE)
    }

    fn entry(&mut self, id: u32) -> Option<&mut Entry> {
        self.entry_at(self.place_of(id))
    }

    /// Finds the places of the ids ahead, and has their entries read.
    fn find(&mut self) {
        let (ahead, places) = &mut self.ahead;
        places.clear();
        places.extend_from_slice(ahead);
        if let Some(index) = &self.places {
            index.find(ahead, places);
        }
        places.iter().for_each(|&place| self.entries.prefetch(place as usize));
    }

    /// Has the entry at a place read.
    pub(super) fn prefetch(&self, place: u32) {
        self.entries.prefetch(place as usize);
    }

    /// A batch misses ids; that it misses one at several positions counts once.
    pub(super) fn miss(&mut self, piece: &Piece<'_>, batch: u32) {
        let missed = &mut self.ahead.0;
        missed.resize(piece.ids.len(), 0);
        let mut n_missed = 0;
        for (&id, &slot) in piece.ids.iter().zip(piece.found) {
            missed[n_missed] = id;
            n_missed += usize::from(slot == NO_SLOT);
        }
        missed.truncate(n_missed);
        self.find();
        let places = std::mem::take(&mut self.ahead.1);
        for &place in &places {
            if let Some(entry) = self.entry_at(place)
                && entry.missed != batch
            {
                entry.missed = batch;
                entry.n_misses = entry.n_misses.saturating_add(1);
            }
        }
        self.ahead.1 = places;
    }

    /// Keeps those of these ids and positions whose rows may come.
    pub(super) fn retain_wanted(&mut self, offers: &mut Vec<(u32, u32)>) {
        self.ahead.0.clear();
        self.ahead.0.extend(offers.iter().map(|offer| offer.0));
        self.find();
        let (entries, mut places) = (&*self.entries, self.ahead.1.iter());
        offers.retain(|_| {
            let entry = places.next().and_then(|&place| entries.get(place as usize));
            entry.is_some_and(|entry| entry.is_wanted != 0)
        });
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

    /// The row of `id` comes: gives the place of its entry, and ln S_A.
    pub(super) fn admit(&mut self, id: u32) -> (u32, f64) {
        let place = self.place_of(id);
        let Some(entry) = self.entry_at(place) else { return (place, f64::NEG_INFINITY) };
        entry.state = RESIDENT;
        let log = match entry.n_misses {
            0 => entry.fraction_log,
            n_misses => (f64::from(n_misses) + entry.fraction_log.exp()).ln(),
        };
        (place, log)
    }

    /// The row whose entry is at a place goes with S_E as its S_A; given ln S_E.
    pub(super) fn dismiss(&mut self, place: u32, log: f64) {
        let Some(entry) = self.entry_at(place) else { return };
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
