//! Puts that are repeated because their reply was lost.

use super::*;

const N_NODES: u32 = 60;

fn put_once(live: &GraphHandle, id: u128, node: u32, seq: u32) -> u32 {
    let width = live.graph().tensor("feat").unwrap().row_bytes();
    live.put_rows_once(id, "feat", &[NodeId(node)], &row_of(seq, width)).unwrap()
}

#[test]
fn a_put_that_is_repeated_after_a_restart_writes_nothing_over_later_rows() {
    let ring = ring(N_NODES, 2, 2);
    let live = writer(&ring);
    assert_eq!(put_once(&live, 7, 3, 1), 2);
    drop(live);
    // The reply was lost with the process. Another client puts the row, then the first retries.
    let live = writer(&ring);
    assert_eq!(put_once(&live, 8, 3, 2), 2);
    assert_eq!(put_once(&live, 7, 3, 1), 2);
    live.commit_version().unwrap();
    assert_eq!(seqs(&latest(&live), "feat")[3], 2);
    // The number is remembered while rows are pending for the next version.
    assert_eq!(put_once(&live, 9, 3, 4), 3);
    drop(live);
    let live = writer(&ring);
    assert_eq!(put_once(&live, 7, 3, 1), 2);
    live.commit_version().unwrap();
    assert_eq!(seqs(&latest(&live), "feat")[3], 4);
    // Then it is forgotten: a put is only repeated soon after its reply was lost.
    put(&live, "feat", &[3], 5);
    live.commit_version().unwrap();
    assert_eq!(put_once(&live, 7, 3, 1), 5);
    assert!(ring.verify().ok);
}
