//! RocksDB's logs and manifest, walked before RocksDB reads them.
//!
//! Both are rows of blocks of 32 KiB, each with whole records: masked CRC-32C of what follows the
//! length, length u16, type u8, payload; less than a header's room at the end of a block is zeros.
//! RocksDB believes lengths and types before it looks at checksums: one flipped bit can look to it
//! like a record that a crash cut off, or of a log that was used before, and all that follows is
//! dropped without a word; some make it look at the same record for ever. So RocksDB reads nothing
//! but records that are whole, of the types that we write, and as their checksums say, up to one
//! that the end of the file cuts off. Where a log is not so, it is damaged, or its last write was
//! never synced ([`torn`]): then RocksDB gets a copy that ends before it.

mod block;
mod torn;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use block::{BLOCK_BYTES, Walk, walk};

/// How the logs of a store are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Logs {
    /// RocksDB may read them.
    Sound,
    /// They end in a write that was not synced, and RocksDB must not see it.
    Torn,
}

/// Fails when the manifest or a log in `dir` is damaged.
pub(super) fn check(dir: &Path) -> io::Result<Logs> {
    check_manifest(dir)?;
    let names = log_names(dir)?;
    for (i, name) in names.iter().enumerate() {
        let Some(damage) = damage_of(&dir.join(name))? else { continue };
        if !was_never_synced(dir, name, &damage)? || has_a_record(dir, &names[i + 1..])? {
            return Err(damage.told(name));
        }
        tracing::warn!(
            "{}: the power went in the write at byte {}, which nobody was told of; it is left out",
            dir.join(name).display(),
            damage.record,
        );
        return Ok(Logs::Torn);
    }
    Ok(Logs::Sound)
}

/// Fails when the manifest that `CURRENT` names is damaged.
pub(super) fn check_manifest(dir: &Path) -> io::Result<()> {
    let current = fs::read(dir.join("CURRENT"))?;
    let name = String::from_utf8_lossy(&current);
    let name = name.trim_end_matches('\n');
    if !name.starts_with("MANIFEST-") || name.contains('/') {
        let message = format!("its file CURRENT names no manifest, but {name:?}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    match damage_of(&dir.join(name)) {
        Ok(None) => Ok(()),
        Ok(Some(damage)) => Err(damage.told(name)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let message = format!("its file CURRENT names {name}, which is not there");
            Err(io::Error::new(io::ErrorKind::InvalidData, message))
        }
        Err(error) => Err(error),
    }
}

/// Copies the logs in `dir` to `out` up to the first damage: nothing after it counts.
pub(super) fn copy_sound(dir: &Path, out: &Path) -> io::Result<()> {
    for name in log_names(dir)? {
        let damage = damage_of(&dir.join(&name))?;
        fs::copy(dir.join(&name), out.join(&name))?;
        if let Some(damage) = damage {
            let copy = File::options().write(true).open(out.join(&name))?;
            return copy.set_len(damage.record);
        }
    }
    Ok(())
}

/// Logs, the oldest first: their names are numbers of six digits or more.
fn log_names(dir: &Path) -> io::Result<Vec<String>> {
    let names = super::names(dir)?.into_iter();
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".log")).collect();
    names.sort_by(|a, b| a.len().cmp(&b.len()).then(a.cmp(b)));
    Ok(names)
}

/// Where a file stops being what was written.
#[derive(Debug, PartialEq, Eq)]
struct Damage {
    /// First byte of the logical record that it lies in; what stands before is sound.
    record: u64,
    offset_bytes: u64,
    what: &'static str,
}

impl Damage {
    fn told(&self, name: &str) -> io::Error {
        let Self { offset_bytes, what, .. } = self;
        let message = format!(
            "{name}: damaged at byte {offset_bytes}: {what}; run `lode repair` on the graph: it \
             keeps what stands before the damage, and tells what is lost"
        );
        io::Error::new(io::ErrorKind::InvalidData, message)
    }
}

/// Walks a file; one that is gone is sound, for its writer has moved its rows into tables.
fn damage_of(path: &Path) -> io::Result<Option<Damage>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_log(path) => return Ok(None),
        file => file?,
    };
    let len_bytes = file.metadata()?.len();
    // The first part of a record whose last has not come yet.
    let mut begun = None;
    let mut block = Vec::new();
    for start in (0..len_bytes).step_by(BLOCK_BYTES) {
        block.resize((len_bytes - start).min(BLOCK_BYTES as u64) as usize, 0);
        match file.read_exact_at(&mut block, start) {
            // It is being removed.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let walked = walk(&block, |at, header| match (header.begins(), header.ends()) {
            (_, true) => begun = None,
            (true, false) => begun = Some(start + at as u64),
            (false, false) => {}
        });
        let (at, what) = match walked {
            Walk::Whole => continue,
            Walk::Damaged(at, what) => (at, what),
            // From here on there must be nothing.
            Walk::Ends(_) if is_last(start, len_bytes) => return Ok(None),
            Walk::Ends(_) if all_zeros(&file, start, len_bytes)? => return Ok(None),
            Walk::Ends(at) => (at, "nothing, and more after it"),
        };
        let offset_bytes = start + at as u64;
        return Ok(Some(Damage { record: begun.unwrap_or(offset_bytes), offset_bytes, what }));
    }
    Ok(None)
}

fn is_log(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "log")
}

const fn is_last(start: u64, len_bytes: u64) -> bool {
    len_bytes - start <= BLOCK_BYTES as u64
}

/// Whether all blocks after the one at `start` are zeros.
fn all_zeros(file: &File, start: u64, len_bytes: u64) -> io::Result<bool> {
    let mut block = Vec::new();
    for start in (start..len_bytes).step_by(BLOCK_BYTES).skip(1) {
        block.resize((len_bytes - start).min(BLOCK_BYTES as u64) as usize, 0);
        file.read_exact_at(&mut block, start)?;
        if !block::is_zeros(&block) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a log's damage is of a write that nobody was told of; no more than that is read of it,
/// which its writer had in memory, too.
fn was_never_synced(dir: &Path, name: &str, damage: &Damage) -> io::Result<bool> {
    let file = File::open(dir.join(name))?;
    let start = damage.record / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    let len_bytes = file.metadata()?.len().saturating_sub(start);
    let mut tail = vec![0; usize::try_from(len_bytes).map_err(io::Error::other)?];
    file.read_exact_at(&mut tail, start)?;
    let [record, at] = [damage.record, damage.offset_bytes].map(|byte| (byte - start) as usize);
    Ok(torn::was_never_synced(&tail, record, at))
}

/// Whether a later log has anything in it: its writer had synced the earlier ones by then.
fn has_a_record(dir: &Path, later: &[String]) -> io::Result<bool> {
    for name in later {
        match File::open(dir.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            file => {
                let file = file?;
                let (mut first, len_bytes) = (vec![0; BLOCK_BYTES], file.metadata()?.len());
                let read = file.read_at(&mut first, 0)?;
                if !block::is_zeros(&first[..read]) || !all_zeros(&file, 0, len_bytes)? {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests;
