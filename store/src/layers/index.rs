//! Which layer has the newest value of a row: one look-up, whatever the number of layers.
//!
//! Rows are taken 6,144 at a time. Such a group without changed rows is a null pointer. Another one
//! has 16 blocks of 384 rows. A block is a cache line, found without another look: a bit for each
//! row, and counts that turn the bit into a position among the entries of the group.
//!
//! Nothing changes a group: versions of a tensor share all groups but those that a commit or a fold
//! between them has touched. So what a commit costs depends on the rows that it changes, and not on
//! those that were changed before.

use std::sync::Arc;

use lodestore_graph::prefetch::prefetch;

use crate::row::RowIdx;

const WORDS: usize = 6;
const BLOCK_ROWS: u32 = 64 * WORDS as u32;
const BLOCKS: usize = 16;
const GROUP_ROWS: u32 = BLOCK_ROWS * BLOCKS as u32;

/// Where the newest value of each changed row is.
///
/// Memory: 8 bytes per group of 6,144 rows, and 1,152 more per group that has a changed row. Groups
/// with rows of several layers take 8 bytes per changed row on top.
#[derive(Clone, Debug)]
pub(crate) struct LayerIndex {
    groups: Box<[Option<Arc<Group>>]>,
    n_rows: u64,
}

/// Changed rows of neighbouring blocks.
#[derive(Debug)]
#[repr(align(64))]
struct Group {
    blocks: [Block; BLOCKS],
    entries: Entries,
}

/// Which rows of a block have changed, and how many changed rows of the group are before each word.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Block {
    bits: [u64; WORDS],
    before: [u16; WORDS],
}

/// The places of the changed rows of a group, in the order of the rows.
#[derive(Debug)]
enum Entries {
    /// All are in this layer, whose rows from `first` on they are.
    One { layer: u32, first: u32 },
    /// In several layers.
    Many(Box<[Place]>),
}

/// A layer, and a row of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Position in the list of layers.
    pub(crate) layer: u32,
    /// Row of the layer's file.
    pub(crate) row: RowIdx,
}

/// Rows of a layer that are in one group.
#[derive(Clone, Copy, Debug)]
struct Piece<'a> {
    group: u32,
    /// Position of the layer in the list of layers.
    layer: u32,
    /// Position of the first of the rows in the layer's file.
    first: u32,
    rows: &'a [u32],
}

impl LayerIndex {
    /// Builds the index of deltas, oldest first, each given by its rows, ascending and below
    /// `n_rows`. The first of them has position 1 in the list of layers. The last delta of a row
    /// counts.
    ///
    /// # Panics
    /// When a row is not below `n_rows`.
    pub(crate) fn new(n_rows: u32, deltas: &[&[u32]]) -> Self {
        let groups = vec![None; n_rows.div_ceil(GROUP_ROWS) as usize];
        let empty = Self { groups: groups.into(), n_rows: 0 };
        empty.switched(0, &[], deltas)
    }

    /// Returns the index of the deltas `to`, where this one is of the deltas `from`, and the first
    /// `n_same` of both are the same. It shares all groups that no other delta has rows of.
    ///
    /// # Panics
    /// When a row is not below the number of rows that the index was made for.
    pub(crate) fn switched(&self, n_same: usize, from: &[&[u32]], to: &[&[u32]]) -> Self {
        let mut this = self.clone();
        let mut scratch = Scratch::default();
        let mut rebuilt = Vec::new();
        for rows in &from[n_same..] {
            rebuilt.extend(pieces_of(0, rows).map(|piece| piece.group));
        }
        rebuilt.sort_unstable();
        rebuilt.dedup();
        for &group in &rebuilt {
            // It does not know which rows are below those of a delta that is not there any more.
            for (rows, layer) in to.iter().zip(1..) {
                scratch.add(piece_in(group, layer, rows));
            }
            this.set_group(group, scratch.take_group());
        }
        let mut added = Vec::new();
        for (rows, layer) in to.iter().zip(1..).skip(n_same) {
            added.extend(pieces_of(layer, rows));
        }
        // The sort is stable: the newest delta of a group comes last.
        added.sort_by_key(|piece| piece.group);
        for pieces in added.chunk_by(|a, b| a.group == b.group) {
            let group = pieces[0].group;
            if rebuilt.binary_search(&group).is_ok() {
                continue;
            }
            if let Some(before) = &this.groups[group as usize] {
                scratch.start_from(before);
            }
            for &piece in pieces {
                scratch.add(piece);
            }
            this.set_group(group, scratch.take_group());
        }
        this
    }

    fn set_group(&mut self, group: u32, changed: Option<Group>) {
        let place = &mut self.groups[group as usize];
        let n_before = place.as_ref().map_or(0, |group| group.n_rows());
        let n_after = changed.as_ref().map_or(0, Group::n_rows);
        *place = changed.map(Arc::new);
        self.n_rows = self.n_rows - n_before + n_after;
    }

    /// Returns the place of the newest value of `row`; `None` where no layer has it.
    #[inline]
    pub(crate) fn place_of(&self, row: RowIdx) -> Option<Place> {
        let group = self.group_of(row.0)?;
        group.entry_of(row.0).map(|entry| group.place_at(entry))
    }

    /// Returns the number of changed rows, each counted once.
    pub(crate) fn n_rows(&self) -> u64 {
        self.n_rows
    }

    /// Returns the memory of the index.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        let mut bytes = size_of_val(&*self.groups);
        for group in self.groups.iter().flatten() {
            // The counts of the pointer take a line of their own.
            bytes += align_of::<Group>() + size_of::<Group>();
            if let Entries::Many(places) = &group.entries {
                bytes += size_of_val(&**places);
            }
        }
        bytes
    }

    /// Returns the number of groups that this index does not share with `other`.
    #[cfg(test)]
    fn n_not_shared_with(&self, other: &Self) -> usize {
        let pairs = self.groups.iter().zip(&other.groups);
        let differ = pairs.filter(|(a, b)| match (a, b) {
            (Some(a), Some(b)) => !Arc::ptr_eq(a, b),
            (a, b) => a.is_some() || b.is_some(),
        });
        differ.count()
    }

    #[inline]
    fn group_of(&self, row: u32) -> Option<&Group> {
        self.groups.get((row / GROUP_ROWS) as usize)?.as_deref()
    }
}

impl Group {
    #[inline]
    fn block_of(&self, row: u32) -> &Block {
        &self.blocks[(row % GROUP_ROWS / BLOCK_ROWS) as usize]
    }

    #[inline]
    fn entry_of(&self, row: u32) -> Option<usize> {
        let block = self.block_of(row);
        let bits = block.bits[word_of(row)];
        let bit = 1 << (row % 64);
        let before = usize::from(block.before[word_of(row)]);
        (bits & bit != 0).then(|| before + (bits & (bit - 1)).count_ones() as usize)
    }

    #[inline]
    fn place_at(&self, entry: usize) -> Place {
        match &self.entries {
            Entries::One { layer, first } => {
                Place { layer: *layer, row: RowIdx(first + entry as u32) }
            }
            Entries::Many(places) => places[entry],
        }
    }

    fn n_rows(&self) -> u64 {
        let bits = self.blocks.iter().flat_map(|block| block.bits);
        bits.map(|bits| u64::from(bits.count_ones())).sum()
    }
}

/// A group while it is made.
#[derive(Debug)]
struct Scratch {
    bits: [u64; WORDS * BLOCKS],
    /// By row of the group; what it has for other rows than those of `bits` counts for nothing.
    places: Box<[Place]>,
    /// The layer that has all rows so far, with the position of the first in its file.
    one: Option<(u32, u32)>,
}

impl Default for Scratch {
    fn default() -> Self {
        let places = vec![Place::default(); GROUP_ROWS as usize].into();
        Self { bits: [0; WORDS * BLOCKS], places, one: None }
    }
}

impl Scratch {
    fn is_empty(&self) -> bool {
        self.bits.iter().all(|bits| *bits == 0)
    }

    /// Takes the rows of a group, as the first ones.
    fn start_from(&mut self, group: &Group) {
        let mut n_done = 0;
        let words = group.blocks.iter().flat_map(|block| block.bits);
        for (at, bits) in words.enumerate() {
            self.bits[at] = bits;
            for row in ones(at, bits) {
                self.places[row] = group.place_at(n_done);
                n_done += 1;
            }
        }
    }

    /// Puts the rows of a newer layer over those so far.
    fn add(&mut self, piece: Piece<'_>) {
        if piece.rows.is_empty() {
            return;
        }
        self.one = self.is_empty().then_some((piece.layer, piece.first));
        for (&row, at) in piece.rows.iter().zip(piece.first..) {
            let row = (row - piece.group * GROUP_ROWS) as usize;
            self.bits[row / 64] |= 1 << (row % 64);
            self.places[row] = Place { layer: piece.layer, row: RowIdx(at) };
        }
    }

    /// Returns the group, and is empty again; `None` where there are no rows.
    fn take_group(&mut self) -> Option<Group> {
        let mut blocks = [Block::default(); BLOCKS];
        let mut n_before = 0;
        for (block, words) in blocks.iter_mut().zip(self.bits.chunks_exact(WORDS)) {
            block.bits.copy_from_slice(words);
            for (before, bits) in block.before.iter_mut().zip(words) {
                *before = n_before;
                n_before += bits.count_ones() as u16;
            }
        }
        let entries = match self.one {
            Some((layer, first)) => Entries::One { layer, first },
            None => {
                let mut places = Vec::with_capacity(n_before.into());
                for (at, &bits) in self.bits.iter().enumerate() {
                    places.extend(ones(at, bits).map(|row| self.places[row]));
                }
                Entries::Many(places.into())
            }
        };
        self.bits.fill(0);
        self.one = None;
        (n_before > 0).then_some(Group { blocks, entries })
    }
}

/// Returns the rows of a group whose bits are set in its word `at`.
fn ones(at: usize, mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(at * 64 + bit)
    })
}

/// Separates the rows of a layer, ascending, at the groups.
fn pieces_of(layer: u32, rows: &[u32]) -> impl Iterator<Item = Piece<'_>> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let rest = &rows[first..];
        let group = rest.first()? / GROUP_ROWS;
        let n_rows = rest.partition_point(|row| row / GROUP_ROWS == group);
        let piece = Piece { group, layer, first: first as u32, rows: &rest[..n_rows] };
        first += n_rows;
        Some(piece)
    })
}

/// Returns the rows of a layer, ascending, that are in a group.
fn piece_in(group: u32, layer: u32, rows: &[u32]) -> Piece<'_> {
    let first = rows.partition_point(|row| row / GROUP_ROWS < group);
    let n_rows = rows[first..].partition_point(|row| row / GROUP_ROWS == group);
    Piece { group, layer, first: first as u32, rows: &rows[first..first + n_rows] }
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
        if let Some(group) = self.group_of(row.0) {
            prefetch(group.block_of(row.0));
            prefetch(&group.entries);
        }
    }

    /// Returns the position of a row's entry in its group; `u32::MAX` for a row that no layer has.
    #[inline]
    fn entry(&self, row: RowIdx) -> u32 {
        let Some(group) = self.group_of(row.0) else { return u32::MAX };
        let Some(entry) = group.entry_of(row.0) else { return u32::MAX };
        if let Entries::Many(places) = &group.entries {
            prefetch(&places[entry]);
        }
        entry as u32
    }

    #[inline]
    fn place(&self, row: RowIdx, entry: u32) -> Place {
        match self.group_of(row.0) {
            Some(group) if entry != u32::MAX => group.place_at(entry as usize),
            _ => Place { layer: 0, row },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn lists(layers: &[Vec<u32>]) -> Vec<&[u32]> {
        layers.iter().map(Vec::as_slice).collect()
    }

    /// The twin: a map from rows to places, filled layer after layer.
    fn twin_of(layers: &[Vec<u32>]) -> BTreeMap<u32, Place> {
        let mut twin = BTreeMap::new();
        for (rows, layer) in layers.iter().zip(1..) {
            let places = rows.iter().zip(0..);
            twin.extend(places.map(|(&row, at)| (row, Place { layer, row: RowIdx(at) })));
        }
        twin
    }

    fn check(index: &LayerIndex, n_rows: u32, layers: &[Vec<u32>]) -> Result<(), TestCaseError> {
        let twin = twin_of(layers);
        for row in (0..n_rows + 7000).map(RowIdx) {
            let expected = twin.get(&row.0).copied();
            prop_assert_eq!(index.place_of(row), expected, "{}", row);
            let found = index.place(row, index.entry(row));
            prop_assert_eq!(found, expected.unwrap_or(Place { layer: 0, row }), "{}", row);
        }
        prop_assert_eq!(index.n_rows(), twin.len() as u64);
        Ok(())
    }

    /// What becomes of the layers of a tensor.
    #[derive(Clone, Debug)]
    enum Change {
        /// A commit of rows near each other, or of any.
        Commit { near: bool, rows: Vec<prop::sample::Index> },
        /// Neighbours become one.
        Fold(prop::sample::Index, prop::sample::Index),
        /// The oldest are in the segment.
        Rebase(prop::sample::Index),
        /// The newest are left out: an earlier version.
        Back(prop::sample::Index),
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let index = any::<prop::sample::Index>;
        let rows = prop::collection::vec(index(), 0..150);
        let change = prop_oneof![
            5 => (any::<bool>(), rows).prop_map(|(near, rows)| Change::Commit { near, rows }),
            2 => (index(), index()).prop_map(|(first, last)| Change::Fold(first, last)),
            1 => index().prop_map(Change::Rebase),
            1 => index().prop_map(Change::Back),
        ];
        prop::collection::vec(change, 1..12)
    }

    fn changed(n_rows: u32, layers: &[Vec<u32>], change: Change) -> Vec<Vec<u32>> {
        let mut layers = layers.to_vec();
        match change {
            Change::Commit { near, rows } => {
                let among = if near { n_rows.min(300) } else { n_rows };
                let rows = rows.iter().map(|row| row.index(among as usize) as u32);
                let mut rows: Vec<u32> = rows.collect();
                rows.sort_unstable();
                rows.dedup();
                layers.push(rows);
            }
            Change::Fold(..) | Change::Rebase(_) | Change::Back(_) if layers.is_empty() => {}
            Change::Fold(first, last) => {
                let first = first.index(layers.len());
                let last = first + last.index(layers.len() - first);
                let mut folded: Vec<u32> = layers.drain(first..=last).flatten().collect();
                folded.sort_unstable();
                folded.dedup();
                layers.insert(first, folded);
            }
            Change::Rebase(last) => drop(layers.drain(..=last.index(layers.len()))),
            Change::Back(last) => layers.truncate(last.index(layers.len())),
        }
        layers
    }

    fn n_same(before: &[Vec<u32>], after: &[Vec<u32>]) -> usize {
        before.iter().zip(after).take_while(|(before, after)| before == after).count()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn agrees_with_a_map(
            n_rows in prop_oneof![1u32..70, 6000u32..6300, 1u32..20_000],
            changes in changes(),
        ) {
            let mut layers = Vec::new();
            let mut index = LayerIndex::new(n_rows, &[]);
            for change in changes {
                let after = changed(n_rows, &layers, change);
                let n_same = n_same(&layers, &after);
                index = index.switched(n_same, &lists(&layers), &lists(&after));
                layers = after;
            }
            check(&index, n_rows, &layers)?;
            check(&LayerIndex::new(n_rows, &lists(&layers)), n_rows, &layers)?;
        }
    }

    #[test]
    fn a_commit_copies_only_the_groups_of_its_rows() {
        let n_rows = 1_000_000;
        for n_changed in [1_000, 100_000, n_rows] {
            let step = (n_rows / n_changed) as usize;
            let many: Vec<u32> = (0..n_rows).step_by(step).collect();
            let (few, one) = ([77, 5_000, 500_000], [500_001]);
            let before = LayerIndex::new(n_rows, &[&many, &few]);
            let after = before.switched(2, &[&many, &few], &[&many, &few, &one]);
            assert_eq!(after.n_not_shared_with(&before), 1, "{n_changed} rows changed before");
            // Two small deltas become one.
            let folded = [77, 5_000, 500_000, 500_001];
            let folded = after.switched(1, &[&many, &few, &one], &[&many, &folded]);
            assert_eq!(folded.n_not_shared_with(&after), 2, "{n_changed} rows changed before");
            // The earlier version.
            let back = after.switched(2, &[&many, &few, &one], &[&many, &few]);
            assert_eq!(back.n_not_shared_with(&after), 1, "{n_changed} rows changed before");
        }
    }

    #[test]
    fn untouched_groups_take_a_word() {
        let n_groups = (1usize << 20).div_ceil(6144);
        let one = LayerIndex::new(1 << 20, &[&[5, 383]]);
        assert_eq!(one.bytes(), n_groups * 8 + 1152);
        let both = LayerIndex::new(1 << 20, &[&[5, 383], &[5]]);
        assert_eq!(both.bytes(), n_groups * 8 + 1152 + 2 * size_of::<Place>());
    }
}
