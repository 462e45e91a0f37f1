//! Single flipped bits of segments, topology, halos and `graph.toml`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodestore_store::Graph;
use lodestore_store::file_system::FileSystem;
use lodestore_store::verify::{VerifyReport, verify_on};

use crate::damage::still::Still;
use crate::damage::{Numbers, n_trials};
use testing::sample::{all_rows, import, update};

/// Verification's result for the picture as it is shown; `None` if it does not even start.
pub(crate) fn verified(still: &Arc<Still>, dir: &Path) -> Option<VerifyReport> {
    verify_on(Arc::clone(still) as Arc<dyn FileSystem>, dir, 1, &mut |_, _| {}).ok()
}

/// Every bit of these files counts: each belongs to a magic, a checksum, or bytes that a checksum
/// covers, padding included. So none is harmless, and all must be reported, under the right name;
/// and readers of rows receive those that were written, or an error.
#[test]
fn every_flipped_bit_is_reported_and_none_makes_a_wrong_row() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("graph");
    drop(update(import(&dir)));
    let still = Still::of(&dir);
    let fs = || Arc::clone(&still) as Arc<dyn FileSystem>;
    let rows = all_rows(Graph::open_on(fs(), &dir).unwrap()).unwrap();
    assert!(verified(&still, &dir).unwrap().ok);
    let files: Vec<(PathBuf, Arc<Vec<u8>>)> =
        still.files().map(|(path, bytes)| (path.clone(), Arc::clone(bytes))).collect();
    let n_bytes: u64 = files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    let mut numbers = Numbers(1);
    let mut n_read = 0;
    for trial in 0..n_trials() {
        let mut byte = numbers.below(n_bytes);
        let hit = files.iter().find(|(_, bytes)| {
            let is_here = byte < bytes.len() as u64;
            byte -= if is_here { 0 } else { bytes.len() as u64 };
            is_here
        });
        let (path, bytes) = hit.unwrap();
        let bit = numbers.below(8);
        let mut damaged = bytes.to_vec();
        damaged[byte as usize] ^= 1 << bit;
        let what = format!("{} byte {byte} bit {bit}", path.display());
        still.with([(path.clone(), damaged)], || {
            let report = verified(&still, &dir).unwrap();
            let names = report.damaged.iter().any(|damage| Path::new(&damage.file) == path);
            assert!(!report.ok && names, "{what}: {report:?}");
            if trial % 16 == 0 {
                let read = Graph::open_on(fs(), &dir).and_then(all_rows);
                assert!(read.as_ref().map_or(true, |read| *read == rows), "{what}: a wrong row");
                n_read += u64::from(read.is_ok());
            }
        });
    }
    // Of topology and halo no row is read.
    assert!(n_read > 0 && verified(&still, &dir).unwrap().ok);
}
