//! A file system that is full from some write on, and then has room again. The graph continues without
//! being opened again, and what had failed never comes back.

use lodestore_store::file_system::crash::{CrashFileSystem, Fault, Plan};
use lodestore_store::update::Folding;
use rustix::io::Errno;

use crate::crash::import::imported;
use crate::crash::small::N_NODES;
use crate::crash::world::{Finding, Model, Op, World};

const ALL: u16 = (1 << N_NODES) - 1;

/// Operations that are tried while the file system fills up.
const OPS: &[Op] = &[
    Op::Put { tensor: 0, nodes: 0b1000_0000_0110 },
    Op::Put { tensor: 1, nodes: ALL },
    Op::Commit,
    Op::Put { tensor: 0, nodes: 0b0000_0000_0010 },
    Op::Put { tensor: 0, nodes: 0b1000_0000_0000 },
    Op::Compact { part: None, what: Folding::All },
    Op::Put { tensor: 1, nodes: 0b1000_0000_0001 },
    Op::Commit,
    Op::Sweep,
];

/// Operations that must succeed once there is room.
const CONTINUES: &[Op] = &[
    Op::Gather,
    Op::Put { tensor: 0, nodes: 0b100 },
    Op::Gather,
    Op::Commit,
    Op::Put { tensor: 1, nodes: ALL },
    Op::Compact { part: None, what: Folding::All },
    Op::Commit,
    Op::Gather,
    Op::Verify,
];

/// Fills the file system at operation `after`, for `n_ops` things that are tried; `None` where it never
/// was full.
fn run(base: &CrashFileSystem, after: u64, n_ops: usize) -> Result<Option<()>, String> {
    let crash = base.after_loss(after);
    let mut world = World::new(&crash, Model::imported());
    let context = |what: &str, op: &Op| {
        let what = format!("full after {after} operations, {n_ops} tried, {what} {op:?}");
        move |error| format!("{what}: {error}")
    };
    world.act(&Op::Reopen).map_err(context("before", &Op::Reopen))?;
    crash.arm(Some(Plan { fault: Fault::Errno(Errno::NOSPC), after, sticky: true }));
    world.is_sticky = true;
    for op in &OPS[..n_ops] {
        world.act(op).map_err(context("without room", op))?;
    }
    if !crash.has_struck() {
        return Ok(None);
    }
    world.act(&Op::Gather).map_err(context("without room", &Op::Gather))?;
    crash.arm(None);
    world.is_sticky = false;
    continues(&mut world, &crash, after).map_err(context("then", &Op::Reopen))?;
    Ok(Some(()))
}

fn continues(world: &mut World, crash: &CrashFileSystem, seed: u64) -> Finding {
    for op in CONTINUES {
        world.act(op).map_err(|error| format!("{op:?}: {error}"))?;
    }
    let model = world.model.clone();
    for fs in [crash.after_loss(seed), crash.after_loss(seed + 1)] {
        let mut after = World::new(&fs, model.clone());
        after.act(&Op::Look)?;
        after.act(&Op::Reopen)?;
        after.act(&Op::Gather)?;
    }
    Ok(())
}

#[test]
fn a_graph_continues_when_a_full_device_has_room_again() {
    let base = imported();
    let mut n_full = 0;
    for n_ops in 1..=OPS.len() {
        for after in 0.. {
            if run(&base, after, n_ops).unwrap().is_none() {
                break;
            }
            n_full += 1;
        }
    }
    assert!(n_full > 100, "{n_full} full devices");
}
