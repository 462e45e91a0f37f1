//! Open addressing by cache lines: eight ids and their slots side by side, one line per look.

use std::hash::{BuildHasher, RandomState};

use bytemuck::{Pod, Zeroable};

use super::RowIndex;
use crate::huge_vec::{HugeVec, MemoryError};

/// Entries of a line.
const LINE_IDS: usize = 8;

/// Lines that are asked for before they are looked at.
const N_AHEAD: usize = 32;

/// Not the answer yet: the line is full and the id may be in a later one. No entry of an index, for
/// fewer than 2³¹ ids have one.
const PROBE: u32 = u32::MAX - 1;

/// One cache line. Its entries are adjacent from its start, so that it is full when its last one is
/// taken.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line {
    ids: [u32; LINE_IDS],
    /// The entry of the index plus 1; 0 where there is none.
    tags: [u32; LINE_IDS],
}

/// A table of lines that stays half empty. An id whose line is full goes to the next line that is
/// not. When a place becomes free, such ids move back: no tombstones, so probes stay short however
/// many ids come and go.
pub(crate) struct SparseIndex {
    lines: HugeVec<Line>,
    /// Random, so that no outsider can choose ids that collide.
    key: u64,
}

impl Line {
    /// Returns the tag of `id`, or 0. Without a branch: the compiler compares four ids together.
    #[inline]
    fn tag(&self, id: u32) -> u32 {
        let pairs = self.ids.iter().zip(&self.tags);
        pairs.fold(0, |found, (&at, &tag)| found | if at == id { tag } else { 0 })
    }

    /// Returns the place of `id`.
    #[inline]
    fn place(&self, id: u32) -> Option<usize> {
        let pairs = (0..).zip(self.ids.iter().zip(&self.tags));
        let found = pairs
            .fold(0u32, |found, (i, (&at, &tag))| found | u32::from(at == id && tag != 0) << i);
        (found != 0).then(|| found.trailing_zeros() as usize)
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.tags[LINE_IDS - 1] != 0
    }

    #[inline]
    fn n_taken(&self) -> usize {
        self.tags.iter().filter(|&&tag| tag != 0).count()
    }

    /// Adds an entry to a line that is not full.
    #[inline]
    fn push(&mut self, id: u32, tag: u32) {
        let at = self.n_taken();
        (self.ids[at], self.tags[at]) = (id, tag);
    }

    /// Takes entry `at` out; the last one moves to its place.
    #[inline]
    fn take(&mut self, at: usize) -> (u32, u32) {
        let entry = (self.ids[at], self.tags[at]);
        let last = self.n_taken() - 1;
        (self.ids[at], self.tags[at]) = (self.ids[last], self.tags[last]);
        (self.ids[last], self.tags[last]) = (0, 0);
        entry
    }
}

impl SparseIndex {
    pub(super) fn new(n_ids: u32) -> Result<Self, MemoryError> {
        let key = RandomState::new().hash_one(0);
        Ok(Self { lines: HugeVec::new(Self::n_lines(n_ids))?, key })
    }

    /// Returns the half of the entries stay empty, and one at least, which ends every probe.
    fn n_lines(n_ids: u32) -> usize {
        (2 * n_ids as usize + RowIndex::SLACK_IDS + 1).div_ceil(LINE_IDS)
    }

    /// Returns the memory that [`SparseIndex::new`] will take, in bytes.
    pub(super) fn planned_bytes(n_ids: u32) -> usize {
        size_of::<Line>() * Self::n_lines(n_ids)
    }

    pub(super) fn bytes(&self) -> usize {
        self.lines.bytes()
    }

    /// Returns the line where the probe for `id` starts: a hash, scaled to the table. One product
    /// alone would send runs of ids, which rows in a good order are, to a few crowded places.
    #[inline]
    pub(super) fn home(&self, id: u32) -> u32 {
        self.home_among(id, self.lines.len())
    }

    #[inline]
    fn home_among(&self, id: u32, n_lines: usize) -> u32 {
        let once = (u64::from(id) ^ self.key).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let hash = (once ^ (once >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 32;
        ((hash * n_lines as u64) >> 32) as u32
    }

    /// Writes the line where the probe for each id starts, and has it read.
    pub(super) fn locate(&self, ids: &[u32], homes: &mut [u32]) {
        let n_lines = self.lines.len();
        for (home, &id) in homes.iter_mut().zip(ids) {
            *home = self.home_among(id, n_lines);
            self.lines.prefetch(*home as usize);
        }
    }

    /// Writes the entry of each id, or [`NO_SLOT`].
    pub(super) fn find(&self, ids: &[u32], entries: &mut [u32]) {
        // Lines are prefetched well before they are read. Until then their numbers are in the
        // places of the entries.
        self.locate(&ids[..ids.len().min(N_AHEAD)], &mut entries[..ids.len().min(N_AHEAD)]);
        let lines: &[Line] = &self.lines;
        let mut n_probes = 0;
        for at in 0..ids.len() {
            if let (Some(&id), Some(home)) = (ids.get(at + N_AHEAD), entries.get_mut(at + N_AHEAD))
            {
                *home = self.home_among(id, lines.len());
                self.lines.prefetch(*home as usize);
            }
            // Nearly all probes end in their first line: without a branch to predict.
            let (id, entry) = (ids[at], &mut entries[at]);
            let line = &lines[*entry as usize];
            let tag = line.tag(id);
            let goes_on = tag == 0 && line.is_full();
            n_probes += u32::from(goes_on);
            *entry = if goes_on { PROBE } else { tag.wrapping_sub(1) };
        }
        if n_probes > 0 {
            let unsure = entries.iter_mut().zip(ids).filter(|(entry, _)| **entry == PROBE);
            unsure.for_each(|(entry, &id)| *entry = self.get(self.home(id), id));
        }
    }

    /// Returns the entry of an id, or [`NO_SLOT`].
    #[inline]
    pub(super) fn get(&self, home: u32, id: u32) -> u32 {
        let lines: &[Line] = &self.lines;
        let mut at = home as usize;
        loop {
            let tag = lines[at].tag(id);
            if tag != 0 || !lines[at].is_full() {
                return tag.wrapping_sub(1);
            }
            at = after(at, lines.len());
        }
    }

    /// Changes the entry of an id that is there.
    #[inline]
    pub(super) fn replace(&mut self, home: u32, id: u32, entry: u32) {
        let lines: &mut [Line] = &mut self.lines;
        let (at, place) = find_place(lines, home, id);
        lines[at].tags[place] = entry + 1;
    }

    /// Adds an id that is not there.
    #[inline]
    pub(super) fn insert(&mut self, home: u32, id: u32, entry: u32) {
        debug_assert!(entry < PROBE);
        let mut at = home as usize;
        let lines: &mut [Line] = &mut self.lines;
        while lines[at].is_full() {
            at = after(at, lines.len());
        }
        lines[at].push(id, entry + 1);
    }

    /// Removes an id that is there.
    #[inline]
    pub(super) fn remove(&mut self, home: u32, id: u32) {
        let lines: &mut [Line] = &mut self.lines;
        let (mut hole, place) = find_place(lines, home, id);
        let mut was_full = lines[hole].is_full();
        lines[hole].take(place);
        while was_full {
            let Some((at, entry)) = self.displaced_past(hole) else { break };
            was_full = self.lines[at].is_full();
            let (id, tag) = self.lines[at].take(entry);
            self.lines[hole].push(id, tag);
            hole = at;
        }
    }

    /// Returns an entry after line `hole` whose probe passes that line: its line and place.
    fn displaced_past(&self, hole: usize) -> Option<(usize, usize)> {
        let lines: &[Line] = &self.lines;
        let steps = |from: usize, to: usize| (to + lines.len() - from) % lines.len();
        let mut at = after(hole, lines.len());
        while at != hole {
            let line = &lines[at];
            let passes =
                |id| steps(self.home_among(id, lines.len()) as usize, at) >= steps(hole, at);
            if let Some(entry) = (0..line.n_taken()).find(|&entry| passes(line.ids[entry])) {
                return Some((at, entry));
            }
            if !line.is_full() {
                break;
            }
            at = after(at, lines.len());
        }
        None
    }
}

/// Returns the line of an id that is there, and its place in the line.
#[inline]
fn find_place(lines: &[Line], home: u32, id: u32) -> (usize, usize) {
    let mut at = home as usize;
    loop {
        if let Some(place) = lines[at].place(id) {
            return (at, place);
        }
        at = after(at, lines.len());
    }
}

#[inline]
fn after(at: usize, n_lines: usize) -> usize {
    if at + 1 == n_lines { 0 } else { at + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::NO_SLOT;

    fn insert(index: &mut SparseIndex, id: u32, entry: u32) {
        index.insert(index.home(id), id, entry);
    }

    fn remove(index: &mut SparseIndex, id: u32) {
        index.remove(index.home(id), id);
    }

    fn get(index: &SparseIndex, id: u32) -> u32 {
        index.get(index.home(id), id)
    }

    /// Returns the share of ids that are not in the line where their probe starts.
    fn displaced(index: &SparseIndex) -> f64 {
        let (mut away, mut all) = (0, 0);
        for (at, line) in index.lines.iter().enumerate() {
            for &id in &line.ids[..line.n_taken()] {
                all += 1;
                away += u32::from(index.home(id) as usize != at);
            }
        }
        f64::from(away) / f64::from(all)
    }

    #[test]
    fn one_line_is_enough_for_runs_strides_and_after_removals() {
        const N: u32 = 10_000;
        for stride in [1, 2, 3, 64, 4096, 100_003, 429_000] {
            let mut index = SparseIndex::new(N).unwrap();
            (0..N).for_each(|i| insert(&mut index, i * stride, i));
            // Lines with four ids in the mean: one in fifty has more than eight.
            assert!(displaced(&index) < 0.03, "stride {stride}: {}", displaced(&index));
            for i in 0..N {
                remove(&mut index, i * stride);
                insert(&mut index, (N + i).wrapping_mul(stride), i);
            }
            assert!(displaced(&index) < 0.03, "stride {stride}: {}", displaced(&index));
        }
    }

    #[test]
    fn a_full_table_finds_every_id_while_ids_come_and_go() {
        // Far more than the half that it is made for: most ids are away from home.
        let mut index = SparseIndex::new(64).unwrap();
        let n = (index.lines.len() * LINE_IDS - 1) as u32;
        (0..n).for_each(|id| insert(&mut index, id * 7, id));
        for round in 0..50 {
            for id in (round % 3..n).step_by(3) {
                remove(&mut index, id * 7);
                assert_eq!(get(&index, id * 7), NO_SLOT);
            }
            (round % 3..n).step_by(3).for_each(|id| insert(&mut index, id * 7, id));
            assert!((0..n).all(|id| get(&index, id * 7) == id), "round {round}");
        }
    }
}
