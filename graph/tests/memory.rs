//! Memory stays within what the documentation states. One test, because allocations are counted for
//! the whole process.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::alloc::System;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use cap::Cap;
use lodestore_graph::edges::{EdgeError, EdgeFile, EdgeStream, VisitChunk};
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::sampler::{Deal, Fanout};
use lodestore_graph::schedule::{NextUses, Schedule, ScheduleInput, ScheduleSpec, write_schedule};
use lodestore_graph::topology::{Topology, TopologyOptions, write_topologies_with};
use lodestore_graph::{NodeId, PartId, splitmix64};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

const N_NODES: u32 = 60_000;
const N_EDGES: usize = 900_000;
/// Memory to read a file, and to start threads, beside the stated part.
const BUFFER_BYTES: usize = 8 << 20;

/// Returns the bytes that `body` had at most beside those that were taken before. Looks a few
/// thousand times a second, and at the end, so that what is held for long enough to matter is seen.
fn peak_of<T>(body: impl FnOnce() -> T) -> (T, usize) {
    let before = ALLOCATOR.allocated();
    let (done, is_done) = channel::<()>();
    thread::scope(|scope| {
        let watch = scope.spawn(move || {
            let mut peak = 0;
            while is_done
                .recv_timeout(Duration::from_micros(200))
                .is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Timeout)
            {
                peak = peak.max(ALLOCATOR.allocated());
            }
            peak.max(ALLOCATOR.allocated())
        });
        let made = body();
        drop(done);
        (made, watch.join().unwrap().saturating_sub(before))
    })
}

fn write_edges(path: &Path) {
    let skewed = |word: u64| {
        let unit = (word >> 40) as f64 / (1u64 << 24) as f64;
        (unit.powi(3) * f64::from(N_NODES)) as u32
    };
    let ids = (0..2 * N_EDGES as u64).flat_map(|i| skewed(splitmix64(i)).to_le_bytes());
    std::fs::write(path, ids.collect::<Vec<u8>>()).unwrap();
}

/// Longest list of the edges, repetitions counted.
struct Degrees(Vec<u32>);

fn degrees(edges: &dyn EdgeStream) -> Result<Degrees, EdgeError> {
    let mut degrees = vec![0; N_NODES as usize];
    let count: &mut VisitChunk<'_> = &mut |chunk| {
        chunk.iter().for_each(|edge| degrees[edge[1] as usize] += 1);
        Ok(())
    };
    edges.for_each_chunk(count)?;
    Ok(Degrees(degrees))
}

#[test]
fn memory_stays_within_what_is_stated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edges.u32");
    write_edges(&path);
    let edges = EdgeFile::at(path).open(Some(N_NODES)).unwrap();
    let n = N_NODES as usize;
    let longest = degrees(&*edges).unwrap().0.into_iter().max().unwrap() as usize;

    let assignment: Vec<PartId> = (0..N_NODES).map(|v| PartId((v % 3) as u16)).collect();
    let nodes = Relabelling::new(&assignment, 3).unwrap();
    drop(assignment);
    let path_of = |part: PartId| dir.path().join(format!("{part}"));
    for (edge_ids, edge_bytes) in [(false, 4), (true, 16)] {
        for window_bytes in [1 << 18, 4 << 20] {
            let options = TopologyOptions { edge_ids, window_bytes, ..Default::default() };
            let (_, peak) = peak_of(|| {
                write_topologies_with(&*edges, &nodes, &options, [1; 16], &path_of).unwrap()
            });
            let window = window_bytes.max(longest * edge_bytes);
            let bound = 4 * n + 8 * n / 3 + window + 8 * n + BUFFER_BYTES;
            println!("topology, ids {edge_ids}, window {window_bytes}: {peak} of {bound}");
            assert!(peak <= bound, "{peak} bytes, {bound} are stated");
        }
    }

    let paths: Vec<_> = nodes.book.parts().map(path_of).collect();
    let topology = Topology::open(&paths, &nodes.book, [1; 16]).unwrap();
    let roots: Vec<NodeId> = (0..N_NODES).step_by(50).map(NodeId).collect();
    let mut peaks = Vec::new();
    for epochs in [1, 12] {
        let spec = ScheduleSpec {
            graph_uuid: [1; 16],
            seed: 1,
            fanouts: vec![Fanout::at_most(5).unwrap(); 2],
            batch_size: 64,
            epochs,
            workers: 3,
            deal: Deal::Owned,
        };
        let path = dir.path().join("run");
        let (written, peak) = peak_of(|| {
            write_schedule(
                &ScheduleInput { topology: &topology, book: &nodes.book, train_roots: &roots },
                &spec,
                &path,
                2,
                &mut |_, _| {},
            )
            .unwrap()
        });
        let max_ids = written.max_ids as usize;
        // A batch is nodes, offsets and edges, and is packed on its way: 100 bytes an id is plenty.
        let bound = 2 * 4 * n + 8 * 100 * max_ids + 8 * written.batches as usize + BUFFER_BYTES;
        println!("schedule of {epochs} epochs: {peak} of {bound}");
        assert!(peak <= bound, "{peak} bytes, {bound} are stated");
        peaks.push(peak);
        let schedule = Schedule::open(&path).unwrap();
        let (uses, peak) =
            peak_of(|| NextUses::of(&schedule, 0, &dir.path().join("next")).unwrap());
        let n_batches = (schedule.n_batches(0) * epochs) as usize;
        let bound = 4 * n + 16 * n_batches + 100 * max_ids + (1 << 20);
        println!("next uses of {epochs} epochs: {peak} of {bound}");
        assert!(peak <= bound, "{peak} bytes, {bound} are stated");
        assert!(!uses.get(0, 0).unwrap().is_empty());
    }
    assert!(peaks[1] < peaks[0] + peaks[0] / 4 + (1 << 20), "memory grows with epochs: {peaks:?}");
}
