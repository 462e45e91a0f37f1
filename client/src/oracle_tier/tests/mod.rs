use std::thread;
use std::time::Duration;

use lodestore_cache::policy::next_uses;
use lodestore_graph::NodeId;
use proptest::prelude::*;

use super::*;
use crate::loader::RowResidency;
use crate::prefetch::{BatchSource, Prefetcher, Window};
use crate::testing::{ROW_BYTES, TestSource, loader, nodes, rows_of};
use lodestore_graph::batch::Batch;

mod overlap;

const N_NODES: u32 = 40;

/// Batches of distinct nodes, with the next use of each node.
struct Known {
    tier: Arc<OracleTier>,
    first: u32,
    batches: Vec<Vec<NodeId>>,
    fails_at: Option<u32>,
}

impl Known {
    fn new(n_slots: usize, first: u32, batches: Vec<Vec<NodeId>>) -> Self {
        let numbers = first..batches.len() as u32;
        let tier = OracleTier::new(n_slots, ROW_BYTES, N_NODES, &numbers).unwrap();
        Self { tier: Arc::new(tier), first, batches, fails_at: None }
    }

    /// Like [`Known::new`], with a tier that is filled before the first batch. Also returns the
    /// stats of that.
    fn filled(
        n_slots: usize,
        most_rows: usize,
        first: u32,
        batches: Vec<Vec<NodeId>>,
        remote: &Arc<TestSource>,
    ) -> (Self, LoadStats) {
        let (loader, mut soonest) = (loader(remote), Vec::<(NodeId, u32)>::new());
        for (number, batch) in (0..).zip(&batches[first as usize..]) {
            for &node in batch.iter().filter(|&&node| loader.is_remote(node)) {
                if soonest.iter().all(|(known, _)| *known != node) {
                    soonest.push((node, number));
                }
            }
        }
        let numbers = first..batches.len() as u32;
        let fill = TierFill { soonest: &soonest, most_rows };
        let (tier, pulled) = OracleTier::filled(n_slots, &loader, N_NODES, &numbers, fill).unwrap();
        (Self { tier: Arc::new(tier), first, batches, fails_at: None }, pulled)
    }

    /// Returns the next uses, by looking ahead node by node.
    fn next_uses(&self, index: u32) -> Vec<u32> {
        let later = || index + 1..self.batches.len() as u32;
        let has = |batch: u32, node: &NodeId| self.batches[batch as usize].contains(node);
        let next = |node: &NodeId| later().find(|&batch| has(batch, node));
        let next = self.batches[index as usize].iter().map(next);
        next.map(|next| next.map_or(u32::MAX, |next| next - self.first)).collect()
    }
}

impl BatchSource for Known {
    fn n_batches(&self) -> u32 {
        self.batches.len() as u32
    }

    fn batch(&self, index: u32) -> Result<(Batch, RowResidency), ClientError> {
        let mut turn = self.tier.turn(index);
        if self.fails_at == Some(index) {
            return Err(ClientError::Panicked { thread: "test batch" });
        }
        turn.announce(self.next_uses(index));
        let nodes = self.batches[index as usize].clone();
        Ok((Batch { nodes, ..Batch::default() }, Some(Box::new(turn))))
    }

    fn end_of_epoch(&self, _index: u32) -> u32 {
        self.n_batches()
    }
}

/// Returns the remote rows that Belady's MIN reads for each batch, one batch after the other.
fn misses(n_slots: u32, batches: &[Vec<NodeId>]) -> Vec<u64> {
    let is_remote = |id: &u32| !(10..30).contains(id);
    let batches: Vec<Vec<u32>> =
        batches.iter().map(|b| b.iter().map(|n| n.0).filter(is_remote).collect()).collect();
    let spec = PolicySpec::Oracle { n_batches: batches.len() as u32 };
    let mut tier = Tier::of_slots(n_slots, ROW_BYTES, N_NODES, &spec).unwrap();
    let (mut misses, mut all) = (Vec::new(), Vec::new());
    for (number, ids) in batches.iter().enumerate() {
        let later = |id: &u32| batches[number + 1..].iter().position(|b| b.contains(id));
        let next = |id: &u32| later(id).map_or(u32::MAX, |after| (number + 1 + after) as u32);
        tier.announce(&ids.iter().map(next).collect::<Vec<_>>());
        let mut rows = vec![0; ids.len() * ROW_BYTES];
        tier.lookup(ids, &mut rows, &mut misses);
        tier.admit(ids, &rows, &misses);
        all.push(misses.len() as u64);
    }
    all
}

fn batches() -> impl Strategy<Value = Vec<Vec<NodeId>>> {
    let batch = prop::collection::btree_set(0..N_NODES, 0..14).prop_map(nodes).prop_shuffle();
    prop::collection::vec(batch, 1..14)
}

proptest! {
    #[test]
    fn every_row_is_right_and_no_more_are_pulled_than_the_optimum_needs(
        batches in batches(), n_slots in 0usize..24, window in 0usize..8, together in 1usize..5, first in 0usize..6,
        fill in prop::option::of(1usize..9),
    ) {
        let first = first.min(batches.len());
        let remote = Arc::new(TestSource::new(Duration::ZERO, u64::MAX));
        let misses = misses(n_slots as u32, &batches[first..]);
        let expected = misses.iter().sum::<u64>();
        let (source, filled) = match fill {
            None => (Known::new(n_slots, first as u32, batches.clone()), 0),
            Some(most_rows) => {
                let (known, filled) =
                    Known::filled(n_slots, most_rows, first as u32, batches.clone(), &remote);
                let pulls = remote.pulls.lock().unwrap();
                let is_fill = |(ids, kind): &(Vec<NodeId>, PullKind)| {
                    ids.len() <= most_rows && *kind == PullKind::Vector
                };
                prop_assert!(pulls.iter().all(is_fill));
                prop_assert_eq!(known.tier.held_bytes(), filled.remote_bytes);
                (known, filled.remote_rows)
            }
        };
        let source = Arc::new(source);
        let travelled = thread::scope(|scope| {
            let loader = loader(&remote);
            let (source, first) = (Arc::clone(&source) as _, first as u32);
            let window = Window { n_batches: window, together };
            let mut prefetcher = Prefetcher::start(scope, source, loader, window, first);
            let mut travelled = 0;
            for (nodes, misses) in batches[first as usize..].iter().zip(misses) {
                let prepared = prefetcher.next_batch().unwrap().unwrap();
                assert_eq!(prepared.rows.bytes(), rows_of(nodes));
                let load = prepared.load;
                let n_rows = load.local_rows + load.hit_rows + load.remote_rows;
                assert_eq!(n_rows, nodes.len() as u64);
                assert!(load.remote_rows == misses || fill.is_some());
                travelled += load.remote_rows;
            }
            travelled
        });
        prop_assert_eq!(travelled + filled, expected);
        prop_assert!(source.tier.held_bytes() <= (n_slots * ROW_BYTES) as u64);
    }
}

#[test]
fn next_uses_of_the_test_agree_with_the_caches() {
    let batches = [[1, 2], [2, 3], [1, 3]].map(nodes).to_vec();
    let known = Known::new(1, 0, batches);
    let ids = [1, 2, 2, 3, 1, 3];
    let found: Vec<u32> = (0..3).flat_map(|batch| known.next_uses(batch)).collect();
    assert_eq!(found, next_uses(&ids, &[0, 2, 4, 6]).unwrap());
}

#[test]
fn a_batch_that_fails_ends_the_run_and_no_thread_waits_for_it() {
    for window in [0, 1, 3, 8].map(Window::joined) {
        for fails_at in 0..4 {
            let all = (0..9).map(|i| nodes([i, i + 1, 35])).collect();
            let known = Known { fails_at: Some(fails_at), ..Known::new(4, 0, all) };
            let remote = Arc::new(TestSource::new(Duration::from_millis(1), u64::MAX));
            thread::scope(|scope| {
                let source = Arc::new(known);
                let mut prefetcher = Prefetcher::start(scope, source, loader(&remote), window, 0);
                for _ in 0..fails_at {
                    prefetcher.next_batch().unwrap().unwrap();
                }
                assert!(prefetcher.next_batch().is_err());
            });
        }
    }
}

#[test]
fn batches_look_up_and_move_rows_in_their_order() {
    let tier = Arc::new(OracleTier::new(4, ROW_BYTES, N_NODES, &(3..6)).unwrap());
    let (looked_up, moved) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for index in [5, 3, 4] {
            let (mut turn, looked_up, moved) = (tier.turn(index), &looked_up, &moved);
            scope.spawn(move || {
                // With slots out of order, a batch would find the row of another.
                turn.announce(vec![index - 2; 1]);
                let slots = turn.look_up(&nodes([7]), &[0]).unwrap().to_vec();
                looked_up.lock().unwrap().push((index, slots));
                // The first batch takes longest.
                thread::sleep(Duration::from_millis(u64::from(60 - 10 * index)));
                let mut rows = if index == 3 { rows_of(&nodes([7])) } else { vec![0xEE; 4] };
                turn.move_rows(&[0], &mut rows, &mut |_, _, _| panic!("no row is lost")).unwrap();
                assert_eq!(rows, rows_of(&nodes([7])), "batch {index}");
                moved.lock().unwrap().push(index);
            });
        }
    });
    let mut looked_up = looked_up.into_inner().unwrap();
    looked_up.sort_unstable();
    assert_eq!(looked_up, [(3, vec![u32::MAX]), (4, vec![0]), (5, vec![0])]);
    assert_eq!(moved.into_inner().unwrap().len(), 3);
    drop(tier.turn(6));
    let found = tier.turn(7).look_up(&[], &[]).map(<[u32]>::to_vec);
    assert!(matches!(found, Err(ClientError::Abandoned { batch: 7 })));
}

/// Looks up the nodes of a batch; returns the slots of its rows, including those that it is to
/// bring.
fn slots_after_look_up(turn: &mut BatchTicket, ids: &[u32], next_uses: &[u32]) -> Vec<u32> {
    let at: Vec<u32> = (0..).take(ids.len()).collect();
    turn.announce(next_uses.to_vec());
    turn.look_up(&nodes(ids.iter().copied()), &at).unwrap();
    let mut slots = turn.decision.slots.clone();
    for placement in &turn.decision.placements {
        slots[placement.position as usize] = placement.slot;
    }
    slots
}

#[test]
fn a_batch_that_fails_leaves_rows_that_a_later_batch_has_placed_elsewhere() {
    let tier = Arc::new(OracleTier::new(2, ROW_BYTES, N_NODES, &(0..5)).unwrap());
    let mut turns: Vec<BatchTicket> = (0..5).map(|index| tier.turn(index)).collect();
    let before = slots_after_look_up(&mut turns[0], &[7], &[3])[0];
    // Two rows of sooner use take both slots. The former slot of node 7 is in use until batch 4.
    let both = slots_after_look_up(&mut turns[1], &[1, 2], &[2, 2]);
    assert!(both.contains(&before), "{both:?}");
    let next_uses: Vec<u32> =
        both.iter().map(|&slot| if slot == before { 4 } else { NEVER }).collect();
    slots_after_look_up(&mut turns[2], &[1, 2], &next_uses);
    let after = slots_after_look_up(&mut turns[3], &[7], &[4])[0];
    assert_ne!(after, before);

    turns[0].give_up();
    turns[4].announce(vec![NEVER]);
    assert_eq!(turns[4].look_up(&nodes([7]), &[0]).unwrap(), [after]);
}

#[test]
fn a_tier_is_not_filled_from_an_unpinned_source() {
    let loader = loader(&TestSource::unpinned());
    let fill = TierFill { soonest: &[(NodeId(1), 0)], most_rows: 4 };
    let error = OracleTier::filled(4, &loader, N_NODES, &(0..3), fill).err();
    assert!(matches!(error, Some(ClientError::Unpinned { .. })), "{error:?}");
}
