use lodestore_cache::PolicySpec;
use lodestore_cache::policy::{Candidate, DecaySpec, Replacement, Scoreboard};
use lodestore_store::Dtype;
use proptest::prelude::*;

use super::*;
use crate::source::memory::MemorySource;

const N_NODES: u32 = 50;
const ROW_BYTES: usize = 6;

fn rows(ids: &[NodeId]) -> Vec<u8> {
    ids.iter().flat_map(|id| [id.0 as u8 + 1; ROW_BYTES]).collect()
}

fn nodes(ids: &[u32]) -> Vec<NodeId> {
    ids.iter().copied().map(NodeId).collect()
}

fn source() -> Arc<MemorySource> {
    let mut source = MemorySource::new(PartitionBook::new(vec![0, N_NODES]).unwrap());
    let all = nodes(&(0..N_NODES).collect::<Vec<_>>());
    source.add("x", Dtype::U8, ROW_BYTES as u32, rows(&all)).unwrap();
    source.add("y", Dtype::U8, 1, vec![9; N_NODES as usize]).unwrap();
    Arc::new(source)
}

/// Returns a spec with the even nodes as candidates; the lower the id, the higher the degree.
fn spec(interval: u32) -> PolicySpec {
    let even = (0..N_NODES).step_by(2);
    let candidates = even.map(|id| Candidate { id, degree: N_NODES - id, is_halo: true }).collect();
    let (gamma, replacement, scoreboard) = (0.5, Replacement::Any, Scoreboard::Dense);
    PolicySpec::Decay(DecaySpec { candidates, gamma, interval, replacement, scoreboard })
}

fn buffer(n_slots: u32, spec: &PolicySpec) -> (HaloBuffer, PullStats) {
    let tier = Tier::of_slots(n_slots, ROW_BYTES, N_NODES, spec).unwrap();
    HaloBuffer::new(source(), "x", tier).unwrap()
}

proptest! {
    #[test]
    fn rows_are_right_whatever_is_evicted_and_every_pulled_row_is_counted(
        n_slots in 0u32..40,
        interval in 1u32..5,
        batches in prop::collection::vec(prop::collection::vec(0..N_NODES, 0..40), 1..20),
    ) {
        let (buffer, filled) = buffer(n_slots, &spec(interval));
        let n_filled = u64::from(n_slots.min(N_NODES / 2));
        prop_assert_eq!((filled.rows, filled.ahead_rows), (n_filled, n_filled));
        let (mut n_asked, mut pulled) = (0, PullStats::default());
        for ids in batches {
            let ids = nodes(&ids);
            let mut out = vec![0xee; ids.len() * ROW_BYTES];
            pulled += buffer.pull("x", &ids, &mut out, PullKind::Sync).unwrap();
            prop_assert!(out == rows(&ids));
            n_asked += ids.len() as u64;
        }
        let stats = buffer.stats();
        prop_assert_eq!(stats.hits + stats.misses, n_asked);
        prop_assert_eq!(pulled.rows, stats.misses + pulled.ahead_rows);
        prop_assert_eq!(pulled.found, TierRows { buffer: stats.hits, ..TierRows::default() });
    }
}

#[test]
fn a_round_of_eviction_replaces_unsampled_rows_by_missed_ones_in_one_pull() {
    let (buffer, filled) = buffer(2, &spec(3));
    assert_eq!(filled.rows, 2, "nodes 0 and 2");
    let pull = |ids: &[u32]| {
        let mut out = vec![0; ids.len() * ROW_BYTES];
        let pulled = buffer.pull("x", &nodes(ids), &mut out, PullKind::Sync).unwrap();
        (pulled.rows, pulled.ahead_rows, pulled.requests)
    };
    // Every batch requests 2 and 40, and none requests 0; 41 is no candidate. After three batches
    // the score of 0 is at the threshold, after six it is below.
    for _ in 0..6 {
        assert_eq!(pull(&[2, 40, 41]), (2, 0, 1), "40 is missed and wanted together");
    }
    assert_eq!(pull(&[2, 40, 41]), (1, 0, 1), "40 has replaced 0");
    // No batch requests 40 any more, and 12 is missed until the next round but two.
    for _ in 0..12 {
        pull(&[2, 12]);
    }
    assert_eq!(pull(&[2, 12]), (0, 0, 0), "12 has replaced 40");
}

#[test]
fn without_eviction_the_highest_degrees_stay() {
    let spec = PolicySpec::Degree([0u32, 2, 4].into());
    let (buffer, filled) = buffer(2, &spec);
    assert_eq!(filled.rows, 2);
    for _ in 0..5 {
        let mut out = vec![0; 3 * ROW_BYTES];
        let pulled = buffer.pull("x", &nodes(&[0, 2, 4]), &mut out, PullKind::Sync).unwrap();
        assert_eq!((pulled.rows, pulled.ahead_rows), (1, 0));
    }
    assert_eq!(buffer.stats().evictions, 0);
    buffer.forget(&nodes(&[0]));
    let mut out = vec![0; ROW_BYTES];
    let pulled = buffer.pull("x", &nodes(&[7]), &mut out, PullKind::Sync).unwrap();
    assert_eq!((pulled.rows, pulled.ahead_rows), (2, 1), "the forgotten row is wanted again");
}

#[test]
fn other_tensors_bypass_the_buffer_and_failed_pulls_keep_nothing() {
    let (buffer, _) = buffer(5, &spec(3));
    let mut out = [0; 2];
    buffer.pull("y", &nodes(&[1, 2]), &mut out, PullKind::Sync).unwrap();
    assert_eq!((out, buffer.stats().misses), ([9; 2], 0));
    let mut out = vec![0; 2 * ROW_BYTES];
    let unknown = buffer.pull("x", &nodes(&[40, N_NODES]), &mut out, PullKind::Sync).unwrap_err();
    assert!(matches!(unknown, ClientError::UnknownNode { .. }), "{unknown}");
    let short = buffer.pull("x", &nodes(&[1]), &mut out, PullKind::Sync).unwrap_err();
    assert!(matches!(short, ClientError::BufferSize { .. }), "{short}");
    let tier = Tier::of_slots(2, ROW_BYTES + 1, N_NODES, &PolicySpec::Lru).unwrap();
    assert!(matches!(HaloBuffer::new(source(), "x", tier), Err(ClientError::TierWidth { .. })));
}
