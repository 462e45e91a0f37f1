//! How many rows free memory has room for (CaPGNN, section 4.2, Algorithm 1).

use crate::directory::Directory;
use crate::policy::PolicySpec;

/// Memory for a tier, and what it is for.
#[derive(Clone, Copy, Debug)]
pub struct TierSpec {
    /// Bytes that are free: [`crate::device::Device::free_bytes`] of a device, or what the system
    /// has available and its control groups allow.
    pub free_bytes: u64,
    /// Bytes of these to be left to others.
    pub reserve_bytes: u64,
    /// Bytes of a row of everything that is cached of a node: the paper's Σ f_dim\[k\] × 4, for
    /// f32.
    pub row_bytes: u64,
    /// Rows that the tier could ever be asked for. For a device these are the halo nodes H_i of its
    /// partition, for the host those of all partitions. A trainer of sampled batches also asks for
    /// rows outside the halo, any that are not its own.
    pub wanted_rows: u32,
}

impl TierSpec {
    /// Returns min(⌊(free − reserve) / row bytes⌋, wanted), as in Algorithm 1, lines 4 and 8. It is
    /// 0 when the reserve is more than what is free, and all rows when rows have no bytes.
    ///
    /// For a device, whose bookkeeping is in the host's memory.
    #[must_use]
    pub fn rows(self) -> u32 {
        let room = self.free_bytes.saturating_sub(self.reserve_bytes).checked_div(self.row_bytes);
        let rows = room.map(|rows| u32::try_from(rows).unwrap_or(u32::MAX));
        rows.map_or(self.wanted_rows, |rows| rows.min(self.wanted_rows))
    }

    /// Returns the same for a tier with rows and bookkeeping in one memory. Bookkeeping is the
    /// index, slots and policy for ids below `id_space`, and `slot_bytes` of each slot beside its
    /// row. The formula has no bookkeeping, which for rows of 16 bytes is larger than the rows.
    #[must_use]
    pub fn rows_with_bookkeeping(self, slot_bytes: usize, id_space: u32, spec: &PolicySpec) -> u32 {
        let room = self.free_bytes.saturating_sub(self.reserve_bytes);
        let slot_bytes = self.row_bytes.saturating_add(slot_bytes as u64);
        let fits = |n_slots: u32| {
            let bookkeeping = Directory::planned_bytes(n_slots, id_space, spec) as u64;
            u64::from(n_slots).saturating_mul(slot_bytes).saturating_add(bookkeeping) <= room
        };
        most(self.wanted_rows.min(id_space), fits)
    }
}

/// Returns the greatest number up to `limit` that fits, where each fits if the next one does; 0 in
/// any case.
fn most(limit: u32, fits: impl Fn(u32) -> bool) -> u32 {
    let (mut most, mut too_many) = (0, u64::from(limit) + 1);
    while u64::from(most) + 1 < too_many {
        let middle = u64::from(most).midpoint(too_many) as u32;
        if fits(middle) {
            most = middle;
        } else {
            too_many = u64::from(middle);
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    /// Reddit's features and two layers of 256, in f32.
    const ROW_BYTES: u64 = 602 * 4 + 2 * 256 * 4;

    fn room(free_bytes: u64, wanted_rows: u32) -> TierSpec {
        TierSpec { free_bytes, reserve_bytes: GIB, row_bytes: ROW_BYTES, wanted_rows }
    }

    #[test]
    fn memory_or_the_halo_is_the_limit() {
        assert_eq!(room(24 * GIB, 1000).rows(), 1000);
        assert_eq!(room(2 * GIB, 5_000_000).rows(), (GIB / ROW_BYTES) as u32);
        assert_eq!(room(GIB - 1, 9).rows(), 0, "the reserve comes first");
        assert_eq!(TierSpec { row_bytes: 0, ..room(0, 9) }.rows(), 9);
        assert_eq!(TierSpec { row_bytes: 1, ..room(u64::MAX, u32::MAX) }.rows(), u32::MAX);
    }

    #[test]
    fn bookkeeping_comes_out_of_the_same_memory() {
        let spec = PolicySpec::TinyLfu;
        for (free_bytes, wanted_rows, row_bytes) in
            [(GIB + 100_000, 1000, 16), (GIB + (1 << 22), 1 << 20, 16), (GIB + 9, 9, 4)]
        {
            let room = TierSpec { row_bytes, ..room(free_bytes, wanted_rows) };
            let rows = room.rows_with_bookkeeping(8, 1 << 20, &spec);
            let bytes = |rows: u32| {
                u64::from(rows) * (row_bytes + 8)
                    + Directory::planned_bytes(rows, 1 << 20, &spec) as u64
            };
            assert!(rows == 0 || bytes(rows) <= free_bytes - GIB);
            assert!(rows == wanted_rows || bytes(rows + 1) > free_bytes - GIB);
            assert!(rows <= room.rows());
        }
    }
}
