//! Garbage collection beside writers, readers and pins.

use std::sync::Arc;
use std::time::Duration;

use lodestore_graph::PartId;
use uuid::Uuid;

use super::faulty::{Memory, Moment, Operation, Verdict, bucket, hooked};
use super::{GRAPH, manifest};
use crate::bucket::Bucket;
use crate::error::BucketError;
use crate::gc::{GcOptions, GcReport};
use crate::layout::{ChunkId, UploadId, chunk_key, chunks_prefix, pin_key, upload_key};
use crate::publication::{GraphIdentity, Publication, PublishedFile, pin_to_bytes};

const DAY: Duration = Duration::from_secs(24 * 3600);
const PART: PartId = PartId(0);
/// A graph of one partition.
const ALONE: GraphIdentity = GraphIdentity { n_parts: 1, ..GRAPH };

/// Writes a chunk of these bytes.
fn chunk(memory: &Memory, bytes: &[u8], upload: u64) -> ChunkId {
    let chunk = ChunkId { hash: *blake3::hash(bytes).as_bytes(), upload: UploadId(upload) };
    memory.write(&chunk_key(PART, &chunk), bytes);
    chunk
}

/// Publishes a version of these chunks, of five bytes each.
fn publish(bucket: &Bucket, part: u16, version: u32, chunks: &[ChunkId]) {
    let file = |(at, chunk): (usize, &ChunkId)| {
        let name = if at == 0 { "graph.toml".to_owned() } else { format!("f{at}") };
        PublishedFile { name, n_bytes: 5, chunks: vec![*chunk] }
    };
    let last = bucket.run(bucket.last(ALONE, PartId(part), 0)).unwrap();
    let publication = Publication {
        sequence: last.as_ref().map_or(1, |last| last.publication.sequence + 1),
        epoch: 0,
        attempt: Uuid::new_v4(),
        previous: last.map_or([0; 32], |last| last.hash),
        manifest: manifest(part, version),
        files: chunks.iter().enumerate().map(file).collect(),
    };
    assert!(bucket.run(bucket.publish(ALONE, &publication)).unwrap());
}

/// Returns objects with a graph of one partition.
fn home() -> Arc<Memory> {
    let memory = Arc::new(Memory::default());
    memory.write("lodestore-graph", &ALONE.to_bytes());
    memory
}

fn has(memory: &Memory, chunk: &ChunkId) -> bool {
    memory.read(&chunk_key(PART, chunk)).is_some()
}

fn gc(bucket: &Bucket) -> GcReport {
    bucket.gc(&GcOptions::default()).unwrap()
}

fn check_whole(memory: &Arc<Memory>) {
    let report = bucket(memory).verify(&mut |_, _| {}).unwrap();
    assert!(report.ok, "{:?}", report.damaged);
}

/// Publishes version 1 of two chunks and version 2 of one other, both long ago; returns the chunks.
fn two_versions(memory: &Arc<Memory>) -> [ChunkId; 3] {
    let [a, b, c] = [&b"aaaaa"[..], b"bbbbb", b"ccccc"].map(|bytes| chunk(memory, bytes, 0));
    publish(&bucket(memory), 0, 1, &[a, b]);
    memory.pass(2 * DAY);
    publish(&bucket(memory), 0, 2, &[c]);
    memory.pass(2 * DAY);
    [a, b, c]
}

#[test]
fn old_versions_go_with_their_chunks() {
    let memory = home();
    let [a, b, c] = two_versions(&memory);
    let report = gc(&bucket(&memory));
    assert_eq!((report.publications, report.publications_kept, report.chunks), (1, 1, 2));
    assert!(!has(&memory, &a) && !has(&memory, &b) && has(&memory, &c));
    assert!(memory.keys("condemned").is_empty());
    check_whole(&memory);
}

#[test]
fn chunks_of_publications_since_the_beginning_stay() {
    let memory = home();
    let [a, ..] = two_versions(&memory);
    let writer = bucket(&memory);
    let mut is_published = false;
    // A writer of an earlier release uses an old chunk again, once publications were read.
    let collector = hooked(&memory, move |moment, operation, key| {
        let is_due = (moment, operation) == (Moment::After, Operation::List) && key == "condemned";
        if is_due && !is_published {
            is_published = true;
            // Another thread, as this one runs the collector.
            std::thread::scope(|scope| {
                scope.spawn(|| publish(&writer, 0, 3, &[a])).join().unwrap();
            });
        }
        Verdict::Continue
    });
    gc(&collector);
    assert!(has(&memory, &a));
    check_whole(&memory);
}

#[test]
fn a_chunk_that_an_earlier_release_writes_again_since_the_list_stays() {
    let memory = home();
    let [a, b, _] = two_versions(&memory);
    let of_writer = Arc::clone(&memory);
    let collector = hooked(&memory, move |moment, operation, key| {
        let is_due = (moment, operation) == (Moment::After, Operation::List);
        if is_due && key == chunks_prefix(PART) {
            of_writer.write(&chunk_key(PART, &a), b"aaaaa");
        }
        Verdict::Continue
    });
    let report = gc(&collector);
    assert!(has(&memory, &a) && !has(&memory, &b));
    assert_eq!((report.chunks, report.chunks_kept), (1, 2));
}

#[test]
fn what_is_published_is_whole_where_a_run_stops_at_any_operation() {
    for n in 0.. {
        let memory = home();
        two_versions(&memory);
        let mut left = n;
        let collector = hooked(&memory, move |_, _, _| {
            left -= 1;
            if left < 0 { Verdict::Stop } else { Verdict::Continue }
        });
        let ended = collector.gc(&GcOptions::default()).is_ok();
        check_whole(&memory);
        // The next run, once that is known to have ended, does what is left.
        memory.pass(2 * DAY);
        gc(&bucket(&memory));
        assert_eq!(memory.keys(&chunks_prefix(PART)).len(), 1, "{n}");
        assert!(memory.keys("condemned").is_empty());
        check_whole(&memory);
        if ended {
            break;
        }
    }
}

#[test]
fn a_chunk_that_cannot_be_removed_is_of_no_publication() {
    let memory = home();
    let [a, ..] = two_versions(&memory);
    let key = chunk_key(PART, &a);
    let collector = hooked(&memory, move |moment, operation, at| {
        let is_it = (moment, operation) == (Moment::Before, Operation::Remove) && at == key;
        if is_it { Verdict::Fail } else { Verdict::Continue }
    });
    collector.gc(&GcOptions::default()).unwrap_err();
    check_whole(&memory);
}

fn pin_paper() -> GcOptions {
    GcOptions { pin: vec![("paper".to_owned(), 1)], keep: 5, ..GcOptions::default() }
}

/// A pin of another process at any step of a run: it is refused, or its version stays.
#[test]
fn a_pin_that_is_reported_is_kept_whenever_it_is_set() {
    let mut n_refused = 0;
    for n in 0.. {
        let memory = home();
        let [a, ..] = two_versions(&memory);
        let (of_other, mut left, mut pinned) = (Arc::clone(&memory), n, None);
        let (result, received) = std::sync::mpsc::channel();
        let collector = hooked(&memory, move |_, _, _| {
            if left == 0 && pinned.is_none() {
                // Another thread, as this one runs the collector.
                let pin = || bucket(&of_other).gc(&pin_paper()).is_ok();
                let is_pinned = std::thread::scope(|scope| scope.spawn(pin).join().unwrap());
                pinned = Some(is_pinned);
                result.send(is_pinned).unwrap();
            }
            left -= 1;
            Verdict::Continue
        });
        gc(&collector);
        let Ok(is_pinned) = received.try_recv() else { break };
        let is_there = bucket(&memory).run(bucket(&memory).complete(ALONE, Some(1))).is_ok();
        assert_eq!(is_pinned, memory.read(&pin_key("paper")).is_some(), "at {n}");
        assert!(!is_pinned || is_there && has(&memory, &a), "at {n}");
        n_refused += u32::from(!is_pinned);
        check_whole(&memory);
    }
    assert!(n_refused > 2, "{n_refused}");
}

#[test]
fn a_version_that_was_pinned_while_the_run_planned_stays() {
    let memory = home();
    let [a, ..] = two_versions(&memory);
    let of_other = Arc::clone(&memory);
    let collector = hooked(&memory, move |moment, operation, key| {
        let is_written = (moment, operation) == (Moment::After, Operation::Write);
        if is_written && key.starts_with("condemned/") {
            of_other.write(&pin_key("paper"), &pin_to_bytes(1));
        }
        Verdict::Continue
    });
    let report = gc(&collector);
    assert_eq!((report.publications, report.pins["paper"]), (0, 1));
    assert!(has(&memory, &a));
}

#[test]
fn a_version_that_a_run_removes_is_not_pinned() {
    let memory = home();
    two_versions(&memory);
    let key = crate::layout::condemned_key(Uuid::new_v4());
    let condemned = [(PART, 1)].into_iter().collect();
    memory.write(&key, &crate::publication::condemned_to_bytes(&condemned));
    let refused = bucket(&memory).gc(&pin_paper()).unwrap_err();
    assert!(matches!(refused, BucketError::Refused { .. }), "{refused}");
    assert!(refused.to_string().contains("is removing version 1"), "{refused}");
    assert!(memory.keys("pins").is_empty());
}

#[test]
fn the_next_run_reads_no_tombstones() {
    let memory = home();
    let c = chunk(&memory, b"ccccc", 7);
    for version in 1..=40 {
        publish(&bucket(&memory), 0, version, &[c]);
        memory.pass(2 * DAY);
    }
    bucket(&memory)
        .gc(&GcOptions { pin: vec![("p".to_owned(), 3)], ..GcOptions::default() })
        .unwrap();
    publish(&bucket(&memory), 0, 41, &[c]);
    memory.pass(2 * DAY);
    let read = Arc::new(std::sync::Mutex::new(std::collections::BTreeSet::new()));
    let of_hook = Arc::clone(&read);
    let collector = hooked(&memory, move |_, operation, key| {
        if operation == Operation::Get && key.contains("published") {
            of_hook.lock().unwrap().insert(key.to_owned());
        }
        Verdict::Continue
    });
    let report = gc(&collector);
    assert_eq!((report.publications, report.publications_kept), (1, 2));
    assert_eq!(read.lock().unwrap().len(), 3, "{read:?}");
    let floor = bucket(&memory).gc(&GcOptions { is_dry_run: true, ..GcOptions::default() });
    assert_eq!(floor.unwrap().publications_kept, 2);
}

/// Chunks of an upload whose writer renews its lease stay, however old they are.
#[test]
fn chunks_of_an_upload_under_way_stay() {
    let memory = home();
    two_versions(&memory);
    let writer = bucket(&memory);
    let mut lease = writer.run(writer.draw_upload()).unwrap();
    let [d, e] = [(b"ddddd", lease.id().0), (b"eeeee", 77)].map(|(b, id)| chunk(&memory, b, id));
    memory.pass(3 * DAY);
    // As it is renewed.
    let key = upload_key(lease.id());
    memory.write(&key, &crate::publication::lease_to_bytes(&[]));
    let report = gc(&bucket(&memory));
    assert!(has(&memory, &d) && !has(&memory, &e), "{report:?}");
    assert!(writer.run(writer.holds(&lease)).unwrap());
    writer.run(writer.renew(&mut lease)).unwrap();
    memory.pass(3 * DAY);
    gc(&bucket(&memory));
    assert!(!has(&memory, &d));
    assert!(!writer.run(writer.holds(&lease)).unwrap(), "it was not renewed");
}

/// Garbage collection takes the upload for one that was cut off.
#[test]
fn a_lease_that_was_removed_is_not_renewed() {
    let memory = home();
    let writer = bucket(&memory);
    for is_removed in [false, true] {
        let mut lease = writer.run(writer.draw_upload()).unwrap();
        lease.renewed_before(Duration::from_secs(3600));
        if is_removed {
            memory.remove(&upload_key(lease.id()));
        }
        writer.run(writer.renew(&mut lease)).unwrap();
        assert_eq!(writer.run(writer.holds(&lease)).unwrap(), !is_removed);
    }
}

/// A run that has seen neither lease is removing the chunks of an upload that ended meanwhile.
#[test]
fn an_upload_that_ends_while_it_is_claimed_is_not_continued() {
    for has_ended in [false, true] {
        let memory = home();
        let first = bucket(&memory);
        let claimed = first.run(first.draw_upload()).unwrap().id();
        let of_hook = Arc::clone(&memory);
        let mut n_leases = 0;
        let second = hooked(&memory, move |moment, operation, key| {
            let is_lease = (moment, operation) == (Moment::After, Operation::Write)
                && key.starts_with("pushing/");
            n_leases += u32::from(is_lease);
            if is_lease && n_leases == 2 && has_ended {
                of_hook.remove(&upload_key(claimed));
            }
            Verdict::Continue
        });
        let mut lease = second.run(second.draw_upload()).unwrap();
        second.run(second.continue_uploads(&mut lease, &[claimed].into())).unwrap();
        assert_eq!(lease.covers(claimed), !has_ended);
    }
}
