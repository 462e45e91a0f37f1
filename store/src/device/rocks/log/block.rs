//! One block of a log or a manifest: records, their checksums, and where they stop.

pub(super) const BLOCK_BYTES: usize = 32 << 10;

/// Checksum u32, length u16, type u8.
pub(super) const HEADER_BYTES: usize = 7;

/// Types of records: a whole one, or the first, a middle or the last part of one.
pub(super) const FULL: u8 = 1;
pub(super) const FIRST: u8 = 2;
pub(super) const LAST: u8 = 4;

/// What stands before a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Masked checksum of type and payload.
    pub(super) stored: u32,
    pub(super) length: usize,
    pub(super) kind: u8,
}

impl Header {
    /// The header that `bytes` begin with, and what follows it; `None` where they are too few.
    pub(super) fn split(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let &[a, b, c, d, low, high, kind] = header;
        let (stored, length) = (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([low, high]));
        Some((Self { stored, length: length.into(), kind }, rest))
    }

    pub(super) const fn is_zeros(self) -> bool {
        self.stored == 0 && self.length == 0 && self.kind == 0
    }

    /// Whether it is of a type that is written here.
    pub(super) fn is_known(self) -> bool {
        (FULL..=LAST).contains(&self.kind)
    }

    /// Whether a logical record begins with it.
    pub(super) fn begins(self) -> bool {
        matches!(self.kind, FULL | FIRST)
    }

    /// Whether a logical record ends with it.
    pub(super) fn ends(self) -> bool {
        matches!(self.kind, FULL | LAST)
    }

    pub(super) fn agrees(self, payload: &[u8]) -> bool {
        self.stored == masked(checksum(self.kind, payload))
    }

    /// Whether the checksum is that of a record of another length: then it was not cut off, and
    /// its length is damaged.
    pub(super) fn fits_somewhere(self, rest: &[u8]) -> bool {
        let mut crc = crc32c::crc32c(&[self.kind]);
        rest.iter().any(|&byte| {
            let fits = self.stored == masked(crc);
            crc = crc32c::crc32c_append(crc, &[byte]);
            fits
        }) || self.stored == masked(crc)
    }
}

/// What a block turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Walk {
    /// Records to its end.
    Whole,
    /// Records up to a byte, and nothing after it, or one that was cut off.
    Ends(usize),
    Damaged(usize, &'static str),
}

/// Walks a block, and tells `each` the header of every sound record and where it stands.
pub(super) fn walk(block: &[u8], mut each: impl FnMut(usize, Header)) -> Walk {
    let is_full = block.len() == BLOCK_BYTES;
    let mut at = 0;
    while let Some((header, rest)) = Header::split(&block[at..]) {
        if header.is_zeros() {
            return match is_zeros(rest) {
                true => Walk::Ends(at),
                false => Walk::Damaged(at, "zeros, and more after them"),
            };
        }
        if !header.is_known() {
            return Walk::Damaged(at, "a record of no type that is written here");
        }
        let Some(payload) = rest.get(..header.length) else {
            return match is_full || header.fits_somewhere(rest) {
                true => Walk::Damaged(at, "the length of a record is wrong"),
                false => Walk::Ends(at),
            };
        };
        if !header.agrees(payload) {
            return Walk::Damaged(at, "a record does not agree with its checksum");
        }
        each(at, header);
        at += HEADER_BYTES + payload.len();
    }
    match (is_zeros(&block[at..]), is_full) {
        (_, false) => Walk::Ends(at),
        (true, true) => Walk::Whole,
        (false, true) => Walk::Damaged(at, "the end of a block is not zeros"),
    }
}

pub(super) fn is_zeros(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// CRC-32C of type and payload.
pub(super) fn checksum(kind: u8, payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&[kind]), payload)
}

const MASK_DELTA: u32 = 0xa282_ead8;

/// As RocksDB stores a checksum.
pub(super) const fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(MASK_DELTA)
}

/// The checksum that is stored so.
pub(super) const fn unmasked(stored: u32) -> u32 {
    stored.wrapping_sub(MASK_DELTA).rotate_left(15)
}
