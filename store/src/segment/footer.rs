//! The last page of a segment: it seals the file.
//!
//! ```text
//! offset  bytes  field (little-endian)
//! 0       8      magic "LODEEND" and a zero byte
//! 8       4      CRC-32 of the padded page checksum table
//! 12      4      CRC-32 at the end of the header page
//! 16      8      offset of the page checksum table
//! 24      8      bytes of the padded table
//! 32      8      bytes of the whole file
//! 40      136    bytes 0 to 135 of the header page, for salvage
//! 176     3916   zeros
//! 4092    4      CRC-32 of bytes 0 to 4091
//! ```

use super::header::{Page, check_seal, put_u32, seal, u32_at};
use crate::layout::{PAGE_BYTES, SegmentLayout};

const MAGIC: [u8; 8] = *b"LODEEND\0";
const COPY_BYTES: usize = 136;
const COPY_OFFSET: usize = 40;

/// The footer page that seals a segment with this header and table.
pub(super) fn footer_page(header: &Page, layout: &SegmentLayout, table_crc: u32) -> Page {
    let mut page = [0u8; PAGE_BYTES as usize];
    page[0..8].copy_from_slice(&MAGIC);
    put_u32(&mut page, 8, table_crc);
    put_u32(&mut page, 12, u32_at(header, PAGE_BYTES as usize - 4));
    let lengths = [layout.table_offset(), layout.table_bytes(), layout.file_bytes()];
    for (i, value) in lengths.into_iter().enumerate() {
        page[16 + 8 * i..24 + 8 * i].copy_from_slice(&value.to_le_bytes());
    }
    page[COPY_OFFSET..COPY_OFFSET + COPY_BYTES].copy_from_slice(&header[..COPY_BYTES]);
    seal(&mut page);
    page
}

/// Checks a footer against the header that was checked before; gives the table's CRC-32.
///
/// Everything in a footer but that one number follows from the header, so the check builds the
/// footer that must stand there and compares.
pub(super) fn check_footer(
    footer: &Page,
    header: &Page,
    layout: &SegmentLayout,
) -> Result<u32, String> {
    check_seal(footer)?;
    let table_crc = u32_at(footer, 8);
    if *footer == footer_page(header, layout, table_crc) {
        return Ok(table_crc);
    }
    Err("it does not belong to this header".to_owned())
}
