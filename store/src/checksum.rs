//! Page checksums that also know where the page belongs.

use uuid::Uuid;

/// CRC-32 of pages, seeded with the segment and the page's place in it.
///
/// The seed of page `k` is the CRC-32 of the segment's uuid followed by `k` as a little-endian
/// `u64`. CRC-32 is linear and its register is never lost, so two different seeds always give
/// different checksums of the same bytes. The seeds of two pages of one segment differ whenever
/// their numbers differ in one 32-bit burst, that is for all segments below 16 TiB. A page in the
/// wrong place therefore always fails, and one of another segment fails but for one chance in 2³².
#[derive(Clone, Debug)]
pub(crate) struct PageChecksum {
    of_segment: crc32fast::Hasher,
}

impl PageChecksum {
    pub(crate) fn new(segment: Uuid) -> Self {
        let mut of_segment = crc32fast::Hasher::new();
        of_segment.update(segment.as_bytes());
        Self { of_segment }
    }

    /// Returns the checksum of page `page` before its first byte.
    pub(crate) fn begin(&self, page: u64) -> crc32fast::Hasher {
        let mut seed = self.of_segment.clone();
        seed.update(&page.to_le_bytes());
        crc32fast::Hasher::new_with_initial(seed.finalize())
    }

    /// Returns the checksum of the bytes of page `page`.
    pub(crate) fn of(&self, page: u64, bytes: &[u8]) -> u32 {
        let mut hasher = self.begin(page);
        hasher.update(bytes);
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_bytes_differ_in_every_place() {
        let checksum = PageChecksum::new(Uuid::from_u128(7));
        let page = [0u8; 4096];
        let mut seen: Vec<u32> = (0..4096).map(|k| checksum.of(k, &page)).collect();
        assert!(!seen.contains(&0), "a page of zeros must not pass with a checksum of zero");
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 4096);
        assert_ne!(checksum.of(0, &page), PageChecksum::new(Uuid::from_u128(8)).of(0, &page));
    }

    #[test]
    fn every_single_bit_counts() {
        let checksum = PageChecksum::new(Uuid::from_u128(7));
        let mut page = [0x5au8; 4096];
        let good = checksum.of(3, &page);
        for bit in 0..page.len() * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum.of(3, &page), good, "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
