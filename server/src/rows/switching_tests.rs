//! Gathers during switches, and during the release and return of a partition, on one shard.

use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use futures_lite::future::poll_once;
use glommio::{LocalExecutorBuilder, Placement};
use lodestore_cache::{MemoryBudget, PolicyKind};
use lodestore_schema::request::PullKind;
use lodestore_store::GraphHandle;
use lodestore_store::update::{Folding, KeepRule};

use super::*;
use crate::auth::AuthHandle;
use crate::blocking::BlockingPools;
use crate::compactor::Runs;
use crate::config::ServerConfig;
use crate::metrics::Observed;
use crate::preload::Preload;
use crate::reads::{Progress, PullOrder, ReadAdmission};
use crate::testing::{Faulty, OpenFault, ROW_BYTES, import, put};
use crate::volatile::Volatile;

/// As many rows as several turns of a switch process.
const N_NODES: u32 = 20_000;
const PART: PartId = PartId(0);
const NODE: NodeId = NodeId(7);

/// The rows of a graph with one partition on one shard.
struct Bench {
    graph: PathBuf,
    plan: ShardPlan,
    rows: ShardRows,
    reads: Rc<ReadAdmission>,
}

impl Bench {
    async fn new(dir: &Path) -> Self {
        let graph = import(dir, N_NODES);
        let mut config = ServerConfig { writable: true, n_shards: 1, ..ServerConfig::new(&graph) };
        config.tier_bytes = 1 << 20;
        config.keep = KeepRule::NEWEST;
        let partitions = Arc::new(Partitions::open(&config, 1).unwrap());
        let counters: Arc<[Counters]> = Arc::from([Counters::new(1)]);
        let plan = ShardPlan {
            tier_bytes: Arc::from([1 << 20]),
            memory_budget: MemoryBudget::new(4 << 20),
            shared_bytes: 0,
            policy: PolicyKind::Lru,
            auth: Arc::new(AuthHandle::default()),
            preload: Arc::new(Preload::new(&config, &partitions).unwrap()),
            volatile: Arc::new(Volatile::new(&config, &partitions, &MemoryBudget::new(0)).unwrap()),
            partitions,
            counters: Arc::clone(&counters),
            shard_ports: Arc::from([]),
            threads: Arc::new(BlockingPools::start(false).unwrap()),
            runs: Arc::new(Runs::new()),
            busy: Arc::default(),
            observed: Arc::new(Observed::new(&ServerConfig::new("."))),
        };
        let rows = ShardRows::open(&plan, 0, 0).await.unwrap();
        let reads = Rc::new(ReadAdmission::new(plan.partitions.profile, counters, 0));
        Self { graph, plan, rows, reads }
    }

    fn live(&self) -> &GraphHandle {
        &self.plan.partitions.live
    }

    /// Commits rows of the first `n_nodes` nodes.
    fn commit(&self, n_nodes: u32, turn: u32) {
        put(self.live(), n_nodes, turn);
        self.live().commit_version().unwrap();
    }

    fn read_turn(&self) -> ReadTurn {
        let now = Instant::now();
        let deadline = now + Duration::from_secs(60);
        let (kind, progress) = (PullKind::Sync, Progress::New);
        self.reads.turn(&PullOrder { kind, arrived: now, deadline, progress })
    }

    /// Gathers the row of a node; returns the turn that wrote it.
    async fn turn_of(&self, node: NodeId) -> u32 {
        self.turn_at(None, node).await
    }

    /// Like `turn_of`, of a version or of the newest.
    async fn turn_at(&self, cut: Option<&Arc<Cut>>, node: NodeId) -> u32 {
        let turn = self.read_turn();
        let mut out = [0xEE; ROW_BYTES];
        let want = Want { turn: &turn, cut };
        assert!(self.rows.gather(&self.plan, want, &[node], &mut out).await.unwrap());
        let found = u64::from_le_bytes(out);
        assert_eq!(found as u32, node.0);
        (found >> 32) as u32
    }

    async fn refresh(&self) {
        let refresh = self.rows.refresh(&self.plan.partitions, PART);
        let late = async {
            glommio::timer::sleep(Duration::from_secs(10)).await;
            panic!("the switch does not end");
        };
        futures_lite::FutureExt::or(refresh, late).await.unwrap();
    }

    async fn open(&self) {
        self.rows.open_part(&self.plan.partitions, PART).await.unwrap();
    }

    fn is_resident(&self, node: NodeId) -> bool {
        let key = self.rows.stripes.key_of(node.0);
        self.rows.tier.borrow().directory().slot_of(key) != lodestore_cache::slots::NO_SLOT
    }
}

/// Runs a test with a bench on an executor.
fn on_shard<F: Future<Output = ()> + 'static>(test: impl FnOnce(Bench) -> F + Send + 'static) {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_owned();
    let run = move || async move { test(Bench::new(&place).await).await };
    LocalExecutorBuilder::new(Placement::Unbound).spawn(run).unwrap().join().unwrap();
}

/// Polls until the first turn of a switch has removed rows from the tier and more turns follow.
async fn poll_into_the_midst(bench: &Bench, switch: Pin<&mut impl Future<Output = ()>>) {
    let mut switch = switch;
    assert!(bench.is_resident(NODE));
    while bench.is_resident(NODE) {
        glommio::timer::sleep(Duration::from_millis(1)).await;
        // Exceeds a task's turn, so the switch yields as soon as it can.
        std::thread::sleep(Duration::from_millis(150));
        assert!(poll_once(switch.as_mut()).await.is_none(), "the switch has not yielded");
    }
}

#[test]
fn a_gather_during_a_switch_admits_no_changed_row() {
    on_shard(|bench| async move {
        assert_eq!(bench.turn_of(NODE).await, 0);
        let other = NodeId(8);
        let mut gather = pin!(bench.turn_of(other));
        assert!(poll_once(gather.as_mut()).await.is_none(), "the gather reads from disk");
        bench.commit(N_NODES, 1);
        {
            let mut switch = pin!(bench.refresh());
            poll_into_the_midst(&bench, switch.as_mut()).await;
            assert_eq!(gather.await, 0, "the gather began before the switch");
            switch.await;
        }
        assert_eq!((bench.turn_of(other).await, bench.turn_of(NODE).await), (1, 1));
    });
}

#[test]
fn a_cancelled_switch_does_not_block_the_next() {
    on_shard(|bench| async move {
        assert_eq!(bench.turn_of(NODE).await, 0);
        bench.commit(N_NODES, 1);
        {
            let mut switch = pin!(bench.refresh());
            poll_into_the_midst(&bench, switch.as_mut()).await;
        }
        assert_eq!(bench.turn_of(NODE).await, 0, "nothing has changed");
        bench.refresh().await;
        assert_eq!(bench.turn_of(NODE).await, 1);
    });
}

#[test]
fn a_failed_switch_does_not_block_the_next() {
    on_shard(|bench| async move {
        bench.commit(10, 1);
        let _fault = Faulty::new(bench.graph.join("part-000/x.v2.delta"), OpenFault::Fails);
        let refused = bench.rows.refresh(&bench.plan.partitions, PART).await.unwrap_err();
        assert!(refused.message.contains("on purpose"), "{refused}");
        assert_eq!(bench.turn_of(NODE).await, 0);
        bench.refresh().await;
        assert_eq!(bench.turn_of(NODE).await, 1);
    });
}

#[test]
fn deltas_that_were_folded_unseen_still_change_rows() {
    on_shard(|bench| async move {
        assert_eq!(bench.turn_of(NODE).await, 0);
        bench.commit(10, 1);
        let mut go_on = |_, _| std::ops::ControlFlow::Continue(());
        bench.live().compact(None, None, Folding::All, &mut go_on).unwrap();
        bench.refresh().await;
        assert_eq!(bench.turn_of(NODE).await, 1);
    });
}

#[test]
fn a_partition_opens_at_a_version_committed_during_the_open() {
    on_shard(|bench| async move {
        bench.rows.close_part(PART).await;
        let fault = Faulty::new(bench.graph.join("part-000/x.v1.seg"), OpenFault::Waits);
        let mut opening = pin!(bench.open());
        assert!(poll_once(opening.as_mut()).await.is_none());
        bench.commit(10, 1);
        // The partition is not listed, so there is nothing to switch.
        bench.refresh().await;
        drop(fault);
        opening.await;
        assert_eq!(bench.turn_of(NODE).await, 1);
    });
}

#[test]
fn a_gather_that_outlasts_its_partition_admits_no_row_after_its_return() {
    on_shard(|bench| async move {
        let mut gather = pin!(bench.turn_of(NODE));
        assert!(poll_once(gather.as_mut()).await.is_none(), "the gather reads from disk");
        // Does not wait for the close.
        assert!(
            poll_once(pin!(bench.rows.close_part(PART))).await.is_none(),
            "the gather holds the partition"
        );
        bench.open().await;
        bench.commit(10, 1);
        bench.refresh().await;
        assert_eq!(gather.await, 0, "the gather began before the commit");
        assert_eq!(bench.turn_of(NODE).await, 1);
    });
}

/// Rows may change while the partition is away.
#[test]
fn rows_of_a_partition_that_returns_are_read_again() {
    on_shard(|bench| async move {
        assert_eq!(bench.turn_of(NODE).await, 0);
        assert!(bench.is_resident(NODE));
        bench.rows.close_part(PART).await;
        bench.commit(10, 1);
        bench.open().await;
        assert_eq!(bench.turn_of(NODE).await, 1);
    });
}

#[test]
fn a_pinned_version_and_the_newest_share_no_wrong_row_in_the_tier() {
    on_shard(|bench| async move {
        // The commit changes the first node and not the second.
        let nodes = [NODE, NodeId(17)];
        let cut = |number| {
            let pinned = bench.live().pin(number).unwrap();
            Arc::new(Cut::pinned(bench.live(), &pinned, 1))
        };
        let before = cut(1);
        bench.turn_of(nodes[1]).await;
        bench.commit(10, 1);
        let after = cut(2);
        // A version can be pinned and read before the shard has switched to it.
        assert_eq!(bench.turn_at(Some(&after), NODE).await, 1);
        assert_eq!(bench.turn_of(NODE).await, 0);
        bench.refresh().await;
        for _ in 0..2 {
            for (node, newest) in nodes.into_iter().zip([1, 0]) {
                assert_eq!(bench.turn_at(Some(&before), node).await, 0, "{node}");
                assert_eq!(bench.turn_of(node).await, newest, "{node}");
                assert_eq!(bench.turn_at(Some(&after), node).await, newest, "{node}");
                assert!(bench.is_resident(node));
            }
        }
    });
}

#[test]
fn a_row_that_changes_while_it_is_preloaded_is_not_admitted() {
    on_shard(|bench| async move {
        let (turn, mut out) = (bench.read_turn(), [0xEE; ROW_BYTES]);
        let load = bench.rows.load_ahead(&bench.plan, &turn, &[NODE], &mut out);
        let mut load = pin!(load);
        assert!(poll_once(load.as_mut()).await.is_none(), "the load reads from disk");
        bench.commit(10, 1);
        bench.refresh().await;
        assert!(load.await.unwrap(), "slots are free");
        assert_eq!(bench.turn_of(NODE).await, 1);
    });
}
