//! A partition that has come to another folder as a whole, where the power goes before it is taken.
//! The source may have given it up by then.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use lodestore_graph::{NodeId, PartId};
use lodestore_store::file_system::FileSystem;
use lodestore_store::file_system::crash::{CrashFileSystem, Fault, Neglect, Plan};
use lodestore_store::follow::{FetchCheck, FetchedFile};
use lodestore_store::transfer::Arrival;
use lodestore_store::update::PartCopy;
use lodestore_store::{
    EmbeddedStore, Graph, GraphHandle, OpenMode, OpenOptions, ReaderKind, StoreError, View,
};
use rustix::io::Errno;

use super::small::{BOUNDS, OUT, TENSORS, import};

/// The folder that it comes to.
const TO: &str = "graphs/target";
const PART: PartId = PartId(1);
/// Number of the move.
const ID: u64 = 7;
/// Losses of power that are looked at.
const N_LOSSES: u64 = 12;

type Outcome = Result<(), Box<dyn Error>>;

fn open(graph: Graph) -> Result<GraphHandle, StoreError> {
    let options = OpenOptions { reader: ReaderKind::Pread };
    GraphHandle::open(graph, Some(&[PART]), OpenMode::Write, &options)
}

fn put(live: &GraphHandle, seq: u32) {
    let nodes = BOUNDS[1]..BOUNDS[2];
    for rows in TENSORS {
        let row = |node: u32| {
            let (first, others) = rows.row(node, seq);
            [&[first][..], others].concat()
        };
        let ids: Vec<NodeId> = nodes.clone().map(NodeId).collect();
        let bytes: Vec<u8> = nodes.clone().flat_map(row).collect();
        live.put_rows(rows.name, &ids, &bytes).unwrap();
    }
}

/// Brings the partition, with rows of put 1 that are committed and of put 2 that are not; the
/// source has not given it up.
fn brought(neglect: Option<Neglect>) -> (CrashFileSystem, Arrival, PartCopy) {
    let crash = CrashFileSystem::new(5);
    let fs: Arc<dyn FileSystem> = Arc::new(crash.clone());
    let graphs = Path::new(OUT).parent().unwrap();
    fs.create_dir(graphs).unwrap();
    fs.sync(Path::new("")).unwrap();
    let live = Arc::new(open(import(&fs).unwrap()).unwrap());
    put(&live, 1);
    live.commit_version().unwrap();
    put(&live, 2);
    neglect.into_iter().for_each(|neglect| crash.neglect(neglect));
    let mut copy = live.begin_copy(PART).unwrap();
    let arrival = Arrival::find_or_begin_on(fs, Path::new(TO), PART, ID).unwrap();
    copy.seal().unwrap();
    let files = live.part_files(PART).unwrap();
    let manifest = files.manifest();
    for (at, (name, n_bytes)) in files.files().enumerate() {
        let mut bytes = Vec::new();
        assert!(files.read(at, 0, usize::MAX >> 1, &mut bytes).unwrap());
        if manifest.files().any(|it| it == name) {
            let graph = arrival.graph().unwrap();
            let check = FetchCheck::ReadBack;
            let begun = FetchedFile::begin(&graph, manifest, name, n_bytes, check);
            let mut file = begun.unwrap().unwrap();
            file.append(&bytes).unwrap();
            file.finish().unwrap();
        } else {
            let mut file = arrival.file(name).unwrap();
            file.append(&bytes).unwrap();
            file.finish().unwrap();
        }
    }
    let catalog = arrival.catalog().unwrap();
    catalog.install(manifest).unwrap();
    let mut piece = Vec::new();
    while !copy.next_pending(1 << 20, &mut piece).unwrap() {}
    catalog.put(manifest, &piece).unwrap();
    catalog.close().unwrap();
    arrival.sync().unwrap();
    (crash, arrival, copy)
}

/// Checks that the rows of the partition in its new folder are of this put.
fn check_rows(live: &Arc<GraphHandle>, seq: u32) -> Outcome {
    let store = EmbeddedStore::from_handle(Arc::clone(live), View::Latest)?;
    let ids: Vec<NodeId> = (BOUNDS[1]..BOUNDS[2]).map(NodeId).collect();
    for rows in TENSORS {
        let mut out = vec![0; ids.len() * rows.row_bytes];
        store.gather(rows.name, &ids, &mut out)?;
        for (id, row) in ids.iter().zip(out.chunks_exact(rows.row_bytes)) {
            if rows.seq_of(id.0, row) != Some(seq) {
                return Err(format!("node {id}, `{}`: not of put {seq}", rows.name).into());
            }
        }
    }
    Ok(())
}

/// Checks that the next run after a loss of power finds the partition, with every row.
fn check_loss(crash: &CrashFileSystem, seed: u64) -> Outcome {
    let fs: Arc<dyn FileSystem> = Arc::new(crash.after_loss(seed));
    let again = Arrival::find_or_begin_on(fs, Path::new(TO), PART, ID + 1)?;
    if again.id() != ID {
        return Err("its copy is gone".into());
    }
    check_puts(again.graph()?)
}

/// Checks that a graph has the partition with every row.
fn check_puts(graph: Graph) -> Outcome {
    let live = Arc::new(open(graph)?);
    check_rows(&live, 1)?;
    live.commit_version()?;
    check_rows(&live, 2)
}

#[test]
fn a_partition_that_has_come_is_there_after_a_loss_of_power() {
    let (crash, _arrival, _copy) = brought(None);
    (0..N_LOSSES).for_each(|seed| check_loss(&crash, seed).unwrap());
}

#[test]
fn a_copy_that_syncs_too_little_is_found() {
    for neglect in [Neglect::FileSyncs, Neglect::FolderSyncs] {
        let (crash, _arrival, _copy) = brought(Some(neglect));
        let is_found = |seed| check_loss(&crash, seed).is_err();
        assert!((0..N_LOSSES).any(is_found), "{neglect:?}");
    }
}

/// The source may have given it up, so that there is no other.
#[test]
fn a_partition_that_was_taken_is_in_its_place_after_a_loss_of_power() {
    let (crash, arrival, _copy) = brought(None);
    arrival.take().unwrap();
    for seed in 0..N_LOSSES {
        let fs: Arc<dyn FileSystem> = Arc::new(crash.after_loss(seed));
        check_puts(Graph::open_on(fs, Path::new(TO)).unwrap()).unwrap();
    }
}

/// Takes the partition on a file system that refuses one operation, or that one and all later ones as if
/// the mover were killed there. Then takes it again, as advised. Returns whether the fault came.
fn check_repeated_take(base: &CrashFileSystem, plan: Plan) -> Result<bool, Box<dyn Error>> {
    let crash = base.after_loss(0);
    let fs: Arc<dyn FileSystem> = Arc::new(crash.clone());
    let again = || Arrival::find_or_begin_on(Arc::clone(&fs), Path::new(TO), PART, ID + 1);
    let arrival = again()?;
    crash.arm(Some(plan));
    let taken = arrival.take();
    let has_struck = crash.has_struck();
    crash.arm(None);
    if taken.is_err() {
        again()?.take()?;
    }
    for seed in 0..N_LOSSES {
        let fs: Arc<dyn FileSystem> = Arc::new(crash.after_loss(seed));
        let lost = |error| format!("{plan:?}, seed {seed}: {error}");
        check_puts(Graph::open_on(fs, Path::new(TO))?).map_err(lost)?;
    }
    Ok(has_struck)
}

/// The next run finds what the one before has done, and must not believe that it is durable.
#[test]
fn a_partition_that_is_taken_at_the_second_try_is_there_after_a_loss_of_power() {
    let (base, ..) = brought(None);
    // A sync that fails loses what it was for; one that is interrupted does not.
    for (errno, sticky) in [(Errno::IO, false), (Errno::INTR, true)] {
        let fault = Fault::Errno(errno);
        let mut after = 0;
        while check_repeated_take(&base, Plan { fault, after, sticky }).unwrap() {
            after += 1;
        }
        assert!(after > 3, "{errno:?}: {after} operations");
    }
}

/// Nothing could open it otherwise, and the next run would remove the description that came with
/// it.
#[test]
fn a_partition_is_in_its_place_only_with_the_description_of_its_graph() {
    let (base, ..) = brought(None);
    for (after, seed) in (0..12).flat_map(|after| (0..4 * N_LOSSES).map(move |it| (after, it))) {
        let crash = base.after_loss(0);
        let fs: Arc<dyn FileSystem> = Arc::new(crash.clone());
        let arrival = Arrival::find_or_begin_on(fs, Path::new(TO), PART, ID + 1).unwrap();
        crash.arm(Some(Plan { fault: Fault::PowerLoss, after, sticky: true }));
        let _ = arrival.take();
        let lost = crash.after_loss(seed);
        let is_there = |name: &str| lost.exists(&Path::new(TO).join(name));
        assert!(!is_there("part-001") || is_there("graph.toml"), "fault {after}, seed {seed}");
    }
}

/// The source cannot know whether its new name is on disk. After an error it is the owner for good,
/// or there is none, and never two.
#[test]
fn a_partition_whose_new_name_is_not_durable_is_not_given_up() {
    for after in 0.. {
        let (crash, _arrival, mut copy) = brought(None);
        copy.give_up().unwrap();
        crash.arm(Some(Plan { fault: Fault::Errno(Errno::IO), after, sticky: false }));
        let closed = copy.close(ID);
        let has_struck = crash.has_struck();
        crash.arm(None);
        for seed in 0..N_LOSSES {
            let fs: Arc<dyn FileSystem> = Arc::new(crash.after_loss(seed));
            let graph = Graph::open_on(fs, Path::new(OUT)).unwrap();
            let owns = graph.local_parts().contains(&PART);
            assert_eq!(owns, closed.is_err(), "fault {after}, seed {seed}: {closed:?}");
        }
        if !has_struck {
            assert!(after > 2, "{after} operations");
            return;
        }
    }
}

/// Else it would have two owners.
#[test]
fn a_partition_that_was_given_up_is_not_back_after_a_loss_of_power() {
    let (crash, _arrival, mut copy) = brought(None);
    copy.give_up().unwrap();
    copy.close(ID).unwrap();
    for seed in 0..N_LOSSES {
        let fs: Arc<dyn FileSystem> = Arc::new(crash.after_loss(seed));
        let graph = Graph::open_on(fs, Path::new(OUT)).unwrap();
        assert!(graph.was_given_up(PART, ID), "seed {seed}");
        assert!(!graph.local_parts().contains(&PART), "seed {seed}");
    }
}
