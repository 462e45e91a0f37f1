//! Header of a message between ranks: its tag, and the bytes that follow.

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 12;

/// Tag of a fault. No message has it.
pub(crate) const FAULT: u32 = u32::MAX;

/// Tag of a notice that a rank waits. No message has it.
pub(crate) const WAITING: u32 = u32::MAX - 1;

/// Returns the bytes of a header.
pub(crate) fn encode_header(tag: u32, n_bytes: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&tag.to_le_bytes());
    header[4..].copy_from_slice(&n_bytes.to_le_bytes());
    header
}

/// Returns tag and length of a header.
pub(crate) fn decode_header(header: [u8; HEADER_BYTES]) -> (u32, u64) {
    let [a, b, c, d, n_bytes @ ..] = header;
    (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(n_bytes))
}
