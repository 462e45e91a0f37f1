//! Rows that are stored on the way, and the record of them.

use super::*;

/// Returns the bytes of the rows that a folder's record says are there, by stage.
fn recorded(dir: &Path, pass: &LayerPass<'_>, stages: &Stages<'_>) -> Vec<u64> {
    let Ok(state) = fs::read(dir.join("state.json")) else { return Vec::new() };
    let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
    let number = |name: &str| state["place"][name].as_u64().unwrap() as usize;
    let (at, n_chunks) = (number("stage"), number("n_chunks"));
    let bytes_of = |stage: usize| {
        let n_nodes = stages.sets[stage].len();
        let n_rows = match stage.cmp(&at) {
            std::cmp::Ordering::Less => n_nodes,
            _ if n_chunks == 0 => 0,
            _ => {
                let chunks = pass.chunks(stages, stage);
                chunks.get(n_chunks).map_or(n_nodes, |chunk| chunk.number)
            }
        };
        4 * (n_rows * stages.width_after(stage)) as u64
    };
    (0..=at.min(stages.sets.len() - 1)).map(bytes_of).collect()
}

#[test]
fn a_record_says_no_more_than_is_written_and_more_than_it_says_is_cut_off() {
    let (topology, dir) = (topology(), tempfile::tempdir().unwrap());
    let (model, work) = (model(ModelKind::Sage, [6, 4], 5), dir.path().join("work"));
    let pass = pass(&topology, PassLimits::within(1600));
    let widths = vec![WIDTH, 6, 4, 5];
    let sets = pass.sets(3, NodeSet::all(N_NODES));
    let stages = Stages { layers: &model.layers, sets, read_here: None, widths, n_ranks: 1 };
    let length = |stage: usize| fs::metadata(work.join(format!("rows-{stage}"))).map(|it| it.len());
    let run = |progress: &mut dyn FnMut(u64, u64)| {
        let mut folder = WorkFolder::open(&work, "a").unwrap().saving_always();
        let (sink, mut alone) =
            (&mut |_: &[NodeId], _: &mut Matrix| Ok(()), ThreadCollective::alone());
        let output = PassOutput { sink, progress, work: Some(&mut folder) };
        let all = NodeSet::all(N_NODES);
        pass.run(&model.layers, all, &mut ProcessGroup::new(&mut alone), output).unwrap();
    };
    // The length of each stage's file as the call before has found it: progress comes once rows are
    // written, and before that is recorded.
    let (mut before, mut n_compared) = (vec![0; stages.sets.len()], 0);
    run(&mut |_, _| {
        for (stage, expected) in recorded(&work, &pass, &stages).into_iter().enumerate() {
            assert_eq!(before[stage], expected, "stage {stage}");
            n_compared += usize::from(expected > 0);
        }
        for (stage, before) in before.iter_mut().enumerate() {
            *before = length(stage).unwrap_or(*before);
        }
    });
    assert!(n_compared > 8, "{n_compared}");
    for n_calls in [3, 6, 9] {
        remove(&work).unwrap();
        let mut n_left = n_calls;
        let killed = catch_unwind(AssertUnwindSafe(|| {
            run(&mut |_, _| {
                n_left -= 1;
                assert!(n_left > 0, "killed");
            });
        }));
        assert!(killed.is_err());
        let expected = recorded(&work, &pass, &stages);
        let at = expected.len() - 1;
        // Torn rows, and whatever else a crash leaves, are past the recorded bytes.
        let path = work.join(format!("rows-{at}"));
        let mut bytes = fs::read(&path).unwrap_or_default();
        assert!(bytes.len() as u64 > expected[at], "{} {expected:?}", bytes.len());
        bytes.resize(1 << 12, 0x5a);
        fs::write(&path, bytes).unwrap();
        let mut lengths = Vec::new();
        run(&mut |_, _| lengths.push(length(at).unwrap_or(0)));
        // The first call is of the stage before, if there is one, whose rows are read again.
        assert_eq!(lengths[at.min(1)], expected[at], "stage {at}");
        // Nothing of them is left when the pass has ended.
        let full = 4 * (stages.sets[at].len() * stages.width_after(at)) as u64;
        assert!(length(at).map_or(true, |found| found == full), "stage {at}");
    }
}

#[test]
fn a_process_stores_the_rows_that_its_workers_read() {
    let topology = topology();
    let book = PartitionBook::from_counts(&[9, 0, 14, 3, N_NODES - 26]).unwrap();
    let (mut n_stored, mut n_all) = (0, 0);
    for (n_workers, n_ranks) in [(2, 2), (5, 3), (3, 2)] {
        let owners = Owners { book: &book, n_workers };
        let pass = LayerPass { owners, ..pass(&topology, PassLimits::within(1000)) };
        let sets = pass.sets(2, NodeSet::new(N_NODES, [0, 7, 39, 12, 3].map(NodeId).into_iter()));
        for rank in 0..n_ranks {
            let found = pass.read_by(rank, n_ranks, &sets);
            assert_eq!(found.len(), 2);
            for (stage, found) in found.iter().enumerate() {
                let mut expected = vec![false; N_NODES as usize];
                for node in sets[stage + 1].iter() {
                    let part = u32::from(book.part_of(node).unwrap().0);
                    if part % n_workers % n_ranks == rank {
                        expected[node.index()] = true;
                        let sources = topology.in_neighbours(node);
                        sources.iter().for_each(|&source| expected[source as usize] = true);
                    }
                }
                let found: Vec<bool> =
                    (0..N_NODES).map(|node| found.contains(NodeId(node))).collect();
                assert_eq!(found, expected, "{n_workers} {n_ranks} {rank} {stage}");
                n_stored += found.iter().filter(|it| **it).count();
                n_all += sets[stage].len();
            }
        }
    }
    assert!(2 * n_stored < n_all + n_all / 2, "{n_stored} of {n_all}");
}
