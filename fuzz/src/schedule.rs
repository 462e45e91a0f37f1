//! Schedules: whatever the file, it is refused, or every batch given holds its invariants.

use std::cell::RefCell;

use lodestore_graph::edges::ArrayEdges;
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::sampler::{Deal, Fanout};
use lodestore_graph::schedule::{Schedule, ScheduleInput, ScheduleSpec, write_schedule};
use lodestore_graph::topology::{Direction, Topology, write_topologies};
use lodestore_graph::{NodeId, PartId};

use crate::input_file::{
    PAGE, Scratch, crc_from, expand, put_u32, seal_page, squeeze, u32_at, u64_at,
};
use crate::memory::bounded;
use crate::npy::npy;

const FRAME: usize = 24;
const FOOTER: usize = 80;

/// A block that claims more than this is not read: batches may be large, fuzzing should be fast.
const MAX_RAW_BYTES: u32 = 1 << 20;

thread_local! {
    static FILE: RefCell<Scratch> = RefCell::new(Scratch::new());
}

/// Opens a schedule, and reads some batches. The first byte says which checksums are made right;
/// the rest spells the file.
pub fn run(data: &[u8]) {
    let Some((&seals, spelled)) = data.split_first() else { return };
    let mut bytes = expand(spelled);
    reseal(&mut bytes, seals);
    FILE.with_borrow_mut(|file| {
        let path = file.with(&bytes);
        let Ok(schedule) = bounded(bytes.len(), || Schedule::open(path)) else { return };
        let n_workers = schedule.spec().workers;
        let (mut n_read, n_epochs) = (0, schedule.spec().epochs);
        for worker in [0, 1, n_workers - 1, n_workers] {
            let n_batches = schedule.n_batches(worker);
            for (epoch, batch) in [(0, 0), (0, 1), (n_epochs - 1, n_batches.saturating_sub(1))] {
                n_read += u32::from(read(&schedule, worker, epoch, batch, &bytes));
            }
            assert!(schedule.get(worker, n_epochs, 0).is_err());
            assert!(schedule.get(worker, 0, n_batches).is_err());
        }
        std::hint::black_box(n_read);
    });
}

fn read(schedule: &Schedule, worker: u32, epoch: u32, batch: u32, bytes: &[u8]) -> bool {
    let claims = |frame: &[u8]| u32_at(frame, 12);
    if blocks(bytes).iter().any(|block| claims(&bytes[block.clone()]) > MAX_RAW_BYTES) {
        return false;
    }
    let Ok(batch) =
        bounded(bytes.len() + MAX_RAW_BYTES as usize, || schedule.get(worker, epoch, batch))
    else {
        return false;
    };
    batch.check(schedule.n_nodes()).expect("what is given holds its invariants");
    assert!(batch.roots().len() <= batch.nodes.len());
    true
}

/// Returns the ranges of blocks by the index, as far as they are within the file.
fn blocks(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let Some(footer_at) = bytes.len().checked_sub(FOOTER) else { return Vec::new() };
    let n_batches = u64_at(bytes, footer_at + 8);
    let Some(offsets_at) =
        n_batches.checked_mul(8).and_then(|bytes| footer_at.checked_sub(bytes as usize))
    else {
        return Vec::new();
    };
    let counts_at = offsets_at.saturating_sub(4 * u32_at(bytes, 52) as usize);
    let starts = (offsets_at..footer_at).step_by(8).map(|at| u64_at(bytes, at) as usize);
    let mut starts: Vec<usize> = starts.filter(|&at| at <= counts_at).collect();
    starts.push(counts_at);
    let pairs = starts.windows(2).filter(|ends| ends[0] + FRAME <= ends[1]);
    pairs.map(|ends| ends[0]..ends[1]).collect()
}

/// Makes right what `seals` names: header, lengths and checksums of blocks, index, footer.
fn reseal(bytes: &mut [u8], seals: u8) {
    if bytes.len() < PAGE + FOOTER {
        return;
    }
    if seals & 1 != 0 {
        seal_page(&mut bytes[..PAGE]);
    }
    let (start, footer_at) = (u32_at(bytes, PAGE - 4), bytes.len() - FOOTER);
    for block in blocks(bytes) {
        let block = &mut bytes[block];
        if seals & 2 != 0 {
            let n_bytes = (block.len() - FRAME) as u32;
            put_u32(block, 16, n_bytes);
        }
        if seals & 4 != 0 {
            let crc = crc_from(start, &[&block[..20], &block[FRAME..]]);
            put_u32(block, 20, crc);
        }
    }
    if seals & 8 != 0 {
        let n_batches = u64_at(bytes, footer_at + 8) as usize;
        let index = n_batches.saturating_mul(8).saturating_add(4 * u32_at(bytes, 52) as usize);
        if let Some(index_at) = footer_at.checked_sub(index) {
            let crc = crc_from(start, &[&bytes[index_at..footer_at]]);
            put_u32(bytes, footer_at + 28, crc);
        }
        let crc = crc_from(start, &[&bytes[footer_at..footer_at + 76]]);
        put_u32(bytes, footer_at + 76, crc);
    }
}

/// Returns the schedule of two workers over a ring of twelve nodes.
pub fn seeds() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().expect("a folder");
    let (n_nodes, uuid) = (12u32, [6; 16]);
    let owners: Vec<PartId> = (0..n_nodes).map(|i| PartId((i % 2) as u16)).collect();
    let nodes = Relabelling::new(&owners, 2).expect("two partitions");
    let ends = (0..n_nodes).flat_map(|i| [i, (i + 1) % n_nodes]).flat_map(u32::to_le_bytes);
    let edges = dir.path().join("edges.npy");
    std::fs::write(&edges, npy("<u4", "(12, 2)", &ends.collect::<Vec<u8>>())).expect("edges");
    let edges = ArrayEdges::open_npy(&edges, Some(n_nodes)).expect("edges");
    let path_of = |part: PartId| dir.path().join(part.to_string());
    write_topologies(&edges, &nodes, Direction::Undirected, uuid, &path_of).expect("topologies");
    let paths: Vec<_> = nodes.book.parts().map(path_of).collect();
    let topology = Topology::open(&paths, &nodes.book, uuid).expect("a topology");
    let spec = ScheduleSpec {
        graph_uuid: uuid,
        seed: 7,
        fanouts: vec![Fanout::at_most(1).expect("a fan-out"), Fanout::All],
        batch_size: 4,
        epochs: 2,
        workers: 2,
        deal: Deal::Home,
    };
    let (roots, path) = ((0..n_nodes).map(NodeId).collect::<Vec<_>>(), dir.path().join("schedule"));
    write_schedule(
        &ScheduleInput { topology: &topology, book: &nodes.book, train_roots: &roots },
        &spec,
        &path,
        1,
        &mut |_, _| {},
    )
    .expect("it");
    let spelled = squeeze(&std::fs::read(&path).expect("a schedule"));
    [0, 0xff].map(|seals| [vec![seals], spelled.clone()].concat()).into()
}
