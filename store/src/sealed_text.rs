//! Texts of TOML whose first line is `checksum = "xxxxxxxx"`, the CRC-32 in hexadecimal of all
//! bytes after it. A damaged number is an error, and not another number.

use std::io;
use std::path::Path;

use serde::Deserialize;

use crate::file_system::FileSystem;

const CHECKSUM_KEY: &str = "checksum = \"";

/// Returns a text of TOML under a first line with the CRC-32 of all bytes after it.
pub(crate) fn seal_text(body: &str) -> String {
    format!("{CHECKSUM_KEY}{:08x}\"\n{body}", crc32fast::hash(body.as_bytes()))
}

/// Returns the text after a first line that vouches for it.
pub(crate) fn sealed_body(text: &str) -> Result<&str, String> {
    let not_ours = || format!("the first line must be `{CHECKSUM_KEY}xxxxxxxx\"`");
    let (line, body) = text.split_once('\n').ok_or_else(not_ours)?;
    let expected = line.strip_prefix(CHECKSUM_KEY).and_then(|rest| rest.strip_suffix('"'));
    let expected = expected.ok_or_else(not_ours)?;
    let found = crc32fast::hash(body.as_bytes());
    if format!("{found:08x}") == expected {
        return Ok(body);
    }
    let expected: String = expected.chars().take(16).collect();
    Err(format!("checksum expected {expected}, found {found:08x}"))
}

/// Returns the format of such a text.
pub(crate) fn format_version(body: &str) -> Result<u32, toml::de::Error> {
    /// The one key whose meaning no later format may change.
    #[derive(Deserialize)]
    struct Version {
        format_version: u32,
    }
    toml::from_str::<Version>(body).map(|version| version.format_version)
}

/// Reads a text; a longer file than any of ours is cut, and its checksum detects that.
pub(crate) fn read_text(fs: &dyn FileSystem, path: &Path, max_bytes: u64) -> io::Result<String> {
    let file = fs.open(path)?;
    let mut text = vec![0; file.len_bytes()?.min(max_bytes) as usize];
    file.read_exact_at(&mut text, 0)?;
    // Bytes outside UTF-8 change here, and the checksum detects that.
    Ok(String::from_utf8_lossy(&text).into_owned())
}
