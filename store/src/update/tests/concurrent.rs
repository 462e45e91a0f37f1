//! Threads that put, gather, commit and compact concurrently.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::*;

const N_NODES: u32 = 64;
const N_WRITERS: u32 = 3;

fn duration() -> Duration {
    Duration::from_millis(if std::env::var_os("LODE_LONG").is_some() { 20_000 } else { 1500 })
}

/// Puts of a node: the last begun and the last acknowledged one.
#[derive(Default)]
struct Progress {
    begun: AtomicU32,
    acknowledged: AtomicU32,
}

/// Returns the number in each row, which only grows and is repeated through the row.
fn gather(store: &EmbeddedStore) -> Vec<u32> {
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let mut out = vec![0u8; ids.len() * 99];
    store.gather("feat", &ids, &mut out).unwrap();
    let number = |row: &[u8]| {
        let numbers = row.as_chunks::<4>().0;
        assert!(numbers.iter().all(|n| *n == numbers[0]), "a mix: {row:?}");
        u32::from_le_bytes(numbers[0])
    };
    out.chunks_exact(99).map(number).collect()
}

fn row(number: u32) -> Vec<u8> {
    let bytes = number.to_le_bytes();
    bytes.iter().copied().cycle().take(99).collect()
}

/// Puts and commits growing numbers to a share of the nodes.
fn write(live: &GraphHandle, nodes: &[Progress], share: u32, stop: &AtomicBool) {
    let mine: Vec<u32> = (0..N_NODES).filter(|node| node % N_WRITERS == share).collect();
    let (_stopping, mut number) = (Stop(stop), 0);
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let some: Vec<u32> = mine.iter().copied().filter(|node| (node + number) % 3 != 0).collect();
        let ids: Vec<NodeId> = some.iter().copied().map(NodeId).collect();
        some.iter().for_each(|&n| nodes[n as usize].begun.store(number, Ordering::SeqCst));
        let version = live.put_rows("feat", &ids, &row(number).repeat(ids.len())).unwrap();
        live.commit_through(version).unwrap();
        some.iter().for_each(|&n| nodes[n as usize].acknowledged.store(number, Ordering::SeqCst));
    }
}

/// Checks that each gathered row lies between the last put acknowledged before the gather and the
/// last one begun before its check. Returns the number of gathers.
fn read_latest(live: &Arc<GraphHandle>, nodes: &[Progress], stop: &AtomicBool) -> u32 {
    let (_stopping, store) = (Stop(stop), latest(live));
    let mut n_gathers = 0;
    while !stop.load(Ordering::Relaxed) {
        let lowest: Vec<u32> =
            nodes.iter().map(|node| node.acknowledged.load(Ordering::SeqCst)).collect();
        let found = gather(&store);
        for (node, found) in found.into_iter().enumerate() {
            let highest = nodes[node].begun.load(Ordering::SeqCst);
            let legal = lowest[node]..=highest;
            assert!(legal.contains(&found), "node {node}: {found} is not in {legal:?}");
        }
        n_gathers += 1;
    }
    n_gathers
}

/// Checks that a pinned view never changes, and that later views never go back.
fn read_pinned(live: &Arc<GraphHandle>, stop: &AtomicBool) -> u32 {
    let _stopping = Stop(stop);
    let (mut n_pins, mut before) = (0, vec![0; N_NODES as usize]);
    while !stop.load(Ordering::Relaxed) {
        // A commit and a compaction may happen between the two calls.
        let Ok(store) = at(live, live.version()) else { continue };
        let first = gather(&store);
        thread::sleep(Duration::from_millis(5));
        assert_eq!(gather(&store), first);
        assert!(first.iter().zip(&before).all(|(now, before)| now >= before));
        (n_pins, before) = (n_pins + 1, first);
    }
    n_pins
}

/// Stops the other threads when its own thread ends, even by a failed assertion.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn every_gathered_row_was_legal_at_its_time() {
    for (n_owners, n_parts) in [(1, 1), (2, 3)] {
        let ring = ring(N_NODES, n_owners, n_parts);
        let live = writer(&ring);
        let nodes: Vec<Progress> = (0..N_NODES).map(|_| Progress::default()).collect();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let (live, nodes, stop) = (&live, &nodes, &stop);
            for share in 0..N_WRITERS {
                scope.spawn(move || write(live, nodes, share, stop));
            }
            let reader = scope.spawn(move || read_latest(live, nodes, stop));
            let pinner = scope.spawn(move || read_pinned(live, stop));
            let stopping = Stop(stop);
            let (end, mut n_folded) = (Instant::now() + duration() / 2, 0);
            while Instant::now() < end {
                live.commit_version().unwrap();
                n_folded += compact(live);
            }
            drop(stopping);
            let (n_gathers, n_pins) = (reader.join().unwrap(), pinner.join().unwrap());
            assert!(n_gathers > 0 && n_pins > 0 && n_folded > 0);
        });
        let expected: Vec<u32> =
            nodes.iter().map(|node| node.acknowledged.load(Ordering::SeqCst)).collect();
        assert_eq!(gather(&latest(&live)), expected);
        drop(live);
        let reopened = writer(&ring);
        assert_eq!(gather(&latest(&reopened)), expected);
        assert_eq!(reopened.sweep().unwrap(), 0);
    }
}

/// A version gets its number only when all of its layers are open, and only then does its commit
/// return.
#[test]
fn a_visible_version_can_be_pinned_and_has_its_rows() {
    // Too few for a commit to fold layers, which would remove earlier versions.
    const N_COMMITS: u32 = 50;
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    for (n_owners, n_parts) in [(1, 1), (2, 3), (3, 5)] {
        let ring = ring(N_NODES, n_owners, n_parts);
        let live = writer(&ring);
        let (committed, stop) = (AtomicU32::new(1), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let _stopping = Stop(&stop);
                for number in 1..=N_COMMITS {
                    live.put_rows("feat", &ids, &row(number).repeat(ids.len())).unwrap();
                    committed.store(live.commit_version().unwrap(), Ordering::SeqCst);
                }
            });
            for n_pins in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let (least, version) = (committed.load(Ordering::SeqCst), live.version());
                assert!(version >= least, "version {version} after {least} was committed");
                let pinned = live.pin(version).unwrap();
                // The import is version 1, and put 1 is in version 2.
                if n_pins % 8 == 0 {
                    let found = gather(&at(&live, pinned.version()).unwrap());
                    assert_eq!(found, vec![version - 1; ids.len()]);
                }
            }
        });
        assert_eq!(live.version(), N_COMMITS + 1);
    }
}
