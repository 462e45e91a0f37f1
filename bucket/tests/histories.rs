//! A model of all histories that a graph may take: folders that are written, copied, restored in
//! part, aligned, followed, published, pulled, taken over and repaired, in random order.
//!
//! It knows the rows that each commit made. A partition that says it has a version must have
//! exactly the rows of the commit that the version names, whatever has happened to its folder.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodestore_bucket::{Bucket, BucketError, PullOptions};
use lodestore_graph::npy::{NpyType, NpyWriter};
use lodestore_graph::{NodeId, PartId, PartitionBook, splitmix64};
use lodestore_import::{ImportConfig, Silent, import};
use lodestore_store::follow::{FetchCheck, FetchedFile, FollowedFolder};
use lodestore_store::repair::{RepairMode, repair};
use lodestore_store::transfer::Arrival;
use lodestore_store::update::Folding;
use lodestore_store::{
    EmbeddedStore, Graph, GraphHandle, OpenMode, OpenOptions, StoreError, VersionId, View,
};

const N_NODES: u32 = 30;
const N_PARTS: u16 = 3;
const TENSOR: &str = "feat";
/// Bytes of a file that a follower fetches at a time.
const PIECE: usize = 4096;

/// Numbers that a seed determines.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        (splitmix64(self.0) % n as u64) as usize
    }
}

/// The rows of a partition, by node.
type Rows = BTreeMap<u32, i64>;

/// The rows of each version of each partition.
#[derive(Default)]
struct Model(HashMap<(PartId, VersionId), Rows>);

impl Model {
    /// Notes the rows of a version; fails the test where it had others.
    fn learn(&mut self, part: PartId, version: VersionId, rows: &Rows) {
        let known = self.0.entry((part, version)).or_insert_with(|| rows.clone());
        assert_eq!(known, rows, "partition {part} has made version {version} twice");
    }

    /// Fails the test unless these are the rows of a version.
    fn check(&self, part: PartId, version: VersionId, rows: &Rows) {
        if let Some(known) = self.0.get(&(part, version)) {
            assert_eq!(known, rows, "partition {part}, version {version}");
            return;
        }
        // A repair that found no trace of the commit knows the number alone.
        assert!(!version.commit.is_known(), "partition {part}: nobody made version {version}");
        let mut of_number =
            self.0.iter().filter(|((of, known), _)| *of == part && known.number == version.number);
        assert!(of_number.any(|(_, known)| known == rows), "partition {part}, version {version}");
    }
}

/// A graph's folder, and what is known of it.
struct Folder {
    dir: PathBuf,
    live: Option<Arc<GraphHandle>>,
    /// Rows that are put and not committed.
    pending: Rows,
    /// What its partitions must have when it is opened again; `None` once it was tampered with.
    expected: Option<Vec<(PartId, VersionId)>>,
    /// Readers that are pinned to a version.
    pins: Vec<(EmbeddedStore, Vec<(PartId, VersionId)>)>,
}

/// A copy of a folder, made while nothing had it open.
struct Backup {
    dir: PathBuf,
    pending: Rows,
}

struct World {
    random: Random,
    seed: u64,
    book: PartitionBook,
    dir: tempfile::TempDir,
    bucket: Bucket,
    model: Model,
    folders: Vec<Folder>,
    followers: Vec<Folder>,
    backups: Vec<Backup>,
    n_folders: usize,
    n_refused: usize,
    n_checked: usize,
    /// What was done so far, and with which folder.
    steps: Vec<(usize, usize)>,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("seed {}: step and folder of each: {:?}", self.seed, self.steps);
        }
    }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

fn import_graph(dir: &Path) -> PathBuf {
    let edges = dir.join("edges.npy");
    let features = dir.join("features.npy");
    let ring: Vec<u32> = (0..N_NODES).flat_map(|node| [node, (node + 1) % N_NODES]).collect();
    let rows = vec![0i64; N_NODES as usize];
    let shape = [u64::from(N_NODES), 2];
    NpyWriter::write(&edges, NpyType::U32, &shape, bytemuck::cast_slice(&ring)).unwrap();
    NpyWriter::write(&features, NpyType::I64, &shape[..1], bytemuck::cast_slice(&rows)).unwrap();
    let graph = dir.join("folder-0");
    let config = ImportConfig::new(edges, N_PARTS, &graph).with_tensor(TENSOR, features);
    import(&config, &mut Silent).unwrap();
    graph
}

fn open(dir: &Path, mode: OpenMode) -> Result<Arc<GraphHandle>, StoreError> {
    let graph = Graph::open(dir)?;
    let parts = graph.local_parts();
    GraphHandle::open(graph, Some(&parts), mode, &OpenOptions::default()).map(Arc::new)
}

fn rows_of(store: &EmbeddedStore, book: &PartitionBook, part: PartId) -> Rows {
    let ids: Vec<NodeId> = book.range(part).map(NodeId).collect();
    let mut rows = vec![0i64; ids.len()];
    store.gather(TENSOR, &ids, bytemuck::cast_slice_mut(&mut rows)).unwrap();
    ids.iter().map(|id| id.0).zip(rows).collect()
}

/// Splits rows by the partition of their node.
fn of_part(rows: &Rows, book: &PartitionBook, part: PartId) -> Rows {
    let range = book.range(part);
    rows.iter().filter(|(node, _)| range.contains(node)).map(|(&node, &row)| (node, row)).collect()
}

impl Folder {
    fn new(dir: PathBuf) -> Self {
        Self { dir, live: None, pending: Rows::new(), expected: None, pins: Vec::new() }
    }

    fn close(&mut self) {
        self.pins.clear();
        self.live = None;
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let graph = import_graph(dir.path());
        let book = Graph::open(&graph).unwrap().book().clone();
        let url = format!("file://{}", dir.path().join("bucket").display());
        fs::create_dir(dir.path().join("bucket")).unwrap();
        let mut model = Model::default();
        for part in book.parts() {
            let rows: Rows = book.range(part).map(|node| (node, 0)).collect();
            model.learn(part, VersionId::from(1), &rows);
        }
        Self {
            random: Random(splitmix64(seed)),
            seed,
            book,
            bucket: Bucket::open(&url).unwrap(),
            model,
            folders: vec![Folder::new(graph)],
            followers: Vec::new(),
            backups: Vec::new(),
            n_folders: 1,
            n_refused: 0,
            n_checked: 0,
            steps: Vec::new(),
            dir,
        }
    }

    fn new_dir(&mut self, name: &str) -> PathBuf {
        self.n_folders += 1;
        self.dir.path().join(format!("{name}-{}", self.n_folders))
    }

    /// Checks the rows of all partitions that are open in `live`.
    fn check(&mut self, live: &Arc<GraphHandle>) {
        let store = EmbeddedStore::from_handle(Arc::clone(live), View::Latest).unwrap();
        for (part, version) in live.part_version_ids() {
            self.model.check(part, version, &rows_of(&store, &self.book, part));
            self.n_checked += 1;
        }
    }

    /// Opens a folder for writing, unless that is refused by name; aligns it at times.
    fn open_to_write(&mut self, at: usize) -> Option<Arc<GraphHandle>> {
        if let Some(live) = &self.folders[at].live {
            return Some(Arc::clone(live));
        }
        let dir = self.folders[at].dir.clone();
        let live = match open(&dir, OpenMode::Write) {
            Ok(live) => live,
            Err(StoreError::HistoriesDiffer { .. }) => {
                self.n_refused += 1;
                assert!(self.folders[at].expected.is_none(), "it was left as it was");
                if self.random.below(2) == 0 {
                    return None;
                }
                self.align(at)
            }
            Err(error) => panic!("seed {}: {error}", self.seed),
        };
        self.check(&live);
        if let Some(expected) = &self.folders[at].expected {
            assert_eq!(*expected, live.part_version_ids(), "what was acknowledged is there");
        }
        self.folders[at].live = Some(Arc::clone(&live));
        self.folders[at].expected = Some(live.part_version_ids());
        Some(live)
    }

    fn align(&mut self, at: usize) -> Arc<GraphHandle> {
        let reader = open(&self.folders[at].dir, OpenMode::Read).unwrap();
        self.check(&reader);
        let before = self.rows_by_part(&reader);
        let versions = reader.part_version_ids();
        drop(reader);
        let graph = Graph::open(&self.folders[at].dir).unwrap();
        let (live, _) = GraphHandle::align(graph, &OpenOptions::default()).unwrap();
        // A partition that lags makes a version of what is pending in it, and then the common one.
        for ((part, was), (_, rows)) in versions.iter().zip(&before) {
            let mut rows = rows.clone();
            rows.extend(of_part(&self.folders[at].pending, &self.book, *part));
            for number in was.number + 1..live.version() {
                let made = VersionId::new(number, live.commit_of(*part, number).unwrap());
                if made.commit.is_known() {
                    self.model.learn(*part, made, &rows);
                }
            }
        }
        self.learn_commit(at, before, &live);
        Arc::new(live)
    }

    fn rows_by_part(&self, live: &Arc<GraphHandle>) -> Vec<(PartId, Rows)> {
        let store = EmbeddedStore::from_handle(Arc::clone(live), View::Latest).unwrap();
        live.parts().map(|part| (part, rows_of(&store, &self.book, part))).collect()
    }

    /// Notes the rows of the version that a commit has made of `before` and of the pending rows.
    fn learn_commit(&mut self, at: usize, before: Vec<(PartId, Rows)>, live: &GraphHandle) {
        let pending = std::mem::take(&mut self.folders[at].pending);
        for (part, mut rows) in before {
            rows.extend(of_part(&pending, &self.book, part));
            self.model.learn(part, live.part_version_id(part).unwrap(), &rows);
        }
    }

    fn put(&mut self, at: usize) {
        let Some(live) = self.open_to_write(at) else { return };
        for _ in 0..=self.random.below(3) {
            let node = self.random.below(N_NODES as usize) as u32;
            let row = 1 + self.random.below(1 << 40) as i64;
            live.put_rows(TENSOR, &[NodeId(node)], bytemuck::bytes_of(&row)).unwrap();
            self.folders[at].pending.insert(node, row);
        }
    }

    fn commit(&mut self, at: usize) {
        let Some(live) = self.open_to_write(at) else { return };
        let before = self.rows_by_part(&live);
        live.commit_version().unwrap();
        self.learn_commit(at, before, &live);
        let made = live.version_id().unwrap();
        assert!(live.part_version_ids().iter().all(|(_, version)| *version == made), "one label");
        self.folders[at].expected = Some(live.part_version_ids());
        self.check(&live);
    }

    fn compact(&mut self, at: usize) {
        let Some(live) = self.open_to_write(at) else { return };
        let what = [Folding::All, Folding::Deltas, Folding::WherePays][self.random.below(3)];
        live.compact(None, None, what, &mut |_, _| std::ops::ControlFlow::Continue(())).unwrap();
        self.check(&live);
    }

    fn pin(&mut self, at: usize) {
        let Some(live) = self.open_to_write(at) else { return };
        let number = live.version();
        let store = EmbeddedStore::from_handle(Arc::clone(&live), View::At(number)).unwrap();
        self.folders[at].pins.push((store, live.part_version_ids()));
    }

    fn check_pins(&self) {
        for folder in &self.folders {
            for (store, versions) in &folder.pins {
                for &(part, version) in versions {
                    self.model.check(part, version, &rows_of(store, &self.book, part));
                }
            }
        }
    }

    fn back_up(&mut self, at: usize) {
        self.folders[at].close();
        let dir = self.new_dir("backup");
        copy_folder(&self.folders[at].dir, &dir);
        self.backups.push(Backup { dir, pending: self.folders[at].pending.clone() });
    }

    /// Continues a copy as a folder of its own.
    fn continue_backup(&mut self, backup: usize) {
        let dir = self.new_dir("folder");
        copy_folder(&self.backups[backup].dir, &dir);
        let pending = self.backups[backup].pending.clone();
        self.folders.push(Folder { pending, ..Folder::new(dir) });
    }

    /// Brings one partition, or all, back from a copy.
    fn restore(&mut self, at: usize, backup: usize) {
        self.folders[at].close();
        let one = PartId(self.random.below(N_PARTS.into()) as u16);
        let is_whole = self.random.below(3) == 0;
        for part in self.book.parts().filter(|part| is_whole || *part == one) {
            let name = format!("part-{:03}", part.0);
            let from = self.backups[backup].dir.join(&name);
            let to = self.folders[at].dir.join(&name);
            if !from.exists() {
                continue;
            }
            let _ = fs::remove_dir_all(&to);
            copy_folder(&from, &to);
            let range = self.book.range(part);
            self.folders[at].pending.retain(|node, _| !range.contains(node));
            let pending = of_part(&self.backups[backup].pending, &self.book, part);
            self.folders[at].pending.extend(pending);
        }
        self.folders[at].expected = None;
    }

    /// Loses the catalog of a partition, and with it its pending rows.
    fn lose_a_catalog(&mut self, at: usize) {
        self.folders[at].close();
        let dir = self.folders[at].dir.clone();
        let part = PartId(self.random.below(N_PARTS.into()) as u16);
        let before = self.rows_of_part(&dir, part);
        fs::remove_dir_all(dir.join(format!("part-{:03}", part.0)).join("catalog")).unwrap();
        let report = repair(&dir, RepairMode::Apply, &mut |_, _| {}).unwrap();
        let range = self.book.range(part);
        self.folders[at].pending.retain(|node, _| !range.contains(node));
        // Where no other partition shows that the newest version was committed, its delta is
        // prepared for the next commit.
        if report.done.iter().any(|it| it.action.starts_with("recorded as prepared")) {
            let after = self.rows_of_part(&dir, part);
            let prepared = before.into_iter().filter(|(node, row)| after[node] != *row);
            self.folders[at].pending.extend(prepared);
        }
        self.folders[at].expected = None;
    }

    /// Returns the committed rows of a partition of a folder.
    fn rows_of_part(&self, dir: &Path, part: PartId) -> Rows {
        let live = open(dir, OpenMode::Read).unwrap();
        let store = EmbeddedStore::from_handle(live, View::Latest).unwrap();
        match store.live().parts().any(|it| it == part) {
            true => rows_of(&store, &self.book, part),
            false => Rows::new(),
        }
    }

    fn refused(&mut self, error: &BucketError) {
        self.n_refused += 1;
        assert!(!error.to_string().is_empty());
    }

    fn push(&mut self, at: usize) {
        let dir = self.folders[at].dir.clone();
        if let Err(error) = self.bucket.push(&dir, &[], &mut |_, _| {}) {
            self.refused(&error);
        }
    }

    /// Pulls into a folder of its own, or into one that is there.
    fn pull(&mut self, at: usize) {
        let parts = match self.random.below(3) {
            0 => vec![PartId(self.random.below(N_PARTS.into()) as u16)],
            _ => Vec::new(),
        };
        let options = PullOptions { parts, ..PullOptions::default() };
        let dir = match self.random.below(2) {
            0 => self.new_dir("pulled"),
            _ => {
                self.folders[at].close();
                self.folders[at].expected = None;
                self.folders[at].dir.clone()
            }
        };
        match self.bucket.pull(&dir, &options, &mut |_, _| {}) {
            Ok(_) => {
                let live = open(&dir, OpenMode::Read).unwrap();
                self.check(&live);
            }
            Err(error) => self.refused(&error),
        }
    }

    fn take_over(&mut self, at: usize) {
        self.folders[at].close();
        self.folders[at].expected = None;
        let dir = self.folders[at].dir.clone();
        if let Err(error) = self.bucket.take_over(&dir, &[], &mut |_, _| {}) {
            self.refused(&error);
        }
    }

    /// Has a follower fetch the newest version of a writer, a partition at a time.
    fn follow(&mut self, at: usize) {
        let Some(writer) = self.open_to_write(at) else { return };
        if self.followers.is_empty() || self.random.below(6) == 0 {
            let dir = self.new_dir("follower");
            FollowedFolder::open(&dir, "127.0.0.1:7171").unwrap();
            for part in self.book.parts() {
                bring(&writer, &dir, part);
            }
            self.followers.push(Folder::new(dir));
        }
        let follower = self.random.below(self.followers.len());
        let live = open(&self.followers[follower].dir, OpenMode::Follow).unwrap();
        for part in self.book.parts() {
            match catch_up(&writer, &live, part) {
                Ok(()) => {}
                Err(StoreError::FollowRefused { .. }) => self.n_refused += 1,
                Err(error) => panic!("seed {}: {error}", self.seed),
            }
        }
        self.check(&live);
    }

    fn step(&mut self) {
        let at = self.random.below(self.folders.len());
        let n_backups = self.backups.len();
        let what = self.random.below(40);
        self.steps.push((what, at));
        match what {
            0..10 => self.put(at),
            10..18 => self.commit(at),
            18..20 => self.compact(at),
            20..22 => self.pin(at),
            22 => self.folders[at].close(),
            23..25 if n_backups < 6 => self.back_up(at),
            25 if self.folders.len() < 3 && n_backups > 0 => {
                let backup = self.random.below(n_backups);
                self.continue_backup(backup);
            }
            26..28 if n_backups > 0 => {
                let backup = self.random.below(n_backups);
                self.restore(at, backup);
            }
            28 => self.lose_a_catalog(at),
            29..33 => self.push(at),
            33..35 => self.pull(at),
            35 => self.take_over(at),
            36..40 => self.follow(at),
            _ => {}
        }
        self.check_pins();
    }
}

/// Brings the first copy of a partition.
fn bring(writer: &GraphHandle, dir: &Path, part: PartId) {
    let files = writer.part_files(part).unwrap();
    let arrival = Arrival::find_or_begin(dir, part, 1).unwrap();
    for (at, (name, n_bytes)) in files.files().enumerate() {
        let read = |offset| {
            let mut piece = Vec::new();
            files.read(at, offset, PIECE, &mut piece).unwrap();
            piece
        };
        if files.manifest().files().any(|it| it == name) {
            let graph = arrival.graph().unwrap();
            let check = FetchCheck::ReadBack;
            let begun = FetchedFile::begin(&graph, files.manifest(), name, n_bytes, check).unwrap();
            let Some(mut file) = begun else { continue };
            while file.n_bytes() < n_bytes {
                file.append(&read(file.n_bytes())).unwrap();
            }
            file.finish().unwrap();
        } else {
            let mut file = arrival.file(name).unwrap();
            let mut offset = 0;
            while offset < n_bytes {
                let piece = read(offset);
                offset += piece.len() as u64;
                file.append(&piece).unwrap();
            }
            file.finish().unwrap();
        }
    }
    arrival.check_lists().unwrap();
    let catalog = arrival.catalog().unwrap();
    catalog.install(files.manifest()).unwrap();
    catalog.close().unwrap();
    arrival.sync().unwrap();
    arrival.take().unwrap();
}

/// Fetches the files of the writer's newest version, and installs it.
fn catch_up(writer: &GraphHandle, to: &GraphHandle, part: PartId) -> Result<(), StoreError> {
    let files = writer.part_files(part)?;
    let manifest = files.manifest();
    for (at, (name, n_bytes)) in files.files().enumerate() {
        if !manifest.files().any(|it| it == name) {
            continue;
        }
        let begun = FetchedFile::begin_next(to, manifest, name, n_bytes, FetchCheck::ReadBack)?;
        let Some(mut file) = begun else { continue };
        while file.n_bytes() < n_bytes {
            let mut piece = Vec::new();
            files.read(at, file.n_bytes(), PIECE, &mut piece)?;
            file.append(&piece)?;
        }
        file.finish()?;
    }
    to.install(manifest)?;
    to.graph().remove_strays(manifest)
}

/// `LODE_SOAK_MINUTES` and `LODE_SOAK_SEED` make it long, as those of `./x soak`.
#[test]
fn every_row_belongs_to_the_commit_that_its_version_names() {
    let minutes: Option<u64> = env::var("LODE_SOAK_MINUTES").ok().map(|it| it.parse().unwrap());
    let first: u64 = env::var("LODE_SOAK_SEED").map_or(1, |seed| seed.parse().unwrap());
    let end = minutes.map(|it| std::time::Instant::now() + std::time::Duration::from_mins(it));
    let (mut n_refused, mut n_checked) = (0, 0);
    for seed in first.. {
        let is_over = match end {
            Some(end) => std::time::Instant::now() >= end,
            None => seed - first >= 4,
        };
        if is_over {
            break;
        }
        println!("seed {seed}");
        let mut world = World::new(seed);
        for _ in 0..60 {
            world.step();
        }
        n_refused += world.n_refused;
        n_checked += world.n_checked;
    }
    assert!(n_checked > 200, "{n_checked} partitions checked");
    assert!(n_refused > 5, "{n_refused} refusals: the histories must meet");
    println!("{n_checked} partitions checked, {n_refused} refusals");
}
