//! A disk that fills up under an import, puts, commits and compactions.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use lodestore_graph::NodeId;
use lodestore_graph::npy::NpyType;
use lodestore_store::verify::verify_rows;
use lodestore_store::{EmbeddedStore, Graph, GraphHandle, OpenMode, OpenOptions, StoreError, View};

use crate::load::{N_NODES, N_PARTS, WIDTH, parts, put_row, turns};
use testing::features::feature_graph;
use testing::graph::Source;
use testing::http::get;
use testing::mount::Disk;
use testing::names_in;
use testing::process::{Serving, lode, lode_line};
use testing::write_npy;

/// Disks that are filled up under writers.
const ROUNDS: u32 = 3;

#[test]
fn an_import_to_a_full_disk_says_so_leaves_nothing_and_succeeds_when_there_is_room() {
    let Some(disk) = Disk::tmpfs(256 << 10) else { return };
    let source = Source::random(600, 2400);
    let out = disk.path("graph");
    let import = || source.try_import(&out, &["feat", "wide", "label"], &["--parts", "2"]);
    // The disk fills up at one file and the other.
    for kib in [16, 64, 128, 256, 512, 1024, 2048, 2500] {
        disk.remount(&format!("size={kib}k"));
        import().failed(1, &["/graph", "No space left on device", "make room"]);
        assert_eq!(names_in(&disk.path("")), [] as [&str; 0], "{kib} KiB");
    }
    disk.remount("size=64m");
    import().succeeded();
    lode(["verify".as_ref(), out.as_os_str()]).succeeded();
}

/// A graph on a disk of its own, and by node the turn of its row.
struct OnDisk {
    disk: Disk,
    graph: PathBuf,
    /// As put.
    rows: Vec<u32>,
    /// As committed.
    committed: Vec<u32>,
    /// As a commit that has failed may have left some partitions.
    half: Vec<u32>,
}

impl OnDisk {
    fn new() -> Option<Self> {
        Self::on(Disk::tmpfs(64 << 20)?)
    }

    fn on_ext4() -> Option<Self> {
        Self::on(Disk::ext4(64 << 20)?)
    }

    fn on(disk: Disk) -> Option<Self> {
        let graph = feature_graph(&disk.path(""), N_NODES, WIDTH, N_PARTS);
        let [rows, committed, half] = [(); 3].map(|()| vec![0; N_NODES as usize]);
        Some(Self { disk, graph, rows, committed, half })
    }

    /// Puts every tenth node, and expects it of the rows if that succeeds.
    fn put(&mut self, live: &GraphHandle, turn: u32) -> Result<(), StoreError> {
        let ids = tenth(turn);
        let rows: Vec<u8> = ids.iter().flat_map(|&id| put_row(id, turn)).collect();
        live.put_rows("feat", &ids, &rows)?;
        ids.iter().for_each(|id| self.rows[id.index()] = turn);
        Ok(())
    }

    fn commit(&mut self, live: &GraphHandle) -> Result<(), StoreError> {
        self.half.clone_from(&self.rows);
        live.commit_version()?;
        self.committed.clone_from(&self.rows);
        Ok(())
    }

    /// Checks that the rows of each partition are those committed, or those of a commit that has
    /// failed.
    fn check(&self, live: &Arc<GraphHandle>) {
        assert_one_of(live, [&self.committed, &self.half], "half of a commit");
    }

    /// Commits: the rows are those put but for a turn that failed, which is in each partition or
    /// not.
    fn settle(&mut self, live: &Arc<GraphHandle>, failed: u32) {
        self.commit(live).unwrap();
        let mut with = self.rows.clone();
        tenth(failed).iter().for_each(|id| with[id.index()] = failed);
        self.rows = assert_one_of(live, [&self.rows, &with], "half of a put");
        self.commit(live).unwrap();
        self.check(live);
    }
}

/// Checks that all rows of a partition are of one of these; returns them.
fn assert_one_of(live: &Arc<GraphHandle>, expected: [&[u32]; 2], else_it_is: &str) -> Vec<u32> {
    let (found, parts) = (latest(live), parts(live.graph().book()));
    for part in 0..usize::from(N_PARTS) {
        let of_part = || (0..found.len()).filter(|&node| parts[node] == part);
        let is = |rows: &&[u32]| of_part().all(|node| found[node] == rows[node]);
        assert!(expected.iter().any(is), "{else_it_is} in partition {part}");
    }
    found
}

fn tenth(turn: u32) -> Vec<NodeId> {
    (turn % 10..N_NODES).step_by(10).map(NodeId).collect()
}

fn latest(live: &Arc<GraphHandle>) -> Vec<u32> {
    let store = EmbeddedStore::from_handle(Arc::clone(live), View::Latest).unwrap();
    turns(&store, &(0..N_NODES).map(NodeId).collect::<Vec<_>>())
}

fn open(graph: &Path, mode: OpenMode) -> Result<Arc<GraphHandle>, StoreError> {
    GraphHandle::open(Graph::open(graph)?, None, mode, &OpenOptions::default()).map(Arc::new)
}

fn compact(live: &GraphHandle) -> Result<(), StoreError> {
    live.compact(None, None, lodestore_store::update::Folding::All, &mut |_, _| {
        ControlFlow::Continue(())
    })
    .map(drop)
}

/// Asserts that the error names a file of the graph, and says that there is no room.
fn assert_full(graph: &Path, error: &StoreError) {
    assert!(error.file().is_some_and(|file| file.starts_with(graph)), "{error}");
    assert!(error.to_string().contains("No space left on device"), "{error}");
}

/// Waits until after the next look for room.
fn wait_for_a_look() {
    std::thread::sleep(Duration::from_millis(1100));
}

/// Checks that a later write is refused with what to do, and reads continue.
fn is_refused(on: &OnDisk, live: &Arc<GraphHandle>) {
    on.check(live);
    let refused = live.commit_version().unwrap_err();
    assert!(matches!(refused, StoreError::WritesStopped { .. }), "{refused}");
    assert!(refused.to_string().contains("make room"), "{refused}");
    assert!(!live.takes_writes() && !live.stopped_writes().is_empty());
    // Also when it is looked for, and there is none.
    wait_for_a_look();
    let refused = live.commit_version().unwrap_err().to_string();
    assert!(refused.contains("No space left on device"), "{refused}");
    on.check(live);
}

/// Asserts that with room the same process continues, and what failed never comes back.
fn continues(mut on: OnDisk, live: Arc<GraphHandle>, failed: u32) {
    is_refused(&on, &live);
    on.disk.empty();
    wait_for_a_look();
    // Through a reader that was there before, too.
    let reader = EmbeddedStore::from_handle(Arc::clone(&live), View::Latest).unwrap();
    on.settle(&live, failed);
    on.put(&live, failed + 1).unwrap();
    assert!(live.takes_writes());
    on.check(&live);
    on.commit(&live).unwrap();
    assert!(turns(&reader, &(0..N_NODES).map(NodeId).collect::<Vec<_>>()) == on.rows);
    drop(reader);
    compact(&live).unwrap();
    on.check(&live);
    drop(live);
    on.check(&open(&on.graph, OpenMode::Read).unwrap());
    let live = open(&on.graph, OpenMode::Write).unwrap();
    on.check(&live);
    drop(live);
    assert!(verify_rows(&Graph::open(&on.graph).unwrap()).ok);
}

/// Writes are refused, and another process continues with room.
fn ends_well(on: OnDisk, live: Arc<GraphHandle>, failed: u32) {
    is_refused(&on, &live);
    another_continues(on, live, failed);
}

/// Checks that the process ends, and another continues with room.
fn another_continues(mut on: OnDisk, live: Arc<GraphHandle>, failed: u32) {
    let version = live.version();
    drop(live);
    on.check(&open(&on.graph, OpenMode::Read).unwrap());
    if let Err(error) = open(&on.graph, OpenMode::Write) {
        assert_full(&on.graph, &error);
    }
    let told = lode_line(&format!("compact {}", on.graph.display()));
    if told.code != Some(0) {
        told.failed(1, &["No space left on device", "make room"]);
    }

    on.disk.empty();
    let live = open(&on.graph, OpenMode::Write).unwrap();
    assert!((version..=version + 1).contains(&live.version()));
    on.check(&live);
    on.settle(&live, failed);
    on.put(&live, failed + 1).unwrap();
    on.commit(&live).unwrap();
    compact(&live).unwrap();
    on.check(&live);
    drop(live);
    on.check(&open(&on.graph, OpenMode::Read).unwrap());
    assert!(verify_rows(&Graph::open(&on.graph).unwrap()).ok);
}

/// Puts until the disk is full; returns the turn that failed.
fn put_until_full(on: &mut OnDisk, live: &GraphHandle) -> u32 {
    on.put(live, 1).unwrap();
    on.commit(live).unwrap();
    on.disk.fill(200 << 10);
    let failed = (2..1000).find_map(|turn| Some((turn, on.put(live, turn).err()?)));
    let (turn, error) = failed.expect("the disk is full at last");
    assert!(turn > 2, "there was room for some");
    assert_full(&on.graph, &error);
    turn
}

#[test]
fn a_put_to_a_full_disk_fails_whole_and_no_acknowledged_row_is_lost() {
    let Some(mut on) = OnDisk::new() else { return };
    let live = open(&on.graph, OpenMode::Write).unwrap();
    let turn = put_until_full(&mut on, &live);
    ends_well(on, live, turn);
}

#[test]
fn puts_continue_in_the_same_process_when_there_is_room_again() {
    for on in [OnDisk::new(), OnDisk::on_ext4()] {
        let Some(mut on) = on else { continue };
        let live = open(&on.graph, OpenMode::Write).unwrap();
        let turn = put_until_full(&mut on, &live);
        continues(on, live, turn);
    }
}

/// Where there is room for the look and not for what follows, it is full again, as often as it is.
#[test]
fn a_disk_may_fill_up_again_and_again() {
    let Some(mut on) = OnDisk::new() else { return };
    let live = open(&on.graph, OpenMode::Write).unwrap();
    let mut turn = put_until_full(&mut on, &live);
    for _ in 0..3 {
        on.check(&live);
        on.disk.empty();
        wait_for_a_look();
        on.settle(&live, turn);
        on.put(&live, turn + 1).unwrap();
        on.disk.fill(100 << 10);
        let failed = (turn + 2..turn + 1000).find(|&turn| on.put(&live, turn).is_err());
        turn = failed.expect("the disk is full at last");
    }
    continues(on, live, turn);
}

/// RocksDB holds writes back where tables are to be written first, for which there is no room
/// either.
#[test]
fn of_many_writers_to_a_full_disk_none_waits_for_room() {
    for round in 0..ROUNDS {
        let Some(on) = OnDisk::new() else { return };
        let live = open(&on.graph, OpenMode::Write).unwrap();
        let (told, all) = mpsc::channel();
        for writer in 0..4 {
            let (live, told) = (Arc::clone(&live), told.clone());
            std::thread::spawn(move || {
                let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
                let put = |turn: u32| {
                    let rows: Vec<u8> = ids.iter().flat_map(|&id| put_row(id, turn)).collect();
                    live.put_rows("feat", &ids, &rows).err()
                };
                told.send((writer..).find_map(put)).unwrap();
            });
        }
        drop(told);
        let late = Instant::now() + Duration::from_secs(20);
        let mut n_told = 0;
        while n_told < 4 {
            // A log whose rows have gone to a table makes room.
            on.disk.fill(u64::from(round) * 20_011 % 400_000);
            if let Ok(error) = all.recv_timeout(Duration::from_millis(5)) {
                n_told += 1;
                let error = error.unwrap();
                assert!(error.to_string().contains("No space left on device"), "{error}");
            }
            assert!(Instant::now() < late, "round {round}: {} writers wait", 4 - n_told);
        }
    }
}

#[test]
fn a_server_whose_write_has_failed_says_so_and_takes_puts_again_when_there_is_room() {
    let Some(on) = OnDisk::new() else { return };
    let more = "--shards 1 --writable --insecure --preload none --listen 127.0.0.1:0 \
                --metrics 127.0.0.1:0";
    let server = Serving::start(&on.graph, more);
    let told = || (get(&server.metrics, "/readyz"), get(&server.metrics, "/metrics").body);
    let (readiness, metrics) = told();
    assert_eq!((readiness.status, readiness.body.as_str()), (200, "ready\n"));
    assert!(metrics.contains("\nlodestore_writable 1\n"), "{metrics}");

    on.disk.fill(200 << 10);
    let elsewhere = tempfile::tempdir().unwrap();
    let (ids, rows) = (elsewhere.path().join("ids.npy"), elsewhere.path().join("rows.npy"));
    write_npy(&ids, NpyType::U32, &[300], &(0u32..300).collect::<Vec<_>>());
    write_npy(&rows, NpyType::F32, &[300, WIDTH.into()], &[[1f32; WIDTH as usize]; 300]);
    let (address, ids, rows) = (&server.address, ids.display(), rows.display());
    let put = format!("put --connect {address} --tensor feat --ids {ids} --rows {rows}");
    let has_failed = (0..200).any(|_| lode_line(&put).code != Some(0));
    assert!(has_failed, "the disk is full at last");
    lode_line(&put).failed(1, &["an earlier write failed", "make room"]);
    let (readiness, metrics) = told();
    assert_eq!(readiness.status, 200, "rows are still served");
    for what in ["ready to read; partition ", "No space left on device", "make room"] {
        assert!(readiness.body.contains(what), "{readiness:?}");
    }
    assert!(metrics.contains("\nlodestore_writable 0\n"), "{metrics}");
    assert!(metrics.contains("\nlodestore_ready 1\n"), "{metrics}");
    let load = format!("load --connect {address} --rows 9 --duration 0.2 --warm-up 0");
    lode_line(&load).succeeded();
    on.disk.empty();
    wait_for_a_look();
    lode_line(&put).succeeded();
    let (readiness, metrics) = told();
    assert_eq!((readiness.status, readiness.body.as_str()), (200, "ready\n"));
    assert!(metrics.contains("\nlodestore_writable 1\n"), "{metrics}");
    lode_line(&load).succeeded();
    server.stop();
}

#[test]
fn a_commit_on_a_full_disk_is_there_everywhere_or_nowhere() {
    let Some(mut on) = OnDisk::new() else { return };
    let live = open(&on.graph, OpenMode::Write).unwrap();
    on.put(&live, 1).unwrap();
    on.disk.fill(0);
    // Some find room that the log has taken ahead.
    let error = (0..20_000).find_map(|_| on.commit(&live).err());
    assert_full(&on.graph, &error.expect("the disk is full at last"));
    // Whether the catalog or a file of rows found no room.
    let refused = live.commit_version().unwrap_err();
    assert!(refused.to_string().contains("No space left on device"), "{refused}");
    on.check(&live);
    another_continues(on, live, 1);
}

#[test]
fn a_commit_that_found_no_room_is_a_version_of_its_own_without_what_is_put_later() {
    let Some(mut on) = OnDisk::new() else { return };
    let live = open(&on.graph, OpenMode::Write).unwrap();
    on.put(&live, 1).unwrap();
    on.disk.fill(0);
    (0..20_000).find_map(|_| live.commit_version().err()).expect("the disk is full at last");
    let version = live.version();
    on.disk.empty();
    wait_for_a_look();
    let before = on.rows.clone();
    on.put(&live, 2).unwrap();
    assert_eq!(live.version(), version);
    on.commit(&live).unwrap();
    assert_eq!(live.version(), version + 2);
    let store = EmbeddedStore::from_handle(Arc::clone(&live), View::At(version + 1)).unwrap();
    let all: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    assert!(turns(&store, &all) == before, "the version is of before the put");
    drop((store, live));
    let live = open(&on.graph, OpenMode::Read).unwrap();
    let store = EmbeddedStore::from_handle(Arc::clone(&live), View::At(version + 1)).unwrap();
    assert!(turns(&store, &all) == before, "and stays so");
    on.check(&live);
}

#[test]
fn a_compaction_on_a_full_disk_leaves_everything_as_it_was() {
    let Some(mut on) = OnDisk::new() else { return };
    let live = open(&on.graph, OpenMode::Write).unwrap();
    on.put(&live, 1).unwrap();
    on.commit(&live).unwrap();
    on.disk.fill(40 << 10);
    let before = names_in(&on.graph.join("part-000"));
    let error = compact(&live).unwrap_err();
    assert_full(&on.graph, &error);
    let is_full = |source: &io::Error| source.kind() == io::ErrorKind::StorageFull;
    assert!(matches!(&error, StoreError::Io { source, .. } if is_full(source)), "{error}");
    assert_eq!(names_in(&on.graph.join("part-000")), before, "nothing is left of it");
    on.check(&live);
    // No write to a catalog has failed: the same process continues.
    on.disk.empty();
    compact(&live).unwrap();
    on.put(&live, 2).unwrap();
    on.commit(&live).unwrap();
    on.check(&live);
    assert_eq!(live.oldest_version(), 2);
}
