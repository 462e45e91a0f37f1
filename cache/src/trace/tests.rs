use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

fn trace(batches: &[&[u32]]) -> Trace {
    let mut builder = TraceBuilder::default();
    batches.iter().for_each(|batch| builder.push_batch(batch).unwrap());
    builder.finish(None)
}

#[test]
fn an_id_counts_once_per_batch() {
    let trace = trace(&[&[3, 1, 3], &[], &[1, 1, 1, 2]]);
    assert_eq!(trace.ids(), [3, 1, 1, 2]);
    assert_eq!(trace.bounds(), [0, 2, 2, 4]);
    assert_eq!((trace.n_distinct(), trace.n_repeats(), trace.id_space()), (3, 3, 4));
    assert_eq!((trace.n_batches(), trace.longest_batch(), trace.range(2)), (3, 2, 2..4));
    assert_eq!(trace.distinct(), [1, 2, 3]);
}

#[test]
fn nothing_and_one_id_are_traces() {
    let nothing = trace(&[]);
    assert_eq!((nothing.n_ids(), nothing.n_batches(), nothing.id_space()), (0, 0, 0));
    assert_eq!((nothing.epochs(), nothing.epoch_ids(0)), ([0].as_slice(), [].as_slice()));
    let one = trace(&[&[0]]);
    assert_eq!((one.ids(), one.id_space(), one.longest_batch()), ([0].as_slice(), 1, 1));
}

#[test]
fn ids_near_the_end_of_their_space_cost_no_table() {
    let trace = trace(&[&[u32::MAX, 5], &[u32::MAX - 1, 5]]);
    assert_eq!((trace.ids(), trace.id_space()), ([2, 0, 1, 0].as_slice(), 3));
    let given: Vec<u32> = trace.ids().iter().map(|&id| trace.given(id)).collect();
    assert_eq!(given, [u32::MAX, 5, u32::MAX - 1, 5]);
}

#[test]
fn the_longest_trace_with_the_largest_id_is_made_dense() {
    let space = u32::MAX as usize + 1;
    assert!(space > largest_table(Trace::MAX_IDS), "an id space is counted in 32 bits");
    assert_eq!(largest_table(1 << 20), 1 << 24);
    assert_eq!(largest_table(1), SMALL_ID_SPACE);
}

#[test]
fn epochs_begin_where_they_are_said_to() {
    let mut builder = TraceBuilder::default();
    builder.begin_epoch();
    builder.push_batch(&[1, 2]).unwrap();
    builder.push_batch(&[1]).unwrap();
    builder.begin_epoch();
    builder.begin_epoch();
    builder.push_batch(&[9]).unwrap();
    builder.begin_epoch();
    let trace = builder.finish(Some(10));
    assert_eq!(trace.epochs(), [0, 2]);
    assert_eq!((trace.epoch_ids(0), trace.epoch_ids(1)), ([1, 2, 1].as_slice(), [9].as_slice()));
}

proptest! {
    #[test]
    fn batches_are_those_of_a_set(
        batches in prop::collection::vec(
            prop::collection::vec(prop_oneof![0u32..20, any::<u32>()], 0..20), 0..20),
    ) {
        let slices: Vec<&[u32]> = batches.iter().map(Vec::as_slice).collect();
        let trace = trace(&slices);
        let mut all = HashSet::new();
        for (batch, ids) in (0..).zip(&batches) {
            let mut seen = HashSet::new();
            let once: Vec<u32> = ids.iter().copied().filter(|&id| seen.insert(id)).collect();
            let found = trace.ids()[trace.range(batch)].iter().map(|&id| trace.given(id));
            prop_assert_eq!(found.collect::<Vec<_>>(), once);
            all.extend(seen);
        }
        prop_assert_eq!(trace.n_distinct() as usize, all.len());
        prop_assert!(trace.ids().iter().all(|&id| id < trace.id_space()));
        let positions: usize = batches.iter().map(Vec::len).sum();
        prop_assert_eq!(trace.n_ids() as u64 + trace.n_repeats(), positions as u64);
    }
}
