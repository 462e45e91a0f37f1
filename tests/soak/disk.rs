//! A disk that fills up under one server.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::clients::Clients;
use crate::cluster::ON_DISK;
use crate::error_counts::{Kind, NO_SPACE};
use crate::faults::{Faults, Scene};

/// Longest time until puts find the disk full, and until they go through again: links may stand
/// still meanwhile.
const SEEN_MAX: Duration = Duration::from_secs(30);

impl Faults {
    /// Fills the disk. Puts are refused with the reason and pulls continue, until there is room and
    /// the server is started again. Returns whether there is such a disk.
    pub(crate) fn fill_disk(&mut self, scene: &mut Scene<'_>) -> bool {
        let Some(disk) = &scene.cluster.disk else { return false };
        // When concurrent pushes fail, one failure is reported to the client: not always the one
        // that found the disk full.
        let n_refused = || scene.clients.errors.count(Kind::WritesStopped);
        let before = n_refused();
        let left = self.below(100_000).into();
        let (clients, load) = (scene.clients, scene.clients.load);
        let wait_for = |what, is_so: &mut dyn FnMut() -> bool| wait_for(what, clients, is_so);
        wait_for("no put was refused", &mut || {
            // A log whose rows have gone to a table makes room.
            disk.fill(left);
            n_refused() > before
        });
        scene.cluster.check_server(ON_DISK, load);

        let server = scene.cluster.servers[ON_DISK].take().unwrap();
        if self.below(2) == 0 {
            server.kill();
        } else {
            server.stop();
        }
        if self.below(2) == 0 {
            self.start_without_room(scene);
        }
        scene.cluster.disk.as_ref().unwrap().empty();
        scene.cluster.heal();
        let before = load.finished();
        wait_for("no put goes through again", &mut || {
            load.finished().iter().zip(&before).all(|(now, then)| now > then)
        });
        true
    }

    /// Starts the server on a full disk: either it serves, or it says what it lacks.
    fn start_without_room(&mut self, scene: &mut Scene<'_>) {
        // The end of the one before may have made room.
        scene.cluster.disk.as_ref().unwrap().fill(0);
        match scene.cluster.try_start_server(ON_DISK) {
            Ok(()) => {
                scene.cluster.check_server(ON_DISK, scene.clients.load);
                scene.cluster.servers[ON_DISK].take().unwrap().kill();
            }
            Err(log) => {
                let says_why = log.contains(NO_SPACE) && !log.contains("panicked");
                assert!(says_why, "{log}");
            }
        }
    }
}

fn wait_for(what: &str, clients: &Clients<'_>, is_so: &mut dyn FnMut() -> bool) {
    let now = || (clients.load.finished(), clients.errors.counts());
    let (end, before) = (Instant::now() + SEEN_MAX, now());
    while !is_so() {
        let is_late = Instant::now() > end;
        assert!(
            !is_late,
            "{what}; turns of writers, errors reported: {before:?}, then {:?}",
            now()
        );
        sleep(Duration::from_millis(5));
    }
}
