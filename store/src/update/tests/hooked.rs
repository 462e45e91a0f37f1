//! State of the graph at the moment of a single disk operation.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use lodestore_graph::PartId;

use super::*;
use crate::file_system::{
    Access, Disk, Entry, FileReader, FileSystem, FileWriter, Guard, KeyValues,
};

const N_NODES: u32 = 60;
const PART: PartId = PartId(1);

/// An operation with a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Open,
    Rename,
    Lock,
}

/// The disk, with a function that runs before some operations and may fail them.
pub(super) struct Hooked<F>(pub(super) F);

impl<F> fmt::Debug for Hooked<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooked")
    }
}

impl<F: Fn(Step, &Path) -> io::Result<()> + Send + Sync> FileSystem for Hooked<F> {
    fn open(&self, path: &Path) -> io::Result<Box<dyn FileReader>> {
        (self.0)(Step::Open, path)?;
        Disk.open(path)
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn FileWriter>> {
        Disk.create(path)
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        Disk.create_dir(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        Disk.list(dir)
    }
    fn exists(&self, path: &Path) -> bool {
        Disk.exists(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        (self.0)(Step::Rename, from)?;
        Disk.rename(from, to)
    }
    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        Disk.replace(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        Disk.remove_file(path)
    }
    fn remove_if_unpinned(&self, path: &Path) -> io::Result<bool> {
        Disk.remove_if_unpinned(path)
    }
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        Disk.remove_dir_all(path)
    }
    fn sync(&self, path: &Path) -> io::Result<()> {
        Disk.sync(path)
    }
    fn lock(&self, dir: &Path) -> io::Result<Guard> {
        (self.0)(Step::Lock, dir)?;
        Disk.lock(dir)
    }
    fn key_values(&self, dir: &Path, access: Access) -> io::Result<Box<dyn KeyValues>> {
        Disk.key_values(dir, access)
    }
}

/// Opens a graph for writing with a hook.
fn open_hooked(
    ring: &Ring,
    hook: impl Fn(Step, &Path) -> io::Result<()> + Send + Sync + 'static,
) -> Arc<GraphHandle> {
    let graph = Graph::open_on(Arc::new(Hooked(hook)), &ring.out()).unwrap();
    let options = OpenOptions::default();
    Arc::new(GraphHandle::open(graph, None, OpenMode::Write, &options).unwrap())
}

/// Otherwise another process could open the partition in between, and its puts would be lost with
/// the old name.
#[test]
fn a_released_partition_is_locked_until_it_is_renamed() {
    let ring = ring(N_NODES, 3, 3);
    let was_locked = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&was_locked);
    let live = open_hooked(&ring, move |step, path| {
        if step == Step::Rename && path.ends_with("part-001") {
            seen.store(Disk.lock(path).is_err(), Ordering::Relaxed);
        }
        Ok(())
    });
    let mut copy = live.begin_copy(PART).unwrap();
    copy.seal().unwrap();
    assert!(copy.next_pending(1, &mut Vec::new()).unwrap());
    copy.give_up().unwrap();
    let given_up = copy.close(7).unwrap();
    assert!(was_locked.load(Ordering::Relaxed));
    drop(Disk.lock(&given_up).unwrap());
}

#[test]
fn a_seal_ends_a_fold_whose_segment_is_being_read_back() {
    let ring = ring(N_NODES, 3, 3);
    let copying = Arc::new(Mutex::new(None::<crate::update::PartCopy>));
    let (hooked, was_sealed) = (Arc::clone(&copying), AtomicBool::new(false));
    let live = open_hooked(&ring, move |step, path| {
        // This name is only opened for reading back.
        if step == Step::Open && path.ends_with("feat.v2.seg.tmp") {
            let mut copying = hooked.lock().unwrap();
            if !was_sealed.swap(true, Ordering::Relaxed) {
                copying.as_mut().unwrap().seal().unwrap();
            }
        }
        Ok(())
    });
    put(&live, "feat", &live.graph().book().range(PART).collect::<Vec<u32>>(), 1);
    live.commit_version().unwrap();
    *copying.lock().unwrap() = Some(live.begin_copy(PART).unwrap());
    let mut go_on = |_, _| ControlFlow::Continue(());
    let folded = live.compact(Some(PART), Some("feat"), Folding::All, &mut go_on).unwrap();
    assert!(try_put(&live, "feat", &[live.graph().book().range(PART).start], 2).is_err(), "sealed");
    assert_eq!(folded, []);
    let left = |name: &str| ring.out().join("part-001").join(name).exists();
    assert!(left("feat.v1.seg") && left("feat.v2.delta"));
    assert!(!left("feat.v2.seg") && !left("feat.v2.seg.tmp"));
    drop(copying.lock().unwrap().take());
    live.compact(Some(PART), Some("feat"), Folding::All, &mut go_on).unwrap();
    assert!(left("feat.v2.seg"));
}

/// Opening many files takes longer than the time between two folds, so a file of each read catalog
/// is removed before it is opened.
#[test]
fn an_open_during_folds_opens_no_file_twice_and_ends() {
    let ring = ring(N_NODES, 1, 1);
    let live = writer(&ring);
    let opened = Arc::new(Mutex::new(Vec::<String>::new()));
    let (seen, folds) = (Arc::clone(&opened), Arc::new(Mutex::new(0u32)));
    let hook = move |step, path: &Path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if step != Step::Open || !(name.ends_with(".seg") || name.ends_with(".delta")) {
            return Ok(());
        }
        let mut folds = folds.lock().unwrap();
        // More often than an open reads the catalog again.
        if name.starts_with("feat") && *folds < 7 {
            *folds += 1;
            put(&live, "feat", &[1], *folds);
            live.commit_version().unwrap();
            compact(&live);
        }
        seen.lock().unwrap().push(name);
        Ok(())
    };
    let graph = Graph::open_on(Arc::new(Hooked(hook)), &ring.out()).unwrap();
    let options = OpenOptions::default();
    let reader = GraphHandle::open(graph, None, OpenMode::Read, &options).unwrap();
    assert_eq!(seqs(&latest(&Arc::new(reader)), "feat")[1], 7);
    let mut opened = std::mem::take(&mut *opened.lock().unwrap());
    let n_opened = opened.len();
    opened.sort();
    opened.dedup();
    assert_eq!(opened.len(), n_opened, "opened twice: {opened:?}");
}
