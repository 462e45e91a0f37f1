//! Pushes and pulls of small graphs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lodestore_graph::{NodeId, PartId};
use lodestore_store::repair::RepairMode;
use lodestore_store::{Graph, GraphHandle, OpenMode, OpenOptions};

use super::faulty::{Memory, Moment, Operation, Verdict, bucket, hooked, waiting};
use super::graph::{commit, import, import_in, open, replace_label, rows};
use crate::bucket::Bucket;
use crate::error::BucketError;
use crate::follow::BucketFollower;
use crate::gc::GcOptions;
use crate::head::Folder;
use crate::layout::{chunk_key, publication_key};
use crate::leases::N_PARTS;
use crate::publication::Publication;
use crate::publisher::{Cut, Publisher, Turn};
use crate::pull::PullOptions;
use crate::push::PushReport;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn push(bucket: &Bucket, graph: &std::path::Path) -> Result<PushReport, BucketError> {
    bucket.push(graph, &[], &mut |_, _| {})
}

fn check_whole(memory: &Arc<Memory>) {
    let report = bucket(memory).verify(&mut |_, _| {}).unwrap();
    assert!(report.ok, "{:?}", report.damaged);
}

/// Returns the newest publication of a partition.
fn newest(memory: &Arc<Memory>, part: u16) -> Publication {
    let bucket = bucket(memory);
    let graph = bucket.run(bucket.graph()).unwrap();
    let last = bucket.run(bucket.last(graph, PartId(part), 0)).unwrap().unwrap();
    Publication::clone(&last.publication)
}

#[test]
fn a_push_whose_chunk_and_lease_go_sends_the_chunk_again() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), Arc::new(Memory::default()));
    let graph = import(dir.path());
    let (of_hook, mut is_gone) = (Arc::clone(&memory), false);
    let writer = hooked(&memory, move |moment, operation, key| {
        let is_chunk = (moment, operation) == (Moment::After, Operation::Write)
            && key.starts_with("part-001/chunks/");
        if is_chunk && !is_gone {
            is_gone = true;
            // As garbage collection does with a process that was stopped for a day.
            of_hook.keys("pushing").iter().for_each(|lease| of_hook.remove(lease));
            of_hook.remove(key);
        }
        Verdict::Continue
    });
    push(&writer, &graph).unwrap();
    check_whole(&memory);
    assert!(memory.keys("pushing").is_empty());
}

/// Checks that the next push sends no chunk again that an earlier one has sent, and returns which
/// partitions it published.
fn continue_push(memory: &Arc<Memory>, graph: &std::path::Path) -> Vec<bool> {
    let parts = [PartId(0), PartId(1)];
    let sent = parts.map(|part| memory.keys(&format!("part-{part:03}/chunks")));
    assert!(sent.iter().any(|keys| !keys.is_empty()));
    memory.pass(Duration::from_secs(3600));
    let report = push(&bucket(memory), graph).unwrap();
    for (part, keys) in parts.into_iter().zip(sent) {
        let named = newest(memory, part.0);
        for key in keys {
            let is_named = named.chunks().any(|chunk| chunk_key(part, chunk) == key);
            assert!(is_named, "{key} was sent again");
        }
    }
    check_whole(memory);
    report.parts.iter().map(|it| it.is_new).collect()
}

/// Chunks of partitions are uploaded in parallel: which ones arrive before the end differs.
#[test]
fn a_push_that_is_cut_off_among_its_chunks_continues() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), Arc::new(Memory::default()));
    let graph = import(dir.path());
    let mut n_chunks = 0;
    let cut_off = hooked(&memory, move |moment, operation, key| {
        let is_chunk = (moment, operation) == (Moment::After, Operation::Write)
            && key.starts_with("part-001/chunks/");
        n_chunks += u32::from(is_chunk);
        if n_chunks == 2 { Verdict::Stop } else { Verdict::Continue }
    });
    push(&cut_off, &graph).unwrap_err();
    assert!(memory.keys("part-001/published").is_empty());
    let is_first_published = !memory.keys("part-000/published").is_empty();
    assert_eq!(continue_push(&memory, &graph), [!is_first_published, true]);
}

#[test]
fn a_push_publishes_each_partition_before_it_ends() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), Arc::new(Memory::default()));
    let graph = import(dir.path());
    let cut_off = hooked(&memory, |moment, operation, key| {
        let is_second = (moment, operation) == (Moment::Before, Operation::Create)
            && key.starts_with("part-001/published/");
        if is_second { Verdict::Stop } else { Verdict::Continue }
    });
    push(&cut_off, &graph).unwrap_err();
    assert_eq!(memory.keys("part-000/published").len(), 1);
    assert!(memory.keys("part-001/published").is_empty());
    assert_eq!(continue_push(&memory, &graph), [false, true]);
}

/// Content that returns is another chunk: garbage collection may be removing the old one.
#[test]
fn rows_that_return_while_their_old_chunk_goes_are_whole() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), Arc::new(Memory::default()));
    let graph = import(dir.path());
    push(&bucket(&memory), &graph).unwrap();
    // Nothing names its chunks any more.
    memory.remove(&publication_key(PartId(0), 1));
    memory.pass(3 * DAY);
    let (writer, graph_dir, mut is_pushed) = (bucket(&memory), graph.clone(), false);
    let collector = hooked(&memory, move |moment, operation, at| {
        let is_chunk = at.starts_with("part-000/chunks/");
        if (moment, operation) == (Moment::Before, Operation::Remove) && is_chunk && !is_pushed {
            is_pushed = true;
            std::thread::scope(|scope| {
                scope.spawn(|| push(&writer, &graph_dir).unwrap()).join().unwrap();
            });
        }
        Verdict::Continue
    });
    let report = collector.gc(&GcOptions::default()).unwrap();
    assert!(report.chunks > 3, "{report:?}");
    assert_eq!(newest(&memory, 0).sequence, 1, "published while the old chunks were removed");
    check_whole(&memory);
}

#[test]
fn a_chunk_that_the_bucket_has_lost_is_there_again_for_all_publications() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), Arc::new(Memory::default()));
    let graph = import(dir.path());
    push(&bucket(&memory), &graph).unwrap();
    commit(&open(&graph, OpenMode::Write), 5000);
    push(&bucket(&memory), &graph).unwrap();
    let named = newest(&memory, 0);
    let label = named.files.iter().find(|it| it.name == "label.v1.seg").unwrap();
    memory.remove(&chunk_key(PartId(0), &label.chunks[0]));
    memory.pass(3 * DAY);
    push(&bucket(&memory), &graph).unwrap();
    check_whole(&memory);
}

/// Opens a publisher of a graph that is open.
fn publisher(memory: &Arc<Memory>, live: &GraphHandle) -> Publisher {
    Publisher::begin_with(bucket(memory), live, Folder::Continues).unwrap()
}

/// Returns the turn that publishes a partition at a cut.
fn turn(part: u16, cut: &Cut) -> Turn<'_> {
    Turn { part: PartId(part), looks_for_others: false, cut: Some(cut) }
}

/// Publishes a round of all partitions; returns the version.
fn round(publisher: &mut Publisher, live: &GraphHandle) -> Option<u32> {
    let cut = publisher.next_cut(live).unwrap()?;
    let turns: Vec<Turn<'_>> = live.parts().map(|part| turn(part.0, &cut)).collect();
    publisher.take_turns(live, &turns).into_iter().collect::<Result<(), _>>().unwrap();
    publisher.record(live).unwrap();
    Some(cut.version())
}

#[test]
fn a_round_publishes_one_version_whatever_is_committed_meanwhile() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), Arc::new(Memory::default()));
    let graph = import(dir.path());
    let live = open(&graph, OpenMode::Write);
    let mut ours = publisher(&memory, &live);
    assert_eq!(round(&mut ours, &live), Some(1));
    assert_eq!(round(&mut ours, &live), None);
    for version in [2, 4, 6] {
        assert_eq!(commit(&live, version * 1000), version);
        let cut = ours.next_cut(&live).unwrap().unwrap();
        ours.take_turns(&live, &[turn(0, &cut)]).remove(0).unwrap();
        commit(&live, version * 1000 + 500);
        let mut go_on = |_, _| std::ops::ControlFlow::Continue(());
        live.compact(None, None, lodestore_store::update::Folding::Deltas, &mut go_on).unwrap();
        ours.take_turns(&live, &[turn(1, &cut)]).remove(0).unwrap();
        let summary = bucket(&memory).inspect(1).unwrap();
        assert_eq!(summary.version, Some(version));
        assert_eq!(summary.versions, [version]);
    }
    assert_eq!(round(&mut ours, &live), Some(7));
    let complete = bucket(&memory).inspect(10).unwrap().versions;
    assert_eq!(complete[0], 7);
    assert!(complete.is_sorted_by(|a, b| a > b), "{complete:?}");
    assert!(complete.contains(&4), "{complete:?}");
    for version in 1..=7 {
        let options = PullOptions { version: Some(version), ..PullOptions::default() };
        let into = dir.path().join(format!("version-{version}"));
        let pulled = bucket(&memory).pull(&into, &options, &mut |_, _| {});
        assert_eq!(pulled.is_ok(), complete.contains(&version), "version {version}: {pulled:?}");
    }
    ours.end();
    assert!(memory.keys("pushing").is_empty());
    drop(live);
    bucket(&memory)
        .pull(&dir.path().join("pulled"), &PullOptions::default(), &mut |_, _| {})
        .unwrap();
    assert!(rows(&graph, "feat") == rows(&dir.path().join("pulled"), "feat"));
}

#[test]
fn an_install_that_fails_is_tried_again() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), Arc::new(Memory::default()));
    let (graph, into) = (import(dir.path()), dir.path().join("follower"));
    push(&bucket(&memory), &graph).unwrap();
    let mut follower = BucketFollower::begin(bucket(&memory), &into, &[], None).unwrap();
    while follower.bring_next(&mut |_, _| {}).unwrap().is_some() {}
    let live = open(&into, OpenMode::Follow);
    commit(&open(&graph, OpenMode::Write), 5000);
    push(&bucket(&memory), &graph).unwrap();
    let n_installs = AtomicU32::new(0);
    let mut install = |manifest: &lodestore_store::follow::Manifest| {
        if n_installs.fetch_add(1, Ordering::Relaxed) == 0 {
            return Err(BucketError::Runtime("no memory".to_owned()));
        }
        Ok(live.install(manifest)?)
    };
    let mut poll = || {
        assert_eq!(follower.look(PartId(0)).unwrap(), Some(2));
        follower.fetch(&live, PartId(0), &mut install)
    };
    poll().unwrap_err();
    assert!(poll().unwrap(), "it is tried again");
    assert!(!poll().unwrap());
    assert_eq!(live.part_version(PartId(0)), Some(2));
}

#[test]
fn a_file_that_is_not_that_of_the_manifest_is_named() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), Arc::new(Memory::default()));
    let graph = import(dir.path());
    push(&bucket(&memory), &graph).unwrap();
    let mut wrong = newest(&memory, 0);
    let file = wrong.files.iter_mut().find(|it| it.name == "label.v1.seg").unwrap();
    let key = chunk_key(PartId(0), &file.chunks[0]);
    let mut bytes = memory.read(&key).unwrap();
    bytes[5000] ^= 1;
    file.chunks[0].hash = *blake3::hash(&bytes).as_bytes();
    memory.write(&chunk_key(PartId(0), &file.chunks[0]), &bytes);
    memory.write(&publication_key(PartId(0), 1), &wrong.to_bytes());
    let into = dir.path().join("pulled");
    let pulled = bucket(&memory).pull(&into, &PullOptions::default(), &mut |_, _| {});
    let error = pulled.unwrap_err().to_string();
    assert!(error.contains("label.v1.seg") && error.contains("damaged page"), "{error}");
}

/// Returns a folder for graphs, in memory where there is room for one.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

#[test]
fn a_folder_knows_what_it_has_published_after_more_commits_than_its_catalog_keeps() {
    let (dir, memory) = (folder(), Arc::new(Memory::default()));
    let graph = import(dir.path());
    let live = open(&graph, OpenMode::Write);
    commit(&live, 5000);
    push(&bucket(&memory), &graph).unwrap();
    let copy = dir.path().join("copy");
    bucket(&memory).pull(&copy, &PullOptions::default(), &mut |_, _| {}).unwrap();
    let many = lodestore_store::limits::COMMITS_LISTED + 5;
    let other = open(&copy, OpenMode::Write);
    for _ in 0..many {
        live.commit_version().unwrap();
        other.commit_version().unwrap();
    }
    // A server that is started again, and a push.
    assert_eq!(round(&mut publisher(&memory, &live), &live), Some(2 + many));
    live.commit_version().unwrap();
    assert_eq!(push(&bucket(&memory), &graph).unwrap().version, 3 + many);
    let refused = push(&bucket(&memory), &copy).unwrap_err();
    assert!(refused.fences(), "another folder has published since: {refused}");
}

/// Loses the catalogs of a folder and has them rebuilt. Nothing is left that shows that the newest
/// version was committed: it is committed again, as the same commit.
fn repair(graph: &std::path::Path) {
    for part in 0..2 {
        std::fs::remove_dir_all(graph.join(format!("part-{part:03}/catalog"))).unwrap();
    }
    lodestore_store::repair::repair(graph, RepairMode::Apply, &mut |_, _| {}).unwrap();
    open(graph, OpenMode::Write).commit_version().unwrap();
}

#[test]
fn a_writer_whose_catalog_was_rebuilt_publishes_again() {
    for has_record in [true, false] {
        let (dir, memory) = (folder(), Arc::new(Memory::default()));
        let graph = import(dir.path());
        commit(&open(&graph, OpenMode::Write), 5000);
        push(&bucket(&memory), &graph).unwrap();
        commit(&open(&graph, OpenMode::Write), 6000);
        let before = rows(&graph, "feat");
        repair(&graph);
        assert!(rows(&graph, "feat") == before);
        if !has_record {
            std::fs::remove_file(graph.join("bucket-epochs")).unwrap();
        }
        let report = push(&bucket(&memory), &graph).unwrap();
        assert_eq!(report.version, 3, "by its files if not by its record: {has_record}");
        let pulled = dir.path().join("pulled");
        bucket(&memory).pull(&pulled, &PullOptions::default(), &mut |_, _| {}).unwrap();
        assert!(rows(&pulled, "feat") == before);
    }
}

#[test]
fn a_rebuilt_folder_of_another_history_is_fenced() {
    let (dir, memory) = (folder(), Arc::new(Memory::default()));
    let (graph, copy) = (import(dir.path()), dir.path().join("copy"));
    push(&bucket(&memory), &graph).unwrap();
    bucket(&memory).pull(&copy, &PullOptions::default(), &mut |_, _| {}).unwrap();
    commit(&open(&graph, OpenMode::Write), 5000);
    commit(&open(&copy, OpenMode::Write), 6000);
    push(&bucket(&memory), &graph).unwrap();
    repair(&copy);
    for _ in 0..2 {
        let refused = push(&bucket(&memory), &copy).unwrap_err();
        assert!(refused.fences(), "{refused}");
        let taken = bucket(&memory).take_over(&copy, &[], &mut |_, _| {}).unwrap_err();
        assert!(taken.fences(), "a takeover vouches for no other rows: {taken}");
        commit(&open(&copy, OpenMode::Write), 7000);
    }
}

#[test]
fn a_tensor_that_was_imported_again_is_published() {
    let (dir, memory) = (folder(), Arc::new(Memory::default()));
    let graph = import(dir.path());
    push(&bucket(&memory), &graph).unwrap();
    replace_label(&graph);
    let label = rows(&graph, "label");
    let report = push(&bucket(&memory), &graph).unwrap();
    assert_eq!((report.version, report.parts[0].publication), (1, 2));
    let pulled = dir.path().join("pulled");
    bucket(&memory).pull(&pulled, &PullOptions::default(), &mut |_, _| {}).unwrap();
    assert!(rows(&pulled, "label") == label);
    // A server that starts publishes it too.
    replace_label(&graph);
    let live = open(&graph, OpenMode::Write);
    assert_eq!(round(&mut publisher(&memory, &live), &live), Some(1));
    assert_eq!(newest(&memory, 1).sequence, 3);
    assert_eq!(round(&mut publisher(&memory, &live), &live), None);
}

#[test]
fn a_takeover_that_cannot_bring_a_partition_fences_no_writer() {
    let (dir, memory) = (folder(), Arc::new(Memory::default()));
    let graph = import(dir.path());
    push(&bucket(&memory), &graph).unwrap();
    memory.remove(&memory.keys("part-001/chunks")[0]);
    let into = dir.path().join("taken");
    bucket(&memory).take_over(&into, &[], &mut |_, _| {}).unwrap_err();
    assert_eq!((newest(&memory, 0).epoch, newest(&memory, 1).epoch), (0, 0));
    commit(&open(&graph, OpenMode::Write), 5000);
    assert_eq!(push(&bucket(&memory), &graph).unwrap().version, 2);
}

#[test]
fn a_folder_that_takes_its_partitions_back_publishes_after_a_restart() {
    let (dir, memory) = (folder(), Arc::new(Memory::default()));
    let (graph, copy) = (import(dir.path()), dir.path().join("copy"));
    push(&bucket(&memory), &graph).unwrap();
    bucket(&memory).pull(&copy, &PullOptions::default(), &mut |_, _| {}).unwrap();
    for (folder, other, version) in [(&copy, &graph, 2), (&graph, &copy, 3)] {
        bucket(&memory).take_over(folder, &[], &mut |_, _| {}).unwrap();
        commit(&open(folder, OpenMode::Write), version * 1000);
        assert_eq!(push(&bucket(&memory), folder).unwrap().version, version);
        let refused = push(&bucket(&memory), other).unwrap_err();
        assert!(refused.fences(), "{refused}");
    }
}

/// Another server has the other partition, and chooses the same versions.
#[test]
fn the_cut_after_the_one_that_is_published_stays_readable() {
    let (dir, memory) = (folder(), Arc::new(Memory::default()));
    let (graph, parts) = (Graph::open(&import(dir.path())).unwrap(), [PartId(0)]);
    let options = OpenOptions::default();
    let live = GraphHandle::open(graph, Some(&parts), OpenMode::Write, &options).unwrap();
    let commit_to = |version: u32| {
        while live.version() < version {
            live.put_rows("feat", &[NodeId(1)], &live.version().to_le_bytes()).unwrap();
            live.commit_version().unwrap();
        }
        let mut go_on = |_, _| std::ops::ControlFlow::Continue(());
        live.compact(None, None, lodestore_store::update::Folding::All, &mut go_on).unwrap();
    };
    let mut ours = publisher(&memory, &live);
    assert_eq!(round(&mut ours, &live), Some(1));
    for (newest, cut) in [(5, 4), (7, 6), (7, 7), (9, 8)] {
        commit_to(newest);
        assert_eq!(round(&mut ours, &live), Some(cut));
    }
}

#[test]
fn a_publisher_whose_partitions_were_taken_over_publishes_no_more() {
    let (dir, memory) = (folder(), Arc::new(Memory::default()));
    let (graph, copy) = (import(dir.path()), dir.path().join("copy"));
    let live = open(&graph, OpenMode::Write);
    let mut ours = publisher(&memory, &live);
    assert_eq!(round(&mut ours, &live), Some(1));
    bucket(&memory).take_over(&copy, &[], &mut |_, _| {}).unwrap();
    // What it commits continues the version that is there in the next epoch.
    commit(&live, 5000);
    let cut = ours.next_cut(&live).unwrap().unwrap();
    let refused = ours.take_turns(&live, &[turn(0, &cut)]).remove(0).unwrap_err();
    assert!(refused.fences(), "{refused}");
    assert_eq!((newest(&memory, 0).sequence, newest(&memory, 0).epoch), (2, 1));
}

/// Returns a bucket that counts the most partitions between their first look and their publication.
fn most_under_way(memory: &Arc<Memory>) -> (Bucket, Arc<AtomicU32>) {
    let most = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&most);
    let mut under_way = BTreeSet::new();
    let bucket = waiting(memory, move |moment, operation, key| {
        let part = key.split('/').next().unwrap_or_default().to_owned();
        match (moment, operation) {
            (Moment::Before, Operation::List) if key.ends_with("/chunks") => {
                under_way.insert(part);
            }
            (Moment::After, Operation::Create) => {
                under_way.remove(&part);
            }
            _ => {}
        }
        count.fetch_max(under_way.len() as u32, Ordering::Relaxed);
        Verdict::Continue
    });
    (bucket, most)
}

#[test]
fn several_partitions_are_uploaded_in_parallel_and_no_more() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), Arc::new(Memory::default()));
    let graph = import_in(dir.path(), 40);
    let (first, most) = most_under_way(&memory);
    push(&first, &graph).unwrap();
    assert_eq!(most.load(Ordering::Relaxed), N_PARTS as u32);
    check_whole(&memory);
    // Those of a server too.
    let live = open(&graph, OpenMode::Write);
    let (second, most) = most_under_way(&memory);
    let mut ours = Publisher::begin_with(second, &live, Folder::Continues).unwrap();
    commit(&live, 5000);
    assert_eq!(round(&mut ours, &live), Some(2));
    assert_eq!(most.load(Ordering::Relaxed), N_PARTS as u32);
    ours.end();
    assert!(memory.keys("pushing").is_empty());
    check_whole(&memory);
}

#[test]
fn partitions_are_published_in_order_up_to_the_first_that_fails() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), Arc::new(Memory::default()));
    let graph = import_in(dir.path(), 40);
    let failing = waiting(&memory, |moment, operation, key| {
        let is_its = moment == Moment::Before && operation == Operation::Create;
        if is_its && key.starts_with("part-003/") { Verdict::Refuse } else { Verdict::Continue }
    });
    let error = push(&failing, &graph).unwrap_err().to_string();
    assert!(error.contains("part-003/published/0000000001"), "{error}");
    assert!(memory.keys("part-003/published").is_empty());
    let is_published = |part: &u16| !memory.keys(&format!("part-{part:03}/published")).is_empty();
    let published: Vec<u16> = (0..40).filter(is_published).collect();
    // Of two writers of the same partitions one would have lost here: it publishes no more.
    assert_eq!(published, [0, 1, 2]);
    let report = push(&bucket(&memory), &graph).unwrap();
    let n_new = report.parts.iter().filter(|part| part.is_new).count();
    assert_eq!(n_new, 37);
    check_whole(&memory);
}

#[test]
fn the_newest_complete_version_is_looked_for_in_all_partitions_in_parallel() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), Arc::new(Memory::default()));
    let graph = import_in(dir.path(), 40);
    push(&bucket(&memory), &graph).unwrap();
    commit(&open(&graph, OpenMode::Write), 5000);
    let ahead: Vec<PartId> = (0..39).map(PartId).collect();
    let mut ignored = |_, _| {};
    bucket(&memory).push(&graph, &ahead, &mut ignored).unwrap();
    // The publications of version 1, which 39 partitions are ahead of.
    let n_reads = Arc::new(AtomicU32::new(0));
    let most = Arc::new(AtomicU32::new(0));
    let reads = Arc::clone(&n_reads);
    let at_once = Arc::clone(&most);
    let mut under_way = 0;
    let reader = waiting(&memory, move |moment, operation, key| {
        if operation == Operation::Get && key.ends_with("/published/0000000001") {
            match moment {
                Moment::Before => under_way += 1,
                Moment::After => under_way -= 1,
            }
            reads.fetch_add(u32::from(moment == Moment::Before), Ordering::Relaxed);
            at_once.fetch_max(under_way, Ordering::Relaxed);
        }
        Verdict::Continue
    });
    let found = reader.run(async {
        let graph = reader.graph().await?;
        reader.complete(graph, None).await
    });
    let versions: BTreeSet<u32> = found.unwrap().iter().map(Publication::version).collect();
    assert_eq!(versions, BTreeSet::from([1]));
    assert_eq!(n_reads.load(Ordering::Relaxed), 40);
    assert_eq!(most.load(Ordering::Relaxed), crate::bucket::N_LOOKS as u32);
}
