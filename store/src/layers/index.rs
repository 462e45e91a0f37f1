//! Which layer has the newest value of a row: one look-up, whatever the number of layers.
//!
//! Rows are taken 2048 at a time. A stretch without changed rows is one word that says so; another
//! one has a bit for each row, and counts that turn the bit into a place in the list of entries.

use crate::row::RowIdx;

const STRETCH_ROWS: u32 = 2048;
const WORDS: usize = STRETCH_ROWS as usize / 64;
/// The stretch has no changed rows.
const NONE: u32 = u32::MAX;

/// Where the newest value of each changed row is.
///
/// Memory: 8 bytes per changed row, 384 bytes per stretch of 2048 rows that has one, and 4 bytes
/// per stretch.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerIndex {
    /// By stretch: its place in `words`, counted in stretches, or [`NONE`].
    stretches: Vec<u32>,
    words: Vec<Word>,
    entries: Vec<Place>,
}

/// 64 rows: which have changed, and how many changed rows there are before them.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    bits: u64,
    before: u32,
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
    /// Builds the index of layers, oldest first, each given by its position and its rows,
    /// ascending and below `n_rows`. Of a row in several layers the last one counts.
    ///
    /// # Panics
    /// When a row is not below `n_rows`.
    pub(crate) fn new<'a>(
        n_rows: u32,
        layers: impl Iterator<Item = (u32, &'a [u32])> + Clone,
    ) -> Self {
        let n_stretches = n_rows.div_ceil(STRETCH_ROWS) as usize;
        let mut this = Self { stretches: vec![NONE; n_stretches], ..Self::default() };
        let mut n_touched = 0;
        for &row in layers.clone().flat_map(|(_, rows)| rows) {
            assert!(row < n_rows, "a layer has rows of its tensor");
            let stretch = &mut this.stretches[(row / STRETCH_ROWS) as usize];
            if *stretch == NONE {
                *stretch = n_touched;
                n_touched += 1;
            }
        }
        this.words = vec![Word::default(); n_touched as usize * WORDS];
        for &row in layers.clone().flat_map(|(_, rows)| rows) {
            let word = this.word_of(row).unwrap_or_default();
            this.words[word].bits |= 1 << (row % 64);
        }
        let mut before = 0;
        for word in &mut this.words {
            word.before = before;
            before += word.bits.count_ones();
        }
        this.entries = vec![Place::default(); before as usize];
        for (layer, rows) in layers {
            for (&row, at) in rows.iter().zip(0..) {
                if let Some(entry) = this.entry_of(row) {
                    this.entries[entry] = Place { layer, row: RowIdx(at) };
                }
            }
        }
        this
    }

    /// The place of the newest value of `row`; `None` where no layer has it.
    #[inline]
    pub(crate) fn place_of(&self, row: RowIdx) -> Option<Place> {
        self.entry_of(row.0).map(|entry| self.entries[entry])
    }

    /// Number of changed rows, each counted once.
    pub(crate) fn n_rows(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Memory of the index.
    pub(crate) fn bytes(&self) -> usize {
        self.stretches.len() * size_of::<u32>()
            + self.words.len() * size_of::<Word>()
            + self.entries.len() * size_of::<Place>()
    }

    #[inline]
    fn word_of(&self, row: u32) -> Option<usize> {
        let stretch = *self.stretches.get((row / STRETCH_ROWS) as usize)?;
        let word = || stretch as usize * WORDS + (row % STRETCH_ROWS / 64) as usize;
        (stretch != NONE).then(word)
    }

    #[inline]
    fn entry_of(&self, row: u32) -> Option<usize> {
        let Word { bits, before } = self.words[self.word_of(row)?];
        let bit = 1 << (row % 64);
        (bits & bit != 0).then(|| before as usize + (bits & (bit - 1)).count_ones() as usize)
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
    fn untouched_stretches_take_a_word() {
        let index = LayerIndex::new(1 << 20, [(1, &[5u32, 2047][..])].into_iter());
        assert_eq!(index.bytes(), 512 * 4 + WORDS * size_of::<Word>() + 2 * size_of::<Place>());
        assert_eq!((size_of::<Word>(), size_of::<Place>()), (16, 8));
    }
}
