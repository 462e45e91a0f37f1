//! Partitions that move, or begin to.

use lodestore_client::{MovePlan, PartMove};

use crate::cluster::{Cluster, N_PARTS, N_SERVERS, REPLICATED, STEADY};
use crate::faults::{Faults, Scene};

/// A move between two servers.
struct Drawn {
    plan: MovePlan,
    ends: [usize; 2],
    is_replicated: bool,
}

impl Faults {
    pub(crate) fn move_part(&mut self, scene: &mut Scene<'_>) -> bool {
        // A compaction may keep it waiting for longer than it likes to.
        let told = scene.clients.told;
        self.with_move(scene, |_, _, drawn| {
            let moved = PartMove::run(drawn.plan, &mut |_, _| {});
            moved.inspect_err(|error| told.note(error)).is_ok()
        })
    }

    pub(crate) fn cut_move(&mut self, scene: &mut Scene<'_>) -> bool {
        self.with_move(scene, |faults, _, drawn| {
            let n_steps = faults.below(4);
            drop(steps(drawn.plan, n_steps));
            faults.sleep(300);
            true
        })
    }

    pub(crate) fn kill_in_move(&mut self, scene: &mut Scene<'_>) -> bool {
        self.with_move(scene, |faults, cluster, drawn| {
            let n_steps = faults.below(5);
            let moving = steps(drawn.plan, n_steps);
            let [one, other] = drawn.ends;
            let takes_other = one == STEADY || (other != STEADY && faults.below(2) == 0);
            let victim = if takes_other { other } else { one };
            cluster.take_out(victim).kill();
            drop(moving);
            faults.sleep(300);
            true
        })
    }

    /// Lets a move happen, and then whatever it has left be finished.
    fn with_move(
        &mut self,
        scene: &mut Scene<'_>,
        happen: impl FnOnce(&mut Self, &mut Cluster, Drawn) -> bool,
    ) -> bool {
        let drawn = self.draw_move(scene.cluster);
        let _alone = drawn.is_replicated.then(|| scene.clients.gate.write().unwrap());
        let is_done = happen(self, scene.cluster, drawn);
        scene.cluster.heal();
        scene.cluster.tidy();
        is_done
    }

    /// A partition, a server that has it and another, and one that has not.
    fn draw_move(&mut self, cluster: &Cluster) -> Drawn {
        loop {
            let part = self.below(N_PARTS.into()) as u16;
            let (from, to) = (self.below(N_SERVERS as u32), self.below(N_SERVERS as u32));
            let ends = [from as usize, to as usize];
            let [from, to] = ends;
            let may_go = cluster.owns(from, part) && cluster.parts_of(from).len() > 1;
            if may_go && !cluster.owns(to, part) {
                let plan = cluster.plan(from, part, to);
                return Drawn { plan, ends, is_replicated: part == REPLICATED };
            }
        }
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
