//! Files of settings, which people write and which are short.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::fs::OFlags;

/// Longest file of settings.
const MOST_BYTES: u64 = 1 << 16;

/// Reads the text of a file. Fails for one that is longer than settings are, before all of it is
/// read.
pub fn read_small_file(path: &Path) -> Result<String> {
    let file = File::open(path).with_context(|| format!("{}: cannot open", path.display()))?;
    read_small(file, path)
}

/// Does as [`read_small_file`], for a file that does not have its reader wait, as a pipe does, and
/// that can be read again.
pub fn read_small_regular_file(path: &Path) -> Result<String> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = options.open(path).with_context(|| format!("{}: cannot open", path.display()))?;
    let meta = file.metadata().with_context(|| format!("{}: cannot read", path.display()))?;
    if !meta.is_file() {
        bail!("{}: not a regular file", path.display());
    }
    read_small(file, path)
}

fn read_small(file: File, path: &Path) -> Result<String> {
    let mut text = String::new();
    file.take(MOST_BYTES + 1)
        .read_to_string(&mut text)
        .with_context(|| format!("{}: cannot read", path.display()))?;
    if text.len() as u64 > MOST_BYTES {
        bail!("{}: a file of settings has at most {MOST_BYTES} bytes", path.display());
    }
    Ok(text)
}
