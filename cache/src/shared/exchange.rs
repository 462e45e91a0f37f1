//! A shared tier under a device's that has no row which the device has.

use crate::aged::Evicted;
use crate::arena::check_rows;
use crate::directory::Placement;

use super::{BatchAccess, Decisions, SharedTier};

/// Actions of the tier above for a batch.
#[derive(Clone, Copy)]
pub(crate) struct Above<'a> {
    /// Whether the row of each position of the batch is above from here on.
    pub(crate) has: &'a [bool],
    /// Rows that leave it, and their bytes, back to back.
    pub(crate) evicted: &'a [Evicted],
    pub(crate) rows: &'a [u8],
    /// Removals that the tier above has applied: rows that leave it may be as they were before any
    /// other.
    pub(crate) n_removals: u64,
}

impl SharedTier {
    /// Does [`SharedTier::admit`] for a tier that shares no row with the one above. Rows that move
    /// up leave, rows that move down are offered, and then those misses that stay below. Returns
    /// how many rows moved down.
    ///
    /// # Panics
    ///
    /// Unless `ids` are those of the lookup and there is exactly one row for each, here and above.
    pub(crate) fn exchange(
        &self,
        ids: &[u32],
        rows: &[u8],
        access: &mut BatchAccess,
        above: Above<'_>,
    ) -> u64 {
        check_rows(ids.len(), self.row_bytes, rows.len());
        check_rows(above.evicted.len(), self.row_bytes, above.rows.len());
        let (mut placements, mut numbers) = (Vec::new(), Vec::new());
        let keeps = {
            let mut decisions = self.lock();
            decisions.give_up(ids, above.has);
            // What is left alone takes nothing, but what has gone up is not its own any more.
            if access.is_past {
                return 0;
            }
            if decisions.n_removals == above.n_removals {
                decisions.take_down(above.evicted, &mut placements, &mut numbers);
            }
            access.misses.retain(|&position| !above.has[position as usize]);
            decisions.keep(ids, access)
        };
        self.write(above.rows, &placements, &numbers);
        if keeps {
            self.write(rows, &access.placements, &access.numbers);
        }
        placements.len() as u64
    }
}

impl Decisions {
    /// Takes out what is above now, found or too old to be.
    fn give_up(&mut self, ids: &[u32], has: &[bool]) {
        for (id, _) in ids.iter().zip(has).filter(|(_, has)| **has) {
            self.residents.remove(&[*id]);
        }
    }

    /// Offers what leaves the tier above.
    fn take_down(
        &mut self,
        evicted: &[Evicted],
        placements: &mut Vec<Placement>,
        numbers: &mut Vec<u64>,
    ) {
        let ids: Vec<u32> = evicted.iter().map(|evicted| evicted.id).collect();
        let stamps: Vec<u32> = evicted.iter().map(|evicted| evicted.stamp).collect();
        let positions: Vec<u32> = (0..evicted.len() as u32).collect();
        self.place(&ids, &stamps, &positions, placements, numbers);
    }
}
