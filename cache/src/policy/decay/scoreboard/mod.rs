//! Access scores of the candidates: found by id, or by a search among the candidates.

mod most_missed;

use bytemuck::{Pod, Zeroable};

use super::super::Piece;
use super::DecaySpec;
use crate::huge_vec::{HugeVec, MemoryError};
use crate::index::RowIndex;
use crate::slots::NO_SLOT;

pub(super) use most_missed::in_order;

/// A node whose row may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its id.
    pub id: u32,
    /// Frequency at which it is drawn as a neighbour, estimated from the graph: its degree.
    pub degree: u32,
    /// Whether it is a halo node: these fill the slots first. Batches of more than one hop reach
    /// others.
    pub is_halo: bool,
}

/// How `decay` finds the access score of an id (section IV-B, end). Decisions are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoreboard {
    /// A score per id of the id space: found without a search.
    Dense,
    /// A score per candidate: found through an index of them.
    Compact,
}

impl Scoreboard {
    /// Memory up to which scores per id are cheap, whatever the number of candidates.
    const CHEAP_BYTES: usize = 64 << 20;

    /// Returns the dense scoreboard up to 64 MiB of scores, or where the compact one takes no less.
    #[must_use]
    pub fn by_memory(id_space: u32, n_candidates: usize) -> Self {
        let bytes = |scoreboard| Scores::score_bytes(id_space, n_candidates, scoreboard);
        let dense = bytes(Self::Dense);
        let is_cheap = dense <= Self::CHEAP_BYTES || dense <= bytes(Self::Compact);
        if is_cheap { Self::Dense } else { Self::Compact }
    }
}

/// Candidates that may replace a victim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replacement {
    /// Those with at least one whole miss since they last left.
    #[default]
    Missed,
    /// Those with S_A > 0, as in the paper: also rows that left with a rest of S_E, missed or not.
    Scored,
    /// All, also those that were never missed.
    Any,
}

/// Fields that every miss of an id reads and changes, and the search for the best candidates goes
/// through.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Count {
    /// The last batch that missed it.
    missed: u32,
    /// Whole misses of S_A, and above them whether it is a candidate, resident, and wanted.
    word: u32,
}

/// The rest of S_A of a candidate, and what breaks ties.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Rest {
    /// Logarithm of the fraction that S_A has beside whole misses.
    fraction_log: f64,
    degree: u32,
    /// 1 for a halo node.
    halo: u32,
}

const CANDIDATE: u32 = 1 << 31;
const RESIDENT: u32 = 1 << 30;
const WANTED: u32 = 1 << 29;
const MOST_MISSES: u32 = WANTED - 1;

impl Count {
    fn n_misses(self) -> u32 {
        self.word & MOST_MISSES
    }

    fn is(self, flag: u32) -> bool {
        self.word & flag != 0
    }

    fn is_outside(self) -> bool {
        self.word & (CANDIDATE | RESIDENT) == CANDIDATE
    }
}

pub(super) struct Scores {
    /// Ascending ids of the candidates.
    ids: Vec<u32>,
    counts: HugeVec<Count>,
    rests: HugeVec<Rest>,
    /// Places of counts and rests; `None`: that of an id is the id.
    places: Option<RowIndex>,
    /// Places of the candidates that are wanted.
    wanted: Vec<u32>,
    /// Ids that are about to be asked for, and their places.
    ahead: (Vec<u32>, Vec<u32>),
}

impl Scores {
    pub(super) fn planned_bytes(n_slots: u32, id_space: u32, spec: &DecaySpec) -> usize {
        let n_candidates = spec.candidates.len();
        (n_candidates + 2 * n_slots as usize) * size_of::<u32>()
            + Self::score_bytes(id_space, n_candidates, spec.scoreboard)
    }

    /// Returns the memory of the scores and of what finds them.
    fn score_bytes(id_space: u32, n_candidates: usize, scoreboard: Scoreboard) -> usize {
        let (n_entries, places) = match scoreboard {
            Scoreboard::Dense => (id_space as usize, 0),
            Scoreboard::Compact => {
                (n_candidates, RowIndex::planned_bytes(id_space, n_candidates as u32))
            }
        };
        n_entries * (size_of::<Count>() + size_of::<Rest>()) + places
    }

    /// Returns scores of the candidates of `spec`. Ids outside the id space are ignored; of those
    /// that repeat the first counts.
    pub(super) fn new(n_slots: u32, id_space: u32, spec: &DecaySpec) -> Result<Self, MemoryError> {
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
            counts: HugeVec::new(n_entries)?,
            rests: HugeVec::new(n_entries)?,
            places,
            // As many as a round wants, and those that are taken out.
            wanted: Vec::with_capacity(2 * n_slots as usize),
            ahead: (Vec::new(), Vec::new()),
        };
        for (rank, candidate) in candidates.iter().enumerate() {
            if let Some(places) = &mut scores.places {
                places.insert(places.home(candidate.id), candidate.id, rank as u32);
            }
            let at = scores.place(rank);
            scores.counts[at].word = CANDIDATE;
            let Candidate { degree, is_halo, .. } = *candidate;
            let (fraction_log, halo) = (f64::NEG_INFINITY, is_halo.into());
            scores.rests[at] = Rest { fraction_log, degree, halo };
        }
        Ok(scores)
    }

    pub(super) fn bytes(&self) -> usize {
        let places = self.places.as_ref().map_or(0, RowIndex::bytes);
        let ids = (self.ids.capacity() + self.wanted.capacity()) * size_of::<u32>();
        self.counts.bytes() + self.rests.bytes() + places + ids
    }

    /// Returns the place of the candidate with a rank in `ids`.
    fn place(&self, rank: usize) -> usize {
        if self.places.is_some() { rank } else { self.ids[rank] as usize }
    }

    /// Returns the place of an id; of ids without one, some place where there is none.
    fn place_of(&self, id: u32) -> u32 {
        self.places.as_ref().map_or(id, |places| places.get(id))
    }

    /// Finds the places of the ids ahead, and has their counts read.
    fn find(&mut self) {
        let (ahead, places) = &mut self.ahead;
        places.clear();
        places.extend_from_slice(ahead);
        if let Some(index) = &self.places {
            index.find(ahead, places);
        }
        places.iter().for_each(|&place| self.counts.prefetch(place as usize));
    }

    /// Has what is at a place read.
    pub(super) fn prefetch(&self, place: u32) {
        self.counts.prefetch(place as usize);
        self.rests.prefetch(place as usize);
    }

    /// Counts the misses of a batch; an id that it misses at several positions counts once.
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
        let counts: &mut [Count] = &mut self.counts;
        for &place in &self.ahead.1 {
            if let Some(count) = counts.get_mut(place as usize) {
                // Without a branch: what has no candidate counts nothing.
                let is_new = count.missed != batch && count.n_misses() < MOST_MISSES;
                count.word += u32::from(is_new) & (count.word >> 31);
                count.missed = batch;
            }
        }
    }

    /// Keeps those of these ids and positions whose rows may come.
    pub(super) fn retain_wanted(&mut self, offers: &mut Vec<(u32, u32)>) {
        self.ahead.0.clear();
        self.ahead.0.extend(offers.iter().map(|offer| offer.0));
        self.find();
        let mut places = self.ahead.1.iter();
        offers.retain(|_| {
            let Some(&place) = places.next() else { return false };
            let is_wanted = self.counts.get(place as usize).is_some_and(|count| count.is(WANTED));
            if is_wanted {
                self.rests.prefetch(place as usize);
            }
            is_wanted
        });
    }

    /// Replaces the wanted rows: from now on only the best `n` candidates that are not resident and
    /// that may replace others are wanted. Appends their ids.
    pub(super) fn want(&mut self, n: usize, replacement: Replacement, ids: &mut Vec<u32>) {
        for place in self.wanted.drain(..) {
            self.counts[place as usize].word &= !WANTED;
        }
        self.want_all(self.best(n, replacement), ids);
    }

    /// Wants the first `n` candidates before the first batch (Algorithm 1, line 18). Appends their
    /// ids.
    pub(super) fn want_first(&mut self, n: usize, ids: &mut Vec<u32>) {
        self.want_all(self.first(n), ids);
    }

    fn want_all(&mut self, ranks: Vec<u32>, ids: &mut Vec<u32>) {
        for rank in ranks {
            let place = self.place(rank as usize);
            self.counts[place].word |= WANTED;
            self.wanted.push(place as u32);
            ids.push(self.ids[rank as usize]);
        }
    }

    /// Wants the row of `id` too; returns whether it is newly wanted.
    pub(super) fn want_again(&mut self, id: u32) -> bool {
        let place = self.place_of(id);
        let Some(count) = self.counts.get_mut(place as usize) else { return false };
        let is_new = count.is(CANDIDATE) && !count.is(WANTED);
        if is_new {
            count.word |= WANTED;
            self.wanted.push(place);
        }
        is_new
    }

    /// Takes the row of `id` in: returns its place, and ln S_A.
    pub(super) fn admit(&mut self, id: u32) -> (u32, f64) {
        let place = self.place_of(id);
        let count = self.counts.get_mut(place as usize).filter(|count| count.is(CANDIDATE));
        let Some(count) = count else { return (place, f64::NEG_INFINITY) };
        count.word |= RESIDENT;
        let fraction_log = self.rests[place as usize].fraction_log;
        let log = match count.n_misses() {
            0 => fraction_log,
            n_misses => (f64::from(n_misses) + fraction_log.exp()).ln(),
        };
        (place, log)
    }

    /// Removes the row whose scores are at a place: its S_E becomes its S_A. `log` is ln S_E.
    pub(super) fn dismiss(&mut self, place: u32, log: f64) {
        let count = self.counts.get_mut(place as usize).filter(|count| count.is(CANDIDATE));
        let Some(count) = count else { return };
        // Above 1, which only a row taken out from outside is, it has whole misses in it.
        let whole = if log < 0.0 { 0.0 } else { log.exp().floor() };
        let fraction_log = if log < 0.0 { log } else { (log.exp() - whole).ln() };
        count.word = count.word & (CANDIDATE | WANTED) | (whole as u32).min(MOST_MISSES);
        self.rests[place as usize].fraction_log = fraction_log;
    }
}
