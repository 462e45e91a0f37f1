//! Checksums made right again, so that mutated files are not refused for them alone.

/// Bytes of a page of any file of ours.
pub const PAGE: usize = 4096;

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

pub fn put_u32(bytes: &mut [u8], at: usize, word: u32) {
    if let Some(bytes) = bytes.get_mut(at..at + 4) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

/// Seals a page that ends with the CRC-32 of its other bytes.
pub fn seal_page(page: &mut [u8]) {
    if page.len() == PAGE {
        let crc = crc32fast::hash(&page[..PAGE - 4]);
        put_u32(page, PAGE - 4, crc);
    }
}

/// Returns the cRC-32 of some bytes, started from another.
pub fn crc_from(start: u32, parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(start);
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}
