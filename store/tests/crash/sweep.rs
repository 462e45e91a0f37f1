//! Sweeps: a scenario is run once for every operation at which something can go wrong.

use std::error::Error;

use lodestore_store::file_system::crash::{CrashFileSystem, Fault, Neglect, Plan};
use rustix::io::Errno;

use crate::crash::world::Finding;

/// More operations than this mean that a scenario does not end.
const MAX_OPERATIONS: u64 = 100_000;

/// Something done on a file system that can be interrupted, and what must hold then.
pub(crate) trait Scenario {
    /// Acknowledged changes that the scenario knows of.
    type Acknowledged;

    /// Returns the name for messages.
    fn name(&self) -> &'static str;

    /// Returns a file system with what is there before anything goes wrong.
    fn prepare(&self) -> CrashFileSystem;

    /// Does everything; `is_sticky` decides whether the coming fault will continue.
    fn run(
        &self,
        fs: &CrashFileSystem,
        is_sticky: bool,
    ) -> Result<Self::Acknowledged, Box<dyn Error>>;

    /// Looks at what is there, which must not contradict what was acknowledged, and continues with
    /// it on a file system that works.
    fn check(&self, fs: &CrashFileSystem, acknowledged: &Self::Acknowledged, seed: u64) -> Finding;
}

/// One run of a scenario.
#[derive(Clone, Copy)]
struct Run<'a, S> {
    scenario: &'a S,
    plan: Plan,
    neglect: Option<Neglect>,
}

/// Returns how many outcomes of each loss are looked at.
pub(crate) fn n_seeds(quick: u64, long: u64) -> u64 {
    if std::env::var_os("LODE_LONG").is_some() { long } else { quick }
}

/// Cuts the power at every operation; each loss has several outcomes. Returns their number.
pub(crate) fn sweep_losses<S: Scenario>(
    scenario: &S,
    neglect: Option<Neglect>,
    n_seeds: u64,
) -> Result<u64, String> {
    for after in 0..MAX_OPERATIONS {
        let plan = Plan { fault: Fault::PowerLoss, after, sticky: true };
        let run = Run { scenario, plan, neglect };
        let (fs, acknowledged) = run.start()?;
        for seed in 0..n_seeds {
            run.check(&fs.after_loss(seed), seed, &acknowledged)?;
        }
        if !fs.has_struck() {
            return Ok((after + 1) * n_seeds);
        }
    }
    Err(format!("{} does not end", scenario.name()))
}

/// Operations are refused once, and from there on, for every reason; then the file system works again,
/// or the power goes. Returns the number of runs.
///
/// Every operation fails once; of the other faults the quick run looks at every fifth operation.
pub(crate) fn sweep_faults<S: Scenario>(scenario: &S) -> Result<u64, String> {
    let [eio, enospc, emfile, eintr] =
        [Errno::IO, Errno::NOSPC, Errno::MFILE, Errno::INTR].map(Fault::Errno);
    // A call that is interrupted for ever is not a fault of any system.
    let once = [enospc, emfile, eintr, Fault::ShortRead].map(|fault| (fault, false));
    let sticky = [eio, enospc, emfile, Fault::ShortRead].map(|fault| (fault, true));
    let mut n_runs = sweep_fault(scenario, (eio, false), 0, 1)?;
    for (first, fault) in (0..).zip(once.into_iter().chain(sticky)) {
        let step = n_seeds(5, 1);
        n_runs += sweep_fault(scenario, fault, first % step, step)?;
    }
    Ok(n_runs)
}

fn sweep_fault<S: Scenario>(
    scenario: &S,
    (fault, sticky): (Fault, bool),
    first: u64,
    step: u64,
) -> Result<u64, String> {
    for (n_runs, after) in (1..).zip((first..MAX_OPERATIONS).step_by(step as usize)) {
        let plan = Plan { fault, after, sticky };
        let run = Run { scenario, plan, neglect: None };
        let (fs, acknowledged) = run.start()?;
        let (has_struck, seed) = (fs.has_struck(), after);
        fs.arm(None);
        let after_loss = fs.after_loss(seed);
        run.check(&fs, seed, &acknowledged)?;
        run.check(&after_loss, seed, &acknowledged)?;
        if !has_struck {
            return Ok(n_runs);
        }
    }
    Err(format!("{} does not end", scenario.name()))
}

impl<S: Scenario> Run<'_, S> {
    /// Runs the scenario into its fault.
    fn start(&self) -> Result<(CrashFileSystem, S::Acknowledged), String> {
        let _panic = Context(self.context(0));
        let fs = self.scenario.prepare();
        if let Some(neglect) = self.neglect {
            fs.neglect(neglect);
        }
        fs.arm(Some(self.plan));
        let ran = self.scenario.run(&fs, self.plan.sticky);
        let acknowledged = ran.map_err(|error| format!("{}: {error}", self.context(0)))?;
        Ok((fs, acknowledged))
    }

    fn check(
        &self,
        fs: &CrashFileSystem,
        seed: u64,
        acked: &S::Acknowledged,
    ) -> Result<(), String> {
        let _panic = Context(self.context(seed));
        let found = self.scenario.check(fs, acked, seed);
        found.map_err(|error| format!("{}: {error}", self.context(seed)))
    }

    fn context(&self, seed: u64) -> String {
        let (name, Plan { fault, after, sticky }) = (self.scenario.name(), self.plan);
        format!("{name}: {fault:?} after {after} operations (sticky {sticky}), seed {seed}")
    }
}

/// Says where a sweep was when it panics.
struct Context(String);

impl Drop for Context {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("panicked in {}", self.0);
        }
    }
}
