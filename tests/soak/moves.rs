//! Partitions that move, or begin to.

use lodestore_client::ClientError;
use lodestore_client::transfer::{PartitionTransfer, TransferPlan};

use crate::cluster::{Cluster, N_PARTS, N_SERVERS, STEADY};
use crate::faults::{Faults, Scene};

/// A move between two servers.
struct Drawn {
    plan: TransferPlan,
    ends: [usize; 2],
}

impl Faults {
    pub(crate) fn move_part(&mut self, scene: &mut Scene<'_>) -> bool {
        // A compaction may keep it waiting for longer than it likes to.
        self.with_move(scene, |_, _, drawn| {
            PartitionTransfer::run(drawn.plan, &mut |_, _| {}).map(drop)
        })
    }

    /// Returns whether it came as far as it should.
    pub(crate) fn cut_move(&mut self, scene: &mut Scene<'_>) -> bool {
        self.with_move(scene, |faults, _, drawn| {
            let n_steps = 1 + faults.below(3);
            let moving = steps(drawn.plan, n_steps).map(drop);
            faults.sleep(300);
            moving
        })
    }

    /// Returns whether the move had come as far as it should.
    pub(crate) fn kill_in_move(&mut self, scene: &mut Scene<'_>) -> bool {
        self.with_move(scene, |faults, cluster, drawn| {
            let n_steps = 1 + faults.below(4);
            let moving = steps(drawn.plan, n_steps);
            let [one, other] = drawn.ends;
            let takes_other = one == STEADY || (other != STEADY && faults.below(2) == 0);
            let victim = if takes_other { other } else { one };
            cluster.take_out(victim).kill();
            let moving = moving.map(drop);
            faults.sleep(300);
            moving
        })
    }

    /// Lets a move happen, notes its error, and then lets whatever it has left be finished.
    fn with_move(
        &mut self,
        scene: &mut Scene<'_>,
        happen: impl FnOnce(&mut Self, &mut Cluster, Drawn) -> Result<(), ClientError>,
    ) -> bool {
        let drawn = self.draw_move(scene.cluster);
        let happened = happen(self, scene.cluster, drawn);
        let happened = happened.inspect_err(|error| scene.clients.errors.note(error));
        scene.cluster.heal();
        scene.cluster.tidy();
        happened.is_ok()
    }

    /// Returns a partition, a server that has it and another, and one that has not.
    fn draw_move(&mut self, cluster: &Cluster) -> Drawn {
        loop {
            let part = self.below(N_PARTS.into()) as u16;
            let (from, to) = (self.below(N_SERVERS as u32), self.below(N_SERVERS as u32));
            let ends = [from as usize, to as usize];
            let [from, to] = ends;
            let may_go = cluster.owns(from, part) && cluster.parts_of(from).len() > 1;
            if may_go && !cluster.owns(to, part) {
                let plan = cluster.plan(from, part, to);
                return Drawn { plan, ends };
            }
        }
    }
}

/// Takes some steps of a move.
fn steps(plan: TransferPlan, n_steps: u32) -> Result<PartitionTransfer, ClientError> {
    let mut moving = PartitionTransfer::begin(plan)?;
    for step in 0..n_steps {
        match step {
            0 => drop(moving.open()?),
            1 => moving.fetch(&mut |_, _| {})?,
            2 => moving.seal()?,
            _ => moving.release()?,
        }
    }
    Ok(moving)
}
