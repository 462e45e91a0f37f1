//! Puts, commits, compactions and openings: what was acknowledged is there, whatever happens.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use lodestore_graph::NodeId;
use lodestore_store::file_system::crash::{CrashFileSystem, Fault, Neglect, Plan};
use lodestore_store::update::Folding;
use lodestore_store::{Graph, GraphHandle, OpenMode, OpenOptions, ReaderKind};
use rustix::io::Errno;

use crate::crash::import::imported;
use crate::crash::small::{N_NODES, OUT};
use crate::crash::sweep::{Scenario, n_seeds, sweep_faults, sweep_losses};
use crate::crash::world::{Finding, Model, Op, World};

/// Operations of an opening, about; losses of power in it come at any of them.
const OPENING: u64 = 12;

/// Things done one after the other, each whatever became of those before.
pub(crate) struct Updates {
    name: &'static str,
    base: CrashFileSystem,
    model: Model,
    ops: &'static [Op],
}

const ALL: u16 = (1 << N_NODES) - 1;

/// All layers of all tensors become segments.
const COMPACT: Op = Op::Compact { part: None, what: Folding::All };

/// All deltas of each tensor become one.
const FOLD: Op = Op::Compact { part: None, what: Folding::Deltas };

/// Operations that a graph must still allow after any fault.
const GOES_ON: &[Op] = &[
    Op::Look,
    Op::Reopen,
    Op::Gather,
    Op::Verify,
    Op::Put { tensor: 0, nodes: 0b1000_0000_0110 },
    Op::Put { tensor: 1, nodes: ALL },
    Op::Commit,
    Op::Prepare,
    Op::Put { tensor: 0, nodes: 0b11 },
    Op::Commit,
    FOLD,
    Op::Gather,
    COMPACT,
    Op::Put { tensor: 1, nodes: 0b1 },
    Op::Gather,
    Op::Verify,
];

impl Updates {
    /// Prepares `ops` on a graph that `before` were done to.
    fn new(name: &'static str, before: &[Op], ops: &'static [Op]) -> Self {
        let base = imported();
        let mut world = World::new(&base, Model::imported());
        before.iter().try_for_each(|op| world.act(op)).unwrap();
        world.close();
        Self { name, base, model: world.model, ops }
    }

    /// Returns the test of `ops` on a graph in this state.
    pub(crate) fn of(
        name: &'static str,
        base: CrashFileSystem,
        model: Model,
        ops: &'static [Op],
    ) -> Self {
        Self { name, base, model, ops }
    }

    /// Runs the scenario for all that can happen, and prints what came of it.
    pub(crate) fn sweep(&self) {
        let n_outcomes = sweep_losses(self, None, n_seeds(6, 300)).unwrap();
        println!("{n_outcomes} outcomes, {} runs with faults", sweep_faults(self).unwrap());
    }
}

impl Scenario for Updates {
    type Acknowledged = Model;

    fn name(&self) -> &'static str {
        self.name
    }

    fn prepare(&self) -> CrashFileSystem {
        self.base.after_loss(0)
    }

    fn run(&self, fs: &CrashFileSystem, is_sticky: bool) -> Result<Model, Box<dyn Error>> {
        let mut world = World::new(fs, self.model.clone());
        world.is_sticky = is_sticky;
        for op in self.ops {
            world.act(op).map_err(|error| format!("{op:?}: {error}"))?;
        }
        world.close();
        Ok(world.model)
    }

    /// Checks that the contents fit what was acknowledged, also when recovery is cut off again and
    /// again, and that the graph continues.
    fn check(&self, crash: &CrashFileSystem, acknowledged: &Model, seed: u64) -> Finding {
        let (mut crash, mut model) = (crash.clone(), acknowledged.clone());
        for again in 0..seed % 4 {
            let after = (seed / 4 + again * 5) % OPENING;
            crash.arm(Some(Plan { fault: Fault::PowerLoss, after, sticky: true }));
            let mut world = World::new(&crash, model);
            world.is_sticky = true;
            world.act(&Op::Reopen).map_err(|error| format!("recovery {again}: {error}"))?;
            world.close();
            (model, crash) = (world.model, crash.after_loss(seed + again));
        }
        let mut world = World::new(&crash, model);
        for op in GOES_ON {
            world.act(op).map_err(|error| format!("then {op:?}: {error}"))?;
        }
        world.close();
        let mut world = World::new(&crash.after_loss(seed), world.model);
        world.act(&Op::Reopen).map_err(|error| format!("in the end: {error}"))?;
        world.act(&Op::Gather)
    }
}

#[test]
fn puts_and_commits_hold_whatever_happens() {
    const OPS: &[Op] = &[
        Op::Reopen,
        Op::Put { tensor: 0, nodes: 0b1000_0000_0110 },
        Op::Put { tensor: 1, nodes: ALL },
        Op::Commit,
        Op::Put { tensor: 0, nodes: 0b0000_0000_0010 },
        Op::Gather,
        Op::Commit,
        Op::Commit,
        Op::Put { tensor: 1, nodes: 0b1001 },
    ];
    Updates::new("puts and commits", &[], OPS).sweep();
}

#[test]
fn commits_in_two_steps_hold_whatever_happens() {
    const OPS: &[Op] = &[
        Op::Reopen,
        Op::Put { tensor: 0, nodes: 0b1000_0000_0110 },
        Op::Put { tensor: 1, nodes: 0b11 },
        Op::Prepare,
        Op::Put { tensor: 0, nodes: 0b0000_0000_0011 },
        Op::Gather,
        Op::Publish,
        Op::Gather,
        Op::Prepare,
        Op::Put { tensor: 1, nodes: ALL },
        Op::Reopen,
        Op::Put { tensor: 0, nodes: 0b1001 },
        Op::Gather,
        Op::Commit,
        Op::Gather,
    ];
    Updates::new("commits in two steps", &[], OPS).sweep();
}

#[test]
fn folds_that_keep_versions_hold_whatever_happens() {
    const OPS: &[Op] = &[
        Op::Keep(2),
        COMPACT,
        Op::Pin,
        Op::Put { tensor: 1, nodes: 0b1 },
        Op::Commit,
        COMPACT,
        Op::Gather,
        Op::Reopen,
        FOLD,
        Op::Verify,
    ];
    let before = [
        Op::Reopen,
        Op::Put { tensor: 0, nodes: 0b1000_0000_0110 },
        Op::Put { tensor: 1, nodes: ALL },
        Op::Commit,
        Op::Put { tensor: 1, nodes: 0b11 },
        Op::Commit,
        Op::Put { tensor: 0, nodes: 0b11 },
        Op::Commit,
    ];
    Updates::new("folds that keep versions", &before, OPS).sweep();
}

#[test]
fn compactions_hold_whatever_happens() {
    const OPS: &[Op] = &[
        COMPACT,
        Op::Reopen,
        Op::Compact { part: Some(0), what: Folding::All },
        Op::Gather,
        Op::Put { tensor: 0, nodes: 0b1 },
        Op::Commit,
        Op::Compact { part: None, what: Folding::WherePays },
        Op::Put { tensor: 1, nodes: 0b1 },
        Op::Verify,
    ];
    let before = [
        Op::Reopen,
        Op::Put { tensor: 0, nodes: 0b1000_0000_0110 },
        Op::Put { tensor: 1, nodes: ALL },
        Op::Commit,
        Op::Put { tensor: 1, nodes: 0b11 },
    ];
    Updates::new("compactions", &before, OPS).sweep();
}

#[test]
fn folds_of_deltas_hold_whatever_happens() {
    const OPS: &[Op] = &[
        Op::Reopen,
        Op::Pin,
        FOLD,
        Op::Gather,
        Op::Put { tensor: 1, nodes: 0b1 },
        Op::Commit,
        Op::Release,
        FOLD,
        Op::Gather,
        Op::Prepare,
        COMPACT,
        Op::Publish,
        Op::Gather,
    ];
    let before = [
        Op::Reopen,
        Op::Put { tensor: 0, nodes: 0b1000_0000_0110 },
        Op::Put { tensor: 1, nodes: ALL },
        Op::Commit,
        Op::Put { tensor: 0, nodes: 0b1000_0000_0011 },
        Op::Commit,
        Op::Put { tensor: 0, nodes: 0b10 },
        Op::Put { tensor: 1, nodes: 0b11 },
    ];
    Updates::new("folds", &before, OPS).sweep();
}

#[test]
fn views_and_readers_beside_a_compaction_hold_whatever_happens() {
    const OPS: &[Op] = &[
        Op::Reopen,
        Op::Pin,
        Op::Put { tensor: 0, nodes: 0b1000_0000_0110 },
        Op::Read,
        Op::Commit,
        Op::Pin,
        COMPACT,
        Op::Put { tensor: 0, nodes: 0b11 },
        Op::Gather,
        Op::Commit,
        Op::Release,
        COMPACT,
        Op::Release,
        Op::Gather,
        Op::Sweep,
        Op::Release,
        Op::Sweep,
        Op::Gather,
    ];
    Updates::new("views beside a compaction", &[], OPS).sweep();
}

#[test]
fn after_a_commit_that_failed_partitions_have_the_version_that_is_on_disk() {
    let open = |crash: &CrashFileSystem, mode| {
        let graph = Graph::open_on(Arc::new(crash.clone()), Path::new(OUT)).unwrap();
        let options = OpenOptions { reader: ReaderKind::Pread };
        GraphHandle::open(graph, None, mode, &options).unwrap()
    };
    let (base, mut n_apart) = (imported(), 0);
    for after in 0.. {
        let crash = base.after_loss(after);
        let live = open(&crash, OpenMode::Write);
        live.put_rows("mark", &[NodeId(1), NodeId(N_NODES - 1)], &[1, 1]).unwrap();
        crash.arm(Some(Plan { fault: Fault::Errno(Errno::IO), after, sticky: false }));
        let committed = live.commit_version();
        let has_struck = crash.has_struck();
        crash.arm(None);
        let versions = live.part_versions();
        n_apart += u32::from(versions[0].1 != versions[1].1);
        assert_eq!(versions, open(&crash, OpenMode::Read).part_versions(), "after {after}");
        if !has_struck {
            committed.unwrap();
            break;
        }
    }
    assert!(n_apart >= 2, "either partition has failed");
}

/// Checks that the sweep of a file system that breaks this promise finds it.
fn is_found(neglect: Neglect) {
    const OPS: &[Op] = &[Op::Reopen, Op::Put { tensor: 0, nodes: 0b11 }, Op::Commit, COMPACT];
    let updates = Updates::new("updates", &[], OPS);
    println!("{}", sweep_losses(&updates, Some(neglect), 8).unwrap_err());
}

#[test]
fn the_sweep_finds_segments_whose_bytes_are_not_synced() {
    is_found(Neglect::FileSyncs);
}

#[test]
fn the_sweep_finds_segments_whose_names_are_not_synced() {
    is_found(Neglect::FolderSyncs);
}

#[test]
fn the_sweep_finds_puts_that_are_acknowledged_before_they_are_durable() {
    is_found(Neglect::PairSyncs);
}

#[test]
fn the_sweep_finds_a_catalog_that_is_switched_before_its_segment_is_durable() {
    is_found(Neglect::Order);
}
