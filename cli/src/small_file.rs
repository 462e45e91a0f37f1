//! Files of settings, which people write and which are short.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// None is longer than this.
const MOST_BYTES: u64 = 1 << 16;

/// The text of a file; fails for one that is longer than settings are, before all of it is read.
pub(crate) fn read_small_file(path: &Path) -> Result<String> {
    let mut text = String::new();
    let file = File::open(path).with_context(|| format!("{}: cannot open", path.display()))?;
    file.take(MOST_BYTES + 1)
        .read_to_string(&mut text)
        .with_context(|| format!("{}: cannot read", path.display()))?;
    if text.len() as u64 > MOST_BYTES {
        bail!("{}: a file of settings has at most {MOST_BYTES} bytes", path.display());
    }
    Ok(text)
}
