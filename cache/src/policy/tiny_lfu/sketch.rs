//! How often ids were used lately, in a few bits each (TinyLFU, sections 3.2 to 3.4).

use bytemuck::{Pod, Zeroable};

use crate::huge_vec::{HugeVec, MemoryError};

/// Counters per block and row of the sketch.
const ROW_COUNTERS: u32 = 28;
const N_ROWS: u32 = 4;
/// Bits of the doorkeeper that an id sets.
const N_DOOR_BITS: u32 = 3;
/// Slots per block: 28 counters of each row for four slots.
const BLOCK_SLOTS: u32 = 4;
/// Ids whose blocks are asked for before the first of them is counted.
const AT_ONCE: usize = 256;
/// Uses per slot between two agings.
const SAMPLE_PER_SLOT: u64 = 10;

/// All counts of an id, in one cache line. These are 112 counters of 4 bits in four rows, then the
/// 64 bits of the doorkeeper.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Block {
    counters: [u64; 7],
    door: u64,
}

/// A count-min sketch with aging behind a doorkeeper.
///
/// The first use of an id sets its bits in the doorkeeper; further uses raise its counter in each
/// row, up to 15. The estimate is the lowest counter, and one more if the doorkeeper knows the id.
/// After ten uses per slot all counters are halved and the doorkeeper forgets.
pub(super) struct Sketch {
    blocks: HugeVec<Block>,
    n_uses: u64,
    max_uses: u64,
}

/// Where the counters of an id are.
#[derive(Clone, Copy)]
struct Place {
    block: usize,
    hash: u64,
}

impl Place {
    /// Returns the word and the shift of the counter in a row.
    #[inline]
    fn counter(self, row: u32) -> (usize, u32) {
        let random = (self.hash >> (row * 8)) as u32 & 0xFF;
        let at = row * ROW_COUNTERS + ((random * ROW_COUNTERS) >> 8);
        ((at / 16) as usize, at % 16 * 4)
    }

    #[inline]
    fn door_bits(self) -> u64 {
        (0..N_DOOR_BITS).fold(0, |bits, i| bits | 1 << (self.hash >> (32 + i * 6) & 63))
    }
}

impl Sketch {
    fn n_blocks(n_slots: u32) -> usize {
        n_slots.div_ceil(BLOCK_SLOTS).max(1) as usize
    }

    pub(super) fn planned_bytes(n_slots: u32) -> usize {
        Self::n_blocks(n_slots) * size_of::<Block>()
    }

    pub(super) fn new(n_slots: u32) -> Result<Self, MemoryError> {
        let max_uses = (u64::from(n_slots) * SAMPLE_PER_SLOT).max(1);
        Ok(Self { blocks: HugeVec::new(Self::n_blocks(n_slots))?, n_uses: 0, max_uses })
    }

    pub(super) fn bytes(&self) -> usize {
        self.blocks.bytes()
    }

    #[inline]
    fn place(id: u32, n_blocks: usize) -> Place {
        let once = (u64::from(id) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let hash = (once ^ (once >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let hash = hash ^ (hash >> 29);
        let block = ((hash >> 32) * n_blocks as u64) >> 32;
        // Ids of one block share the upper bits.
        Place {
            block: block as usize,
            hash: hash.wrapping_mul(0xA24B_AED4_963E_E407).rotate_left(32),
        }
    }

    /// Has what counting an id needs read.
    #[inline]
    pub(super) fn prefetch(&self, id: u32) {
        self.blocks.prefetch(Self::place(id, self.blocks.len()).block);
    }

    /// Counts a use of each id.
    pub(super) fn add_all(&mut self, ids: &[u32]) {
        let mut places = [Place { block: 0, hash: 0 }; AT_ONCE];
        for ids in ids.chunks(AT_ONCE) {
            let places = &mut places[..ids.len()];
            let n_blocks = self.blocks.len();
            for (place, &id) in places.iter_mut().zip(ids) {
                *place = Self::place(id, n_blocks);
                self.blocks.prefetch(place.block);
            }
            places.iter().for_each(|&place| self.add(place));
        }
    }

    #[inline]
    fn add(&mut self, place: Place) {
        let block = &mut self.blocks[place.block];
        let bits = place.door_bits();
        if block.door & bits != bits {
            block.door |= bits;
        } else {
            for row in 0..N_ROWS {
                let (word, shift) = place.counter(row);
                let is_full = block.counters[word] >> shift & 15 == 15;
                block.counters[word] += u64::from(!is_full) << shift;
            }
        }
        self.n_uses += 1;
        if self.n_uses == self.max_uses {
            self.n_uses /= 2;
            self.blocks.iter_mut().for_each(Block::age);
        }
    }

    /// Returns the estimate of how often an id was used.
    #[inline]
    pub(super) fn count(&self, id: u32) -> u8 {
        let place = Self::place(id, self.blocks.len());
        let block = &self.blocks[place.block];
        let bits = place.door_bits();
        let counter = |row| {
            let (word, shift) = place.counter(row);
            (block.counters[word] >> shift & 15) as u8
        };
        let least = (0..N_ROWS).map(counter).min().unwrap_or(0);
        least + u8::from(block.door & bits == bits)
    }
}

impl Block {
    fn age(&mut self) {
        self.counters.iter_mut().for_each(|word| *word = *word >> 1 & 0x7777_7777_7777_7777);
        self.door = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_is_never_too_low_and_rarely_too_high() {
        let mut sketch = Sketch::new(1000).unwrap();
        let n_uses = |id: u32| id % 7;
        for id in 0..1000 {
            (0..n_uses(id)).for_each(|_| sketch.add_all(&[id]));
        }
        let off = (0..1000).filter(|&id| u32::from(sketch.count(id)) != n_uses(id)).count();
        assert!((0..1000).all(|id| u32::from(sketch.count(id)) >= n_uses(id)));
        assert!(off < 100, "{off} of 1000 ids are taken for others");
    }

    #[test]
    fn counters_stop_at_their_limit_and_halve_with_age() {
        let mut sketch = Sketch::new(10).unwrap();
        sketch.add_all(&[3; 40]);
        assert_eq!(sketch.count(3), 16, "15 and the doorkeeper");
        sketch.add_all(&[3; 60]);
        assert_eq!((sketch.count(3), sketch.n_uses), (7, 50));
        sketch.add_all(&[3]);
        assert_eq!(sketch.count(3), 8, "the doorkeeper knows it again");
    }
}
