//! A map in a file: one address on a line; empty lines and what follows `#` do not count.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::{MAP_BYTES_MAX, Member};
use crate::address::Address;
use crate::error::ClientError;

/// Reads the file as it is now.
pub(super) fn read(path: &Path) -> Result<Vec<Member>, ClientError> {
    let failed = |reason: String| ClientError::Map { map: path.display().to_string(), reason };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    let read = file.take(MAP_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| failed(error.to_string()))?;
    if bytes.len() as u64 > MAP_BYTES_MAX {
        return Err(failed(format!("a map has at most {MAP_BYTES_MAX} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| failed("it is no UTF-8".to_owned()))?;
    let mut members = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let address = line.split('#').next().unwrap_or_default().trim();
        if address.is_empty() {
            continue;
        }
        let address: Address =
            address.parse().map_err(|error| failed(format!("line {number}: {error}")))?;
        members.push(Member::at(address));
    }
    Ok(members)
}
