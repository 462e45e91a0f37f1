//! Which layer has the newest value of a row: one look-up, whatever the number of layers.
//!
//! Rows are taken 384 at a time. A block without changed rows is one word that says so. Another one
//! is a cache line: a bit for each row, and counts that turn the bit into a position among the
//! entries.

use lodestore_graph::prefetch::prefetch;

use crate::row::RowIdx;

const WORDS: usize = 6;
const BLOCK_ROWS: u32 = 64 * WORDS as u32;
/// The block has no changed rows.
const NONE: u32 = u32::MAX;

/// Where the newest value of each changed row is.
///
/// Memory: 4 bytes per block of 384 rows, and 64 more per block that has a changed row. Several
/// layers take 8 bytes per changed row on top.
#[derive(Clone, Debug)]
pub(crate) struct LayerIndex {
    /// By block of rows: its position in `blocks`, or [`NONE`].
    positions: Vec<u32>,
    blocks: Vec<Block>,
    n_entries: u32,
    entries: Entries,
}

/// Which rows of a block have changed, and how many changed rows there are before each word.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Block {
    bits: [u64; WORDS],
    /// Before the block.
    before: u32,
    /// From the start of the block to the word.
    within: [u16; WORDS],
}

/// The places of changed rows, in the order of the rows.
#[derive(Clone, Debug)]
enum Entries {
    /// All are in this layer, whose rows they are.
    One(u32),
    /// In several layers.
    Many(Vec<Place>),
}

/// A layer, and a row of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Position in the list of layers.
    pub(crate) layer: u32,
    /// Row of the layer's file.
    pub(crate) row: RowIdx,
}

impl LayerIndex {
    /// Builds the index of layers, oldest first, each given by its position and its rows, ascending
    /// and below `n_rows`. The last layer of a row counts.
    ///
    /// # Panics
    /// When a row is not below `n_rows`.
    pub(crate) fn new<'a>(
        n_rows: u32,
        layers: impl Iterator<Item = (u32, &'a [u32])> + Clone,
    ) -> Self {
        let positions = vec![NONE; n_rows.div_ceil(BLOCK_ROWS) as usize];
        let (blocks, entries) = (Vec::new(), Entries::Many(Vec::new()));
        let mut this = Self { positions, blocks, n_entries: 0, entries };
        let mut n_blocks = 0;
        for &row in layers.clone().flat_map(|(_, rows)| rows) {
            assert!(row < n_rows, "a layer has rows of its tensor");
            let position = &mut this.positions[(row / BLOCK_ROWS) as usize];
            if *position == NONE {
                *position = n_blocks;
                n_blocks += 1;
            }
        }
        this.blocks = vec![Block::default(); n_blocks as usize];
        for &row in layers.clone().flat_map(|(_, rows)| rows) {
            let position = this.positions[(row / BLOCK_ROWS) as usize] as usize;
            this.blocks[position].bits[word_of(row)] |= 1 << (row % 64);
        }
        for block in &mut this.blocks {
            block.before = this.n_entries;
            let mut within = 0;
            for (bits, before) in block.bits.iter().zip(&mut block.within) {
                *before = within;
                within += bits.count_ones() as u16;
            }
            this.n_entries += u32::from(within);
        }
        this.entries = this.entries_of(layers);
        this
    }

    /// Returns the places of all changed rows, once the blocks are complete.
    fn entries_of<'a>(
        &self,
        mut layers: impl Iterator<Item = (u32, &'a [u32])> + Clone,
    ) -> Entries {
        let all = layers.clone();
        // One layer's rows ascend, so that its blocks and its entries do.
        if let (Some((layer, _)), None) = (layers.next(), layers.next()) {
            return Entries::One(layer);
        }
        let mut entries = vec![Place::default(); self.n_entries as usize];
        for (layer, rows) in all {
            for (&row, at) in rows.iter().zip(0..) {
                if let Some(entry) = self.entry_of(row) {
                    entries[entry] = Place { layer, row: RowIdx(at) };
                }
            }
        }
        Entries::Many(entries)
    }

    /// Returns the place of the newest value of `row`; `None` where no layer has it.
    #[inline]
    pub(crate) fn place_of(&self, row: RowIdx) -> Option<Place> {
        self.entry_of(row.0).map(|entry| self.place_at(entry))
    }

    /// Returns the number of changed rows, each counted once.
    pub(crate) fn n_rows(&self) -> u64 {
        self.n_entries.into()
    }

    /// Returns the memory of the index.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        let entries = match &self.entries {
            Entries::One(_) => 0,
            Entries::Many(places) => places.len() * size_of::<Place>(),
        };
        self.positions.len() * size_of::<u32>() + self.blocks.len() * size_of::<Block>() + entries
    }

    #[inline]
    fn block_of(&self, row: u32) -> Option<&Block> {
        let position = *self.positions.get((row / BLOCK_ROWS) as usize)?;
        (position != NONE).then(|| &self.blocks[position as usize])
    }

    #[inline]
    fn entry_of(&self, row: u32) -> Option<usize> {
        let block = self.block_of(row)?;
        let (bits, bit) = (block.bits[word_of(row)], 1 << (row % 64));
        let before = block.before + u32::from(block.within[word_of(row)]);
        (bits & bit != 0).then(|| before as usize + (bits & (bit - 1)).count_ones() as usize)
    }

    #[inline]
    fn place_at(&self, entry: usize) -> Place {
        match &self.entries {
            Entries::One(layer) => Place { layer: *layer, row: RowIdx(entry as u32) },
            Entries::Many(places) => places[entry],
        }
    }
}

/// Returns the position of a row's word in its block.
#[inline]
fn word_of(row: u32) -> usize {
    (row % BLOCK_ROWS / 64) as usize
}

/// A look-up of a row's place in steps, between which other work hides the waits for memory.
pub(crate) trait Finder {
    /// Requests the memory that [`Finder::entry`] reads.
    fn prefetch(&self, row: RowIdx);

    /// Returns the row's entry, and requests the memory that [`Finder::place`] reads.
    fn entry(&self, row: RowIdx) -> u32;

    /// Returns the place of the row with this entry.
    fn place(&self, row: RowIdx, entry: u32) -> Place;
}

impl Finder for LayerIndex {
    #[inline]
    fn prefetch(&self, row: RowIdx) {
        if let Some(block) = self.block_of(row.0) {
            prefetch(block);
        }
    }

    /// Returns the position of a row's entry; `u32::MAX` for a row that no layer has.
    #[inline]
    fn entry(&self, row: RowIdx) -> u32 {
        let Some(entry) = self.entry_of(row.0) else { return u32::MAX };
        if let Entries::Many(places) = &self.entries {
            prefetch(&places[entry]);
        }
        entry as u32
    }

    #[inline]
    fn place(&self, row: RowIdx, entry: u32) -> Place {
        if entry == u32::MAX { Place { layer: 0, row } } else { self.place_at(entry as usize) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// The twin: a map from rows to places, filled layer after layer.
        #[test]
        fn agrees_with_a_map(
            n_rows in prop_oneof![1u32..70, 2000u32..2100, 1u32..20_000],
            picks in prop::collection::vec(
                prop::collection::vec(any::<prop::sample::Index>(), 0..200), 0..6),
        ) {
            let layers: Vec<Vec<u32>> = picks
                .iter()
                .map(|rows| {
                    let mut rows: Vec<u32> =
                        rows.iter().map(|row| row.index(n_rows as usize) as u32).collect();
                    rows.sort_unstable();
                    rows.dedup();
                    rows
                })
                .collect();
            let mut twin = BTreeMap::new();
            for (rows, layer) in layers.iter().zip(1..) {
                let places = rows.iter().zip(0..);
                twin.extend(places.map(|(&row, at)| (row, Place { layer, row: RowIdx(at) })));
            }
            let index = LayerIndex::new(n_rows, (1..).zip(layers.iter().map(Vec::as_slice)));
            for row in 0..n_rows + 3000 {
                prop_assert_eq!(index.place_of(RowIdx(row)), twin.get(&row).copied(), "{}", row);
            }
            prop_assert_eq!(index.n_rows(), twin.len() as u64);
        }
    }

    #[test]
    fn untouched_blocks_take_a_word() {
        let layers = [(1, &[5u32, 383][..]), (2, &[5])];
        let one = LayerIndex::new(1 << 20, layers[..1].iter().copied());
        let n_blocks = (1usize << 20).div_ceil(384);
        assert_eq!(one.bytes(), n_blocks * 4 + 64);
        let both = LayerIndex::new(1 << 20, layers.into_iter());
        assert_eq!(both.bytes(), n_blocks * 4 + 64 + 2 * size_of::<Place>());
    }
}
