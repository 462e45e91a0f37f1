//! The faults, drawn from a seed.

use std::thread;
use std::time::Duration;

use lodestore_client::{MovePlan, PartMove};
use rustix::process::Signal;

use crate::cluster::{Cluster, N_PARTS, N_SERVERS};
use crate::support::Numbers;
use crate::support::process::signal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// kill -9, and a restart at once or a while later.
    Kill,
    /// SIGSTOP for a while.
    Pause,
    /// SIGTERM, which must end well, and a restart.
    Restart,
    /// A partition moves.
    Move,
    /// A move ends after some of its steps, and is taken up later.
    CutMove,
    /// A server is killed between two steps of a move.
    KillInMove,
    Commit,
    Compact,
    /// The map names the servers in another order, or not all of them, for a while.
    Map,
}

impl Fault {
    pub(crate) const ALL: [Self; 9] = [
        Self::Kill,
        Self::Pause,
        Self::Restart,
        Self::Move,
        Self::CutMove,
        Self::KillInMove,
        Self::Commit,
        Self::Compact,
        Self::Map,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill -9 and restart",
            Self::Pause => "stopped for a while",
            Self::Restart => "clean stop and restart",
            Self::Move => "partition moved",
            Self::CutMove => "move cut off",
            Self::KillInMove => "server killed in a move",
            Self::Commit => "commit",
            Self::Compact => "compaction",
            Self::Map => "map changed",
        }
    }
}

pub(crate) struct Faults {
    numbers: Numbers,
    pub(crate) counts: [u64; Fault::ALL.len()],
    /// Of these, the ones that came to their end: a move that moved, a commit that was made.
    pub(crate) done: [u64; Fault::ALL.len()],
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self { numbers: Numbers(seed), counts: [0; Fault::ALL.len()], done: [0; Fault::ALL.len()] }
    }

    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.numbers.below(bound)
    }

    pub(crate) fn note(&mut self, fault: Fault) {
        self.counts[fault as usize] += 1;
    }

    /// Draws a fault and lets it happen; all servers run when it is over.
    pub(crate) fn next(&mut self, cluster: &mut Cluster) -> Fault {
        let fault = Fault::ALL[self.below(Fault::ALL.len() as u32) as usize];
        let at = self.below(N_SERVERS as u32) as usize;
        let mut is_done = true;
        match fault {
            Fault::Kill => {
                cluster.servers[at].take().unwrap().kill();
                self.sleep(600);
                cluster.start_server(at);
            }
            Fault::Pause => {
                signal(&cluster.servers[at].as_ref().unwrap().child, Signal::STOP);
                self.sleep(3000);
                signal(&cluster.servers[at].as_ref().unwrap().child, Signal::CONT);
            }
            Fault::Restart => {
                cluster.servers[at].take().unwrap().stop();
                self.sleep(300);
                cluster.start_server(at);
            }
            Fault::Move => {
                is_done = false;
                if let Some((plan, ..)) = self.draw_move(cluster) {
                    // A compaction may keep it waiting for longer than it likes to.
                    is_done = PartMove::run(plan, &mut |_, _| {}).is_ok();
                    cluster.heal();
                    cluster.tidy();
                }
            }
            Fault::CutMove => {
                if let Some((plan, ..)) = self.draw_move(cluster) {
                    let n_steps = self.below(4);
                    drop(steps(plan, n_steps));
                    self.sleep(300);
                    cluster.heal();
                    cluster.tidy();
                }
            }
            Fault::KillInMove => {
                if let Some((plan, from, to)) = self.draw_move(cluster) {
                    let n_steps = self.below(5);
                    let moving = steps(plan, n_steps);
                    let victim = if self.below(2) == 0 { from } else { to };
                    cluster.servers[victim].take().unwrap().kill();
                    drop(moving);
                    self.sleep(300);
                    cluster.heal();
                    cluster.tidy();
                }
            }
            Fault::Commit => {
                is_done = cluster.client().is_some_and(|client| client.commit().is_ok());
            }
            Fault::Compact => {
                is_done = cluster.client().is_some_and(|client| client.compact().is_ok());
            }
            Fault::Map => {
                let orders: [&[usize]; 4] = [&[2, 1, 0], &[1, 0, 2], &[0, 2, 1], &[2, 0, 1]];
                cluster.write_map(orders[self.below(4) as usize]);
            }
        }
        self.done[fault as usize] += u64::from(is_done);
        fault
    }

    fn sleep(&mut self, most_ms: u32) {
        thread::sleep(Duration::from_millis(self.below(most_ms).into()));
    }

    /// A partition, a server that has it, and one that has not.
    fn draw_move(&mut self, cluster: &Cluster) -> Option<(MovePlan, usize, usize)> {
        let part = self.below(N_PARTS.into()) as u16;
        let having: Vec<usize> = (0..N_SERVERS).filter(|&at| cluster.owns(at, part)).collect();
        let others: Vec<usize> = (0..N_SERVERS).filter(|&at| !cluster.owns(at, part)).collect();
        let from = *having.get(self.below(having.len().max(1) as u32) as usize)?;
        let to = *others.get(self.below(others.len().max(1) as u32) as usize)?;
        Some((cluster.plan(from, part, to), from, to))
    }
}

/// Takes some steps of a move; ends early where one fails.
fn steps(plan: MovePlan, n_steps: u32) -> Option<PartMove> {
    let mut moving = PartMove::begin(plan).ok()?;
    for step in 0..n_steps {
        let done = match step {
            0 => moving.open().map(drop),
            1 => moving.fetch(&mut |_, _| {}),
            2 => moving.seal(),
            _ => moving.release(),
        };
        done.ok()?;
    }
    Some(moving)
}
