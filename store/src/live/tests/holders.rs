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

/// What a person says; each generation's change has a number of its own.
fn said(generation: u32, n_holders: u16) -> Membership {
    Membership { generation, n_holders, change: 2 * u64::from(generation) }
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
    try_put_for(&live, Holders::Change(0)).unwrap();
    live.set_holders(PART, said(2, 2)).unwrap();
    live.set_holders(PART, said(2, 2)).unwrap();
    let of_another = Membership { change: 6, ..said(2, 2) };
    let numbered = |change| Membership { change, ..said(3, 2) };
    let others = [said(2, 3), said(1, 2), said(0, 1), said(3, 0), said(u32::MAX, 2), of_another];
    for new in others.into_iter().chain([numbered(0), numbered(7)]) {
        let refused = live.set_holders(PART, new).unwrap_err();
        assert!(matches!(refused, StoreError::MoveRefused { .. }), "{refused}");
    }
    let check = |live: &LiveGraph| {
        for other in [0, 2, 6] {
            let refused = try_put_for(live, Holders::Change(other)).unwrap_err();
            let StoreError::HoldersChanged { part: PART, generation: 2, expected: 4, found } =
                refused
            else {
                panic!("{refused}")
            };
            assert_eq!(found, other);
        }
        let refused = try_put_for(live, Holders::Alone).unwrap_err();
        assert!(matches!(refused, StoreError::Replicated { n_holders: 2, .. }), "{refused}");
        try_put_for(live, Holders::Change(4)).unwrap();
    };
    check(&live);
    drop(live);
    let live = writer(&ring);
    check(&live);
    assert_eq!(live.membership(PartId(0)), Membership::default(), "it is one partition's");
    live.set_holders(PART, said(3, 1)).unwrap();
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
    live.set_holders(PART, said(5, 2)).unwrap();
    copy.seal().unwrap();
    let refused = live.set_holders(PART, said(6, 3)).unwrap_err();
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
    assert_eq!(taken.membership(PART), said(5, 2));
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
    live.set_holders(PART, said(1, 1)).unwrap();

    let mut copy = live.begin_copy(PART).unwrap();
    super::moving::pairs(&mut copy, &catalog, &mut || {});
    try_put_for(&live, Holders::Change(2)).unwrap();
    copy.seal().unwrap();
    super::moving::pairs(&mut copy, &catalog, &mut || {});
    let joined = copy.join(7).unwrap();
    assert_eq!(joined, Membership { generation: 2, n_holders: 2, change: 7 });
    assert_eq!(copy.join(7).unwrap(), joined, "it is counted once");
    for even in [0, 2] {
        assert!(copy.join(even).unwrap_err().to_string().contains("odd number"));
    }
    drop(copy);
    let refused = try_put_for(&live, Holders::Change(2)).unwrap_err();
    assert!(matches!(refused, StoreError::HoldersChanged { .. }), "{refused}");
    drop(live);
    let live = writer(&ring);
    assert_eq!((live.was_joined(PART, 7), live.was_joined(PART, 8)), (Some(joined), None));
    assert_eq!(live.was_joined(PART, 0), None);
    live.set_holders(PART, said(3, 1)).unwrap();
    assert_eq!(live.was_joined(PART, 7), None, "the change after it is a person's");
    assert_eq!(live.was_joined(PART, 6), None, "which is no move");
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
