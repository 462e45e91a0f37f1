//! The last page of a segment: it seals the file.
//!
//! ```text
//! offset  bytes  field (little-endian)
//! 0       8      magic "LODEEND" and a zero byte
//! 8       4      CRC-32 of the tables: page checksum table, group index, row list, each padded
//! 12      4      CRC-32 at the end of the header page
//! 16      8      offset of the tables
//! 24      8      bytes of the tables
//! 32      8      bytes of the whole file
//! 40      136    bytes 0 to 135 of the header page, for salvage
//! 176     8      codec 1: bytes of all groups, without padding; codec 0: zero
//! 184     12     bytes 136 to 147 of the header page: group rows, kind, rows of the partition
//! 196     3896   zeros
//! 4092    4      CRC-32 of bytes 0 to 4091
//! ```

use super::header::{Page, check_seal, put_u32, seal, u32_at};
use crate::codec::SegmentCodec;
use crate::layout::Sections;
use crate::limits::PAGE_BYTES;

const MAGIC: [u8; 8] = *b"LODEEND\0";
const COPY_BYTES: usize = 136;
const COPY_OFFSET: usize = 40;
const DATA_BYTES_OFFSET: usize = 176;
/// Where the words after the header's copy of the name are.
const WORDS_OFFSET: usize = 184;
const WORDS_BYTES: usize = 12;

/// Returns the footer page that seals a segment with this header, these sections and these tables.
pub(super) fn footer_page(
    header: &Page,
    codec: SegmentCodec,
    sections: &Sections,
    tables_crc: u32,
) -> Page {
    let mut page = [0u8; PAGE_BYTES as usize];
    page[0..8].copy_from_slice(&MAGIC);
    put_u32(&mut page, 8, tables_crc);
    put_u32(&mut page, 12, u32_at(header, PAGE_BYTES as usize - 4));
    let lengths = [sections.table_offset(), sections.tables_bytes(), sections.file_bytes()];
    for (i, value) in lengths.into_iter().enumerate() {
        page[16 + 8 * i..24 + 8 * i].copy_from_slice(&value.to_le_bytes());
    }
    page[COPY_OFFSET..COPY_OFFSET + COPY_BYTES].copy_from_slice(&header[..COPY_BYTES]);
    if codec != SegmentCodec::Raw {
        let data_bytes = sections.data_bytes.to_le_bytes();
        page[DATA_BYTES_OFFSET..DATA_BYTES_OFFSET + 8].copy_from_slice(&data_bytes);
    }
    let words = &header[COPY_BYTES..COPY_BYTES + WORDS_BYTES];
    page[WORDS_OFFSET..WORDS_OFFSET + WORDS_BYTES].copy_from_slice(words);
    seal(&mut page);
    page
}

/// Returns the header page that a whole footer vouches for, and the bytes of all groups. Returns
/// `None` for a footer that is damaged or does not belong to its copy of the header.
pub(super) fn read_footer(footer: &Page) -> Option<(Page, u64)> {
    let data_bytes = data_bytes_of(footer).ok()?;
    if footer[0..8] != MAGIC {
        return None;
    }
    let mut header = [0u8; PAGE_BYTES as usize];
    header[..COPY_BYTES].copy_from_slice(&footer[COPY_OFFSET..COPY_OFFSET + COPY_BYTES]);
    header[COPY_BYTES..COPY_BYTES + WORDS_BYTES]
        .copy_from_slice(&footer[WORDS_OFFSET..WORDS_OFFSET + WORDS_BYTES]);
    seal(&mut header);
    let header_crc = u32_at(&header, PAGE_BYTES as usize - 4);
    (header_crc == u32_at(footer, 12)).then_some((header, data_bytes))
}

/// Returns the bytes of all groups, by a footer that was not compared with its header.
pub(super) fn data_bytes_of(footer: &Page) -> Result<u64, String> {
    check_seal(footer)?;
    let word = |offset| u64::from(u32_at(footer, offset));
    Ok(word(DATA_BYTES_OFFSET) | word(DATA_BYTES_OFFSET + 4) << 32)
}

/// Checks a footer against the header that was checked before; returns the tables' CRC-32.
///
/// Everything in a footer but that one number follows from header and sections, so the check
/// builds the footer that must stand there and compares.
pub(super) fn check_footer(
    footer: &Page,
    header: &Page,
    codec: SegmentCodec,
    sections: &Sections,
) -> Result<u32, String> {
    check_seal(footer)?;
    let tables_crc = u32_at(footer, 8);
    if *footer == footer_page(header, codec, sections, tables_crc) {
        return Ok(tables_crc);
    }
    Err("it does not belong to this header".to_owned())
}
