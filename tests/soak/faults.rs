//! The faults: all kinds in an order that a seed draws, then all of them in another.

use std::thread;
use std::time::{Duration, Instant};

use lodestore_client::{Client, ClientError};
use rustix::process::Signal;

use crate::clients::{Clients, Habit};
use crate::cluster::{Cluster, N_SERVERS, STEADY};
use crate::monitor::{CALL_OF_TEST, TEST};
use testing::Numbers;
use testing::process::signal;

/// Longest time for a commit, or to ask for a compaction.
const ASK_MAX: Duration = Duration::from_secs(3);
/// Longest time for a fault, with all that it has to wait for.
const FAULT_MAX: Duration = Duration::from_secs(300);
/// Shortest time for a link to be bad: something should come along.
const LINK_MIN_MS: u32 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// kill -9, and an immediate or a delayed restart.
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
    /// The maps name the servers in another order.
    Map,
    /// Every connection through a relay breaks in the middle of a message.
    Cut,
    /// A relay passes nothing for a while.
    Stall,
    /// A relay passes little for a while.
    Slow,
    /// The disk under a server is full, until it is given room and started again.
    FullDisk,
    /// A client comes while a server is down.
    ComeWhileDown,
    /// A client process that has rows in shared memory is stopped, and killed.
    KillClient,
}

impl Fault {
    pub(crate) const ALL: [Self; 15] = [
        Self::Kill,
        Self::Pause,
        Self::Restart,
        Self::Move,
        Self::CutMove,
        Self::KillInMove,
        Self::Commit,
        Self::Compact,
        Self::Map,
        Self::Cut,
        Self::Stall,
        Self::Slow,
        Self::FullDisk,
        Self::ComeWhileDown,
        Self::KillClient,
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
            Self::Cut => "connections cut in a message",
            Self::Stall => "link stood still",
            Self::Slow => "link slow",
            Self::FullDisk => "disk full",
            Self::ComeWhileDown => "client came while a server was down",
            Self::KillClient => "client killed with shared memory",
        }
    }
}

/// Places of faults, and their victims.
pub(crate) struct Scene<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) clients: &'a Clients<'a>,
}

pub(crate) struct Faults {
    /// Seed of kinds alone: whatever faults meet, the next kind is the same.
    order: Numbers,
    numbers: Numbers,
    start: Instant,
    /// Number of the longest pauses: less in a short run.
    pace: f64,
    /// Kinds that are still to come before all come again.
    deck: Vec<Fault>,
    /// The highest version that a commit has given.
    pub(crate) committed: u32,
    pub(crate) counts: [u64; Fault::ALL.len()],
    /// Number of these that came to their end: a move that moved, a commit that was made.
    pub(crate) done: [u64; Fault::ALL.len()],
}

impl Faults {
    pub(crate) fn new(seed: u64, pace: f64) -> Self {
        let (counts, done) = ([0; Fault::ALL.len()], [0; Fault::ALL.len()]);
        let (order, numbers, start) = (Numbers(seed), Numbers(!seed), Instant::now());
        Self { order, numbers, start, pace, deck: Vec::new(), committed: 0, counts, done }
    }

    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.numbers.below(bound)
    }

    fn draw_from(&mut self, least_ms: u32, most_ms: u32) -> Duration {
        let ms = least_ms + self.below(most_ms - least_ms);
        Duration::from_millis(ms.into()).mul_f64(self.pace)
    }

    pub(crate) fn sleep(&mut self, most_ms: u32) {
        thread::sleep(self.draw_from(0, most_ms));
    }

    /// Draws a server that may be killed.
    pub(crate) fn draw_victim(&mut self) -> usize {
        const { assert!(STEADY == N_SERVERS - 1) };
        self.below(STEADY as u32) as usize
    }

    fn draw_server(&mut self) -> usize {
        self.below(N_SERVERS as u32) as usize
    }

    /// Returns whether every kind was tried.
    pub(crate) fn had_all(&self) -> bool {
        self.counts.iter().all(|count| *count > 0)
    }

    fn draw_fault(&mut self) -> Fault {
        if self.deck.is_empty() {
            self.deck = Fault::ALL.to_vec();
        }
        let at = self.order.below(self.deck.len() as u32) as usize;
        self.deck.swap_remove(at)
    }

    /// Draws a fault and lets it happen; all servers run when it is over, and links may still be
    /// bad.
    pub(crate) fn next(&mut self, scene: &mut Scene<'_>) {
        let fault = self.draw_fault();
        println!("{:7.1} s  {}", self.start.elapsed().as_secs_f64(), fault.name());
        let monitor = scene.clients.monitor;
        let is_done = monitor.during(TEST, FAULT_MAX, || self.happen(fault, scene));
        self.counts[fault as usize] += 1;
        self.done[fault as usize] += u64::from(is_done);
        scene.cluster.check_running();
    }

    /// Returns whether it came to its end.
    fn happen(&mut self, fault: Fault, scene: &mut Scene<'_>) -> bool {
        let cluster = &mut *scene.cluster;
        match fault {
            Fault::Kill => {
                let at = self.draw_victim();
                cluster.take_out(at).kill();
                self.sleep(600);
                cluster.start_server(at);
                true
            }
            Fault::Pause => {
                let at = self.draw_server();
                signal(&cluster.servers[at].as_ref().unwrap().child, Signal::STOP);
                self.sleep(3000);
                signal(&cluster.servers[at].as_ref().unwrap().child, Signal::CONT);
                true
            }
            Fault::Restart => {
                let at = self.draw_victim();
                cluster.take_out(at).stop();
                self.sleep(300);
                cluster.start_server(at);
                true
            }
            Fault::Move => self.move_part(scene),
            Fault::CutMove => self.cut_move(scene),
            Fault::KillInMove => self.kill_in_move(scene),
            Fault::Commit => scene.ask_all(|client| {
                self.committed = self.committed.max(scene.clients.load.commit(client)?);
                Ok(())
            }),
            Fault::Compact => {
                let is_asked = scene.ask_all(|client| client.compact().map(drop));
                scene.cluster.check_compactions();
                is_asked
            }
            Fault::Map => {
                let order: [usize; N_SERVERS] =
                    [[2, 1, 0, 3], [3, 0, 2, 1], [1, 3, 2, 0]][self.below(3) as usize];
                cluster.write_maps(order);
                true
            }
            Fault::Cut => {
                let (at, n_bytes) = (self.draw_server(), self.below(200_000));
                cluster.relays[at].cut_after(n_bytes, Duration::from_secs(2))
            }
            Fault::Stall => {
                let at = self.draw_server();
                cluster.relays[at].stand_still(self.draw_from(LINK_MIN_MS, 4000))
            }
            Fault::Slow => {
                let at = self.draw_server();
                let bytes_per_second = 300_000 + self.below(2_000_000);
                cluster.relays[at].be_slow(self.draw_from(LINK_MIN_MS, 6000), bytes_per_second)
            }
            Fault::FullDisk => self.fill_disk(scene),
            Fault::ComeWhileDown => self.come_while_down(scene),
            Fault::KillClient => self.kill_client(scene),
        }
    }
}

impl Scene<'_> {
    /// Asks something of all servers, past the relays, and not for long; returns whether it was
    /// done.
    fn ask_all(&self, ask: impl FnOnce(&Client) -> Result<(), ClientError>) -> bool {
        let habit = Habit::new(CALL_OF_TEST, &self.cluster.near(), ASK_MAX, None);
        let client = self.clients.connect(&habit);
        client.is_some_and(|client| self.clients.call(&habit, || ask(&client)))
    }
}
