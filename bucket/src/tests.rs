//! Publications over a store in memory: their bytes, lost replies, and two writers.

use std::sync::Arc;

use lodestore_graph::PartId;
use lodestore_store::follow::Manifest;
use proptest::prelude::*;
use uuid::Uuid;

use self::faulty::{Memory, Moment, Operation, Verdict, hooked};
use crate::bucket::Bucket;
use crate::error::BucketError;
use crate::layout::{CHUNK_BYTES, ChunkId, UploadId, publication_key};
use crate::publication::{GraphIdentity, Publication, Published, PublishedFile};
use crate::sealed::{FORMAT, Kind, seal, seal_as};

mod faulty;
mod gc;
pub(crate) mod graph;
mod push;

const GRAPH: GraphIdentity = GraphIdentity { graph: Uuid::from_u128(7), n_parts: 2 };

/// Returns the manifest of a partition without tensors, byte for byte as a writer lists it.
fn manifest(part: u16, version: u32) -> Manifest {
    let mut bytes = b"LODEMAN2".to_vec();
    bytes.extend_from_slice(GRAPH.graph.as_bytes());
    bytes.extend_from_slice(&part.to_le_bytes());
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&[0, 0, 0, 0]);
    let checksum = blake3::hash(&bytes);
    bytes.extend_from_slice(checksum.as_bytes());
    Manifest::from_bytes(&bytes).unwrap()
}

fn chunk(hash: u8) -> ChunkId {
    ChunkId { hash: [hash; 32], upload: UploadId(9) }
}

fn publication(part: u16, sequence: u64, version: u32) -> Publication {
    let files =
        vec![PublishedFile { name: "graph.toml".to_owned(), n_bytes: 9, chunks: vec![chunk(5)] }];
    let (attempt, manifest) = (Uuid::new_v4(), manifest(part, version));
    Publication { sequence, epoch: 0, attempt, previous: [0; 32], manifest, files }
}

/// The fate of the next creations of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It is done, and the reply is lost.
    ReplyLost,
    /// Nothing is done.
    NotDone,
    Refused,
}

/// Returns a bucket whose next creations fail.
fn bucket(memory: &Arc<Memory>, fault: Fault, mut n_faults: u32) -> Bucket {
    hooked(memory, move |moment, operation, _| {
        let is_its = match fault {
            Fault::ReplyLost => moment == Moment::After,
            Fault::NotDone | Fault::Refused => moment == Moment::Before,
        };
        if operation != Operation::Create || !is_its || n_faults == 0 {
            return Verdict::Continue;
        }
        n_faults -= 1;
        if fault == Fault::Refused { Verdict::Refuse } else { Verdict::Fail }
    })
}

fn write(bucket: &Bucket, key: &str, bytes: Vec<u8>) {
    bucket.run(bucket.write(key, bytes.into())).unwrap();
}

#[test]
fn a_writer_whose_reply_was_lost_finds_that_it_has_published() {
    for (fault, n_faults) in [(Fault::ReplyLost, 1), (Fault::ReplyLost, 2), (Fault::NotDone, 2)] {
        let bucket = bucket(&Arc::default(), fault, n_faults);
        let ours = publication(0, 1, 3);
        assert!(bucket.run(bucket.publish(GRAPH, &ours)).unwrap(), "{fault:?}");
        let found = bucket.run(bucket.newest(GRAPH, PartId(0), 0)).unwrap().unwrap().0;
        assert_eq!(found.live(), Some(&ours), "{fault:?}");
    }
}

#[test]
fn a_writer_whose_reply_was_lost_finds_that_another_has_published() {
    for fault in [Fault::ReplyLost, Fault::NotDone] {
        let memory = Arc::default();
        let first = bucket(&memory, Fault::NotDone, 0);
        let theirs = publication(0, 1, 3);
        first.run(first.publish(GRAPH, &theirs)).unwrap();
        let second = bucket(&memory, fault, 1);
        // The same version and the same files: only their attempts differ.
        assert!(!second.run(second.publish(GRAPH, &publication(0, 1, 3))).unwrap());
        let found = second.run(second.publication(GRAPH, PartId(0), 1)).unwrap().unwrap().0;
        assert_eq!(found.live(), Some(&theirs));
    }
}

#[test]
fn without_rights_it_fails_immediately_and_says_so() {
    let bucket = bucket(&Arc::default(), Fault::Refused, 1);
    let error = bucket.run(bucket.publish(GRAPH, &publication(0, 1, 3))).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("memory://t/part-000/published/0000000001"), "{message}");
    assert!(message.contains("the credentials do not permit it"), "{message}");
}

/// Each writer publishes over the state that it has seen. All acknowledged publications are there,
/// in one chain.
#[test]
fn two_writers_make_one_history() {
    for trial in 0..100 {
        let memory = Arc::default();
        let write = |_| {
            let bucket = bucket(&memory, Fault::ReplyLost, trial % 3);
            let mut acknowledged = Vec::new();
            for _ in 0..6 {
                let newest = bucket.run(bucket.newest(GRAPH, PartId(0), 0)).unwrap();
                let (sequence, previous) = match &newest {
                    Some((it, bytes)) => {
                        (it.live().unwrap().sequence + 1, *blake3::hash(bytes).as_bytes())
                    }
                    None => (1, [0; 32]),
                };
                let ours = Publication { previous, ..publication(0, sequence, sequence as u32) };
                if bucket.run(bucket.publish(GRAPH, &ours)).unwrap() {
                    acknowledged.push(ours);
                }
            }
            acknowledged
        };
        let acknowledged: Vec<Publication> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2).map(|at| scope.spawn(move || write(at))).collect();
            writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
        });
        let bucket = bucket(&memory, Fault::NotDone, 0);
        let mut previous = [0; 32];
        for sequence in 1..=acknowledged.len() as u64 {
            let read = bucket.run(bucket.publication(GRAPH, PartId(0), sequence)).unwrap();
            let (Published::Live(found), bytes) = read.unwrap() else { panic!("{sequence}") };
            assert_eq!(found.previous, previous, "one chain");
            assert!(acknowledged.contains(&found), "publication {sequence} was acknowledged");
            previous = *blake3::hash(&bytes).as_bytes();
        }
        let after = acknowledged.len() as u64 + 1;
        assert!(bucket.run(bucket.publication(GRAPH, PartId(0), after)).unwrap().is_none());
    }
}

#[test]
fn the_newest_complete_version_is_found_over_tombstones() {
    let bucket = bucket(&Arc::default(), Fault::NotDone, 0);
    let publish = |it: Publication| bucket.run(bucket.publish(GRAPH, &it)).unwrap();
    assert!(matches!(bucket.run(bucket.complete(GRAPH, None)), Err(BucketError::NoVersion { .. })));
    for (part, versions) in [(0, vec![1, 2, 4, 5]), (1, vec![1, 2, 3, 4])] {
        for (sequence, version) in (1..).zip(versions) {
            publish(publication(part, sequence, version));
        }
    }
    let complete = |wanted| {
        bucket
            .run(bucket.complete(GRAPH, wanted))
            .map(|parts| parts.iter().map(|it| (it.version(), it.sequence)).collect::<Vec<_>>())
    };
    assert_eq!(complete(None).unwrap(), [(4, 3), (4, 4)]);
    assert_eq!(complete(Some(2)).unwrap(), [(2, 2), (2, 2)]);
    let missing = complete(Some(3)).unwrap_err();
    assert!(matches!(missing, BucketError::NoVersion { wanted: Some(3), part: PartId(0), .. }));
    write(&bucket, &publication_key(PartId(0), 3), Published::tombstone(3, 4));
    assert_eq!(complete(None).unwrap(), [(2, 2), (2, 2)]);
}

#[test]
fn objects_in_the_wrong_place_and_of_newer_formats_are_named() {
    let bucket = bucket(&Arc::default(), Fault::NotDone, 0);
    let key = publication_key(PartId(0), 1);
    let read = || bucket.run(bucket.publication(GRAPH, PartId(0), 1)).unwrap_err().to_string();
    let named = |bytes: Vec<u8>, reason: &str| {
        write(&bucket, &key, bytes);
        let message = read();
        assert!(message.starts_with("memory://t/part-000/published/0000000001: "), "{message}");
        assert!(message.contains(reason), "{message}");
    };
    named(publication(1, 1, 3).to_bytes(), "expected partition 0 of graph");
    named(publication(0, 2, 3).to_bytes(), "expected publication 1, found 2");
    named(GRAPH.to_bytes(), "expected a publication, found Graph");
    named(b"<html>403</html>".to_vec(), "expected at least 32 bytes, found 16");
    named(
        seal_as(FORMAT + 1, 2, b"news"),
        "format 3, this release reads up to 2; use a newer `lode`",
    );
    let mut cut = publication(0, 1, 3).to_bytes();
    cut.truncate(cut.len() - 1);
    named(cut, "BLAKE3 expected");
}

/// Chunks of a release that did not number its uploads are named by their hashes alone.
#[test]
fn a_publication_of_the_format_before_is_read() {
    let mut old = publication(0, 1, 3);
    old.files[0].chunks[0].upload = UploadId::UNNUMBERED;
    let bytes = old.to_bytes();
    // Between the head of the object and its checksum; the chunk is at the end.
    let body = &bytes[13..bytes.len() - 32 - size_of::<u64>()];
    let read = Published::from_bytes(&seal_as(1, 2, body), GRAPH.graph, PartId(0), 1);
    assert_eq!(read, Ok(Published::Live(Box::new(old))));
}

proptest! {
    #[test]
    fn publications_come_out_as_they_went_in(
        sequence in 1u64.., epoch in any::<u32>(), version in 1u32.., previous in any::<[u8; 32]>(), attempt in any::<u128>(),
        files in prop::collection::btree_map("[a-z][a-z.]{0,9}", 0u64..3 * CHUNK_BYTES as u64, 0..4),
    ) {
        let files = files.into_iter().map(|(name, n_bytes)| {
            let n_chunks = n_bytes.div_ceil(CHUNK_BYTES as u64) as usize;
            PublishedFile { name, n_bytes, chunks: vec![chunk(n_chunks as u8); n_chunks] }
        }).collect();
        let (attempt, manifest) = (Uuid::from_u128(attempt), manifest(1, version));
        let whole = Publication { sequence, epoch, attempt, previous, manifest, files };
        let read = |bytes: &[u8]| Published::from_bytes(bytes, GRAPH.graph, PartId(1), sequence);
        let bytes = whole.to_bytes();
        prop_assert_eq!(read(&bytes), Ok(Published::Live(Box::new(whole))));
    }

    /// A body under a checksum that fits: no bytes panic, and none take much memory.
    #[test]
    fn no_sealed_bytes_panic(
        mut body in prop::collection::vec(any::<u8>(), 0..300), cut in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let read = |bytes: &[u8]| Published::from_bytes(bytes, GRAPH.graph, PartId(0), 1);
        let _ = read(&seal(Kind::Publication, &body));
        let whole = publication(0, 1, 3).to_bytes();
        body = whole[13..whole.len() - 32].to_vec();
        let place = at.index(body.len());
        body[place] = byte;
        let _ = read(&seal(Kind::Publication, &body));
        body.truncate(cut.index(body.len()));
        prop_assert!(read(&seal(Kind::Publication, &body)).is_err());
    }
}
