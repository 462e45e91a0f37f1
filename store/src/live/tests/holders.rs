//! How many servers are to hold a partition: stored, copied, and what puts are checked against.

use lodestore_graph::PartId;

use super::*;
use crate::moving::Arrival;
use crate::{Holders, Membership, StoreError};

const PART: PartId = PartId(1);

fn ring_and_writer() -> (Ring, Arc<LiveGraph>) {
    let ring = ring(120, 3, 3);
    let live = writer(&ring);
    (ring, live)
}

/// A row of the partition, put for holders that are believed.
fn try_put_for(live: &LiveGraph, holders: Holders) -> Result<u32, StoreError> {
    let node = NodeId(live.graph().book().range(PART).start);
    live.put_rows_for(holders, "feat", &[node], &row_of(1, 99))
}

#[test]
fn puts_are_for_the_holders_that_there_are_and_a_change_is_durable() {
    let (ring, live) = ring_and_writer();
    assert_eq!(live.membership(PART), Membership::default());
    try_put_for(&live, Holders::Alone).unwrap();
    try_put_for(&live, Holders::Generation(0)).unwrap();
    live.set_holders(PART, 2, 2).unwrap();
    live.set_holders(PART, 2, 2).unwrap();
    for (generation, n_holders) in [(2, 3), (1, 2), (0, 1), (3, 0), (u32::MAX, 2)] {
        let refused = live.set_holders(PART, generation, n_holders).unwrap_err();
        assert!(matches!(refused, StoreError::MoveRefused { .. }), "{refused}");
    }
    let check = |live: &LiveGraph| {
        for found in [0, 1, 3] {
            let refused = try_put_for(live, Holders::Generation(found)).unwrap_err();
            let StoreError::HoldersChanged { part: PART, expected: 2, found: told } = refused
            else {
                panic!("{refused}")
            };
            assert_eq!(told, found);
        }
        let refused = try_put_for(live, Holders::Alone).unwrap_err();
        assert!(matches!(refused, StoreError::Replicated { n_holders: 2, .. }), "{refused}");
        try_put_for(live, Holders::Generation(2)).unwrap();
    };
    check(&live);
    drop(live);
    let live = writer(&ring);
    check(&live);
    assert_eq!(live.membership(PartId(0)), Membership::default(), "it is one partition's");
    live.set_holders(PART, 3, 1).unwrap();
    try_put_for(&live, Holders::Alone).unwrap();
    drop(live);
    assert!(ring.verify().ok);
}

#[test]
fn a_copy_takes_along_what_was_counted_meanwhile_and_a_sealed_partition_is_not_counted() {
    let (ring, live) = ring_and_writer();
    let to = ring.dir.path().join("elsewhere");
    let mut copy = live.begin_copy(PART).unwrap();
    let arrival = Arrival::find_or_begin(&to, PART, 7).unwrap();
    let catalog = super::moving::fetch(&mut copy, &arrival);
    live.set_holders(PART, 5, 2).unwrap();
    copy.seal().unwrap();
    let refused = live.set_holders(PART, 6, 3).unwrap_err();
    assert!(matches!(refused, StoreError::Busy { .. }), "{refused}");
    super::moving::pairs(&mut copy, &catalog, &mut || {});
    catalog.close().unwrap();
    arrival.check(&mut |_, _| {}).unwrap();
    copy.give_up().unwrap();
    copy.close(7).unwrap();
    arrival.take().unwrap();
    let options = OpenOptions::default();
    let graph = Graph::open(&to).unwrap();
    let taken = LiveGraph::open(graph, Some(&[PART]), LiveMode::Write, &options).unwrap();
    assert_eq!(taken.membership(PART), Membership { generation: 5, n_holders: 2, by: 0 });
}

#[test]
fn a_copy_joins_where_it_is_whole_and_its_move_is_known_again() {
    let (ring, live) = ring_and_writer();
    let to = ring.dir.path().join("elsewhere");
    let mut copy = live.begin_copy(PART).unwrap();
    let arrival = Arrival::find_or_begin(&to, PART, 7).unwrap();
    let catalog = super::moving::fetch(&mut copy, &arrival);
    assert!(copy.join(7).unwrap_err().to_string().contains("not all that was put"));
    copy.seal().unwrap();
    super::moving::pairs(&mut copy, &catalog, &mut || {});
    let refused = copy.join(7).unwrap_err();
    assert!(refused.to_string().contains("lode holders"), "{refused}");
    drop(copy);
    live.set_holders(PART, 1, 1).unwrap();

    let mut copy = live.begin_copy(PART).unwrap();
    super::moving::pairs(&mut copy, &catalog, &mut || {});
    try_put_for(&live, Holders::Generation(1)).unwrap();
    copy.seal().unwrap();
    super::moving::pairs(&mut copy, &catalog, &mut || {});
    let joined = copy.join(7).unwrap();
    assert_eq!(joined, Membership { generation: 2, n_holders: 2, by: 7 });
    assert_eq!(copy.join(7).unwrap(), joined, "it is counted once");
    assert!(copy.join(0).unwrap_err().to_string().contains("number 0"));
    drop(copy);
    let refused = try_put_for(&live, Holders::Generation(1)).unwrap_err();
    assert!(matches!(refused, StoreError::HoldersChanged { .. }), "{refused}");
    drop(live);
    let live = writer(&ring);
    assert_eq!((live.was_joined(PART, 7), live.was_joined(PART, 8)), (Some(joined), None));
    assert_eq!(live.was_joined(PART, 0), None);
    live.set_holders(PART, 3, 1).unwrap();
    assert_eq!(live.was_joined(PART, 7), None, "the change after it is a person's");
}

#[test]
fn a_partition_is_not_sealed_for_ever() {
    let (_ring, live) = ring_and_writer();
    let mut n_seals = 0;
    let refused = loop {
        let mut copy = live.begin_copy(PART).unwrap();
        match copy.seal() {
            Ok(_) => n_seals += 1,
            Err(refused) => break refused,
        }
        assert!(n_seals < 100, "as often as somebody likes");
    };
    assert!(matches!(refused, StoreError::Busy { part: PART, .. }) && n_seals >= 3, "{refused}");
    try_put_for(&live, Holders::Alone).unwrap();
}
