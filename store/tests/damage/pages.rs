//! Pages in the place of others.
//!
//! A page's checksum starts from a seed of the segment's uuid and the page's number, so the same
//! bytes have another checksum in every place. All pages of `flat` hold the same rows, but none
//! passes in the place of another together with its checksum. A page that is moved without its
//! checksum to where the same bytes are has changed nothing, and is not counted as a trial.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::damage::flips::verified;
use crate::damage::still::Still;
use crate::damage::{Numbers, n_trials};
use testing::sample::{N_NODES, import, update};

const PAGE: usize = 4096;

/// Two graphs with the same rows.
struct Twins {
    dirs: [PathBuf; 2],
    stills: [Arc<Still>; 2],
    /// Segments of the first, then those of the second.
    segments: [Vec<(PathBuf, Arc<Vec<u8>>)>; 2],
    _temp: tempfile::TempDir,
}

impl Twins {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let dirs = ["a", "b"].map(|name| temp.path().join(name));
        dirs.iter().for_each(|dir| drop(update(import(dir))));
        let stills = [Still::of(&dirs[0]), Still::of(&dirs[1])];
        let is_segment = |path: &Path| path.extension().is_some_and(|end| end == "seg");
        let segments = [0, 1].map(|i: usize| {
            let files = stills[i].files().filter(|(path, _)| is_segment(path));
            files.map(|(path, bytes)| (path.clone(), Arc::clone(bytes))).collect()
        });
        Self { dirs, stills, segments, _temp: temp }
    }

    /// Shows the first graph with changed files; false if nothing has changed.
    fn try_with(&self, changed: BTreeMap<PathBuf, Vec<u8>>, what: &str) -> bool {
        let was = |path: &PathBuf| {
            let file = self.segments[0].iter().find(|(of, _)| of == path);
            Arc::clone(&file.unwrap().1)
        };
        let changed: BTreeMap<_, _> =
            changed.into_iter().filter(|(path, bytes)| was(path).as_slice() != bytes).collect();
        if changed.is_empty() {
            return false;
        }
        let paths: Vec<PathBuf> = changed.keys().cloned().collect();
        self.stills[0].with(changed, || {
            let report = verified(&self.stills[0], &self.dirs[0]).unwrap();
            for path in &paths {
                let is_told = report.damaged.iter().any(|d| Path::new(&d.file) == path);
                assert!(is_told, "{what}: {} is not in {report:?}", path.display());
            }
        });
        true
    }
}

fn page(bytes: &[u8], page: usize) -> &[u8] {
    &bytes[page * PAGE..(page + 1) * PAGE]
}

fn put(bytes: &mut [u8], at: usize, page: &[u8]) {
    bytes[at * PAGE..(at + 1) * PAGE].copy_from_slice(page);
}

/// Runs one trial: pages of the first graph change places, or come from the second.
fn trial(twins: &Twins, numbers: &mut Numbers) -> bool {
    let [ours, theirs] = &twins.segments;
    let pick = |numbers: &mut Numbers, files: &[(PathBuf, Arc<Vec<u8>>)]| {
        let (path, bytes) = &files[numbers.below(files.len() as u64) as usize];
        let at = numbers.below((bytes.len() / PAGE) as u64) as usize;
        (path.clone(), bytes.to_vec(), at)
    };
    let (path, mut bytes, at) = pick(numbers, ours);
    let n_pages = bytes.len() / PAGE;
    let what = numbers.below(4);
    let mut changed = BTreeMap::new();
    match what {
        // Two pages of a segment change places.
        0 => {
            let other = numbers.below(n_pages as u64) as usize;
            let (a, b) = (page(&bytes, at).to_vec(), page(&bytes, other).to_vec());
            put(&mut bytes, at, &b);
            put(&mut bytes, other, &a);
            changed.insert(path.clone(), bytes);
        }
        // Pages of two segments change places: of one partition, or of two.
        1 => {
            let (other_path, mut other, other_at) = pick(numbers, ours);
            if other_path == path {
                return false;
            }
            let ours = page(&bytes, at).to_vec();
            put(&mut bytes, at, page(&other, other_at));
            put(&mut other, other_at, &ours);
            changed.insert(path.clone(), bytes);
            changed.insert(other_path, other);
        }
        // A page comes from another graph: from anywhere, or from the same place.
        2 => {
            let (_, other, other_at) = pick(numbers, theirs);
            let twin = ours.iter().position(|(of, _)| *of == path).unwrap();
            let same_place = numbers.below(2) == 0;
            let from = if same_place {
                page(&theirs[twin].1, at.min(theirs[twin].1.len() / PAGE - 1))
            } else {
                page(&other, other_at)
            };
            put(&mut bytes, at, from);
            changed.insert(path.clone(), bytes);
        }
        // A run of pages moves by one.
        _ => {
            let end = at + numbers.below((n_pages - at) as u64) as usize;
            if numbers.below(2) == 0 {
                bytes.copy_within(at * PAGE..end * PAGE, (at + 1).min(n_pages) * PAGE);
            } else {
                bytes.copy_within(
                    (at + 1).min(n_pages) * PAGE..end.max(at + 1).min(n_pages) * PAGE,
                    at * PAGE,
                );
            }
            changed.insert(path.clone(), bytes);
        }
    }
    twins.try_with(changed, &format!("kind {what}, {} page {at}", path.display()))
}

#[test]
fn every_page_in_the_place_of_another_is_reported() {
    let twins = Twins::new();
    let mut numbers = Numbers(2);
    let (mut n_done, mut n_nothing) = (0, 0u64);
    while n_done < n_trials() {
        match trial(&twins, &mut numbers) {
            true => n_done += 1,
            false => n_nothing += 1,
        }
    }
    assert!(n_nothing < n_done, "{n_nothing} trials changed nothing");
}

/// Pages that move together with their checksums, under tables and a footer that were sealed again.
/// The seed shows it, and so does the digest in the catalog.
#[test]
fn a_page_that_brings_its_checksum_along_is_reported() {
    let twins = Twins::new();
    let mut numbers = Numbers(3);
    for (path, bytes) in &twins.segments[0] {
        let is_flat = path.file_name().is_some_and(|name| name == "flat.v1.seg");
        if !is_flat {
            continue;
        }
        // 300 rows of 64 bytes: 5 pages, the last with padding, and one page of table.
        assert_eq!((bytes.len() / PAGE, N_NODES), (8, 600));
        for _ in 0..n_trials() / 100 {
            let (a, b) = (numbers.below(5) as usize, numbers.below(5) as usize);
            if a == b {
                continue;
            }
            let mut moved = bytes.to_vec();
            let (page_a, page_b) = (page(bytes, a + 1).to_vec(), page(bytes, b + 1).to_vec());
            put(&mut moved, a + 1, &page_b);
            put(&mut moved, b + 1, &page_a);
            let entry = |page: usize| 6 * PAGE + 4 * page..6 * PAGE + 4 * page + 4;
            moved[entry(a)].copy_from_slice(&bytes[entry(b)]);
            moved[entry(b)].copy_from_slice(&bytes[entry(a)]);
            seal(&mut moved);
            assert!(twins.try_with([(path.clone(), moved)].into(), "sealed again"));
        }
    }
}

/// Makes the footer of a raw segment of one page of table agree with its table.
fn seal(bytes: &mut [u8]) {
    let footer = bytes.len() - PAGE;
    let tables = crc32fast::hash(&bytes[footer - PAGE..footer]).to_le_bytes();
    bytes[footer + 8..footer + 12].copy_from_slice(&tables);
    let seal = crc32fast::hash(&bytes[footer..footer + PAGE - 4]).to_le_bytes();
    bytes[footer + PAGE - 4..].copy_from_slice(&seal);
}
