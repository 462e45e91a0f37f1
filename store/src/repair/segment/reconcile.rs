//! Which tables a damaged segment had: evidence against evidence.
//!
//! A page's checksum is known twice: from the stored table, and from the page itself. Where both
//! agree, page and entry are sound (except for one chance in 2³²). Where they differ, one of them
//! is damaged, and a witness of the whole table decides. The witness is the catalog's digest, or
//! the footer's CRC-32 where there is no catalog. Each way to choose sides is put before it, in
//! bulk for entries that were damaged together. The table that it knows is the one that was
//! written.

use crate::limits::PAGE_BYTES;

/// Entries of the table that share a sector of a disk, and so its damage.
const ENTRIES_PER_SECTOR: usize = 128;

/// Where many entries are disputed, those of a sector with up to this many are decided one by one.
const MAX_SINGLE_ENTRIES: usize = 4;

/// Most sides that are chosen on their own: 2¹² tables are put before the witness.
const MAX_CHOICES: usize = 12;

/// Most bytes of tables that are put before the witness.
const MAX_WITNESSED_BYTES: u64 = 4 << 30;

/// Remains of the tables of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remains<'a> {
    /// The stored page table as far as it is there.
    pub(super) stored: &'a [u8],
    /// Checksum of each page as it is; of zeros where the page is gone.
    pub(super) sums: &'a [u32],
    /// Padded group indexes that may be the right one; one empty one for a raw segment.
    pub(super) indexes: &'a [Vec<u8>],
}

/// Tables that may be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reconciled {
    /// Padded page table and group index.
    pub(super) tables: Vec<u8>,
    /// The witness knows them: whatever page agrees with them is what was written.
    pub(super) proven: bool,
}

/// Finds tables that `witness` knows. Without any, returns those that let pages pass which agree
/// with their stored entry, and no others. Returns `None` when there is no index to go with them.
pub(super) fn reconcile(
    remains: &Remains<'_>,
    witness: &mut dyn FnMut(&[u8]) -> bool,
) -> Option<Reconciled> {
    let stored = remains.entries();
    let choices = choices(&stored, remains.sums);
    let failing = stored.iter().zip(remains.sums).map(|(entry, sum)| entry.unwrap_or(sum ^ 1));
    let failing: Vec<Option<u32>> = failing.map(Some).collect();
    let (none, all) = (vec![false; stored.len()], vec![true; stored.len()]);
    for index in remains.indexes {
        let mut known = |stored: &[Option<u32>], from_page: &[bool]| {
            let tables = tables(stored, remains.sums, from_page, index);
            witness(&tables).then_some(tables)
        };
        // The last is the index that an earlier repair has passed to the witness.
        let simple = known(&stored, &none)
            .or_else(|| known(&stored, &all))
            .or_else(|| known(&failing, &none));
        let bytes = tables_bytes(stored.len(), index) << choices.len().min(32);
        let is_feasible = choices.len() <= MAX_CHOICES && bytes <= MAX_WITNESSED_BYTES;
        let found = simple.or_else(|| {
            let mut known = |from_page: &[bool]| known(&stored, from_page);
            is_feasible.then(|| search(&choices, stored.len(), &mut known)).flatten()
        });
        if let Some(tables) = found {
            return Some(Reconciled { tables, proven: true });
        }
    }
    let tables = tables(&failing, remains.sums, &none, remains.indexes.first()?);
    Some(Reconciled { tables, proven: false })
}

impl Remains<'_> {
    /// Returns the stored entry of each page; `None` where the table does not reach.
    fn entries(&self) -> Vec<Option<u32>> {
        let whole = self.stored.as_chunks::<4>().0.iter().map(|entry| u32::from_le_bytes(*entry));
        whole.map(Some).chain(std::iter::repeat(None)).take(self.sums.len()).collect()
    }
}

/// Returns the sets of entries for which to choose between the table and the pages. Each entry is a
/// set where they are few, in all or in their sector. Otherwise a sector is one set.
fn choices(stored: &[Option<u32>], sums: &[u32]) -> Vec<Vec<usize>> {
    let differ = |&i: &usize| stored[i].is_some_and(|entry| entry != sums[i]);
    let disputed: Vec<usize> = (0..sums.len()).filter(differ).collect();
    let are_few = disputed.len() <= MAX_CHOICES;
    let mut choices = Vec::new();
    for sector in disputed.chunk_by(|a, b| a / ENTRIES_PER_SECTOR == b / ENTRIES_PER_SECTOR) {
        if are_few || sector.len() <= MAX_SINGLE_ENTRIES {
            choices.extend(sector.iter().map(|&entry| vec![entry]));
        } else {
            choices.push(sector.to_vec());
        }
    }
    choices
}

/// Puts every way to choose before `known`, until one results in tables.
fn search(
    choices: &[Vec<usize>],
    n_pages: usize,
    known: &mut dyn FnMut(&[bool]) -> Option<Vec<u8>>,
) -> Option<Vec<u8>> {
    (0..1u32 << choices.len()).find_map(|chosen| {
        let mut from_page = vec![false; n_pages];
        let taken = choices.iter().enumerate().filter(|(i, _)| chosen >> i & 1 == 1);
        taken.flat_map(|(_, entries)| entries).for_each(|&entry| from_page[entry] = true);
        known(&from_page)
    })
}

/// Returns the padded table with each entry from the page or from the stored table, and the index.
///
/// An entry that is not stored comes from the page in any case.
fn tables(stored: &[Option<u32>], sums: &[u32], from_page: &[bool], index: &[u8]) -> Vec<u8> {
    let mut tables = Vec::with_capacity(tables_bytes(sums.len(), index) as usize);
    for ((entry, sum), from_page) in stored.iter().zip(sums).zip(from_page) {
        let chosen = entry.filter(|_| !from_page).unwrap_or(*sum);
        tables.extend_from_slice(&chosen.to_le_bytes());
    }
    tables.resize(tables.len().next_multiple_of(PAGE_BYTES as usize), 0);
    tables.extend_from_slice(index);
    tables
}

fn tables_bytes(n_pages: usize, index: &[u8]) -> u64 {
    (n_pages as u64 * 4).next_multiple_of(PAGE_BYTES) + index.len() as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Returns a table of `n` checksums.
    fn truth(n: usize) -> Vec<u32> {
        (0..n as u32).map(|i| i.wrapping_mul(0x9e37_79b9) ^ 0x1234_5678).collect()
    }

    fn bytes(entries: &[u32]) -> Vec<u8> {
        entries.iter().flat_map(|entry| entry.to_le_bytes()).collect()
    }

    /// Settles a table whose entries and pages at these places are damaged, with a witness of the
    /// truth or without.
    fn reconciled(
        n: usize,
        entries: &BTreeSet<usize>,
        pages: &BTreeSet<usize>,
        knows: bool,
    ) -> Reconciled {
        let truth = truth(n);
        let damaged = |places: &BTreeSet<usize>, mask: u32| -> Vec<u32> {
            let damage =
                |(i, entry): (usize, &u32)| entry ^ (mask * u32::from(places.contains(&i)));
            truth.iter().enumerate().map(damage).collect()
        };
        let (stored, sums) = (bytes(&damaged(entries, 0xf0)), damaged(pages, 0x0f));
        let right = tables(&vec![None; n], &truth, &vec![true; n], &[]);
        let remains = Remains { stored: &stored, sums: &sums, indexes: &[Vec::new()] };
        reconcile(&remains, &mut |tables| knows && tables == right).unwrap()
    }

    fn entry(reconciled: &Reconciled, i: usize) -> u32 {
        u32::from_le_bytes(reconciled.tables[4 * i..4 * i + 4].try_into().unwrap())
    }

    proptest! {
        #[test]
        fn what_no_place_has_lost_twice_is_proven(
            n in 1usize..300,
            entries in prop::collection::btree_set(0usize..300, 0..6),
            pages in prop::collection::btree_set(0usize..300, 0..6),
        ) {
            let entries: BTreeSet<usize> = entries.into_iter().filter(|&i| i < n).collect();
            let pages: BTreeSet<usize> =
                pages.into_iter().filter(|i| *i < n && !entries.contains(i)).collect();
            let found = reconciled(n, &entries, &pages, true);
            prop_assert!(found.proven);
            prop_assert_eq!(&found.tables[..4 * n], &bytes(&truth(n))[..]);
        }

        #[test]
        fn without_a_witness_exactly_the_undisputed_pages_pass(
            n in 1usize..300,
            entries in prop::collection::btree_set(0usize..300, 0..20),
            pages in prop::collection::btree_set(0usize..300, 0..20),
        ) {
            let found = reconciled(n, &entries, &pages, false);
            prop_assert!(!found.proven);
            for (i, truth) in truth(n).into_iter().enumerate() {
                let sum = truth ^ (0x0f * u32::from(pages.contains(&i)));
                let is_disputed = entries.contains(&i) || pages.contains(&i);
                prop_assert_eq!(entry(&found, i) == sum, !is_disputed, "page {}", i);
            }
        }
    }

    #[test]
    fn a_torn_sector_of_the_table_beside_damaged_pages_is_proven() {
        let sector: BTreeSet<usize> = (128..256).collect();
        let found = reconciled(1000, &sector, &BTreeSet::from([3, 300, 999]), true);
        assert!(found.proven);
        // Damaged twice in one place: no way to choose is right.
        assert!(!reconciled(1000, &sector, &BTreeSet::from([130]), true).proven);
        // A table that is gone is proven when all pages are sound.
        let all: BTreeSet<usize> = (0..1000).collect();
        assert!(reconciled(1000, &all, &BTreeSet::new(), true).proven);
    }

    #[test]
    fn a_cut_table_is_completed_from_the_pages_or_fails_them() {
        let truth = truth(10);
        let stored = bytes(&truth[..4]);
        let remains = Remains { stored: &stored[..15], sums: &truth, indexes: &[Vec::new()] };
        let right = tables(&[None; 10], &truth, &[true; 10], &[]);
        let found = reconcile(&remains, &mut |tables| tables == right).unwrap();
        assert_eq!(found, Reconciled { tables: right, proven: true });
        let found = reconcile(&remains, &mut |_| false).unwrap();
        let passing = (0..10).filter(|&i| entry(&found, i) == truth[i]).count();
        assert_eq!(passing, 3);
        let none = Remains { indexes: &[], ..remains };
        assert_eq!(reconcile(&none, &mut |_| true), None);
    }
}
