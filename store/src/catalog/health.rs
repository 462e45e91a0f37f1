//! Whether a catalog takes writes, and how one that has run out of room takes them again.
//!
//! After a write that failed nothing is known of what it left on disk, so no other follows. Where
//! the disk was full, the next write looks whether there is room: [`KeyValues::recover`] then
//! opens the pairs again without what had failed. Any other failure lasts until the graph is
//! opened again.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lodestore_graph::lock::IgnorePoison;
use rustix::io::Errno;

use super::{Catalog, failed};
use crate::error::StoreError;
use crate::file_system::{Change, FileSystem, KeyValues};

/// Pause between two looks for room.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Advice of a refused write where only room is lacking.
const MAKE_ROOM: &str = "make room; puts look for it once a second and then continue";
/// Advice of a refused write after any other failure.
const OPEN_AGAIN: &str = "make room or mend the disk, then open the graph again";

/// Whether writes are taken.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Whether `failure` or `paused` is set, for a write that has nothing to wait for.
    has_failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
    /// Why no writes are taken for some time, and what helps, whatever has failed.
    paused: Mutex<Option<(String, &'static str)>>,
    /// Held while one writer looks for room; the others are refused meanwhile.
    looking: Mutex<()>,
    /// Between two looks.
    pause: Duration,
}

/// Why no writes are taken.
#[derive(Debug)]
struct Failure {
    /// The failure, or why they were stopped.
    reason: String,
    is_stopped: bool,
    advice: &'static str,
    /// When room is looked for next; `None` where room is not what lacks.
    next_look: Option<Instant>,
}

impl Health {
    /// Makes that of a catalog on `fs` whose writes have not failed.
    pub(super) fn new(fs: &dyn FileSystem) -> Self {
        let pause = if fs.waits() { LOOK_PAUSE } else { Duration::ZERO };
        Self { pause, ..Self::default() }
    }

    /// Returns why no writes are taken and what helps; `None` while they are.
    fn reason(&self) -> Option<(String, &'static str)> {
        if !self.has_failed.load(Ordering::Acquire) {
            return None;
        }
        let failure = self.lock().as_ref().map(|known| (known.reason.clone(), known.advice));
        failure.or_else(|| self.paused.lock().ignore_poison().clone())
    }

    /// Refuses all writes until it is called with `None`.
    fn pause(&self, paused: Option<(String, &'static str)>) {
        let failure = self.lock();
        let mut before = self.paused.lock().ignore_poison();
        *before = paused;
        self.has_failed.store(failure.is_some() || before.is_some(), Ordering::Release);
    }

    fn check_is_not_paused(&self, dir: &Path) -> Result<(), StoreError> {
        let paused = self.paused.lock().ignore_poison().clone();
        let Some((reason, advice)) = paused else { return Ok(()) };
        Err(StoreError::WritesStopped { dir: dir.to_owned(), reason, advice })
    }

    /// Passes on how a write ended. Only the first failure counts: those after it follow from it.
    fn noted<T>(&self, written: std::io::Result<T>) -> std::io::Result<T> {
        if let Err(error) = &written {
            let mut failure = self.lock();
            if failure.is_none() {
                let next_look = is_full(error).then(|| Instant::now() + self.pause);
                let advice = if next_look.is_some() { MAKE_ROOM } else { OPEN_AGAIN };
                *failure = Some(Failure {
                    reason: error.to_string(),
                    is_stopped: false,
                    advice,
                    next_look,
                });
                self.has_failed.store(true, Ordering::Release);
            }
        }
        written
    }

    /// Refuses all writes from now on, in place of what kept them away before.
    fn stop(&self, reason: String, advice: &'static str) {
        *self.lock() = Some(Failure { reason, is_stopped: true, advice, next_look: None });
        self.has_failed.store(true, Ordering::Release);
    }

    /// Passes while writes are taken; looks for room when it is time to, or returns the refusal.
    fn check(&self, pairs: &dyn KeyValues, dir: &Path) -> Result<(), StoreError> {
        if !self.has_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        {
            let mut failure = self.lock();
            let Some(known) = &mut *failure else {
                drop(failure);
                return self.check_is_not_paused(dir);
            };
            match known.next_look {
                Some(at) if Instant::now() >= at => known.next_look = Some(at + self.pause),
                _ => return Err(known.refusal(dir)),
            }
        }
        let Ok(_looking) = self.looking.try_lock() else { return self.refused(dir) };
        match pairs.recover() {
            Ok(()) => {
                let mut failure = self.lock();
                // It may have been stopped for good meanwhile.
                if let Some(other) = failure.as_ref().filter(|it| it.is_stopped) {
                    return Err(other.refusal(dir));
                }
                *failure = None;
                let is_paused = self.paused.lock().ignore_poison().is_some();
                self.has_failed.store(is_paused, Ordering::Release);
                drop(failure);
                tracing::info!("{}: there is room again, and puts are taken", dir.display());
                self.check_is_not_paused(dir)
            }
            Err(error) => {
                if let Some(known) = self.lock().as_mut().filter(|it| !it.is_stopped) {
                    known.reason = error.to_string();
                    known.next_look = Some(Instant::now() + self.pause);
                }
                self.refused(dir)
            }
        }
    }

    fn refused(&self, dir: &Path) -> Result<(), StoreError> {
        self.lock().as_ref().map_or(Ok(()), |known| Err(known.refusal(dir)))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Failure>> {
        self.failure.lock().ignore_poison()
    }
}

impl Failure {
    fn refusal(&self, dir: &Path) -> StoreError {
        let reason = match self.is_stopped {
            true => self.reason.clone(),
            false => format!("an earlier write failed ({})", self.reason),
        };
        StoreError::WritesStopped { dir: dir.to_owned(), reason, advice: self.advice }
    }
}

/// Returns whether an error says that there is no room. RocksDB passes on the system's words only.
fn is_full(error: &std::io::Error) -> bool {
    let full = [Errno::NOSPC, Errno::DQUOT];
    if let Some(number) = error.raw_os_error() {
        return full.iter().any(|errno| errno.raw_os_error() == number);
    }
    let words = error.to_string();
    let is_said = |errno: &Errno| {
        let of_system = std::io::Error::from(*errno).to_string();
        words.contains(of_system.split(" (os error").next().unwrap_or(&of_system))
    };
    error.kind() == std::io::ErrorKind::StorageFull || full.iter().any(is_said)
}

impl Catalog {
    /// Fails with [`StoreError::WritesStopped`] while a write that failed keeps others away; looks
    /// for room before that where room is what lacks.
    pub(crate) fn check_takes_writes(&self) -> Result<(), StoreError> {
        self.health.check(&*self.pairs, &self.dir)
    }

    /// Refuses all writes until the graph is opened again.
    pub(crate) fn stop_writes(&self, reason: String, advice: &'static str) {
        self.health.stop(reason, advice);
    }

    /// Refuses all writes with a reason and what helps, until it is called with `None`.
    pub(crate) fn pause_writes(&self, paused: Option<(String, &'static str)>) {
        self.health.pause(paused);
    }

    /// Returns why no writes are taken and what helps, without looking for room; `None` while they
    /// are.
    pub(crate) fn write_failure(&self) -> Option<(String, &'static str)> {
        self.health.reason()
    }

    /// Moves what is in the log into tables, so that a reader has nothing to replay.
    pub fn flush(&self) -> Result<(), StoreError> {
        self.check_takes_writes()?;
        self.health.noted(self.pairs.flush()).map_err(failed(&self.dir))
    }

    /// Has all writes refused as after this failure.
    #[cfg(test)]
    pub(crate) fn fail_writes(&self, failure: std::io::Error) {
        let _ = self.health.noted::<()>(Err(failure));
    }

    pub(super) fn write(&self, changes: &[Change]) -> Result<(), StoreError> {
        self.check_takes_writes()?;
        self.health.noted(self.pairs.write(changes)).map_err(failed(&self.dir))
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::file_system::EachPair;

    /// Pairs that are never there, and that recover when they may.
    #[derive(Debug, Default)]
    struct Pairs {
        has_room: AtomicBool,
        n_looks: AtomicU32,
    }

    impl KeyValues for Pairs {
        fn get(&self, _: &[u8]) -> io::Result<Option<Vec<u8>>> {
            Ok(None)
        }
        fn scan_from(&self, _: &[u8], _: &mut EachPair<'_>) -> io::Result<()> {
            Ok(())
        }
        fn write(&self, _: &[Change]) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
        fn recover(&self) -> io::Result<()> {
            self.n_looks.fetch_add(1, Ordering::Relaxed);
            let has_room = self.has_room.load(Ordering::Relaxed);
            if has_room { Ok(()) } else { Err(Errno::NOSPC.into()) }
        }
    }

    fn fail(health: &Health, error: io::Error) {
        health.noted::<()>(Err(error)).unwrap_err();
    }

    #[test]
    fn a_full_disk_is_distinguished_from_any_other_failure() {
        let words = "IO error: No space left on device: While appending to file: /a/000004.log";
        for error in [io::Error::other(words), Errno::NOSPC.into(), Errno::DQUOT.into()] {
            assert!(is_full(&error), "{error}");
        }
        assert!(is_full(&io::Error::new(io::ErrorKind::StorageFull, "1 byte is free")));
        let others = [Errno::IO.into(), Errno::ROFS.into(), io::Error::other("IO error: ")];
        assert!(!others.iter().any(is_full));
    }

    #[test]
    fn room_is_looked_for_after_a_pause_and_not_by_every_write() {
        let (pairs, dir) = (Pairs::default(), Path::new("g/part-000/catalog"));
        let health = Health { pause: Duration::from_secs(3600), ..Health::default() };
        assert!(health.check(&pairs, dir).is_ok() && health.reason().is_none());
        fail(&health, Errno::NOSPC.into());
        for _ in 0..3 {
            let refusal = health.check(&pairs, dir).unwrap_err().to_string();
            assert!(refusal.contains("No space left") && refusal.contains(MAKE_ROOM), "{refusal}");
        }
        assert_eq!(pairs.n_looks.load(Ordering::Relaxed), 0);
        health.lock().as_mut().unwrap().next_look = Some(Instant::now());
        for _ in 0..3 {
            health.check(&pairs, dir).unwrap_err();
        }
        assert_eq!(pairs.n_looks.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_catalog_that_was_stopped_takes_no_writes_whatever_room_there_is() {
        let (pairs, dir) = (Pairs::default(), Path::new("g/part-000/catalog"));
        pairs.has_room.store(true, Ordering::Relaxed);
        let health = Health::default();
        fail(&health, Errno::NOSPC.into());
        health.stop("another server writes it".to_owned(), "stop one");
        for _ in 0..2 {
            let refusal = health.check(&pairs, dir).unwrap_err().to_string();
            assert!(
                refusal.contains("another server") && refusal.contains("stop one"),
                "{refusal}"
            );
        }
        assert_eq!(pairs.n_looks.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_catalog_that_was_paused_takes_writes_again_unless_one_has_failed() {
        let (pairs, dir) = (Pairs::default(), Path::new("g/part-000/catalog"));
        let health = Health { pause: Duration::from_secs(3600), ..Health::default() };
        let pause = || health.pause(Some(("nobody was asked".to_owned(), "wait")));
        pause();
        let refusal = health.check(&pairs, dir).unwrap_err().to_string();
        assert!(refusal.contains("nobody was asked") && refusal.contains("wait"), "{refusal}");
        assert_eq!(health.reason().unwrap().1, "wait");
        health.pause(None);
        assert!(health.check(&pairs, dir).is_ok() && health.reason().is_none());
        pause();
        fail(&health, Errno::IO.into());
        health.pause(None);
        health.check(&pairs, dir).unwrap_err();
        assert_eq!(health.reason().unwrap().1, OPEN_AGAIN);
    }

    #[test]
    fn writes_are_taken_again_when_there_is_room_and_only_then() {
        let (pairs, dir) = (Pairs::default(), Path::new("g/part-000/catalog"));
        let health = Health::default();
        fail(&health, Errno::NOSPC.into());
        fail(&health, io::Error::other("follows from it"));
        health.check(&pairs, dir).unwrap_err();
        assert!(health.reason().unwrap().0.contains("No space left"));
        pairs.has_room.store(true, Ordering::Relaxed);
        health.check(&pairs, dir).unwrap();
        assert_eq!((health.reason(), pairs.n_looks.load(Ordering::Relaxed)), (None, 2));
        fail(&health, Errno::IO.into());
        let refusal = health.check(&pairs, dir).unwrap_err().to_string();
        assert!(refusal.contains(OPEN_AGAIN), "room is not what lacks: {refusal}");
        assert_eq!(pairs.n_looks.load(Ordering::Relaxed), 2);
    }
}
