//! `decay`: MassiveGNN's prefetch and eviction by score (Algorithms 1 and 2, section IV-B).
//!
//! - Candidates are the halo nodes, and perhaps what else a batch of several hops reaches. The
//!   slots are filled with the halo nodes of the highest degree, and with others only where slots
//!   are left. A resident has an eviction score S_E, 1 for these, any other candidate an access
//!   score S_A, 0.
//! - A batch multiplies S_E of the residents that it does not sample by γ, and adds 1 to S_A of
//!   the candidates that it misses.
//! - Every Δ batches, its own misses counted, residents with S_E < α = γ^Δ are victims, lowest
//!   score first (ties: lower id). As many candidates that are not resident are wanted in their
//!   place, those with the highest S_A (ties: higher degree, then lower id). Free slots are filled
//!   too. [`Replacement`] says which candidates may be; victims that none replaces stay.
//! - A wanted row that comes takes the next victim's slot, and the scores change places. Its S_E is
//!   its last S_A, and the victim's S_A is its last S_E.
//! - Held slots are no victims. Wanted rows that have not come when the next round begins are
//!   wanted no more. A row that was taken out is wanted again until then.
//!
//! Nothing underflows. S_E is kept as its logarithm when the row came, and a count of the batches
//! that did not sample it. S_A is kept as whole misses and the logarithm of a fraction below 1.

mod scoreboard;
mod victims;

use std::mem;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use super::{Offer, Piece, Policy};
use crate::huge_vec::{HugeVec, MemoryError};
use crate::slots::{Slots, VACANT};

pub use scoreboard::{Candidate, Replacement, Scoreboard};
use scoreboard::{Scores, in_order};
use victims::Victims;

/// Inputs of MassiveGNN's policy.
#[derive(Clone, Debug)]
pub struct DecaySpec {
    /// The halo nodes and others that may be asked for, in any order, each once.
    pub candidates: Arc<[Candidate]>,
    /// γ, by which scores decay: above 0, at most 1.
    pub gamma: f64,
    /// Δ, batches from one eviction round to the next: at least 1.
    pub interval: u32,
    /// Which candidates may replace a victim.
    pub replacement: Replacement,
    /// How scores are found.
    pub scoreboard: Scoreboard,
}

/// S_E of a resident.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct EvictionScore {
    /// When the row came.
    log: f64,
    id: u32,
    /// Batches that began before the row came, or sampled it since: the others let it decay.
    n_spared: u32,
    /// The last batch that sampled it.
    sampled: u32,
    /// Its place among the access scores.
    place: u32,
}

const NO_RESIDENT: EvictionScore =
    EvictionScore { log: 0.0, id: VACANT, n_spared: 0, sampled: 0, place: 0 };

pub(crate) struct Decay {
    scores: Scores,
    /// By slot.
    residents: HugeVec<EvictionScore>,
    log_gamma: f64,
    interval: u32,
    replacement: Replacement,
    n_slots: u32,
    n_batches: u32,
    /// Ids that may come, and some that have.
    wanted: Vec<u32>,
    /// Slots to give up.
    victims: Victims,
    n_resident: u32,
    /// Rounds, and the first fill.
    n_rounds: u64,
}

impl Decay {
    /// Returns the bytes of the state. A round also takes, and then frees, 5 bytes for each
    /// candidate. It takes 16 more for each of those with as many misses as the last one in.
    pub(super) fn planned_bytes(n_slots: u32, id_space: u32, spec: &DecaySpec) -> usize {
        Scores::planned_bytes(n_slots, id_space, spec)
            + n_slots as usize * (size_of::<EvictionScore>() + 2 * size_of::<u32>())
            + Victims::planned_bytes(n_slots)
    }

    pub(super) fn new(n_slots: u32, id_space: u32, spec: &DecaySpec) -> Result<Self, MemoryError> {
        let scores = Scores::new(n_slots, id_space, spec)?;
        let mut decay = Self {
            residents: HugeVec::filled(n_slots as usize, NO_RESIDENT)?,
            log_gamma: spec.gamma.ln(),
            interval: spec.interval,
            replacement: spec.replacement,
            n_slots,
            n_batches: 0,
            // At most the wanted rows of a round, and the resident ones that are removed.
            wanted: Vec::with_capacity(2 * n_slots as usize),
            victims: Victims::with_capacity(n_slots),
            n_resident: 0,
            n_rounds: 0,
            scores,
        };
        decay.n_rounds += 1;
        decay.scores.want_first(n_slots as usize, &mut decay.wanted);
        Ok(decay)
    }

    /// Wants the best `n` candidates that may come, and no others.
    fn want(&mut self, n: usize) {
        self.n_rounds += 1;
        self.wanted.clear();
        self.scores.want(n, self.replacement, &mut self.wanted);
    }

    /// Returns ln S_E.
    fn eviction_log(&self, score: &EvictionScore) -> f64 {
        score.log + f64::from(self.n_batches - score.n_spared) * self.log_gamma
    }

    /// Returns whether S_E < γ^Δ. With a first score of 1 this is exactly: unsampled more than Δ
    /// times.
    fn is_below_threshold(&self, score: &EvictionScore) -> bool {
        let decays = f64::from(self.n_batches - score.n_spared) - f64::from(self.interval);
        score.log + decays * self.log_gamma < 0.0
    }

    fn find_victims(&mut self, slots: &Slots) {
        let mut found = mem::take(&mut self.victims);
        let residents = (0u32..).zip(&*self.residents);
        let victims = residents.filter(|(slot, score)| {
            score.id != VACANT && self.is_below_threshold(score) && !slots.is_held(*slot)
        });
        // Adjacent keys: reading scores again at each comparison takes ten times as long.
        let key = |(slot, score): (u32, &EvictionScore)| {
            (in_order(self.eviction_log(score)), u64::from(score.id) << 32 | u64::from(slot))
        };
        found.replace(victims.map(key));
        self.victims = found;
    }

    /// Removes the row: its last S_E becomes its S_A.
    fn dismiss(&mut self, slot: u32) {
        let score = self.residents[slot as usize];
        let log = self.eviction_log(&score);
        self.scores.dismiss(score.place, log);
        self.residents[slot as usize].id = VACANT;
        self.n_resident -= 1;
    }
}

impl Policy for Decay {
    fn begin_batch(&mut self) {
        self.n_batches += 1;
    }

    fn on_lookup(&mut self, piece: &Piece<'_>, _slots: &mut Slots) {
        piece.hits.iter().for_each(|&slot| self.residents.prefetch(slot as usize));
        self.scores.miss(piece, self.n_batches);
        for &slot in piece.hits {
            let score = &mut self.residents[slot as usize];
            score.n_spared += u32::from(score.sampled != self.n_batches);
            score.sampled = self.n_batches;
        }
    }

    fn end_lookup(&mut self, slots: &Slots) {
        if self.n_batches.is_multiple_of(self.interval) {
            self.find_victims(slots);
            self.want(self.victims.len() + (self.n_slots - self.n_resident) as usize);
        }
    }

    fn wanted(&self) -> &[u32] {
        &self.wanted
    }

    fn wanted_revision(&self) -> u64 {
        self.n_rounds
    }

    fn retain(&mut self, offers: &mut Vec<(u32, u32)>, _slots: &Slots) {
        self.scores.retain_wanted(offers);
    }

    fn prepare(&mut self, ids: &[u32], slots: &Slots) {
        // Scores a piece ahead: those of this one are there already.
        let going = self.victims.next(2 * ids.len());
        going.clone().for_each(|slot| self.residents.prefetch(slot as usize));
        slots.prefetch(going.clone().take(ids.len()));
        let places = going.take(ids.len()).map(|slot| self.residents[slot as usize].place);
        places.for_each(|place| self.scores.prefetch(place));
    }

    fn evict(&mut self, _offer: Offer, slots: &mut Slots) -> Option<u32> {
        while let Some(slot) = self.victims.pop() {
            if self.residents[slot as usize].id != VACANT && !slots.is_held(slot) {
                self.dismiss(slot);
                return Some(slot);
            }
        }
        None
    }

    fn insert(&mut self, offer: Offer, slot: u32, _slots: &mut Slots) {
        let id = offer.id;
        let is_first_fill = self.n_batches < self.interval;
        let (place, access_log) = self.scores.admit(id);
        let log = if is_first_fill { 0.0 } else { access_log };
        let n = self.n_batches;
        let score = EvictionScore { log, id, n_spared: n, sampled: n, place };
        self.residents[slot as usize] = score;
        self.n_resident += 1;
    }

    /// Wants a row again that has changed elsewhere.
    fn on_remove(&mut self, id: u32, slot: u32, _slots: &mut Slots) {
        self.dismiss(slot);
        if self.scores.want_again(id) {
            self.wanted.push(id);
        }
    }

    fn bytes(&self) -> usize {
        self.scores.bytes()
            + self.residents.bytes()
            + self.wanted.capacity() * size_of::<u32>()
            + self.victims.bytes()
    }
}

#[cfg(test)]
mod tests;
