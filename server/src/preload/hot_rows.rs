//! Saved hot rows: the rows of a partition that were resident when a server stopped, in a file.
//!
//! Integers are little-endian. Rows are numbers in their partition, hottest first.
//!
//! ```text
//! "lodehot\0" | format u32 | graph uuid 16 | partition u32 | tensors u32
//! for each tensor: bytes of its name u32 | name | rows u32 | each row u32
//! crc32 of all before u32
//! ```
//!
//! The file only tells which rows to read first and has no row data, so a wrong file costs time.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use lodestore_graph::PartId;
use lodestore_store::file_system::FileSystem;
use lodestore_store::limits::{MAX_TENSOR_NAME_BYTES, MAX_TENSORS};
use thiserror::Error;

const MAGIC: &[u8; 8] = b"lodehot\0";
const FORMAT: u32 = 1;
/// Bytes before the first tensor and after the last one.
const HEAD_BYTES: usize = 36;
const CHECKSUM_BYTES: usize = 4;

/// Rows of each tensor, by tensor name.
pub(super) type HotRows = BTreeMap<String, Vec<u32>>;

/// The partition that a file belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) graph: [u8; 16],
    pub(super) part: PartId,
    pub(super) n_rows: u32,
}

/// Why a file is ignored.
#[derive(Debug, Error)]
pub(super) enum HotRowsError {
    #[error("{}: cannot read: {source}", file.display())]
    Io { file: PathBuf, source: io::Error },
    #[error("{}: damaged: {reason}; remove the file, the next clean stop writes a new one", file.display())]
    Damaged { file: PathBuf, reason: String },
    #[error("{}: expected {field} {expected}, found {found}; remove the file, or choose another \
             state folder", file.display())]
    Foreign { file: PathBuf, field: &'static str, expected: String, found: String },
}

impl Owner {
    fn file(&self, dir: &Path) -> PathBuf {
        dir.join(format!("part-{:03}.hot", self.part.0))
    }

    /// Returns the size of a file that lists every row for the maximum number of tensors.
    fn bytes_max(&self) -> u64 {
        let tensor = 8 + MAX_TENSOR_NAME_BYTES as u64 + 4 * u64::from(self.n_rows);
        (HEAD_BYTES + CHECKSUM_BYTES) as u64 + MAX_TENSORS as u64 * tensor
    }
}

/// Writes the file of a partition. After a crash either the old file or the new one is there.
pub(super) fn write(
    fs: &dyn FileSystem,
    dir: &Path,
    owner: Owner,
    rows: &HotRows,
) -> io::Result<()> {
    if !fs.exists(dir) {
        fs.create_dir(dir)?;
        dir.parent().map_or(Ok(()), |parent| fs.sync(parent))?;
    }
    let path = owner.file(dir);
    let temporary = path.with_extension(format!("{}.tmp", uuid::Uuid::new_v4()));
    let write = || {
        let mut file = fs.create(&temporary)?;
        file.append(&encode(owner, rows))?;
        file.sync()?;
        fs.replace(&temporary, &path)?;
        fs.sync(dir)
    };
    write().inspect_err(|_| {
        // The file may not exist, or may already be renamed.
        let _ = fs.remove_file(&temporary);
    })
}

/// Reads the file of a partition; `None` if there is none.
pub(super) fn read(
    fs: &dyn FileSystem,
    dir: &Path,
    owner: Owner,
) -> Result<Option<HotRows>, HotRowsError> {
    let path = owner.file(dir);
    let refused = |source| HotRowsError::Io { file: path.clone(), source };
    let file = match fs.open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(refused)?,
    };
    let n_bytes = file.len_bytes().map_err(refused)?;
    if n_bytes > owner.bytes_max() {
        let reason = format!("found {n_bytes} bytes, the limit is {}", owner.bytes_max());
        return Err(HotRowsError::Damaged { file: path, reason });
    }
    let mut bytes = vec![0; usize::try_from(n_bytes).unwrap_or(0)];
    file.read_exact_at(&mut bytes, 0).map_err(refused)?;
    decode(&path, owner, &bytes).map(Some)
}

fn encode(owner: Owner, rows: &HotRows) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&owner.graph);
    bytes.extend_from_slice(&u32::from(owner.part.0).to_le_bytes());
    push_len(&mut bytes, rows.len());
    for (name, rows) in rows {
        push_len(&mut bytes, name.len());
        bytes.extend_from_slice(name.as_bytes());
        push_len(&mut bytes, rows.len());
        rows.iter().for_each(|row| bytes.extend_from_slice(&row.to_le_bytes()));
    }
    let checksum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Appends a length (of tensors, a name, or rows of a partition), all below 2^32.
fn push_len(bytes: &mut Vec<u8>, len: usize) {
    bytes.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
}

fn decode(path: &Path, owner: Owner, bytes: &[u8]) -> Result<HotRows, HotRowsError> {
    let damaged = |reason: String| HotRowsError::Damaged { file: path.to_owned(), reason };
    let foreign = |field, expected: String, found: String| HotRowsError::Foreign {
        file: path.to_owned(),
        field,
        expected,
        found,
    };
    let mut rest = Fields(bytes);
    if rest.take(MAGIC.len()) != Some(MAGIC) {
        return Err(damaged("wrong magic number".to_owned()));
    }
    // Checked before the checksum, which another format may place elsewhere.
    let short = || damaged(format!("{} bytes are too few", bytes.len()));
    let format = rest.u32().ok_or_else(short)?;
    if format != FORMAT {
        return Err(foreign("format", FORMAT.to_string(), format.to_string()));
    }
    let Some((body, checksum)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
        return Err(short());
    };
    let (expected, found) = (u32::from_le_bytes(*checksum), crc32fast::hash(body));
    if expected != found {
        return Err(damaged(format!("expected checksum {expected:#010x}, found {found:#010x}")));
    }
    let mut rest = Fields(body.get(MAGIC.len() + 4..).unwrap_or_default());
    let graph = rest.take(16).ok_or_else(short)?;
    if graph != owner.graph {
        let name = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        return Err(foreign("graph", name(&owner.graph), name(graph)));
    }
    let part = rest.u32().ok_or_else(short)?;
    if part != u32::from(owner.part.0) {
        return Err(foreign("partition", owner.part.to_string(), part.to_string()));
    }
    let n_tensors = rest.u32().ok_or_else(short)?;
    let mut all = HotRows::new();
    for _ in 0..n_tensors {
        let (name, rows) = rest.tensor().ok_or_else(short)?;
        if let Some(row) = rows.iter().find(|row| **row >= owner.n_rows) {
            let n_rows = owner.n_rows;
            return Err(damaged(format!("row {row} of `{name}`, which has {n_rows} rows")));
        }
        all.insert(name, rows);
    }
    if !rest.0.is_empty() {
        return Err(damaged(format!("{} bytes too many", rest.0.len())));
    }
    Ok(all)
}

/// The bytes that are not decoded yet.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, n_bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n_bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        let bytes = self.take(4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes))
    }

    fn tensor(&mut self) -> Option<(String, Vec<u32>)> {
        let n_bytes = self.u32()? as usize;
        let name = String::from_utf8(self.take(n_bytes)?.to_vec()).ok()?;
        let n_rows = self.u32()? as usize;
        // Sliced before memory is allocated, so a wrong length allocates nothing.
        let rows = self.take(n_rows.checked_mul(4)?)?;
        let rows = rows.as_chunks().0.iter().map(|row| u32::from_le_bytes(*row));
        Some((name, rows.collect()))
    }
}

#[cfg(test)]
mod tests {
    use lodestore_store::file_system::Disk;
    use lodestore_store::file_system::crash::{CrashFileSystem, Fault, Plan};
    use proptest::prelude::*;

    use super::*;

    const OWNER: Owner = Owner { graph: [7; 16], part: PartId(3), n_rows: 1000 };

    fn some() -> HotRows {
        [("feat".to_owned(), vec![9, 2, 999]), ("label".to_owned(), Vec::new())].into()
    }

    fn refusal(owner: Owner, bytes: &[u8]) -> String {
        decode(Path::new("part-003.hot"), owner, bytes).unwrap_err().to_string()
    }

    #[test]
    fn rows_are_read_back_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        assert!(read(&Disk, &state, OWNER).unwrap().is_none());
        for rows in [some(), HotRows::new(), some()] {
            write(&Disk, &state, OWNER, &rows).unwrap();
            assert_eq!(read(&Disk, &state, OWNER).unwrap(), Some(rows));
        }
        let names: Vec<_> = state.read_dir().unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(names, ["part-003.hot"], "no other file is left");
    }

    #[test]
    fn a_file_of_another_graph_partition_or_format_is_refused() {
        let bytes = encode(OWNER, &some());
        let other = refusal(Owner { graph: [8; 16], ..OWNER }, &bytes);
        assert!(other.contains("graph 0808") && other.contains("found 0707"), "{other}");
        let other = refusal(Owner { part: PartId(4), ..OWNER }, &bytes);
        assert!(other.contains("expected partition 4, found 3"), "{other}");
        let other = refusal(Owner { n_rows: 999, ..OWNER }, &bytes);
        assert!(other.contains("row 999 of `feat`, which has 999 rows"), "{other}");
        let mut newer = bytes;
        newer[8] = 2;
        assert!(refusal(OWNER, &newer).contains("expected format 1, found 2"));
    }

    #[test]
    fn a_damaged_file_is_never_accepted() {
        let bytes = encode(OWNER, &some());
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            refusal(OWNER, &damaged);
        }
        for end in 0..bytes.len() {
            refusal(OWNER, &bytes[..end]);
        }
        refusal(OWNER, &[&bytes[..], &[0]].concat());
        // A wrong length under a valid checksum.
        let mut long = bytes[..bytes.len() - CHECKSUM_BYTES].to_vec();
        long[HEAD_BYTES..HEAD_BYTES + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        let checksum = crc32fast::hash(&long);
        long.extend_from_slice(&checksum.to_le_bytes());
        assert!(refusal(OWNER, &long).contains("too few"));
    }

    proptest! {
        #[test]
        fn decode_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut sealed = MAGIC.to_vec();
            sealed.extend_from_slice(&FORMAT.to_le_bytes());
            sealed.extend_from_slice(&OWNER.graph);
            sealed.extend_from_slice(&bytes);
            let checksum = crc32fast::hash(&sealed);
            sealed.extend_from_slice(&checksum.to_le_bytes());
            let _ = decode(Path::new("x"), OWNER, &sealed);
            let _ = decode(Path::new("x"), OWNER, &bytes);
        }
    }

    #[test]
    fn a_power_loss_leaves_the_old_file_or_the_new_one() {
        let new: HotRows = [("feat".to_owned(), vec![1])].into();
        for after in 0.. {
            let (fs, dir) = (CrashFileSystem::new(after), Path::new("state"));
            fs.create_dir(dir).unwrap();
            fs.sync(Path::new("")).unwrap();
            write(&fs, dir, OWNER, &some()).unwrap();
            fs.arm(Some(Plan { fault: Fault::PowerLoss, after, sticky: true }));
            let written = write(&fs, dir, OWNER, &new);
            for seed in 0..8 {
                let found = read(&fs.after_loss(seed), dir, OWNER).unwrap().unwrap();
                assert!(found == new || found == some() && written.is_err(), "{after}: {found:?}");
            }
            if written.is_ok() {
                assert!(after > 3, "the write has several steps");
                return;
            }
        }
    }
}
