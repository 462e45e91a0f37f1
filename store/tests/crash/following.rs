//! A follower on a simulated file system: it has the version that it said it has, whatever happens.

use std::collections::BTreeSet;
use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use lodestore_graph::{NodeId, PartId};
use lodestore_store::file_system::FileSystem;
use lodestore_store::file_system::crash::{CrashFileSystem, Fault, Neglect, Plan};
use lodestore_store::follow::{FetchCheck, FetchedFile};
use lodestore_store::update::{Folding, PartFiles};
use lodestore_store::verify::verify_on;
use lodestore_store::{
    EmbeddedStore, Graph, GraphHandle, OpenMode, OpenOptions, ReaderKind, StoreError, View,
};

use crate::crash::import::imported;
use crate::crash::small::{N_NODES, OUT, TENSORS};
use crate::crash::sweep::{Scenario, n_seeds, sweep_faults, sweep_losses};
use crate::crash::world::Finding;

/// Pieces are shorter than most files.
const PIECE: usize = 5000;

/// State of a writer at a version.
struct Published {
    parts: Vec<PartFiles>,
    rows: Vec<Vec<u8>>,
}

/// A follower takes over one version after the other.
struct Following {
    base: CrashFileSystem,
    /// By version, from the first on.
    versions: Vec<Published>,
}

fn open(crash: &CrashFileSystem, mode: OpenMode) -> Result<Arc<GraphHandle>, StoreError> {
    let graph = Graph::open_on(Arc::new(crash.clone()), Path::new(OUT))?;
    let options = OpenOptions { reader: ReaderKind::Pread };
    GraphHandle::open(graph, None, mode, &options).map(Arc::new)
}

/// Returns all rows by tensor.
fn rows(live: &Arc<GraphHandle>) -> Result<Vec<Vec<u8>>, StoreError> {
    let store = EmbeddedStore::from_handle(Arc::clone(live), View::Latest)?;
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let gather = |tensor: &crate::crash::small::Rows| {
        let mut out = vec![0; ids.len() * tensor.row_bytes];
        store.gather(tensor.name, &ids, &mut out).map(|()| out)
    };
    TENSORS.iter().map(gather).collect()
}

impl Following {
    fn new() -> Self {
        let base = imported();
        let live = open(&base.after_loss(0), OpenMode::Write).unwrap();
        let published = || {
            let parts = live.parts().map(|part| live.part_files(part).unwrap()).collect();
            Published { parts, rows: rows(&live).unwrap() }
        };
        let mut versions = vec![published()];
        for seq in 1..5u8 {
            let ids: Vec<NodeId> = (0..N_NODES).step_by(seq.into()).map(NodeId).collect();
            let tensor = TENSORS[usize::from(seq) % 2];
            live.put_rows(tensor.name, &ids, &vec![seq; ids.len() * tensor.row_bytes]).unwrap();
            live.commit_version().unwrap();
            let mut go_on = |_, _| ControlFlow::Continue(());
            match seq {
                2 => drop(live.compact(None, None, Folding::Deltas, &mut go_on).unwrap()),
                4 => drop(live.compact(None, None, Folding::All, &mut go_on).unwrap()),
                _ => {}
            }
            versions.push(published());
        }
        Self { base, versions }
    }

    fn newest(&self) -> u32 {
        self.versions.len() as u32
    }

    /// Takes over a version of one partition.
    fn take(live: &GraphHandle, files: &PartFiles) -> Result<(), StoreError> {
        let manifest = files.manifest();
        for (at, (name, n_bytes)) in files.files().enumerate() {
            if !manifest.files().any(|it| it == name) {
                continue;
            }
            let check = [FetchCheck::ReadBack, FetchCheck::AsReceived][at % 2];
            let begun = FetchedFile::begin_next(live, manifest, name, n_bytes, check)?;
            let Some(mut file) = begun else { continue };
            while file.n_bytes() < n_bytes {
                let mut piece = Vec::new();
                files.read(at, file.n_bytes(), PIECE, &mut piece)?;
                file.append(&piece)?;
            }
            file.finish()?;
        }
        live.install(manifest)?;
        live.graph().remove_strays(manifest)
    }

    /// Takes over the newest version; what came damaged by a loss of power is removed and comes
    /// again.
    fn take_newest(&self, live: &GraphHandle) -> Result<(), StoreError> {
        let newest = &self.versions[self.versions.len() - 1].parts;
        newest.iter().try_for_each(|files| {
            loop {
                match Self::take(live, files) {
                    Err(StoreError::DamagedSegment { .. } | StoreError::DamagedPage { .. }) => {}
                    done => return done,
                }
            }
        })
    }

    /// Checks that each partition has the rows of its version.
    fn check_rows(&self, live: &Arc<GraphHandle>) -> Finding {
        let found = rows(live)?;
        for (part, version) in live.part_versions() {
            let expected = &self.versions[version as usize - 1].rows;
            let range = live.graph().book().range(part);
            for (tensor, (found, expected)) in TENSORS.iter().zip(found.iter().zip(expected)) {
                let of =
                    range.start as usize * tensor.row_bytes..range.end as usize * tensor.row_bytes;
                if found[of.clone()] != expected[of] {
                    return Err(
                        format!("{part}, `{}`: not of version {version}", tensor.name).into()
                    );
                }
            }
        }
        Ok(())
    }

    /// Checks that a folder has the files of its version and no other.
    fn check_files(&self, crash: &CrashFileSystem) -> Finding {
        for files in &self.versions[self.versions.len() - 1].parts {
            let dir = Path::new(OUT).join(format!("part-{:03}", files.manifest().part().0));
            let entries = crash.list(&dir)?.into_iter().map(|entry| entry.name);
            let names: BTreeSet<String> = entries.filter(|name| name.contains(".v")).collect();
            let expected: BTreeSet<String> = files.manifest().files().map(str::to_owned).collect();
            if names != expected {
                return Err(format!("{}: {names:?}, expected {expected:?}", dir.display()).into());
            }
        }
        let report = verify_on(Arc::new(crash.clone()), Path::new(OUT), 1, &mut |_, _| {})?;
        if report.ok { Ok(()) } else { Err(format!("{:?}", report.damaged).into()) }
    }
}

impl Scenario for Following {
    /// The version of each partition.
    type Acknowledged = Vec<u32>;

    fn name(&self) -> &'static str {
        "following"
    }

    fn prepare(&self) -> CrashFileSystem {
        self.base.after_loss(0)
    }

    fn run(&self, fs: &CrashFileSystem, is_sticky: bool) -> Result<Vec<u32>, Box<dyn Error>> {
        let mut versions = vec![1; self.versions[0].parts.len()];
        let mut had_struck = false;
        let mut excuse = |error: StoreError| {
            let is_excused = fs.has_struck() && (is_sticky || !had_struck);
            had_struck |= fs.has_struck();
            let is_excused = is_excused || matches!(error, StoreError::WritesStopped { .. });
            is_excused.then_some(()).ok_or_else(|| format!("without a reason: {error}"))
        };
        let live = match open(fs, OpenMode::Follow) {
            Ok(live) => live,
            Err(error) => return Ok(excuse(error).map(|()| versions)?),
        };
        for published in &self.versions {
            for (files, version) in published.parts.iter().zip(&mut versions) {
                let taken = Self::take(&live, files);
                let part = files.manifest().part();
                let now = live.part_version(part).ok_or("a partition is closed")?;
                match taken {
                    Ok(()) if now != files.manifest().version() => {
                        return Err(format!("{part}: at {now} after it took another").into());
                    }
                    Ok(()) => {}
                    Err(error) => excuse(error)?,
                }
                *version = now;
            }
            let checked = self.check_rows(&live);
            // The fault may strike while rows are read, and afterwards a version may be missing.
            if !fs.has_struck() {
                checked?;
            }
        }
        Ok(versions)
    }

    fn check(&self, crash: &CrashFileSystem, versions: &Vec<u32>, seed: u64) -> Finding {
        let reader = open(crash, OpenMode::Read)?;
        self.check_rows(&reader)?;
        for (part, found) in reader.part_versions() {
            // What failed at the next version may have been switched.
            let most = self.newest();
            if !(versions[usize::from(part.0)]..=most).contains(&found) {
                return Err(format!("{part} is at {found}, was at {versions:?}").into());
            }
        }
        drop(reader);
        let mut crash = crash.clone();
        for again in 0..seed % 3 {
            let after = (seed / 3 + again * 7) % 30;
            crash.arm(Some(Plan { fault: Fault::PowerLoss, after, sticky: true }));
            if let Ok(live) = open(&crash, OpenMode::Follow) {
                let _ = self.take_newest(&live);
            }
            crash = crash.after_loss(seed + again);
        }
        let live = open(&crash, OpenMode::Follow)?;
        self.check_rows(&live)?;
        self.take_newest(&live)?;
        self.check_rows(&live)?;
        drop(live);
        self.check_files(&crash)?;
        let crash = crash.after_loss(seed);
        let live = open(&crash, OpenMode::Follow)?;
        match live.part_versions().iter().all(|(_, version)| *version == self.newest()) {
            true => self.check_rows(&live),
            false => Err(format!("in the end: {:?}", live.part_versions()).into()),
        }
    }
}

#[test]
fn a_follower_has_the_version_that_it_said_it_has_whatever_happens() {
    let following = Following::new();
    assert_eq!(following.versions[0].parts[1].manifest().part(), PartId(1));
    let n_outcomes = sweep_losses(&following, None, n_seeds(4, 200)).unwrap();
    println!("{n_outcomes} outcomes, {} runs with faults", sweep_faults(&following).unwrap());
}

#[test]
fn the_sweep_finds_a_follower_whose_files_are_not_synced() {
    let following = Following::new();
    for neglect in [Neglect::FileSyncs, Neglect::FolderSyncs] {
        println!("{}", sweep_losses(&following, Some(neglect), 8).unwrap_err());
    }
}
