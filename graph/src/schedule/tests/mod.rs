use super::*;
use crate::batch::Batch;
use crate::book::PartitionBook;
use crate::edges::MemoryEdges;
use crate::ids::NodeId;
use crate::relabel::Relabelling;
use crate::sampler::{Deal, Sampler, epoch_order, is_local};
use crate::topology::{Direction, Topology};
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

mod cut_off;
mod damage;

const N_NODES: u32 = 97;

fn topology() -> Topology {
    let edges = (0u32..600).map(|i| [i * i % N_NODES, i * 31 % N_NODES]).collect();
    let edges = MemoryEdges::new(edges).unwrap();
    Topology::from_edges(&edges, &Relabelling::identity(N_NODES), Direction::Undirected).unwrap()
}

fn book() -> PartitionBook {
    PartitionBook::new(vec![0, 30, 30, 60, N_NODES]).unwrap()
}

fn roots() -> Vec<NodeId> {
    (0..N_NODES).step_by(2).map(NodeId).collect()
}

fn spec() -> ScheduleSpec {
    ScheduleSpec {
        graph_uuid: [3; 16],
        seed: 11,
        fanouts: vec![Fanout::at_most(3).unwrap(), Fanout::All],
        batch_size: 7,
        epochs: 3,
        workers: 3,
        deal: Deal::Owned,
    }
}

fn write(spec: &ScheduleSpec, path: &Path, n_threads: usize) -> ScheduleSummary {
    write_schedule(
        &ScheduleInput { topology: &topology(), book: &book(), train_roots: &roots() },
        spec,
        path,
        n_threads,
        &mut |_, _| {},
    )
    .unwrap()
}

fn written() -> (TempDir, PathBuf, ScheduleSummary) {
    written_as(&spec())
}

fn written_as(spec: &ScheduleSpec) -> (TempDir, PathBuf, ScheduleSummary) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sched");
    let summary = write(spec, &path, 2);
    (dir, path, summary)
}

/// Returns a run of three batches.
fn short() -> ScheduleSpec {
    ScheduleSpec { epochs: 1, batch_size: 20, ..spec() }
}

/// Returns every batch of the run, sampled one after the other.
fn naive(spec: &ScheduleSpec) -> Vec<(u32, u32, u32, Batch)> {
    let topology = topology();
    let mut sampler = Sampler::new(&topology, &spec.fanouts);
    let mut all = Vec::new();
    let (book, roots) = (book(), roots());
    let plan = spec.roots(&book);
    for epoch in 0..spec.epochs {
        let order = epoch_order(spec.seed, epoch, &roots);
        for worker in 0..spec.workers {
            for (batch, roots) in (0..).zip(plan.batches(&order, worker)) {
                let seed = plan.seed_of(worker, epoch, batch);
                all.push((epoch, worker, batch, sampler.sample(&roots, seed)));
            }
        }
    }
    all
}

#[test]
fn batches_are_those_of_a_sampler_in_any_order() {
    for deal in [Deal::Owned, Deal::Turns, Deal::Home] {
        are_those_of_a_sampler(&ScheduleSpec { deal, ..spec() });
    }
    // The first two workers own no node: no batch of theirs has a root.
    let spec = ScheduleSpec { deal: Deal::Home, workers: 5, batch_size: 1, ..spec() };
    let empty = are_those_of_a_sampler(&spec);
    assert!(empty > 0, "no batch without roots");
}

/// Returns how many batches have no root.
fn are_those_of_a_sampler(spec: &ScheduleSpec) -> usize {
    let (_dir, path, summary) = written_as(spec);
    let schedule = Schedule::open(&path).unwrap();
    let naive = naive(spec);
    for (epoch, worker, batch, expected) in naive.iter().rev() {
        assert_eq!(schedule.get(*worker, *epoch, *batch).unwrap(), *expected);
    }
    for (epoch, worker) in [(0, 0), (1, 1), (2, 2)] {
        let batches: Vec<_> = schedule.batches(worker, epoch).map(Result::unwrap).collect();
        let expected = naive.iter().filter(|(e, w, ..)| (*e, *w) == (epoch, worker));
        assert!(batches.iter().eq(expected.map(|(.., batch)| batch)));
        assert_eq!(batches.len(), schedule.n_batches(worker) as usize);
    }
    assert_eq!((schedule.spec(), schedule.n_nodes()), (spec, N_NODES));
    let ids = naive.iter().map(|(.., batch)| batch.nodes.len());
    assert_eq!(u64::from(summary.max_ids), ids.clone().max().unwrap() as u64);
    assert_eq!((summary.batches, summary.ids), (naive.len() as u64, ids.sum::<usize>() as u64));
    assert_eq!((schedule.max_ids(), schedule.n_ids()), (summary.max_ids, summary.ids));
    assert_eq!(summary.bytes, std::fs::metadata(&path).unwrap().len());
    naive.iter().filter(|(.., batch)| batch.n_roots == 0).count()
}

#[test]
fn the_content_does_not_depend_on_threads_but_on_everything_else() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let first = write(&spec(), &at("a"), 1);
    for n_threads in [0, 2, 5, 64] {
        assert_eq!(write(&spec(), &at("b"), n_threads).digest, first.digest);
        assert_eq!(std::fs::read(at("a")).unwrap(), std::fs::read(at("b")).unwrap());
    }
    let digest = Schedule::open(&at("a")).unwrap().digest_hex();
    assert_eq!(digest, first.digest);
    let others = [
        ScheduleSpec { seed: 12, ..spec() },
        ScheduleSpec { epochs: 2, ..spec() },
        ScheduleSpec { workers: 2, ..spec() },
        ScheduleSpec { deal: Deal::Turns, ..spec() },
        ScheduleSpec { deal: Deal::Home, ..spec() },
        ScheduleSpec { batch_size: 8, ..spec() },
        ScheduleSpec { graph_uuid: [4; 16], ..spec() },
    ];
    for other in others {
        assert_ne!(write(&other, &at("c"), 2).digest, first.digest, "{other:?}");
    }
    let fewer = roots()[1..].to_vec();
    let (topology, book, path) = (topology(), book(), at("d"));
    let other = write_schedule(
        &ScheduleInput { topology: &topology, book: &book, train_roots: &fewer },
        &spec(),
        &path,
        2,
        &mut |_, _| {},
    );
    assert_ne!(other.unwrap().digest, first.digest);
}

#[test]
fn progress_counts_up_to_the_total() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let mut seen = Vec::new();
    let summary = write_schedule(
        &ScheduleInput { topology: &topology(), book: &book(), train_roots: &roots() },
        &spec(),
        &path,
        2,
        &mut |done, total| seen.push((done, total)),
    )
    .unwrap();
    let total = summary.batches;
    assert_eq!(seen, (1..=total).map(|done| (done, total)).collect::<Vec<_>>());
}

#[test]
fn a_worker_without_roots_has_no_batches() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    // Partitions 0 to 3 leave workers 4 and 5 without any, and partition 1 owns no node.
    write(&ScheduleSpec { workers: 6, ..spec() }, &path, 2);
    let schedule = Schedule::open(&path).unwrap();
    let n_batches: Vec<u32> = (0..7).map(|worker| schedule.n_batches(worker)).collect();
    assert_eq!(n_batches, [3, 0, 3, 3, 0, 0, 0]);
    assert!(schedule.batches(1, 0).next().is_none());
    for (worker, epoch, batch) in [(1, 0, 0), (9, 0, 0), (0, 3, 0), (0, 0, 3), (u32::MAX, 0, 0)] {
        let error = schedule.get(worker, epoch, batch).unwrap_err();
        assert!(matches!(error, ScheduleError::NoSuchBatch { .. }), "{error}");
    }
    let none = write_schedule(
        &ScheduleInput { topology: &topology(), book: &book(), train_roots: &[] },
        &spec(),
        &path,
        2,
        &mut |_, _| {},
    );
    assert_eq!(none.unwrap().batches, 0);
    assert_eq!(Schedule::open(&path).unwrap().n_batches(0), 0);
}

#[test]
fn uses_are_those_of_remote_nodes() {
    let (_dir, path, _) = written();
    let schedule = Schedule::open(&path).unwrap();
    let book = book();
    let is_remote = |node| !is_local(&book, 2, 3, node);
    let mut counts = std::collections::BTreeMap::new();
    for (.., batch) in naive(&spec()).iter().filter(|(e, w, ..)| (*e, *w) == (1, 2)) {
        for node in batch.nodes.iter().filter(|node| is_remote(**node)) {
            *counts.entry(node.0).or_insert(0u32) += 1;
        }
    }
    let of_epoch = AccessCounts::of(&schedule, 2, 1, &is_remote).unwrap();
    assert!(of_epoch.uses().map(|(node, count)| (node.0, count)).eq(counts.clone()));
    let stats = of_epoch.stats();
    assert_eq!(stats.nodes, counts.len() as u64);
    assert_eq!(stats.accesses, counts.values().map(|&n| u64::from(n)).sum::<u64>());
}

#[test]
fn another_graph_is_refused() {
    let (_dir, path, _) = written();
    let schedule = Schedule::open(&path).unwrap();
    schedule.expect_graph([3; 16], N_NODES).unwrap();
    for (uuid, n_nodes) in [([4; 16], N_NODES), ([3; 16], N_NODES + 1)] {
        let error = schedule.expect_graph(uuid, n_nodes).unwrap_err();
        assert!(matches!(error, ScheduleError::Graph { .. }), "{error}");
    }
}

#[test]
fn wrong_arguments_leave_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let (topology, good_book) = (topology(), book());
    let failed = |book: &PartitionBook, roots: &[NodeId], spec: &ScheduleSpec| {
        write_schedule(
            &ScheduleInput { topology: &topology, book, train_roots: roots },
            spec,
            &path,
            2,
            &mut |_, _| {},
        )
        .unwrap_err()
    };
    let error = failed(&good_book, &[NodeId(0), NodeId(N_NODES)], &spec());
    assert!(matches!(error, ScheduleError::Root { position: 1, .. }), "{error}");
    let error = failed(&PartitionBook::single(5), &[], &spec());
    assert!(matches!(error, ScheduleError::Book { book: 5, .. }), "{error}");
    for spec in [
        ScheduleSpec { epochs: 0, ..spec() },
        ScheduleSpec { workers: 0, ..spec() },
        ScheduleSpec { workers: 65_536, ..spec() },
        ScheduleSpec { batch_size: 0, ..spec() },
        ScheduleSpec { fanouts: vec![], ..spec() },
        ScheduleSpec { fanouts: vec![Fanout::All; 65], ..spec() },
    ] {
        let error = failed(&good_book, &roots(), &spec);
        assert!(matches!(error, ScheduleError::Spec { .. }), "{error}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_failed_rename_leaves_nothing_half_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("inside"), "").unwrap();
    let result = write_schedule(
        &ScheduleInput { topology: &topology(), book: &book(), train_roots: &roots() },
        &spec(),
        &path,
        2,
        &mut |_, _| {},
    );
    assert!(matches!(result, Err(ScheduleError::Io { .. })));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_golden_schedule_is_pinned_for_ever() {
    let (_dir, path, summary) = written();
    // A release that changes either of these makes earlier runs unrepeatable.
    let digest = "fee0a5dda0844ac07fea2e883bc522fdacf7a2fbadaf8ab36c587ae730dc5cfc";
    assert_eq!(summary.digest, digest);
    // Apart from the format: all numbers of all batches, each as a u32.
    let mut hasher = blake3::Hasher::new();
    let schedule = Schedule::open(&path).unwrap();
    for (epoch, worker, batch, _) in naive(&spec()) {
        let batch = schedule.get(worker, epoch, batch).unwrap();
        let nodes = batch.nodes.iter().map(|node| node.0);
        let blocks = batch.blocks.iter().flat_map(|b| b.offsets.iter().chain(&b.sources).copied());
        nodes.chain(blocks).for_each(|word| {
            hasher.update(&word.to_le_bytes());
        });
    }
    assert_eq!(
        hasher.finalize().to_hex().as_str(),
        "b88c231bf22c35e68e4113ddaafbe64b9e7bb4d159c5203850b835e2ceb119fb"
    );
}

#[test]
fn next_uses_are_those_of_a_look_ahead() {
    let (dir, path, _) = written();
    let schedule = Schedule::open(&path).unwrap();
    let scratch = dir.path().join("next");
    for worker in 0..4 {
        let uses = NextUses::of(&schedule, worker, &scratch).unwrap();
        assert!(!scratch.exists());
        let naive = naive(&spec());
        let own: Vec<_> = naive.iter().filter(|(_, w, ..)| *w == worker).collect();
        for (number, (epoch, _, batch, found)) in own.iter().enumerate() {
            let next = uses.get(*epoch, *batch).unwrap();
            assert_eq!(next.len(), found.nodes.len());
            for (node, next) in found.nodes.iter().zip(next) {
                let later = own[number + 1..].iter().position(|(.., b)| b.nodes.contains(node));
                let expected = later.map_or(NEVER, |later| (number + 1 + later) as u32);
                assert_eq!(next, expected);
            }
        }
        let n_batches = schedule.n_batches(worker);
        for (epoch, batch) in [(0, n_batches), (3, 0), (u32::MAX, 0), (0, u32::MAX)] {
            let error = uses.get(epoch, batch).unwrap_err();
            assert!(matches!(error, ScheduleError::NoSuchBatch { .. }), "{error}");
        }
    }
    std::fs::write(&scratch, "mine").unwrap();
    assert!(matches!(NextUses::of(&schedule, 0, &scratch), Err(ScheduleError::Io { .. })));
    assert_eq!(std::fs::read(&scratch).unwrap(), b"mine");
}

#[test]
fn a_schedule_that_is_there_is_known_by_its_run_and_its_roots() {
    let (_dir, path, _) = written();
    let is_of = |spec: &ScheduleSpec, n_nodes, roots: &[NodeId]| {
        is_schedule_of(spec, n_nodes, &book(), roots, &path)
    };
    assert!(is_of(&spec(), N_NODES, &roots()));
    for other in [
        ScheduleSpec { seed: 12, ..spec() },
        ScheduleSpec { epochs: 4, ..spec() },
        ScheduleSpec { graph_uuid: [4; 16], ..spec() },
        ScheduleSpec { workers: 2, ..spec() },
        ScheduleSpec { deal: Deal::Turns, ..spec() },
        ScheduleSpec { deal: Deal::Home, ..spec() },
    ] {
        assert!(!is_of(&other, N_NODES, &roots()), "{other:?}");
    }
    assert!(!is_of(&spec(), N_NODES + 1, &roots()));
    let all = roots();
    let mut changed = all.clone();
    changed[3] = NodeId(changed[3].0 + 1);
    for other in [&all[1..], &changed, &[]] {
        assert!(!is_of(&spec(), N_NODES, other), "{other:?}");
    }
    let other_book = PartitionBook::new(vec![0, 20, 30, 60, N_NODES]).unwrap();
    assert!(!is_schedule_of(&spec(), N_NODES, &other_book, &all, &path));
    assert!(!is_schedule_of(&spec(), N_NODES, &book(), &all, &path.with_extension("none")));
    // Damage in the first block, and a file that was cut off.
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[super::header::HEADER_BYTES + 40] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert!(!is_of(&spec(), N_NODES, &all));
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert!(!is_of(&spec(), N_NODES, &all));
}

#[test]
fn an_estimate_is_near_what_is_written() {
    let (topology, book, roots) = (topology(), book(), roots());
    let input = ScheduleInput { topology: &topology, book: &book, train_roots: &roots };
    // One batch of all roots but one, and that in another: far less than two such batches.
    let uneven = ScheduleSpec { workers: 1, batch_size: roots.len() - 1, ..spec() };
    for spec in [spec(), short(), uneven, ScheduleSpec { epochs: 200, ..spec() }] {
        let (_dir, _path, summary) = written_as(&spec);
        let estimate = estimate_bytes(&input, &spec).unwrap();
        let found = summary.bytes - header::HEADER_BYTES as u64;
        let pairs = [(estimate.schedule_bytes, found), (estimate.next_use_bytes, 4 * summary.ids)];
        for (estimate, found) in pairs {
            let ratio = estimate as f64 / found as f64;
            assert!((0.7..1.4).contains(&ratio), "{estimate} for {found}");
        }
    }
    let most = ScheduleSpec { epochs: u32::MAX, ..spec() };
    let of_most = estimate_bytes(&input, &most).unwrap();
    assert!(of_most.schedule_bytes > 1 << 40);
}

#[test]
fn a_file_that_is_no_schedule_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("features.npy");
    for bytes in [&b"my features"[..], b"LODESEG1 and rows", b"x"] {
        std::fs::write(&path, bytes).unwrap();
        let error = write_schedule(
            &ScheduleInput { topology: &topology(), book: &book(), train_roots: &roots() },
            &spec(),
            &path,
            1,
            &mut |_, _| {},
        );
        let error = error.unwrap_err().to_string();
        assert!(error.contains("the name is taken") && error.contains("features.npy"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        assert_eq!(dir.path().read_dir().unwrap().count(), 1, "nothing beside it");
    }
    // An empty file, or the schedule of another run, yields.
    std::fs::write(&path, b"").unwrap();
    write(&short(), &path, 1);
    write(&spec(), &path, 1);
}
