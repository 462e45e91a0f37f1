//! A graph in use on a simulated file system, against a model of what it may hold. Puts, commits in one
//! step and in two, folds, views, readers, openings, faults and losses of power come in any order.

use std::path::Path;
use std::sync::Arc;

use lodestore_store::file_system::FileSystem;
use lodestore_store::file_system::crash::{CrashFileSystem, Fault, Plan};
use lodestore_store::update::Folding;
use rustix::io::Errno;

use crate::small::import;
use crate::world::{Model, Op, World};

/// Most steps of one input.
const MAX_STEPS: usize = 40;

/// Action or event.
#[derive(Clone, Debug)]
enum Step {
    Do(Op),
    /// The power goes.
    Loss {
        seed: u64,
    },
    /// A fault comes after some operations.
    Arm(Plan),
    /// The file system works again.
    Mend,
}

/// Bytes of a step.
const STEP: usize = 3;

impl Step {
    /// Returns what three bytes spell: every change of one is a change of the step.
    fn of([kind, a, b]: [u8; STEP]) -> Self {
        let put = |tensor| Op::Put { tensor, nodes: u16::from_le_bytes([a, b]) };
        Self::Do(match kind % 16 {
            0 => put(0),
            1 => put(1),
            2 => match a % 4 {
                2 => Op::Prepare,
                3 => Op::Publish,
                _ => Op::Commit,
            },
            3 => Op::Compact { part: None, what: folding(b) },
            4 => Op::Compact { part: Some(u16::from(a % 2)), what: folding(b) },
            5 => Op::Sweep,
            6 => Op::Gather,
            7 => Op::Pin,
            8 => Op::Read,
            9 => Op::Release,
            10 => Op::Verify,
            11 => Op::Look,
            12 => Op::Reopen,
            13 => return Self::Loss { seed: a.into() },
            14 => return Self::Arm(plan(a, b)),
            _ => return Self::Mend,
        })
    }
}

fn folding(kind: u8) -> Folding {
    [Folding::All, Folding::Deltas, Folding::WherePays][usize::from(kind % 3)]
}

/// Returns a fault, and how many operations it spares.
fn plan(kind: u8, after: u8) -> Plan {
    let errnos = [Errno::IO, Errno::NOSPC, Errno::MFILE, Errno::INTR];
    let fault = match kind % 8 {
        kind @ 0..4 => Fault::Errno(errnos[usize::from(kind)]),
        4 => Fault::ShortRead,
        _ => Fault::PowerLoss,
    };
    // A call that is interrupted for ever is not a fault of any system.
    let sticky = kind >= 128 && fault != Fault::Errno(Errno::INTR) || fault == Fault::PowerLoss;
    Plan { fault, after: after.into(), sticky }
}

thread_local! {
    /// The file system with the imported graph.
    static IMPORTED: CrashFileSystem = {
        let fs = CrashFileSystem::new(0);
        fs.create_dir(Path::new("graphs")).expect("an empty file system");
        fs.sync(Path::new("")).expect("a sound file system");
        let shared: Arc<dyn FileSystem> = Arc::new(fs.clone());
        import(&shared).expect("a sound file system");
        fs
    };
}

/// Returns a file system with the imported graph.
pub(crate) fn imported() -> CrashFileSystem {
    IMPORTED.with(|fs| fs.after_loss(0))
}

/// Does all steps, and in the end looks at what is there.
pub fn run(data: &[u8]) {
    let fs = imported();
    let world = World::new(&fs, Model::imported());
    let mut run = Run { world, fs, is_armed: false };
    run.act(&Op::Reopen);
    for &step in data.as_chunks::<STEP>().0.iter().take(MAX_STEPS) {
        run.step(&Step::of(step));
        if run.fs.is_dead() {
            run.loss(data.len() as u64);
        }
    }
    run.mend();
    run.act(&Op::Gather);
}

struct Run {
    fs: CrashFileSystem,
    world: World,
    is_armed: bool,
}

impl Run {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Do(op) => self.act(op),
            Step::Loss { seed } => self.loss(*seed),
            Step::Arm(plan) => {
                self.mend_if_armed();
                self.world.is_sticky = plan.sticky;
                self.fs.arm(Some(*plan));
                self.is_armed = true;
            }
            Step::Mend => self.mend_if_armed(),
        }
    }

    fn act(&mut self, op: &Op) {
        if let Err(error) = self.world.act(op) {
            panic!("{op:?}: {error}");
        }
    }

    /// Loses power, and opens the graph on what is left.
    fn loss(&mut self, seed: u64) {
        self.world.close();
        self.is_armed = false;
        self.fs = self.fs.after_loss(seed);
        self.world = World::new(&self.fs, self.world.model.clone());
        self.act(&Op::Reopen);
    }

    /// Ends the faults of the file system, and opens the graph again. Failed operations are given up, as
    /// by a process that ends.
    fn mend(&mut self) {
        self.fs.arm(None);
        self.is_armed = false;
        self.act(&Op::Reopen);
    }

    /// Ends the faults of a file system that has some.
    fn mend_if_armed(&mut self) {
        if self.is_armed {
            self.mend();
        }
    }
}

/// Updates, a compaction beside views, and losses and faults at several places.
pub fn seeds() -> Vec<Vec<u8>> {
    let put = [0, 0b110, 0b1000];
    let update = [put, [1, 0xff, 0x0f], [2, 0, 0], [0, 0b11, 0], [3, 0, 0], [6, 0, 0]].concat();
    let views = [[7, 0, 0], put, [8, 0, 0], [2, 0, 0], [3, 0, 0], [6, 0, 0], [9, 0, 0], [5, 0, 0]];
    let loss = |after: u8| [[14, 5, after], put, [2, 0, 0], [3, 0, 0], [13, after, 0]].concat();
    let (prepare, publish, fold) = ([2, 2, 0], [2, 3, 0], [3, 0, 1]);
    let two_steps = |between| {
        let again = [1, 0b11, 0];
        [put, prepare, again, between, publish, [6, 0, 0], [2, 0, 0], fold, [6, 0, 0]].concat()
    };
    let fault = |kind, after| [[14, kind, after], put, [2, 0, 0], [3, 0, 0], [15, 0, 0]].concat();
    let mut seeds = vec![update.clone(), [update, views.concat()].concat(), views.concat()];
    seeds.extend([0, 3, 6, 9, 12].map(loss));
    seeds.extend([[6, 0, 0], [13, 3, 0], [12, 0, 0], fold].map(two_steps));
    seeds.extend((0..5).flat_map(|kind| [fault(kind, 7), fault(kind | 128, 20)]));
    seeds
}
