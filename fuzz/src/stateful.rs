//! A graph in use on a simulated device: puts, commits, compactions, views, readers, openings,
//! faults and losses of power in any order, against a model of what it may hold.

use std::path::Path;
use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use lodestore_store::Device;
use lodestore_store::crash::{CrashDevice, Fault, Plan};
use rustix::io::Errno;

use crate::small::{TENSORS, import};
use crate::world::{Model, Op, World};

/// Most steps of one input.
const MAX_STEPS: usize = 48;

/// One thing to do, or that happens.
#[derive(Arbitrary, Clone, Debug)]
enum Step {
    Put {
        tensor: bool,
        nodes: u16,
    },
    Commit,
    Compact {
        part: u8,
    },
    Sweep,
    Gather,
    Pin,
    Read,
    Release,
    Verify,
    Look,
    Reopen,
    /// The power goes.
    Loss {
        seed: u8,
    },
    /// A fault comes after some operations.
    Arm {
        fault: Kind,
        after: u8,
        sticky: bool,
    },
    /// The device works again.
    Mend,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Kind {
    PowerLoss,
    Io,
    NoSpace,
    NoDescriptor,
    Interrupted,
    ShortRead,
}

thread_local! {
    /// The device with the imported graph.
    static IMPORTED: CrashDevice = {
        let device = CrashDevice::new(0);
        device.create_dir(Path::new("graphs")).expect("an empty device");
        device.sync(Path::new("")).expect("a sound device");
        let shared: Arc<dyn Device> = Arc::new(device.clone());
        import(&shared).expect("a sound device");
        device
    };
}

/// Does all steps, and in the end looks at what is there.
pub fn run(data: &[u8]) {
    let steps = Vec::<Step>::arbitrary(&mut Unstructured::new(data)).unwrap_or_default();
    let device = IMPORTED.with(|device| device.after_loss(0));
    let mut run = Run { world: World::new(&device, Model::imported()), device };
    run.act(&Op::Reopen, &Step::Reopen);
    for step in steps.iter().take(MAX_STEPS) {
        run.step(step);
        if run.device.is_dead() {
            run.loss(data.len() as u64, step);
        }
    }
    run.mend(&Step::Mend);
    run.act(&Op::Gather, &Step::Gather);
}

struct Run {
    device: CrashDevice,
    world: World,
}

impl Run {
    fn step(&mut self, step: &Step) {
        let op = match *step {
            Step::Put { tensor, nodes } => Op::Put { tensor: usize::from(tensor), nodes },
            Step::Commit => Op::Commit,
            Step::Compact { part } => {
                Op::Compact { part: [None, Some(0), Some(1)][part as usize % 3] }
            }
            Step::Sweep => Op::Sweep,
            Step::Gather => Op::Gather,
            Step::Pin => Op::Pin,
            Step::Read => Op::Read,
            Step::Release => Op::Release,
            Step::Verify => Op::Verify,
            Step::Look => Op::Look,
            Step::Reopen => Op::Reopen,
            Step::Loss { seed } => return self.loss(seed.into(), step),
            Step::Arm { fault, after, sticky } => {
                self.mend(step);
                let sticky = sticky && !matches!(fault, Kind::Interrupted);
                self.world.is_sticky = sticky || matches!(fault, Kind::PowerLoss);
                let plan = Plan { fault: fault.fault(), after: after.into(), sticky };
                return self.device.arm(Some(plan));
            }
            Step::Mend => return self.mend(step),
        };
        self.act(&op, step);
    }

    fn act(&mut self, op: &Op, step: &Step) {
        if let Err(error) = self.world.act(op) {
            panic!("{step:?}: {error}");
        }
    }

    /// The power goes, and the graph is opened on what is left.
    fn loss(&mut self, seed: u64, step: &Step) {
        self.world.close();
        self.device = self.device.after_loss(seed);
        self.world = World::new(&self.device, self.world.model.clone());
        self.act(&Op::Reopen, step);
    }

    /// The device works from here on; what had failed is given up, as a process that ends does.
    fn mend(&mut self, step: &Step) {
        self.device.arm(None);
        self.act(&Op::Reopen, step);
    }
}

impl Kind {
    fn fault(self) -> Fault {
        match self {
            Kind::PowerLoss => Fault::PowerLoss,
            Kind::Io => Fault::Errno(Errno::IO),
            Kind::NoSpace => Fault::Errno(Errno::NOSPC),
            Kind::NoDescriptor => Fault::Errno(Errno::MFILE),
            Kind::Interrupted => Fault::Errno(Errno::INTR),
            Kind::ShortRead => Fault::ShortRead,
        }
    }
}

/// Inputs that spell a few steps of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    assert_eq!(TENSORS.len(), 2, "a step names a tensor by one bit");
    [1u8, 37, 91, 201].map(|by| (0..250u8).map(|i| i.wrapping_mul(by)).collect()).into()
}
