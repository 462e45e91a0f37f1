//! Open addressing by cache lines: eight ids and their slots side by side, one line per look.

use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;

use bytemuck::{Pod, Zeroable};

use super::{NO_SLOT, RowIndex};
use crate::arena::ArenaError;
use crate::pages::PageVec;

/// Entries of a line.
const LINE_IDS: usize = 8;

/// Not the answer yet: the line is full and the id may be in a later one. No slot of a sparse
/// index, which has about a quarter as many slots as there are ids at most.
const PROBE: u32 = u32::MAX - 1;

/// One cache line. Its entries stand together at its start, so that it is full when its last one
/// is taken.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line {
    ids: [u32; LINE_IDS],
    /// The slot plus 1; 0 in an empty entry.
    tags: [u32; LINE_IDS],
}

/// A table of lines that stays half empty. An id whose line is full goes to the next line that is
/// not; when a place becomes free, such ids move back: no tombstones, so probes stay short however
/// many ids come and go.
pub(crate) struct SparseIndex {
    lines: PageVec<Line>,
    /// Random, so that nobody outside can choose ids that collide.
    key: u64,
}

impl Line {
    /// The tag of `id`, or 0. Without a branch: the compiler compares four ids at once.
    #[inline]
    fn tag(&self, id: u32) -> u32 {
        let pairs = self.ids.iter().zip(&self.tags);
        pairs.fold(0, |found, (&at, &tag)| found | if at == id { tag } else { 0 })
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.tags[LINE_IDS - 1] != 0
    }

    fn n_taken(&self) -> usize {
        self.tags.iter().filter(|&&tag| tag != 0).count()
    }

    /// Adds an entry to a line that is not full.
    fn push(&mut self, id: u32, tag: u32) {
        let at = self.n_taken();
        (self.ids[at], self.tags[at]) = (id, tag);
    }

    /// Takes entry `at` out; the last one moves to its place.
    fn take(&mut self, at: usize) -> (u32, u32) {
        let entry = (self.ids[at], self.tags[at]);
        let last = self.n_taken() - 1;
        (self.ids[at], self.tags[at]) = (self.ids[last], self.tags[last]);
        (self.ids[last], self.tags[last]) = (0, 0);
        entry
    }
}

impl SparseIndex {
    pub(super) fn new(n_slots: u32) -> Result<Self, ArenaError> {
        let key = RandomState::new().hash_one(0);
        Ok(Self { lines: PageVec::new(Self::n_lines(n_slots))?, key })
    }

    /// Half of the entries stay empty, and one at least, which ends every probe.
    fn n_lines(n_slots: u32) -> usize {
        (2 * n_slots as usize + RowIndex::SLACK_IDS + 1).div_ceil(LINE_IDS)
    }

    /// Memory that [`SparseIndex::new`] will take, in bytes.
    pub(super) fn planned_bytes(n_slots: u32) -> usize {
        size_of::<Line>() * Self::n_lines(n_slots)
    }

    pub(super) fn bytes(&self) -> usize {
        self.lines.bytes()
    }

    /// The line where the probe for `id` starts: a hash, scaled to the table. One product alone
    /// would send runs of ids, which rows in a good order are, to a few crowded places.
    #[inline]
    fn home(&self, id: u32, n_lines: usize) -> usize {
        let once = (u64::from(id) ^ self.key).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let hash = (once ^ (once >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 32;
        ((hash * n_lines as u64) >> 32) as usize
    }

    /// Writes the slot of each id, or [`NO_SLOT`].
    pub(super) fn find(&self, ids: &[u32], slots: &mut [u32]) {
        let lines: &[Line] = &self.lines;
        // First only where probes start, reading a word there: short enough that the cache misses
        // of many ids overlap. There are fewer lines than slots.
        let mut seen = 0;
        for (slot, &id) in slots.iter_mut().zip(ids) {
            let home = self.home(id, lines.len());
            seen ^= lines[home].tags[0];
            *slot = home as u32;
        }
        black_box(seen);
        // Nearly all probes end in their first line. Those go next, without a branch to predict.
        for (slot, &id) in slots.iter_mut().zip(ids) {
            let line = &lines[*slot as usize];
            let tag = line.tag(id);
            *slot = if tag == 0 && line.is_full() { PROBE } else { tag.wrapping_sub(1) };
        }
        for (slot, &id) in slots.iter_mut().zip(ids) {
            if *slot == PROBE {
                *slot = self.get(id);
            }
        }
    }

    pub(super) fn touch(&self, ids: impl Iterator<Item = u32>) -> u32 {
        let lines: &[Line] = &self.lines;
        ids.fold(0, |seen, id| seen ^ lines[self.home(id, lines.len())].tags[0])
    }

    pub(super) fn get(&self, id: u32) -> u32 {
        let lines: &[Line] = &self.lines;
        let mut at = self.home(id, lines.len());
        loop {
            let tag = lines[at].tag(id);
            if tag != 0 || !lines[at].is_full() {
                return tag.wrapping_sub(1);
            }
            at = after(at, lines.len());
        }
    }

    /// Adds an id that is not there.
    pub(super) fn insert(&mut self, id: u32, slot: u32) {
        debug_assert!(slot < NO_SLOT - 1);
        let mut at = self.home(id, self.lines.len());
        let lines: &mut [Line] = &mut self.lines;
        while lines[at].is_full() {
            at = after(at, lines.len());
        }
        lines[at].push(id, slot + 1);
    }

    /// Removes an id that is there.
    pub(super) fn remove(&mut self, id: u32) {
        let n_lines = self.lines.len();
        let mut hole = self.home(id, n_lines);
        while self.lines[hole].tag(id) == 0 {
            hole = after(hole, n_lines);
        }
        let mut was_full = self.lines[hole].is_full();
        let line = &mut self.lines[hole];
        if let Some(at) = (0..LINE_IDS).find(|&at| line.ids[at] == id && line.tags[at] != 0) {
            line.take(at);
        }
        while was_full {
            let Some((at, entry)) = self.displaced_past(hole) else { break };
            was_full = self.lines[at].is_full();
            let (id, tag) = self.lines[at].take(entry);
            self.lines[hole].push(id, tag);
            hole = at;
        }
    }

    /// An entry after line `hole` whose probe passes that line: its line and place.
    fn displaced_past(&self, hole: usize) -> Option<(usize, usize)> {
        let lines: &[Line] = &self.lines;
        let steps = |from: usize, to: usize| (to + lines.len() - from) % lines.len();
        let mut at = after(hole, lines.len());
        while at != hole {
            let line = &lines[at];
            let passes = |id| steps(self.home(id, lines.len()), at) >= steps(hole, at);
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

#[inline]
fn after(at: usize, n_lines: usize) -> usize {
    if at + 1 == n_lines { 0 } else { at + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Share of ids that are not in the line where their probe starts.
    fn displaced(index: &SparseIndex) -> f64 {
        let (mut away, mut all) = (0, 0);
        for (at, line) in index.lines.iter().enumerate() {
            for &id in &line.ids[..line.n_taken()] {
                all += 1;
                away += u32::from(index.home(id, index.lines.len()) != at);
            }
        }
        f64::from(away) / f64::from(all)
    }

    #[test]
    fn one_line_is_enough_for_runs_strides_and_after_removals() {
        const N: u32 = 10_000;
        for stride in [1, 2, 3, 64, 4096, 100_003, 429_000] {
            let mut index = SparseIndex::new(N).unwrap();
            (0..N).for_each(|i| index.insert(i * stride, i));
            // Lines with four ids in the mean: one in fifty has more than eight.
            assert!(displaced(&index) < 0.03, "stride {stride}: {}", displaced(&index));
            for i in 0..N {
                index.remove(i * stride);
                index.insert((N + i).wrapping_mul(stride), i);
            }
            assert!(displaced(&index) < 0.03, "stride {stride}: {}", displaced(&index));
        }
    }

    #[test]
    fn a_full_table_finds_every_id_while_ids_come_and_go() {
        // Far more than the half that it is made for: most ids are away from home.
        let mut index = SparseIndex::new(64).unwrap();
        let n = (index.lines.len() * LINE_IDS - 1) as u32;
        (0..n).for_each(|id| index.insert(id * 7, id));
        for round in 0..50 {
            for id in (round % 3..n).step_by(3) {
                index.remove(id * 7);
                assert_eq!(index.get(id * 7), NO_SLOT);
            }
            (round % 3..n).step_by(3).for_each(|id| index.insert(id * 7, id));
            assert!((0..n).all(|id| index.get(id * 7) == id), "round {round}");
        }
    }
}
