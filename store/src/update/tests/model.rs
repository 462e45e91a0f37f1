//! Random sequences of puts, commits, compactions, reopenings and pins, against rows in memory.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Put {
        tensor: usize,
        ids: Vec<Index>,
    },
    Commit,
    CommitThrough(u32),
    /// The first step of a commit.
    Prepare,
    CompactAll,
    Compact {
        tensor: usize,
        part: Index,
        what: Folding,
    },
    Pin,
    Unpin(Index),
    Reopen,
    ReadElsewhere,
}

fn step() -> impl Strategy<Value = Step> {
    let tensor = 0..TENSORS.len();
    prop_oneof![
        6 => (tensor.clone(), prop::collection::vec(any::<Index>(), 0..12))
            .prop_map(|(tensor, ids)| Step::Put { tensor, ids }),
        3 => Just(Step::Commit),
        1 => (0u32..12).prop_map(Step::CommitThrough),
        1 => Just(Step::CompactAll),
        1 => (tensor.clone(), any::<Index>())
            .prop_map(|(tensor, part)| Step::Compact { tensor, part, what: Folding::All }),
        1 => (tensor.clone(), any::<Index>())
            .prop_map(|(tensor, part)| Step::Compact { tensor, part, what: Folding::WherePays }),
        2 => (tensor, any::<Index>())
            .prop_map(|(tensor, part)| Step::Compact { tensor, part, what: Folding::Deltas }),
        1 => Just(Step::Prepare),
        2 => Just(Step::Pin),
        1 => any::<Index>().prop_map(Step::Unpin),
        1 => Just(Step::Reopen),
        1 => Just(Step::ReadElsewhere),
    ]
}

/// By tensor, the number of the put that wrote each row.
type Rows = [Vec<u8>; TENSORS.len()];

/// Expected contents of the graph.
struct Model {
    /// Includes every put, visible or not.
    put: Rows,
    /// Rows of the next version, if its commit has begun.
    prepared: Option<Rows>,
    committed: BTreeMap<u32, Rows>,
    version: u32,
}

impl Model {
    fn commit(&mut self) {
        self.version += 1;
        let rows = self.prepared.take().unwrap_or_else(|| self.put.clone());
        self.committed.insert(self.version, rows);
    }

    fn latest(&self) -> &Rows {
        &self.committed[&self.version]
    }
}

fn check(store: &EmbeddedStore, expected: &Rows) {
    for ((tensor, _), expected) in TENSORS.iter().zip(expected) {
        assert_eq!(&seqs(store, tensor), expected, "{tensor}");
    }
}

/// Checks that every version has the model's rows or is refused by its number.
fn check_versions(live: &Arc<GraphHandle>, model: &Model) {
    assert_eq!(live.version(), model.version);

    for asked in 0..=model.version + 2 {
        match at(live, asked) {
            Ok(store) => {
                assert!((1..=model.version).contains(&asked), "{asked}");
                check(&store, &model.committed[&asked]);
            }
            Err(StoreError::NoVersion { asked: found, oldest, newest }) => {
                assert_eq!((found, newest), (asked, model.version));
                assert!(oldest <= newest && asked != newest);
            }
            Err(other) => panic!("{other}"),
        }
    }
    check(&latest(live), model.latest());
}

fn run(n_nodes: u32, n_owners: u16, n_parts: u16, steps: &[Step]) {
    let ring = ring(n_nodes, n_owners, n_parts);
    let zeros = vec![0; n_nodes as usize];
    let rows = [zeros.clone(), zeros];
    let committed = BTreeMap::from([(1, rows.clone())]);
    let mut model = Model { committed, put: rows, prepared: None, version: 1 };
    let mut live = writer(&ring);
    let mut pins: Vec<(EmbeddedStore, Rows)> = Vec::new();
    for (seq, step) in (1u32..).zip(steps) {
        match step {
            Step::Put { tensor, ids } => {
                let ids: Vec<u32> =
                    ids.iter().map(|id| id.index(n_nodes as usize) as u32).collect();
                put(&live, TENSORS[*tensor].0, &ids, seq);
                ids.iter().for_each(|&id| model.put[*tensor][id as usize] = seq as u8);
            }
            Step::Commit => {
                let version = live.commit_version().unwrap();
                assert!(version > model.version);
                // Through the prepared version, if there is one.
                (model.version..version).for_each(|_| model.commit());
                assert_eq!(model.latest(), &model.put, "all puts are visible");
            }
            Step::CommitThrough(version) => {
                if *version > model.version {
                    let first = model.version + 1;
                    (first..=*version).for_each(|_| model.commit());
                }
                assert_eq!(live.commit_through(*version).unwrap().number, model.version);
            }
            Step::Prepare => {
                live.prepare(model.version + 1).unwrap();
                if model.prepared.is_none() {
                    model.prepared = Some(model.put.clone());
                }
            }
            Step::CompactAll => {
                compact(&live);
                assert_eq!(compact(&live), 0, "a second compaction finds nothing");
            }
            Step::Compact { tensor, part, what } => {
                let part = lodestore_graph::PartId(part.index(n_parts.into()) as u16);
                let go = &mut |_, _| ControlFlow::Continue(());
                live.compact(Some(part), Some(TENSORS[*tensor].0), *what, go).unwrap();
            }
            Step::Pin => {
                pins.push((at(&live, model.version).unwrap(), model.latest().clone()));
            }
            Step::Unpin(which) if !pins.is_empty() => {
                pins.swap_remove(which.index(pins.len()));
            }
            Step::Unpin(_) => {}
            Step::Reopen => {
                pins.clear();
                drop(live);
                live = writer(&ring);
                assert!(ring.verify().ok, "{:?}", ring.verify());
                if model.prepared.is_some() {
                    model.commit();
                    live.commit_through(model.version).unwrap();
                }
            }
            Step::ReadElsewhere => {
                check_versions(&open(&ring.out(), OpenMode::Read).unwrap(), &model);
            }
        }
        check(&latest(&live), model.latest());
        pins.iter().for_each(|(store, rows)| check(store, rows));
    }
    check_versions(&live, &model);
    drop(pins);
    assert_eq!(live.sweep().unwrap(), 0, "no view is left");
    drop(live);
    check_versions(&open(&ring.out(), OpenMode::Read).unwrap(), &model);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        if std::env::var_os("LODE_LONG").is_some() { 400 } else { 16 }
    ))]

    #[test]
    fn every_view_has_the_rows_of_the_model(
        (n_nodes, n_owners, n_parts) in prop::sample::select(vec![
            (1, 1, 1), (1, 1, 3), (60, 1, 1), (200, 2, 2), (90, 2, 4),
        ]),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        run(n_nodes, n_owners, n_parts, &steps);
    }
}
