//! Whether the damage of a log is a write that the power went in, and that nobody was told of.
//!
//! A write is one logical record, of many parts when it is long; RocksDB syncs it before it appends
//! the next. Until then a disk may have written its sectors in any order, and those that it has not
//! written read as zeros. So damage is such a write if
//!
//! - it lies in the last logical record: nothing sound that begins one comes after it, and nothing
//!   at all after its last part,
//! - every part that does not agree with its checksum overlaps a hole: a sector of zeros, or of the
//!   sectors that the record shares with what was synced before it, or with the end of the file,
//!   its share of them,
//! - and it is not what one flipped bit makes of a sound record, whose payload may have zeros.

use super::block::{self, BLOCK_BYTES, HEADER_BYTES, Header};

/// The unit that a disk writes whole.
pub(super) const SECTOR_BYTES: usize = 512;

/// CRC-32C's polynomial, its bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Whether the logical record at `record` of `tail`, whose first damaged part is at `at`, was never
/// synced as a whole. `tail` are the bytes of a log from the start of a block to the end.
pub(super) fn was_never_synced(tail: &[u8], record: usize, at: usize) -> bool {
    let holes = Holes { tail, record };
    let (mut at, mut flips) = (at, Vec::new());
    while at < tail.len() {
        let block_end = tail.len().min((at / BLOCK_BYTES + 1) * BLOCK_BYTES);
        at = match part(&holes, at, block_end) {
            Part::Sound { end } => end,
            Part::Torn { end, is_flip } => {
                flips.push(is_flip);
                end
            }
            Part::Last { flip } => {
                flips.extend(flip);
                break;
            }
            Part::Synced => return false,
        };
    }
    // One flipped bit damages one part. By chance it explains a torn one in some 2^-14 of cases.
    flips != [true]
}

/// What a part of the record turned out to be.
enum Part {
    /// As it was written, or the unused end of a block.
    Sound { end: usize },
    /// Not written as a whole; whether one flipped bit explains it, too.
    Torn { end: usize, is_flip: bool },
    /// The last one, sound, cut off by the end of the file, or torn as above; nothing follows.
    Last { flip: Option<bool> },
    /// This cannot be of a write that was not synced.
    Synced,
}

/// Looks at the part at `at` of a block that ends at `block_end`.
fn part(holes: &Holes<'_>, at: usize, block_end: usize) -> Part {
    let bytes = &holes.tail[at..block_end];
    let Some((header, rest)) = Header::split(bytes) else {
        return if block::is_zeros(bytes) { Part::Sound { end: block_end } } else { Part::Synced };
    };
    let is_full = block_end.is_multiple_of(BLOCK_BYTES);
    let payload = rest.get(..header.length);
    let end = at + HEADER_BYTES + header.length;
    let last = |flip| match holes.tail.get(end..).is_none_or(block::is_zeros) {
        true => Part::Last { flip },
        false => Part::Synced,
    };
    if let Some(payload) = payload
        && header.is_known()
        && header.agrees(payload)
    {
        return match (header.begins(), header.ends()) {
            (true, _) => Part::Synced,
            (false, true) => last(None),
            (false, false) => Part::Sound { end },
        };
    }
    let is_flip = payload.is_some_and(|payload| is_one_bit_off(header, payload))
        || header.fits_somewhere(rest);
    if holes.touch(at, at + HEADER_BYTES) {
        // Nobody knows where this part ends.
        let begins = |at| is_beginning(&holes.tail[at..block_end], is_full);
        return match (at + 1..block_end).any(begins) {
            true => Part::Synced,
            false => Part::Torn { end: block_end, is_flip },
        };
    }
    match payload {
        _ if !header.is_known() => Part::Synced,
        None if is_full || is_flip => Part::Synced,
        None => Part::Last { flip: None },
        Some(_) if !holes.touch(at, end) => Part::Synced,
        Some(_) if header.ends() => last(Some(is_flip)),
        // All parts but the last fill their block.
        Some(_) if block_end - end >= HEADER_BYTES => Part::Synced,
        Some(_) => Part::Torn { end, is_flip },
    }
}

/// Whether `bytes`, which go to the end of a block, begin with the sound beginning of a record.
fn is_beginning(bytes: &[u8], is_full: bool) -> bool {
    let Some((header, rest)) = Header::split(bytes) else { return false };
    let fills = || is_full && rest.len() < header.length + HEADER_BYTES;
    header.begins()
        && (header.ends() || fills())
        && rest.get(..header.length).is_some_and(|payload| header.agrees(payload))
}

/// Whether one flipped bit of type, payload or stored checksum explains that they do not agree.
fn is_one_bit_off(header: Header, payload: &[u8]) -> bool {
    let found = block::checksum(header.kind, payload);
    if (header.stored ^ block::masked(found)).is_power_of_two() {
        return true;
    }
    // A bit that is flipped n bits before the end changes the checksum by x^n.
    let (difference, mut change) = (block::unmasked(header.stored) ^ found, 1u32);
    (0..8 * (1 + payload.len())).any(|_| {
        change = change >> 1 ^ (POLYNOMIAL & (change & 1).wrapping_neg());
        change == difference
    })
}

/// Sectors that may never have been written.
struct Holes<'a> {
    tail: &'a [u8],
    /// What was synced ends here.
    record: usize,
}

impl Holes<'_> {
    /// Whether one of them has bytes of a range.
    fn touch(&self, start: usize, end: usize) -> bool {
        let (end, mut at) = (end.min(self.tail.len()), start);
        while at < end {
            let sector = at / SECTOR_BYTES * SECTOR_BYTES;
            let sector_end = (sector + SECTOR_BYTES).min(self.tail.len());
            if block::is_zeros(&self.tail[sector.max(self.record)..sector_end]) {
                return true;
            }
            at = sector + SECTOR_BYTES;
        }
        false
    }
}

#[cfg(test)]
mod tests;
