//! Versions that are kept for readers: their files stay across commits and compactions.
//!
//! A version is kept for [`PIN_IDLE`] after the last pull that named it. Each newest version is
//! kept for [`NEWEST_FOR`] after the next commit, so that a reader which has just read its number
//! can still pin it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lodestore_graph::lock::IgnorePoison;

/// Maximum versions that are kept because readers named them.
pub(crate) const PINS_MAX: usize = 64;
/// Maximum versions that are kept although no reader has named them.
const NEWEST_MAX: usize = 8;
/// How long a version is kept after the last pull that named it.
const PIN_IDLE: Duration = Duration::from_mins(10);
/// How long a former newest version is kept.
const NEWEST_FOR: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub(crate) struct Pins<T>(Mutex<BTreeMap<u32, Pin<T>>>);

/// Why a version is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// A pull has named the version.
    Reader,
    /// The version is or was the newest one.
    Newest,
}

#[derive(Debug)]
struct Pin<T> {
    version: Arc<T>,
    of: Use,
    last_used: Instant,
}

impl<T> Default for Pins<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Pin<T> {
    fn is_over(&self, now: Instant) -> bool {
        let kept_for = match self.of {
            Use::Reader => PIN_IDLE,
            Use::Newest => NEWEST_FOR,
        };
        now.saturating_duration_since(self.last_used) > kept_for
    }
}

impl<T> Pins<T> {
    /// Returns the version that a pull names, if it is kept, and extends its time.
    pub(crate) fn get(&self, version: u32, now: Instant) -> Option<Arc<T>> {
        let mut pins = self.lock();
        let n_readers = count(&pins, Use::Reader);
        let pin = pins.get_mut(&version)?;
        if pin.of == Use::Newest && n_readers >= PINS_MAX {
            return None;
        }
        (pin.of, pin.last_used) = (Use::Reader, now);
        Some(Arc::clone(&pin.version))
    }

    /// Returns a version if it is kept, without extending its time.
    pub(crate) fn peek(&self, version: u32) -> Option<Arc<T>> {
        self.lock().get(&version).map(|pin| Arc::clone(&pin.version))
    }

    /// Keeps a version, and replaces an entry from before partitions were added. Returns `false`,
    /// without keeping it, if readers keep the maximum number already.
    pub(crate) fn keep(&self, number: u32, version: &Arc<T>, of: Use, now: Instant) -> bool {
        let mut pins = self.lock();
        pins.retain(|_, pin| !pin.is_over(now));
        if let Some(known) = pins.get_mut(&number)
            && (known.of == of || of == Use::Newest)
        {
            known.version = Arc::clone(version);
            known.last_used = now;
            return true;
        }
        if of == Use::Reader && count(&pins, Use::Reader) >= PINS_MAX {
            return false;
        }
        if of == Use::Newest && count(&pins, Use::Newest) >= NEWEST_MAX {
            let oldest = pins.iter().find(|(_, pin)| pin.of == Use::Newest).map(|(&it, _)| it);
            oldest.map(|oldest| pins.remove(&oldest));
        }
        pins.insert(number, Pin { version: Arc::clone(version), of, last_used: now });
        true
    }

    /// Drops expired versions.
    pub(crate) fn expire(&self, now: Instant) {
        self.lock().retain(|_, pin| !pin.is_over(now));
    }

    /// Locks the map. A poisoned lock is harmless: each change of the map is a single call that
    /// does not panic midway.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Pin<T>>> {
        self.0.lock().ignore_poison()
    }
}

fn count<T>(pins: &BTreeMap<u32, Pin<T>>, of: Use) -> usize {
    pins.values().filter(|pin| pin.of == of).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pins(numbers: std::ops::Range<u32>, of: Use, now: Instant) -> Pins<()> {
        let pins = Pins::default();
        numbers.for_each(|it| assert!(pins.keep(it, &Arc::new(()), of, now), "{it}"));
        pins
    }

    #[test]
    fn a_named_version_is_kept_and_an_unnamed_one_expires() {
        let start = Instant::now();
        let pins = pins(1..3, Use::Newest, start);
        let mut now = start;
        for _ in 0..4 {
            now += PIN_IDLE - Duration::from_secs(1);
            assert!(pins.get(1, now).is_some());
            pins.expire(now);
        }
        assert!(pins.get(2, now).is_none(), "kept for a minute");
        pins.expire(now + PIN_IDLE + Duration::from_secs(1));
        assert!(pins.get(1, now).is_none());
    }

    #[test]
    fn a_version_that_is_kept_again_replaces_its_entry() {
        let now = Instant::now();
        let pins = Pins::default();
        for of in [Use::Newest, Use::Newest, Use::Reader, Use::Reader, Use::Newest] {
            let version = Arc::new(());
            assert!(pins.keep(6, &version, of, now));
            assert!(Arc::ptr_eq(&pins.lock()[&6].version, &version), "{of:?}");
        }
        assert_eq!(pins.lock()[&6].of, Use::Reader, "a pull names it");
    }

    #[test]
    fn readers_are_bounded_and_newest_versions_evict_each_other() {
        let now = Instant::now();
        let full = pins(1..PINS_MAX as u32 + 1, Use::Reader, now);
        assert!(!full.keep(900, &Arc::new(()), Use::Reader, now));
        assert!(full.get(1, now).is_some() && full.get(900, now).is_none());
        assert!(full.keep(901, &Arc::new(()), Use::Newest, now));
        assert!(full.get(901, now).is_none(), "readers keep the maximum already");
        let newest = pins(1..20, Use::Newest, now);
        assert_eq!(count(&newest.lock(), Use::Newest), NEWEST_MAX);
        assert!(newest.get(11, now).is_none() && newest.get(12, now).is_some());
    }
}
